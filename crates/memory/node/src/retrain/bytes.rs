//! Tables of byte strings: models trained anew over pages where they are, and pages that deletes
//! have emptied made fewer (BR1 to BR10 of `farleaf_byte_index::retrain`).

use core::cell::Cell;
use core::mem::take;
use std::collections::BTreeSet;
use std::rc::Rc;

use farleaf_byte_index::ByteIndexError;
use farleaf_byte_index::retrain::{Due, Installed, Looked, Retrained, Stretches, count_late};
use farleaf_byte_index::snapshot::Contents;
use farleaf_fabric::{CountedBatch, Endpoint, OperationKind};
use farleaf_index::IndexError;
use farleaf_index::load::finish_root;
use farleaf_page::PageImage;
use farleaf_page::format::PageAccess;
use farleaf_region::allocation::{ChunkAllocator, ChunkTable};
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::ChunkPurpose;
use farleaf_region::members::MemberState;
use farleaf_types::{RemoteAddr, TableId};

use super::Retrainer;
use super::garbage::Late;
use super::policy::{Counted, Shape};
use crate::patience::Patience;
use crate::sweep::Keeper;

/// A neighbour comes along when a model loses pages that has so few.
const SMALL_PAGE_COUNT: u32 = 8;
/// Pages become fewer without a pause while one in so many chunks of the pool is free.
const ROOMY_SHARE: u64 = 4;

/// A retired page that another retrainer has left, and the least key that it could have (BR8).
#[derive(Clone, Debug)]
pub(super) struct StalePage {
    addr: RemoteAddr,
    low: Vec<u8>,
}

impl Retrainer {
    /// Retrains what is due of a table of byte strings; whether more is to be done at once.
    pub(super) async fn look_at_bytes<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        entry: &CatalogEntry,
        patience: &Patience<'_>,
        looks: (bool, bool),
    ) -> Result<bool, IndexError> {
        let id = entry.record.id;
        let Some(access) = keeper.page_access(entry) else {
            return Ok(false);
        };
        let looked = Box::pin(self.retrain_bytes(keeper, (entry, access), patience, looks));
        match looked.await {
            Ok(is_more_due) => Ok(is_more_due),
            Err(error) if error.is_full() => {
                // What was retired before it was full is found again.
                self.is_scan_due.set(true);
                self.rest_until_room(id, &error);
                Ok(false)
            }
            Err(ByteIndexError::Index(error)) => {
                self.is_scan_due.set(true);
                Err(error)
            }
            Err(error) => {
                tracing::error!(table = %id, %error, "cannot retrain a table");
                self.is_scan_due.set(true);
                self.rest_table(id);
                Ok(false)
            }
        }
    }

    async fn retrain_bytes<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        (entry, access): (&CatalogEntry, PageAccess<'_, E>),
        patience: &Patience<'_>,
        (is_scan_due, is_own_look): (bool, bool),
    ) -> Result<bool, ByteIndexError> {
        let id = entry.record.id;
        let broken = Rc::new(Cell::new(false));
        self.count_late_of_bytes(&access, entry, &broken, patience)
            .await?;
        // T2: the chunks first, then the root.
        let chunks = if is_scan_due {
            Some(self.chunks(keeper).await?)
        } else {
            None
        };
        let looked = Looked::look(access, entry, &broken);
        let Some(looked) = patience.wait(Box::pin(looked)).await else {
            // It waits for somebody (W6).
            self.is_scan_due.set(is_scan_due || self.is_scan_due.get());
            self.rest_table(id);
            return Ok(false);
        };
        let Some(table) = looked? else {
            return Ok(false);
        };
        if let Some(chunks) = &chunks {
            let stale = self.find_stale_pages(keeper, (&access, entry), chunks);
            let stale = stale.await?;
            self.stale_pages.borrow_mut().insert(id, stale);
            let (none, named) = (Vec::new(), (table.root, &table.contents));
            self.collect_pages(keeper, &access, (named, chunks), (none, Late::default()))
                .await?;
        }
        let due = self.due_of_bytes(id, &table, is_own_look);
        let Some(stretches) = table.stretches(&due, &broken)? else {
            return Ok(false);
        };
        let begun = (self.clock)();
        let retrained = self.retrain_stretches(&access, &table, (&stretches, &broken), patience);
        let Some((retrained, installed)) = retrained.await? else {
            return Ok(false);
        };
        self.note_bytes(id, &retrained, (self.clock)().saturating_sub(begun));
        if retrained.made_count > 0 {
            self.rests.borrow_mut().forget_delay(id);
        } else if due.contains(&Due::Merging) {
            // Somebody is in the way, or there is no room on a node: sessions are not to follow to
            // a new root at every look.
            let look_tick_count = self.policy.look_tick_count;
            self.rests.borrow_mut().delay(id, look_tick_count);
        }
        let has_made = retrained.made_count > 0;
        let is_roomy = self
            .collect_retired(keeper, (entry, &access), (retrained, installed), patience)
            .await?;
        // Where there is little room, what is due again waits until what was retired is free (BR5
        // looks then), or for the next look; else it comes at once, so that new pages lie side by
        // side and not where others have just become free.
        Ok(has_made && is_roomy)
    }

    /// `None`: it was cut off while it waited for somebody, or a load was faster.
    async fn retrain_stretches<E: Endpoint>(
        &self,
        access: &PageAccess<'_, E>,
        table: &Looked<'_, E>,
        (stretches, broken): (&Stretches, &Cell<bool>),
        patience: &Patience<'_>,
    ) -> Result<Option<(Retrained, Installed)>, ByteIndexError> {
        let may_go_on = || !patience.is_over();
        let retrained = patience.wait(Box::pin(table.retrain(stretches, may_go_on)));
        let retrained = retrained.await;
        // Cut off, it was resting: it held nothing but what is leased.
        let given_back = stretches.give_back(access).await;
        if broken.get() || given_back.is_err() {
            self.wants_sweep.set(true);
        } else if matches!(given_back, Ok(true)) {
            self.left_blocks.set(true);
        }
        let Some(retrained) = retrained else {
            self.is_scan_due.set(true);
            self.rest_table(access.table);
            return Ok(None);
        };
        let retrained = retrained?;
        given_back?;
        if retrained.is_none() {
            self.is_scan_due.set(true);
        }
        Ok(retrained)
    }

    /// BR5.
    async fn count_late_of_bytes<E: Endpoint>(
        &self,
        access: &PageAccess<'_, E>,
        entry: &CatalogEntry,
        broken: &Rc<Cell<bool>>,
        patience: &Patience<'_>,
    ) -> Result<(), ByteIndexError> {
        let id = entry.record.id;
        let late = self.take_late_of_bytes(id);
        if late.is_empty() {
            return Ok(());
        }
        let counted = count_late(access, entry, broken, &late);
        match patience.wait(Box::pin(counted)).await {
            Some(Ok(count)) => self.count(|tally| tally.late_count += count),
            Some(Err(error @ ByteIndexError::Index(_))) => return Err(error),
            // Links lead to what they have counted.
            Some(Err(error)) => {
                tracing::warn!(table = %id, %error, "what came late is not counted");
            }
            None => {}
        }
        Ok(())
    }

    /// BR1, BR8: what is to be done with each model.
    fn due_of_bytes<E: Endpoint>(
        &self,
        id: TableId,
        table: &Looked<'_, E>,
        is_own_look: bool,
    ) -> Vec<Due> {
        let counted = table.counted.iter();
        let shapes = counted.map(|model| Shape {
            name: model.synonym_table,
            leaf_count: model.page_count.into(),
        });
        let shapes: Vec<Shape> = shapes.collect();
        let counted = table.counted.iter().map(|model| Counted {
            splits: model.splits,
            underfull: model.underfull,
        });
        let mut counted: Vec<Counted> = counted.collect();
        for stale in self.stale_pages.borrow().get(&id).into_iter().flatten() {
            counted[table.model_of(&stale.low)].splits += 1;
        }
        let mut seen = self.seen.borrow_mut();
        let quiet = seen.quiet(id, (&shapes, &counted), is_own_look, &self.policy);
        let is_delayed = self.rests.borrow().is_delayed(id);
        let due = shapes.iter().zip(&counted).zip(quiet);
        let due = due.map(|((shape, counted), is_quiet)| {
            let (mut shrinks, mut grows) = (*counted, *counted);
            (shrinks.splits, grows.underfull) = (0, 0);
            if shape.name.is_null() {
                Due::No
            } else if !is_delayed && self.policy.is_due(shape.leaf_count, shrinks, false) {
                Due::Merging
            } else if self.policy.is_due(shape.leaf_count, grows, is_quiet) {
                Due::Training
            } else {
                Due::No
            }
        });
        let mut due: Vec<Due> = due.collect();
        let is_small = |model: usize| table.counted[model].page_count <= SMALL_PAGE_COUNT;
        // Small ones between others that lose pages become one with them.
        for model in 1..due.len() {
            if due[model - 1] == Due::Merging && is_small(model) {
                due[model] = Due::Merging;
            }
        }
        for model in (1..due.len()).rev() {
            if due[model] == Due::Merging && is_small(model - 1) {
                due[model - 1] = Due::Merging;
            }
        }
        due
    }

    async fn chunks<E: Endpoint>(&self, keeper: &Keeper<E>) -> Result<ChunkTable, IndexError> {
        let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, keeper.owner);
        Ok(allocator.entries().await?)
    }

    fn note_bytes(&self, id: TableId, retrained: &Retrained, time_ns: u64) {
        if self.rests.borrow_mut().has_room(id) {
            tracing::info!(table = %id, "room to retrain again");
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

    /// BR7, BR8: what nothing leads to any more after a retraining is garbage. Whether a good deal
    /// of the pool is free besides.
    async fn collect_retired<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        (entry, access): (&CatalogEntry, &PageAccess<'_, E>),
        (mut retrained, installed): (Retrained, Installed),
        patience: &Patience<'_>,
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
        let late = Late {
            bytes: take(&mut retrained.late),
            ..Late::default()
        };
        // T2: as chunks are now, then the root: a load would have put in force another one.
        let chunks = self.chunks(keeper).await?;
        let broken = Cell::new(false);
        let root = patience.wait(Box::pin(finish_root(access, entry, &broken)));
        if root.await.transpose()? != Some(installed.root) {
            self.is_scan_due.set(true);
            return Ok(false);
        }
        retired.retain(|page| is_shared(access, &chunks, *page));
        let found = (retired.into_iter().collect(), late);
        let named = (installed.root, &installed.contents);
        self.collect_pages(keeper, access, (named, &chunks), found)
            .await?;
        let used = chunks.iter().map(|(_, chunk)| chunk);
        let used = used.filter(|chunk| chunk.purpose != Some(ChunkPurpose::Free));
        let regions = keeper.layout.regions();
        let all: u64 = regions.map(|region| region.superblock.chunk_count).sum();
        Ok((used.count() as u64) < all - all / ROOMY_SHARE)
    }

    /// T2, T3, BR4, BR7: these pages, and chunks of runs and snapshots that the root does not name,
    /// are garbage.
    async fn collect_pages<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        access: &PageAccess<'_, E>,
        ((root, contents), chunks): ((RemoteAddr, &Contents), &ChunkTable),
        (pages, late): (Vec<RemoteAddr>, Late),
    ) -> Result<(), ByteIndexError> {
        let (id, geometry) = (access.table, access.geometry);
        let named = contents.named_chunks(&keeper.layout, geometry, root);
        let chunks = self.unnamed_chunks(id, chunks, &named);
        let group = (id, geometry.page_size_bytes() as u64);
        Ok(self.discard(keeper, group, (pages, chunks), late).await?)
    }

    /// BR8: retired pages of shared chunks that nobody leases, and that are in no group.
    async fn find_stale_pages<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        (access, entry): (&PageAccess<'_, E>, &CatalogEntry),
        chunks: &ChunkTable,
    ) -> Result<Vec<StalePage>, IndexError> {
        let geometry = access.geometry;
        let first = entry.record.first_leaf.place();
        let mut known = self.known_leaves();
        known.insert(first);
        let mut stale = Vec::new();
        let mut batch = CountedBatch::new(&keeper.endpoint, OperationKind::Control);
        let members = keeper.layout.members();
        for (index, chunk) in chunks.iter() {
            let is_leaves = matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }));
            let is_own = chunk.table == access.table && chunk.owner.is_free();
            let is_there = members
                .state(index.node())
                .is_some_and(MemberState::is_reachable);
            if !is_leaves || !is_own || !is_there {
                continue;
            }
            let places = keeper.page_places(access, index).enumerate();
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
            keeper.endpoint.execute(&mut batch).await?;
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

/// Whether a page lies in a chunk of pages that splits made.
fn is_shared<E: Endpoint>(
    access: &PageAccess<'_, E>,
    chunks: &ChunkTable,
    page: RemoteAddr,
) -> bool {
    let chunk = access.layout.chunk_of(page);
    let chunk = chunk.and_then(|chunk| chunks.get(chunk));
    chunk.is_some_and(|chunk| matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. })))
}
