//! Regions that two servers replicate to each other: Send-Index beside Build-Index and none.
//!
//! ```text
//!   clients (threads)          server 0                             server 1
//!     put, get  ------> primaries 0 to 15   -- verbs -->  memory --> backups 0 to 15
//!               \       backups 16 to 31 <-- memory  <-- verbs --    primaries 16 to 31
//!                \______________________________________________________/
//! ```
//!
//! Real code on real files: each server has a directory, memory that the other one's primaries
//! WRITE into, threads that do the background work of its primaries (flushes, merges, sending
//! trees) and threads that serve its backups. There is no network between clients and servers: what
//! is measured is the servers.
//!
//! Rules that hold throughout:
//!
//! - **R1.** *One kind at a time*, each in an empty directory: load, then the workloads in their
//!   order on what the ones before have left.
//! - **R2.** *What a phase has caused is its own.* Throughput and latencies are the clients'; but a
//!   phase is over, and processor time and bytes are read, only when primaries have flushed, merged
//!   and sent all that was due, and backups have taken it in or built it.
//! - **R3.** *Every get is checked*: of a record that was put it finds a value whose every byte
//!   says that somebody has put it there. The first one that does not ends the run with an error.
//! - **R4.** *Who asks ends before who answers*: clients, then the threads of primaries, then those
//!   of backups; in a failure, too. A backup that has failed tells its primary, which waits no
//!   more.
//! - **R5.** In the end all backups are promoted, and records of all regions are looked up there
//!   and at their primaries.
//!
//! | module | what it holds |
//! |---|---|
//! | `config`, `names` | what is run |
//! | `servers`, `nodes` | directories, memory, primaries and backups, joined over a fabric |
//! | `shared`, `tending` | background threads |
//! | `requests`, `clients`, `tails` | operations, their checks, their latencies |
//! | `processor`, `traffic` | processor time and bytes, by part |
//! | `run`, `check` | one run, and its promoted backups |
//! | `rows`, `text`, `ratios` | what was measured, as text, and beside the paper |
//! | [`figures`] | many runs as one page |

pub mod figures;

mod check;
mod clients;
mod config;
mod error;
mod names;
mod nodes;
mod processor;
mod ratios;
mod requests;
mod rows;
mod run;
mod servers;
mod shared;
mod tails;
mod tending;
mod text;
mod traffic;

pub use config::{CLIENT_COUNT_MAX, REGION_COUNT_MAX, ReplicationConfig};
pub use error::ReplicationError;
pub use names::{Promise, ReplicationFabric, ReplicationKind, ReplicationPhase, UnknownName};
pub use processor::{Part, PartTimes};
pub use ratios::{Ratio, ratios};
pub use rows::ReplicationRow;
pub use shared::DeviceCounts;
pub use tails::Tail;
pub use text::{header_text, ratios_text, rows_text};

use crate::runner::Strings;

/// Who is told how far a run is, from the thread that called [`run`].
pub trait ReplicationSink {
    /// A phase of so many operations begins.
    fn begin(&self, what: &str, total: u64) {
        let _ = (what, total);
    }

    /// So many of them are done.
    fn advance(&self, done: u64) {
        let _ = done;
    }

    /// All phases of one kind are over in one round, and what its backups have was looked at.
    fn rows(&self, rows: &[ReplicationRow]) {
        let _ = rows;
    }
}

/// A sink that tells nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl ReplicationSink for Silent {}

/// Runs everything that is asked for: the rows of all rounds, kinds and phases.
///
/// # Errors
/// An option is out of range; the host gives no memory, threads or files, its disk is full, say; or
/// an answer was wrong. Directories are removed.
pub fn run(
    config: &ReplicationConfig,
    sink: &dyn ReplicationSink,
) -> Result<Vec<ReplicationRow>, ReplicationError> {
    config.validate()?;
    let mut all = Vec::new();
    for round in 0..config.rounds {
        for kind in &config.kinds {
            let failed = |source| ReplicationError::Directory {
                path: config.directory.clone(),
                source,
            };
            let own = tempfile::Builder::new()
                .prefix("farleaf-replication-")
                .tempdir_in(&config.directory)
                .map_err(failed)?;
            let rows = run::run_one(config, (*kind, round), own.path(), sink)?;
            own.close().map_err(failed)?;
            sink.rows(&rows);
            all.extend(rows);
        }
    }
    Ok(all)
}

/// What keys and values are.
fn strings_of(config: &ReplicationConfig) -> Strings {
    Strings {
        value_size: config.value_size,
        ..Strings::default()
    }
}
