//! Memory mapped into this process: the `mem` backend, and the data path of `shm`.
//!
//! [`MappedMemory`] owns a mapping and lends its words as atomics, never as bytes.
//! [`MappedEndpoint`] executes batches on it within the call of `execute`, so the future is ready
//! at its first poll. It uses the processor's own loads, stores and atomics. No NIC is involved, so
//! the processor's atomics are the fabric's atomics (FABRIC-4).

#[expect(
    unsafe_code,
    reason = "maps memory and lends it as atomic words; proofs at each block"
)]
mod memory;

mod endpoint;
mod host;

pub use endpoint::MappedEndpoint;
pub use memory::{MappedMemory, PageKind};
