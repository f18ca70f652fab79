//! Settles the chunks that fenced sessions leased. See [`sweep`](crate::sweep) for the rules.

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::strings::ByteIndexError;
use farleaf_index::tree::head::Head;
use farleaf_index::{Index, IndexError};
use farleaf_leaf::words::{LeafAccess, LeafFormat, link_of, low_word_of, was_never_written};
use farleaf_pool::PoolError;
use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;

use super::tables::KnownTables;
use super::{GIVEN_UP, MemoryMaintainer, SweepReport, SweptLeaf};
use crate::wait_limit::WaitLimit;

/// Leaves or pages in a leased chunk.
pub(super) struct LeasedLeaves<'a, E, F> {
    pub(super) access: &'a LeafAccess<'a, E, F>,
    /// First leaf of the table, which is never free.
    pub(super) first: RemoteAddr,
    pub(super) chunk: ChunkIndex,
}

impl<E: Endpoint> MemoryMaintainer<E> {
    /// Returns the chunks whose owners are fenced.
    pub(super) async fn chunks_of_fenced(
        &self,
        chunks: &ChunkTable,
    ) -> Result<Vec<(ChunkIndex, OwnerWord)>, PoolError> {
        let mut batch = Batch::new();
        let mut left = Vec::new();
        for (index, chunk) in chunks.iter() {
            if !chunk.owner.is_free() && self.is_left(&mut batch, chunk.owner).await? {
                left.push((index, chunk.owner));
            }
        }
        Ok(left)
    }

    /// Returns the new state of a chunk that has been taken over; `None` if it stays the node's.
    pub(super) async fn sort_chunk(
        &self,
        known: &KnownTables<'_, E>,
        chunk: ChunkIndex,
        entry: &ChunkEntry,
        wait_limit: &WaitLimit<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<(ChunkPurpose, FreeLeaves)>, IndexError> {
        let none = FreeLeaves::default();
        if entry.purpose == Some(ChunkPurpose::Rings) {
            // The sessions that use these rings may be alive.
            return Ok(None);
        }
        if known.unknown.contains(&entry.table) {
            return Ok(None);
        }
        let mut tables = known.byte_tables.iter();
        if let Some(table) = tables.find(|table| table.access.table == entry.table) {
            return self
                .sort_bytes_chunk(table, chunk, entry, wait_limit, report)
                .await;
        }
        let mut tables = known.tables.iter();
        let Some(table) = tables.find(|table| table.access.table == entry.table) else {
            let mut catalog = known.catalog.iter();
            // A dropped table's chunks wait for its grace period.
            let is_dropped = catalog.any(|table| table.record.id == entry.table);
            let purpose = if is_dropped {
                entry.purpose
            } else {
                Some(ChunkPurpose::Free)
            };
            return Ok(purpose.map(|purpose| (purpose, none)));
        };
        Ok(match entry.purpose {
            Some(purpose @ ChunkPurpose::Leaves { .. }) => {
                let index = Index::new(table.access, &table.state);
                let is_in_use = async |batch: &mut Batch, leaf, low| {
                    Ok(index.is_in_use(batch, leaf, low).await?)
                };
                let leaves = LeasedLeaves {
                    access: &table.access,
                    first: table.first_leaf,
                    chunk,
                };
                let mut batch = Batch::new();
                let free = self.sort_leaves(&leaves, &mut batch, is_in_use, wait_limit, report);
                free.await?.map(|free| (purpose, free))
            }
            Some(purpose @ (ChunkPurpose::Run { .. } | ChunkPurpose::Snapshot { .. }))
                if table.named.contains(&chunk) =>
            {
                Some((purpose, none))
            }
            Some(purpose @ ChunkPurpose::Inner { .. }) if table.named.contains(&chunk) => {
                let Some(head) = &table.tree else {
                    return Ok(None);
                };
                let free = self.sort_inner(&table.access, head, chunk).await?;
                report.leaf_count += free.count();
                Some((purpose, free))
            }
            // An older tree, in which sessions that have not followed yet still search. It is
            // garbage, and waits for them.
            Some(
                purpose @ (ChunkPurpose::Inner { generation }
                | ChunkPurpose::Snapshot { generation }),
            ) if table
                .tree
                .is_some_and(|head| may_be_searched(generation, &head)) =>
            {
                Some((purpose, none))
            }
            // The chunk contains models if its owner died while it only checked whether the chunk
            // is free. It stays the table's until the table is dropped.
            Some(ChunkPurpose::Models) => Some((ChunkPurpose::Models, none)),
            // Leaves may have been moved into it, so it is examined after the node has taken over
            // all chunks. These tables have no value blocks; only tables of byte strings do.
            Some(
                ChunkPurpose::Run { .. }
                | ChunkPurpose::Blocks { .. }
                | ChunkPurpose::Extent { .. },
            )
            | None => None,
            Some(_) => Some((ChunkPurpose::Free, none)),
        })
    }

    /// Returns which leaves or pages of a leased chunk are free, and counts them; `None` if the
    /// chunk was skipped. `is_in_use` searches for a leaf with this word as its lower fence.
    pub(super) async fn sort_leaves<F: SweptLeaf>(
        &self,
        leaves: &LeasedLeaves<'_, E, F>,
        batch: &mut Batch,
        is_in_use: impl AsyncFn(&mut Batch, RemoteAddr, u64) -> Result<bool, ByteIndexError>,
        wait_limit: &WaitLimit<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<FreeLeaves>, IndexError> {
        let access = leaves.access;
        let mut free = FreeLeaves::default();
        for (number, place) in self.chunk_places(access, leaves.chunk).enumerate() {
            if place == leaves.first {
                continue;
            }
            batch.clear();
            let state = access.geometry.state_addr(place);
            let read = batch.read(state, access.geometry.image_size_words());
            self.endpoint.execute(batch).await?;
            let image = batch.words(read);
            // An unlocked leaf in use is intact, or torn by a live writer, which found it by a
            // search. So for a torn leaf, too, a search for its lower fence tells whether it is in
            // use.
            let (low, link) = (low_word_of(image), link_of(image));
            let is_retired = link.is_retired();
            let is_nothing = is_retired || was_never_written(image);
            if is_retired && !link.place().is_null() {
                // The leaf was moved or replaced: others may still reach it, and the retrainer
                // waits for its grace period (LEAF-7).
                continue;
            }
            // Nothing links to a leaf that was never complete (LEAF-3).
            let is_used = async {
                if is_nothing {
                    return Ok(false);
                }
                is_in_use(batch, place, low).await
            };
            let Some(is_used) = wait_limit.wait(is_used).await else {
                tracing::warn!(table = %access.table, leaf = %place, "{GIVEN_UP}");
                report.given_up_count += 1;
                return Ok(None);
            };
            match is_used {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    report.note_bytes_damage(error)?;
                    return Ok(None);
                }
            }
            if !is_nothing && self.is_moved(access, batch, place).await? {
                continue;
            }
            if !is_retired {
                batch.clear();
                access.geometry.write_retired(batch, place, access.table);
                self.endpoint.execute(batch).await?;
            }
            free.insert(number as u64);
        }
        report.leaf_count += free.count();
        Ok(Some(free))
    }

    /// Returns whether a leaf or page was moved or replaced: then others may still reach it
    /// (LEAF-7). One that was in use when it was read may be moved before the search for it: the
    /// search does not find it then, and leaves on the left still link to it. Costs one round trip.
    pub(super) async fn is_moved<F: LeafFormat>(
        &self,
        access: &LeafAccess<'_, E, F>,
        batch: &mut Batch,
        place: RemoteAddr,
    ) -> Result<bool, IndexError> {
        batch.clear();
        let read = batch.read(access.geometry.link_addr(place), 1);
        self.endpoint.execute(batch).await?;
        let link = RemoteAddr::from_word(batch.words(read)[0]);
        Ok(link.is_retired() && !link.place().is_null())
    }
}

/// Returns whether sessions may still search a tree of this generation that the root does not name.
/// A load replaces only the tree that a table is created with; compactions replace other trees. The
/// order of the generations says nothing: a long load may commit over a compaction that began after
/// it.
fn may_be_searched(generation: u16, head: &Head) -> bool {
    generation == 0 || head.is_compacted
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    /// Promise: a tree created by a compaction is not freed at once because a load that began
    /// before replaced it. A tree that a dead load created in a table without compactions is freed
    /// at once.
    #[test]
    fn a_tree_that_an_older_load_replaced_may_be_searched() {
        let head = |generation, is_compacted| Head {
            addr: RemoteAddr::new(NodeId(0), 2048),
            generation,
            record_count: 0,
            first_leaf: RemoteAddr::new(NodeId(0), 4096),
            entry_count_max: 61,
            root: RemoteAddr::new(NodeId(0), 5000),
            leaf_count: 1,
            is_compacted,
        };
        let (load, compaction) = (3, 4);
        assert!(may_be_searched(compaction, &head(load, true)));
        assert!(may_be_searched(load, &head(compaction, true)));
        assert!(may_be_searched(0, &head(load, false)));
        assert!(!may_be_searched(compaction, &head(load, false)));
    }
}
