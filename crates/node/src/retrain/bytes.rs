//! Tables of byte strings: models trained anew over pages where they are (BR1 to BR5 of
//! `farleaf_byte_index::retrain`).

use core::cell::Cell;
use core::mem::take;
use std::rc::Rc;

use farleaf_byte_index::ByteIndexError;
use farleaf_byte_index::retrain::{LateCounter, Retrained, count_late, retrain};
use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_page::PageGeometry;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::ChunkIndex;
use farleaf_types::TableId;

use super::Retrainer;
use super::garbage::Late;
use super::policy::Counted;
use crate::patience::Patience;
use crate::sweep::Keeper;

impl Retrainer {
    /// Retrains what is due of a table of byte strings; whether more may be due already.
    pub(super) async fn look_at_bytes<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        entry: &CatalogEntry,
        patience: &Patience<'_>,
    ) -> Result<bool, IndexError> {
        let id = entry.record.id;
        let Some(access) = keeper.page_access(entry) else {
            return Ok(false);
        };
        let broken = Rc::new(Cell::new(false));
        let is_due = |page_count: u32, splits: u64| {
            let counted = Counted {
                splits,
                underfull: 0,
            };
            self.policy.is_due(page_count.into(), counted, false)
        };
        let late = self.take_late_of_bytes(id);
        if !late.is_empty() {
            let counted = count_late(&access, entry, &broken, &late);
            match patience.wait(Box::pin(counted)).await {
                Some(Ok(count)) => self.count(|tally| tally.late_count += count),
                Some(Err(ByteIndexError::Index(error))) => return Err(error),
                // Links lead to what they have counted.
                Some(Err(error)) => {
                    tracing::warn!(table = %id, %error, "late splits are not counted");
                }
                None => {}
            }
        }
        let retrained = retrain(&access, entry, &broken, is_due);
        match patience.wait(Box::pin(retrained)).await {
            Some(Ok(None)) => Ok(false),
            Some(Ok(Some(mut retrained))) => {
                self.count(|tally| {
                    tally.retraining_count += 1;
                    tally.model_count += retrained.model_count;
                });
                let late = take(&mut retrained.late);
                self.collect_snapshots(keeper, (id, access.geometry), (&retrained, late))
                    .await?;
                Ok(false)
            }
            // It waits for somebody (W6).
            None => {
                self.rest_table(id);
                Ok(false)
            }
            Some(Err(ByteIndexError::Index(error))) if error.is_full() => {
                self.rest_until_room(id, &error);
                Ok(false)
            }
            Some(Err(ByteIndexError::Index(error))) => Err(error),
            Some(Err(error)) => {
                tracing::error!(table = %id, %error, "cannot retrain a table");
                self.rest_table(id);
                Ok(false)
            }
        }
    }

    /// BR4: snapshots that the root does not name any more are garbage. Runs are not: links of
    /// pages may lead through retired ones in them.
    async fn collect_snapshots<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        (table, geometry): (TableId, PageGeometry),
        (retrained, late): (&Retrained, Vec<LateCounter>),
    ) -> Result<(), IndexError> {
        let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, keeper.owner);
        let chunks = allocator.entries().await?;
        let known = self.known(table);
        let contents = &retrained.contents;
        let named = contents.named_chunks(&keeper.layout, geometry, retrained.root);
        let is_garbage = |index: &ChunkIndex, chunk: &ChunkEntry| {
            let is_snapshot = matches!(chunk.purpose, Some(ChunkPurpose::Snapshot { .. }));
            let is_own = chunk.table == table && chunk.owner.is_free();
            is_own && is_snapshot && !named.contains(index) && !known.contains(index)
        };
        let chunks = chunks.iter();
        let garbage = chunks.filter(|(index, chunk)| is_garbage(index, chunk));
        let garbage = garbage.map(|(index, _)| index).collect();
        let page_size_bytes = geometry.page_size_bytes() as u64;
        self.discard(
            keeper,
            (table, page_size_bytes),
            (Vec::new(), garbage),
            Late {
                bytes: late,
                ..Late::default()
            },
        )
        .await
    }
}
