//! The verbs library behind safe types; the only unsafe code of the backend.
//!
//! Safety rests on ownership. Everything created from a device holds the device by an `Arc`, and
//! handles are released in `drop`. A queue pair owns the registered memory that its requests name,
//! and checks every request against it. The queue pair is destroyed before the memory is released,
//! so that the card no longer uses it. Registered memory is lent as atomic words only.

mod abi;
mod context;
mod library;
mod queue;

pub(in crate::verbs) use context::{
    Access, Context, DeviceLimits, DeviceList, Domain, PortStatus, RegisteredMemory,
};
pub(in crate::verbs) use library::LIBRARY_NAME;
pub(in crate::verbs) use queue::{
    Capacity, Completion, Peer, QueuePair, RegisteredRange, RequestKind, SendRequest,
};
