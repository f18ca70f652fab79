//! Measurements of a table while it grows, shrinks or moves: interval by interval, from the first
//! change to some seconds after the last.
//!
//! ```text
//!   TimelineConfig ── KeyPlan      key of an index, index of a key: nothing is stored
//!        |
//!      ChangeState  which indexes are put, which deleted, which are known present
//!        |
//!     Client x N ── Part ──> Watch   a recorder for each thread and interval; samples the pool
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
pub use figure::{CSV_NAME, SVG_NAME, files};
pub use fresh::FreshSession;
pub use interval::Interval;
pub use keys::KeyPlan;
pub use report::{RetrainingTotal, TimelineReport, TimelineTotal};
pub use rows::{interval_row, total_text};

use serde::Serialize;

use crate::runner::{BenchError, ProgressSink, Row};
use change_state::ChangeState;

/// Interval or total as JSON.
#[derive(Serialize)]
struct Record<'a, T> {
    kind: &'static str,
    /// Search layer of an interval; a total has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<&'static str>,
    #[serde(flatten)]
    of: &'a T,
}

/// Creates a pool with a table, changes the table as `config` specifies, and measures.
///
/// Wrong and missing answers and refused puts are not errors of this function; the report contains
/// them.
///
/// # Errors
/// An option is out of range, the host has not enough memory, or the store failed outside of the
/// counted operations.
pub fn run(config: &TimelineConfig, sink: &dyn ProgressSink) -> Result<TimelineReport, BenchError> {
    config.validate()?;
    size::check_memory(config)?;
    let change_state = ChangeState::new(config);
    let pool = store::make(config)?;
    let memory_bytes_begin = store::fill(config, &change_state, &pool, sink)?;
    sink.begin("running", config.change.write_count());
    sink.note(&rows::COLUMNS.header());
    let mut client_threads = client_threads::run(config, &change_state, &pool, sink)?;
    let (fresh, checked) = store::finish(
        config,
        &change_state,
        &pool,
        &mut client_threads.faults,
        sink,
    )?;
    for description in &client_threads.faults.descriptions {
        sink.fault(&format!("{}: {description}", config.layer));
    }
    let retraining = pool.retraining();
    let retraining = retraining.map_err(BenchError::table("reading the state of the pool"))?;
    let tally = &retraining.tally;
    let report = TimelineReport::new(
        config,
        client_threads,
        fresh,
        &checked,
        tally,
        memory_bytes_begin,
    );
    let total = Record {
        kind: "total",
        index: None,
        of: &report,
    };
    sink.row(&Row::new(format!("\n{}", total_text(&report)), &total));
    Ok(report)
}
