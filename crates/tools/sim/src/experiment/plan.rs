//! One experiment as a value.

use farleaf::ModelCache;
use farleaf_bench::distribution::Distribution;
use farleaf_bench::workload::{Mix, OperationKind, WorkloadLetter, WorkloadSpec};
use farleaf_index::LayerKind;
use farleaf_node::RetrainPolicy;

use super::keys::KeySource;

/// The tables of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct TablePlan {
    /// How clients find leaves.
    pub layer: LayerKind,
    /// Slots per leaf: 8, 12 or 16.
    pub slots: u64,
    /// How full the load makes leaves, in percent.
    pub fill_percent: u8,
    /// Error bound of the models: in keys, or for `rolex` in slots of leaves, full or free.
    pub epsilon_keys: f64,
    /// Where keys come from.
    pub keys: KeySource,
    /// How many are loaded, over all memory nodes.
    pub record_count: usize,
    /// How many more the tables must have room for.
    pub insert_count: usize,
    /// Of the keys, and of everything that clients draw.
    pub seed: u64,
}

/// What is done with them.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkPlan {
    /// The kinds of operations, and which records they are for.
    pub workload: WorkloadSpec,
    /// Instead of the workload's own.
    pub distribution: Option<Distribution>,
    /// Threads of each compute node.
    pub threads_per_node: usize,
    /// Operations that each thread has under way.
    pub in_flight_count: usize,
    /// Operations before the first window.
    pub warm_up_count: u64,
    /// Operations of each window that is measured.
    pub window_counts: Vec<u64>,
    /// Operations of each window after these, in which the same threads only read.
    pub rest_window_counts: Vec<u64>,
    /// How the memory nodes retrain; none: they do not, and nobody looks for new roots. Where
    /// nothing is inserted nothing is ever due, and it changes nothing.
    pub retraining: Option<RetrainPlan>,
    /// Of tables whose models the memory nodes train for clients.
    pub models: ModelPlan,
}

/// How such models are used and trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// What clients keep of them.
    pub cache: ModelCache,
    /// Whether one link is followed before the node is asked.
    pub is_speculative: bool,
    /// Threads of a memory node that train, of its cores.
    pub train_thread_count: usize,
}

impl Default for ModelPlan {
    /// All of them; one link; two threads, as in XStore's testbed.
    fn default() -> Self {
        Self {
            cache: ModelCache::All,
            is_speculative: true,
            train_thread_count: 2,
        }
    }
}

/// How memory nodes retrain: the library's policy, but for what depends on the size of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrainPlan {
    /// Time between two looks of a memory node's background thread, and of a client process's.
    pub tick_ns: u64,
    /// Leaves that are retrained together at the most, unless the table is large.
    pub leaf_count_max: u64,
    /// Models with fewer leaves are joined with what is retrained beside them.
    pub joined_leaf_count: u64,
}

impl RetrainPlan {
    /// The library's policy with these numbers in it.
    pub fn policy(&self) -> RetrainPolicy {
        RetrainPolicy {
            leaf_count_max: self.leaf_count_max,
            joined_leaf_count: self.joined_leaf_count,
            tick_ns: self.tick_ns,
            // Nobody is ever stopped here, and ticks come as fast as there is something due.
            asking_tick_count: u32::MAX,
            ..RetrainPolicy::DEFAULT
        }
    }
}

impl WorkPlan {
    /// Operations in all.
    pub fn operation_count(&self) -> u64 {
        self.working_count() + self.rest_window_counts.iter().sum::<u64>()
    }

    /// Operations of the workload.
    fn working_count(&self) -> u64 {
        self.warm_up_count + self.window_counts.iter().sum::<u64>()
    }

    /// Whether memory nodes retrain meanwhile.
    pub fn retrains(&self) -> bool {
        self.retraining.is_some() && self.inserts()
    }

    /// Whether anything is inserted.
    pub fn inserts(&self) -> bool {
        self.workload.mix.share(OperationKind::Insert) > 0.0
    }

    /// Insert keys that it may need: what is expected and ten standard deviations more, and one for
    /// each operation that is under way at the end.
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

/// A workload of reads and others in these shares, of 1 together; zipfian if it says nothing else.
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
