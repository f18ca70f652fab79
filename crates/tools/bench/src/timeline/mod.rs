//! Measurements of a table while it grows, shrinks or moves: interval by interval, from the first
//! change to some seconds after the last.
//!
//! ```text
//!   TimelineConfig ── KeyPlan      key of an index, index of a key: nothing is kept
//!        |
//!      Course                      which indexes are put, which deleted, which are known present
//!        |
//!     Client x N ── Part ──> Watch   a recorder for each thread and interval; looks at the pool
//!        |                     |
//!   fresh session, audit     Interval ──> sink, as soon as it is over
//!        |                     |
//!        +---- TimelineReport -+       text, CSV, SVG
//! ```
//!
//! Rules for all runs:
//!
//! - **Indexes.** Keys have indexes in the order in which they are put. Indexes are put at the
//!   upper end, deleted at the lower end, and never put again. The expected indexes are therefore
//!   one range, and every key of a scan maps to its index.
//! - **Checks.** Every answer is checked. A get requests a key that is known to exist: its put is
//!   acknowledged, and its delete not handed out. At the end every record is read once more.
//! - **End.** Intervals are whole. Threads write until no writes are left, then read until the
//!   first end of an interval that is at least `settle` after the last write.
//! - **Attribution.** An operation belongs to the interval in which it ends.

mod audit;
mod change_state;
mod client;
mod client_threads;
mod clock;
mod config;
mod error;
mod figure;
mod fresh;
mod interval;
mod keys;
mod report;
mod rows;
mod size;
mod store;
mod watch;

pub use config::{Change, KeyOrder, TimelineConfig, UnknownPattern};
pub use error::TimelineError;
pub use figure::{CSV_NAME, SVG_NAME, files};
pub use fresh::FreshSession;
pub use interval::Interval;
pub use keys::KeyPlan;
pub use report::{RetrainingTotal, TimelineReport, TimelineTotal};
pub use rows::{interval_header, interval_row, total_text};

use crate::runner::PhaseKind;
use change_state::ChangeState;

/// Receiver of a run's progress, called by the thread that called [`run`].
pub trait TimelineSink {
    /// Called when a phase with this much work begins, and the previous one has ended.
    fn begin(&self, kind: PhaseKind, total: u64) {
        let _ = (kind, total);
    }

    /// Called with the part of the phase that is done.
    fn advance(&self, done: u64) {
        let _ = done;
    }

    /// Called when an interval is over.
    fn interval(&self, interval: &Interval) {
        let _ = interval;
    }

    /// Called when an operation failed, or an answer was wrong or missing. Only the first few are
    /// reported, at the end; the report counts all.
    fn fault(&self, description: &str) {
        let _ = description;
    }
}

impl TimelineSink for crate::runner::Silent {}

/// Creates a pool with a table, changes the table as `config` specifies, and measures.
///
/// Wrong and missing answers and refused puts are not errors of this function; the report contains
/// them.
///
/// # Errors
/// An option is out of range, the host has not enough memory, or the store failed outside of the
/// counted operations.
pub fn run(
    config: &TimelineConfig,
    sink: &dyn TimelineSink,
) -> Result<TimelineReport, TimelineError> {
    config.validate()?;
    size::check_memory(config)?;
    let change_state = ChangeState::new(config);
    let pool = store::make(config)?;
    let memory_bytes_begin = store::fill(config, &change_state, &pool, sink)?;
    sink.begin(PhaseKind::Running, config.change.write_count());
    let mut client_threads = client_threads::run(config, &change_state, &pool, sink)?;
    let (fresh, checked) = store::finish(
        config,
        &change_state,
        &pool,
        &mut client_threads.faults,
        sink,
    )?;
    for description in client_threads.faults.descriptions() {
        sink.fault(description);
    }
    let retraining = pool.retraining();
    let retraining = retraining.map_err(TimelineError::store("reading the state of the pool"))?;
    let report = TimelineReport::new(config, client_threads, fresh, &checked, memory_bytes_begin);
    Ok(report.with_retraining(&retraining.tally))
}
