//! Rows of intervals, for a table printed while it grows, and the total below it: at most 100
//! columns.

use std::fmt::Write;

use super::{Interval, TimelineReport, TimelineTotal};
use crate::report::columns::Columns;
use crate::report::quantity::{bytes, count, latency, percentage, rate, short_count};

pub(super) const COLUMNS: Columns<12> = Columns {
    columns: [
        ("time s", 7),
        ("gets", 9),
        ("writes", 9),
        ("RT/get", 7),
        ("one leaf", 9),
        ("read/get", 9),
        ("get p99", 8),
        ("write p99", 10),
        ("in use", 8),
        ("retrain", 8),
        ("moved", 10),
        ("queue", 6),
    ],
    word_count: 0,
};

/// Returns the row of one interval, with its line feed. Missing means of gets are dashes.
pub fn interval_row(interval: &Interval) -> String {
    COLUMNS.row([
        format!("{:.1}", interval.end_s),
        rate(interval.reads_per_s),
        rate(interval.writes_per_s),
        mean(interval.round_trips_per_get),
        shown(interval.one_leaf_fraction, percentage),
        shown(interval.bytes_per_get, bytes),
        shown(interval.get_latency_ns_p99, latency),
        shown(interval.write_latency_ns_p99, latency),
        bytes(interval.pool_used_bytes as f64),
        count(interval.retrainings),
        short_count(interval.leaves_moved),
        count(interval.queue_length),
    ])
}

fn shown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// Formats the settings and the total results of a run: some lines of text.
pub fn total_text(report: &TimelineReport) -> String {
    let total = &report.total;
    let mut text = String::new();
    let mut line = |name: &str, what: String| {
        let _ = writeln!(text, "{name:<14}{what}");
    };
    line("pattern", pattern(total));
    line(
        "",
        format!(
            "{} index, {} fabric, {} threads and {} retraining threads, {} % gets",
            total.index, total.fabric, total.threads, total.retrain_threads, total.reads_percent
        ),
    );
    line(
        "",
        format!(
            "slots {}, fill {} %, epsilon {}, seed {}, commit {}",
            total.slots, total.fill_percent, total.epsilon, total.seed, total.commit
        ),
    );
    line(
        "writing",
        format!(
            "{:.2} s; round trips per get {}, one leaf {}",
            total.written_s,
            mean(total.round_trips_per_get),
            share(total.one_leaf_fraction)
        ),
    );
    line(
        "last interval",
        format!("one leaf {}", share(total.one_leaf_fraction_last)),
    );
    line("fresh session", fresh(total));
    line(
        "table",
        format!(
            "{} records, {} leaves, {} models, fill {}",
            count(total.records),
            count(total.leaves),
            count(total.models),
            percentage(total.fill)
        ),
    );
    line("memory", memory(total));
    line("retraining", retraining(total));
    line(
        "hints",
        format!(
            "{} synonyms followed, {} stale hints",
            count(total.synonyms_followed),
            count(total.stale_hints)
        ),
    );
    line(
        "checks",
        format!(
            "{} errors, {} missing, {} refused",
            count(total.errors),
            count(total.missing),
            count(total.refused)
        ),
    );
    text
}

fn share(share: Option<f64>) -> String {
    shown(share, percentage)
}

/// Three decimals where gets cost as expected.
fn mean(mean: Option<f64>) -> String {
    shown(mean, |mean| match mean {
        ..10.0 => format!("{mean:.3}"),
        ..1_000.0 => format!("{mean:.1}"),
        _ => count(mean.round() as u64),
    })
}

fn pattern(total: &TimelineTotal) -> String {
    format!(
        "{}: {} keys loaded, {} put, {} deleted",
        total.pattern,
        count(total.loaded),
        count(total.puts),
        count(total.deletes)
    )
}

fn fresh(total: &TimelineTotal) -> String {
    let fresh = &total.fresh;
    format!(
        "{} gets: round trips {}, one leaf {}, {} read; metadata {} per key",
        count(fresh.gets),
        mean(fresh.round_trips_per_get),
        share(fresh.one_leaf_fraction),
        shown(fresh.bytes_per_get, bytes),
        bytes(total.metadata_bytes_per_key)
    )
}

fn retraining(total: &TimelineTotal) -> String {
    let of = &total.retraining;
    let done = format!(
        "{} times, {} leaves replaced by {}; {} in total, {} at most",
        count(of.count),
        count(of.leaves_moved),
        count(of.leaves_made),
        latency(of.time_ns),
        latency(of.time_ns_max)
    );
    if of.records == 0 || of.time_ns == 0 {
        return done;
    }
    let speed = of.records as f64 * 1e9 / of.time_ns as f64;
    format!(
        "{done}\n{:14}{:.0} ns per record, {} records; {} of a core while keys were written",
        "",
        of.time_ns as f64 / of.records as f64,
        rate(speed),
        percentage(total.retraining_share)
    )
}

fn memory(total: &TimelineTotal) -> String {
    let mut text = bytes(total.memory_bytes as f64);
    // A table that began empty has no previous size.
    if total.loaded > 0 {
        let times = total.memory_bytes as f64 / total.memory_bytes_begin.max(1) as f64;
        let begin = bytes(total.memory_bytes_begin as f64);
        let _ = write!(text, ", {times:.2} times the initial {begin}");
    }
    let most = bytes(total.pool_used_bytes_max as f64);
    let _ = write!(text, "; at most {most} of the pool used");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: columns are aligned within 100 columns, also with the longest numbers.
    #[test]
    fn columns_stand_below_each_other() {
        let interval = Interval {
            end_s: 3_600.0,
            operations_per_s: 999_400.0,
            reads_per_s: 999_400.0,
            writes_per_s: 999_400.0,
            round_trips_per_get: Some(8_395.817),
            one_leaf_fraction: Some(0.999),
            bytes_per_get: Some(999_400.0),
            get_latency_ns_p99: Some(999_400),
            write_latency_ns_p99: None,
            synonyms_followed: 1_000_000,
            stale_hints: 1_000_000,
            catch_ups: 1_000_000,
            refreshes: 1_000_000,
            pool_used_bytes: 999_400_000,
            retrainings: 1_000,
            leaves_moved: 9_999_999,
            models_trained: 1_000,
            retraining_ns: 999_400_000,
            reclaimed_bytes: 1 << 30,
            queue_length: 4_096,
        };
        let header = COLUMNS.header();
        let row = interval_row(&interval);
        let widths: Vec<usize> = header.lines().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0]), "{header}");
        assert!(widths[0] <= 100);
        assert_eq!(row.trim_end().chars().count(), widths[0], "{row}");
        assert_eq!(
            row.split_whitespace().filter(|cell| *cell == "-").count(),
            1
        );
        assert!(row.contains("  99.9 %") && row.contains(" 8,396"), "{row}");
    }
}
