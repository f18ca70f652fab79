//! Experiments: the real operations over a modelled network, measured in virtual time.
//!
//! The keys are split evenly over the memory nodes, each of which holds one table: key ranges, so
//! that scans stay scans. Every client thread has a session of the library on each table, and one
//! or more operations in flight; a machine's threads share what the threads of a process share.
//! Clients draw operations as YCSB does (`farleaf-bench`), one after the other without a pause.
//!
//! An operation's time is the network's ([`crate::nic`]) and its thread's, which has a core for
//! itself: part of it before the operation posts anything, and part around each of its batches.
//! Where records are inserted, each memory node retrains by the library's own code, on a core of
//! its own, and the sessions follow. What an operation costs is told apart from what
//! following costs;
//! both take their time.
//!
//! What an operation answers is checked: a loaded key that is not found ends the experiment with an
//! error.
//!
//! | module | what it holds |
//! |---|---|
//! | [`plan`] | one experiment as a value |
//! | [`keys`] | which keys are loaded, asked for and inserted |
//! | [`image`](mod@image) | memory nodes with loaded tables, to be used for many experiments |
//! | `searched` | what leads to the leaves of such a table |
//! | `machine` | a compute node's process: what its threads' sessions share |
//! | `client` | one of its threads |
//! | `agent` | a memory node's thread, which retrains |
//! | `server` | a memory node that answers calls, and trains models for clients |
//! | [`training`] | its threads that train, in time |
//! | [`time`] | where the time of operations went |
//! | [`run`](mod@run) | an experiment, run to its end |

pub mod image;
pub mod keys;
pub mod plan;
pub mod run;
pub mod time;
pub mod training;

mod agent;
mod client;
mod machine;
mod searched;
mod server;

use farleaf_bench::dataset::DatasetError;
use farleaf_bench::workload::WorkloadError;
use farleaf_index::{IndexError, LoadError};
use farleaf_region::SuperblockError;

/// Why an experiment has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The keys cannot be made.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The workload cannot run on them.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The region cannot be laid out.
    #[error(transparent)]
    Region(#[from] SuperblockError),
    /// A session cannot be opened, for this reason.
    #[error("a memory node refused a session: {0}")]
    Session(String),
    /// A client cannot open its table.
    #[error("a client cannot open its table: {0}")]
    Client(#[from] farleaf::Error),
    /// The tables cannot be made, or read.
    #[error(transparent)]
    Table(#[from] IndexError),
    /// The records cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An operation failed, or answered what it must not.
    #[error("{0}")]
    Wrong(String),
    /// A count of the plan that no experiment can have.
    #[error("{what} = {found}: must be from {from} to {to}")]
    OutOfRange {
        /// Of what.
        what: &'static str,
        /// What it is.
        found: u64,
        /// The least.
        from: u64,
        /// The most.
        to: u64,
    },
    /// The loaded tables are not made for this testbed or this work.
    #[error(
        "the tables were loaded for {loaded} {what} and the run needs {needed}; load them anew \
         for this testbed and these threads"
    )]
    Mismatch {
        /// What there are too few or too many of.
        what: &'static str,
        /// How many the tables are for.
        loaded: usize,
        /// How many the run needs.
        needed: usize,
    },
    /// There are no such models.
    #[error("epsilon_keys = {}: must be from 0.5 to 1024", crate::shown::number(*_0))]
    BadEpsilon(f64),
    /// There is no such leaf.
    #[error("leaves have 8, 12 or 16 slots, not {0}")]
    BadSlots(u64),
}
