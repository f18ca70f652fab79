//! Timelines: measures of a growing table over time, with retraining and without.

use farleaf_bench::report::{FarCosts, KindReport};
use farleaf_bench::workload::OperationKind;
use farleaf_chart::chart::Series;
use farleaf_chart::panels::{Mark, Panel, Panels};

use super::config::Comparable;
use super::measure::PointResult;
use super::points::ChartPosition;
use super::quantities::{colour, end_ms, line_name};
use crate::display;
use crate::experiment::run::{Measurement, Retraining};

pub(super) const X_LABEL: &str = "virtual time (ms)";

fn reads(window: &Measurement) -> Option<&KindReport> {
    window.kinds.get(&OperationKind::Read)
}

/// Measure of each window: its name, and a function that returns it.
type ShownMeasure = (&'static str, fn(&Measurement) -> Option<f64>);

/// Panels, from top to bottom.
const SHOWN: [ShownMeasure; 4] = [
    ("M operations / s", |it| Some(it.operations_per_s / 1e6)),
    ("round trips per get", |it| {
        Some(reads(it)?.far?.round_trips_mean)
    }),
    ("share of gets by one leaf", |it| {
        Some(reads(it)?.far?.one_leaf_fraction)
    }),
    ("leaves read by a get", |it| {
        Some(reads(it)?.far?.leaves_read_mean)
    }),
];

/// Returns the panels of each chart of a figure, with its name. Titles and captions that are still
/// empty are added when the chart is written.
pub(super) fn panels(results: &[&PointResult]) -> Vec<(String, Panels)> {
    let mut names: Vec<&str> = results.iter().map(|it| it.point.chart.as_str()).collect();
    names.dedup();
    let mut known = std::collections::BTreeSet::new();
    names.retain(|name| known.insert(*name));
    let drawn = names.into_iter().map(|name| {
        let of_chart = results.iter().filter(|it| it.point.chart == name);
        let of_chart: Vec<&PointResult> = of_chart.copied().collect();
        let panel = |(y_label, value): ShownMeasure| Panel {
            y_label: y_label.to_owned(),
            y_from: 0.0,
            y_to: 0.0,
            series: of_chart.iter().map(|it| line(it, value)).collect(),
        };
        let panels = Panels {
            title: String::new(),
            caption: String::new(),
            x_label: X_LABEL.to_owned(),
            panels: SHOWN.map(panel).into(),
            marks: of_chart.iter().filter_map(|it| mark(it)).collect(),
        };
        (name.to_owned(), panels)
    });
    drawn.collect()
}

/// Returns the line of a result; a value is drawn in the middle of its window.
fn line(result: &PointResult, value: fn(&Measurement) -> Option<f64>) -> Series {
    let windows = result.windows.iter().enumerate();
    let values = windows.filter_map(|(index, window)| {
        let half_ms = window.duration_ns as f64 / 2e6;
        Some((end_ms(&result.windows, index) - half_ms, value(window)?))
    });
    Series {
        name: line_name(result),
        colour: colour(result.point.layer),
        is_dashed: matches!(result.point.place, ChartPosition::Time { retrains: false }),
        values: values.collect(),
    }
}

/// Returns the number of windows in which the table grows.
fn growing_count(result: &PointResult) -> usize {
    let work = result.point.work.as_ref();
    work.map_or(0, |work| work.window_counts.len())
}

/// Returns the mark where the table stops growing, if it is retrained and windows follow.
fn mark(result: &PointResult) -> Option<Mark> {
    let growing_count = growing_count(result);
    let is_shown = matches!(result.point.place, ChartPosition::Time { retrains: true });
    let is_followed = growing_count < result.windows.len();
    (is_shown && is_followed && growing_count > 0).then(|| Mark {
        x: end_ms(&result.windows, growing_count - 1),
        name: format!("end of growth, {}", result.point.layer),
    })
}

/// Returns the cells of a window that no other figure has.
pub(super) fn cells(window: &Measurement) -> [String; 3] {
    let of_reads = |show: fn(FarCosts) -> String| {
        let cell = reads(window).and_then(|it| it.far).map(show);
        cell.unwrap_or_else(|| "-".to_owned())
    };
    let retrained = window.retraining.map(|it| display::count(it.leaf_count));
    [
        of_reads(|it| format!("{:.1} %", it.one_leaf_fraction * 100.0)),
        of_reads(|it| format!("{:.3}", it.leaves_read_mean)),
        retrained.unwrap_or_else(|| "-".to_owned()),
    ]
}

/// Returns the measure, if it is one of retraining and this result has it, and the number of leaves
/// or windows that it covers.
pub(super) fn comparable(
    result: &PointResult,
    others: &[&PointResult],
    measure: Comparable,
) -> Option<(u64, f64)> {
    if !matches!(result.point.place, ChartPosition::Time { retrains: true }) {
        return None;
    }
    let windows = result.windows.iter().filter_map(|it| it.retraining);
    let all = windows.fold(Retraining::default(), Retraining::and);
    let time_ns = all.time_ns as f64;
    let is_any = all.retraining_count > 0 && all.record_count > 0;
    match measure {
        Comparable::RetrainUsPer128Leaves => {
            let us = time_ns / 1000.0 * 128.0 / all.leaf_count as f64;
            is_any.then_some((all.leaf_count, us))
        }
        Comparable::RetrainNsPerKey => {
            is_any.then_some((all.leaf_count, time_ns / all.record_count as f64))
        }
        Comparable::SlowestWindowPercent => {
            let beside = others.iter().find(|it| {
                let is_still = matches!(it.point.place, ChartPosition::Time { retrains: false });
                is_still && it.point.chart == result.point.chart
            })?;
            let growing_count = growing_count(result);
            let pairs = result.windows[..growing_count].iter().zip(&beside.windows);
            let shares = pairs.map(|(it, other)| it.operations_per_s / other.operations_per_s);
            let slowest = shares.fold(f64::INFINITY, f64::min);
            (growing_count > 0).then_some((growing_count as u64, slowest * 100.0))
        }
        _ => None,
    }
}
