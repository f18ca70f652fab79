//! The numbers of a paper, and ours beside them.

use farleaf_bench::workload::OperationKind;

use super::clients::checksum_percent;
use super::config::{Comparable, Figure, FigureKind};
use super::measure::PointResult;
use super::points::Place;
use super::report::{
    fallback_percent, keys_per_model, leaf_table_per_key, metadata_per_key, number,
};
use super::timeline;

/// A number of the paper, and ours beside it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Beside {
    pub(super) what: String,
    pub(super) paper: String,
    pub(super) ours: String,
}

/// All that the paper prints of a figure.
pub(super) fn beside(figure: &Figure, results: &[&PointResult]) -> Vec<Beside> {
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
        Beside {
            what: value.what.clone(),
            paper: value.value.clone(),
            ours,
        }
    });
    values.collect()
}

/// Our numbers: one for each chart, of the experiment that has the most to do with it; of models
/// one for each.
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
            (FigureKind::Models { .. }, Place::Category(fill)) => {
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

/// Whether a result stands at this place of its chart; at any if none is said.
fn stands_at(result: &PointResult, at: Option<&str>) -> bool {
    let Some(at) = at else { return true };
    match &result.point.place {
        Place::Category(name) => name == at,
        Place::Number(number) => number.to_string() == at,
        Place::Growth { .. } | Place::Time { .. } | Place::Parts { .. } => false,
    }
}

/// The ratio of throughputs over all windows, where the other layer has done the same; and how many
/// operations it is of.
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
        Place::Number(number) => number as u64,
        _ => count,
    };
    Some((weight, rate / of_other))
}

/// The number, if this result has it, and over how many operations or records it is a mean.
fn comparable(result: &PointResult, measure: Comparable) -> Option<(u64, f64)> {
    // What is not retrained stands only beside the others.
    if matches!(result.point.place, Place::Time { retrains: false }) {
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
