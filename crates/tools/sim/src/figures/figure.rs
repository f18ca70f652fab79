//! One figure of a page: the parameter that it varies, and the paper's numbers to compare.

use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::WorkloadLetter;
use farleaf_index::LayerKind;
use serde::{Deserialize, Deserializer};

use super::checks::{distinct, slots, within};
pub use super::kinds::{FigureKind, Servers, TrainingMeasure};
use crate::shown;

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
    #[serde(default, deserialize_with = "layers")]
    pub layers: Option<Vec<LayerKind>>,
    /// Parameter that the figure varies.
    #[serde(flatten)]
    pub kind: FigureKind,
}

impl Figure {
    /// Refuses numbers that no run can have.
    pub(super) fn check(&self) -> Result<(), String> {
        let key = |what: &str| format!("{what} of figure '{}'", self.id);
        let each = |what: &str, values: &mut dyn Iterator<Item = f64>, from: f64, to: f64| {
            let mut values = values.peekable();
            if values.peek().is_none() {
                return Err(format!("{}: expected at least one", key(what)));
            }
            values.try_for_each(|value| within(&key(what), value, from, to))
        };
        if let Some(threads_per_node) = self.threads() {
            let mut counts = threads_per_node.iter().map(|it| *it as f64);
            each("threads_per_node", &mut counts, 1.0, 256.0)?;
        }
        let is_leaf = |of: &u64| slots(&key("slots"), *of);
        match &self.kind {
            FigureKind::Slots { slots: of, .. } => of.iter().try_for_each(is_leaf),
            FigureKind::Epsilon { epsilon_keys, .. } => each(
                "epsilon_keys",
                &mut epsilon_keys.iter().copied(),
                0.5,
                1024.0,
            ),
            FigureKind::Ratios { read_percents } => {
                let mut percents = read_percents.iter().map(|it| f64::from(*it));
                each("read_percents", &mut percents, 0.0, 100.0)
            }
            FigureKind::Growth {
                insert_percent,
                window_count,
            } => {
                within(&key("insert_percent"), *insert_percent as f64, 1.0, 400.0)?;
                within(&key("window_count"), *window_count as f64, 1.0, 100.0)
            }
            FigureKind::Timeline {
                insert_percent,
                write_percent,
                window_count,
                rest_window_count,
                ..
            } => {
                within(&key("insert_percent"), *insert_percent as f64, 1.0, 400.0)?;
                within(&key("write_percent"), f64::from(*write_percent), 1.0, 100.0)?;
                within(&key("window_count"), *window_count as f64, 1.0, 100.0)?;
                let rest = *rest_window_count as f64;
                within(&key("rest_window_count"), rest, 0.0, 100.0)
            }
            FigureKind::Metadata { .. } | FigureKind::Models { .. } => self.check_counted(),
            FigureKind::Mixes { .. }
            | FigureKind::Speculation { .. }
            | FigureKind::Training { .. }
            | FigureKind::Servers { .. } => self.check_called(),
            // These figures have no numbers but threads, which are checked above.
            FigureKind::Workloads { .. }
            | FigureKind::Keys { .. }
            | FigureKind::Threads { .. }
            | FigureKind::Clients { .. }
            | FigureKind::Latencies { .. }
            | FigureKind::TimeParts { .. }
            | FigureKind::ModelCaches { .. } => Ok(()),
        }
    }

    /// Checks figures for which nothing is run.
    fn check_counted(&self) -> Result<(), String> {
        let key = |what: &str| format!("{what} of figure '{}'", self.id);
        let each = |what: &str, values: &mut dyn Iterator<Item = f64>, from: f64, to: f64| {
            for value in values {
                within(&key(what), value, from, to)?;
            }
            Ok(())
        };
        match &self.kind {
            FigureKind::Metadata {
                record_per_mille,
                fill_percents,
            } => {
                let mut shares = record_per_mille.iter().map(|it| *it as f64);
                each("record_per_mille", &mut shares, 1.0, 10_000.0)?;
                let mut fills = fill_percents.iter().map(|it| f64::from(*it));
                each("fill_percents", &mut fills, 25.0, 100.0)
            }
            FigureKind::Models {
                fill_percents,
                epsilon_keys,
            } => {
                let mut bounds = epsilon_keys.iter().copied();
                each("epsilon_keys", &mut bounds, 0.5, 1024.0)?;
                let mut fills = fill_percents.iter().map(|it| f64::from(*it));
                each("fill_percents", &mut fills, 25.0, 100.0)
            }
            _ => unreachable!("the caller names the kinds"),
        }
    }

    /// Refuses a list with duplicates: each would be run twice and drawn over itself.
    pub(super) fn check_distinct(&self) -> Result<(), String> {
        let of = |key: &str| format!("{key} of figure '{}'", self.id);
        let workloads = |list: &[WorkloadLetter]| distinct(&of("workloads"), list);
        if let Some(threads_per_node) = self.threads() {
            distinct(&of("threads_per_node"), threads_per_node)?;
        }
        if let Some(layers) = &self.layers {
            let names = layers.iter().map(|it| it.name());
            distinct(&of("layers"), &names.collect::<Vec<_>>())?;
        }
        match &self.kind {
            FigureKind::Workloads {
                workloads: list,
                distributions,
            } => {
                workloads(list)?;
                let names = distributions.iter().map(|it| it.name());
                distinct(&of("distributions"), &names.collect::<Vec<_>>())
            }
            FigureKind::Growth { .. } | FigureKind::Timeline { .. } => Ok(()),
            FigureKind::Clients { workloads, .. }
            | FigureKind::Latencies { workloads, .. }
            | FigureKind::TimeParts { workloads, .. } => distinct(&of("workloads"), workloads),
            FigureKind::Ratios { read_percents } => distinct(&of("read_percents"), read_percents),
            FigureKind::Keys {
                keys,
                workloads: list,
            } => {
                workloads(list)?;
                distinct(&of("keys"), keys)
            }
            FigureKind::ModelCaches { .. }
            | FigureKind::Speculation { .. }
            | FigureKind::Mixes { .. }
            | FigureKind::Training { .. }
            | FigureKind::Servers { .. } => self.check_called_distinct(),
            FigureKind::Threads {
                workloads: list, ..
            } => workloads(list),
            FigureKind::Epsilon {
                epsilon_keys,
                workloads: list,
            } => {
                workloads(list)?;
                distinct(&of("epsilon_keys"), epsilon_keys)
            }
            FigureKind::Slots {
                slots,
                workloads: list,
            } => {
                workloads(list)?;
                distinct(&of("slots"), slots)
            }
            FigureKind::Metadata {
                record_per_mille,
                fill_percents,
            } => {
                distinct(&of("record_per_mille"), record_per_mille)?;
                distinct(&of("fill_percents"), fill_percents)
            }
            FigureKind::Models {
                fill_percents,
                epsilon_keys,
            } => {
                distinct(&of("fill_percents"), fill_percents)?;
                distinct(&of("epsilon_keys"), epsilon_keys)
            }
        }
    }

    /// Checks figures of the work that memory nodes do for clients, and of mixes.
    fn check_called(&self) -> Result<(), String> {
        let key = |what: &str| format!("{what} of figure '{}'", self.id);
        match &self.kind {
            FigureKind::Mixes { shares, .. } => shares.iter().try_for_each(|shares| {
                let sum: f64 = shares.iter().map(|it| f64::from(*it)).sum();
                within(&key("shares"), sum, 100.0, 100.0)
            }),
            FigureKind::Speculation { fill_percent, .. } => {
                let fill_percent = f64::from(*fill_percent);
                within(&key("fill_percent"), fill_percent, 25.0, 100.0)
            }
            FigureKind::Training {
                train_thread_counts,
                fill_percent,
                insert_percent,
                ..
            } => {
                within(&key("fill_percent"), (*fill_percent).into(), 25.0, 100.0)?;
                within(&key("insert_percent"), *insert_percent as f64, 1.0, 400.0)?;
                train_thread_counts.iter().try_for_each(|count| {
                    within(&key("train_thread_counts"), *count as f64, 0.0, 64.0)
                })
            }
            FigureKind::Servers { servers, .. } => servers.iter().try_for_each(|of| {
                let key = key("servers");
                within(
                    &format!("{key}: node_count"),
                    of.node_count.into(),
                    1.0,
                    64.0,
                )?;
                within(
                    &format!("{key}: nics_per_node"),
                    of.nics_per_node.into(),
                    1.0,
                    8.0,
                )
            }),
            _ => unreachable!("the caller names the kinds"),
        }
    }

    fn check_called_distinct(&self) -> Result<(), String> {
        let of = |key: &str| format!("{key} of figure '{}'", self.id);
        let names = |list: &[Distribution]| {
            let names = list.iter().map(|it| it.name());
            distinct(&of("distributions"), &names.collect::<Vec<_>>())
        };
        match &self.kind {
            FigureKind::ModelCaches { caches, workloads } => {
                distinct(&of("workloads"), workloads)?;
                distinct(&of("caches"), caches)
            }
            FigureKind::Speculation { distributions, .. } => names(distributions),
            FigureKind::Mixes {
                shares,
                distributions,
            } => {
                distinct(&of("shares"), shares)?;
                names(distributions)
            }
            FigureKind::Training {
                train_thread_counts,
                distributions,
                speculation,
                ..
            } => {
                distinct(&of("train_thread_counts"), train_thread_counts)?;
                distinct(&of("speculation"), speculation)?;
                names(distributions)
            }
            FigureKind::Servers { servers, workloads } => {
                distinct(&of("workloads"), workloads)?;
                // Results are drawn over the number of NICs.
                let counts = servers.iter().map(|it| it.nic_count());
                distinct(&of("servers"), &counts.collect::<Vec<_>>())
            }
            _ => unreachable!("the caller names the kinds"),
        }
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
pub(super) fn check_figure_keys(text: &str) -> Result<(), String> {
    let Ok(file) = text.parse::<toml::Table>() else {
        return Ok(());
    };
    let figures = file.get("figure").and_then(toml::Value::as_array);
    for figure in figures
        .into_iter()
        .flatten()
        .filter_map(toml::Value::as_table)
    {
        let id = figure.get("id").and_then(toml::Value::as_str).unwrap_or("");
        let kind = figure.get("kind").and_then(toml::Value::as_str);
        let of_kind = FigureKind::keys(kind.unwrap_or_default());
        for (key, value) in figure {
            if !FIGURE_KEYS.iter().chain(of_kind).any(|known| known == key) {
                let key = shown::text(key);
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

fn layers<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<LayerKind>>, D::Error> {
    super::config::layers(from).map(Some)
}
