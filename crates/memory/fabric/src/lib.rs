//! One-sided verbs over memory that others share.
//!
//! A memory node exposes one region of aligned 8-byte words. Whoever wants something of it builds a
//! [`Batch`] of verbs (READ, WRITE, compare-and-swap, fetch-and-add) and executes it on an
//! [`Endpoint`]: one doorbell, one round trip. Everything above this crate is generic over
//! [`Endpoint`], so the same protocol code runs in one process, between processes, over a network
//! and in a simulator.
//!
//! | module | what it holds |
//! |---|---|
//! | [`batch`](Batch) | batches as values |
//! | [`cost`](Cost) | what an operation cost: round trips, verbs, bytes (F9) |
//! | [`critical`](Critical) | when a session that is cut off has to be closed |
//! | [`endpoint`](Endpoint) | the verbs trait and its errors |
//! | [`phase`](ProtocolPhase) | how far a session is, for endpoints that want to know |
//! | [`control`](Control) | registration, liveness and fencing of sessions (F6) |
//! | [`mapped`] | memory mapped into this process: the `mem` backend, and the data path of `shm` |
//! | `runtime` | where nodes and clients of one host find each other |
//! | [`window`](Windows) | memory of sessions that their home node writes into (F10) |
//! | `service` | what listeners need of a memory node, and how they are stopped |
//! | [`network`] | batches over connections to the nodes of a pool: what `tcp` and `verbs` share |
//! | [`shm`] | the `shm` backend's socket: how a mapping and a session reach another process |
//! | [`tcp`] | the `tcp` backend: batches as frames, and a memory node that executes them |
//! | [`verbs`] | the `verbs` backend: RDMA network cards |
//! | `conformance` | the suite that every backend passes (feature `conformance`) |
//! | `fuzzing` | how decoders are fuzzed, here and in other crates (feature `conformance`) |
//!
//! What it is not: it knows nothing of leaves, tables or superblocks.
#![doc = include_str!("../../../docs/fabric-contract.md")]

mod batch;
mod control;
mod cost;
mod counted;
mod critical;
mod endpoint;
mod phase;
mod runtime;
mod service;
mod window;

pub mod mapped;
pub mod network;
pub mod shm;
pub mod tcp;
pub mod verbs;

#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "conformance")]
pub mod fuzzing;

pub use batch::{AtomicSlot, Batch, ReadSlot, Verb, VerbKind};
pub use control::{Control, ControlError, SessionLife};
pub use cost::{Cost, Counters, KindCounters, OperationKind};
pub use counted::CountedBatch;
pub use critical::Critical;
pub use endpoint::{BatchError, BatchErrorKind, Endpoint, EndpointCompletions, ProtocolCheck};
pub use phase::{Course, ProtocolPhase};
pub use service::{SessionService, StopSignal};
pub use window::{Bell, Doors, Windows};
