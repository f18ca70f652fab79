//! Configuration: experiments and their sizes, from TOML.

use std::path::Path;

use farleaf_bench::distribution::Distribution;
use farleaf_index::LayerKind;
use serde::Deserialize;

use super::checks::{distinct, slots, sourced, within};
pub use super::figure::{Comparable, Figure, FigureKind, PaperValue, Servers, TrainingMeasure};
use super::figure::{check_figure_keys, layers};
use crate::display;
use crate::experiment::keys::KeySource;
use crate::experiment::plan::{ModelPlan, RetrainPlan};
use crate::nic::profile::is_embedded;

/// Experiments of ROLEX's figures, from the repository.
pub const ROLEX_EXPERIMENTS: &str = include_str!("../../../../../experiments/rolex.toml");

/// Experiments of RF-tree's figures, from the repository.
pub const RF_TREE_EXPERIMENTS: &str = include_str!("../../../../../experiments/rf-tree.toml");

/// Experiments of XStore's figures, from the repository.
pub const XSTORE_EXPERIMENTS: &str = include_str!("../../../../../experiments/xstore.toml");

/// Built-in profile of the paper's testbed, for files that name none.
const PAPER_PROFILE: &str = "rolex";

/// Size of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSize {
    /// Records to load, over all memory nodes.
    pub record_count: usize,
    /// Operations before the measured ones.
    pub warm_up_operation_count: u64,
    /// Measured operations.
    pub window_operation_count: u64,
}

/// Sizes by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSizes {
    /// Reasons for the sizes.
    pub source: String,
    /// Quick size: under two minutes on two cores.
    pub quick: RunSize,
    /// Full size, for published results: under an hour on two cores.
    pub full: RunSize,
}

/// Value with its source.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sourced<T> {
    /// Value of the parameter.
    pub value: T,
    /// Source of the value, or the reason for an estimate.
    pub source: String,
}

impl<T: ToString> Sourced<T> {
    fn row(&self, key: &'static str) -> (&'static str, String, &str) {
        (key, self.value.to_string(), &self.source)
    }
}

/// Values for parameters that a figure does not vary. The testbed determines the threads of a
/// compute node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// Slots of a leaf.
    pub slots: Sourced<u64>,
    /// Error bound of the models: in keys for `learned`, in slots of leaves, used or free, for
    /// `rolex`.
    pub epsilon_keys: Sourced<f64>,
    /// Percentage of a leaf's slots that the load fills.
    pub fill_percent: Sourced<u8>,
    /// Source of the keys.
    pub keys: Sourced<KeySource>,
    /// Distribution of requests over the records.
    pub distribution: Sourced<Distribution>,
    /// Operations that each thread has in flight.
    pub in_flight_count: Sourced<usize>,
    /// Time between two polls of a memory node's background thread, and of a client process's, in
    /// microseconds.
    pub retrain_tick_us: Sourced<u64>,
    /// Maximal number of leaves that are retrained together, unless the table is large.
    pub retrain_leaf_count_max: Sourced<u64>,
    /// Models with fewer leaves than this join the retraining of a neighbor.
    pub retrain_joined_leaf_count: Sourced<u64>,
    /// Threads of a memory node that train models for clients; two by default.
    #[serde(default = "train_threads")]
    pub train_thread_count: Sourced<u64>,
}

impl Defaults {
    /// Returns each parameter: its key, its value as text, and its source.
    pub fn parameters(&self) -> [(&'static str, String, &str); 10] {
        [
            self.retrain_tick_us.row("retrain_tick_us"),
            self.retrain_leaf_count_max.row("retrain_leaf_count_max"),
            self.retrain_joined_leaf_count
                .row("retrain_joined_leaf_count"),
            self.train_thread_count.row("train_thread_count"),
            self.slots.row("slots"),
            self.epsilon_keys.row("epsilon_keys"),
            self.fill_percent.row("fill_percent"),
            self.keys.row("keys"),
            self.distribution.row("distribution"),
            self.in_flight_count.row("in_flight_count"),
        ]
    }
}

/// Experiments of all figures of a page.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiments {
    /// File from which the experiments were read; errors name it.
    #[serde(skip)]
    pub origin: String,
    /// Title of the page.
    pub title: String,
    /// Name or file of the testbed's profile.
    pub profile: String,
    /// Built-in profile of the testbed on which the paper was measured; ROLEX's by default.
    #[serde(default = "paper_profile")]
    pub paper_profile: String,
    /// Search layers, each a line or a bar.
    #[serde(deserialize_with = "layers")]
    pub layers: Vec<LayerKind>,
    /// Seed of keys and draws.
    pub seed: u64,
    /// Whether memory nodes retrain where records are inserted; true by default.
    #[serde(default = "yes")]
    pub retraining: bool,
    /// Size of the runs.
    pub size: RunSizes,
    /// Values for parameters that a figure does not vary.
    pub defaults: Defaults,
    /// Figures, in their order.
    pub figure: Vec<Figure>,
}

/// Error of a file of experiments.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{origin}: {what}")]
pub struct ConfigError {
    /// Name of the file.
    pub origin: String,
    /// Description of the error and its place.
    pub what: String,
}

impl Experiments {
    /// Parses experiments from a text that came from `origin`.
    ///
    /// # Errors
    /// The experiments are invalid; the error names the file and the key.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let refused = |what: String| ConfigError {
            origin: origin.to_owned(),
            what,
        };
        let read: Result<Self, toml::de::Error> = toml::from_str(text);
        let mut experiments = read.map_err(|error| {
            let message = display::message(&error);
            let is_empty = text.parse::<toml::Table>().is_ok_and(|it| it.is_empty());
            refused(if is_empty {
                format!(
                    "the file is empty; copy experiments/rolex.toml of the repository and change \
                     the copy: {message}"
                )
            } else {
                message
            })
        })?;
        origin.clone_into(&mut experiments.origin);
        experiments.check().map_err(refused)?;
        check_figure_keys(text, &experiments.figure).map_err(refused)?;
        Ok(experiments)
    }

    /// Resolves relative paths of the profile's file and of key files in this folder. It is the
    /// folder of the experiments' file, so the current directory does not matter. A built-in
    /// profile takes precedence over a file of its name.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Self {
        if !is_embedded(&self.profile) {
            self.profile = folder.join(&self.profile).to_string_lossy().into_owned();
        }
        let keys = &mut self.defaults.keys.value;
        *keys = keys.clone().in_folder(folder);
        for figure in &mut self.figure {
            if let FigureKind::Keys { keys, .. } = &mut figure.kind {
                let moved = keys.drain(..).map(|it| it.in_folder(folder));
                *keys = moved.collect();
            }
        }
        self
    }

    /// Returns how memory nodes retrain, or `None` if they do not.
    pub fn retraining(&self) -> Option<RetrainPlan> {
        self.retraining.then(|| self.defaults.retraining())
    }

    fn check(&self) -> Result<(), String> {
        if self.layers.is_empty() || self.figure.is_empty() {
            return Err("layers and figure: expected at least one".to_owned());
        }
        for (name, size) in [("quick", self.size.quick), ("full", self.size.full)] {
            let key = |what: &str| format!("size.{name}.{what}");
            within(&key("record_count"), size.record_count as f64, 1000.0, 1e8)?;
            let (warm_up, window) = (size.warm_up_operation_count, size.window_operation_count);
            within(&key("warm_up_operation_count"), warm_up as f64, 1.0, 1e9)?;
            within(&key("window_operation_count"), window as f64, 100.0, 1e9)?;
        }
        let layers = self.layers.iter().map(|layer| layer.name());
        distinct("layers", &layers.collect::<Vec<_>>())?;
        if !is_embedded(&self.paper_profile) {
            let name = display::text(&self.paper_profile);
            return Err(format!(
                "paper_profile = '{name}': unknown built-in profile"
            ));
        }
        sourced("size", &self.size.source)?;
        self.defaults.check()?;
        for (index, figure) in self.figure.iter().enumerate() {
            let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            if !(1..=64).contains(&figure.id.len()) || !figure.id.bytes().all(is_name) {
                let id = display::text(&figure.id);
                return Err(format!(
                    "figure.id = '{id}': must be 1 to 64 letters, digits and -"
                ));
            }
            if self.figure[..index].iter().any(|it| it.id == figure.id) {
                return Err(format!(
                    "figure.id = '{}': another figure has this id; rename one",
                    figure.id
                ));
            }
            figure.check()?;
        }
        Ok(())
    }
}

impl Defaults {
    pub(super) fn models(&self) -> ModelPlan {
        ModelPlan {
            train_thread_count: self.train_thread_count.value as usize,
            ..ModelPlan::default()
        }
    }

    fn retraining(&self) -> RetrainPlan {
        RetrainPlan {
            tick_ns: self.retrain_tick_us.value * 1000,
            leaf_count_max: self.retrain_leaf_count_max.value,
            joined_leaf_count: self.retrain_joined_leaf_count.value,
        }
    }

    fn check(&self) -> Result<(), String> {
        for (key, _, source) in self.parameters() {
            sourced(&format!("defaults.{key}"), source)?;
        }
        slots("defaults.slots", self.slots.value)?;
        let epsilon_keys = self.epsilon_keys.value;
        within("defaults.epsilon_keys", epsilon_keys, 0.5, 1024.0)?;
        let fill_percent = self.fill_percent.value.into();
        within("defaults.fill_percent", fill_percent, 25.0, 100.0)?;
        let in_flight_count = self.in_flight_count.value as f64;
        within("defaults.in_flight_count", in_flight_count, 1.0, 256.0)?;
        let tick_us = self.retrain_tick_us.value as f64;
        within("defaults.retrain_tick_us", tick_us, 1.0, 1e6)?;
        let train_count = self.train_thread_count.value as f64;
        within("defaults.train_thread_count", train_count, 1.0, 64.0)?;
        for (key, count) in [
            ("leaf_count_max", &self.retrain_leaf_count_max),
            ("joined_leaf_count", &self.retrain_joined_leaf_count),
        ] {
            within(
                &format!("defaults.retrain_{key}"),
                count.value as f64,
                1.0,
                1e6,
            )?;
        }
        Ok(())
    }
}

/// Returns XStore's number of training threads.
fn train_threads() -> Sourced<u64> {
    Sourced {
        value: 2,
        source:
            "XStore (OSDI'20): two threads train; for tables whose models the memory node trains \
                 for clients only"
                .to_owned(),
    }
}

fn paper_profile() -> String {
    PAPER_PROFILE.to_owned()
}

fn yes() -> bool {
    true
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

    /// Promise: the repository's experiments are valid.
    #[test]
    fn the_repository_s_experiments_are_sound() {
        let read = Experiments::parse(ROLEX_EXPERIMENTS, "rolex.toml").expect("sound");
        assert_eq!(read.layers, [LayerKind::Learned, LayerKind::Rolex]);
        assert!(read.figure.len() >= 8);
    }

    /// Promise: an error names the file and the key.
    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, expected) in [
            (
                "slots = { value = 16",
                "slots = { value = 10",
                "defaults.slots = 10: must be 8, 12 or 16",
            ),
            (
                "\"rolex\"]",
                "\"shermann\"]",
                "'shermann' is not a search layer",
            ),
            (
                "layers = [\"learned\", \"rolex\", \"rf-tree\"",
                "layers = [\"learned\", \"learned\", \"rf-tree\"",
                "layers of figure 'figure-7': learned is listed twice",
            ),
            (
                "profile = \"rolex\"",
                "profile = \"rolex\"\npaper_profile = \"cx\"",
                "paper_profile = 'cx': unknown built-in profile",
            ),
            (
                "over = \"fg\"",
                "over = \"fgg\"",
                "'fgg' is not a search layer",
            ),
            ("fill_percent", "fill_per_cent", "fill_per_cent"),
            (
                "slots = [8, 12, 16]",
                "slots = [7]",
                "slots of figure 'figure-11b' = 7",
            ),
            (
                "slots = [8, 12, 16]",
                "slots = []",
                "slots of figure 'figure-11b': expected at least one",
            ),
            (
                "kind = \"slots\"",
                "kind = \"slots\"\nnots = 1",
                "nots of figure",
            ),
            ("id = \"figure-9\"", "id = \"../x\"", "figure.id = '../x'"),
            ("kind = \"slots\"", "kind = \"slits\"", "slits"),
            ("value = \"uniform\"", "value = \"no such\"", "no such"),
            (
                "kind = \"slots\"",
                "kind = \"slots\"\nread_percents = [1]",
                "read_percents of figure 'figure-11b': unknown key",
            ),
        ] {
            let error = refusal(from, to);
            assert!(
                error.starts_with("mine.toml: ") && error.contains(expected),
                "{error}"
            );
        }
    }

    /// Promise: invalid timelines and retraining parameters are refused with their key, and memory
    /// nodes retrain by default.
    #[test]
    fn what_is_wrong_with_retraining_is_named() {
        for (from, to, expected) in [
            (
                "write_percent = 50",
                "write_percent = 0",
                "write_percent of figure 'timeline' = 0: must be from 1 to 100",
            ),
            (
                "rest_window_count = 5",
                "rest_window_count = 101",
                "rest_window_count of figure 'timeline' = 101: must be from 0 to 100",
            ),
            (
                "threads_per_node = [1, 24]",
                "threads_per_node = [24, 24]",
                "threads_per_node of figure 'timeline': 24 is listed twice",
            ),
            (
                "threads_per_node = [1, 24]",
                "threads_per_node = []",
                "threads_per_node of figure 'timeline': expected at least one",
            ),
            (
                "kind = \"timeline\"",
                "kind = \"timeline\"\nread_percents = [1]",
                "read_percents of figure 'timeline': unknown key",
            ),
            (
                "retrain_tick_us = { value = 400",
                "retrain_tick_us = { value = 0",
                "defaults.retrain_tick_us = 0: must be from 1 to 1000000",
            ),
            (
                "retrain_leaf_count_max = { value = 160",
                "retrain_leaf_count_max = { value = 0",
                "defaults.retrain_leaf_count_max = 0: must be from 1",
            ),
            ("retraining = true", "retraining = 2", "retraining = 2"),
        ] {
            let error = refusal(from, to);
            assert!(error.contains(expected), "{error}");
        }
        let retrains = |text: &str| {
            let read = Experiments::parse(text, "mine.toml").expect("sound");
            read.retraining().is_some()
        };
        assert!(retrains(ROLEX_EXPERIMENTS));
        assert!(retrains(
            &ROLEX_EXPERIMENTS.replace("retraining = true\n", "")
        ));
        assert!(!retrains(
            &ROLEX_EXPERIMENTS.replace("retraining = true", "retraining = false")
        ));
    }

    /// Promise: duplicates in a list are refused, even if written in two ways.
    #[test]
    fn what_is_there_twice_is_refused() {
        for (from, to, expected) in [
            (
                "\"rolex\"]",
                "\"rolex\", \"learned\"]",
                "layers: learned is listed twice",
            ),
            (
                "\"E\", \"F\"]",
                "\"E\", \"E\"]",
                "workloads of figure 'figure-7': E is listed",
            ),
            (
                "[\"uniform\", \"zipfian\"]",
                "[\"zipfian\", \"zipfian\"]",
                "distributions of",
            ),
            (
                "[4.0, 8.0,",
                "[8, 8.0,",
                "epsilon_keys of figure 'figure-11a': 8.0 is listed twice",
            ),
            (
                "[8, 12, 16]",
                "[8, 12, 8]",
                "slots of figure 'figure-11b': 8 is listed twice",
            ),
            (
                "[0, 25, 50, 75, 100]",
                "[0, 25, 25]",
                "read_percents of figure 'figure-8b': 25 is",
            ),
            (
                "\"normal\", \"lognormal\"]",
                "\"weblog\"]",
                "keys of figure 'figure-9'",
            ),
        ] {
            let error = refusal(from, to);
            assert!(error.contains(expected), "{error}");
        }
    }

    /// Promise: an empty file is reported as empty, before missing keys are.
    #[test]
    fn an_empty_file_is_reported() {
        for text in ["", "\n", "# later\n"] {
            let error = Experiments::parse(text, "mine.toml").expect_err("empty");
            let error = error.to_string();
            assert!(
                error.starts_with("mine.toml: the file is empty; copy experiments/rolex.toml"),
                "{error}"
            );
        }
    }

    /// Promise: relative paths are resolved beside the file; absolute paths and built-in profiles
    /// are not changed.
    #[test]
    fn paths_are_relative_to_the_file() {
        let text = ROLEX_EXPERIMENTS.replacen("value = \"uniform\"", "value = \"keys:k.txt\"", 1);
        let text = text.replacen(
            "\"normal\", \"lognormal\"",
            "\"keys:/k.txt\", \"keys:l\"",
            1,
        );
        let read = Experiments::parse(&text, "rolex.toml").expect("sound");
        let read = read.in_folder(Path::new("exp"));
        assert_eq!(read.profile, "rolex");
        assert_eq!(read.defaults.keys.value.to_string(), "keys:exp/k.txt");
        let of_figures = read.figure.iter().filter_map(|figure| match &figure.kind {
            FigureKind::Keys { keys, .. } => Some(keys.iter().map(ToString::to_string)),
            _ => None,
        });
        let names: Vec<String> = of_figures.flatten().collect();
        assert_eq!(names, ["weblog", "clustered", "keys:/k.txt", "keys:exp/l"]);
        let text = ROLEX_EXPERIMENTS.replacen("profile = \"rolex\"", "profile = \"cx9.toml\"", 1);
        let read = Experiments::parse(&text, "rolex.toml").expect("sound");
        assert_eq!(read.in_folder(Path::new("exp")).profile, "exp/cx9.toml");
    }

    /// Promise: a parameter without a source is refused, and so is an implausible number, with a
    /// short error.
    #[test]
    fn what_nobody_says_is_refused() {
        let text = ROLEX_EXPERIMENTS.split("fill_percent = { value = 50, source = \"");
        let source = text.last().and_then(|rest| rest.split('"').next());
        let error = refusal(source.expect("a source"), " ");
        assert!(
            error.contains("defaults.fill_percent: its source must have"),
            "{error}"
        );
        let error = refusal(
            "epsilon_keys = { value = 16.0",
            "epsilon_keys = { value = 1e300",
        );
        let expected = "defaults.epsilon_keys = 1e300: must be from 0.5 to 1024";
        assert!(error.ends_with(expected), "{error}");
    }
}
