//! The library, loaded on demand.

use core::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use super::abi::{
    Channel, Context, Cq, Device, DeviceAttributes, Domain, Gid, Mr, PortAttributes, Qp,
    QpAttributes, QpInit,
};

/// File name that is passed to the loader.
pub(in crate::verbs) const LIBRARY_NAME: &str = "libibverbs.so.1";

macro_rules! library {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The library's functions that Farleaf uses.
        #[derive(Debug)]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// The loaded library, which keeps the function pointers valid.
            _code: libloading::Library,
        }

        impl Library {
            fn load() -> Result<Self, libloading::Error> {
                // SAFETY: loading runs the library's initializers. It is the system's verbs
                // library, and every program linked with it runs them too.
                let code = unsafe { libloading::Library::new(LIBRARY_NAME) }?;
                $(
                    // SAFETY: the type is that of the function of this name in the library's
                    // header. The version in the file name guarantees that interface.
                    let $name = *unsafe { code.get(concat!(stringify!($name), "\0").as_bytes()) }?;
                )*
                Ok(Self { $($name,)* _code: code })
            }
        }
    };
}

library! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(*mut *mut Device) -> ();
    ibv_get_device_name: fn(*mut Device) -> *const c_char;
    ibv_open_device: fn(*mut Device) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttributes) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttributes) -> c_int;
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut Domain;
    ibv_dealloc_pd: fn(*mut Domain) -> c_int;
    ibv_reg_mr: fn(*mut Domain, *mut c_void, usize, c_int) -> *mut Mr;
    ibv_dereg_mr: fn(*mut Mr) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut Channel;
    ibv_destroy_comp_channel: fn(*mut Channel) -> c_int;
    ibv_get_cq_event: fn(*mut Channel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut Cq, u32) -> ();
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut Cq;
    ibv_destroy_cq: fn(*mut Cq) -> c_int;
    ibv_create_qp: fn(*mut Domain, *mut QpInit) -> *mut Qp;
    ibv_modify_qp: fn(*mut Qp, *mut QpAttributes, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut Qp) -> c_int;
}

/// Returns the library, loaded once for the process; the error is the loader's message.
pub(super) fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LIBRARY.get_or_init(|| Library::load().map_err(|error| loader_message(&error)));
    loaded.as_ref().map_err(Clone::clone)
}

/// Returns the loader's message, if there is one.
fn loader_message(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}
