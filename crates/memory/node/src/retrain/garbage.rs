//! What nothing in far memory names any more, until it is reused (T2 to T4).

use core::mem::take;
use std::collections::{BTreeMap, BTreeSet};

use farleaf_byte_index::retrain::LateCounter;
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_index::retrain::paper::{OldCounter, announce_later};
use farleaf_index::retrain::{Retraining, Stretch};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::LeafAccess;
use farleaf_region::RegionError;
use farleaf_region::allocation::ChunkTable;
use farleaf_region::catalog::EntryState;
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_region::layout::{CHUNK_SIZE_BYTES, ChunkIndex};
use farleaf_region::members::MemberState;
use farleaf_types::{BLOCK_SIZE_BYTES, RemoteAddr, SequenceNumber, TableId};

use super::Retrainer;
use super::look::{Looked, is_beyond_loss};
use super::policy::Counted;
use crate::sweep::Keeper;

/// A group of what nothing in far memory names any more.
#[derive(Debug)]
pub(super) struct Garbage {
    table: TableId,
    /// When every session has published this, nobody else names it either (T3).
    sequence: SequenceNumber,
    is_over: bool,
    leaf_size_bytes: u64,
    leaves: Vec<RemoteAddr>,
    chunks: Vec<ChunkIndex>,
    late: Late,
}

/// Old synonym leaf tables of models that are gone: sessions announce splits there until they have
/// passed.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// T6.
    pub(super) words: Vec<OldCounter>,
    /// BR5.
    pub(super) bytes: Vec<LateCounter>,
}

impl Late {
    fn is_empty(&self) -> bool {
        self.words.is_empty() && self.bytes.is_empty()
    }
}

impl Retrainer {
    /// T2 and T3: notes what nothing in far memory names any more.
    pub(super) async fn collect<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        table: &Looked<'_, E>,
        leaves: Vec<RemoteAddr>,
        late: Vec<OldCounter>,
    ) -> Result<(), IndexError> {
        let (layout, geometry) = (table.access.layout, table.access.geometry);
        let mut named = table.contents.named_chunks(layout, geometry, table.root);
        let is_listed = table.contents.leaf_table.is_some();
        if is_listed && keeper.endpoint.leaves_out(ProtocolCheck::LeafTableIsNamed) {
            let chunk = |index: &ChunkIndex| table.chunks.get(*index);
            let is_run =
                |chunk: &ChunkEntry| matches!(chunk.purpose, Some(ChunkPurpose::Run { .. }));
            named.retain(|index| !chunk(index).is_some_and(is_run));
        }
        let chunks = self.unnamed_chunks(table.access.table, &table.chunks, &named);
        let leaf_size_bytes = geometry.stride_blocks() * BLOCK_SIZE_BYTES;
        let group = (table.access.table, leaf_size_bytes);
        let late = Late {
            words: late,
            ..Late::default()
        };
        self.discard(keeper, group, (leaves, chunks), late).await
    }

    /// T2: chunks of runs and snapshots of a table that nobody leases, that its root does not name,
    /// and that are in no group.
    pub(super) fn unnamed_chunks(
        &self,
        table: TableId,
        chunks: &ChunkTable,
        named: &BTreeSet<ChunkIndex>,
    ) -> Vec<ChunkIndex> {
        let known = self.known(table);
        let is_garbage = |index: &ChunkIndex, chunk: &ChunkEntry| {
            let is_whole = matches!(
                chunk.purpose,
                Some(ChunkPurpose::Run { .. } | ChunkPurpose::Snapshot { .. })
            );
            let is_own = chunk.table == table && chunk.owner.is_free();
            is_own && is_whole && !named.contains(index) && !known.contains(index)
        };
        let chunks = chunks.iter();
        let chunks = chunks.filter(|(index, chunk)| is_garbage(index, chunk));
        chunks.map(|(index, _)| index).collect()
    }

    /// Leaves, or pages, that are in groups.
    pub(super) fn known_leaves(&self) -> BTreeSet<RemoteAddr> {
        let garbage = self.garbage.borrow();
        let leaves = garbage.iter().flat_map(|group| &group.leaves);
        leaves.copied().collect()
    }

    /// T3: these leaves and chunks are garbage.
    pub(super) async fn discard<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        (table, leaf_size_bytes): (TableId, u64),
        (leaves, chunks): (Vec<RemoteAddr>, Vec<ChunkIndex>),
        late: Late,
    ) -> Result<(), IndexError> {
        if chunks.is_empty() && leaves.is_empty() && late.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let slot = batch.fetch_add(keeper.layout.sequence(), 1);
        keeper.endpoint.execute(&mut batch).await?;
        let sequence = SequenceNumber(batch.previous(slot) + 1);
        self.garbage.borrow_mut().push(Garbage {
            table,
            sequence,
            is_over: false,
            leaf_size_bytes,
            leaves,
            chunks,
            late,
        });
        Ok(())
    }

    /// T4: retired leaves of shared chunks that nobody leases, and that are in no group.
    pub(super) async fn stale_leaves<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        access: &LeafAccess<'_, E>,
        (first_leaf, chunks): (RemoteAddr, &ChunkTable),
    ) -> Result<Vec<RemoteAddr>, IndexError> {
        let geometry = access.geometry;
        let mut known = self.known_leaves();
        known.insert(first_leaf);
        let mut stale = Vec::new();
        let mut batch = Batch::new();
        for (index, chunk) in chunks.iter() {
            let is_leaves = matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }));
            let is_own = chunk.table == access.table && chunk.owner.is_free();
            if !is_leaves || !is_own {
                continue;
            }
            let start = keeper.layout.chunk_start(index);
            let free: BTreeSet<u64> = chunk.free.iter(geometry.chunk_leaf_count()).collect();
            batch.clear();
            let links: Vec<_> = (0..geometry.chunk_leaf_count())
                .filter(|number| !free.contains(number))
                .map(|number| start.offset_blocks(number * geometry.stride_blocks()))
                .map(|leaf| (leaf, batch.read(geometry.link(leaf), 1)))
                .collect();
            keeper.endpoint.execute(&mut batch).await?;
            for (leaf, read) in links {
                let link = RemoteAddr::from_word(batch.words(read)[0]);
                let was_moved = link.is_retired() && !link.place().is_null();
                let is_new = was_moved && !known.contains(&leaf);
                if is_new && !is_beyond_loss(keeper, access, chunks, link.place()) {
                    stale.push(leaf);
                }
            }
        }
        Ok(stale)
    }

    pub(super) fn known(&self, table: TableId) -> BTreeSet<ChunkIndex> {
        let garbage = self.garbage.borrow();
        let own = garbage.iter().filter(|group| group.table == table);
        own.flat_map(|group| group.chunks.iter().copied()).collect()
    }

    /// T3: which groups are to be freed at the end of this tick. Asked for at its beginning: what
    /// sessions have announced in old tables until they passed is then met in between (X7).
    pub(super) async fn mark_over<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
    ) -> Result<(), RegionError> {
        if !self.has_garbage() {
            self.waiting_tick_count.set(0);
            return Ok(());
        }
        let published = keeper.published_by_all().await?;
        self.ask_if_waiting(keeper, published).await?;
        let is_ignored = keeper.endpoint.leaves_out(ProtocolCheck::MovedIsUnnamed);
        for group in &mut *self.garbage.borrow_mut() {
            group.is_over = group.sequence <= published || is_ignored;
        }
        Ok(())
    }

    /// T6: what was announced in old tables, when no session can do so any more, and before they
    /// are freed. Returns how many leaves.
    pub(super) async fn announce_late<E: Endpoint>(
        &self,
        work: &Retraining<'_, E>,
    ) -> Result<u64, IndexError> {
        let id = work.access.table;
        let is_over = |group: &&mut Garbage| group.is_over && group.table == id;
        let mut late = Vec::new();
        for group in self.garbage.borrow_mut().iter_mut().filter(is_over) {
            late.append(&mut group.late.words);
        }
        if late.is_empty() {
            return Ok(0);
        }
        announce_later(work, &mut late).await
    }

    /// BR5: the counters of a table's models that are gone, to be read for the last time.
    pub(super) fn take_late_of_bytes(&self, table: TableId) -> Vec<LateCounter> {
        let mut garbage = self.garbage.borrow_mut();
        let over = garbage.iter_mut();
        let over = over.filter(|group| group.is_over && group.table == table);
        over.flat_map(|group| take(&mut group.late.bytes)).collect()
    }

    /// Whether there are old tables to be looked into now (T6, BR5).
    pub(super) fn has_late(&self) -> bool {
        let garbage = self.garbage.borrow();
        garbage
            .iter()
            .any(|group| group.is_over && !group.late.is_empty())
    }

    /// T6 is given up for some tables: they are gone, or cannot be read.
    pub(super) fn forget_late(&self, of: impl Fn(TableId) -> bool) {
        for group in &mut *self.garbage.borrow_mut() {
            if of(group.table) {
                group.late = Late::default();
            }
        }
    }

    /// T3. What old tables are to be looked into before (T6) waits; and if no table `is_looked_at`
    /// in this tick, what X7 is for, too.
    pub(super) async fn free<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        is_looked_at: bool,
    ) -> Result<(), IndexError> {
        let groups = self.garbage.take().into_iter();
        let is_read = |group: &Garbage| {
            group.late.is_empty() && (is_looked_at || !self.redirected.has(group.table))
        };
        let (over, waiting) = groups.partition(|group| group.is_over && is_read(group));
        self.garbage.replace(waiting);
        for group in over {
            let (layout, table) = (&keeper.layout, group.table);
            self.redirected.forget(layout, table, &group.chunks);
            self.free_group(keeper, group).await?;
        }
        Ok(())
    }

    /// S4: whoever keeps the oldest garbage from being reused is asked, once in a while.
    async fn ask_if_waiting<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        published: SequenceNumber,
    ) -> Result<(), RegionError> {
        let oldest = {
            let garbage = self.garbage.borrow();
            let oldest = garbage.iter().map(|group| group.sequence).min();
            oldest.filter(|oldest| *oldest > published)
        };
        let waiting = &self.waiting_tick_count;
        let Some(wanted) = oldest else {
            waiting.set(0);
            return Ok(());
        };
        if waiting.get() > self.policy.asking_tick_count {
            waiting.set(0);
            keeper.ask_silent(wanted).await?;
        }
        Ok(())
    }

    async fn free_group<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        mut group: Garbage,
    ) -> Result<(), IndexError> {
        let mut reclaimed_bytes = 0;
        // U4: of a lost node there is nothing to free.
        let members = keeper.layout.members();
        let is_lost = |node| members.state(node) == Some(MemberState::Lost);
        group.leaves.retain(|leaf| !is_lost(leaf.node()));
        group.chunks.retain(|chunk| !is_lost(chunk.node()));
        for chunk in group.chunks.drain(..) {
            let is_own = |entry: &ChunkEntry| {
                let purpose = entry.purpose;
                matches!(
                    purpose,
                    Some(
                        ChunkPurpose::Run { .. }
                            | ChunkPurpose::Snapshot { .. }
                            | ChunkPurpose::Inner { .. }
                    )
                )
            };
            let freed = keeper.change_chunk(chunk, group.table, is_own, |_| {
                (ChunkPurpose::Free, FreeLeaves::default())
            });
            reclaimed_bytes += u64::from(freed.await?) * CHUNK_SIZE_BYTES;
        }
        let mut by_chunk: BTreeMap<ChunkIndex, Vec<RemoteAddr>> = BTreeMap::new();
        for leaf in group.leaves.drain(..) {
            if let Some(chunk) = keeper.layout.chunk_of(leaf) {
                by_chunk.entry(chunk).or_default().push(leaf);
            }
        }
        for (chunk, leaves) in by_chunk {
            let of = (group.table, group.leaf_size_bytes);
            if keeper.free_leaves(chunk, of, &leaves).await? {
                reclaimed_bytes += leaves.len() as u64 * group.leaf_size_bytes;
            } else if !keeper.has_chunk(chunk).await? {
                group.leaves.extend(leaves);
            }
        }
        self.count(|tally| tally.reclaimed_bytes += reclaimed_bytes);
        // Leaves in chunks that are leased; those of a table that is gone went with it.
        let is_there = keeper
            .catalog()
            .await?
            .iter()
            .any(|entry| entry.record.id == group.table && entry.state == EntryState::Live);
        if !group.leaves.is_empty() && is_there {
            self.garbage.borrow_mut().push(group);
        }
        Ok(())
    }
}

/// T6: the tables of the models of a stretch whose leaves have been moved, and what had been
/// counted in them before.
pub(super) fn old_counters<E: Endpoint>(
    table: &Looked<'_, E>,
    counted: &[Counted],
    stretch: &Stretch,
) -> Vec<OldCounter> {
    if table.kind() != LayerKind::Learned {
        return Vec::new();
    }
    let models = table.contents.models[stretch.models.clone()].iter();
    let models = models.zip(&counted[stretch.models.clone()]);
    let models = models.filter(|(model, _)| !model.synonym_table.is_null());
    let old = models.map(|(model, counted)| OldCounter {
        table: model.synonym_table,
        capacity: model.synonym_capacity,
        seen: counted.splits,
        first_key: model.first_key,
    });
    old.collect()
}
