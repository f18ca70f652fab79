//! Load of a table with a tree: adjacent leaves in chunks that splits use later, on all nodes in
//! turn, then the tree over them. The rules are those of [`load`](super).

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::words::{LeafAccess, LeafBuffer, LeafError, LeaseShape};
use farleaf_pool::catalog::CatalogEntry;

use super::cut::{FillTarget, LeafSink, cut_into};
use super::{LoadJob, LoadSummary, commit, finish_root};
use crate::LoadError;
use crate::tree::Pieces;
use crate::tree::build::{NewTree, TreePlan, build};
use crate::tree::head::{compacted_addr, read_head};
use crate::tree::node::ChildEntry;

/// Number of leaves kept before they are written: a chunk of the smallest, and one more.
const PENDING_LEAF_COUNT: usize = 342;

/// Leaves of a load in progress.
struct Leaves<'a, E> {
    access: &'a LeafAccess<'a, E>,
    pieces: &'a mut Pieces,
    /// All leaves, in order.
    entries: Vec<ChildEntry>,
    /// Record counts of the last leaves, which are not written yet.
    counts: Vec<usize>,
    records: Vec<(u64, u64)>,
    batch: Batch,
}

/// Loads the records under a tree, and releases the load's chunks: to the table, if it was
/// committed.
///
/// # Errors
/// The errors of [`super::bulk_load`].
pub(super) async fn load<E: Endpoint>(
    job: &LoadJob<'_, E>,
    records: impl Iterator<Item = (u64, u64)>,
    progress: &mut impl FnMut(u64),
) -> Result<LoadSummary, LoadError> {
    let access = job.access;
    let mut pieces = Pieces::new(LeaseShape::leaves(access.geometry), false);
    let mut tree = None;
    let loaded = load_into(job, &mut pieces, &mut tree, records, progress).await;
    if matches!(&loaded, Err(error) if error.is_outcome_unknown()) {
        // The load may have committed; the sweep determines this when the session has ended.
        return loaded;
    }
    let committed = matches!(loaded, Ok(summary) if summary.record_count > 0);
    pieces.release(access, committed).await?;
    if let Some(tree) = tree {
        tree.give_back(access, committed).await?;
    }
    loaded
}

async fn load_into<E: Endpoint>(
    job: &LoadJob<'_, E>,
    pieces: &mut Pieces,
    tree: &mut Option<NewTree>,
    records: impl Iterator<Item = (u64, u64)>,
    progress: &mut impl FnMut(u64),
) -> Result<LoadSummary, LoadError> {
    let (access, plan, broken) = (job.access, job.plan, job.broken);
    let fill = FillTarget::new(access.geometry.slot_count(), plan.fill_percent);
    let mut leaves = Leaves::new(access, pieces);
    let record_count = cut_into(fill, records, &mut leaves, progress).await?;
    if record_count == 0 {
        return Ok(LoadSummary::default());
    }
    let entries = leaves.finish().await?;
    // The session may have opened the table long ago, and another tree may be in force now. That
    // stays readable while this operation is in progress (LEAF-7).
    let root = finish_root(access, job.entry, broken).await?;
    if root.is_null() {
        let table = access.table;
        return Err(LeafError::TableDropped { table }.into());
    }
    let entry = &CatalogEntry {
        root,
        ..job.entry.clone()
    };
    let before = read_head(access, root).await?;
    let over = TreePlan {
        generation: job.generation,
        record_count,
        fill_percent: plan.fill_percent,
        entry_count_max: before.entry_count_max,
        takes_reserve: false,
        // Sessions may still use the trees that a compaction has replaced.
        is_compacted: before.is_compacted,
    };
    let built = build(access, over, &entries).await?;
    let root = built.root;
    *tree = Some(built);
    commit::commit(
        access,
        entry,
        entries[0].child,
        root,
        Some(compacted_addr(root)),
        broken,
    )
    .await?;
    progress(record_count);
    Ok(LoadSummary {
        record_count,
        leaf_count: entries.len() as u64,
        model_count: 0,
    })
}

impl<'a, E: Endpoint> Leaves<'a, E> {
    fn new(access: &'a LeafAccess<'a, E>, pieces: &'a mut Pieces) -> Self {
        Self {
            access,
            pieces,
            entries: Vec::new(),
            counts: Vec::new(),
            records: Vec::new(),
            batch: Batch::new(),
        }
    }

    /// Writes the pending leaves, except for the last `keep`, whose ends are not known yet.
    async fn write(&mut self, keep: usize) -> Result<(), LoadError> {
        let geometry = self.access.geometry;
        let first = self.entries.len() - self.counts.len();
        let written = self.counts.len() - keep;
        let mut records = self.records.iter();
        let (mut words, mut start) = (Vec::new(), self.entries[first].child);
        for (index, count) in self.counts[..written].iter().enumerate() {
            let entry = self.entries[first + index];
            let next = self.entries.get(first + index + 1);
            let high = next.map_or(u64::MAX, |next| next.low - 1);
            let link = next.map_or(RemoteAddr::NULL, |next| next.child);
            let mut leaf = LeafBuffer::new(geometry, entry.low, high, link);
            for (slot, (key, value)) in records.by_ref().take(*count).enumerate() {
                leaf.set_record(slot, *key, *value);
            }
            leaf.seal(entry.child, self.access.table);
            let (leaf_words, size) = leaf.leaf_words();
            words.extend_from_slice(&leaf_words[..size]);
            words.resize(words.len().next_multiple_of(geometry.stride_words()), 0);
            let is_beside = entry.child.offset_blocks(geometry.stride_blocks()) == link;
            if !is_beside || index + 1 == written {
                self.batch.clear();
                self.batch.write(start.word_at(0), &words);
                self.access.endpoint.execute(&mut self.batch).await?;
                words.clear();
                start = link;
            }
        }
        let pending_count: usize = self.counts[written..].iter().sum();
        self.records.drain(..self.records.len() - pending_count);
        self.counts.drain(..written);
        Ok(())
    }

    /// Writes the last leaves, and returns all leaves in order.
    async fn finish(mut self) -> Result<Vec<ChildEntry>, LoadError> {
        if !self.counts.is_empty() {
            self.write(0).await?;
        }
        let cost = self.batch.take_cost();
        let counters = self.access.endpoint.counters();
        counters.record(OperationKind::BulkLoad, &cost);
        Ok(self.entries)
    }
}

impl<E: Endpoint> LeafSink for Leaves<'_, E> {
    fn records_mut(&mut self) -> &mut Vec<(u64, u64)> {
        &mut self.records
    }

    async fn add_leaf(&mut self, count: usize) -> Result<(), LoadError> {
        let first = self.records.len() - count;
        let low = if self.entries.is_empty() {
            0
        } else {
            self.records[first].0
        };
        let (child, _) = self.pieces.take(self.access, 1).await?;
        self.entries.push(ChildEntry { low, child });
        self.counts.push(count);
        if self.counts.len() >= PENDING_LEAF_COUNT {
            self.write(1).await?;
        }
        Ok(())
    }
}
