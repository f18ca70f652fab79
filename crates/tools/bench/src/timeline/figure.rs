//! Files of intervals: all numbers as CSV, and three panels as SVG.

use farleaf_chart::csv::{maybe, quoted};
use farleaf_chart::panels::{ChartError, Colour, Mark, Panel, Panels, Series, draw};

use super::{Interval, TimelineReport, TimelineTotal};
use crate::report::quantity::count;

/// Name of the CSV file.
pub const CSV_NAME: &str = "timeline.csv";
/// Name of the SVG file.
pub const SVG_NAME: &str = "timeline.svg";

const HEADER: &str = "pattern,index,time_s,phase,operations_per_s,reads_per_s,writes_per_s,\
    round_trips_per_get,one_leaf_fraction,bytes_per_get,get_latency_ns_p99,write_latency_ns_p99,\
    synonyms_followed,stale_hints,catch_ups,refreshes,pool_used_bytes,retrainings,leaves_moved,models_trained,retraining_ns,reclaimed_bytes,\
    queue_length";

/// Returns the files of runs of one change with different search layers: names and contents.
///
/// # Errors
/// The plotting library rejects the chart.
pub fn files(reports: &[TimelineReport]) -> Result<Vec<(String, String)>, ChartError> {
    let svg = draw(&panels(reports))?;
    Ok(vec![
        (CSV_NAME.to_owned(), csv(reports)),
        (SVG_NAME.to_owned(), svg),
    ])
}

/// Returns one line per interval; a field is empty if no get, or no write, ended in it.
fn csv(reports: &[TimelineReport]) -> String {
    let mut lines = vec![HEADER.to_owned()];
    for report in reports {
        let rows = report.intervals.iter();
        lines.extend(rows.map(|interval| csv_row(&report.total, interval)));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn csv_row(total: &TimelineTotal, interval: &Interval) -> String {
    let is_writing = interval.end_s - total.interval_s < total.written_s;
    let cells = [
        quoted(total.pattern),
        quoted(total.index),
        interval.end_s.to_string(),
        if is_writing { "writing" } else { "settling" }.to_owned(),
        interval.operations_per_s.to_string(),
        interval.reads_per_s.to_string(),
        interval.writes_per_s.to_string(),
        maybe(interval.round_trips_per_get),
        maybe(interval.one_leaf_fraction),
        maybe(interval.bytes_per_get),
        maybe(interval.get_latency_ns_p99),
        maybe(interval.write_latency_ns_p99),
        interval.synonyms_followed.to_string(),
        interval.stale_hints.to_string(),
        interval.catch_ups.to_string(),
        interval.refreshes.to_string(),
        interval.pool_used_bytes.to_string(),
        interval.retrainings.to_string(),
        interval.leaves_moved.to_string(),
        interval.models_trained.to_string(),
        interval.retraining_ns.to_string(),
        interval.reclaimed_bytes.to_string(),
        interval.queue_length.to_string(),
    ];
    cells.join(",")
}

/// Returns panels of throughput, round trips and one-leaf fraction, one below the other.
fn panels(reports: &[TimelineReport]) -> Panels {
    let throughput = match reports {
        // A single run also has a line for its writes.
        [report] => vec![
            line("gets", Colour::Blue, report, |it| {
                Some(it.reads_per_s / 1e6)
            }),
            line("puts and deletes", Colour::Orange, report, |it| {
                Some(it.writes_per_s / 1e6)
            }),
        ],
        _ => lines(reports, |it| Some(it.operations_per_s / 1e6)),
    };
    let panel = |y_label: &str, y_from, y_to, series| Panel {
        y_label: y_label.to_owned(),
        y_from,
        y_to,
        series,
    };
    Panels {
        title: title(reports),
        caption: caption(reports),
        x_label: "time (s)".to_owned(),
        panels: vec![
            panel("million operations / s", 0.0, 0.0, throughput),
            panel(
                "round trips per get",
                1.0,
                1.1,
                lines(reports, |it| it.round_trips_per_get),
            ),
            panel(
                "share of gets by one leaf",
                0.0,
                1.0,
                lines(reports, |it| it.one_leaf_fraction),
            ),
        ],
        marks: reports.iter().map(mark).collect(),
    }
}

const COLOURS: [Colour; 4] = [Colour::Blue, Colour::Orange, Colour::Green, Colour::Grey];

/// Returns a line for each run.
fn lines(reports: &[TimelineReport], value: impl Fn(&Interval) -> Option<f64>) -> Vec<Series> {
    let coloured = reports.iter().zip(COLOURS.into_iter().cycle());
    coloured
        .map(|(report, colour)| line(report.total.index, colour, report, &value))
        .collect()
}

/// Returns a line; a value is drawn in the middle of its interval.
fn line(
    name: &str,
    colour: Colour,
    report: &TimelineReport,
    value: impl Fn(&Interval) -> Option<f64>,
) -> Series {
    let half_s = report.total.interval_s / 2.0;
    let intervals = report.intervals.iter();
    Series {
        name: name.to_owned(),
        colour,
        is_dashed: false,
        values: intervals
            .filter_map(|it| Some((it.end_s - half_s, value(it)?)))
            .collect(),
    }
}

fn mark(report: &TimelineReport) -> Mark {
    let total = &report.total;
    let what = match (total.puts, total.deletes) {
        (_, 0) => "end of growth",
        (0, _) => "end of deletes",
        _ => "end of moving",
    };
    Mark {
        x: total.written_s,
        name: format!("{what}, {}", total.index),
    }
}

fn title(reports: &[TimelineReport]) -> String {
    let Some(total) = reports.first().map(|report| &report.total) else {
        return String::new();
    };
    match (total.puts, total.deletes) {
        (puts, 0) => format!(
            "{} keys grow to {}, {}",
            count(total.loaded),
            count(total.loaded + puts),
            total.pattern
        ),
        (0, deletes) => format!(
            "{} of {} keys are deleted at random",
            count(deletes),
            count(total.loaded)
        ),
        (puts, _) => format!(
            "a window of {} keys moves over {} more",
            count(total.loaded),
            count(puts)
        ),
    }
}

fn caption(reports: &[TimelineReport]) -> String {
    let Some(total) = reports.first().map(|report| &report.total) else {
        return String::new();
    };
    format!(
        "{} fabric, {} threads, {} % gets while writing, then gets only; {} slots, fill {} %; \
         commit {}",
        total.fabric,
        total.threads,
        total.reads_percent,
        total.slots,
        total.fill_percent,
        total.commit
    )
}
