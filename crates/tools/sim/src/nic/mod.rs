//! A model of NICs, wires and processors: the simulator's *performance* use.
//!
//! In a modelled world nothing is torn, late or lost. A batch passes, in virtual time, through what
//! a real one passes through, and waits wherever others are before it:
//!
//! 1. the NIC of its compute node: a doorbell, then each verb through the verb pipeline, then the
//!    request's bytes onto the wire,
//! 2. the wire, a fixed time,
//! 3. the NIC of the memory node: the request's bytes, then each verb through its pipeline, where
//!    an atomic takes longer. Atomics on words that share a slot of the NIC's locking table wait
//!    for each other. Verbs of one batch take effect in the order in which they were posted,
//! 4. the reply's bytes onto the wire, the wire again, and off it at the compute node.
//!
//! A memory node works on its own memory through its NIC, too, and over no link. So does a client
//! thread on the memory of its own machine, where a testbed's compute nodes are its memory nodes.
//!
//! Each stage is a first-come, first-served queue with one server, and a batch enters a stage when
//! it gets there, not when it is posted: so a busy compute node holds up nobody else's batches.
//!
//! | module | what it holds |
//! |---|---|
//! | [`model`] | the parameters, read from TOML, each beside its source |
//! | `range` | what numbers they may have |
//! | `parts` | where a batch's time went |
//! | `published` | what is published of NICs |
//! | [`profile`] | the testbeds of ROLEX, XStore and RF-tree, and others from files |
//! | `queue` | the queues |
//! | `costs` | what each stage takes of a verb |
//! | [`network`] | machines and their NICs: when a batch is where |
//! | `utilisation` | how busy the stages were |
//! | [`probe`] | raw READ and CAS rates, beside published ones |

pub mod model;
pub mod network;
pub mod parts;
pub mod probe;
pub mod profile;

mod costs;
mod published;
pub(crate) mod queue;
mod range;
mod utilisation;
