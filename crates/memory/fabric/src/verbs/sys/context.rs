//! Devices, and resources of an open device: domains, memory.

use core::ffi::{CStr, c_int};
use core::ptr::{self, NonNull};
use std::io;
use std::sync::Arc;

use super::abi::{self, DeviceAttributes, Gid, PortAttributes};
use super::library::{Library, library};
use crate::mapped::MappedMemory;

/// Capabilities of a device that Farleaf uses.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct DeviceLimits {
    /// Maximum number of work requests of a queue pair.
    pub(in crate::verbs) request_count_max: u32,
    /// Maximum number of READs and atomics that a queue pair answers at a time.
    pub(in crate::verbs) answered_reads_max: u8,
    /// Maximum number of READs and atomics that a queue pair has in flight.
    pub(in crate::verbs) started_reads_max: u8,
    pub(in crate::verbs) has_atomics: bool,
    pub(in crate::verbs) port_count: u8,
}

/// Attributes of a port that Farleaf uses.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct PortStatus {
    /// State, as the library numbers it; 4: active.
    pub(in crate::verbs) state: u32,
    /// MTU, as the library numbers it.
    pub(in crate::verbs) mtu_number: u32,
    pub(in crate::verbs) gid_count: i32,
    pub(in crate::verbs) message_size_bytes_max: u32,
    pub(in crate::verbs) lid: u16,
    /// Link layer, as the library numbers it; 2: Ethernet.
    pub(in crate::verbs) link_layer: u8,
}

/// A device list, with the names of its devices.
#[derive(Debug)]
pub(in crate::verbs) struct DeviceList {
    library: &'static Library,
    list: NonNull<*mut abi::Device>,
    names: Vec<String>,
}

impl DeviceList {
    /// Loads the library and lists the devices.
    ///
    /// # Errors
    /// The library cannot be loaded (the text says why), or the system has no verbs.
    pub(in crate::verbs) fn new() -> Result<Result<Self, io::Error>, String> {
        let library = library()?;
        let mut count: c_int = 0;
        // SAFETY: the argument points to a variable for the count.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        let Some(list) = NonNull::new(list) else {
            return Ok(Err(io::Error::last_os_error()));
        };
        let mut found = Self {
            library,
            list,
            names: Vec::new(),
        };
        for index in 0..usize::try_from(count).unwrap_or(0) {
            let device = found.device(index);
            // SAFETY: the device is in a list that has not been freed.
            let name = unsafe { (library.ibv_get_device_name)(device) };
            // SAFETY: the library returns a zero-terminated string, which belongs to the device.
            let name = unsafe { CStr::from_ptr(name) };
            found.names.push(name.to_string_lossy().into_owned());
        }
        Ok(Ok(found))
    }

    pub(in crate::verbs) fn names(&self) -> &[String] {
        &self.names
    }

    fn device(&self, index: usize) -> *mut abi::Device {
        // SAFETY: callers pass an index below the list's length, which the library returned.
        let place = unsafe { self.list.as_ptr().add(index) };
        // SAFETY: the place is in the list, which has not been freed.
        unsafe { *place }
    }

    /// Opens a device by its index among the names.
    pub(in crate::verbs) fn open(&self, index: usize) -> io::Result<Arc<Context>> {
        assert!(index < self.names.len(), "a place among the names");
        // SAFETY: the device is in a list that has not been freed.
        let raw = unsafe { (self.library.ibv_open_device)(self.device(index)) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Context {
            library: self.library,
            raw,
        }))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is freed once; open devices outlive it.
        unsafe { (self.library.ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// An open device.
#[derive(Debug)]
pub(in crate::verbs) struct Context {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<abi::Context>,
}

// SAFETY: the library's functions may be called from any thread. The value is a handle, which is
// closed when the last owner drops it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn ops(&self) -> abi::ContextOps {
        // SAFETY: an open device's context is readable, and begins as defined by `abi::Context`.
        unsafe { (*self.raw.as_ptr()).ops }
    }

    pub(in crate::verbs) fn limits(&self) -> io::Result<DeviceLimits> {
        let mut output = core::mem::MaybeUninit::<DeviceAttributes>::zeroed();
        // SAFETY: the device is open, and there is more space than the library writes to.
        let status =
            unsafe { (self.library.ibv_query_device)(self.raw.as_ptr(), output.as_mut_ptr()) };
        check(status)?;
        // SAFETY: the structure consists of numbers, for which zero is valid, and was zeroed.
        let attributes = unsafe { output.assume_init() };
        let depth = |count: c_int| count.clamp(0, 255) as u8;
        Ok(DeviceLimits {
            request_count_max: attributes.request_count_max.max(0) as u32,
            answered_reads_max: depth(attributes.rd_atomic_max),
            started_reads_max: depth(attributes.initiated_rd_atomic_max),
            has_atomics: attributes.atomics != 0,
            port_count: attributes.port_count,
        })
    }

    pub(in crate::verbs) fn port(&self, port: u8) -> io::Result<PortStatus> {
        let mut attributes = PortAttributes::default();
        // SAFETY: the device is open, and there is more space than the library writes to.
        let status =
            unsafe { (self.library.ibv_query_port)(self.raw.as_ptr(), port, &raw mut attributes) };
        check(status)?;
        Ok(PortStatus {
            state: attributes.state,
            mtu_number: attributes.mtu_active,
            gid_count: attributes.gid_count,
            message_size_bytes_max: attributes.message_size_bytes_max,
            lid: attributes.lid,
            link_layer: attributes.link_layer,
        })
    }

    pub(in crate::verbs) fn gid(&self, port: u8, index: i32) -> io::Result<[u8; 16]> {
        let mut gid = Gid::default();
        // SAFETY: the device is open, and there is space for the identifier.
        let status =
            unsafe { (self.library.ibv_query_gid)(self.raw.as_ptr(), port, index, &raw mut gid) };
        check(status)?;
        Ok(gid.0)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every resource of the device holds it by an `Arc`, so none is left.
        let closed = unsafe { (self.library.ibv_close_device)(self.raw.as_ptr()) };
        debug_assert_eq!(closed, 0, "nothing uses the device any more");
    }
}

/// A protection domain: keys of memory are valid only for queue pairs of the same domain.
#[derive(Debug)]
pub(in crate::verbs) struct Domain {
    pub(super) context: Arc<Context>,
    pub(super) raw: NonNull<abi::Domain>,
}

// SAFETY: the value is a handle, as `Context` is.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    pub(in crate::verbs) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let context = Arc::clone(context);
        Ok(Arc::new(Self { context, raw }))
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: memory and queue pairs of the domain hold it by an `Arc`, so none is left.
        let freed = unsafe { (self.context.library.ibv_dealloc_pd)(self.raw.as_ptr()) };
        debug_assert_eq!(freed, 0, "nothing uses the domain any more");
    }
}

/// Access of peers to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Access {
    /// No access; for the results of this side's own verbs.
    Local,
    /// READ.
    Read,
    /// READ, WRITE, CAS and FAA.
    All,
}

impl Access {
    pub(super) fn flags(self) -> c_int {
        match self {
            Self::Local => abi::ACCESS_LOCAL_WRITE,
            Self::Read => abi::ACCESS_REMOTE_READ,
            Self::All => {
                abi::ACCESS_LOCAL_WRITE
                    | abi::ACCESS_REMOTE_READ
                    | abi::ACCESS_REMOTE_WRITE
                    | abi::ACCESS_REMOTE_ATOMIC
            }
        }
    }
}

/// Memory that is registered with the card: pinned, and accessed by keys.
#[derive(Debug)]
pub(in crate::verbs) struct RegisteredMemory {
    raw: NonNull<abi::Mr>,
    domain: Arc<Domain>,
    /// The mapping; unmapped only after it is deregistered.
    memory: Arc<MappedMemory>,
}

// SAFETY: the value is a handle, as `Context` is; the memory is shared as atomics only.
unsafe impl Send for RegisteredMemory {}
// SAFETY: as above.
unsafe impl Sync for RegisteredMemory {}

impl RegisteredMemory {
    /// Registers a whole mapping.
    pub(in crate::verbs) fn new(
        domain: &Arc<Domain>,
        memory: &Arc<MappedMemory>,
        access: Access,
    ) -> io::Result<Self> {
        let words = memory.words();
        let base = ptr::from_ref(words).cast_mut().cast();
        // SAFETY: the range is a mapping that this value keeps until it is deregistered. It is only
        // ever lent as atomics, so others, including the card, may write to it at any time.
        let raw = unsafe {
            (domain.context.library.ibv_reg_mr)(
                domain.raw.as_ptr(),
                base,
                size_of_val(words),
                access.flags(),
            )
        };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            raw,
            domain: Arc::clone(domain),
            memory: Arc::clone(memory),
        })
    }

    pub(in crate::verbs) fn memory(&self) -> &MappedMemory {
        &self.memory
    }

    /// Returns the start of the memory, as peers' verbs address it.
    pub(in crate::verbs) fn address(&self) -> u64 {
        self.memory.words().as_ptr().addr() as u64
    }

    pub(super) fn local_key(&self) -> u32 {
        // SAFETY: the handle is valid until it is deregistered in `drop`.
        unsafe { (*self.raw.as_ptr()).lkey }
    }

    pub(in crate::verbs) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.raw.as_ptr()).rkey }
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        let library = self.domain.context.library;
        // SAFETY: the handle came from the library and is released once. Verbs that name the memory
        // fail from now on; queue pairs hold the memory they have named until they are destroyed.
        let status = unsafe { (library.ibv_dereg_mr)(self.raw.as_ptr()) };
        debug_assert_eq!(status, 0, "nothing uses the memory any more");
    }
}

/// Converts a status of the library: 0, or an error number of the system.
pub(super) fn check(status: c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}
