//! Tables of byte strings: trains models over pages where they are, and merges pages that deletes
//! have emptied (see `farleaf_index::strings::retrain`).

use core::cell::Cell;
use core::mem::take;
use std::collections::BTreeSet;
use std::rc::Rc;

use farleaf_base::{RemoteAddr, TableId};
use farleaf_fabric::Endpoint;
use farleaf_index::IndexError;
use farleaf_index::load::finish_root;
use farleaf_index::strings::ByteIndexError;
use farleaf_index::strings::retrain::{
    ByteTableView, DueWork, InstalledRoot, RetrainRanges, RetrainResult, count_late,
};
use farleaf_leaf::strings::PageImage;
use farleaf_leaf::strings::format::PageAccess;
use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::ChunkIndex;

use super::Retrainer;
use super::garbage::OldSynonymTables;
use super::look::is_shared;
use super::policy::{ModelChanges, ModelShape};
use crate::sweep::MemoryMaintainer;
use crate::wait_limit::WaitLimit;

/// A model with at most so many pages joins its neighbor whose pages are merged.
const SMALL_PAGE_COUNT: u32 = 8;
/// Pages are merged without a pause while one in so many chunks of the pool is free.
const ROOMY_SHARE: u64 = 4;

/// Retired page that another retrainer has left, and the smallest key that it could contain.
#[derive(Clone, Debug)]
pub(super) struct StalePage {
    addr: RemoteAddr,
    low: Vec<u8>,
}

impl Retrainer {
    /// Retrains the due models of a table of byte strings; returns whether more is due at once.
    pub(super) async fn check_byte_table<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        entry: &CatalogEntry,
        wait_limit: &WaitLimit<'_>,
        is_scan_due: bool,
        is_own_look: bool,
    ) -> Result<bool, IndexError> {
        let id = entry.record.id;
        let Some(access) = maintainer.page_access(entry) else {
            return Ok(false);
        };
        let retrained = Box::pin(self.retrain_bytes(
            maintainer,
            entry,
            access,
            wait_limit,
            is_scan_due,
            is_own_look,
        ));
        match retrained.await {
            Ok(is_more_due) => Ok(is_more_due),
            Err(error) if error.is_full() => {
                // Pages that were retired before the pool was full are found again.
                self.is_scan_due.set(true);
                self.delay_until_space(id, &error);
                Ok(false)
            }
            Err(ByteIndexError::Index(error)) => {
                self.is_scan_due.set(true);
                Err(error)
            }
            Err(error) => {
                tracing::error!(table = %id, %error, "cannot retrain a table");
                self.is_scan_due.set(true);
                self.delay_table(id);
                Ok(false)
            }
        }
    }

    async fn retrain_bytes<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        entry: &CatalogEntry,
        access: PageAccess<'_, E>,
        wait_limit: &WaitLimit<'_>,
        is_scan_due: bool,
        is_own_look: bool,
    ) -> Result<bool, ByteIndexError> {
        let id = entry.record.id;
        let broken = Rc::new(Cell::new(false));
        self.count_late_of_bytes(&access, entry, &broken, wait_limit)
            .await?;
        // Chunks are read first, then the root.
        let chunks = if is_scan_due {
            Some(maintainer.allocator().entries().await?)
        } else {
            None
        };
        let view = ByteTableView::look(access, entry, &broken);
        let Some(view) = wait_limit.wait(Box::pin(view)).await else {
            // It waits for a live lock holder.
            self.is_scan_due.set(is_scan_due || self.is_scan_due.get());
            self.delay_table(id);
            return Ok(false);
        };
        let Some(table) = view? else {
            return Ok(false);
        };
        if let Some(chunks) = &chunks {
            let stale = self.find_stale_pages(maintainer, &access, entry, chunks);
            let stale = stale.await?;
            self.stale_pages.borrow_mut().insert(id, stale);
            let (pages, late) = (Vec::new(), OldSynonymTables::default());
            let (root, contents) = (table.root, &table.contents);
            let named = contents.named_chunks(&maintainer.layout, access.geometry, root);
            self.collect_pages(maintainer, &access, &named, chunks, pages, late)
                .await?;
        }
        let due = self.due_of_bytes(id, &table, is_own_look);
        let Some(stretches) = table.stretches(&due, &broken)? else {
            return Ok(false);
        };
        let started_at_ns = (self.clock)();
        let retrained = self.retrain_stretches(&access, &table, &stretches, &broken, wait_limit);
        let Some((retrained, installed)) = retrained.await? else {
            return Ok(false);
        };
        self.note_bytes(id, &retrained, (self.clock)().saturating_sub(started_at_ns));
        if retrained.made_count > 0 {
            self.retry_delays.borrow_mut().forget_delay(id);
        } else if due.contains(&DueWork::Merging) {
            // A page is locked, or a node is full. Sessions should not have to follow to a new root
            // at every look.
            let look_tick_count = self.policy.look_tick_count;
            self.retry_delays.borrow_mut().delay(id, look_tick_count);
        }
        let has_made = retrained.made_count > 0;
        let has_free_chunks = self
            .collect_retired(maintainer, entry, &access, retrained, installed, wait_limit)
            .await?;
        // If little space is free, work that is due again waits until the retired pages are free
        // (late counts are added then), or for the next look. Otherwise it is done at once, so that
        // new pages are adjacent and do not fill pages that have just become free.
        Ok(has_made && has_free_chunks)
    }

    /// Retrains stretches of models. `None` if it was interrupted while it waited, or if a load was
    /// faster.
    async fn retrain_stretches<E: Endpoint>(
        &self,
        access: &PageAccess<'_, E>,
        table: &ByteTableView<'_, E>,
        stretches: &RetrainRanges,
        broken: &Cell<bool>,
        wait_limit: &WaitLimit<'_>,
    ) -> Result<Option<(RetrainResult, InstalledRoot)>, ByteIndexError> {
        let may_go_on = || !wait_limit.is_over();
        let retrained = wait_limit.wait(Box::pin(table.retrain(stretches, may_go_on)));
        let retrained = retrained.await;
        // When it was interrupted, it was idle: it held only leases.
        let given_back = stretches.give_back(access).await;
        if broken.get() || given_back.is_err() {
            self.wants_sweep.set(true);
        } else if matches!(given_back, Ok(true)) {
            self.left_blocks.set(true);
        }
        let Some(retrained) = retrained else {
            self.is_scan_due.set(true);
            self.delay_table(access.table);
            return Ok(None);
        };
        let retrained = retrained?;
        given_back?;
        if retrained.is_none() {
            self.is_scan_due.set(true);
        }
        Ok(retrained)
    }

    /// Adds late counts to the current models.
    async fn count_late_of_bytes<E: Endpoint>(
        &self,
        access: &PageAccess<'_, E>,
        entry: &CatalogEntry,
        broken: &Rc<Cell<bool>>,
        wait_limit: &WaitLimit<'_>,
    ) -> Result<(), ByteIndexError> {
        let id = entry.record.id;
        let late = self.take_late_of_bytes(id);
        if late.is_empty() {
            return Ok(());
        }
        let counted = count_late(access, entry, broken, &late);
        match wait_limit.wait(Box::pin(counted)).await {
            Some(Ok(count)) => self.count(|tally| tally.late_count += count),
            Some(Err(error @ ByteIndexError::Index(_))) => return Err(error),
            // Links lead to the pages of these splits.
            Some(Err(error)) => {
                tracing::warn!(table = %id, %error, "cannot add late counts to the current models");
            }
            None => {}
        }
        Ok(())
    }

    /// Returns the work that is due for each model.
    fn due_of_bytes<E: Endpoint>(
        &self,
        id: TableId,
        table: &ByteTableView<'_, E>,
        is_own_look: bool,
    ) -> Vec<DueWork> {
        let counted = table.counted.iter();
        let shapes = counted.map(|model| ModelShape {
            name: model.synonym_table,
            leaf_count: model.page_count.into(),
        });
        let shapes: Vec<ModelShape> = shapes.collect();
        let counted = table.counted.iter().map(|model| ModelChanges {
            splits: model.splits,
            underfull: model.underfull,
        });
        let mut counted: Vec<ModelChanges> = counted.collect();
        for stale in self.stale_pages.borrow().get(&id).into_iter().flatten() {
            counted[table.model_of(&stale.low)].splits += 1;
        }
        let mut seen = self.seen.borrow_mut();
        let quiet = seen.quiet(id, &shapes, &counted, is_own_look, &self.policy);
        let is_delayed = self.retry_delays.borrow().is_delayed(id);
        let due = shapes.iter().zip(&counted).zip(quiet);
        let due = due.map(|((shape, counted), is_quiet)| {
            let (mut shrinks, mut grows) = (*counted, *counted);
            (shrinks.splits, grows.underfull) = (0, 0);
            if shape.name.is_null() {
                DueWork::No
            } else if !is_delayed && self.policy.is_due(shape.leaf_count, shrinks, false) {
                DueWork::Merging
            } else if self.policy.is_due(shape.leaf_count, grows, is_quiet) {
                DueWork::Training
            } else {
                DueWork::No
            }
        });
        let mut due: Vec<DueWork> = due.collect();
        let is_small = |model: usize| table.counted[model].page_count <= SMALL_PAGE_COUNT;
        // A small model between others whose pages are merged joins them.
        for model in 1..due.len() {
            if due[model - 1] == DueWork::Merging && is_small(model) {
                due[model] = DueWork::Merging;
            }
        }
        for model in (1..due.len()).rev() {
            if due[model] == DueWork::Merging && is_small(model - 1) {
                due[model - 1] = DueWork::Merging;
            }
        }
        due
    }

    fn note_bytes(&self, id: TableId, retrained: &RetrainResult, time_ns: u64) {
        if self.retry_delays.borrow_mut().has_space(id) {
            tracing::info!(table = %id, "space to retrain is available again");
        }
        self.count(|tally| {
            tally.retraining_count += 1;
            tally.model_count += retrained.model_count;
            tally.found_count += retrained.replaced_count;
            tally.moved_count += 2 * retrained.made_count;
            tally.made_count += retrained.made_count;
            tally.record_count += retrained.record_count;
            tally.time_ns += time_ns;
            tally.time_ns_max = tally.time_ns_max.max(time_ns);
        });
        tracing::debug!(
            table = %id,
            pages = retrained.page_count,
            models = retrained.model_count,
            made = retrained.made_count,
            time_ns,
            "retrained"
        );
    }

    /// Makes garbage of everything that nothing leads to after a retraining. Returns whether much
    /// of the pool is free besides.
    async fn collect_retired<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        entry: &CatalogEntry,
        access: &PageAccess<'_, E>,
        mut retrained: RetrainResult,
        installed: InstalledRoot,
        wait_limit: &WaitLimit<'_>,
    ) -> Result<bool, ByteIndexError> {
        let mut retired: BTreeSet<RemoteAddr> = take(&mut retrained.retired).into_iter().collect();
        if let Some(stale) = self.stale_pages.borrow_mut().get_mut(&entry.record.id) {
            let is_covered = |page: &mut StalePage| {
                let is_met = retired.contains(&page.addr);
                is_met
                    || retrained.ranges.iter().any(|(from, end)| {
                        *from <= page.low && end.as_ref().is_none_or(|end| page.low < *end)
                    })
            };
            let found: Vec<StalePage> = stale.extract_if(.., is_covered).collect();
            retired.extend(found.into_iter().map(|page| page.addr));
        }
        let late = OldSynonymTables {
            bytes: take(&mut retrained.late),
            ..OldSynonymTables::default()
        };
        // The current chunks are read first, then the root: a load would have installed another
        // one.
        let chunks = maintainer.allocator().entries().await?;
        let broken = Cell::new(false);
        let root = wait_limit.wait(Box::pin(finish_root(access, entry, &broken)));
        if root.await.transpose()? != Some(installed.root) {
            self.is_scan_due.set(true);
            return Ok(false);
        }
        retired.retain(|page| is_shared(access, &chunks, *page));
        let pages = retired.into_iter().collect();
        let (layout, contents) = (&maintainer.layout, &installed.contents);
        let named = contents.named_chunks(layout, access.geometry, installed.root);
        self.collect_pages(maintainer, access, &named, &chunks, pages, late)
            .await?;
        let used = chunks.iter().map(|(_, chunk)| chunk);
        let used = used.filter(|chunk| chunk.purpose != Some(ChunkPurpose::Free));
        let memories = maintainer.layout.memories();
        let all: u64 = memories.map(|memory| memory.superblock.chunk_count).sum();
        Ok((used.count() as u64) < all - all / ROOMY_SHARE)
    }

    /// Makes garbage of these pages, and of chunks of runs and snapshots that the root does not
    /// name.
    async fn collect_pages<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        access: &PageAccess<'_, E>,
        named: &BTreeSet<ChunkIndex>,
        chunks: &ChunkTable,
        pages: Vec<RemoteAddr>,
        late: OldSynonymTables,
    ) -> Result<(), ByteIndexError> {
        let (id, geometry) = (access.table, access.geometry);
        let chunks = self.unnamed_chunks(id, chunks, named);
        let page_size_bytes = geometry.page_size_bytes() as u64;
        let discarded = self.discard(maintainer, id, page_size_bytes, pages, chunks, late);
        Ok(discarded.await?)
    }

    /// Finds retired pages in shared chunks that are not leased; omits those already in garbage
    /// groups.
    async fn find_stale_pages<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        access: &PageAccess<'_, E>,
        entry: &CatalogEntry,
        chunks: &ChunkTable,
    ) -> Result<Vec<StalePage>, IndexError> {
        let geometry = access.geometry;
        let first = entry.record.first_leaf.place();
        let mut known = self.known_leaves();
        known.insert(first);
        let mut stale = Vec::new();
        let mut batch = maintainer.counted_batch();
        let members = maintainer.layout.members();
        for (index, chunk) in chunks.iter() {
            let is_there = members.is_reachable(index.node());
            if !chunk.has_unleased_leaves(access.table) || !is_there {
                continue;
            }
            let places = maintainer.chunk_places(access, index).enumerate();
            let places = places.filter(|(number, place)| {
                !chunk.free.contains(*number as u64) && !known.contains(place)
            });
            batch.clear();
            let words = geometry.image_size_words();
            let reads = places.map(|(_, page)| (page, batch.read(geometry.state(page), words)));
            let reads: Vec<_> = reads.collect();
            if reads.is_empty() {
                continue;
            }
            maintainer.endpoint.execute(&mut batch).await?;
            for (addr, read) in reads {
                let image = PageImage::new(geometry, batch.words(read));
                let was_moved = image.is_retired() && !image.link().place().is_null();
                if !was_moved || !access.is_intact(image.words(), addr) {
                    continue;
                }
                if let Some(low) = image.low_in_page() {
                    let low = low.least_key().unwrap_or_default();
                    stale.push(StalePage { addr, low });
                }
            }
        }
        Ok(stale)
    }
}
