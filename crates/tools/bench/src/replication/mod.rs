//! Benchmark of regions that two servers replicate to each other: Send-Index, Build-Index and no
//! replication.
//!
//! ```text
//!   clients (threads)          server 0                             server 1
//!     put, get  ------> primaries 0 to 15   -- verbs -->  memory --> backups 0 to 15
//!               \       backups 16 to 31 <-- memory  <-- verbs --    primaries 16 to 31
//!                \______________________________________________________/
//! ```
//!
//! The benchmark runs the real code on real files. Each server has a directory, memory into which
//! the other server's primaries WRITE, threads for the background work of its primaries (flushes,
//! merges, sending trees), and threads that serve its backups. There is no network between clients
//! and servers: the benchmark measures the servers.
//!
//! How a run works:
//!
//! - **Order.** One kind of replication runs at a time, each in an empty directory: load, then the
//!   workloads in their order, each on the records that the previous ones have left.
//! - **Phases.** Throughput and latencies are those of the clients. A phase ends, and processor
//!   time and bytes are read, only when primaries have flushed, merged and sent all that was due,
//!   and backups have received or built it.
//! - **Checks.** Every get of an existing record must find a value, each byte of which comes from a
//!   put of this key. The first failed check ends the run with an error.
//! - **Shutdown.** Clients end first, then the threads of primaries, then those of backups, also
//!   after a failure. A failed backup informs its primary, which then stops waiting.
//! - **Promotion.** At the end all backups are promoted, and records of all regions are compared
//!   with their primaries.
//!
//! | module | content |
//! |---|---|
//! | `config`, `names` | settings of runs |
//! | `servers`, `nodes` | directories, memory, primaries and backups, connected over a fabric |
//! | `shared`, `tending` | background threads |
//! | `requests`, `clients`, `tails` | operations, their checks, their latencies |
//! | `processor`, `traffic` | processor time and bytes by part |
//! | `run`, `check` | one run, and its promoted backups |
//! | `rows`, `text`, `ratios` | results, as text, and compared with the paper |
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
pub use names::{Promise, ReplicationFabric, ReplicationKind, ReplicationPhase};
pub use processor::{Part, PartTimes};
pub use ratios::{Ratio, ratios};
pub use rows::ReplicationRow;
pub use shared::DeviceCounts;
pub use tails::Tail;
pub use text::{ratios_text, rows_text};

use serde::Serialize;

use crate::runner::{ProgressSink, Row, Strings};

/// Executes all runs. Returns the rows of all rounds, kinds and phases.
///
/// # Errors
/// An option is out of range; the host lacks memory, threads or files, or its disk is full; or an
/// answer was wrong. Directories are removed in any case.
pub fn run(
    config: &ReplicationConfig,
    sink: &dyn ProgressSink,
) -> Result<Vec<ReplicationRow>, ReplicationError> {
    config.validate()?;
    sink.note(&text::header_text(config));
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
            let rows = run::run_one(config, *kind, round, own.path(), sink)?;
            own.close().map_err(failed)?;
            for of in &rows {
                let record = "row";
                sink.row(&Row::new(String::new(), &Record { record, of }));
            }
            all.extend(rows);
        }
    }
    let ratios = ratios(&all);
    sink.note(&format!("\n{}{}", rows_text(&all), ratios_text(&ratios)));
    for of in &ratios {
        let record = "ratio";
        sink.row(&Row::new(String::new(), &Record { record, of }));
    }
    Ok(all)
}

/// Row or ratio as JSON.
#[derive(Serialize)]
struct Record<'a, T> {
    record: &'static str,
    #[serde(flatten)]
    of: &'a T,
}

/// Returns the generator of keys and values.
fn strings_of(config: &ReplicationConfig) -> Strings {
    Strings {
        value_size: config.value_size,
        ..Strings::default()
    }
}
