//! Memory nodes with loaded tables, created once and used for many experiments.
//!
//! The load is the real bulk load, while virtual time stands still. Each experiment begins with a
//! copy of the memory, so that none sees what another wrote.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::mpsc::channel;

use farleaf_base::{NodeId, RemoteAddr, SequenceNumber, TableId};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::IndexError;
use farleaf_index::load::{LoadPlan, bulk_load, create_table, finish_root};
use farleaf_leaf::words::{LeafAccess, LeafGeometry};
use farleaf_node::sessions::Sessions;
use farleaf_pool::catalog::{CatalogEntry, EntryState, TableKind, TableRecord, live_word};
use farleaf_pool::layout::CHUNK_SIZE_BYTES;
use farleaf_pool::{NodeLayout, PoolLayout, Superblock};

use super::ExperimentError;
use super::keys::Keys;
use super::plan::ExperimentTablePlan;
use super::searched::{Searched, searched};
use crate::fabric::Freedoms;
use crate::fabric::SharedWorld;
use crate::fabric::endpoint::StillEndpoint;
use farleaf_base::random::Random;

/// Node memory besides records, in bytes: chunks that sessions lease, snapshots, and rounding.
const SPARE_BYTES: u64 = 12 << 20;
/// Node memory for the snapshots of many retrainings between two ticks, which wait for their grace
/// period.
const WAITING_SNAPSHOTS_BYTES: u64 = 64 << 20;
/// Upper bound of the chunks that one session leases at a time, in bytes.
const SPARE_BYTES_PER_SESSION: u64 = 384 << 10;
/// Upper bound of the chunks that one session leases for a tree's inner nodes, in bytes.
const INNER_BYTES_PER_SESSION: u64 = 128 << 10;
/// Bytes of inner nodes per leaf: an inner node of 1 KiB has at least a quarter of its 61 entries.
const INNER_BYTES_PER_LEAF: u64 = 1024 * 4 / 61 + 1;

/// Maximal number of client sessions of one memory node: its memory has 1023, and the node itself
/// needs one.
pub const SESSION_COUNT_MAX: usize = 1000;
/// Maximal number of memory nodes that an address can name.
const NODE_COUNT_MAX: usize = 256;

/// Table of one memory node.
#[derive(Clone, Debug)]
pub(super) struct Partition {
    pub(super) layout: PoolLayout,
    pub(super) searched: Searched,
}

/// Loaded tables.
#[derive(Clone, Debug)]
pub struct Image {
    pub(super) plan: ExperimentTablePlan,
    /// Each node's memory up to its last word that is not 0, and its total number of words.
    memory: Vec<Vec<u64>>,
    word_count: usize,
    /// Client threads for whose leases there is space.
    pub(super) thread_count: usize,
    pub(super) partitions: Vec<Partition>,
    /// Smallest key of each partition but the first.
    pub(super) bounds: Vec<u64>,
    pub(super) keys: Arc<Keys>,
}

/// Number of each node's only table.
pub(super) const TABLE: TableId = TableId(1);
/// Name of the table.
pub(super) const TABLE_NAME: &str = "modelled";

impl Image {
    /// Creates the tables on this many memory nodes, with sessions for this many threads. Takes
    /// about 0.3 us per record.
    ///
    /// # Errors
    /// The plan is invalid, or the load failed.
    pub fn load(
        plan: &ExperimentTablePlan,
        node_count: usize,
        thread_count: usize,
    ) -> Result<Self, ExperimentError> {
        check(plan, node_count, thread_count)?;
        let keys = Keys::generate(&plan.keys, plan.record_count, plan.insert_count, plan.seed)?;
        Self::load_keys(plan, Arc::new(keys), node_count, thread_count)
    }

    /// Creates the tables like [`load`](Self::load), with existing keys, which are those of the
    /// plan.
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn load_keys(
        plan: &ExperimentTablePlan,
        keys: Arc<Keys>,
        node_count: usize,
        thread_count: usize,
    ) -> Result<Self, ExperimentError> {
        check(plan, node_count, thread_count)?;
        let geometry =
            LeafGeometry::new(plan.slots).map_err(|_| ExperimentError::BadSlots(plan.slots))?;
        let size_bytes = memory_size_bytes(plan, geometry, node_count, thread_count);
        let memory_word_counts = vec![(size_bytes / 8) as usize; node_count];
        let world = SharedWorld::new(&memory_word_counts, Freedoms::CALM, Random::new(plan.seed));
        let loaded = keys.loaded();
        let mut partitions = Vec::with_capacity(node_count);
        let mut bounds = Vec::with_capacity(node_count);
        for index in 0..node_count {
            let part = part(loaded, index, node_count);
            if index > 0 {
                bounds.push(part.first().copied().unwrap_or(u64::MAX));
            }
            let node = NodeId(index as u8);
            partitions.push(load_node(&world, plan, geometry, node, size_bytes, part)?);
        }
        let mut memory = world.borrow_mut().take_memory();
        for words in &mut memory {
            let used = words.iter().rposition(|word| *word != 0);
            words.truncate(used.map_or(0, |last| last + 1));
            words.shrink_to_fit();
        }
        Ok(Self {
            plan: plan.clone(),
            memory,
            word_count: (size_bytes / 8) as usize,
            thread_count,
            partitions,
            bounds,
            keys,
        })
    }

    /// Returns the keys of one node's table.
    pub(super) fn part(&self, node: NodeId) -> &[u64] {
        let loaded = self.keys.loaded();
        part(loaded, node.0.into(), self.partitions.len())
    }

    /// Copies the nodes' memory. Parts that no table uses yet are not copied, and take no memory
    /// until they are written.
    pub(super) fn copy_memory(&self) -> Vec<Vec<u64>> {
        let copies = self.memory.iter().map(|used| {
            let mut words = vec![0; self.word_count];
            words[..used.len()].copy_from_slice(used);
            words
        });
        copies.collect()
    }

    /// Returns the keys of the tables.
    pub fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Returns the plan of the tables.
    pub fn plan(&self) -> &ExperimentTablePlan {
        &self.plan
    }

    /// Returns the number of leaves of all tables, as loaded.
    pub fn leaf_count(&self) -> u64 {
        let leaves = self.partitions.iter();
        leaves.map(|it| it.searched.leaf_count).sum()
    }

    /// Returns the bytes that a session on all tables holds to find leaves, before it has met any
    /// synonym. With a cache of inner nodes, it has met all of them.
    pub fn metadata_bytes(&self) -> u64 {
        let tables = self.partitions.iter();
        tables.map(|it| it.searched.metadata_bytes).sum()
    }

    /// Returns the number of models of all tables.
    pub fn model_count(&self) -> usize {
        let models = self.partitions.iter();
        models.map(|it| it.searched.model_count).sum()
    }
}

/// Returns the keys of one of `node_count` nodes' tables.
fn part(loaded: &[u64], index: usize, node_count: usize) -> &[u64] {
    let part_size = loaded.len().div_ceil(node_count).max(1);
    let from = (index * part_size).min(loaded.len());
    &loaded[from..(from + part_size).min(loaded.len())]
}

/// Refuses plans with which the load would fail.
fn check(
    plan: &ExperimentTablePlan,
    node_count: usize,
    thread_count: usize,
) -> Result<(), ExperimentError> {
    within("memory nodes", node_count, 1, NODE_COUNT_MAX)?;
    within("client threads", thread_count, 1, SESSION_COUNT_MAX)?;
    within("records", plan.record_count, node_count, 1 << 32)?;
    within("fill_percent", plan.fill_percent.into(), 25, 100)?;
    if (0.5..=1024.0).contains(&plan.epsilon_keys) {
        return Ok(());
    }
    Err(ExperimentError::BadEpsilon(plan.epsilon_keys))
}

/// Refuses a count that is not in `from` to `to`.
pub(super) fn within(
    what: &'static str,
    found: usize,
    from: usize,
    to: usize,
) -> Result<(), ExperimentError> {
    if (from..=to).contains(&found) {
        return Ok(());
    }
    Err(ExperimentError::OutOfRange {
        what,
        found: found as u64,
        from: from as u64,
        to: to as u64,
    })
}

/// Returns the size of the memory: all records at the load's fill, inserts into leaves that split
/// at half, and leftovers of retraining.
fn memory_size_bytes(
    plan: &ExperimentTablePlan,
    geometry: LeafGeometry,
    node_count: usize,
    thread_count: usize,
) -> u64 {
    let per_leaf = (plan.slots * u64::from(plan.fill_percent) / 100).max(1);
    let leaf_bytes = geometry.stride_words() as u64 * 8;
    let node_count = node_count as u64;
    let loaded = (plan.record_count as u64)
        .div_ceil(node_count)
        .div_ceil(per_leaf);
    // Each split by an insert creates one leaf; at worst all inserts go to one node.
    let splits =
        (plan.insert_count as u64).min(loaded * 2 + plan.insert_count as u64 * 3 / per_leaf);
    let sessions = thread_count as u64 * SPARE_BYTES_PER_SESSION;
    // Models, and the 2^8 entries of 8 bytes of each one's synonym leaf table. A smaller error
    // bound means more models; memory that is not written takes no space.
    let leaves_per_model = (plan.epsilon_keys / 2.0).max(1.0);
    let models = (loaded as f64 / leaves_per_model) as u64 * (256 * 8 + 64);
    // The sources of a retraining wait for their grace period; at worst all of them at once.
    let (moved, waiting) = match plan.insert_count {
        0 => (1, 0),
        _ => (2, WAITING_SNAPSHOTS_BYTES),
    };
    // Inner nodes, as empty as a load can leave them; each session leases space for new ones.
    let (tree, leases) = if plan.layer.has_tree() {
        let lease_bytes = thread_count as u64 * INNER_BYTES_PER_SESSION;
        ((loaded + splits) * INNER_BYTES_PER_LEAF, lease_bytes)
    } else {
        (models, 0)
    };
    // Rings of each session, and models trained by the node, of which there may be two generations
    // in areas of up to twice their size.
    let calls = if plan.layer.has_calls() {
        thread_count as u64 * CHUNK_SIZE_BYTES + (loaded + splits) * 8 * 6
    } else {
        0
    };
    let tables = (loaded * 9 / 8 + splits) * leaf_bytes + tree + leases + calls;
    (tables * moved + waiting + sessions + SPARE_BYTES).next_multiple_of(4096)
}

fn load_node(
    world: &SharedWorld,
    plan: &ExperimentTablePlan,
    geometry: LeafGeometry,
    node: NodeId,
    size_bytes: u64,
    keys: &[u64],
) -> Result<Partition, ExperimentError> {
    let superblock = Superblock::new(size_bytes, 1)?;
    let main_node = NodeLayout { node, superblock };
    let layout = PoolLayout::from(main_node);
    let still = StillEndpoint::new(world);
    let mut batch = Batch::new();
    batch.write(NodeLayout::superblock_addr(node), &superblock.encode());
    block_on(still.execute(&mut batch), || 0).map_err(IndexError::from)?;
    let (sender, _events) = channel();
    let mut sessions = Sessions::new(StillEndpoint::new(world), main_node, sender);
    let owner = sessions.open(0).map_err(ExperimentError::Session)?;
    let access = LeafAccess {
        endpoint: &still,
        layout: &layout,
        geometry,
        table: TABLE,
        owner,
    };
    let load = LoadPlan {
        kind: plan.layer,
        fill_percent: plan.fill_percent,
        epsilon_keys: plan.epsilon_keys,
        entry_count_max: 61,
    };
    let entry = make_table(&access, &load)?;
    if !plan.layer.has_leaves() {
        // The table's records belong to the node, which loads them when its first client opens the
        // table.
        sessions.close(owner);
        return Ok(Partition {
            layout,
            searched: Searched::default(),
        });
    }
    let records = keys.iter().map(|key| (*key, value_of(*key)));
    let broken = Cell::default();
    block_on(
        bulk_load(access, &entry, load, &broken, records, |_| ()),
        || 0,
    )?;
    let root = block_on(finish_root(&access, &entry, &broken), || 0).map_err(IndexError::from)?;
    let searched = searched(access, plan.layer, root)?;
    sessions.close(owner);
    Ok(Partition { layout, searched })
}

/// Creates an empty table and its catalog entry.
fn make_table(
    access: &LeafAccess<'_, StillEndpoint>,
    plan: &LoadPlan,
) -> Result<CatalogEntry, IndexError> {
    let table = block_on(create_table(access, plan), || 0)?;
    let record = TableRecord {
        id: TABLE,
        name: TABLE_NAME.to_owned(),
        kind: TableKind::Words {
            slots: access.geometry.slots(),
        },
        search_layer: plan.kind.number(),
        fill_percent: plan.fill_percent,
        epsilon_milli: (plan.epsilon_keys * 1000.0) as u32,
        first_leaf: table.first_leaf,
        part: None,
    };
    let place = access.layout.catalog_entry(0);
    let mut batch = Batch::new();
    batch.write(place.offset(1), &record.encode_body(table.root));
    batch.write_word(place, live_word(TABLE));
    block_on(access.endpoint.execute(&mut batch), || 0)?;
    let root = table.root;
    block_on(table.give_back(access, true), || 0)?;
    Ok(CatalogEntry {
        index: 0,
        state: EntryState::Live,
        record,
        dropped_at: SequenceNumber::default(),
        root,
        underfull_count: 0,
        pending_root: RemoteAddr::NULL,
    })
}

/// Returns the value with which a key is loaded.
pub(super) fn value_of(key: u64) -> u64 {
    key.rotate_left(17) ^ 0x5EED
}
