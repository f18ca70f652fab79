//! Simulated fabric in virtual time, which uses every freedom of the contract.
//!
//! | module | content |
//! |---|---|
//! | `ids` | identifiers, and the unit of time |
//! | `event` | events that become due, and results of batches |
//! | [`world`] | virtual time, due events, the nodes' memory, clients |
//! | `fingerprint` | comparison of two runs |
//! | `network` | one of the two networks |
//! | `adversarial` | network with faults: batches in flight |
//! | [`modelled`] | network without faults, which takes time |
//! | `shared` | a world and its network, as clients share them |
//! | `schedule` | adversarial network: when the verbs of one batch take effect, piece by piece (FABRIC-2, FABRIC-3) |
//! | [`endpoint`] | endpoints of clients, with and without faults |
//! | [`executor`] | tasks in virtual time |
//!
//! The adversarial network does what hardware may do and rarely does:
//!
//! - It loads a READ's words at different moments, in any order, while others write, and stores a
//!   WRITE's words likewise (FABRIC-3).
//! - A later WRITE, CAS or FAA without `fence` takes effect before an earlier READ, CAS or FAA of
//!   its batch (FABRIC-2).
//! - Batches take arbitrarily long, and overtake each other (FABRIC-2).
//! - A client stops forever between any two verbs, or in the middle of a WRITE. Its posted verbs
//!   continue to take effect until it is fenced, and then not one more word (FABRIC-5, FABRIC-6).
//! - A connection breaks: the batch in flight is cut anywhere, with an unknown outcome (FABRIC-5).

pub mod endpoint;
pub mod executor;
pub mod modelled;
pub mod world;

mod adversarial;
mod event;
mod fingerprint;
pub(crate) mod ids;
mod network;
mod schedule;
mod shared;

pub use schedule::Freedoms;
pub use shared::SharedWorld;
