//! Quantities, names and colors that charts, tables and CSV files share.

use farleaf_chart::chart::Colour;
use farleaf_index::LayerKind;

use super::measure::PointResult;
use super::points::ChartPosition;
use crate::display;
use crate::experiment::run::Measurement;

/// Returns the name of a line: the layer, and what else distinguishes it from the others.
pub(super) fn line_name(result: &PointResult) -> String {
    let layer = result.point.layer.name();
    match result.point.place {
        ChartPosition::Time { retrains: false } if result.point.layer.is_retrained() => {
            format!("{layer}, not retrained")
        }
        _ => layer.to_owned(),
    }
}

/// Returns the bytes of metadata that a client keeps per key.
pub(super) fn metadata_per_key(result: &PointResult) -> f64 {
    result.metadata_bytes as f64 / result.point.table.record_count as f64
}

/// Returns the bytes per key of a table with one word per leaf.
pub(super) fn leaf_table_per_key(result: &PointResult) -> f64 {
    result.leaf_count as f64 * 8.0 / result.point.table.record_count as f64
}

/// Returns the mean number of keys of a model.
pub(super) fn keys_per_model(result: &PointResult) -> f64 {
    result.point.table.record_count as f64 / result.model_count.max(1) as f64
}

/// Returns the keys for which clients asked the memory nodes, in percent of reads and scans.
pub(super) fn fallback_percent(window: &Measurement) -> f64 {
    use farleaf_bench::workload::OperationKind::{Read, ReadModifyWrite, Scan};
    let kinds = [Read, ReadModifyWrite, Scan];
    let counts = kinds.iter().filter_map(|kind| window.kinds.get(kind));
    let count: u64 = counts.map(|report| report.count).sum();
    window.fallback_count as f64 * 100.0 / count.max(1) as f64
}

/// Formats a number with two decimals, or none from 100 on.
pub(super) fn number(number: f64) -> String {
    if number >= 100.0 {
        display::count(number.round() as u64)
    } else {
        format!("{number:.2}")
    }
}

/// Returns the color of a layer in all charts.
pub(super) fn colour(layer: LayerKind) -> Colour {
    match layer {
        LayerKind::Learned => Colour::Blue,
        LayerKind::Rolex => Colour::Orange,
        LayerKind::RfTree => Colour::Green,
        LayerKind::Fg => Colour::Grey,
        LayerKind::Sherman => Colour::Red,
        LayerKind::Cell => Colour::Brown,
        LayerKind::Xstore => Colour::Teal,
        LayerKind::Rpc => Colour::Purple,
    }
}

/// Returns when a window ended, in milliseconds since the first began.
pub(super) fn end_ms(windows: &[Measurement], index: usize) -> f64 {
    let until = windows[..=index].iter();
    until.map(|it| it.duration_ns as f64 / 1e6).sum()
}
