//! Tables with a tree: when they are compacted (K1 to K6 of `farleaf_index::retrain::compact`), and
//! what becomes of the leaves and trees that are left behind (T2 to T4).

use std::cell::Cell;
use std::collections::BTreeSet;

use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::retrain::RetrainSummary;
use farleaf_index::retrain::compact::{Compacted, Compaction, Leased, Wanted, compact};
use farleaf_index::tree::head::{Head, read_head};
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::members::MemberState;
use farleaf_types::{BLOCK_SIZE_BYTES, NodeId, RemoteAddr};

use super::garbage::Late;
use super::look::{Rooted, look_at_root};
use super::policy::Counted;
use super::{Retrainer, accounts};
use crate::patience::Patience;
use crate::sweep::Keeper;

/// One in so many of a table's leaves may be compacted together: each compaction writes the whole
/// tree.
const TABLE_SHARE: u64 = 4;

impl<E: Endpoint> Rooted<'_, E> {
    /// Chunks of leaves that are the node's own.
    fn unsorted(&self, keeper: &Keeper<E>) -> Vec<ChunkIndex> {
        let is_own = |chunk: &ChunkEntry| {
            let is_leaves = matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }));
            is_leaves && chunk.table == self.access.table && chunk.owner == keeper.owner
        };
        let chunks = self.chunks.iter();
        let own = chunks.filter(|(_, chunk)| is_own(chunk));
        own.map(|(index, _)| index).collect()
    }

    /// Chunks of leaves on nodes that are to be left, which nobody leases.
    fn leaves_left(&self, keeper: &Keeper<E>) -> Vec<ChunkIndex> {
        let is_there = |index: &ChunkIndex, chunk: &ChunkEntry| {
            let is_leaves = matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }));
            let is_own = chunk.table == self.access.table && chunk.owner.is_free();
            is_leaves && is_own && is_left(keeper, index.node())
        };
        let chunks = self.chunks.iter();
        let left = chunks.filter(|(index, chunk)| is_there(index, chunk));
        left.map(|(index, _)| index).collect()
    }
}

impl Retrainer {
    /// Compacts a table if deletes have made many of its leaves underfull, if some of it is on a
    /// node that is to be left, or if another retrainer has left a compaction half done: at the
    /// node's own looks, and when somebody has died. Whether more is due after this.
    pub(super) async fn look_at_tree<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        entry: CatalogEntry,
        patience: &Patience<'_>,
        (is_scan_due, is_own_look): (bool, bool),
    ) -> Result<bool, IndexError> {
        if !is_scan_due && !is_own_look && !self.is_more_due.get() {
            return Ok(false);
        }
        let Some(table) = look_at_root(keeper, entry.clone(), patience).await? else {
            self.is_scan_due.set(is_scan_due || self.is_scan_due.get());
            return Ok(false);
        };
        let (mut stale, mut unsorted) = (Vec::new(), BTreeSet::new());
        if is_scan_due {
            unsorted = self.new_unsorted(keeper, &table);
            let of = (table.entry.record.first_leaf, &table.chunks);
            stale = self.stale_leaves(keeper, &table.access, of).await?;
        }
        self.collect_trees(keeper, &table, Vec::new()).await?;
        let leaves_left = table.leaves_left(keeper);
        free_unused(keeper, &table, &leaves_left).await?;
        let head = read_head(&table.access, table.root).await?;
        let finishes_another = !unsorted.is_empty() || !stale.is_empty();
        let reasons = (!leaves_left.is_empty(), finishes_another);
        let Some(wanted) = self.wanted(keeper, &table, &head, reasons) else {
            return Ok(false);
        };
        let begun = (self.clock)();
        let compacted = self.compact(keeper, &table, &head, (wanted, patience));
        let is_next = is_own_look && !is_scan_due && !self.has_garbage();
        let is_left_over = is_next && !leaves_left.is_empty();
        let compacted = (compacted.await, is_left_over);
        let Some(summary) = self.summary_of(&table, compacted, &unsorted)? else {
            return Ok(false);
        };
        self.note_compaction(&table, &summary, (self.clock)().saturating_sub(begun));
        if !unsorted.is_empty() {
            self.sort(keeper, unsorted, patience).await?;
        }
        let first_leaf = table.entry.record.first_leaf;
        let mut leaves = summary.retired;
        leaves.extend(stale);
        leaves.retain(|leaf| *leaf != first_leaf);
        if let Some(table) = look_at_root(keeper, entry, patience).await? {
            self.collect_trees(keeper, &table, leaves).await?;
        } else {
            self.is_scan_due.set(true);
        }
        Ok(true)
    }

    /// What a compaction has done, if it came to its end and did something; else, what is to become
    /// of the table. Nothing is forgotten that it was for and that another one could do: it is
    /// found again. `is_left_over`: leaves on a node that is to be left are neither in use nor
    /// free.
    fn summary_of<E>(
        &self,
        table: &Rooted<'_, E>,
        (compacted, is_left_over): (Result<Option<Compacted>, IndexError>, bool),
        unsorted: &BTreeSet<ChunkIndex>,
    ) -> Result<Option<RetrainSummary>, IndexError> {
        let id = table.access.table;
        match compacted {
            Ok(Some(Compacted::Done(summary))) => {
                self.rests.borrow_mut().forget_delay(id);
                return Ok(Some(summary));
            }
            Ok(other) => {
                match other {
                    Some(Compacted::Nothing { was_hindered: true }) => {
                        let look_tick_count = self.policy.look_tick_count;
                        self.rests.borrow_mut().delay(id, look_tick_count);
                    }
                    Some(Compacted::Nothing { .. }) => {
                        self.note_fruitless(table);
                    }
                    // It waits for somebody; what it has done is finished after a rest (K6).
                    _ => self.rest_table(id),
                }
                if is_left_over {
                    // Retired ones are looked for (T4).
                    self.is_scan_due.set(true);
                }
            }
            Err(error) if error.is_full() => self.rest_until_room(id, &error),
            // U4: while some of it is lost, the table stays as it is.
            Err(error) if error.lost_node().is_some() => {
                self.unsorted.borrow_mut().extend(unsorted);
                if self.note_fruitless(table) {
                    // What was retired before is looked for, once (T4).
                    self.is_scan_due.set(true);
                }
            }
            Err(error) => {
                if error.fabric_failure().is_none() {
                    // W7: of a damaged table another attempt would find the same.
                    self.unsorted.borrow_mut().extend(unsorted);
                }
                return Err(error);
            }
        }
        Ok(None)
    }

    /// By the new tree it can be told what is in use in chunks of which no sweep could tell.
    async fn sort<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        unsorted: BTreeSet<ChunkIndex>,
        patience: &Patience<'_>,
    ) -> Result<(), IndexError> {
        // Whatever becomes of this one, the next sweep needs no newer tree (W6), or would not be
        // helped by one (W7).
        self.unsorted.borrow_mut().extend(&unsorted);
        self.wants_sweep.set(true);
        let swept = keeper.sweep_until(patience.stop()).await?;
        if swept.chunk_count > 0 {
            self.is_scan_due.set(true);
        }
        let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, keeper.owner);
        let chunks = allocator.entries().await?;
        let is_own = |chunk: &ChunkIndex| {
            let entry = chunks.get(*chunk);
            entry.is_some_and(|entry| entry.owner == keeper.owner)
        };
        // What it gave up elsewhere has its own ways of being tried again.
        let is_wanted = swept.given_up_count > 0 && unsorted.iter().any(is_own);
        self.wants_sweep.set(is_wanted);
        Ok(())
    }

    /// T1: what there is to do for a compaction, if it is worth a look at all leaves.
    fn wanted<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        table: &Rooted<'_, E>,
        head: &Head,
        (has_leaves_left, finishes_another): (bool, bool),
    ) -> Option<Wanted> {
        let id = table.access.table;
        let current = Some(ChunkPurpose::Inner {
            generation: head.generation,
        });
        let mut own = table.chunks.iter().filter(|(_, chunk)| chunk.table == id);
        let moves_tree =
            own.any(|(index, chunk)| chunk.purpose == current && is_left(keeper, index.node()));
        let counted = Counted {
            splits: 0,
            underfull: table.entry.underfull_count,
        };
        let tried = self.fruitless.borrow().get(&id).copied();
        let is_due = !self.rests.borrow().is_delayed(id)
            && self.policy.is_due(head.leaf_count, counted, false)
            && tried.is_none_or(|(root, count)| {
                let more = Counted {
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
        Some(Wanted {
            // What another one has left is published first.
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

    /// `None`: it was cut off, while it waited for somebody, or as the node stops.
    async fn compact<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        table: &Rooted<'_, E>,
        head: &Head,
        (wanted, patience): (Wanted, &Patience<'_>),
    ) -> Result<Option<Compacted>, IndexError> {
        let (broken, leased) = (Cell::new(false), Leased::default());
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
        let may_go_on = || !patience.is_over();
        let conditions = (|node| is_left(keeper, node), may_go_on);
        let compacted = Box::pin(compact(&work, &leased, wanted, conditions));
        let compacted = patience.wait(compacted).await;
        // Cut off, it was resting: it held nothing but what is leased.
        leased.give_back(&table.access).await?;
        compacted.transpose()
    }

    /// Nothing is merged before so much more is underfull that it would be due by that. Whether it
    /// is the first time with this root.
    fn note_fruitless<E>(&self, table: &Rooted<'_, E>) -> bool {
        let tried = (table.root, table.entry.underfull_count);
        let mut fruitless = self.fruitless.borrow_mut();
        let before = fruitless.insert(table.access.table, tried);
        before.is_none_or(|(root, _)| root != table.root)
    }

    /// Chunks of leaves that the node has taken over from the dead, of which a sweep could not tell
    /// what is in use, as the way there is lost (U4) or damaged, and with which nobody has tried by
    /// a new tree.
    fn new_unsorted<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        table: &Rooted<'_, E>,
    ) -> BTreeSet<ChunkIndex> {
        let mut known = self.unsorted.borrow_mut();
        known.retain(|chunk| {
            table
                .chunks
                .get(*chunk)
                .is_some_and(|it| it.owner == keeper.owner)
        });
        let unsorted = table.unsorted(keeper).into_iter();
        unsorted.filter(|chunk| !known.contains(chunk)).collect()
    }

    fn note_compaction<E>(&self, table: &Rooted<'_, E>, summary: &RetrainSummary, time_ns: u64) {
        if self.rests.borrow_mut().has_room(table.access.table) {
            tracing::info!(table = %table.access.table, "room to compact again");
        }
        self.count(|tally| accounts::add(tally, summary, time_ns));
        tracing::debug!(
            table = %table.access.table,
            moved = summary.moved_count,
            made = summary.made_count,
            time_ns,
            "compacted"
        );
    }

    /// T2 and T3: these leaves, and chunks of older trees, are garbage.
    async fn collect_trees<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        table: &Rooted<'_, E>,
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
        let group = (id, leaf_size_bytes);
        let found = (leaves, old.into_iter().collect());
        self.discard(keeper, group, found, Late::default()).await
    }
}

/// Frees chunks of which all leaves are free: somebody leased them and used none, or what was used
/// is free again.
async fn free_unused<E: Endpoint>(
    keeper: &Keeper<E>,
    table: &Rooted<'_, E>,
    chunks: &[ChunkIndex],
) -> Result<(), IndexError> {
    let leaf_count = table.access.geometry.chunk_leaf_count();
    for chunk in chunks {
        let entry = table.chunks.get(*chunk);
        if entry.is_some_and(|entry| entry.free.count() == leaf_count) {
            let leaf_size_bytes = table.access.geometry.stride_blocks() * BLOCK_SIZE_BYTES;
            let of = (table.access.table, leaf_size_bytes);
            keeper.free_leaves(*chunk, of, &[]).await?;
        }
    }
    Ok(())
}

/// Whether a node is to be left (U5).
fn is_left<E>(keeper: &Keeper<E>, node: NodeId) -> bool {
    keeper.layout.members().state(node) == Some(MemberState::Draining)
}
