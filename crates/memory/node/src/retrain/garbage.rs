//! Garbage: memory that nothing in far memory names any more, until it is reused.

use core::mem::take;
use std::collections::{BTreeMap, BTreeSet};

use farleaf_base::{BLOCK_SIZE_BYTES, RemoteAddr, SequenceNumber, TableId};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_index::retrain::paper::{OldCounter, announce_later};
use farleaf_index::retrain::{Retraining, Stretch};
use farleaf_index::strings::retrain::LateCounter;
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::words::LeafAccess;
use farleaf_pool::PoolError;
use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::catalog::EntryState;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::{CHUNK_SIZE_BYTES, ChunkIndex};
use farleaf_pool::members::MemberState;

use super::Retrainer;
use super::look::{LearnedTableView, is_beyond_loss};
use super::policy::ModelChanges;
use crate::sweep::MemoryMaintainer;

/// Group of garbage.
#[derive(Debug)]
pub(super) struct GarbageGroup {
    table: TableId,
    /// Number after whose publication by every session no session uses the group either.
    sequence: SequenceNumber,
    is_over: bool,
    leaf_size_bytes: u64,
    leaves: Vec<RemoteAddr>,
    chunks: Vec<ChunkIndex>,
    late: OldSynonymTables,
}

/// Old synonym leaf tables of dropped models: sessions announce splits there until they have
/// passed.
#[derive(Debug, Default)]
pub(super) struct OldSynonymTables {
    /// Old tables of tables of words, whose announcements are copied to the new ones.
    pub(super) words: Vec<OldCounter>,
    /// Old tables of tables of byte strings, whose counts are added to the new models.
    pub(super) bytes: Vec<LateCounter>,
}

impl OldSynonymTables {
    fn is_empty(&self) -> bool {
        self.words.is_empty() && self.bytes.is_empty()
    }
}

impl Retrainer {
    /// Adds memory to the garbage that nothing in far memory names any more.
    pub(super) async fn collect<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        table: &LearnedTableView<'_, E>,
        leaves: Vec<RemoteAddr>,
        late: Vec<OldCounter>,
    ) -> Result<(), IndexError> {
        let (layout, geometry) = (table.access.layout, table.access.geometry);
        let mut named = table.contents.named_chunks(layout, geometry, table.root);
        let is_listed = table.contents.leaf_table.is_some();
        if is_listed
            && maintainer
                .endpoint
                .skips_check(ProtocolCheck::LeafTableIsNamed)
        {
            let chunk = |index: &ChunkIndex| table.chunks.get(*index);
            let is_run =
                |chunk: &ChunkEntry| matches!(chunk.purpose, Some(ChunkPurpose::Run { .. }));
            named.retain(|index| !chunk(index).is_some_and(is_run));
        }
        let chunks = self.unnamed_chunks(table.access.table, &table.chunks, &named);
        let leaf_size_bytes = geometry.stride_blocks() * BLOCK_SIZE_BYTES;
        let late = OldSynonymTables {
            words: late,
            ..OldSynonymTables::default()
        };
        self.discard(
            maintainer,
            table.access.table,
            leaf_size_bytes,
            leaves,
            chunks,
            late,
        )
        .await
    }

    /// Returns chunks of runs and snapshots of a table that are not leased, that its root does not
    /// name, and that are in no group.
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

    /// Returns the leaves or pages that are in groups.
    pub(super) fn known_leaves(&self) -> BTreeSet<RemoteAddr> {
        let garbage = self.garbage.borrow();
        let leaves = garbage.iter().flat_map(|group| &group.leaves);
        leaves.copied().collect()
    }

    /// Makes garbage of these leaves and chunks.
    pub(super) async fn discard<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        table: TableId,
        leaf_size_bytes: u64,
        leaves: Vec<RemoteAddr>,
        chunks: Vec<ChunkIndex>,
        late: OldSynonymTables,
    ) -> Result<(), IndexError> {
        if chunks.is_empty() && leaves.is_empty() && late.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let slot = batch.fetch_add(maintainer.layout.sequence(), 1);
        maintainer.endpoint.execute(&mut batch).await?;
        let sequence = SequenceNumber(batch.previous(slot) + 1);
        self.garbage.borrow_mut().push(GarbageGroup {
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

    /// Returns retired leaves of shared chunks that are not leased; omits those in groups.
    pub(super) async fn stale_leaves<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        access: &LeafAccess<'_, E>,
        first_leaf: RemoteAddr,
        chunks: &ChunkTable,
    ) -> Result<Vec<RemoteAddr>, IndexError> {
        let geometry = access.geometry;
        let mut known = self.known_leaves();
        known.insert(first_leaf);
        let mut stale = Vec::new();
        let mut batch = Batch::new();
        for (index, chunk) in chunks.iter() {
            if !chunk.has_unleased_leaves(access.table) {
                continue;
            }
            let start = maintainer.layout.chunk_start(index);
            let free: BTreeSet<u64> = chunk.free.iter(geometry.chunk_leaf_count()).collect();
            batch.clear();
            let links: Vec<_> = (0..geometry.chunk_leaf_count())
                .filter(|number| !free.contains(number))
                .map(|number| start.offset_blocks(number * geometry.stride_blocks()))
                .map(|leaf| (leaf, batch.read(geometry.link(leaf), 1)))
                .collect();
            maintainer.endpoint.execute(&mut batch).await?;
            for (leaf, read) in links {
                let link = RemoteAddr::from_word(batch.words(read)[0]);
                let was_moved = link.is_retired() && !link.place().is_null();
                let is_new = was_moved && !known.contains(&leaf);
                if is_new && !is_beyond_loss(maintainer, access, chunks, link.place()) {
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

    /// Determines the groups to be freed at the end of this tick. Called at its beginning, so that
    /// the announcements that sessions made before they passed are read in between.
    pub(super) async fn mark_over<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
    ) -> Result<(), PoolError> {
        if !self.has_garbage() {
            self.waiting_tick_count.set(0);
            return Ok(());
        }
        let published = maintainer.published_by_all().await?;
        self.ask_if_waiting(maintainer, published).await?;
        let is_ignored = maintainer
            .endpoint
            .skips_check(ProtocolCheck::MovedIsUnnamed);
        for group in &mut *self.garbage.borrow_mut() {
            group.is_over = group.sequence <= published || is_ignored;
        }
        Ok(())
    }

    /// Copies the last announcements in old tables, when no session can write to them any more, and
    /// before they are freed. Returns the number of leaves.
    pub(super) async fn announce_late<E: Endpoint>(
        &self,
        work: &Retraining<'_, E>,
    ) -> Result<u64, IndexError> {
        let id = work.access.table;
        let is_over = |group: &&mut GarbageGroup| group.is_over && group.table == id;
        let mut late = Vec::new();
        for group in self.garbage.borrow_mut().iter_mut().filter(is_over) {
            late.append(&mut group.late.words);
        }
        if late.is_empty() {
            return Ok(0);
        }
        announce_later(work, &mut late).await
    }

    /// Takes the counters of a table's dropped models, to be read for the last time.
    pub(super) fn take_late_of_bytes(&self, table: TableId) -> Vec<LateCounter> {
        let mut garbage = self.garbage.borrow_mut();
        let over = garbage.iter_mut();
        let over = over.filter(|group| group.is_over && group.table == table);
        over.flat_map(|group| take(&mut group.late.bytes)).collect()
    }

    /// Returns whether old tables must be read now.
    pub(super) fn has_late(&self) -> bool {
        let garbage = self.garbage.borrow();
        garbage
            .iter()
            .any(|group| group.is_over && !group.late.is_empty())
    }

    /// Drops the late announcements of some tables, which are dropped or unreadable.
    pub(super) fn forget_late(&self, of: impl Fn(TableId) -> bool) {
        for group in &mut *self.garbage.borrow_mut() {
            if of(group.table) {
                group.late = OldSynonymTables::default();
            }
        }
    }

    /// Frees the marked groups. Groups with old tables that must be read first wait; if no table is
    /// read in this tick (`is_looked_at`), so do those with redirected tables.
    pub(super) async fn free<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        is_looked_at: bool,
    ) -> Result<(), IndexError> {
        let groups = self.garbage.take().into_iter();
        let is_read = |group: &GarbageGroup| {
            group.late.is_empty() && (is_looked_at || !self.redirected.has(group.table))
        };
        let (over, waiting) = groups.partition(|group| group.is_over && is_read(group));
        self.garbage.replace(waiting);
        for group in over {
            let (layout, table) = (&maintainer.layout, group.table);
            self.redirected.forget(layout, table, &group.chunks);
            self.free_group(maintainer, group).await?;
        }
        Ok(())
    }

    /// From time to time, asks the session that keeps the oldest garbage from being reused.
    async fn ask_if_waiting<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        published: SequenceNumber,
    ) -> Result<(), PoolError> {
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
            maintainer.ask_silent(wanted).await?;
        }
        Ok(())
    }

    async fn free_group<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        mut group: GarbageGroup,
    ) -> Result<(), IndexError> {
        let mut reclaimed_bytes = 0;
        // On a lost node there is nothing to free.
        let members = maintainer.layout.members();
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
            let freed = maintainer.change_chunk(chunk, group.table, is_own, |_| {
                (ChunkPurpose::Free, FreeLeaves::default())
            });
            reclaimed_bytes += u64::from(freed.await?) * CHUNK_SIZE_BYTES;
        }
        let mut by_chunk: BTreeMap<ChunkIndex, Vec<RemoteAddr>> = BTreeMap::new();
        for leaf in group.leaves.drain(..) {
            if let Some(chunk) = maintainer.layout.chunk_of(leaf) {
                by_chunk.entry(chunk).or_default().push(leaf);
            }
        }
        for (chunk, leaves) in by_chunk {
            let (table, leaf_size_bytes) = (group.table, group.leaf_size_bytes);
            let are_freed = maintainer.free_leaves(chunk, table, leaf_size_bytes, &leaves);
            if are_freed.await? {
                reclaimed_bytes += leaves.len() as u64 * group.leaf_size_bytes;
            } else if !maintainer.has_chunk(chunk).await? {
                group.leaves.extend(leaves);
            }
        }
        self.count(|tally| tally.reclaimed_bytes += reclaimed_bytes);
        // Leaves in leased chunks; those of a dropped table were freed with it.
        let is_there = maintainer
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

/// Returns the old tables of the models in a stretch whose leaves were moved, and their counts so
/// far.
pub(super) fn old_counters<E: Endpoint>(
    table: &LearnedTableView<'_, E>,
    counted: &[ModelChanges],
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
