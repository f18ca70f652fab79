//! Model of NICs, wires and processors, for the simulator's *performance* use.
//!
//! In a modeled world nothing is torn, late or lost. In virtual time, a batch passes through the
//! same stages as a real one, and waits wherever others are before it:
//!
//! 1. The NIC of its compute node: a doorbell, then each verb through the verb pipeline, then the
//!    request's bytes onto the wire.
//! 2. The wire, for a fixed time.
//! 3. The NIC of the memory node: the request's bytes, then each verb through its pipeline, where
//!    an atomic takes longer. Atomics on words that share a slot of the NIC's locking table wait
//!    for each other. Verbs of one batch take effect in the order in which they were posted.
//! 4. The reply's bytes onto the wire, the wire again, and off it at the compute node.
//!
//! A memory node also accesses its own memory through its NIC, but over no link. So does a client
//! thread that accesses the memory of its own machine, where a testbed's compute nodes are its
//! memory nodes.
//!
//! Each stage is a first-come, first-served queue with one server. A batch enters a stage when it
//! arrives there, not when it is posted, so a busy compute node does not delay the batches of
//! others.
//!
//! | module | content |
//! |---|---|
//! | [`model`] | the parameters, read from TOML, each with its source |
//! | `range` | permitted values of the parameters |
//! | `parts` | time parts of a batch |
//! | `published` | published rates and latencies of NICs |
//! | [`profile`] | the testbeds of ROLEX, XStore and RF-tree, and others from files |
//! | `queue` | the queues |
//! | `costs` | costs of a verb in each stage |
//! | [`network`] | machines and their NICs: the path of a batch in time |
//! | `utilisation` | utilization of the stages |
//! | [`probe`] | raw READ and CAS rates, compared with published ones |

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
