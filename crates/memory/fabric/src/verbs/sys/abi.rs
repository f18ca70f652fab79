//! Structures of `<infiniband/verbs.h>`, with their layout on 64-bit Linux. They are the library's
//! stable interface (`libibverbs.so.1`); assertions check the sizes.

use core::ffi::{c_char, c_int, c_void};

/// Entry of the device list.
pub(super) type Device = c_void;
/// `struct ibv_pd`.
pub(super) type Domain = c_void;

/// A local piece of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// A send work request. The union `wr` is written out: `rdma` has the key where `atomic` has
/// `compare_add`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) sge_count: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    pub(super) immediate: u32,
    pub(super) remote_addr: u64,
    /// `rdma.rkey`, or `atomic.compare_add`.
    pub(super) compare_add_or_rkey: u64,
    pub(super) swap: u64,
    /// `atomic.rkey`.
    pub(super) rkey: u64,
    pub(super) rest: [u64; 7],
}

/// A work completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) vendor_error: u32,
    pub(super) byte_length: u32,
    pub(super) immediate: u32,
    pub(super) qp_num: u32,
    pub(super) source_qp: u32,
    pub(super) flags: u32,
    pub(super) pkey_index: u16,
    pub(super) source_lid: u16,
    pub(super) service_level: u8,
    pub(super) path_bits: u8,
}

pub(super) type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
pub(super) type RequestNotify = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub(super) type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;

/// Functions of the driver that C programs call through inline functions of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ContextOps {
    before_poll: [*mut c_void; 11],
    pub(super) poll_cq: Option<PollCq>,
    pub(super) request_notify: Option<RequestNotify>,
    between: [*mut c_void; 12],
    pub(super) post_send: Option<PostSend>,
    after: [*mut c_void; 6],
}

/// An open device.
#[repr(C)]
pub(super) struct Context {
    device: *mut Device,
    pub(super) ops: ContextOps,
}

/// A completion channel.
#[repr(C)]
pub(super) struct Channel {
    context: *mut Context,
    pub(super) fd: c_int,
}

/// A completion queue; only its address is used.
#[repr(C)]
pub(super) struct Cq {
    context: *mut Context,
}

/// A queue pair.
#[repr(C)]
pub(super) struct Qp {
    context: *mut Context,
    user_context: *mut c_void,
    domain: *mut Domain,
    send_cq: *mut Cq,
    receive_cq: *mut Cq,
    shared_receive: *mut c_void,
    handle: u32,
    pub(super) number: u32,
}

/// Registered memory.
#[repr(C)]
pub(super) struct Mr {
    context: *mut Context,
    domain: *mut Domain,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QpCapacity {
    pub(super) send_request_count: u32,
    pub(super) receive_request_count: u32,
    pub(super) send_sge_count: u32,
    pub(super) receive_sge_count: u32,
    pub(super) inline_size_bytes: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct QpInit {
    pub(super) user_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) receive_cq: *mut Cq,
    pub(super) shared_receive: *mut c_void,
    pub(super) capacity: QpCapacity,
    pub(super) kind: u32,
    pub(super) signals_all: c_int,
}

/// Global identifier of a port.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gid(pub(super) [u8; 16]);

/// `struct ibv_ah_attr`, beginning with the global route.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AddressVector {
    pub(super) gid: Gid,
    pub(super) flow_label: u32,
    pub(super) own_gid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
    pub(super) lid: u16,
    pub(super) service_level: u8,
    pub(super) path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QpAttributes {
    pub(super) state: u32,
    pub(super) current_state: u32,
    pub(super) path_mtu: u32,
    pub(super) migration: u32,
    pub(super) qkey: u32,
    pub(super) receive_psn: u32,
    pub(super) send_psn: u32,
    pub(super) peer_number: u32,
    pub(super) access: u32,
    pub(super) capacity: QpCapacity,
    pub(super) address: AddressVector,
    pub(super) alternate: AddressVector,
    pub(super) pkey_index: u16,
    pub(super) alternate_pkey_index: u16,
    pub(super) notifies_drained: u8,
    pub(super) is_draining: u8,
    pub(super) rd_atomic_max: u8,
    pub(super) peer_rd_atomic_max: u8,
    pub(super) not_ready_timer: u8,
    pub(super) port: u8,
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) not_ready_retry: u8,
    pub(super) alternate_port: u8,
    pub(super) alternate_timeout: u8,
    pub(super) rate_limit: u32,
}

/// Capabilities of a device; unused fields at the end have no names.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceAttributes {
    firmware: [c_char; 64],
    guids: [u64; 2],
    pub(super) registered_size_bytes_max: u64,
    page_sizes: u64,
    identity: [u32; 3],
    pub(super) qp_count_max: c_int,
    pub(super) request_count_max: c_int,
    capabilities: u32,
    sge_count_max: c_int,
    sge_read_count_max: c_int,
    cq_count_max: c_int,
    pub(super) cqe_count_max: c_int,
    region_count_max: c_int,
    domain_count_max: c_int,
    pub(super) rd_atomic_max: c_int,
    ee_rd_atomic_max: c_int,
    resource_rd_atomic_max: c_int,
    pub(super) initiated_rd_atomic_max: c_int,
    ee_initiated_rd_atomic_max: c_int,
    /// Level of atomics; 0: the device has none.
    pub(super) atomics: u32,
    between: [c_int; 14],
    keys_and_delay: [u8; 3],
    pub(super) port_count: u8,
    /// Space for fields of newer libraries.
    rest: [u64; 8],
}

/// Attributes of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortAttributes {
    pub(super) state: u32,
    pub(super) mtu_max: u32,
    pub(super) mtu_active: u32,
    pub(super) gid_count: c_int,
    capabilities: u32,
    pub(super) message_size_bytes_max: u32,
    bad_key_count: u32,
    violation_count: u32,
    key_count: u16,
    pub(super) lid: u16,
    manager_lid: u16,
    small: [u8; 8],
    pub(super) link_layer: u8,
    flags: u8,
    /// Space for fields of newer libraries.
    rest: [u64; 8],
}

const _: () = {
    assert!(size_of::<SendWr>() == 128);
    assert!(size_of::<Wc>() == 48);
    assert!(size_of::<ContextOps>() == 256);
    assert!(size_of::<Mr>() == 48);
    assert!(size_of::<QpInit>() == 64);
    assert!(size_of::<AddressVector>() == 32);
    assert!(size_of::<QpAttributes>() == 144);
    // `struct ibv_device_attr` has 232 bytes, `struct ibv_port_attr` 52 or more.
    assert!(core::mem::offset_of!(DeviceAttributes, port_count) == 227);
    assert!(core::mem::offset_of!(PortAttributes, link_layer) == 46);
};

pub(super) const OPCODE_WRITE: u32 = 0;
pub(super) const OPCODE_READ: u32 = 4;
pub(super) const OPCODE_COMPARE_SWAP: u32 = 5;
pub(super) const OPCODE_FETCH_ADD: u32 = 6;

pub(super) const SEND_FENCE: u32 = 1;
pub(super) const SEND_SIGNALED: u32 = 2;
pub(super) const SEND_INLINE: u32 = 8;

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 2;
pub(super) const ACCESS_REMOTE_READ: c_int = 4;
pub(super) const ACCESS_REMOTE_ATOMIC: c_int = 8;

pub(super) const QP_RELIABLE_CONNECTION: u32 = 2;

pub(super) const STATE_INIT: u32 = 1;
pub(super) const STATE_READY_TO_RECEIVE: u32 = 2;
pub(super) const STATE_READY_TO_SEND: u32 = 3;
pub(super) const STATE_ERROR: u32 = 6;

pub(super) const MASK_STATE: c_int = 1;
pub(super) const MASK_ACCESS: c_int = 1 << 3;
pub(super) const MASK_PKEY_INDEX: c_int = 1 << 4;
pub(super) const MASK_PORT: c_int = 1 << 5;
pub(super) const MASK_ADDRESS: c_int = 1 << 7;
pub(super) const MASK_PATH_MTU: c_int = 1 << 8;
pub(super) const MASK_TIMEOUT: c_int = 1 << 9;
pub(super) const MASK_RETRY_COUNT: c_int = 1 << 10;
pub(super) const MASK_NOT_READY_RETRY: c_int = 1 << 11;
pub(super) const MASK_RECEIVE_PSN: c_int = 1 << 12;
pub(super) const MASK_RD_ATOMIC: c_int = 1 << 13;
pub(super) const MASK_NOT_READY_TIMER: c_int = 1 << 15;
pub(super) const MASK_SEND_PSN: c_int = 1 << 16;
pub(super) const MASK_PEER_RD_ATOMIC: c_int = 1 << 17;
pub(super) const MASK_PEER_NUMBER: c_int = 1 << 20;
