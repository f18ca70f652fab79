//! Plans: one experiment as a value.

use farleaf::ModelCache;
use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::{Mix, OperationKind, WorkloadLetter, WorkloadSpec};
use farleaf_index::LayerKind;
use farleaf_node::RetrainPolicy;

use super::keys::KeySource;

/// Tables of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct ExperimentTablePlan {
    /// Search layer of the tables.
    pub layer: LayerKind,
    /// Slots per leaf: 8, 12 or 16.
    pub slots: u64,
    /// Percentage of a leaf's slots that the load fills.
    pub fill_percent: u8,
    /// Error bound of the models: in keys, or for `rolex` in slots of leaves, used or free.
    pub epsilon_keys: f64,
    /// Source of the keys.
    pub keys: KeySource,
    /// Number of records to load, over all memory nodes.
    pub record_count: usize,
    /// Number of further records for which the tables must have space.
    pub insert_count: usize,
    /// Seed of the keys and of everything that clients draw.
    pub seed: u64,
}

/// Work of the clients.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkPlan {
    /// Shares of the kinds of operations, and the records that they access.
    pub workload: WorkloadSpec,
    /// Distribution that replaces the workload's own.
    pub distribution: Option<Distribution>,
    /// Threads of each compute node.
    pub threads_per_node: usize,
    /// Operations that each thread has in flight.
    pub in_flight_count: usize,
    /// Operations before the first window.
    pub warm_up_count: u64,
    /// Operations of each measured window.
    pub window_counts: Vec<u64>,
    /// Operations of each later window, in which the same threads only read.
    pub read_only_window_counts: Vec<u64>,
    /// Retraining by the memory nodes. If `None`, they do not retrain, and clients do not poll for
    /// new roots. Without inserts no retraining is ever due, so it changes nothing.
    pub retraining: Option<RetrainPlan>,
    /// Settings of tables whose models the memory nodes train for clients.
    pub models: ModelPlan,
}

/// Use and training of such models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// Models that clients cache.
    pub cache: ModelCache,
    /// Whether a client follows one link before it asks the node.
    pub is_speculative: bool,
    /// Training threads of a memory node, out of its cores.
    pub train_thread_count: usize,
}

impl Default for ModelPlan {
    /// All models, one link, and two threads, as in XStore's testbed.
    fn default() -> Self {
        Self {
            cache: ModelCache::All,
            is_speculative: true,
            train_thread_count: 2,
        }
    }
}

/// Retraining by memory nodes: the library's policy, except for what depends on the size of the
/// tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrainPlan {
    /// Time between two polls of a memory node's background thread, and of a client process's, in
    /// nanoseconds.
    pub tick_ns: u64,
    /// Maximal number of leaves that are retrained together, unless the table is large.
    pub leaf_count_max: u64,
    /// Models with fewer leaves than this join the retraining of a neighbor.
    pub joined_leaf_count: u64,
}

impl RetrainPlan {
    /// Returns the library's policy with these numbers.
    pub fn policy(&self) -> RetrainPolicy {
        RetrainPolicy {
            leaf_count_max: self.leaf_count_max,
            joined_leaf_count: self.joined_leaf_count,
            tick_ns: self.tick_ns,
            // No client ever stops here, and ticks come as fast as retrainings are due.
            asking_tick_count: u32::MAX,
            ..RetrainPolicy::DEFAULT
        }
    }
}

impl WorkPlan {
    /// Returns the total number of operations.
    pub fn operation_count(&self) -> u64 {
        self.working_count() + self.read_only_window_counts.iter().sum::<u64>()
    }

    /// Returns the number of operations of the workload.
    fn working_count(&self) -> u64 {
        self.warm_up_count + self.window_counts.iter().sum::<u64>()
    }

    /// Returns whether memory nodes retrain meanwhile.
    pub fn retrains(&self) -> bool {
        self.retraining.is_some() && self.inserts()
    }

    /// Returns whether the workload inserts.
    pub fn inserts(&self) -> bool {
        self.workload.mix.share(OperationKind::Insert) > 0.0
    }

    /// Returns the number of insert keys needed: the expectation plus ten standard deviations, and
    /// one for each operation in flight at the end.
    pub fn insert_count(&self, thread_count: usize) -> u64 {
        let share = self.workload.mix.share(OperationKind::Insert);
        let expected = self.working_count() as f64 * share;
        if expected == 0.0 {
            return 0;
        }
        let under_way = (thread_count * self.in_flight_count) as f64;
        (expected + 10.0 * expected.sqrt() + under_way).ceil() as u64
    }
}

/// Returns a workload with these shares of operations, which add up to 1; zipfian by default.
pub fn mixed(read: f64, update: f64, insert: f64) -> WorkloadSpec {
    WorkloadSpec {
        mix: Mix {
            read,
            update,
            insert,
            scan: 0.0,
            read_modify_write: 0.0,
        },
        ..WorkloadSpec::of(WorkloadLetter::C)
    }
}
