//! What the experiments found, as charts and tables.

use farleaf_bench::workload::OperationKind;
use farleaf_index::LayerKind;

use super::config::{Comparable, Figure, FigureKind};
use super::csv::csv;
use super::measure::{Measured, PointResult, Suite};
use super::points::Place;
use crate::experiment::run::Measurement;

/// A chart: one value for each layer over each place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x_label: String,
    pub(super) y_label: &'static str,
    /// Names under the bars; empty: places are numbers, and the chart has lines.
    pub(super) categories: Vec<String>,
    pub(super) series: Vec<Series>,
}

/// One layer's values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Series {
    pub(super) layer: LayerKind,
    pub(super) values: Vec<(f64, f64)>,
}

/// A row of a figure's table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) chart: String,
    pub(super) place: String,
    pub(super) layer: &'static str,
    pub(super) cells: Vec<String>,
}

/// A number of the paper, and ours beside it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Beside {
    pub(super) what: String,
    pub(super) paper: String,
    pub(super) ours: String,
}

/// One figure, ready to be drawn.
#[derive(Clone, Debug)]
pub(super) struct FigureReport<'a> {
    pub(super) figure: &'a Figure,
    pub(super) charts: Vec<Chart>,
    pub(super) header: Vec<&'static str>,
    pub(super) rows: Vec<Row>,
    pub(super) beside: Vec<Beside>,
    pub(super) csv: String,
}

/// All figures.
pub(super) fn figures<'a>(suite: &'a Suite, measured: &Measured) -> Vec<FigureReport<'a>> {
    let figures = suite.experiments().figure.iter().enumerate();
    figures
        .map(|(index, figure)| {
            let results = measured.results.iter();
            let results = results.filter(|result| result.point.figure_index == index);
            let results: Vec<&PointResult> = results.collect();
            let is_metadata = matches!(figure.kind, FigureKind::Metadata { .. });
            FigureReport {
                figure,
                charts: charts(figure, &results),
                header: if is_metadata {
                    METADATA_HEADER.to_vec()
                } else {
                    WINDOW_HEADER.to_vec()
                },
                rows: results.iter().flat_map(|result| rows(result)).collect(),
                beside: beside(figure, &results),
                csv: csv(suite, figure, &results),
            }
        })
        .collect()
}

/// Where the windows of a result stand, and what they measured.
fn places(result: &PointResult) -> Vec<(String, f64, f64)> {
    let rates = result.windows.iter().map(|it| it.operations_per_s / 1e6);
    match &result.point.place {
        Place::Category(name) if result.point.work.is_none() => {
            vec![(name.clone(), 0.0, metadata_per_key(result))]
        }
        Place::Category(name) => rates.map(|rate| (name.clone(), 0.0, rate)).collect(),
        Place::Number(number) => rates
            .map(|rate| (number.to_string(), *number, rate))
            .collect(),
        Place::Growth { percent_per_window } => rates
            .enumerate()
            .map(|(index, rate)| {
                let percent = percent_per_window * (index + 1) as f64;
                (format!("{percent:.0} %"), percent, rate)
            })
            .collect(),
    }
}

pub(super) fn metadata_per_key(result: &PointResult) -> f64 {
    result.metadata_bytes as f64 / result.point.table.record_count as f64
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
                y_label: if point.work.is_none() {
                    "bytes a key"
                } else {
                    "million operations a second"
                },
                categories: Vec::new(),
                series: Vec::new(),
            });
            charts.len() - 1
        });
        let chart = &mut charts[index];
        for (name, number, value) in places(result) {
            let x = if matches!(point.place, Place::Category(_)) {
                category(&mut chart.categories, name) as f64
            } else {
                number
            };
            let known = chart.series.iter().position(|it| it.layer == point.layer);
            let series = known.unwrap_or_else(|| {
                chart.series.push(Series {
                    layer: point.layer,
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
        FigureKind::Ratios { .. } => "share of reads, in percent",
        FigureKind::Keys { .. } => "distribution of keys",
        FigureKind::Threads { .. } => "cores (client threads) of each compute node",
        FigureKind::Epsilon { .. } => "error bound of the models, in keys",
        FigureKind::Slots { .. } => "slots of a leaf",
        FigureKind::Metadata { .. } => "records loaded",
    }
}

const WINDOW_HEADER: [&str; 4] = [
    "M op/s",
    "kind: p50 / p99 in us; round trips; bytes read, written",
    "busiest stage",
    "metadata B/key",
];
const METADATA_HEADER: [&str; 4] = [
    "metadata B/key",
    "leaf table B/key",
    "leaves",
    "keys a model",
];

fn rows(result: &PointResult) -> Vec<Row> {
    let point = &result.point;
    let row = |place: String, cells: Vec<String>| Row {
        chart: point.chart.clone(),
        place,
        layer: point.layer.name(),
        cells,
    };
    let places = places(result);
    if point.work.is_none() {
        let places = places.into_iter();
        return places
            .map(|(place, _, per_key)| {
                let cells = vec![
                    format!("{per_key:.3}"),
                    match point.layer {
                        LayerKind::Rolex => format!("{:.3}", leaf_table_per_key(result)),
                        LayerKind::Learned => "-".to_owned(),
                    },
                    result.leaf_count.to_string(),
                    format!("{:.0}", keys_per_model(result)),
                ];
                row(place, cells)
            })
            .collect();
    }
    let windows = places.into_iter().zip(&result.windows);
    windows
        .map(|((place, _, rate), window)| {
            let cells = vec![
                format!("{rate:.2}"),
                kinds(window),
                busiest(window),
                format!("{:.3}", window.metadata_bytes_per_key),
            ];
            row(place, cells)
        })
        .collect()
}

fn kinds(window: &Measurement) -> String {
    let kinds = window.kinds.iter().map(|(kind, it)| {
        let micros = |nanos: u64| nanos as f64 / 1000.0;
        format!(
            "{}: {:.1} / {:.1}; {:.2}; {:.0}, {:.0}",
            kind.name().replace('_', " "),
            micros(it.latency_ns.p50),
            micros(it.latency_ns.p99),
            it.round_trips_mean,
            it.bytes_read_mean,
            it.bytes_written_mean,
        )
    });
    let kinds: Vec<String> = kinds.collect();
    kinds.join("\n")
}

/// From this share of its time on a stage counts as what bounds the throughput.
const BUSY_SHARE: f64 = 0.95;

/// The stage that is nearest to its limit, and whether it bounds the throughput.
fn busiest(window: &Measurement) -> String {
    let stages = window.utilisation.stages().into_iter();
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

fn leaf_table_per_key(result: &PointResult) -> f64 {
    result.leaf_count as f64 * 8.0 / result.point.table.record_count as f64
}

fn keys_per_model(result: &PointResult) -> f64 {
    result.point.table.record_count as f64 / result.model_count.max(1) as f64
}

fn beside(figure: &Figure, results: &[&PointResult]) -> Vec<Beside> {
    let values = figure.paper.iter().map(|value| {
        let ours = match (value.layer, value.measure) {
            (Some(layer), Some(measure)) => {
                let of_layer = results.iter().filter(|it| it.point.layer == layer);
                format!("{layer}: {}", ours(of_layer.copied(), measure))
            }
            _ => value.missing.clone().unwrap_or_else(|| "-".to_owned()),
        };
        Beside {
            what: value.what.clone(),
            paper: value.value.clone(),
            ours,
        }
    });
    values.collect()
}

/// Our numbers: one for each chart, of the experiment that has the most to do with it.
fn ours<'a>(results: impl Iterator<Item = &'a PointResult>, measure: Comparable) -> String {
    let mut best: Vec<(&str, u64, f64)> = Vec::new();
    for result in results {
        let Some((weight, number)) = comparable(result, measure) else {
            continue;
        };
        let chart = result.point.chart.as_str();
        match best.iter_mut().find(|(known, ..)| *known == chart) {
            Some(known) if known.1 <= weight => *known = (chart, weight, number),
            Some(_) => {}
            None => best.push((chart, weight, number)),
        }
    }
    if best.is_empty() {
        return "not measured".to_owned();
    }
    let numbers = best
        .into_iter()
        .map(|(chart, _, number)| format!("{} ({chart})", shown(number)));
    numbers.collect::<Vec<String>>().join(", ")
}

/// The number, if this result has it, and over how many operations or records it is a mean.
fn comparable(result: &PointResult, measure: Comparable) -> Option<(u64, f64)> {
    let records = result.point.table.record_count as u64;
    let kind = |kind: OperationKind| result.windows.last()?.kinds.get(&kind);
    let read = || kind(OperationKind::Read);
    match measure {
        Comparable::GetRoundTrips => read().map(|it| (it.count, it.round_trips_mean)),
        Comparable::GetBytes => read().map(|it| (it.count, it.bytes_read_mean)),
        Comparable::UpdateRoundTrips => {
            kind(OperationKind::Update).map(|it| (it.count, it.round_trips_mean))
        }
        Comparable::MetadataBytesPerKey => Some((records, metadata_per_key(result))),
        Comparable::LeafTableBytesPerKey => Some((records, leaf_table_per_key(result))),
        Comparable::KeysPerModel => Some((records, keys_per_model(result))),
    }
}

fn shown(number: f64) -> String {
    if number >= 100.0 {
        format!("{number:.0}")
    } else {
        format!("{number:.2}")
    }
}
