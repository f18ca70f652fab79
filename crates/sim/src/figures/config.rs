//! Which experiments, of which size, from TOML.

use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::WorkloadLetter;
use farleaf_index::LayerKind;
use serde::{Deserialize, Deserializer};

use crate::experiment::keys::KeySource;
use crate::shown;

/// The experiments of ROLEX's figures, as the repository has them.
pub const ROLEX_EXPERIMENTS: &str = include_str!("../../../../experiments/rolex.toml");

/// How large runs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSize {
    /// Records loaded, over all memory nodes.
    pub record_count: usize,
    /// Operations before what is measured.
    pub warm_up_operation_count: u64,
    /// Operations that are measured.
    pub window_operation_count: u64,
}

/// The sizes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSizes {
    /// For a look: under two minutes on two cores.
    pub quick: RunSize,
    /// For the record: under an hour on two cores.
    pub full: RunSize,
}

/// What holds where a figure does not vary it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// Slots of a leaf.
    pub slots: u64,
    /// Error bound of the models, in keys.
    pub epsilon_keys: f64,
    /// How full the load makes leaves, in percent.
    pub fill_percent: u8,
    /// Where keys come from.
    pub keys: KeySource,
    /// Which records are asked for.
    pub distribution: Distribution,
    /// Client threads of each compute node.
    pub threads_per_node: usize,
    /// Operations that each thread has under way.
    pub in_flight_count: usize,
}

/// What a figure varies.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FigureKind {
    /// Workloads, under each distribution in a chart of its own.
    Workloads {
        /// Which.
        workloads: Vec<WorkloadLetter>,
        /// Under which distributions.
        distributions: Vec<Distribution>,
    },
    /// How many records have been inserted.
    Growth {
        /// In percent of those loaded, in the end.
        insert_percent: u64,
        /// Measures on the way.
        window_count: u64,
    },
    /// The share of reads; the others are updates.
    Ratios {
        /// In percent.
        read_percents: Vec<u8>,
    },
    /// Where keys come from.
    Keys {
        /// Which.
        keys: Vec<KeySource>,
        /// A chart each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Threads of each compute node.
    Threads {
        /// How many.
        threads_per_node: Vec<usize>,
        /// A chart each.
        workloads: Vec<WorkloadLetter>,
    },
    /// The models' error bound.
    Epsilon {
        /// In keys.
        epsilon_keys: Vec<f64>,
        /// A chart each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Slots of a leaf.
    Slots {
        /// How many.
        slots: Vec<u64>,
        /// A chart each.
        workloads: Vec<WorkloadLetter>,
    },
    /// How many records there are; nothing is run.
    Metadata {
        /// In thousandths of the size's record count.
        record_per_mille: Vec<u64>,
        /// How full leaves are, in percent; a chart each.
        fill_percents: Vec<u8>,
    },
}

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
    /// What it varies.
    #[serde(flatten)]
    pub kind: FigureKind,
}

impl Figure {
    fn check(&self) -> Result<(), String> {
        let key = |what: &str| format!("{what} of figure '{}'", self.id);
        let each = |what: &str, values: &mut dyn Iterator<Item = f64>, from: f64, to: f64| {
            let mut values = values.peekable();
            if values.peek().is_none() {
                return Err(format!("{}: there must be one at least", key(what)));
            }
            values.try_for_each(|value| within(&key(what), value, from, to))
        };
        match &self.kind {
            FigureKind::Slots { slots: of, .. } => {
                of.iter().try_for_each(|it| slots(&key("slots"), *it))
            }
            FigureKind::Epsilon { epsilon_keys, .. } => each(
                "epsilon_keys",
                &mut epsilon_keys.iter().copied(),
                0.5,
                1024.0,
            ),
            FigureKind::Threads {
                threads_per_node, ..
            } => {
                let mut counts = threads_per_node.iter().map(|it| *it as f64);
                each("threads_per_node", &mut counts, 1.0, 256.0)
            }
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
            FigureKind::Metadata {
                record_per_mille,
                fill_percents,
            } => {
                let mut shares = record_per_mille.iter().map(|it| *it as f64);
                each("record_per_mille", &mut shares, 1.0, 10_000.0)?;
                let mut fills = fill_percents.iter().map(|it| f64::from(*it));
                each("fill_percents", &mut fills, 25.0, 100.0)
            }
            FigureKind::Workloads { .. } | FigureKind::Keys { .. } => Ok(()),
        }
    }

    /// The most threads of a compute node that it asks for; 0 if it asks for none.
    pub(super) fn threads_max(&self) -> usize {
        match &self.kind {
            FigureKind::Threads {
                threads_per_node, ..
            } => threads_per_node.iter().copied().max().unwrap_or(0),
            _ => 0,
        }
    }
}

/// All figures of a page.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiments {
    /// Of the page.
    pub title: String,
    /// The testbed's name, or its file.
    pub profile: String,
    /// Each a line or a bar.
    #[serde(deserialize_with = "layers")]
    pub layers: Vec<LayerKind>,
    /// Of keys and draws.
    pub seed: u64,
    /// How large runs are.
    pub size: RunSizes,
    /// What holds where a figure does not vary it.
    pub defaults: Defaults,
    /// The figures, in their order.
    pub figure: Vec<Figure>,
}

/// Why a file of experiments is refused.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{origin}: {what}")]
pub struct ConfigError {
    /// Which file.
    pub origin: String,
    /// What is wrong with it, and where.
    pub what: String,
}

impl Experiments {
    /// Reads them from a text that came from `origin`.
    ///
    /// # Errors
    /// They are not as they must be; the error names the file and the key.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let refused = |what: String| ConfigError {
            origin: origin.to_owned(),
            what,
        };
        let read: Result<Self, toml::de::Error> = toml::from_str(text);
        let experiments = read.map_err(|error| refused(shown::message(&error)))?;
        experiments.check().map_err(refused)?;
        check_figure_keys(text).map_err(refused)?;
        Ok(experiments)
    }

    fn check(&self) -> Result<(), String> {
        if self.layers.is_empty() || self.figure.is_empty() {
            return Err("layers and figure: there must be one at least".to_owned());
        }
        for (name, size) in [("quick", self.size.quick), ("full", self.size.full)] {
            let key = |what: &str| format!("size.{name}.{what}");
            within(&key("record_count"), size.record_count as f64, 1000.0, 1e8)?;
            let (warm_up, window) = (size.warm_up_operation_count, size.window_operation_count);
            within(&key("warm_up_operation_count"), warm_up as f64, 1.0, 1e9)?;
            within(&key("window_operation_count"), window as f64, 100.0, 1e9)?;
        }
        let it = &self.defaults;
        slots("defaults.slots", it.slots)?;
        within("defaults.epsilon_keys", it.epsilon_keys, 0.5, 1024.0)?;
        within("defaults.fill_percent", it.fill_percent.into(), 25.0, 100.0)?;
        within(
            "defaults.threads_per_node",
            it.threads_per_node as f64,
            1.0,
            256.0,
        )?;
        within(
            "defaults.in_flight_count",
            it.in_flight_count as f64,
            1.0,
            256.0,
        )?;
        for (index, figure) in self.figure.iter().enumerate() {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            if !(1..=64).contains(&figure.id.len()) || !figure.id.bytes().all(is_name) {
                let id = shown::text(&figure.id);
                return Err(format!(
                    "figure.id = '{id}': must be 1 to 64 letters, digits and -"
                ));
            }
            if self.figure[..index].iter().any(|it| it.id == figure.id) {
                return Err(format!("figure.id = '{}': there is another one", figure.id));
            }
            figure.check()?;
        }
        Ok(())
    }
}

/// The keys that a figure of some kind has.
const FIGURE_KEYS: [&str; 16] = [
    "id",
    "title",
    "note",
    "paper",
    "kind",
    "workloads",
    "distributions",
    "insert_percent",
    "window_count",
    "read_percents",
    "keys",
    "threads_per_node",
    "epsilon_keys",
    "slots",
    "record_per_mille",
    "fill_percents",
];

/// Refuses what a reader that takes a figure's keys by its kind lets pass: keys that no figure has,
/// and empty lists.
fn check_figure_keys(text: &str) -> Result<(), String> {
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
        for (key, value) in figure {
            if !FIGURE_KEYS.contains(&key.as_str()) {
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

fn within(key: &str, value: f64, from: f64, to: f64) -> Result<(), String> {
    if (from..=to).contains(&value) {
        return Ok(());
    }
    let value = shown::number(value);
    Err(format!("{key} = {value}: must be from {from} to {to}"))
}

fn slots(key: &str, value: u64) -> Result<(), String> {
    match value {
        8 | 12 | 16 => Ok(()),
        _ => Err(format!("{key} = {value}: must be 8, 12 or 16")),
    }
}

fn layers<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<LayerKind>, D::Error> {
    let names: Vec<String> = Deserialize::deserialize(from)?;
    let known = names.iter().map(|name| name.parse());
    let known: Result<Vec<LayerKind>, _> = known.collect();
    known.map_err(serde::de::Error::custom)
}

fn layer<'de, D: Deserializer<'de>>(from: D) -> Result<Option<LayerKind>, D::Error> {
    let name: Option<String> = Deserialize::deserialize(from)?;
    let known = name.map(|name| name.parse()).transpose();
    known.map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(from: &str, to: &str) -> String {
        assert!(ROLEX_EXPERIMENTS.contains(from), "nothing to replace");
        let text = ROLEX_EXPERIMENTS.replacen(from, to, 1);
        Experiments::parse(&text, "mine.toml")
            .expect_err("refused")
            .to_string()
    }

    /// Promise: the repository's experiments are as they must be.
    #[test]
    fn the_repository_s_experiments_are_sound() {
        let read = Experiments::parse(ROLEX_EXPERIMENTS, "rolex.toml").expect("sound");
        assert_eq!(read.layers, [LayerKind::Learned, LayerKind::Rolex]);
        assert!(read.figure.len() >= 8);
    }

    /// Promise: what is wrong is told with the file and the key.
    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, told) in [
            (
                "slots = 16",
                "slots = 10",
                "defaults.slots = 10: must be 8, 12 or 16",
            ),
            ("\"rolex\"]", "\"sherman\"]", "sherman"),
            ("fill_percent", "fill_per_cent", "fill_per_cent"),
            (
                "slots = [8, 12, 16]",
                "slots = [7]",
                "slots of figure 'figure-11b' = 7",
            ),
            (
                "slots = [8, 12, 16]",
                "slots = []",
                "slots of figure 'figure-11b': there must be one at least",
            ),
            (
                "kind = \"slots\"",
                "kind = \"slots\"\nnots = 1",
                "nots of figure",
            ),
            ("id = \"figure-9\"", "id = \"../x\"", "figure.id = '../x'"),
            ("kind = \"slots\"", "kind = \"slits\"", "slits"),
            ("keys = \"uniform\"", "keys = \"no such\"", "no such"),
        ] {
            let error = refusal(from, to);
            assert!(
                error.starts_with("mine.toml: ") && error.contains(told),
                "{error}"
            );
        }
    }
}
