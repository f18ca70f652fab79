//! One-sided verbs on shared memory.
//!
//! A memory node exposes its memory as aligned 8-byte words. A client builds a [`Batch`] of verbs
//! (READ, WRITE, compare-and-swap, fetch-and-add) and executes it on an [`Endpoint`]: one doorbell,
//! one round trip. The crates above this one are generic over [`Endpoint`], so the same protocol
//! code runs within a process, between processes, over a network and in a simulator.
//!
//! | module | content |
//! |---|---|
//! | [`batch`](Batch) | batches as values |
//! | [`cost`](Cost) | cost of operations: round trips, verbs, bytes (FABRIC-9) |
//! | [`critical`](Critical) | when a session that is cut off must be closed |
//! | [`endpoint`](Endpoint) | the verbs trait and its errors |
//! | [`phase`](ProtocolPhase) | phases of long protocols, for the simulator |
//! | [`control`](Control) | registration, liveness and fencing of sessions (FABRIC-6) |
//! | [`mapped`] | memory mapped into this process: the `mem` backend, and the data path of `shm` |
//! | [`window`](Windows) | memory of sessions that their main node writes into (FABRIC-10) |
//! | `service` | interface between listeners and the memory node, and their stop signal |
//! | [`network`] | batches over connections to the nodes of a pool, for `tcp` and `verbs` |
//! | [`shm`] | the `shm` backend's socket: passes mappings and sessions to other processes |
//! | [`tcp`] | the `tcp` backend: batches as frames, and a memory node that executes them |
//! | [`verbs`] | the `verbs` backend: RDMA network cards |
//! | [`message`] | calls built of one-sided WRITEs into rings, on any backend |
//! | `conformance` | the test suite that every backend passes (feature `conformance`) |
//!
//! The crate knows nothing of leaves, tables or superblocks.
#![doc = include_str!("../../../../docs/reference/fabric-contract.md")]

mod batch;
mod control;
mod cost;
mod counted;
mod critical;
mod endpoint;
mod phase;
mod service;
mod window;

pub mod mapped;
pub mod message;
pub mod network;
pub mod shm;
pub mod tcp;
pub mod verbs;

#[cfg(feature = "conformance")]
pub mod conformance;

pub use batch::{AtomicSlot, Batch, ReadSlot, Verb, VerbKind};
pub use control::{Control, ControlError, SessionLife};
pub use cost::{Cost, Counters, KindCounters, OperationKind};
pub use counted::CountedBatch;
pub use critical::Critical;
pub use endpoint::{BatchError, BatchErrorKind, Endpoint, EndpointCompletions, ProtocolCheck};
pub use phase::{PhaseGuard, ProtocolPhase};
pub use service::{SessionService, StopSignal};
pub use window::{WakeSignal, WindowRegistry, Windows};
