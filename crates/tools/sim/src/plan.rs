//! Plans: all decisions about a run that are made before it begins. The seed and the plan determine
//! what the world draws during the run. A plan without one of its operations or faults is thus
//! another run, which may break the same promise.

mod bytes;
mod mishap;
mod operations;

use std::sync::Arc;

use farleaf::{ModelCache, PageOptions};
use farleaf_index::LayerKind;
use farleaf_index::tree::node::ENTRY_COUNT_MAX;
use farleaf_node::retrain::RetrainPolicy;

pub use crate::profile::{Profile, UnknownProfile};
use bytes::draw_bytes;
pub use mishap::{Fault, FaultKind, FaultMoment};
use mishap::{
    draw_faults, draw_node_faults, draw_retraining_faults, draw_when, draw_worker_faults,
};
use operations::{
    Weights, all_records, draw_budgets, draw_client, draw_keys, some_records, visit_other_table,
};

use crate::fabric::Freedoms;
use crate::history::{Operation, TableShape};
use crate::node::{REGION_SIZE_BYTES, RETRAINER_TICK};
use crate::strings::StringMap;
use farleaf_base::random::Random;

/// Table of a run.
#[derive(Clone, Debug)]
pub struct TablePlan {
    /// Search layer of the table.
    pub layer: LayerKind,
    /// Slots of the table's leaves.
    pub slots: u64,
    /// Percentage of a leaf's slots that a load fills.
    pub fill_percent: u8,
    /// Records in the table at the start.
    pub loaded: Vec<(u64, u64)>,
    /// Whether all memory has been handed out once, so that freed memory is reused at once.
    pub is_memory_reused: bool,
    /// Policy by which the node retrains; `None`: never.
    pub retraining: Option<RetrainPolicy>,
    /// Maximal number of entries of the inner nodes of its tree, if it has one.
    pub entry_count_max: u32,
    /// Leaves of each sub-model, if the node trains them.
    pub leaves_per_sub_model: u64,
    /// Options of its pages, if it is a table of byte strings.
    pub pages: Option<PageOptions>,
}

/// One client: concurrent lanes of sequential operations, on one session.
#[derive(Clone, Debug)]
pub struct ClientPlan {
    /// Operations of each lane.
    pub lanes: Vec<Vec<Operation>>,
    /// Metadata budget of the client's session in bytes, if there is one.
    pub metadata_budget_bytes: Option<u64>,
    /// Links that a lookup may follow before it rereads a cache of the tree, if set.
    pub link_count_max: Option<u32>,
    /// Models that it caches, if the node trains them.
    pub model_cache: ModelCache,
    /// Whether the client asks the node after a wrong model without following a link first.
    pub does_not_speculate: bool,
    /// Index of the client's compute node. Writers of one compute node wait for each other without
    /// verbs and hand leaves over, if the table's layer is `sherman`. They share nothing else, and
    /// each may die alone.
    pub compute_node: usize,
}

/// Maximal number of compute nodes of a run: each client may have one of its own.
pub const COMPUTE_NODE_COUNT_MAX: usize = 8;

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of the world's random numbers.
    pub seed: u64,
    /// Degrees of the fabric's freedoms.
    pub freedoms: Freedoms,
    /// Memory nodes of the pool, including the main node.
    pub node_count: u8,
    /// Table with which the run begins.
    pub table: TablePlan,
    /// Plans of the clients.
    pub clients: Vec<ClientPlan>,
    /// Faults of the run.
    pub faults: Vec<Fault>,
    /// Meaning of the numbers of keys and values, if the tables are of byte strings.
    pub strings: Option<Arc<StringMap>>,
}

impl ClientPlan {
    /// Returns the shapes of the tables that the client creates.
    fn shapes(&mut self) -> impl Iterator<Item = &mut TableShape> {
        let operations = self.lanes.iter_mut().flatten();
        operations.filter_map(|operation| match operation {
            Operation::Create(shape) => Some(shape),
            _ => None,
        })
    }
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn draw(seed: u64, profile: Profile) -> Self {
        let mut random = Random::new(seed);
        let freedoms = Freedoms::draw(&mut random);
        let keys = draw_keys(&mut random, profile);
        let mut weights = Weights::draw(&mut random);
        let mut table = draw_table(&mut random, &keys);
        if random.chance(600) {
            weights = weights.growing();
            table.fill_percent = 100;
        }
        if profile == Profile::Compaction {
            weights = weights.shrinking();
            if random.chance(600) {
                weights = weights.growing();
            }
            table.loaded = all_records(&keys, &mut (1 << 32));
        }
        if profile == Profile::Retraining {
            weights = weights.growing();
        }
        if matches!(profile, Profile::Retraining | Profile::Compaction) {
            draw_retraining(&mut random, &mut table);
        }
        let client_count = random.between(1, 5);
        let mut next_value = 0;
        let mut clients: Vec<ClientPlan> = (0..client_count)
            .map(|_| {
                draw_client(
                    &mut random,
                    &keys,
                    weights,
                    lane_lengths(profile),
                    &mut next_value,
                )
            })
            .collect();
        if table.loaded.is_empty() && random.chance(400) {
            let records = some_records(&mut random, &keys, &mut next_value);
            clients[0].lanes[0].insert(0, Operation::Load(records));
        }
        if random.chance(300) {
            table.is_memory_reused |= random.chance(500);
            for lane in clients.iter_mut().flat_map(|client| &mut client.lanes) {
                visit_other_table(&mut random, lane, &keys, &mut next_value);
            }
        }
        if table.layer == LayerKind::Learned && random.chance(400) {
            draw_budgets(&mut random, &mut clients);
        }
        if profile == Profile::Calls {
            draw_calls(seed, &mut table, &mut clients);
        }
        if profile == Profile::Xstore {
            draw_models(seed, &mut table, &mut clients);
        }
        if matches!(profile, Profile::Trees | Profile::Compaction) {
            draw_tree(seed, &mut table, &mut clients);
        }
        let strings = (profile == Profile::Bytes)
            .then(|| draw_bytes(seed, keys.len(), &mut table, &mut clients));
        let mut faults = draw_profile_faults(&mut random, profile, clients.len());
        let (node_count, of_nodes) = draw_nodes(seed, profile, table.layer, clients.len());
        faults.extend(of_nodes);
        Self {
            seed: random.bits(),
            freedoms,
            node_count,
            table,
            clients,
            faults,
            strings,
        }
    }

    /// Returns all keys that any operation touches, ascending.
    pub fn keys(&self) -> Vec<u64> {
        let operations = self
            .clients
            .iter()
            .flat_map(|client| &client.lanes)
            .flatten();
        let mut keys: Vec<u64> = self.table.loaded.iter().map(|(key, _)| *key).collect();
        for operation in operations {
            match operation.on_table() {
                Operation::Get(key)
                | Operation::Put(key, _)
                | Operation::Insert(key, _)
                | Operation::Update(key, _)
                | Operation::Delete(key)
                | Operation::CompareSwap(key, _) => keys.push(*key),
                Operation::MultiGet(read) => keys.extend(read),
                Operation::Load(records) => keys.extend(records.iter().map(|(key, _)| key)),
                Operation::Scan(..)
                | Operation::ScanReverse(..)
                | Operation::DeleteRange(..)
                | Operation::Create(_)
                | Operation::Drop
                | Operation::Open
                | Operation::List
                | Operation::Other(_) => {}
            }
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns the size of each node's memory: enough for every table that a run creates.
    pub fn memory_size_bytes(&self) -> u64 {
        match self.strings {
            None => REGION_SIZE_BYTES,
            // Pieces of each size have chunks of their own.
            Some(_) => 3 * REGION_SIZE_BYTES,
        }
    }

    /// Returns whether sessions have windows for replies (FABRIC-10), as in half of the runs with
    /// calls.
    pub fn lends_windows(&self) -> bool {
        self.has_calls() && self.seed.count_ones() % 2 == 1
    }

    /// Returns whether the node executes operations of some table.
    pub fn has_calls(&self) -> bool {
        let operations = self.clients.iter().flat_map(|client| &client.lanes);
        let mut operations = operations.flatten();
        let is_remote = |operation: &Operation| match operation {
            Operation::Create(shape) => is_called(shape.layer),
            _ => false,
        };
        is_called(self.table.layer) || operations.any(is_remote)
    }

    /// Returns the number of operations.
    pub fn operation_count(&self) -> usize {
        let lanes = self.clients.iter().flat_map(|client| &client.lanes);
        lanes.map(Vec::len).sum()
    }
}

/// Returns whether the node executes operations of tables with this layer.
fn is_called(layer: LayerKind) -> bool {
    !layer.has_leaves() || layer.has_node_writes()
}

/// Returns the numbers of operations of a client's lanes.
fn lane_lengths(profile: Profile) -> [usize; 3] {
    match profile {
        Profile::Compaction => [10, 30, 60],
        _ => [3, 10, 30],
    }
}

/// Draws a policy that retrains the table continuously, in memory that is mostly reused at once.
fn draw_retraining(random: &mut Random, table: &mut TablePlan) {
    table.layer = *random.choose(&[LayerKind::Learned, LayerKind::Learned, LayerKind::Rolex]);
    table.is_memory_reused = random.chance(800);
    table.retraining = Some(RetrainPolicy {
        leaves_per_split: 1000,
        split_count_min: *random.choose(&[1, 1, 1, 4]),
        leaf_count_max: *random.choose(&[1, 4, 16, 1000]),
        look_tick_count: *random.choose(&[0, 0, 0, 1, 4, 50]),
        ..EAGER
    });
}

/// Draws the faults of a profile, which clients must survive.
fn draw_profile_faults(random: &mut Random, profile: Profile, client_count: usize) -> Vec<Fault> {
    match profile {
        Profile::Calm => Vec::new(),
        Profile::Crashes | Profile::Trees | Profile::Calls | Profile::Xstore | Profile::Bytes => {
            draw_faults(random, client_count)
        }
        Profile::Retraining | Profile::Compaction => {
            let mut faults = draw_faults(random, client_count);
            faults.extend(draw_retraining_faults(random, client_count));
            faults
        }
        Profile::NodeLoss => {
            let mut faults = draw_faults(random, client_count);
            faults.push(Fault {
                when: draw_when(random, 0),
                mishap: FaultKind::NodeLoss,
            });
            faults
        }
    }
}

/// Policy in the simulated node's time; it nearly always considers tables idle, so that there is
/// more to do.
const EAGER: RetrainPolicy = RetrainPolicy {
    rest_leaves_per_change: 1,
    tick_ns: RETRAINER_TICK,
    ..RetrainPolicy::DEFAULT
};

/// Stream of the random numbers for nodes: separate, so that the other decisions of a seed do not
/// depend on them.
const OF_NODES: u64 = 0x6e6f_6465_735f_6f66;

/// Stream of the random numbers for trees.
const OF_TREES: u64 = 0x6f66_5f74_7265_6573;

/// Gives the tables trees of small nodes, and the clients short-lived caches of them.
fn draw_tree(seed: u64, table: &mut TablePlan, clients: &mut [ClientPlan]) {
    const TREES: [LayerKind; 3] = [LayerKind::RfTree, LayerKind::Fg, LayerKind::Sherman];
    const CREATED: [LayerKind; 5] = [
        LayerKind::Learned,
        LayerKind::Rolex,
        LayerKind::RfTree,
        LayerKind::Fg,
        LayerKind::Sherman,
    ];
    let mut random = Random::new(seed ^ OF_TREES);
    table.layer = *random.choose(&TREES);
    table.entry_count_max = *random.choose(&[3, 3, 4, 6, 61]);
    // A session's budget is for all its tables.
    let has_budgets = table.layer == LayerKind::Sherman && random.chance(600);
    for client in &mut *clients {
        client.link_count_max = Some(*random.choose(&[0, 0, 1, 3]));
        let bytes = *random.choose(&[1024, 1800, 5000, 100_000]);
        client.metadata_budget_bytes = has_budgets.then_some(bytes);
        for shape in client.shapes() {
            shape.layer = if has_budgets {
                LayerKind::Sherman
            } else {
                *random.choose(&CREATED)
            };
        }
    }
    let compute_node_count = *random.choose(&[1, 1, 2, COMPUTE_NODE_COUNT_MAX]);
    for (number, client) in clients.iter_mut().enumerate() {
        client.compute_node = number % compute_node_count;
    }
    // Drawn last, so that the other decisions of a seed do not change.
    if table.layer == LayerKind::Fg && random.chance(500) {
        table.layer = LayerKind::Cell;
    }
}

/// Stream of the random numbers for calls.
const OF_CALLS: u64 = 0x6361_6c6c_735f_6f66;

/// Lets the node hold the table, and second tables.
fn draw_calls(seed: u64, table: &mut TablePlan, clients: &mut [ClientPlan]) {
    let mut random = Random::new(seed ^ OF_CALLS);
    for client in &mut *clients {
        client.metadata_budget_bytes = None;
    }
    hold_tables(&mut random, table, clients, 700);
}

/// Lets the node hold the table, and this many second tables of 1000.
fn hold_tables(
    random: &mut Random,
    table: &mut TablePlan,
    clients: &mut [ClientPlan],
    per_mille: u64,
) {
    table.layer = LayerKind::Rpc;
    for shape in clients.iter_mut().flat_map(ClientPlan::shapes) {
        if random.chance(per_mille) {
            shape.layer = LayerKind::Rpc;
        }
    }
}

/// Stream of the random numbers for models.
const OF_MODELS: u64 = 0x6f66_5f6d_6f64_656c;

/// Lets the node change the leaves of the table, and of second tables.
fn draw_models(seed: u64, table: &mut TablePlan, clients: &mut [ClientPlan]) {
    let mut random = Random::new(seed ^ OF_MODELS);
    table.layer = LayerKind::Xstore;
    table.leaves_per_sub_model = *random.choose(&[1, 1, 2, 3, 8]);
    for client in &mut *clients {
        client.metadata_budget_bytes = None;
        client.model_cache = *random.choose(&ModelCache::ALL);
        client.does_not_speculate = random.chance(300);
        for shape in client.shapes() {
            shape.layer = *random.choose(&[
                LayerKind::Xstore,
                LayerKind::Xstore,
                LayerKind::Rpc,
                LayerKind::Learned,
            ]);
        }
    }
}

/// Draws the number of nodes, and the faults of nodes and of their own sessions.
fn draw_nodes(
    seed: u64,
    profile: Profile,
    layer: LayerKind,
    client_count: usize,
) -> (u8, Vec<Fault>) {
    let mut random = Random::new(seed ^ OF_NODES);
    let node_count = draw_node_count(&mut random, profile);
    let is_drained = match profile {
        Profile::Retraining => layer == LayerKind::Learned,
        Profile::Compaction => true,
        _ => false,
    };
    let mut faults = draw_node_faults(&mut random, node_count, client_count, is_drained);
    if profile == Profile::Xstore {
        faults.extend(draw_worker_faults(&mut random));
    }
    (node_count, faults)
}

/// Draws the number of nodes: half of the pools have several in profiles with faults of nodes.
fn draw_node_count(random: &mut Random, profile: Profile) -> u8 {
    match profile {
        Profile::Crashes
        | Profile::Retraining
        | Profile::Trees
        | Profile::Compaction
        | Profile::Xstore
        | Profile::Bytes => *random.choose(&[1, 1, 2, 3]),
        Profile::Calm | Profile::NodeLoss | Profile::Calls => 1,
    }
}

fn draw_table(random: &mut Random, keys: &[u64]) -> TablePlan {
    let mut value = 1 << 32;
    let loaded = match random.below(3) {
        0 => Vec::new(),
        _ => some_records(random, keys, &mut value),
    };
    TablePlan {
        layer: *random.choose(&[LayerKind::Learned, LayerKind::Learned, LayerKind::Rolex]),
        slots: *random.choose(&[8, 8, 12, 16]),
        fill_percent: *random.choose(&[50, 75, 100]),
        loaded,
        is_memory_reused: random.chance(500),
        entry_count_max: ENTRY_COUNT_MAX as u32,
        leaves_per_sub_model: 1,
        pages: None,
        retraining: random.chance(600).then(|| RetrainPolicy {
            leaves_per_split: *random.choose(&[1, 8, 1000]),
            split_count_min: random.between(1, 3),
            leaf_count_max: *random.choose(&[1, 4, 1000]),
            joined_leaf_count: *random.choose(&[0, 2, 1000]),
            look_tick_count: *random.choose(&[0, 1, 4]),
            ..EAGER
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a seed determines a plan, and plans differ.
    #[test]
    fn a_seed_is_a_plan() {
        let text = |seed| format!("{:?}", Plan::draw(seed, Profile::Crashes));
        assert_eq!(text(5), text(5));
        assert_ne!(text(5), text(6));
    }

    /// Promise: every kind of operation and of fault is drawn by some seed, and switched off by
    /// others.
    #[test]
    fn plans_have_everything_between_them() {
        let texts: Vec<String> = (0..200)
            .map(|seed| format!("{:?}", Plan::draw(seed, Profile::Crashes)))
            .collect();
        let words = [
            "Get(",
            "MultiGet(",
            "Put(",
            "Insert(",
            "Update(",
            "Delete(",
            "CompareSwap(",
            "Scan(",
            "Load(",
            "Death",
            "Pause",
            "Zombie",
            "Break",
            "AgentPause",
            "Cancel",
            "Create(",
            "Drop",
            "Open",
            "List",
            "Other(",
            "Other(Load(",
            "Rolex",
            "Learned",
            "metadata_budget_bytes: Some(",
            "node_count: 1",
            "node_count: 2",
            "node_count: 3",
            "MemberLoss",
        ];
        for word in words {
            let count = texts.iter().filter(|text| text.contains(word)).count();
            assert!(count > 0, "no seed draws {word}");
            assert!(count < texts.len(), "every seed draws {word}");
        }
    }

    /// Promise: plans of models include faults of the node's own sessions, and of nodes that have
    /// leaves of tables that the main node trains.
    #[test]
    fn plans_of_models_have_nodes_and_workers_that_fail() {
        let texts: Vec<String> = (0..200)
            .map(|seed| format!("{:?}", Plan::draw(seed, Profile::Xstore)))
            .collect();
        for word in ["WorkerBreak", "DuringWorker", "MemberLoss", "node_count: 3"] {
            let count = texts.iter().filter(|text| text.contains(word)).count();
            assert!((1..texts.len()).contains(&count), "{word}: {count}");
        }
    }

    /// Promise: every property of tables of byte strings is drawn by some seed.
    #[test]
    fn plans_of_byte_strings_have_everything_between_them() {
        let texts: Vec<String> = (0..200)
            .map(|seed| format!("{:?}", Plan::draw(seed, Profile::Bytes)))
            .collect();
        let words = [
            "ScanReverse(",
            "DeleteRange(",
            "Other(DeleteRange(",
            "page_size_bytes: 2048, inline_value_size_bytes: 0",
            "page_size_bytes: 512",
            "is_memory_reused: true",
            "node_count: 3",
        ];
        for word in words {
            let count = texts.iter().filter(|text| text.contains(word)).count();
            assert!((1..texts.len()).contains(&count), "{word}: {count}");
        }
    }

    /// Promise: values are unique over all tables; the checkers depend on it.
    #[test]
    fn no_two_writes_write_the_same_value() {
        let mut other_count = 0;
        for seed in 0..200 {
            let plan = Plan::draw(seed, Profile::Calm);
            let mut values: Vec<u64> = plan.table.loaded.iter().map(|(_, value)| *value).collect();
            for operation in plan
                .clients
                .iter()
                .flat_map(|client| &client.lanes)
                .flatten()
            {
                other_count += usize::from(matches!(operation, Operation::Other(_)));
                match operation.on_table() {
                    Operation::Put(_, value)
                    | Operation::Insert(_, value)
                    | Operation::Update(_, value)
                    | Operation::CompareSwap(_, Some(value)) => values.push(*value),
                    Operation::Load(records) => {
                        values.extend(records.iter().map(|(_, value)| value));
                    }
                    _ => {}
                }
            }
            let count = values.len();
            values.sort_unstable();
            values.dedup();
            assert_eq!(values.len(), count, "seed {seed}");
        }
        assert!(other_count > 0, "some are on the table that comes and goes");
    }
}
