//! Rows of costs, for a table printed while it grows: at most 100 columns.

use super::{CostRow, CostsConfig};
use crate::report::columns::Columns;
use crate::report::quantity::{bytes, count};

const COLUMNS: Columns<11> = Columns {
    columns: [
        ("index", 8),
        ("operation", 11),
        ("trips", 8),
        ("read", 10),
        ("wrote", 9),
        ("atomics", 9),
        ("links", 8),
        ("retries", 9),
        ("beside", 9),
        ("held/key", 10),
        ("wrong", 7),
    ],
    word_count: 2,
};

/// Returns the settings, and the header of the table with a rule below it.
pub(super) fn header_text(config: &CostsConfig) -> String {
    format!(
        "{}\n{} operations of each kind, after as many warm-up gets; means per operation\n\n{}",
        config.table.table_text(),
        count(config.table.operations),
        COLUMNS.header()
    )
}

/// Returns the row of one kind of operation with one layer, with its line feed.
pub(super) fn cost_row(cost: &CostRow) -> String {
    COLUMNS.row([
        cost.index.to_owned(),
        cost.operation.to_owned(),
        format!("{:.3}", cost.round_trips),
        bytes(cost.bytes_read),
        bytes(cost.bytes_written),
        format!("{:.3}", cost.atomics),
        format!("{:.4}", cost.links),
        format!("{:.4}", cost.retries),
        format!("{:.4}", cost.control_round_trips),
        bytes(cost.metadata_bytes_per_key),
        count(cost.errors + cost.missing),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the header and the widest numbers fit into 100 columns, and cells do not touch.
    #[test]
    fn the_widest_numbers_fit() {
        let header = header_text(&CostsConfig::default());
        let widest = cost_row(&CostRow {
            index: "sherman",
            operation: "scan 100",
            operations: 1,
            round_trips: 123.456,
            bytes_read: 123_456.0,
            bytes_written: 123_456.0,
            atomics: 123.456,
            leaves_read: 1.0,
            links: 12.3456,
            retries: 123.4567,
            control_round_trips: 12.3456,
            metadata_bytes: 1,
            metadata_bytes_per_key: 123_456.0,
            errors: 99_999,
            missing: 0,
        });
        for line in header.lines().chain(widest.lines()) {
            assert!(line.chars().count() <= 100, "{line}");
        }
        // A quantity is a number and a unit.
        assert_eq!(widest.split_whitespace().count(), 12 + 3, "{widest}");
    }
}
