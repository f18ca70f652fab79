//! Costs of gets in sessions with a metadata budget: one table, loaded once, under budgets from the
//! whole directory to almost nothing.
//!
//! Each request distribution is first measured without a budget, then under each budget with a new
//! session. The session first executes as many gets as are measured, to fill its budget. Every get
//! is of a loaded record, and its value is checked.

mod config;
mod figure;
mod rows;
mod sweep;

pub use config::BudgetConfig;
pub use figure::{CSV_NAME, SVG_NAME, files};
pub use sweep::{BudgetPoint, BudgetReport, Mean, run};
