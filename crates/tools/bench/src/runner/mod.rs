//! Runner of the workloads on a real store: load, run, check, report.
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
//! Rules for all runs:
//!
//! - **Isolation.** Workloads do not influence each other. Each has its own pool or servers, or
//!   starts in a cluster after the previous workload's table was dropped. They share only the keys,
//!   which do not change.
//! - **Checks.** Every answer is checked, and so is the table afterwards
//!   ([`verify`](crate::verify)). Faults are counted and reported, but do not stop the run. If
//!   `errors` or `missing` is above 0 at the end, the measured store is faulty.
//! - **Timing.** The latency covers the call of the store. It does not include drawing the
//!   operation, looking up its key, or checking the answer. The throughput includes these: it is
//!   the number of operations over the wall time from the first to the last.
//! - **Allocation.** Nothing is allocated between operations in far memory, and only the keys of
//!   the next few operations are prepared ahead.

mod audit;
mod client;
mod client_threads;
mod cluster;
mod config;
mod error;
mod fabric;
pub(crate) mod fault_counts;
mod fields;
pub(crate) mod gate;
mod pools;
mod progress;
mod requests;
pub(crate) mod size;
mod store;
mod string_codec;
mod string_table;
mod strings;
mod subject;

use std::sync::Arc;

pub use cluster::{PersistentConfig, REGION_COUNT_MAX, ServersConfig};
pub use config::{IN_FLIGHT_COUNT_MAX, RECORD_COUNT_MAX, RunConfig, THREAD_COUNT_MAX};
pub use error::BenchError;
pub use fabric::FabricKind;
pub(crate) use pools::load_keys;
pub use progress::{ProgressSink, Row, Silent};
pub(crate) use size::check_memory;
pub use store::LoadedStore;
pub(crate) use store::TABLE_NAME;
pub use strings::{Strings, ValueSize};

use crate::dataset::{Dataset, DatasetError, KeySet};
use crate::report::{RunReport, run_table};

/// Runs the workloads of `config`, in its order, each on a freshly loaded store in this process.
///
/// Wrong and missing answers are not errors of this function; the reports contain them.
///
/// # Errors
/// An option is out of range, the host has not enough memory, the key file is invalid or too small,
/// or the store failed outside of the counted operations. Reports of finished workloads went to
/// [`ProgressSink::row`].
pub fn run(config: &RunConfig, progress: &dyn ProgressSink) -> Result<Vec<RunReport>, BenchError> {
    config.validate()?;
    let keys = generate_keys(config, progress)?;
    let mut reports = Vec::with_capacity(config.workloads.len());
    for workload in &config.workloads {
        let store = LoadedStore::load(config, &keys, *workload, progress)?;
        let report = store.run(progress)?;
        progress.row(&Row::new(run_table(&report) + "\n", &report));
        reports.push(report);
    }
    Ok(reports)
}

/// Generates the keys that all workloads of `config` load and insert.
///
/// # Errors
/// The keys do not fit into this host's memory, or the key file is invalid or too small.
pub fn generate_keys(
    config: &RunConfig,
    progress: &dyn ProgressSink,
) -> Result<Arc<KeySet>, BenchError> {
    let insert_count = config.insert_count_max();
    check_memory(config, insert_count, None)?;
    let keys = generate_keys_for(config, insert_count, progress)?;
    // The lengths of a file's strings are known only now.
    check_memory(config, insert_count, keys.strings().map(AsRef::as_ref))?;
    Ok(Arc::new(keys))
}

/// Generates the keys to load, and this many to insert.
pub(crate) fn generate_keys_for(
    config: &RunConfig,
    insert_count: u64,
    progress: &dyn ProgressSink,
) -> Result<KeySet, BenchError> {
    progress.begin("generating keys", config.records);
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
