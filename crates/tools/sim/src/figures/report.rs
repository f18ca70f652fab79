//! Results of the experiments, as charts and tables.

use farleaf_chart::chart::{Chart, Series};
use farleaf_chart::panels::Panels;
use farleaf_index::LayerKind;

use super::beside::{PaperComparison, beside};
use super::clients::{parts, parts_cell, tails};
use super::config::{Figure, FigureKind, TrainingMeasure};
use super::csv::csv;
use super::measure::{PointResult, Suite, SuiteResults};
use super::points::ChartPosition;
use super::quantities::{
    colour, end_ms, fallback_percent, keys_per_model, leaf_table_per_key, line_name,
    metadata_per_key, number,
};
use super::timeline;
use crate::display;
use crate::experiment::run::Measurement;

/// Row of a figure's table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) chart: String,
    pub(super) place: String,
    pub(super) layer: String,
    pub(super) cells: Vec<String>,
}

/// One figure, ready to be drawn.
#[derive(Clone, Debug)]
pub(super) struct FigureReport<'a> {
    pub(super) figure: &'a Figure,
    pub(super) charts: Vec<Drawing>,
    pub(super) header: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
    pub(super) beside: Vec<PaperComparison>,
    pub(super) csv: String,
}

/// Returns the reports of all figures.
pub(super) fn figures<'a>(suite: &'a Suite, measured: &SuiteResults) -> Vec<FigureReport<'a>> {
    let figures = suite.experiments().figure.iter().enumerate();
    figures
        .map(|(index, figure)| {
            let results = measured.results.iter();
            let results = results.filter(|result| result.point.figure_index == index);
            let results: Vec<&PointResult> = results.collect();
            FigureReport {
                figure,
                charts: drawings(figure, &results),
                header: header(&figure.kind),
                rows: results.iter().flat_map(|it| rows(figure, it)).collect(),
                beside: beside(figure, &results),
                csv: csv(suite, figure, &results),
            }
        })
        .collect()
}

/// Drawing of one file.
#[derive(Clone, Debug)]
pub(super) enum Drawing {
    Chart(Chart),
    /// Panels, with the chart's name among those of its figure.
    Panels(String, Panels),
}

fn drawings(figure: &Figure, results: &[&PointResult]) -> Vec<Drawing> {
    if matches!(figure.kind, FigureKind::Timeline { .. }) {
        let panels = timeline::panels(results).into_iter();
        return panels
            .map(|(name, panels)| Drawing::Panels(name, panels))
            .collect();
    }
    let charts = charts(figure, results).into_iter();
    charts.map(Drawing::Chart).collect()
}

/// Returns the positions of a result's windows, with their measurements.
fn places(figure: &Figure, result: &PointResult) -> Vec<(String, f64, f64)> {
    let rates = result.windows.iter().map(|it| rate(&figure.kind, it));
    match &result.point.place {
        ChartPosition::Category(name) if result.point.work.is_none() => {
            let counted = match figure.kind {
                FigureKind::Models { .. } => keys_per_model(result),
                _ => metadata_per_key(result),
            };
            vec![(name.clone(), 0.0, counted)]
        }
        ChartPosition::Category(name) if matches!(figure.kind, FigureKind::Latencies { .. }) => {
            let tails = tails(result, name).into_iter();
            tails.map(|(name, us)| (name, 0.0, us)).collect()
        }
        ChartPosition::Parts { .. } => {
            let parts = parts(result).into_iter();
            parts.map(|(name, us)| (name, 0.0, us)).collect()
        }
        ChartPosition::Category(name) => rates.map(|rate| (name.clone(), 0.0, rate)).collect(),
        ChartPosition::Number(number) => rates
            .map(|rate| (number.to_string(), *number, rate))
            .collect(),
        ChartPosition::Growth { percent_per_window } => rates
            .enumerate()
            .map(|(index, rate)| {
                let percent = percent_per_window * (index + 1) as f64;
                (format!("{percent:.0} %"), percent, rate)
            })
            .collect(),
        ChartPosition::Time { .. } => rates
            .enumerate()
            .map(|(index, rate)| {
                let end_ms = end_ms(&result.windows, index);
                (format!("{end_ms:.2} ms"), end_ms, rate)
            })
            .collect(),
    }
}

/// Returns the value that is drawn for a window.
fn rate(kind: &FigureKind, window: &Measurement) -> f64 {
    match training_measure(kind) {
        Some(TrainingMeasure::Speed) => thousand_trained_per_s(window),
        Some(TrainingMeasure::FallBacks) => fallback_percent(window),
        Some(TrainingMeasure::Throughput) | None => window.operations_per_s / 1e6,
    }
}

fn training_measure(kind: &FigureKind) -> Option<TrainingMeasure> {
    match kind {
        FigureKind::Training { shows, .. } => Some(*shows),
        _ => None,
    }
}

fn charts(figure: &Figure, results: &[&PointResult]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = Vec::new();
    for result in results {
        let point = &result.point;
        let known = charts.iter().position(|chart| chart.title == point.chart);
        let index = known.unwrap_or_else(|| {
            charts.push(Chart {
                title: point.chart.clone(),
                x_label: x_label(&figure.kind).to_owned(),
                y_label: y_label(&figure.kind).to_owned(),
                categories: Vec::new(),
                series: Vec::new(),
            });
            charts.len() - 1
        });
        let chart = &mut charts[index];
        for (name, number, value) in places(figure, result) {
            let x = if matches!(
                point.place,
                ChartPosition::Category(_) | ChartPosition::Parts { .. }
            ) {
                category(&mut chart.categories, name) as f64
            } else {
                number
            };
            let known = chart
                .series
                .iter()
                .position(|it| it.name == point.layer.name());
            let series = known.unwrap_or_else(|| {
                chart.series.push(Series {
                    name: point.layer.name().to_owned(),
                    colour: colour(point.layer),
                    is_dashed: false,
                    values: Vec::new(),
                });
                chart.series.len() - 1
            });
            chart.series[series].values.push((x, value));
        }
    }
    charts
}

fn category(categories: &mut Vec<String>, name: String) -> usize {
    let known = categories.iter().position(|it| *it == name);
    known.unwrap_or_else(|| {
        categories.push(name);
        categories.len() - 1
    })
}

fn x_label(kind: &FigureKind) -> &'static str {
    match kind {
        FigureKind::Workloads { .. } => "YCSB workload",
        FigureKind::Growth { .. } => "inserted records, in percent of those loaded",
        FigureKind::Timeline { .. } => timeline::X_LABEL,
        FigureKind::Ratios { .. } => "share of reads, in percent",
        FigureKind::Keys { .. } => "distribution of keys",
        FigureKind::Threads { .. } => "cores (client threads) of each compute node",
        FigureKind::Clients { .. } => "client threads of each server",
        FigureKind::Latencies { .. } => "workload and operation",
        FigureKind::TimeParts { .. } => "part of an operation's time",
        FigureKind::Epsilon { .. } => {
            "error bound of the models (epsilon): keys for learned, slots for rolex"
        }
        FigureKind::Slots { .. } => "slots of a leaf",
        FigureKind::ModelCaches { .. } => "what clients keep of the models",
        FigureKind::Speculation { .. } => "where a model has led to the wrong leaf",
        FigureKind::Mixes { .. } => "reads, updates and inserts, in percent",
        FigureKind::Training { .. } => "threads of the memory node that train",
        FigureKind::Servers { .. } => "NICs of all memory nodes",
        FigureKind::Metadata { .. } => "records loaded",
        FigureKind::Models { .. } => "share of its slots that the load fills in each leaf",
    }
}

fn y_label(kind: &FigureKind) -> &'static str {
    match kind {
        FigureKind::Metadata { .. } => "bytes a key",
        FigureKind::Models { .. } => "keys a model",
        FigureKind::Latencies { .. } => "99th percentile (us)",
        FigureKind::TimeParts { .. } => "mean time (us)",
        FigureKind::Training { shows, .. } => match shows {
            TrainingMeasure::Speed => "thousand sub-models trained a second",
            TrainingMeasure::Throughput => "million operations a second",
            TrainingMeasure::FallBacks => "reads that were calls, in percent",
        },
        _ => "million operations a second",
    }
}

fn header(kind: &FigureKind) -> Vec<&'static str> {
    match kind {
        FigureKind::Metadata { .. } => METADATA_HEADER.to_vec(),
        FigureKind::Models { .. } => MODELS_HEADER.to_vec(),
        FigureKind::Timeline { .. } => [&WINDOW_HEADER[..], &TIMELINE_HEADER].concat(),
        FigureKind::TimeParts { .. } => [&WINDOW_HEADER[..], &["mean time by part"]].concat(),
        FigureKind::Training { .. } => {
            let more = [&TRAINING_HEADER[..], &[FALLBACK_HEADER]].concat();
            [&WINDOW_HEADER[..], &more].concat()
        }
        kind if tells_fallbacks(kind) => [&WINDOW_HEADER[..], &[FALLBACK_HEADER]].concat(),
        _ => WINDOW_HEADER.to_vec(),
    }
}

const WINDOW_HEADER: [&str; 4] = [
    "M op/s",
    "kind: p50 / p99 in us; round trips; bytes read, written",
    "busiest stage",
    "metadata B/key",
];
const TIMELINE_HEADER: [&str; 3] = [
    "gets by one leaf",
    "leaves read by a get",
    "leaves retrained",
];
const TRAINING_HEADER: [&str; 3] = [
    "thousand sub-models trained a second",
    "leaves of one",
    "us from due to trained",
];
const FALLBACK_HEADER: &str = "reads that were calls, as models did not lead there";

/// Returns whether the figure is about models of memory nodes.
fn tells_fallbacks(kind: &FigureKind) -> bool {
    matches!(
        kind,
        FigureKind::ModelCaches { .. }
            | FigureKind::Speculation { .. }
            | FigureKind::Training { .. }
    )
}

const METADATA_HEADER: [&str; 3] = ["metadata B/key", "leaf table B/key", "leaves"];
const MODELS_HEADER: [&str; 4] = [
    "keys a model",
    "models",
    "metadata B/key",
    "leaf table B/key",
];

fn rows(figure: &Figure, result: &PointResult) -> Vec<Row> {
    let point = &result.point;
    let row = |place: String, cells: Vec<String>| Row {
        chart: point.chart.clone(),
        place,
        layer: line_name(result),
        cells,
    };
    let places = places(figure, result);
    if point.work.is_none() {
        let places = places.into_iter();
        let rows = places.map(|(place, ..)| row(place, counted(figure, result)));
        return rows.collect();
    }
    let names = match &point.place {
        ChartPosition::Category(name) => vec![name.clone()],
        ChartPosition::Parts { .. } => vec!["all parts".to_owned()],
        _ => places.into_iter().map(|(place, ..)| place).collect(),
    };
    let windows = names.into_iter().zip(&result.windows);
    windows
        .map(|(place, window)| {
            let mut cells = vec![
                format!("{:.2}", window.operations_per_s / 1e6),
                kinds(window),
                busiest(window),
                format!("{:.3}", window.metadata_bytes_per_key),
            ];
            if matches!(point.place, ChartPosition::Time { .. }) {
                cells.extend(timeline::cells(window));
            }
            if matches!(figure.kind, FigureKind::Training { .. }) {
                cells.extend(trained(window));
            }
            if tells_fallbacks(&figure.kind) {
                cells.push(format!("{:.2} %", fallback_percent(window)));
            }
            if matches!(point.place, ChartPosition::Parts { .. }) {
                cells.push(parts_cell(window));
            }
            row(place, cells)
        })
        .collect()
}

fn thousand_trained_per_s(window: &Measurement) -> f64 {
    let training = window.training.unwrap_or_default();
    training.sub_model_count as f64 * 1e6 / window.duration_ns.max(1) as f64
}

/// Returns the cells on models trained for clients.
fn trained(window: &Measurement) -> [String; 3] {
    let of = window.training.unwrap_or_default();
    let none = || "-".to_owned();
    let leaves = of.leaf_count as f64 / of.sub_model_count.max(1) as f64;
    let due_ns = of.waited_ns_mean();
    [
        format!("{:.1}", thousand_trained_per_s(window)),
        due_ns.map_or_else(none, |_| format!("{leaves:.1}")),
        due_ns.map_or_else(none, |ns| format!("{:.1}", ns / 1000.0)),
    ]
}

/// Returns the cells of tables on which no operation was run.
fn counted(figure: &Figure, result: &PointResult) -> Vec<String> {
    let leaf_table = match result.point.layer {
        LayerKind::Rolex => format!("{:.3}", leaf_table_per_key(result)),
        _ => "-".to_owned(),
    };
    let metadata = format!("{:.3}", metadata_per_key(result));
    match figure.kind {
        FigureKind::Models { .. } => vec![
            number(keys_per_model(result)),
            display::count(result.model_count),
            metadata,
            leaf_table,
        ],
        _ => vec![metadata, leaf_table, display::count(result.leaf_count)],
    }
}

fn kinds(window: &Measurement) -> String {
    let kinds = window.kinds.iter().map(|(kind, it)| {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        let far = it.far_costs();
        format!(
            "{}: {:.1} / {:.1}; {:.2}; {:.0}, {:.0}",
            kind.name().replace('_', " "),
            micros(it.latency_ns.p50),
            micros(it.latency_ns.p99),
            far.round_trips_mean,
            far.bytes_read_mean,
            far.bytes_written_mean,
        )
    });
    let kinds: Vec<String> = kinds.collect();
    kinds.join("\n")
}

/// Share of its time from which on a stage counts as the bottleneck of the throughput.
const BUSY_SHARE: f64 = 0.95;

/// Returns the stage closest to its limit, and whether it is the bottleneck.
fn busiest(window: &Measurement) -> String {
    let stages = window.utilisation.stages_of_operations().into_iter();
    let busiest = stages.max_by(|one, other| one.2.total_cmp(&other.2));
    busiest.map_or_else(String::new, |(_, name, share)| {
        let percent = share * 100.0;
        if share < BUSY_SHARE {
            format!(
                "none is full ({name}, {percent:.1} %): round trips, or waiting for locks of leaves"
            )
        } else {
            format!("{name}, {percent:.1} %")
        }
    })
}
