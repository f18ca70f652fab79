//! A table watched while it grows, shrinks or moves: interval by interval, from the first change to
//! some seconds after the last.
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
//! Rules that hold throughout:
//!
//! 1. *Indexes are a window that slides.* Keys have indexes in the order in which they are put.
//!    Indexes are put at the upper end and deleted at the lower one, never again put; so what must
//!    be there is one range, and every key of a scan tells its index.
//! 2. *Every answer is judged.* A get asks for a key that is known to be present: its put is
//!    acknowledged, and its delete not dealt out. At the end every record is read once more.
//! 3. *Intervals are whole.* Threads write until there is nothing left to write, then read until
//!    the first end of an interval that is `settle` behind the last write.
//! 4. *An operation belongs to the interval in which it ends.*

mod audit;
mod client;
mod clock;
mod config;
mod course;
mod crew;
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
use course::Course;

/// Who is told how far a run is, from the thread that called [`run`].
pub trait TimelineSink {
    /// A phase begins, with so much to do, and the one before has ended.
    fn begin(&self, kind: PhaseKind, total: u64) {
        let _ = (kind, total);
    }

    /// So much of the phase is done.
    fn advance(&self, done: u64) {
        let _ = done;
    }

    /// An interval is over.
    fn interval(&self, interval: &Interval) {
        let _ = interval;
    }

    /// An operation failed, or an answer was wrong or missing. Told of the first few at the end;
    /// all are counted in the report.
    fn fault(&self, description: &str) {
        let _ = description;
    }
}

impl TimelineSink for crate::runner::Silent {}

/// Makes a pool and a table in it, changes the table as `config` says, and watches.
///
/// Wrong and missing answers and refused puts are no errors of this function: they are in the
/// report.
///
/// # Errors
/// An option is out of range, the host has not enough memory, or the store failed outside of the
/// operations that are counted.
pub fn run(
    config: &TimelineConfig,
    sink: &dyn TimelineSink,
) -> Result<TimelineReport, TimelineError> {
    config.validate()?;
    size::check_memory(config)?;
    let course = Course::new(config);
    let pool = store::make(config)?;
    let memory_bytes_begin = store::fill(config, &course, &pool, sink)?;
    sink.begin(PhaseKind::Running, config.change.write_count());
    let mut crew = crew::run(config, &course, &pool, sink)?;
    let (fresh, checked) = store::finish(config, &course, &pool, &mut crew.faults, sink)?;
    for description in crew.faults.descriptions() {
        sink.fault(description);
    }
    let retraining = pool.retraining();
    let retraining = retraining.map_err(TimelineError::store("looking at the pool"))?;
    let report = TimelineReport::new(config, crew, fresh, &checked, memory_bytes_begin);
    Ok(report.with_retraining(&retraining.tally))
}
