//! Experiments: the real operations over a modeled network, measured in virtual time.
//!
//! The keys are divided evenly over the memory nodes, each of which has one table. The parts are
//! key ranges, so that scans read neighboring records. Every client thread has a library session on
//! each table, and one or more operations in flight. The threads of a machine share what the
//! threads of a process share. Clients draw operations as YCSB does (`farleaf-bench`), one after
//! the other without a pause.
//!
//! The time of an operation consists of network time ([`crate::nic`]) and of time on its thread's
//! own core. Part of the latter passes before the operation posts anything, and part around each of
//! its batches. If records are inserted, each memory node retrains with the library's code on a
//! core of its own, and the sessions follow. The costs of operations and of following are reported
//! separately; both take time.
//!
//! Answers are checked: if a loaded key is not found, the experiment ends with an error.
//!
//! | module | content |
//! |---|---|
//! | [`plan`] | one experiment as a value |
//! | [`keys`] | keys to load, to read and to insert |
//! | [`image`](mod@image) | memory nodes with loaded tables, to be used for many experiments |
//! | `searched` | search structures of such a table |
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
use farleaf_pool::SuperblockError;

/// Errors of experiments.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The keys cannot be generated.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The workload cannot run on the keys.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The memory cannot be laid out.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// A session cannot be opened, for this reason.
    #[error("a memory node rejected a session: {0}")]
    Session(String),
    /// A client cannot open its table.
    #[error("a client cannot open its table: {0}")]
    Client(#[from] farleaf::Error),
    /// The tables cannot be created or read.
    #[error(transparent)]
    Table(#[from] IndexError),
    /// The records cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An operation failed, or returned a wrong answer.
    #[error("{0}")]
    Wrong(String),
    /// A count of the plan is out of range.
    #[error("{what} = {found}: must be from {from} to {to}")]
    OutOfRange {
        /// Name of the count.
        what: &'static str,
        /// Value of the count.
        found: u64,
        /// Least value.
        from: u64,
        /// Greatest value.
        to: u64,
    },
    /// The tables were not loaded for this testbed or this work.
    #[error(
        "the tables were loaded for {loaded} {what} and the run needs {needed}; load them again \
         for this testbed and these threads"
    )]
    Mismatch {
        /// Resource of which there are too few or too many.
        what: &'static str,
        /// Number for which the tables were loaded.
        loaded: usize,
        /// Number that the run needs.
        needed: usize,
    },
    /// Models cannot have this error bound.
    #[error("epsilon_keys = {}: must be from 0.5 to 1024", crate::display::number(*_0))]
    BadEpsilon(f64),
    /// Leaves cannot have this many slots.
    #[error("leaves have 8, 12 or 16 slots, not {0}")]
    BadSlots(u64),
}
