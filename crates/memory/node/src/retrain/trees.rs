//! Tables with a tree: when they are compacted (see `farleaf_index::retrain::compact`), and how the
//! old leaves and trees are reused.

use std::cell::Cell;
use std::collections::BTreeSet;

use farleaf_base::{BLOCK_SIZE_BYTES, NodeId, RemoteAddr};
use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::retrain::RetrainSummary;
use farleaf_index::retrain::compact::{
    Compacted, Compaction, CompactionGoal, CompactionLeases, compact,
};
use farleaf_index::tree::head::{Head, read_head};
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::members::MemberState;

use super::garbage::OldSynonymTables;
use super::look::{TableView, read_root};
use super::policy::ModelChanges;
use super::{Retrainer, statistics};
use crate::sweep::MemoryMaintainer;
use crate::wait_limit::WaitLimit;

/// Divisor of a table's leaves that may be compacted together: each compaction writes the whole
/// tree.
const TABLE_SHARE: u64 = 4;

impl<E: Endpoint> TableView<'_, E> {
    /// Returns chunks of leaves that the node owns.
    fn unsorted(&self, maintainer: &MemoryMaintainer<E>) -> Vec<ChunkIndex> {
        let is_own = |chunk: &ChunkEntry| {
            chunk.has_leaves(self.access.table) && chunk.owner == maintainer.owner
        };
        let chunks = self.chunks.iter();
        let own = chunks.filter(|(_, chunk)| is_own(chunk));
        own.map(|(index, _)| index).collect()
    }

    /// Returns chunks of leaves on draining nodes that are not leased.
    fn leaves_left(&self, maintainer: &MemoryMaintainer<E>) -> Vec<ChunkIndex> {
        let is_there = |index: &ChunkIndex, chunk: &ChunkEntry| {
            chunk.has_unleased_leaves(self.access.table) && is_left(maintainer, index.node())
        };
        let chunks = self.chunks.iter();
        let left = chunks.filter(|(index, chunk)| is_there(index, chunk));
        left.map(|(index, _)| index).collect()
    }
}

impl Retrainer {
    /// Compacts a table if deletes have made many of its leaves underfull, if some of it is on a
    /// draining node, or if another retrainer has left a compaction half done. Runs at the node's
    /// own checks, and after a session has died. Returns whether more is due.
    pub(super) async fn check_tree_table<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        entry: CatalogEntry,
        wait_limit: &WaitLimit<'_>,
        is_scan_due: bool,
        is_own_look: bool,
    ) -> Result<bool, IndexError> {
        if !is_scan_due && !is_own_look && !self.is_more_due.get() {
            return Ok(false);
        }
        let Some(table) = read_root(maintainer, entry.clone(), wait_limit).await? else {
            self.is_scan_due.set(is_scan_due || self.is_scan_due.get());
            return Ok(false);
        };
        let (mut stale, mut unsorted) = (Vec::new(), BTreeSet::new());
        if is_scan_due {
            unsorted = self.new_unsorted(maintainer, &table);
            stale = self
                .stale_leaves(
                    maintainer,
                    &table.access,
                    table.entry.record.first_leaf,
                    &table.chunks,
                )
                .await?;
        }
        self.collect_trees(maintainer, &table, Vec::new()).await?;
        let leaves_left = table.leaves_left(maintainer);
        free_unused(maintainer, &table, &leaves_left).await?;
        let head = read_head(&table.access, table.root).await?;
        let finishes_another = !unsorted.is_empty() || !stale.is_empty();
        let Some(wanted) = self.wanted(
            maintainer,
            &table,
            &head,
            !leaves_left.is_empty(),
            finishes_another,
        ) else {
            return Ok(false);
        };
        let started_at_ns = (self.clock)();
        let compacted = self.compact(maintainer, &table, &head, wanted, wait_limit);
        let is_next = is_own_look && !is_scan_due && !self.has_garbage();
        let is_left_over = is_next && !leaves_left.is_empty();
        let Some(summary) = self.summary_of(&table, compacted.await, is_left_over, &unsorted)?
        else {
            return Ok(false);
        };
        self.note_compaction(
            &table,
            &summary,
            (self.clock)().saturating_sub(started_at_ns),
        );
        if !unsorted.is_empty() {
            self.sort(maintainer, unsorted, wait_limit).await?;
        }
        let first_leaf = table.entry.record.first_leaf;
        let mut leaves = summary.retired;
        leaves.extend(stale);
        leaves.retain(|leaf| *leaf != first_leaf);
        if let Some(table) = read_root(maintainer, entry, wait_limit).await? {
            self.collect_trees(maintainer, &table, leaves).await?;
        } else {
            self.is_scan_due.set(true);
        }
        Ok(true)
    }

    /// Returns the result of a compaction that finished and did something; otherwise schedules the
    /// next step for the table. Nothing is dropped that another compaction could do: it is found
    /// again. `is_left_over`: leaves on a draining node are neither in use nor free.
    fn summary_of<E>(
        &self,
        table: &TableView<'_, E>,
        compacted: Result<Option<Compacted>, IndexError>,
        is_left_over: bool,
        unsorted: &BTreeSet<ChunkIndex>,
    ) -> Result<Option<RetrainSummary>, IndexError> {
        let id = table.access.table;
        match compacted {
            Ok(Some(Compacted::Done(summary))) => {
                self.retry_delays.borrow_mut().forget_delay(id);
                return Ok(Some(summary));
            }
            Ok(other) => {
                match other {
                    Some(Compacted::Nothing { was_hindered: true }) => {
                        let look_tick_count = self.policy.look_tick_count;
                        self.retry_delays.borrow_mut().delay(id, look_tick_count);
                    }
                    Some(Compacted::Nothing { .. }) => {
                        self.note_fruitless(table);
                    }
                    // It waits for a lock holder; the next attempt finishes what it has done.
                    _ => self.delay_table(id),
                }
                if is_left_over {
                    // Retired leaves are searched for.
                    self.is_scan_due.set(true);
                }
            }
            Err(error) if error.is_full() => self.delay_until_space(id, &error),
            // While some of it is lost, the table stays unchanged.
            Err(error) if error.lost_node().is_some() => {
                self.unsorted.borrow_mut().extend(unsorted);
                if self.note_fruitless(table) {
                    // Leaves that were retired before are searched for, once.
                    self.is_scan_due.set(true);
                }
            }
            Err(error) => {
                if error.fabric_failure().is_none() {
                    // In a corrupted table another attempt would find the same.
                    self.unsorted.borrow_mut().extend(unsorted);
                }
                return Err(error);
            }
        }
        Ok(None)
    }

    /// Sorts chunks in which no sweep could tell what is in use; the new tree can.
    async fn sort<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        unsorted: BTreeSet<ChunkIndex>,
        wait_limit: &WaitLimit<'_>,
    ) -> Result<(), IndexError> {
        // Whatever the result of this one, the next sweep needs no newer tree, or a newer tree
        // would not help it.
        self.unsorted.borrow_mut().extend(&unsorted);
        self.wants_sweep.set(true);
        let swept = maintainer.sweep_until(wait_limit.stop()).await?;
        if swept.chunk_count > 0 {
            self.is_scan_due.set(true);
        }
        let allocator = maintainer.allocator();
        let chunks = allocator.entries().await?;
        let is_own = |chunk: &ChunkIndex| {
            let entry = chunks.get(*chunk);
            entry.is_some_and(|entry| entry.owner == maintainer.owner)
        };
        // What it skipped elsewhere is retried in other ways.
        let is_wanted = swept.given_up_count > 0 && unsorted.iter().any(is_own);
        self.wants_sweep.set(is_wanted);
        Ok(())
    }

    /// Returns the work for a compaction, if it justifies reading all leaves.
    fn wanted<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        table: &TableView<'_, E>,
        head: &Head,
        has_leaves_left: bool,
        finishes_another: bool,
    ) -> Option<CompactionGoal> {
        let id = table.access.table;
        let current = Some(ChunkPurpose::Inner {
            generation: head.generation,
        });
        let mut own = table.chunks.iter().filter(|(_, chunk)| chunk.table == id);
        let moves_tree =
            own.any(|(index, chunk)| chunk.purpose == current && is_left(maintainer, index.node()));
        let counted = ModelChanges {
            splits: 0,
            underfull: table.entry.underfull_count,
        };
        let tried = self.empty_compactions.borrow().get(&id).copied();
        let is_due = !self.retry_delays.borrow().is_delayed(id)
            && self.policy.is_due(head.leaf_count, counted, false)
            && tried.is_none_or(|(root, count)| {
                let more = ModelChanges {
                    splits: 0,
                    underfull: table.entry.underfull_count.saturating_sub(count),
                };
                root != table.root || self.policy.is_due(head.leaf_count, more, false)
            });
        let is_tried = tried.is_some_and(|(root, _)| root == table.root);
        let has_leaves_left = has_leaves_left && !(is_tried && self.has_garbage());
        if !(is_due || moves_tree || has_leaves_left || finishes_another) {
            return None;
        }
        Some(CompactionGoal {
            // What another compaction has left is published first.
            step_count_max: if finishes_another {
                0
            } else {
                let share = head.leaf_count / TABLE_SHARE;
                self.policy.leaf_count_max.max(share)
            },
            finishes_another,
            moves_tree,
        })
    }

    /// Compacts a table. `None` if it was interrupted while it waited, or because the node stops.
    async fn compact<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        table: &TableView<'_, E>,
        head: &Head,
        wanted: CompactionGoal,
        wait_limit: &WaitLimit<'_>,
    ) -> Result<Option<Compacted>, IndexError> {
        let (broken, leased) = (Cell::new(false), CompactionLeases::default());
        let record = &table.entry.record;
        let slot_count = table.access.geometry.slot_count();
        let work = Compaction {
            access: table.access,
            entry: &table.entry,
            head,
            root: table.root,
            merged_count_max: slot_count * usize::from(record.fill_percent) / 100,
            broken: &broken,
        };
        let may_go_on = || !wait_limit.is_over();
        let compacted = Box::pin(compact(
            &work,
            &leased,
            wanted,
            |node| is_left(maintainer, node),
            may_go_on,
        ));
        let compacted = wait_limit.wait(compacted).await;
        // When it was interrupted, it was idle: it held only leases.
        leased.give_back(&table.access).await?;
        compacted.transpose()
    }

    /// Records that a compaction found nothing to merge: the next one waits for as many new
    /// underfull leaves as make a table due. Returns whether this is the first time under this
    /// root.
    fn note_fruitless<E>(&self, table: &TableView<'_, E>) -> bool {
        let tried = (table.root, table.entry.underfull_count);
        let mut empty_compactions = self.empty_compactions.borrow_mut();
        let before = empty_compactions.insert(table.access.table, tried);
        before.is_none_or(|(root, _)| root != table.root)
    }

    /// Returns chunks of leaves that the node has taken over from dead sessions but could not sort,
    /// because the search path is lost or corrupted. Omits chunks that were already retried with a
    /// new tree.
    fn new_unsorted<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        table: &TableView<'_, E>,
    ) -> BTreeSet<ChunkIndex> {
        let mut known = self.unsorted.borrow_mut();
        known.retain(|chunk| {
            table
                .chunks
                .get(*chunk)
                .is_some_and(|it| it.owner == maintainer.owner)
        });
        let unsorted = table.unsorted(maintainer).into_iter();
        unsorted.filter(|chunk| !known.contains(chunk)).collect()
    }

    fn note_compaction<E>(&self, table: &TableView<'_, E>, summary: &RetrainSummary, time_ns: u64) {
        if self.retry_delays.borrow_mut().has_space(table.access.table) {
            tracing::info!(table = %table.access.table, "space to compact is available again");
        }
        self.count(|tally| statistics::add(tally, summary, time_ns));
        tracing::debug!(
            table = %table.access.table,
            moved = summary.moved_count,
            made = summary.made_count,
            time_ns,
            "compacted"
        );
    }

    /// Makes garbage of these leaves, and of chunks of older trees.
    async fn collect_trees<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        table: &TableView<'_, E>,
        leaves: Vec<RemoteAddr>,
    ) -> Result<(), IndexError> {
        let id = table.access.table;
        let known = self.known(id);
        let is_garbage = |index: &ChunkIndex, chunk: &ChunkEntry| {
            let is_older = match chunk.purpose {
                Some(
                    ChunkPurpose::Inner { generation } | ChunkPurpose::Snapshot { generation },
                ) => generation != table.root.spare(),
                _ => false,
            };
            is_older && chunk.table == id && chunk.owner.is_free() && !known.contains(index)
        };
        let chunks = table.chunks.iter();
        let old = chunks.filter(|(index, chunk)| is_garbage(index, chunk));
        let old: BTreeSet<ChunkIndex> = old.map(|(index, _)| index).collect();
        let leaf_size_bytes = table.access.geometry.stride_blocks() * BLOCK_SIZE_BYTES;
        let (old, late) = (old.into_iter().collect(), OldSynonymTables::default());
        self.discard(maintainer, id, leaf_size_bytes, leaves, old, late)
            .await
    }
}

/// Frees chunks of which all leaves are free: they were leased and not used, or their leaves are
/// free again.
async fn free_unused<E: Endpoint>(
    maintainer: &MemoryMaintainer<E>,
    table: &TableView<'_, E>,
    chunks: &[ChunkIndex],
) -> Result<(), IndexError> {
    let leaf_count = table.access.geometry.chunk_leaf_count();
    for chunk in chunks {
        let entry = table.chunks.get(*chunk);
        if entry.is_some_and(|entry| entry.free.count() == leaf_count) {
            let leaf_size_bytes = table.access.geometry.stride_blocks() * BLOCK_SIZE_BYTES;
            maintainer
                .free_leaves(*chunk, table.access.table, leaf_size_bytes, &[])
                .await?;
        }
    }
    Ok(())
}

/// Returns whether a node is draining.
fn is_left<E>(maintainer: &MemoryMaintainer<E>, node: NodeId) -> bool {
    maintainer.layout.members().state(node) == Some(MemberState::Draining)
}
