//! Reports: results of a run, recorded by each thread, merged at the end, and formatted as a table
//! or as JSON.
//!
//! [`RunRecorder`] belongs to one thread and costs about 10 ns per operation. [`RunReport`] is the
//! result of a run, one JSON object. [`run_table`] and [`comparison_table`] format reports within
//! 100 columns.

pub(crate) mod columns;
pub(crate) mod quantity;
mod recorder;
mod run;
mod table;

pub use quantity::median;
pub use recorder::{KindRecorder, RunRecorder};
pub use run::{DeviceReport, FarCosts, KindReport, LatencySummary, PersistentReport, RunReport};
pub use table::{comparison_table, ruled_table, run_table};
