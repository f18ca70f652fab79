//! One figure of a page: the parameter that it varies, and the paper's numbers to compare.

use farleaf_index::LayerKind;
use serde::{Deserialize, Deserializer};

use super::checks::distinct;
pub use super::kinds::{FigureKind, Servers, TrainingMeasure};
use crate::display;

/// Measure of ours that corresponds to a number of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparable {
    /// Mean round trips of a read.
    GetRoundTrips,
    /// Mean bytes that a read fetches.
    GetBytes,
    /// Mean round trips of an update.
    UpdateRoundTrips,
    /// All bytes that a session holds to find leaves, per key.
    MetadataBytesPerKey,
    /// Bytes of the leaf table per key, at 8 bytes per leaf.
    LeafTableBytesPerKey,
    /// Loaded keys per model.
    KeysPerModel,
    /// Retraining time per 128 leaves trained on, in microseconds.
    #[serde(rename = "retrain_us_per_128_leaves")]
    RetrainUsPer128Leaves,
    /// Retraining time per record, in nanoseconds.
    RetrainNsPerKey,
    /// Throughput of the slowest window while the table grows, in percent of the same window
    /// without retraining.
    SlowestWindowPercent,
    /// Share of reads that read one leaf, in the last window.
    OneLeafPercent,
    /// Ratio to another layer's throughput, over all windows; if threads vary, with the most
    /// threads.
    ThroughputRatio,
    /// Share of checksums in the time of operations.
    ChecksumPercent,
    /// Millions of operations per second.
    MillionsPerS,
    /// Keys for which clients asked the memory node since models did not lead to them, in percent
    /// of reads and scans.
    FallbackPercent,
    /// Time of all training threads per trained sub-model, in microseconds.
    TrainUsPerSubModel,
    /// Mean time between a sub-model becoming due and being trained, in microseconds.
    DueUs,
}

/// Number that the paper prints.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperValue {
    /// Quantity of the number.
    pub what: String,
    /// Value as printed.
    pub value: String,
    /// Layer whose number of ours is compared.
    #[serde(default, deserialize_with = "layer")]
    pub layer: Option<LayerKind>,
    /// Measure of ours that is compared.
    pub measure: Option<Comparable>,
    /// Denominator's layer, if the measure is a ratio.
    #[serde(default, deserialize_with = "layer")]
    pub over: Option<LayerKind>,
    /// Chart position to which the number applies; all by default.
    pub at: Option<String>,
    /// Reason why no number of ours is compared.
    pub missing: Option<String>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Figure {
    /// Identifier, from which the names of the files are formed.
    pub id: String,
    /// Title for people.
    pub title: String,
    /// Note that explains the figure.
    #[serde(default)]
    pub note: String,
    /// Numbers that the paper prints for the figure.
    #[serde(default)]
    pub paper: Vec<PaperValue>,
    /// Search layers, each a line or a bar; by default those of all figures.
    #[serde(default, deserialize_with = "some_layers")]
    pub layers: Option<Vec<LayerKind>>,
    /// Parameter that the figure varies.
    #[serde(flatten)]
    pub kind: FigureKind,
}

impl Figure {
    /// Refuses numbers that no run can have, and lists with duplicates.
    pub(super) fn check(&self) -> Result<(), String> {
        if let Some(layers) = &self.layers {
            let names = layers.iter().map(|it| it.name());
            let key = format!("layers of figure '{}'", self.id);
            distinct(&key, &names.collect::<Vec<_>>())?;
        }
        self.kind.check(&self.id)
    }

    /// Returns the figure's layers, or those of all figures if it names none.
    pub(super) fn layers_or<'a>(&'a self, of_all: &'a [LayerKind]) -> &'a [LayerKind] {
        self.layers.as_deref().unwrap_or(of_all)
    }

    /// Returns the figure's key that names the keys of its tables; `None` if they are the default
    /// ones.
    pub(super) fn keys_key(&self) -> Option<String> {
        let has_own = matches!(self.kind, FigureKind::Keys { .. });
        has_own.then(|| format!("keys of figure '{}'", self.id))
    }

    /// Returns the threads per compute node that the figure requests, if any.
    fn threads(&self) -> Option<&[usize]> {
        match &self.kind {
            FigureKind::Threads {
                threads_per_node, ..
            }
            | FigureKind::Clients {
                threads_per_node, ..
            }
            | FigureKind::TimeParts {
                threads_per_node, ..
            }
            | FigureKind::Timeline {
                threads_per_node, ..
            } => Some(threads_per_node),
            _ => None,
        }
    }

    /// Returns the largest number of threads per compute node that the figure requests; 0 if none.
    pub(super) fn threads_max(&self) -> usize {
        let threads = self.threads().unwrap_or_default();
        threads.iter().copied().max().unwrap_or(0)
    }
}

/// Keys that every figure has.
const FIGURE_KEYS: [&str; 6] = ["id", "title", "note", "paper", "layers", "kind"];

/// Refuses errors that a reader by kind does not find: keys that no figure of this kind has, and
/// empty lists.
pub(super) fn check_figure_keys(text: &str, figures: &[Figure]) -> Result<(), String> {
    let Ok(file) = text.parse::<toml::Table>() else {
        return Ok(());
    };
    let tables = file.get("figure").and_then(toml::Value::as_array);
    let tables = tables.into_iter().flatten();
    for (table, Figure { id, kind, .. }) in tables.filter_map(toml::Value::as_table).zip(figures) {
        let fields = kind.fields();
        for (key, value) in table {
            let known = fields.iter().map(|field| field.key);
            if !known.chain(FIGURE_KEYS).any(|known| known == key) {
                let key = display::text(key);
                return Err(format!("{key} of figure '{id}': unknown key"));
            }
            let is_empty = value.as_array().is_some_and(Vec::is_empty);
            if is_empty && key != "paper" {
                return Err(format!("{key} of figure '{id}': expected at least one"));
            }
        }
    }
    Ok(())
}

fn layer<'de, D: Deserializer<'de>>(from: D) -> Result<Option<LayerKind>, D::Error> {
    let name: Option<String> = Deserialize::deserialize(from)?;
    let known = name.map(|name| name.parse()).transpose();
    known.map_err(serde::de::Error::custom)
}

pub(super) fn layers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<LayerKind>, D::Error> {
    let names: Vec<String> = Deserialize::deserialize(from)?;
    let known = names.iter().map(|name| name.parse());
    let known: Result<Vec<LayerKind>, _> = known.collect();
    known.map_err(serde::de::Error::custom)
}

fn some_layers<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<LayerKind>>, D::Error> {
    layers(from).map(Some)
}
