//! Kinds of figures, by the parameter that each varies.

use farleaf::ModelCache;
use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::WorkloadLetter;
use serde::{Deserialize, Deserializer};

use super::workload::Workload;
use crate::experiment::keys::KeySource;
use crate::nic::model::NetworkModel;

/// Parameter that a figure varies.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FigureKind {
    /// Workload, with a chart for each distribution.
    Workloads {
        /// Workloads to run.
        workloads: Vec<WorkloadLetter>,
        /// Distributions to use.
        distributions: Vec<Distribution>,
    },
    /// Number of inserted records.
    Growth {
        /// Records inserted at the end, in percent of those loaded.
        insert_percent: u64,
        /// Measured windows until then.
        window_count: u64,
    },
    /// Time, for a growing table, with retraining and (dashed) without.
    Timeline {
        /// Records inserted at the end, in percent of those loaded.
        insert_percent: u64,
        /// Percentage of inserts among the operations; the others are reads.
        write_percent: u8,
        /// Measured windows while the table grows.
        window_count: u64,
        /// Measured windows afterwards, each of as many reads as an earlier window has operations.
        rest_window_count: u64,
        /// Threads of each compute node; one chart for each.
        threads_per_node: Vec<usize>,
    },
    /// Share of reads; the other operations are updates.
    Ratios {
        /// Percentages of reads.
        read_percents: Vec<u8>,
    },
    /// Source of keys.
    Keys {
        /// Sources to use.
        keys: Vec<KeySource>,
        /// Workloads; one chart for each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Threads of each compute node.
    Threads {
        /// Numbers of threads.
        threads_per_node: Vec<usize>,
        /// Workloads; one chart for each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Error bound of the models.
    Epsilon {
        /// Error bounds: in keys for `learned`, in slots for `rolex`.
        epsilon_keys: Vec<f64>,
        /// Workloads; one chart for each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Slots of a leaf.
    Slots {
        /// Numbers of slots.
        slots: Vec<u64>,
        /// Workloads; one chart for each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Threads of each compute node, with a chart for each workload.
    Clients {
        /// Workloads to run.
        workloads: Vec<Workload>,
        /// Distribution of requests over the records.
        distribution: Distribution,
        /// Numbers of threads.
        threads_per_node: Vec<usize>,
    },
    /// Latency: the 99th percentile of each kind of operation.
    Latencies {
        /// Workloads to run.
        workloads: Vec<Workload>,
        /// Distribution of requests over the records.
        distribution: Distribution,
    },
    /// Time parts of operations, with a chart for each workload and number of threads.
    TimeParts {
        /// Workloads to run.
        workloads: Vec<Workload>,
        /// Distribution of requests over the records.
        distribution: Distribution,
        /// Threads of each compute node.
        threads_per_node: Vec<usize>,
    },
    /// Client cache of models that memory nodes train.
    ModelCaches {
        /// Parts to cache.
        #[serde(deserialize_with = "caches")]
        caches: Vec<ModelCache>,
        /// Workloads; one chart for each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Whether one link is followed before the memory node is asked, with a chart for each
    /// distribution.
    Speculation {
        /// Workload to run.
        workload: WorkloadLetter,
        /// Percentage of a leaf's slots that the load fills: fuller leaves split earlier.
        fill_percent: u8,
        /// Distributions of requests over the records, also for workload D.
        distributions: Vec<Distribution>,
    },
    /// Threads of a memory node that train models for clients, with a chart for each distribution
    /// and method to deal with a wrong model. YCSB D: half of the inserts are warm-up, half are
    /// measured.
    Training {
        /// Measure to draw.
        shows: TrainingMeasure,
        /// Numbers of threads; 0: models are trained before the start and never again.
        train_thread_counts: Vec<usize>,
        /// Percentage of a leaf's slots that the load fills: fuller leaves split earlier.
        fill_percent: u8,
        /// Records inserted at the end, in percent of those loaded.
        insert_percent: u64,
        /// Distributions of requests over the records.
        distributions: Vec<Distribution>,
        /// Whether one link is followed before the memory node is asked.
        speculation: Vec<bool>,
    },
    /// Number of memory nodes, and of NICs of each.
    Servers {
        /// Memory nodes to use.
        servers: Vec<Servers>,
        /// Workloads; one chart for each.
        workloads: Vec<WorkloadLetter>,
    },
    /// Shares of reads, updates and inserts.
    Mixes {
        /// Percentages, which add up to 100.
        shares: Vec<[u8; 3]>,
        /// Distributions; one chart for each.
        distributions: Vec<Distribution>,
    },
    /// Number of records; no operation is run.
    Metadata {
        /// Thousandths of the size's record count.
        record_per_mille: Vec<u64>,
        /// Fill of leaves in percent; one chart for each.
        fill_percents: Vec<u8>,
    },
    /// Keys of each model, by the fill of leaves; no operation is run.
    Models {
        /// Fill of leaves in percent.
        fill_percents: Vec<u8>,
        /// Error bounds of the models; one chart for each.
        epsilon_keys: Vec<f64>,
    },
}

/// Measure that a figure of training shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingMeasure {
    /// Sub-models trained per second.
    Speed,
    /// Operations per second.
    Throughput,
    /// Share of reads that were calls, since models did not lead to the key.
    FallBacks,
}

/// Memory nodes of a testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Servers {
    /// Number of memory nodes.
    pub node_count: u32,
    /// NICs of each node.
    pub nics_per_node: u32,
}

impl Servers {
    /// Returns the memory nodes of a testbed.
    pub(super) fn of(model: &NetworkModel) -> Self {
        let memory = &model.memory;
        Self {
            node_count: memory.node_count.value as u32,
            nics_per_node: memory.nics_per_node.value as u32,
        }
    }

    /// Replaces the memory nodes of a testbed.
    pub(super) fn put_into(self, model: &mut NetworkModel) {
        model.memory.node_count.value = self.node_count.into();
        model.memory.nics_per_node.value = self.nics_per_node.into();
    }

    /// Returns the number of NICs of all nodes.
    pub(super) fn nic_count(self) -> u32 {
        self.node_count * self.nics_per_node
    }
}

fn caches<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ModelCache>, D::Error> {
    let names: Vec<String> = Deserialize::deserialize(from)?;
    let known: Result<Vec<ModelCache>, _> = names.iter().map(|name| name.parse()).collect();
    known.map_err(serde::de::Error::custom)
}
