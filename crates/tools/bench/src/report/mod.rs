//! What a run measured: recorded by each thread, merged at the end, shown as a table or as JSON.
//!
//! [`RunRecorder`] is a thread's own and costs about 10 ns an operation; [`RunReport`] is what a
//! run leaves behind, one JSON object a run; [`run_table`] and [`comparison_table`] show reports
//! within 100 columns.

pub(crate) mod columns;
pub(crate) mod quantity;
mod recorder;
mod run;
mod table;

pub use recorder::{KindRecorder, OperationCost, RunRecorder};
pub use run::{
    DeviceReport, FarCosts, KindReport, LatencySummary, PersistentReport, RunReport, to_json_lines,
};
pub use table::{comparison_table, run_table};
