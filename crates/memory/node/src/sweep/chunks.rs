//! What becomes of the chunks that fenced sessions leased (W2 to W4, W6, W7).

use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::tree::head::Head;
use farleaf_index::{Index, IndexError};
use farleaf_leaf::LeafBuffer;
use farleaf_region::RegionError;
use farleaf_region::allocation::ChunkTable;
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_region::layout::ChunkIndex;
use farleaf_types::{OwnerWord, RemoteAddr};

use super::tables::{Known, SweptTable};
use super::{GIVEN_UP, Keeper, SweepReport};
use crate::patience::Patience;

impl<E: Endpoint> Keeper<E> {
    /// The chunks whose owners are fenced.
    pub(super) async fn chunks_of_fenced(
        &self,
        chunks: &ChunkTable,
    ) -> Result<Vec<(ChunkIndex, OwnerWord)>, RegionError> {
        let mut batch = Batch::new();
        let mut left = Vec::new();
        for (index, chunk) in chunks.iter() {
            if !chunk.owner.is_free() && self.is_left(&mut batch, chunk.owner).await? {
                left.push((index, chunk.owner));
            }
        }
        Ok(left)
    }

    /// W3 and W4: what becomes of a chunk that has been taken over; `None`: it stays the node's.
    pub(super) async fn sort_chunk(
        &self,
        known: &Known<'_, E>,
        chunk: ChunkIndex,
        entry: &ChunkEntry,
        patience: &Patience<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<(ChunkPurpose, FreeLeaves)>, IndexError> {
        let none = FreeLeaves::default();
        if entry.purpose == Some(ChunkPurpose::Rings) {
            // J1: their sessions may be alive.
            return Ok(None);
        }
        if known.unknown.contains(&entry.table) {
            return Ok(None);
        }
        let mut tables = known.byte_tables.iter();
        if let Some(table) = tables.find(|table| table.access.table == entry.table) {
            return self
                .sort_bytes_chunk(table, chunk, entry, patience, report)
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
                let free = self.sort_leaves(table, chunk, patience, report).await?;
                report.leaf_count += free.as_ref().map_or(0, FreeLeaves::count);
                free.map(|free| (purpose, free))
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
            // K5: an older tree's, in which sessions that have not followed yet still descend. It
            // is garbage, and waits for them (T2, T3).
            Some(
                purpose @ (ChunkPurpose::Inner { generation }
                | ChunkPurpose::Snapshot { generation }),
            ) if table
                .tree
                .is_some_and(|head| may_be_searched(generation, &head)) =>
            {
                Some((purpose, none))
            }
            // Y3: models are in it, if who died only looked whether it is free. If not, it is the
            // table's until that is dropped.
            Some(ChunkPurpose::Models) => Some((ChunkPurpose::Models, none)),
            // Leaves may have been moved into it (R6): it is looked into when all are the node's.
            // Of value blocks there are none here (BV6): they belong to tables of byte strings.
            Some(
                ChunkPurpose::Run { .. }
                | ChunkPurpose::Blocks { .. }
                | ChunkPurpose::Extent { .. },
            )
            | None => None,
            Some(_) => Some((ChunkPurpose::Free, none)),
        })
    }

    /// W3: which leaves of a leased chunk are free; `None`: it was given up (W6).
    async fn sort_leaves(
        &self,
        table: &SweptTable<'_, E>,
        chunk: ChunkIndex,
        patience: &Patience<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<FreeLeaves>, IndexError> {
        let access = &table.access;
        let mut free = FreeLeaves::default();
        let mut batch = Batch::new();
        let index = Index::new(*access, &table.state);
        for (number, place) in self.chunk_places(access, chunk).enumerate() {
            if place == table.first_leaf {
                continue;
            }
            batch.clear();
            let words = access.geometry.image_size_words();
            let read = batch.read(access.geometry.state(place), words);
            self.endpoint.execute(&mut batch).await?;
            let image = farleaf_leaf::LeafImage::new(access.geometry, batch.words(read));
            // An unlocked leaf in use is intact, or torn by a living writer, who found it by a
            // search; so a torn one is looked at by a search for what its low says, too.
            let (low, is_retired) = (image.low(), image.is_retired());
            let is_nothing = is_retired || image.was_never_written();
            if is_retired && !image.link().place().is_null() {
                // It was moved. Its grace period is for who retrains to wait for (T3, T4).
                continue;
            }
            // Nothing links to what is no leaf: a new one is whole before anything does (D3).
            let is_used = async {
                if is_nothing {
                    return Ok(false);
                }
                index.is_in_use(&mut batch, (place, low)).await
            };
            let Some(is_used) = patience.wait(is_used).await else {
                tracing::warn!(table = %access.table, leaf = %place, "{GIVEN_UP}");
                report.given_up_count += 1;
                return Ok(None);
            };
            match is_used {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => {
                    report.note_damage(error)?;
                    return Ok(None);
                }
            }
            if !is_retired {
                let mut leaf = LeafBuffer::new(access.geometry, 0, 0, RemoteAddr::NULL.retired());
                batch.clear();
                access.change(place).write_new(&mut batch, &mut leaf);
                self.endpoint.execute(&mut batch).await?;
            }
            free.insert(number as u64);
        }
        Ok(Some(free))
    }
}

/// Whether sessions may still search by a tree of this generation, which the root does not name. A
/// load replaces nothing but the tree that a table is made with; only compactions replace others.
/// Which was drawn first says nothing: a load that takes long commits over a compaction that began
/// after it.
fn may_be_searched(generation: u16, head: &Head) -> bool {
    generation == 0 || head.is_compacted
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_types::NodeId;

    /// Promise (K5): what a compaction has made is not freed at once because a load that began
    /// before it replaced it; what a dead load has made in a table without compactions is.
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
