//! The verbs library behind safe types; the only unsafe code of the backend.
//!
//! What makes them safe: everything that is made of a device keeps it (by `Arc`, and handles are
//! given back in `drop`); a queue pair owns the registered memory that its requests name, checks
//! every request against it, and is destroyed, so that the card uses it no more, before the memory
//! is given back; registered memory is lent as atomic words only.

mod abi;
mod context;
mod library;
mod queue;

pub(in crate::verbs) use context::{
    Access, Context, DeviceLimits, DeviceList, Domain, PortStatus, RegisteredMemory,
};
pub(in crate::verbs) use library::LIBRARY_NAME;
pub(in crate::verbs) use queue::{
    Capacity, Completion, Peer, Place, QueuePair, RequestKind, SendRequest,
};
