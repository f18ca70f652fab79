//! Sweeps tables of byte strings: locks of pages, the chunks that dead sessions leased for pages,
//! and value blocks. See [`sweep`](crate::sweep) for the rules.

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use farleaf_base::{BLOCK_SIZE_BYTES, OwnerWord, RemoteAddr, TableId};
use farleaf_byte_index::load::page_shape;
use farleaf_byte_index::snapshot::read_contents;
use farleaf_byte_index::{ByteIndex, ByteIndexError, ByteIndexState};
use farleaf_fabric::{CountedBatch, Endpoint, OperationKind};
use farleaf_index::IndexError;
use farleaf_index::load::finish_root;
use farleaf_leaf::blobs::sweep::{BlockSweepReport, BlockSweeper, ReferenceAnswer, ReferenceQuery};
use farleaf_leaf::blobs::{BlockAccess, BlockError};
use farleaf_leaf::strings::format::{PageAccess, block_access};
use farleaf_leaf::strings::{PageChange, PageDraft, PageGeometry, PageImage};
use farleaf_leaf::words::LeafError;
use farleaf_pool::PoolError;
use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::catalog::{CatalogEntry, TableKind};
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::members::MemberState;

use super::{GIVEN_UP, MemoryMaintainer, SweepReport};
use crate::wait_limit::WaitLimit;

/// Number of sweeps after which sessions are asked to publish a number, if blocks still wait for
/// it.
const ASKING_SWEEP_COUNT: u32 = 5;
/// Number of lock words read per batch.
const LOCK_BATCH_COUNT: usize = 1024;

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

impl<E: Endpoint> MemoryMaintainer<E> {
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
        // The search for the root waits for the first page's lock, which the node itself may hold.
        self.sweep_page_locks(&access, (&[first_page], &[]), report)
            .await?;
        let broken = Cell::new(false);
        let finished = finish_root(&access, entry, &broken);
        let Some(root) = wait_limit.wait(finished).await else {
            return Ok(None);
        };
        let root = root?;
        if root.is_null() {
            return Ok(None);
        }
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
        (chunks, left): (&ChunkTable, &[(ChunkIndex, OwnerWord)]),
        report: &mut SweepReport,
    ) -> Result<(), IndexError> {
        let stride = table.access.geometry.stride_blocks();
        let members = self.layout.members();
        let is_reachable = |node| members.state(node).is_some_and(MemberState::is_reachable);
        let mut places: Vec<RemoteAddr> = Vec::new();
        for (base, block_count) in &table.runs {
            if is_reachable(base.node()) {
                let pages = (0..block_count / stride).map(|page| base.offset_blocks(page * stride));
                places.extend(pages);
            }
        }
        for (index, chunk) in chunks.iter() {
            let is_leaves = matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }));
            if is_leaves && chunk.table == table.access.table {
                places.extend(self.page_places(&table.access, index));
            }
        }
        self.sweep_page_locks(&table.access, (&places, left), report)
            .await
    }

    /// Returns the page addresses in a chunk that splits take from, in order.
    pub(crate) fn page_places<'a>(
        &'a self,
        access: &PageAccess<'a, E>,
        chunk: ChunkIndex,
    ) -> impl Iterator<Item = RemoteAddr> + 'a {
        let start = self.layout.chunk_start(chunk);
        let shape = page_shape(access.geometry);
        (0..shape.piece_count).map(move |page| start.offset_blocks(page * shape.stride_blocks))
    }

    async fn sweep_page_locks(
        &self,
        access: &PageAccess<'_, E>,
        (pages, left): (&[RemoteAddr], &[(ChunkIndex, OwnerWord)]),
        report: &mut SweepReport,
    ) -> Result<(), IndexError> {
        let mut batch = CountedBatch::new(&self.endpoint, OperationKind::Control);
        let ChunkPurpose::Leaves { slots } = page_shape(access.geometry).purpose else {
            unreachable!("pages are leaves");
        };
        let is_pages = |purpose| match purpose {
            ChunkPurpose::Leaves { slots: of } | ChunkPurpose::Run { slots: of, .. } => of == slots,
            _ => false,
        };
        let of = (access.table, is_pages);
        for part in pages.chunks(LOCK_BATCH_COUNT) {
            batch.clear();
            let locks: Vec<_> = part
                .iter()
                .map(|page| (*page, batch.read(access.geometry.lock(*page), 1)))
                .collect();
            self.endpoint.execute(&mut batch).await?;
            let held: Vec<(RemoteAddr, OwnerWord)> = locks
                .into_iter()
                .map(|(page, read)| (page, OwnerWord::from_word(batch.words(read)[0])))
                .filter(|(_, owner)| !owner.is_free())
                .collect();
            for (page, owner) in held {
                if self.is_left(&mut batch, owner).await?
                    && self.is_still(&mut batch, page, of).await?
                {
                    // Locks that a sweep leaves are released by the next one.
                    let broken = Cell::new(false);
                    let recovery = access.recover(&mut batch, page, owner, &broken);
                    match recovery.await {
                        Ok(recovered) => report.lock_count += u64::from(recovered),
                        // The page's creator may have died in the middle of its WRITE. Sorting the
                        // chunk finds out whether it was ever linked to.
                        Err(LeafError::Damaged { .. } | LeafError::Contradiction { .. })
                            if self.is_in(left, page) => {}
                        Err(error) => report.note_damage(error.into())?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether a page lies in one of these chunks.
    fn is_in(&self, left: &[(ChunkIndex, OwnerWord)], page: RemoteAddr) -> bool {
        let chunk = self.layout.chunk_of(page);
        left.iter().any(|(index, _)| Some(*index) == chunk)
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
                let free = self.sort_pages(table, chunk, wait_limit, report).await?;
                report.leaf_count += free.as_ref().map_or(0, FreeLeaves::count);
                free.map(|free| (purpose, free))
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

    /// Returns which pages of a leased chunk are free; `None` if the chunk was skipped.
    async fn sort_pages(
        &self,
        table: &SweptBytes<'_, E>,
        chunk: ChunkIndex,
        wait_limit: &WaitLimit<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<FreeLeaves>, IndexError> {
        let access = &table.access;
        let mut free = FreeLeaves::default();
        let mut batch = CountedBatch::new(&self.endpoint, OperationKind::Control);
        let index = ByteIndex::new(*access, &table.state);
        for (number, place) in self.page_places(access, chunk).enumerate() {
            if place == table.first_page {
                continue;
            }
            batch.clear();
            let words = access.geometry.image_size_words();
            let read = batch.read(access.geometry.state(place), words);
            self.endpoint.execute(&mut batch).await?;
            let image = PageImage::new(access.geometry, batch.words(read));
            let is_retired = image.is_retired();
            let is_nothing = is_retired || image.was_never_written();
            if is_retired && !image.link().place().is_null() {
                // The page was replaced or moved: others may still reach it (LEAF-7).
                continue;
            }
            let is_used = async {
                if is_nothing {
                    return Ok(false);
                }
                index.is_in_use(&mut batch, place).await
            };
            let Some(is_used) = wait_limit.wait(is_used).await else {
                tracing::warn!(table = %access.table, page = %place, "{GIVEN_UP}");
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
            if !is_nothing && self.is_moved(access, &mut batch, place).await? {
                continue;
            }
            if !is_retired {
                let fences = (
                    farleaf_leaf::strings::Fence::START,
                    farleaf_leaf::strings::Fence::End,
                );
                let draft = PageDraft::of_records(access.geometry, fences, []);
                let mut page = draft.build(RemoteAddr::NULL.retired());
                batch.clear();
                let change = PageChange {
                    geometry: access.geometry,
                    addr: place,
                    table: access.table,
                    next: OwnerWord::FREE,
                };
                change.write_new(&mut batch, &mut page);
                self.endpoint.execute(&mut batch).await?;
            }
            free.insert(number as u64);
        }
        Ok(Some(free))
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
                let mut batch = CountedBatch::new(&self.endpoint, OperationKind::Control);
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
        let mut batch = CountedBatch::new(&self.endpoint, OperationKind::Control);
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
    fn note_bytes_damage(&mut self, error: ByteIndexError) -> Result<(), IndexError> {
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
