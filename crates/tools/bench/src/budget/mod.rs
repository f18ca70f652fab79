//! What gets cost a session that must not hold the whole directory: one table, loaded once, under
//! metadata budgets from all of it to almost nothing.
//!
//! For each request distribution: first without a budget, then under each budget a session of its
//! own, with as many gets to fill what it may hold as are measured afterwards. Every get is of a
//! loaded record, and its value is checked.

mod config;
mod figure;
mod rows;
mod sweep;

pub use config::BudgetConfig;
pub use figure::{CSV_NAME, SVG_NAME, files};
pub use rows::{header_text, point_row};
pub use sweep::{BudgetPoint, BudgetReport, BudgetSink, Mean, run};
