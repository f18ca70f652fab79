//! The pool and the table: made, filled, and looked at when all is done.

use farleaf::{Error, Pool, PoolOptions, TableOptions, TableStats};

use super::audit::audit;
use super::course::Course;
use super::crew::Faults;
use super::fresh::{FreshSession, measure};
use super::{TimelineConfig, TimelineError, TimelineSink, size};
use crate::runner::PhaseKind;

/// The table.
pub(super) const TABLE_NAME: &str = "timeline";

/// Makes a pool.
///
/// # Errors
/// The host has not so much memory, or the size is none.
pub(super) fn make(config: &TimelineConfig) -> Result<Pool, TimelineError> {
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
    pool.map_err(TimelineError::store("making a pool"))
}

/// Makes the table and loads what is to be loaded. Returns how much memory the table has then.
///
/// # Errors
/// The pool is too small.
pub(super) fn fill(
    config: &TimelineConfig,
    course: &Course,
    pool: &Pool,
    sink: &dyn TimelineSink,
) -> Result<u64, TimelineError> {
    let load_count = config.change.load_count();
    sink.begin(PhaseKind::Loading, load_count);
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
            let keys = course.keys.sorted(load_count);
            let records = keys.map(|key| (key, super::keys::value_of(key)));
            table.bulk_load(records, |done| sink.advance(done))?;
        }
        let memory_bytes = table.memory_bytes()?;
        drop(table);
        session.close()?;
        Ok(memory_bytes)
    };
    filled().map_err(TimelineError::store("loading"))
}

/// What a session that was opened afterwards sees: what gets cost it, and whether everything is
/// there. What is wrong is counted in `faults`.
///
/// # Errors
/// The store failed otherwise.
pub(super) fn finish(
    config: &TimelineConfig,
    course: &Course,
    pool: &Pool,
    faults: &mut Faults,
    sink: &dyn TimelineSink,
) -> Result<(FreshSession, TableStats), TimelineError> {
    let mut checked = || -> Result<(FreshSession, TableStats), Error> {
        let session = pool.session()?;
        let table = session.open_table(TABLE_NAME)?;
        let fresh = measure(config, course, &session, &table, faults);
        let present_count = config.change.key_count() - config.change.delete_count();
        sink.begin(PhaseKind::Checking, present_count);
        audit(course, config.change.key_count(), &table, faults, sink);
        let stats = table.stats()?;
        if !stats.sound {
            faults.wrong("the leaves of the table do not cover all keys, each once");
        }
        drop(table);
        session.close()?;
        Ok((fresh, stats))
    };
    checked().map_err(TimelineError::store("looking at the table at the end"))
}
