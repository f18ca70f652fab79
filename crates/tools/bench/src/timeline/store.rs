//! Pool and table of a run: created, loaded, and checked at the end.

use farleaf::{Error, Pool, PoolOptions, TableOptions, TableStats};

use super::audit::audit;
use super::change_state::ChangeState;
use super::fresh::{FreshSession, measure};
use super::{TimelineConfig, size};
use crate::runner::fault_counts::FaultCounts;
use crate::runner::{BenchError, ProgressSink};

/// Name of the table.
pub(super) const TABLE_NAME: &str = "timeline";

/// Creates a pool.
///
/// # Errors
/// The host lacks this memory, or the size is invalid.
pub(super) fn make(config: &TimelineConfig) -> Result<Pool, BenchError> {
    let fabric = config.fabric.embedded(&config.verbs);
    let size_bytes = config
        .size_bytes
        .unwrap_or_else(|| size::pool_bytes(config));
    let pool = Pool::embedded(&PoolOptions {
        fabric,
        size_bytes,
        retrain_thread_count: config.retrain_threads,
        ..PoolOptions::default()
    });
    pool.map_err(BenchError::table("creating a pool"))
}

/// Creates the table and loads its first keys. Returns the table's memory after the load.
///
/// # Errors
/// The pool is too small.
pub(super) fn fill(
    config: &TimelineConfig,
    change_state: &ChangeState,
    pool: &Pool,
    sink: &dyn ProgressSink,
) -> Result<u64, BenchError> {
    let load_count = config.change.load_count();
    sink.begin("loading", load_count);
    let filled = || -> Result<u64, Error> {
        let session = pool.session()?;
        let options = TableOptions {
            slots: config.slots,
            layer: config.layer,
            fill_percent: config.fill_percent,
            epsilon_keys: config.epsilon_keys,
            ..TableOptions::default()
        };
        let table = session.create_table(TABLE_NAME, &options)?;
        if load_count > 0 {
            let keys = change_state.keys.sorted(load_count);
            let records = keys.map(|key| (key, super::keys::value_of(key)));
            table.bulk_load(records, |done| sink.advance(done))?;
        }
        let memory_bytes = table.memory_bytes()?;
        drop(table);
        session.close()?;
        Ok(memory_bytes)
    };
    filled().map_err(BenchError::table("loading"))
}

/// Opens a new session at the end, measures its gets, and checks all records. Any fault is counted
/// in `faults`.
///
/// # Errors
/// The store failed otherwise.
pub(super) fn finish(
    config: &TimelineConfig,
    change_state: &ChangeState,
    pool: &Pool,
    faults: &mut FaultCounts,
    sink: &dyn ProgressSink,
) -> Result<(FreshSession, TableStats), BenchError> {
    let mut checked = || -> Result<(FreshSession, TableStats), Error> {
        let session = pool.session()?;
        let table = session.open_table(TABLE_NAME)?;
        let fresh = measure(config, change_state, &session, &table, faults);
        let present_count = config.change.key_count() - config.change.delete_count();
        sink.begin("checking", present_count);
        audit(
            change_state,
            config.change.key_count(),
            &table,
            faults,
            sink,
        );
        let stats = table.stats()?;
        if !stats.sound {
            faults.wrong("the leaves of the table do not cover each key exactly once");
        }
        drop(table);
        session.close()?;
        Ok((fresh, stats))
    };
    checked().map_err(BenchError::table("reading the final state of the table"))
}
