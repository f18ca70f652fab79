//! Memory mapped into this process: the whole of the `mem` backend, and the data path of `shm`.
//!
//! [`MappedRegion`] owns a mapping and lends its words as atomics, never as bytes.
//! [`MappedEndpoint`] executes batches on it: within the call of `execute`, so that the future is
//! ready at its first poll, with the processor's own loads, stores and atomics, which are all the
//! "NIC" there is; so its CPU atomics are fabric atomics (F4).

#[expect(
    unsafe_code,
    reason = "maps memory and lends it as atomic words; proofs at each block"
)]
mod region;

mod endpoint;
mod host;

pub use endpoint::MappedEndpoint;
pub use region::{MappedRegion, PageKind};
