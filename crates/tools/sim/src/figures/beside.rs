//! Comparison of a paper's numbers with ours.

use farleaf_bench::workload::OperationKind;

use super::clients::checksum_percent;
use super::config::{Comparable, Figure, FigureKind};
use super::measure::PointResult;
use super::points::ChartPosition;
use super::quantities::{
    fallback_percent, keys_per_model, leaf_table_per_key, metadata_per_key, number,
};
use super::timeline;

/// Number of the paper, with the corresponding one of ours.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PaperComparison {
    pub(super) what: String,
    pub(super) paper: String,
    pub(super) ours: String,
}

/// Returns all numbers that the paper prints for a figure, each with ours.
pub(super) fn beside(figure: &Figure, results: &[&PointResult]) -> Vec<PaperComparison> {
    let values = figure.paper.iter().map(|value| {
        let ours = match (value.layer, value.measure) {
            (Some(layer), Some(measure)) => {
                let is_meant = |it: &&&PointResult| stands_at(it, value.at.as_deref());
                let of_layer = |layer| -> Vec<&PointResult> {
                    let meant = results.iter().filter(is_meant);
                    meant
                        .filter(|it| it.point.layer == layer)
                        .copied()
                        .collect()
                };
                let over = value.over.map(of_layer).unwrap_or_default();
                let numbers = ours(figure, &of_layer(layer), &over, measure);
                match value.over {
                    Some(over) => format!("{layer} over {over}: {numbers}"),
                    None => format!("{layer}: {numbers}"),
                }
            }
            _ => value.missing.clone().unwrap_or_else(|| "-".to_owned()),
        };
        PaperComparison {
            what: value.what.clone(),
            paper: value.value.clone(),
            ours,
        }
    });
    values.collect()
}

/// Returns our numbers: one for each chart, from the experiment with the most operations or
/// records; for models, one for each fill of leaves.
fn ours(
    figure: &Figure,
    results: &[&PointResult],
    over: &[&PointResult],
    measure: Comparable,
) -> String {
    let mut best: Vec<(String, u64, f64)> = Vec::new();
    for result in results.iter().copied() {
        let of_time = timeline::comparable(result, results, measure);
        let found = of_time
            .or_else(|| ratio(result, over, measure))
            .or_else(|| comparable(result, measure));
        let Some((weight, number)) = found else {
            continue;
        };
        let chart = match (&figure.kind, &result.point.place) {
            (FigureKind::Models { .. }, ChartPosition::Category(fill)) => {
                format!("{fill}, {}", result.point.chart)
            }
            _ => result.point.chart.clone(),
        };
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
        .map(|(chart, _, it)| format!("{} ({chart})", number(it)));
    numbers.collect::<Vec<String>>().join(", ")
}

/// Returns whether a result belongs to this position of its chart; any position if `at` is `None`.
fn stands_at(result: &PointResult, at: Option<&str>) -> bool {
    let Some(at) = at else { return true };
    match &result.point.place {
        ChartPosition::Category(name) => name == at,
        ChartPosition::Number(number) => number.to_string() == at,
        ChartPosition::Growth { .. } | ChartPosition::Time { .. } | ChartPosition::Parts { .. } => {
            false
        }
    }
}

/// Returns the ratio of throughputs over all windows, if the other layer did the same work, and its
/// number of operations.
fn ratio(result: &PointResult, over: &[&PointResult], measure: Comparable) -> Option<(u64, f64)> {
    let point = &result.point;
    let mut same = over.iter().filter(|it| {
        (&it.point.chart, &it.point.place) == (&point.chart, &point.place)
            && it.windows.len() == result.windows.len()
    });
    if measure != Comparable::ThroughputRatio {
        return None;
    }
    let other = same.next()?;
    let rate = |of: &PointResult| {
        let counts = of.windows.iter().map(|it| it.operation_count).sum::<u64>();
        let duration_ns = of.windows.iter().map(|it| it.duration_ns).sum::<u64>();
        (counts, counts as f64 / duration_ns.max(1) as f64)
    };
    let ((count, rate), (_, of_other)) = (rate(result), rate(other));
    let weight = match point.place {
        ChartPosition::Number(number) => number as u64,
        _ => count,
    };
    Some((weight, rate / of_other))
}

/// Returns the measure of a result, if it has one, and the number of operations or records over
/// which it is a mean.
fn comparable(result: &PointResult, measure: Comparable) -> Option<(u64, f64)> {
    // Points without retraining only serve as the baseline of the others.
    if matches!(result.point.place, ChartPosition::Time { retrains: false }) {
        return None;
    }
    let records = result.point.table.record_count as u64;
    let kind = |kind: OperationKind| result.windows.last()?.kinds.get(&kind);
    let read = || kind(OperationKind::Read);
    match measure {
        Comparable::GetRoundTrips => read().map(|it| (it.count, it.far_costs().round_trips_mean)),
        Comparable::GetBytes => read().map(|it| (it.count, it.far_costs().bytes_read_mean)),
        Comparable::UpdateRoundTrips => {
            kind(OperationKind::Update).map(|it| (it.count, it.far_costs().round_trips_mean))
        }
        Comparable::MetadataBytesPerKey => Some((records, metadata_per_key(result))),
        Comparable::LeafTableBytesPerKey => Some((records, leaf_table_per_key(result))),
        Comparable::KeysPerModel => Some((records, keys_per_model(result))),
        Comparable::OneLeafPercent => {
            read().map(|it| (it.count, it.far_costs().one_leaf_fraction * 100.0))
        }
        Comparable::ChecksumPercent => checksum_percent(result).map(|percent| (records, percent)),
        Comparable::MillionsPerS => {
            let window = result.windows.last()?;
            Some((window.operation_count, window.operations_per_s / 1e6))
        }
        Comparable::FallbackPercent => {
            let window = result.windows.last()?;
            Some((window.operation_count, fallback_percent(window)))
        }
        Comparable::TrainUsPerSubModel => {
            let (work, window) = (result.point.work.as_ref()?, result.windows.last()?);
            let training = window.training.filter(|it| it.sub_model_count > 0)?;
            let thread_count = work.models.train_thread_count as u64;
            let time_us = (window.duration_ns * thread_count) as f64 / 1000.0;
            let count = training.sub_model_count;
            Some((count, time_us / count as f64))
        }
        Comparable::DueUs => {
            let training = result.windows.last()?.training?;
            let due_ns = training.waited_ns_mean()?;
            Some((training.done_count, due_ns / 1000.0))
        }
        Comparable::RetrainUsPer128Leaves
        | Comparable::RetrainNsPerKey
        | Comparable::SlowestWindowPercent
        | Comparable::ThroughputRatio => None,
    }
}
