//! Runs of the workloads on a real store: load, run, check, report.
//!
//! ```text
//!   RunConfig --- keys (once for all workloads)
//!       |
//!       |  for each workload:
//!       v
//!   LoadedStore::load      a fresh pool in this process, or fresh servers, or a cluster
//!                          (`cluster`); a table, all keys loaded
//!   LoadedStore::run       N threads, each with a session of its own
//!       |                    each: OperationStream -> Requests -> Client -> RunRecorder, Tally
//!       |                  then one scan over all of the table, against the keys that must be
//! there
//!       v
//!   RunReport
//! ```
//!
//! Rules that hold throughout:
//!
//! 1. *Workloads do not influence each other.* Each has a pool of its own, or servers of its own,
//!    or begins in a cluster when the table of the one before is gone; only the keys, which nobody
//!    changes, are shared.
//! 2. *Every result is checked*, and so is the table afterwards, always
//!    ([`verify`](crate::verify)). What is wrong is counted and told, and does not stop the run: a
//!    run that ends with
//!    `errors` or `missing` above 0 has measured a store that lies.
//! 3. *What is timed is the operation*: from just before the store is called to just after it has
//!    answered. Drawing the operation, looking up its key and checking the answer are outside of
//!    the latency; they are inside of the throughput, which is operations over the wall time from
//!    the first operation to the last.
//! 4. *Nothing is allocated between operations* in far memory, and nothing is prepared ahead but
//!    the keys of the next few.

mod audit;
mod client;
mod cluster;
mod config;
mod crew;
mod error;
mod fabric;
mod fields;
pub(crate) mod gate;
mod pools;
mod progress;
mod requests;
pub(crate) mod size;
mod spelling;
mod store;
mod strings;
mod subject;
pub(crate) mod tally;

use std::sync::Arc;

pub use cluster::{PersistentConfig, REGION_COUNT_MAX, ServersConfig};
pub use config::{IN_FLIGHT_COUNT_MAX, RECORD_COUNT_MAX, RunConfig, THREAD_COUNT_MAX};
pub use error::BenchError;
pub use fabric::{FabricKind, UnknownFabric};
pub(crate) use pools::load_keys;
pub use progress::{Phase, PhaseKind, ProgressSink, Silent};
pub(crate) use size::check_memory;
pub use store::LoadedStore;
pub(crate) use store::TABLE_NAME;
pub use strings::{Strings, ValueSize};

use crate::dataset::{Dataset, DatasetError, KeySet};
use crate::report::RunReport;

/// Runs the workloads of `config`, in its order, each on a freshly loaded store in this process.
///
/// Wrong and missing answers are no errors of this function: they are in the reports.
///
/// # Errors
/// An option is out of range, the host has not enough memory, the key file is bad or too small, or
/// the store failed outside of the operations that are counted. Reports of workloads that were done
/// before went to [`ProgressSink::finish`].
pub fn run(config: &RunConfig, progress: &dyn ProgressSink) -> Result<Vec<RunReport>, BenchError> {
    config.validate()?;
    let keys = generate_keys(config, progress)?;
    let mut reports = Vec::with_capacity(config.workloads.len());
    for workload in &config.workloads {
        let store = LoadedStore::load(config, &keys, *workload, progress)?;
        let report = store.run(progress)?;
        progress.finish(&report);
        reports.push(report);
    }
    Ok(reports)
}

/// The keys that all workloads of `config` load and insert.
///
/// # Errors
/// They do not fit into this host's memory, or the key file is bad or too small.
pub fn generate_keys(
    config: &RunConfig,
    progress: &dyn ProgressSink,
) -> Result<Arc<KeySet>, BenchError> {
    let insert_count = config.insert_count_max();
    check_memory(config, insert_count, None)?;
    let keys = generate_keys_for(config, insert_count, progress)?;
    // How long a file's strings are is known only now.
    check_memory(config, insert_count, keys.strings().map(AsRef::as_ref))?;
    Ok(Arc::new(keys))
}

/// The keys that are loaded, and so many to insert.
pub(crate) fn generate_keys_for(
    config: &RunConfig,
    insert_count: u64,
    progress: &dyn ProgressSink,
) -> Result<KeySet, BenchError> {
    let kind = PhaseKind::Generating;
    progress.begin(Phase {
        workload: None,
        kind,
        total: config.records,
    });
    let (record_count, insert_keys) = (config.records as usize, insert_count as usize);
    let keys = match (&config.dataset, &config.strings) {
        (Dataset::Keys(path), Some(_)) => {
            KeySet::of_string_file(path, record_count, insert_keys, config.seed)
        }
        (dataset, _) => KeySet::generate(dataset, record_count, insert_keys, config.seed),
    };
    let keys = keys.map_err(|error| match error {
        DatasetError::TooFewKeys {
            path, available, ..
        } => BenchError::KeysTooFew {
            path,
            available: available as u64,
            records: config.records,
            insert_count,
        },
        other => BenchError::Dataset(other),
    })?;
    progress.advance(config.records);
    Ok(keys)
}
