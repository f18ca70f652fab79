//! Rows of a sweep, for a table printed while it grows: at most 100 columns.

use super::{BudgetConfig, BudgetPoint};
use crate::report::columns::Columns;
use crate::report::quantity::{bytes, count, percentage, rate};

const COLUMNS: Columns<11> = Columns {
    columns: [
        ("requests", 9),
        ("budget", 8),
        ("held", 9),
        ("gets", 9),
        ("RT/get", 8),
        ("leaves", 8),
        ("read/get", 10),
        ("one leaf", 9),
        ("models", 8),
        ("residuals", 10),
        ("wrong", 6),
    ],
    word_count: 0,
};

/// Returns the settings of the sweep, and the header of the table with a rule below it.
pub(super) fn header_text(config: &BudgetConfig, full_bytes: u64) -> String {
    let table = &config.table;
    format!(
        "{}\n{} gets each, after as many warm-up gets; all metadata: {}, {} per key\n\n{}",
        table.table_text(),
        count(table.operations),
        bytes(full_bytes as f64),
        bytes(full_bytes as f64 / table.records as f64),
        COLUMNS.header()
    )
}

/// Returns the row of one budget, with its line feed.
pub(super) fn point_row(point: &BudgetPoint) -> String {
    let budget = point.percent.map(|percent| format!("{percent} %"));
    COLUMNS.row([
        point.distribution.to_string(),
        budget.unwrap_or_else(|| "none".to_owned()),
        bytes(point.held_bytes as f64),
        rate(point.gets_per_s),
        format!("{:.3}", point.mean.round_trips),
        format!("{:.3}", point.mean.leaves),
        bytes(point.mean.bytes_read),
        percentage(point.one_leaf_fraction),
        format!("{:.3}", point.mean.model_pages),
        format!("{:.3}", point.mean.residual_pages),
        count(point.errors + point.missing),
    ])
}
