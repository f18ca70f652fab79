//! One figure of a page: what it varies, and which numbers of the paper stand beside it.

use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::WorkloadLetter;
use farleaf_index::LayerKind;
use serde::{Deserialize, Deserializer};

use super::checks::{distinct, slots, within};
pub use super::kinds::{FigureKind, Servers, TrainingMeasure};
use crate::shown;

/// What of ours stands beside a number of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparable {
    /// Round trips of a read, in the mean.
    GetRoundTrips,
    /// Bytes that a read reads, in the mean.
    GetBytes,
    /// Round trips of an update, in the mean.
    UpdateRoundTrips,
    /// Everything that a session holds to find leaves.
    MetadataBytesPerKey,
    /// 8 bytes a leaf.
    LeafTableBytesPerKey,
    /// Loaded keys over models.
    KeysPerModel,
    /// Time of all retrainings over the leaves that were trained on, for 128 of these.
    #[serde(rename = "retrain_us_per_128_leaves")]
    RetrainUsPer128Leaves,
    /// The same over their records.
    RetrainNsPerKey,
    /// Throughput of the slowest window while the table grows, in percent of the same window
    /// without retraining.
    SlowestWindowPercent,
    /// The share of reads that read one leaf, in the last window.
    OneLeafPercent,
    /// Throughput over that of another layer, over all windows; where threads vary, with the most.
    ThroughputRatio,
    /// The share of checksums in the time of operations.
    ChecksumPercent,
    /// Millions of operations a second.
    MillionsPerS,
    /// Keys that the memory node was asked for because models did not lead there, in percent of
    /// reads and scans.
    FallbackPercent,
    /// Time of all threads that train, over the sub-models that they trained.
    TrainUsPerSubModel,
    /// How long a sub-model is due until it is trained, in the mean.
    DueUs,
}

/// A number that the paper prints.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperValue {
    /// Of what.
    pub what: String,
    /// As printed.
    pub value: String,
    /// Whose number of ours stands beside it.
    #[serde(default, deserialize_with = "layer")]
    pub layer: Option<LayerKind>,
    /// Which.
    pub measure: Option<Comparable>,
    /// With what it is compared, if it is a ratio.
    #[serde(default, deserialize_with = "layer")]
    pub over: Option<LayerKind>,
    /// Only of what stands there in a chart; of everything if nothing is said.
    pub at: Option<String>,
    /// Why none does.
    pub missing: Option<String>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Figure {
    /// Names its files.
    pub id: String,
    /// For people.
    pub title: String,
    /// What must be known to read it.
    #[serde(default)]
    pub note: String,
    /// Numbers that the paper prints of it.
    #[serde(default)]
    pub paper: Vec<PaperValue>,
    /// Each a line or a bar; if nothing is said, those of all figures.
    #[serde(default, deserialize_with = "layers")]
    pub layers: Option<Vec<LayerKind>>,
    /// What it varies.
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
                return Err(format!("{}: there must be one at least", key(what)));
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
            // These have no numbers but threads, which are checked above.
            FigureKind::Workloads { .. }
            | FigureKind::Keys { .. }
            | FigureKind::Threads { .. }
            | FigureKind::Clients { .. }
            | FigureKind::Latencies { .. }
            | FigureKind::TimeParts { .. }
            | FigureKind::ModelCaches { .. } => Ok(()),
        }
    }

    /// The same of figures that nothing is run for.
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

    /// Refuses a list in which something stands twice: it would be run twice, and drawn over
    /// itself.
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

    /// The same of figures of what memory nodes do for clients, and of mixes.
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
                // They stand over how many NICs they have.
                let counts = servers.iter().map(|it| it.nic_count());
                distinct(&of("servers"), &counts.collect::<Vec<_>>())
            }
            _ => unreachable!("the caller names the kinds"),
        }
    }

    /// Its layers, where all figures have these if they say nothing else.
    pub(super) fn layers_or<'a>(&'a self, of_all: &'a [LayerKind]) -> &'a [LayerKind] {
        self.layers.as_deref().unwrap_or(of_all)
    }

    /// Its key whose value the keys of its tables come from; none: they are the default ones.
    pub(super) fn keys_key(&self) -> Option<String> {
        let has_own = matches!(self.kind, FigureKind::Keys { .. });
        has_own.then(|| format!("keys of figure '{}'", self.id))
    }

    /// The threads of a compute node that it asks for, if it does.
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

    /// The most threads of a compute node that it asks for; 0 if it asks for none.
    pub(super) fn threads_max(&self) -> usize {
        let threads = self.threads().unwrap_or_default();
        threads.iter().copied().max().unwrap_or(0)
    }
}

/// The keys that every figure has.
const FIGURE_KEYS: [&str; 6] = ["id", "title", "note", "paper", "layers", "kind"];

/// Refuses what a reader that takes a figure's keys by its kind lets pass: keys that no figure of
/// its kind has, and empty lists.
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
                return Err(format!("{key} of figure '{id}': there is no such key"));
            }
            let is_empty = value.as_array().is_some_and(Vec::is_empty);
            if is_empty && key != "paper" {
                return Err(format!(
                    "{key} of figure '{id}': there must be one at least"
                ));
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
