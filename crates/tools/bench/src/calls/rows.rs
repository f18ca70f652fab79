//! Rows of call costs, for a table printed while it grows: at most 100 columns.

use super::{CallsConfig, CallsRow};
use crate::report::columns::Columns;
use crate::report::quantity::{bytes, count, latency, rate};

const COLUMNS: Columns<10> = Columns {
    columns: [
        ("subject", 8),
        ("in flight", 10),
        ("calls", 11),
        ("of echo", 9),
        ("p50", 10),
        ("p99", 10),
        ("trips", 8),
        ("read", 9),
        ("wrote", 9),
        ("wrong", 7),
    ],
    word_count: 1,
};

/// Returns the settings, and the header of the table with a rule below it.
pub(super) fn header_text(config: &CallsConfig) -> String {
    let names = COLUMNS.header();
    format!(
        "{} rounds of {} calls by one thread, beside an echo over loopback TCP; commit {}\n\
         calls and ratios: medians of the rounds; trips and bytes: means per call\n\n{names}",
        config.rounds,
        count(config.operations),
        config.commit
    )
}

/// Returns the row of one subject and number of calls in flight, with its line feed.
pub(super) fn calls_row(calls: &CallsRow) -> String {
    COLUMNS.row([
        calls.subject.to_owned(),
        calls.in_flight.to_string(),
        rate(calls.calls_per_s),
        format!("{:.2}", calls.ratio_to_echo),
        latency(calls.latency_ns_p50),
        latency(calls.latency_ns_p99),
        format!("{:.2}", calls.round_trips),
        bytes(calls.bytes_read),
        bytes(calls.bytes_written),
        count(calls.wrong),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the header and the widest numbers fit into 100 columns, and cells do not touch.
    #[test]
    fn the_widest_numbers_fit() {
        let header = header_text(&CallsConfig::default());
        let widest = calls_row(&CallsRow {
            subject: "verbs",
            in_flight: 1024,
            operations: 1,
            calls_per_s: 888_888_888.0,
            ratio_to_echo: 8_888.88,
            latency_ns_p50: 888_888_888,
            latency_ns_p99: 888_888_888,
            round_trips: 888.88,
            bytes_read: 888_888.0,
            bytes_written: 888_888.0,
            wrong: 88_888,
        });
        for line in header.lines().chain(widest.lines()) {
            assert!(line.chars().count() <= 100, "{line}");
        }
        assert_eq!(widest.split_whitespace().count(), 15, "{widest}");
    }
}
