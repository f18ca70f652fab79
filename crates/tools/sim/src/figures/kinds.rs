//! The kinds of figures: what each varies.

use farleaf::ModelCache;
use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::WorkloadLetter;
use serde::{Deserialize, Deserializer};

use super::clients::Workload;
use crate::experiment::keys::KeySource;
use crate::nic::model::NetworkModel;

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
    /// A growing table over time, with retraining and, dashed, without.
    Timeline {
        /// Records inserted in the end, in percent of those loaded.
        insert_percent: u64,
        /// The share of inserts among the operations meanwhile; the others are reads.
        write_percent: u8,
        /// Measures while it grows.
        window_count: u64,
        /// Measures afterwards, each of as many reads as each before is of operations.
        rest_window_count: u64,
        /// Threads of each compute node; a chart each.
        threads_per_node: Vec<usize>,
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
        /// In keys for `learned`, in slots for `rolex`.
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
    /// Threads of each compute node, a chart each workload.
    Clients {
        /// Which.
        workloads: Vec<Workload>,
        /// Which records are asked for.
        distribution: Distribution,
        /// How many threads.
        threads_per_node: Vec<usize>,
    },
    /// The 99th percentile of each kind of operation.
    Latencies {
        /// Of these workloads.
        workloads: Vec<Workload>,
        /// Which records are asked for.
        distribution: Distribution,
    },
    /// Where the time of operations goes, a chart each workload and number of threads.
    TimeParts {
        /// Which.
        workloads: Vec<Workload>,
        /// Which records are asked for.
        distribution: Distribution,
        /// Threads of each compute node.
        threads_per_node: Vec<usize>,
    },
    /// What clients keep of models that memory nodes train.
    ModelCaches {
        /// Which parts.
        #[serde(deserialize_with = "caches")]
        caches: Vec<ModelCache>,
        /// A chart each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Whether one link is followed before the memory node is asked, a chart each distribution.
    Speculation {
        /// Of this workload.
        workload: WorkloadLetter,
        /// How full the load makes leaves, in percent: the fuller, the sooner they split.
        fill_percent: u8,
        /// Which records are asked for, also of D.
        distributions: Vec<Distribution>,
    },
    /// Threads of a memory node that train models for clients, a chart each distribution and way
    /// to deal with a wrong model. YCSB D: half of the inserts warm it up, half are measured.
    Training {
        /// What is drawn.
        shows: TrainingMeasure,
        /// How many threads; 0: models are trained before it begins and not again.
        train_thread_counts: Vec<usize>,
        /// How full the load makes leaves, in percent: the fuller, the sooner they split.
        fill_percent: u8,
        /// Records inserted in the end, in percent of those loaded.
        insert_percent: u64,
        /// Which records are asked for.
        distributions: Vec<Distribution>,
        /// Whether one link is followed before the memory node is asked.
        speculation: Vec<bool>,
    },
    /// How many memory nodes there are, of so many NICs each.
    Servers {
        /// Which.
        servers: Vec<Servers>,
        /// A chart each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Shares of reads, updates and inserts.
    Mixes {
        /// In percent, 100 together.
        shares: Vec<[u8; 3]>,
        /// A chart each.
        distributions: Vec<Distribution>,
    },
    /// How many records there are; nothing is run.
    Metadata {
        /// In thousandths of the size's record count.
        record_per_mille: Vec<u64>,
        /// How full leaves are, in percent; a chart each.
        fill_percents: Vec<u8>,
    },
    /// Keys of each model, by how full leaves are; nothing is run.
    Models {
        /// How full, in percent.
        fill_percents: Vec<u8>,
        /// The models' error bounds; a chart each.
        epsilon_keys: Vec<f64>,
    },
}

impl FigureKind {
    /// The keys of this kind, beside those that every figure has.
    pub(super) fn keys(kind: &str) -> &'static [&'static str] {
        match kind {
            "workloads" => &["workloads", "distributions"],
            "growth" => &["insert_percent", "window_count"],
            "timeline" => &[
                "insert_percent",
                "write_percent",
                "window_count",
                "rest_window_count",
                "threads_per_node",
            ],
            "ratios" => &["read_percents"],
            "keys" => &["keys", "workloads"],
            "threads" => &["threads_per_node", "workloads"],
            "epsilon" => &["epsilon_keys", "workloads"],
            "slots" => &["slots", "workloads"],
            "clients" | "time_parts" => &["workloads", "distribution", "threads_per_node"],
            "latencies" => &["workloads", "distribution"],
            "model_caches" => &["caches", "workloads"],
            "speculation" => &["workload", "fill_percent", "distributions"],
            "training" => &[
                "shows",
                "train_thread_counts",
                "fill_percent",
                "insert_percent",
                "distributions",
                "speculation",
            ],
            "servers" => &["servers", "workloads"],
            "mixes" => &["shares", "distributions"],
            "metadata" => &["record_per_mille", "fill_percents"],
            "models" => &["fill_percents", "epsilon_keys"],
            _ => &[],
        }
    }
}

/// What a figure of training shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingMeasure {
    /// Sub-models trained a second.
    Speed,
    /// Operations a second.
    Throughput,
    /// The share of reads that were calls, as models did not lead to the key.
    FallBacks,
}

/// Memory nodes of a testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Servers {
    /// How many.
    pub node_count: u32,
    /// NICs of each.
    pub nics_per_node: u32,
}

impl Servers {
    /// Those of a testbed.
    pub(super) fn of(model: &NetworkModel) -> Self {
        let memory = &model.memory;
        Self {
            node_count: memory.node_count.value as u32,
            nics_per_node: memory.nics_per_node.value as u32,
        }
    }

    /// The testbed with these in the place of its own.
    pub(super) fn put_into(self, model: &mut NetworkModel) {
        model.memory.node_count.value = self.node_count.into();
        model.memory.nics_per_node.value = self.nics_per_node.into();
    }

    /// NICs of all.
    pub(super) fn nic_count(self) -> u32 {
        self.node_count * self.nics_per_node
    }
}

fn caches<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ModelCache>, D::Error> {
    let names: Vec<String> = Deserialize::deserialize(from)?;
    let known: Result<Vec<ModelCache>, _> = names.iter().map(|name| name.parse()).collect();
    known.map_err(serde::de::Error::custom)
}
