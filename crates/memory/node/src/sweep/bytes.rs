//! Tables of byte strings: their pages' locks, the chunks that dead sessions leased of them, and
//! value blocks (W1 to W8, BV8).

use core::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use farleaf_block::sweep::{Answer, BlockSweepReport, BlockSweeper, Question};
use farleaf_block::{BlockAccess, BlockError};
use farleaf_byte_index::load::page_shape;
use farleaf_byte_index::snapshot::read_contents;
use farleaf_byte_index::{ByteIndex, ByteIndexError, ByteIndexState};
use farleaf_fabric::{CountedBatch, Endpoint, OperationKind};
use farleaf_index::IndexError;
use farleaf_index::load::finish_root;
use farleaf_leaf::LeafError;
use farleaf_page::format::{PageAccess, block_access};
use farleaf_page::{PageChange, PageDraft, PageGeometry, PageImage};
use farleaf_region::RegionError;
use farleaf_region::allocation::ChunkTable;
use farleaf_region::catalog::{CatalogEntry, TableKind};
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::members::MemberState;
use farleaf_types::{BLOCK_SIZE_BYTES, OwnerWord, RemoteAddr, TableId};

use super::{GIVEN_UP, Keeper, SweepReport};
use crate::patience::Patience;

/// S4: sessions are asked for a number when blocks have waited for it at the end of so many sweeps.
const ASKING_SWEEP_COUNT: u32 = 5;
/// Lock words read with one batch.
const LOCK_BATCH_COUNT: usize = 1024;

/// The sweeps of value blocks, by table: what they have taken over waits for its grace period from
/// one sweep to the next.
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

/// A live table of byte strings, as a sweep sees it.
pub(super) struct SweptBytes<'a, E> {
    pub(super) access: PageAccess<'a, E>,
    first_page: RemoteAddr,
    /// What the root names.
    named: BTreeSet<ChunkIndex>,
    runs: Vec<(RemoteAddr, u64)>,
    state: ByteIndexState,
}

/// Why a question of the sweep of value blocks has no answer: not a failure of the sweep.
enum AskError {
    Failed(ByteIndexError),
}

impl From<BlockError> for AskError {
    fn from(error: BlockError) -> Self {
        Self::Failed(error.into())
    }
}

impl<E: Endpoint> Keeper<E> {
    /// Access to a table's pages; `None`: it is no table of byte strings, or one with pages that
    /// there are not.
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

    /// The root and the directory of a live table; `None`: it was given up (W6), or dropped.
    pub(super) async fn know_bytes<'a>(
        &'a self,
        entry: &CatalogEntry,
        access: PageAccess<'a, E>,
        patience: &Patience<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<SweptBytes<'a, E>>, IndexError> {
        let first_page = entry.record.first_leaf;
        // The search for the root waits for the first page, and so for the node itself (W5).
        self.sweep_page_locks(&access, (&[first_page], &[]), report)
            .await?;
        let broken = Cell::new(false);
        let finished = finish_root(&access, entry, &broken);
        let Some(root) = patience.wait(finished).await else {
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
        // Listed ones lie in runs of older roots, or in chunks that splits take from.
        let listed = contents.runs.iter().flat_map(|run| run.listed.iter());
        let runs: Vec<_> = runs.chain(listed.map(|page| (*page, stride))).collect();
        let named = contents.named_chunks(&self.layout, geometry, root);
        let directory = contents.into_directory(geometry).map_err(|what| {
            let addr = root.place();
            let damage = farleaf_index::SnapshotDamage { addr, table, what };
            IndexError::SnapshotDamaged(Box::new(damage))
        })?;
        let state = ByteIndexState::new(directory.into(), 0, Rc::default());
        // Splits out of place leave retired pages that the root still names.
        state.follow_retired();
        Ok(Some(SweptBytes {
            access,
            first_page,
            named,
            runs,
            state,
        }))
    }

    /// W1, of a table's pages. `left` are the chunks that are sorted next.
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

    /// The places for pages in a chunk that splits take from, in order.
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
                    // What a sweep leaves locked is for the next one (W5).
                    let broken = Cell::new(false);
                    let recovery = access.recover(&mut batch, page, owner, &broken);
                    match recovery.await {
                        Ok(recovered) => report.lock_count += u64::from(recovered),
                        // Its maker may have died in the middle of its WRITE: W3 tells whether it
                        // ever was a page.
                        Err(LeafError::Damaged { .. } | LeafError::Contradiction { .. })
                            if self.is_in(left, page) => {}
                        Err(error) => report.note_damage(error.into())?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a page lies in one of these chunks.
    fn is_in(&self, left: &[(ChunkIndex, OwnerWord)], page: RemoteAddr) -> bool {
        let chunk = self.layout.chunk_of(page);
        left.iter().any(|(index, _)| Some(*index) == chunk)
    }

    /// W3 and W4: what becomes of a chunk that has been taken over; `None`: it stays the node's.
    pub(super) async fn sort_bytes_chunk(
        &self,
        table: &SweptBytes<'_, E>,
        chunk: ChunkIndex,
        entry: &ChunkEntry,
        patience: &Patience<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<(ChunkPurpose, FreeLeaves)>, IndexError> {
        let none = FreeLeaves::default();
        Ok(match entry.purpose {
            Some(purpose @ ChunkPurpose::Leaves { .. }) => {
                let free = self.sort_pages(table, chunk, patience, report).await?;
                report.leaf_count += free.as_ref().map_or(0, FreeLeaves::count);
                free.map(|free| (purpose, free))
            }
            Some(purpose @ (ChunkPurpose::Run { .. } | ChunkPurpose::Snapshot { .. }))
                if table.named.contains(&chunk) =>
            {
                Some((purpose, none))
            }
            // BV6: it stays the node's until the sweep of value blocks lets go of it.
            Some(ChunkPurpose::Blocks { .. } | ChunkPurpose::Extent { .. }) | None => None,
            Some(_) => Some((ChunkPurpose::Free, none)),
        })
    }

    /// W3: which pages of a leased chunk are free; `None`: it was given up (W6).
    async fn sort_pages(
        &self,
        table: &SweptBytes<'_, E>,
        chunk: ChunkIndex,
        patience: &Patience<'_>,
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
                // It was split out of place, or moved: others may still come by it (D7).
                continue;
            }
            let is_used = async {
                if is_nothing {
                    return Ok(false);
                }
                index.is_in_use(&mut batch, place).await
            };
            let Some(is_used) = patience.wait(is_used).await else {
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
            if !is_retired {
                let fences = (farleaf_page::Fence::START, farleaf_page::Fence::End);
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

    /// BV8: what fenced sessions held of a table's value blocks.
    pub(super) async fn sweep_blocks(
        &self,
        table: &SweptBytes<'_, E>,
        patience: &Patience<'_>,
        report: &mut SweepReport,
    ) -> Result<(), IndexError> {
        let id = table.access.table;
        let sweeper = self.blocks.take(id);
        let index = ByteIndex::new(table.access, &table.state);
        let asks = async |question: Question<'_>| -> Result<Answer, AskError> {
            let mut batch = CountedBatch::new(&self.endpoint, OperationKind::Control);
            let word = question.pointer.word();
            let refers = index.refers(&mut batch, question.locator, word);
            match patience.wait(refers).await {
                Some(Ok(true)) => Ok(Answer::Referred),
                Some(Ok(false)) => Ok(Answer::Unreferred),
                Some(Err(error)) if error.fabric_failure().is_some() => {
                    Err(AskError::Failed(error))
                }
                Some(Err(_)) | None => Ok(Answer::Unknown),
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
            Err(AskError::Failed(error)) => report.note_bytes_damage(error),
        }
    }

    /// Forgets the sweeps of tables that are gone.
    pub(super) fn keep_block_sweeps(&self, tables: &[SweptBytes<'_, E>], unknown: &[TableId]) {
        let live = tables.iter().map(|table| table.access.table);
        let live: Vec<TableId> = live.chain(unknown.iter().copied()).collect();
        self.blocks.keep(&live);
    }

    /// D7: sessions that have unlinked value blocks wait for all others, the node's own among them,
    /// which between two of its works has nothing under way. Two round trips.
    ///
    /// # Errors
    /// The fabric failed.
    pub(crate) async fn publish(&self) -> Result<(), RegionError> {
        let Some((session, _)) = self.owner.holder() else {
            return Ok(());
        };
        let mut batch = CountedBatch::new(&self.endpoint, OperationKind::Control);
        let read = batch.read(self.layout.sequence(), 1);
        self.endpoint.execute(&mut batch).await?;
        let sequence = batch.words(read)[0];
        batch.clear();
        let published = farleaf_region::session::published_addr(&self.layout, session);
        batch.write_word(published, sequence);
        Ok(self.endpoint.execute(&mut batch).await?)
    }
}

impl SweepReport {
    /// W7: counts damage, and goes on; anything else ends the sweep.
    fn note_bytes_damage(&mut self, error: ByteIndexError) -> Result<(), IndexError> {
        match error {
            ByteIndexError::Index(error) => self.note_damage(error),
            // What a block's chunk could not be asked for is damage of the table's, too.
            other => {
                self.damaged_count += 1;
                tracing::error!(error = %other, "cannot sweep what dead sessions left here");
                Ok(())
            }
        }
    }

    fn note_blocks(&mut self, swept: &BlockSweepReport) {
        self.chunk_count += swept.lease_count + swept.orphan_count;
        self.block_count += swept.taken_count;
        // They wait for one that holds a page, or for the sessions that are alive: another sweep is
        // due.
        self.given_up_count += swept.unknown_count;
        self.waiting_count += swept.waiting_count;
    }
}
