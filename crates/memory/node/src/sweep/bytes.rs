//! Sweeps tables of byte strings: locks of pages, the chunks that dead sessions leased for pages,
//! and value blocks. See [`sweep`](crate::sweep) for the rules.

use core::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use farleaf_base::{BLOCK_SIZE_BYTES, OwnerWord, RemoteAddr, TableId};
use farleaf_fabric::{Batch, CountedBatch, Endpoint, OperationKind};
use farleaf_index::IndexError;
use farleaf_index::strings::load::page_shape;
use farleaf_index::strings::snapshot::read_contents;
use farleaf_index::strings::{ByteIndex, ByteIndexError, ByteIndexState};
use farleaf_leaf::blobs::sweep::{BlockSweepReport, BlockSweeper, ReferenceAnswer, ReferenceQuery};
use farleaf_leaf::blobs::{BlockAccess, BlockError};
use farleaf_leaf::strings::format::{PageAccess, block_access};
use farleaf_leaf::strings::{Fence, PageChange, PageDraft, PageGeometry};
use farleaf_leaf::words::LeaseShape;
use farleaf_pool::PoolError;
use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::catalog::{CatalogEntry, TableKind};
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;

use super::chunks::LeasedLeaves;
use super::{MemoryMaintainer, SweepReport, SweptLeaf};
use crate::wait_limit::WaitLimit;

/// Number of sweeps after which sessions are asked to publish a number, if blocks still wait for
/// it.
const ASKING_SWEEP_COUNT: u32 = 5;

/// Sweeps of value blocks, by table. Blocks that they have taken over wait for their grace period
/// from one sweep to the next.
#[derive(Debug, Default)]
pub struct BlockSweepers(RefCell<BTreeMap<TableId, BlockSweeper>>);

impl BlockSweepers {
    fn take(&self, table: TableId) -> BlockSweeper {
        self.0.borrow_mut().remove(&table).unwrap_or_default()
    }

    fn put_back(&self, table: TableId, sweeper: BlockSweeper) {
        self.0.borrow_mut().insert(table, sweeper);
    }

    fn keep(&self, tables: &[TableId]) {
        self.0
            .borrow_mut()
            .retain(|table, _| tables.contains(table));
    }
}

/// Live table of byte strings, as a sweep sees it.
pub(super) struct SweptBytes<'a, E> {
    pub(super) access: PageAccess<'a, E>,
    first_page: RemoteAddr,
    /// Chunks that the root names.
    named: BTreeSet<ChunkIndex>,
    runs: Vec<(RemoteAddr, u64)>,
    state: ByteIndexState,
}

/// Reason why the sweep of value blocks gets no answer about a block. This is not a failure of the
/// sweep.
enum BlockQueryError {
    Failed(ByteIndexError),
}

impl From<BlockError> for BlockQueryError {
    fn from(error: BlockError) -> Self {
        Self::Failed(error.into())
    }
}

impl SweptLeaf for PageGeometry {
    fn chunk_shape(self) -> LeaseShape {
        page_shape(self)
    }

    fn write_retired(self, batch: &mut Batch, page: RemoteAddr, table: TableId) {
        let draft = PageDraft::of_records(self, Fence::START, Fence::End, []);
        let mut retired = draft.build(RemoteAddr::NULL.retired());
        let change = PageChange {
            geometry: self,
            addr: page,
            table,
            next: OwnerWord::FREE,
        };
        change.write_new(batch, &mut retired);
    }
}

impl<E: Endpoint> MemoryMaintainer<E> {
    /// Returns a batch that counts as control work.
    pub(crate) fn counted_batch(&self) -> CountedBatch<'_, E> {
        CountedBatch::new(&self.endpoint, OperationKind::Control)
    }

    /// Returns access to a table's pages; `None` if it is not a table of byte strings, or its page
    /// geometry is unsupported.
    pub(crate) fn page_access<'a>(&'a self, entry: &CatalogEntry) -> Option<PageAccess<'a, E>> {
        let TableKind::Bytes {
            page_size_blocks, ..
        } = entry.record.kind
        else {
            return None;
        };
        let size_bytes = u64::from(page_size_blocks) * BLOCK_SIZE_BYTES;
        Some(PageAccess {
            endpoint: &self.endpoint,
            layout: &self.layout,
            geometry: PageGeometry::new(size_bytes).ok()?,
            table: entry.record.id,
            owner: self.owner,
        })
    }

    /// Reads the root and the directory of a live table; `None` if it was skipped or dropped.
    pub(super) async fn read_byte_table<'a>(
        &'a self,
        entry: &CatalogEntry,
        access: PageAccess<'a, E>,
        wait_limit: &WaitLimit<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<SweptBytes<'a, E>>, IndexError> {
        let first_page = entry.record.first_leaf;
        let mut batch = self.counted_batch();
        let root = self.root_of(entry, &access, &mut batch, wait_limit, report);
        let Some(root) = root.await? else {
            return Ok(None);
        };
        let (geometry, table) = (access.geometry, entry.record.id);
        let contents = read_contents(&self.endpoint, &self.layout, geometry, table, root);
        let contents = contents.await?;
        let stride = geometry.stride_blocks();
        let runs = contents.runs.iter().filter(|run| !run.is_listed());
        let runs = runs.map(|run| (run.base, u64::from(run.page_count) * stride));
        // Listed pages lie in runs of older roots, or in chunks that splits take from.
        let listed = contents.runs.iter().flat_map(|run| run.listed.iter());
        let runs: Vec<_> = runs.chain(listed.map(|page| (*page, stride))).collect();
        let named = contents.named_chunks(&self.layout, geometry, root);
        let directory = contents.into_directory(geometry).map_err(|what| {
            let addr = root.place();
            let damage = farleaf_index::SnapshotDamage { addr, table, what };
            IndexError::SnapshotDamaged(Box::new(damage))
        })?;
        let state = ByteIndexState::new(directory.into(), 0, Rc::default());
        // Replaced pages are retired, but the root may still name them.
        state.follow_retired();
        Ok(Some(SweptBytes {
            access,
            first_page,
            named,
            runs,
            state,
        }))
    }

    /// Sweeps the page locks of a table. `left` are the chunks that are sorted next.
    pub(super) async fn sweep_bytes_locks(
        &self,
        table: &SweptBytes<'_, E>,
        chunks: &ChunkTable,
        left: &[(ChunkIndex, OwnerWord)],
        report: &mut SweepReport,
    ) -> Result<(), IndexError> {
        let stride = table.access.geometry.stride_blocks();
        let members = self.layout.members();
        let mut places: Vec<RemoteAddr> = Vec::new();
        for (base, block_count) in &table.runs {
            if members.is_reachable(base.node()) {
                let pages = (0..block_count / stride).map(|page| base.offset_blocks(page * stride));
                places.extend(pages);
            }
        }
        for (index, chunk) in chunks.iter() {
            if chunk.has_leaves(table.access.table) {
                places.extend(self.chunk_places(&table.access, index));
            }
        }
        let mut batch = self.counted_batch();
        self.sweep_locks(&table.access, &mut batch, &places, left, report)
            .await
    }

    /// Returns the new state of a chunk that has been taken over; `None` if it stays the node's.
    pub(super) async fn sort_bytes_chunk(
        &self,
        table: &SweptBytes<'_, E>,
        chunk: ChunkIndex,
        entry: &ChunkEntry,
        wait_limit: &WaitLimit<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<(ChunkPurpose, FreeLeaves)>, IndexError> {
        let none = FreeLeaves::default();
        Ok(match entry.purpose {
            Some(purpose @ ChunkPurpose::Leaves { .. }) => {
                let index = ByteIndex::new(table.access, &table.state);
                let is_in_use =
                    async |batch: &mut Batch, page, _| index.is_in_use(batch, page).await;
                let pages = LeasedLeaves {
                    access: &table.access,
                    first: table.first_page,
                    chunk,
                };
                let mut batch = self.counted_batch();
                let free = self.sort_leaves(&pages, &mut batch, is_in_use, wait_limit, report);
                free.await?.map(|free| (purpose, free))
            }
            Some(purpose @ (ChunkPurpose::Run { .. } | ChunkPurpose::Snapshot { .. }))
                if table.named.contains(&chunk) =>
            {
                Some((purpose, none))
            }
            // The chunk stays the node's until the sweep of value blocks releases it.
            Some(ChunkPurpose::Blocks { .. } | ChunkPurpose::Extent { .. }) | None => None,
            Some(_) => Some((ChunkPurpose::Free, none)),
        })
    }

    /// Sweeps the value blocks of a table that fenced sessions held.
    pub(super) async fn sweep_blocks(
        &self,
        table: &SweptBytes<'_, E>,
        wait_limit: &WaitLimit<'_>,
        report: &mut SweepReport,
    ) -> Result<(), IndexError> {
        let id = table.access.table;
        let sweeper = self.blocks.take(id);
        let index = ByteIndex::new(table.access, &table.state);
        let asks =
            async |question: ReferenceQuery<'_>| -> Result<ReferenceAnswer, BlockQueryError> {
                let mut batch = self.counted_batch();
                let word = question.pointer.word();
                let refers = index.refers(&mut batch, question.locator, word);
                match wait_limit.wait(refers).await {
                    Some(Ok(true)) => Ok(ReferenceAnswer::Referred),
                    Some(Ok(false)) => Ok(ReferenceAnswer::Unreferred),
                    Some(Err(error)) if error.fabric_failure().is_some() => {
                        Err(BlockQueryError::Failed(error))
                    }
                    Some(Err(_)) | None => Ok(ReferenceAnswer::Unknown),
                }
            };
        let access: BlockAccess<'_, E> = block_access(&table.access);
        let swept = sweeper.sweep(&access, asks).await;
        let silent = sweeper.waits_long_for(ASKING_SWEEP_COUNT);
        self.blocks.put_back(id, sweeper);
        if let Some(wanted) = silent {
            self.ask_silent(wanted).await?;
        }
        match swept {
            Ok(swept) => {
                report.note_blocks(&swept);
                Ok(())
            }
            Err(BlockQueryError::Failed(error)) => report.note_bytes_damage(error),
        }
    }

    /// Drops the sweeps of tables that no longer exist.
    pub(super) fn keep_block_sweeps(&self, tables: &[SweptBytes<'_, E>], unknown: &[TableId]) {
        let live = tables.iter().map(|table| table.access.table);
        let live: Vec<TableId> = live.chain(unknown.iter().copied()).collect();
        self.blocks.keep(&live);
    }

    /// Publishes the current number for the node's own session (LEAF-7). Sessions that have
    /// unlinked value blocks wait for all others, including the node, which runs no operation
    /// between two tasks. Costs two round trips.
    ///
    /// # Errors
    /// The fabric failed.
    pub(crate) async fn publish(&self) -> Result<(), PoolError> {
        let Some((session, _)) = self.owner.holder() else {
            return Ok(());
        };
        let mut batch = self.counted_batch();
        let read = batch.read(self.layout.sequence(), 1);
        self.endpoint.execute(&mut batch).await?;
        let sequence = batch.words(read)[0];
        batch.clear();
        let published = farleaf_pool::session::published_addr(&self.layout, session);
        batch.write_word(published, sequence);
        Ok(self.endpoint.execute(&mut batch).await?)
    }
}

impl SweepReport {
    /// Counts corruption, and continues; returns any other error, which ends the sweep.
    pub(super) fn note_bytes_damage(&mut self, error: ByteIndexError) -> Result<(), IndexError> {
        match error {
            ByteIndexError::Index(error) => self.note_damage(error),
            // Every other reason for a missing answer counts as corruption of the table.
            other => {
                self.damaged_count += 1;
                tracing::error!(
                    error = %other,
                    "cannot clean up after dead sessions: data corrupted or lost"
                );
                Ok(())
            }
        }
    }

    fn note_blocks(&mut self, swept: &BlockSweepReport) {
        self.chunk_count += swept.lease_count + swept.orphan_count;
        self.block_count += swept.taken_count;
        // The blocks wait for a live lock holder or for live sessions: another sweep is due.
        self.given_up_count += swept.unknown_count;
        self.waiting_count += swept.waiting_count;
    }
}
