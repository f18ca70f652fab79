//! Retraining of tables of byte strings: trains models over pages where they are, and merges pages
//! that deletes have emptied.
//!
//! - **Due models.** Only the memory node retrains, one table at a time. A model is due when enough
//!   splits of its pages were counted, or enough of its pages that deletes made underfull; the
//!   node's policy sets the numbers. Fewer splits suffice once the table is idle.
//! - **Walk.** Pages are walked along their links, from the last trained page of the model before
//!   the first due one, to where the next model begins. Lower fences never change, so models
//!   trained on them stay valid; later splits are found by links. If only splits were counted, no
//!   data moves. The kinds of the new models are chosen afresh.
//! - **New models.** New models list their pages one by one, 8 bytes each. Models that are not due
//!   keep their runs, residuals and synonym leaf tables (for an exception see *Snapshots in the
//!   reserve*).
//! - **Commit.** A snapshot is written completely, and then one CAS of the root makes it valid. The
//!   old snapshot is reused when every session has followed (LEAF-7). The new snapshot also names
//!   everything that the old one names, except itself and synonym leaf tables that were dropped
//!   with their models or replaced.
//! - **Late counts.** Sessions that have not followed yet count splits and underfull pages in
//!   dropped synonym leaf tables. When all sessions have followed, and before these tables are
//!   reused, the node adds the late counts to the models that replaced the old ones, which may
//!   become due again. So a table that grows faster than sessions follow is eventually trained as a
//!   whole. If a counter cannot be read, or the node dies first, links still lead to the pages of
//!   those splits. Underfull pages are then considered again when deletes make others of their
//!   model underfull.
//! - **Merges.** If underfull pages were counted, walked neighbors on one node are merged when
//!   their records fit into three quarters of a page: from right to left, each page once. So a
//!   retraining halves the number of many empty pages and counts the remaining pairs, for which the
//!   models are due again. In a large table it creates at most one page for eight existing ones.
//!   - Before it merges, it reserves chunks for its snapshot, sized by the pages counted. New pages
//!     on the main node go into new chunks only while adjacent free chunks for the next snapshot
//!     remain too. If no page could be created otherwise, one new chunk is used. Without this limit
//!     new pages could take all free space, and no retired page would ever be freed.
//!   - The new page is leased like that of a split. The retrainer waits for the right page's lock
//!     while it holds none, and does not wait for the left one's. The page that links to the left
//!     one is linked to the new page before the next step. Before the table's first page is
//!     retired, the pending root is cleared.
//!   - No merge extends into a model that is due for splits only. If a retraining is abandoned
//!     before the root is swapped, some pages reach from one model into the next, so the next
//!     retraining must include the same models together. It does, because under one root no count
//!     of underfull pages decreases.
//! - **Retired pages.** A walk may reach a page through retired ones: replaced or merged pages, or
//!   those of a retrainer that died. The page to the left is then linked to it, under its lock,
//!   before the root is swapped. So under a valid root, no live page links to a retired page that
//!   was found in the range of the new models. No live page lies in a run that the root does not
//!   name. Such runs, and retired pages found in shared chunks, are reused when every session has
//!   followed (LEAF-7). Pages that kept models name stay, retired or not, and so do their
//!   successors, which lie in the models' range. The table's first page keeps its address forever.
//! - **Crashes.** The pages retired by a retrainer that died are not recorded. The next one reads
//!   the links of all pages in shared chunks. A retired page that stores its lower fence counts
//!   like a split of the model in whose range it is. It is reused like other retired pages found
//!   once that model has been retrained. A retired page whose lower fence lies outside it stays
//!   until its table is dropped.
//! - **Snapshots in the reserve.** A snapshot in the chunks reserved for retraining is freed as a
//!   whole when the next one becomes valid. A kept model whose synonym leaf table lies there gets
//!   another table in the new snapshot, with the old counts and announcements; later ones are late
//!   counts. Otherwise a few tables would keep a chunk each, and no snapshot would find enough
//!   adjacent chunks.
//! - **Partial listing.** If a snapshot that lists all pages does not fit into the free space, a
//!   merging retraining lists only one in 4, 16 or 64 of the pages that splits created. The others
//!   count as splits, and are found by links. Pages in runs are always listed, because a run is
//!   reused when no snapshot names a page of it.

mod late;
mod listing;
mod merging;
mod renewal;
mod splice;

pub use late::{LateCounter, count_late};

use core::cell::Cell;
use core::ops::Range;
use std::rc::Rc;

use crate::load::{draw_generation, finish_root};
use crate::retrain::swap_root;
use crate::{IndexError, SnapshotDamage};
use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, CountedBatch, Endpoint, OperationKind};
use farleaf_leaf::strings::format::{PageAccess, block_access};
use farleaf_leaf::words::Contradiction;
use farleaf_model::strings::StringSegment;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::catalog::CatalogEntry;
use listing::ListedShare;

use crate::strings::error::ByteIndexError;
use crate::strings::operation::{ByteIndex, ByteIndexState};
use crate::strings::snapshot::{Contents, give_back_snapshot, read_contents, write_snapshot_into};
use splice::SplicedModels;

/// Divisor of a table's pages that limits the pages created by one retraining; a minimum applies.
/// Retired pages are reused only when all sessions have followed.
const STEP_SHARE: u64 = 8;
const STEP_COUNT_MIN: u64 = 1024;

/// State of a table when a retraining begins.
#[derive(Debug)]
pub struct ByteTableView<'a, E> {
    access: PageAccess<'a, E>,
    entry: &'a CatalogEntry,
    /// Root of the table.
    pub root: RemoteAddr,
    /// Contents of the snapshot that the root names.
    pub contents: Contents,
    /// Counters of each model.
    pub counted: Vec<CountedModel>,
}

/// Counters of a model since it was trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedModel {
    /// Synonym leaf table of the model; null if it has none, and then nothing was counted.
    pub synonym_table: RemoteAddr,
    /// Number of pages that the model was trained on.
    pub page_count: u32,
    /// Number of pages that splits have added.
    pub splits: u64,
    /// Number of pages that deletes have made underfull.
    pub underfull: u64,
}

/// Work that is due for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueWork {
    /// None.
    No,
    /// The model is trained again.
    Training,
    /// The model is trained again, and its pages are merged.
    Merging,
}

/// Models to retrain, and the chunks reserved for them. It outlives a retraining that is
/// interrupted while it waits.
#[derive(Debug)]
pub struct RetrainRanges {
    /// Adjacent models, and whether their pages are merged.
    ranges: Vec<(Range<usize>, bool)>,
    state: ByteIndexState,
    /// Chunks reserved for the snapshot while pages are merged, and the generation in whose name.
    snapshot_range: Cell<Option<(ChunkRange, u16)>>,
    listing: ListedShare,
}

/// Result of a retraining.
#[derive(Debug, Default)]
pub struct RetrainResult {
    /// Number of pages trained on.
    pub page_count: u64,
    /// Number of new models.
    pub model_count: u64,
    /// Number of models that were replaced.
    pub replaced_count: u64,
    /// Approximate number of records in the pages.
    pub record_count: u64,
    /// Number of pages that replaced two others.
    pub made_count: u64,
    /// Pages that this or an earlier retraining has retired and that only sessions that have not
    /// followed yet can reach.
    pub retired: Vec<RemoteAddr>,
    /// Key ranges of the retrained models: start, and start of the next model; `None` at the end of
    /// the table.
    pub ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Counters of dropped or replaced synonym leaf tables.
    pub late: Vec<LateCounter>,
    /// Error that stopped merging: there was no free space for new pages.
    no_space: Option<ByteIndexError>,
}

/// Root that a retraining has installed, and the contents of its snapshot.
#[derive(Debug)]
pub struct InstalledRoot {
    /// Root of the table.
    pub root: RemoteAddr,
    /// Contents of the snapshot that the root names.
    pub contents: Contents,
}

impl<'a, E: Endpoint> ByteTableView<'a, E> {
    /// Reads a table's root, its snapshot, and the counters since. `None` if the table was dropped.
    /// Costs three round trips, and those of reading the snapshot.
    ///
    /// # Errors
    /// The snapshot is corrupted, or the fabric failed.
    pub async fn look(
        access: PageAccess<'a, E>,
        entry: &'a CatalogEntry,
        broken: &Rc<Cell<bool>>,
    ) -> Result<Option<Self>, ByteIndexError> {
        let root = finish_root(&access, entry, broken).await?;
        if root.is_null() {
            return Ok(None);
        }
        let (layout, table) = (access.layout, access.table);
        let contents = read_contents(access.endpoint, layout, access.geometry, table, root).await?;
        let mut batch = CountedBatch::new(access.endpoint, OperationKind::Control);
        let reads: Vec<_> = contents
            .runs
            .iter()
            .map(|run| {
                let table = run.synonym_table;
                (
                    run,
                    (!table.is_null()).then(|| batch.read(table.word_at(0), 2)),
                )
            })
            .collect();
        if !batch.is_empty() {
            access.endpoint.execute(&mut batch).await?;
        }
        let counted = reads.into_iter().map(|(run, read)| {
            let words = read.map_or(&[0, 0][..], |read| batch.words(read));
            CountedModel {
                synonym_table: run.synonym_table,
                page_count: run.page_count,
                // Limited, so that sums of corrupted counters do not overflow.
                splits: words[0].min(u32::MAX.into()),
                underfull: words[1].min(u32::MAX.into()),
            }
        });
        let counted = counted.collect();
        Ok(Some(Self {
            access,
            entry,
            root,
            contents,
            counted,
        }))
    }

    /// Returns the model that covers a key.
    pub fn model_of(&self, key: &[u8]) -> usize {
        let segments = &self.contents.segments;
        let below_count = segments.partition_point(|segment| segment.first_fence() <= key);
        // The first model also covers keys below its first fence.
        below_count.saturating_sub(1)
    }

    /// Returns the models to be retrained; `None` if none is due.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn stretches(
        &self,
        due: &[DueWork],
        broken: &Rc<Cell<bool>>,
    ) -> Result<Option<RetrainRanges>, ByteIndexError> {
        let mut ranges = Vec::<(Range<usize>, bool)>::new();
        for (model, due) in due.iter().enumerate() {
            let merges = *due == DueWork::Merging;
            match ranges.last_mut() {
                _ if *due == DueWork::No => {}
                // No merge extends from a stretch of one kind into one of the other.
                Some((last, merging)) if last.end == model && *merging == merges => {
                    last.end += 1;
                }
                _ => ranges.push((model..model + 1, merges)),
            }
        }
        if ranges.is_empty() {
            return Ok(None);
        }
        let directory = self.contents.clone().into_directory(self.access.geometry);
        let directory = directory.map_err(|what| self.damage(what))?;
        let state = ByteIndexState::new(directory.into(), 0, Rc::clone(broken));
        let state = state.taking_reserve();
        state.follow_retired();
        Ok(Some(RetrainRanges {
            ranges,
            state,
            snapshot_range: Cell::new(None),
            listing: ListedShare::default(),
        }))
    }

    /// Retrains models of a table. Calls `may_go_on` before each step that merges pages. `None` if
    /// the table was loaded in the meantime, and the load's root is valid. Costs a round trip for
    /// each page, those of the steps and of writing the snapshot, and two for each kept model whose
    /// synonym leaf table lies in the reserve.
    ///
    /// # Errors
    /// Pages are corrupted, the pool is full, or the fabric failed. The root is unchanged, and a
    /// later retraining finds the retired pages again.
    pub async fn retrain(
        &self,
        stretches: &RetrainRanges,
        may_go_on: impl Fn() -> bool,
    ) -> Result<Option<(RetrainResult, InstalledRoot)>, ByteIndexError> {
        let index = ByteIndex::new(self.access, &stretches.state);
        let mut batch = CountedBatch::new(self.access.endpoint, OperationKind::Control);
        let (mut spliced, mut retrained) =
            (SplicedModels::new(&self.contents), RetrainResult::default());
        let has_merging = stretches.ranges.iter().any(|(_, merges)| *merges);
        if has_merging {
            self.hold_space(stretches).await?;
        }
        let retrained_all = self
            .retrain_all(
                &index,
                &mut batch,
                stretches,
                may_go_on,
                &mut spliced,
                &mut retrained,
            )
            .await;
        let has_trained = stretches.ranges.iter().any(|(_, merges)| !merges);
        let failed = match retrained_all {
            // Sessions would follow to a new root for nothing.
            Ok(()) if retrained.made_count == 0 && !has_trained => retrained.no_space.take(),
            Ok(()) => None,
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            stretches.let_space_go(&self.access).await?;
            return Err(error);
        }
        (retrained.page_count, retrained.model_count) = (spliced.page_count, spliced.model_count);
        retrained.record_count = spliced.record_count();
        retrained.late.extend(self.renew(&mut spliced));
        let installed = self.install(&mut batch, spliced, stretches).await?;
        Ok(installed.map(|installed| (retrained, installed)))
    }

    /// Walks, links, merges and trains all stretches.
    async fn retrain_all(
        &self,
        index: &ByteIndex<'_, E>,
        batch: &mut Batch,
        stretches: &RetrainRanges,
        may_go_on: impl Fn() -> bool,
        spliced: &mut SplicedModels<'_>,
        retrained: &mut RetrainResult,
    ) -> Result<(), ByteIndexError> {
        let page_counts = self
            .contents
            .runs
            .iter()
            .map(|run| u64::from(run.page_count));
        let step_count_max = STEP_COUNT_MIN.max(page_counts.sum::<u64>() / STEP_SHARE);
        let may_merge = |so_far: &RetrainResult| may_go_on() && so_far.made_count < step_count_max;
        for (range, merges) in &stretches.ranges {
            let mut walked = self.walk(index, batch, range).await?;
            self.relink(index, batch, &mut walked, retrained).await?;
            if *merges {
                self.merge(index, batch, &mut walked, stretches, may_merge, retrained)
                    .await?;
            }
            spliced.keep_until(range.start);
            let is_pair = |left: &_, right: &_| index.is_pair(left, right);
            let (access, listing) = (&self.access, &stretches.listing);
            spliced.train(&walked.pages, access, range.clone(), is_pair, listing)?;
            let covered = self.covered(range);
            retrained.ranges.push(covered);
            retrained.replaced_count += range.len() as u64;
            let gone = range
                .clone()
                .filter(|model| !self.counted[*model].synonym_table.is_null());
            let late =
                gone.map(|model| LateCounter::of(&self.contents, model, self.counted[model]));
            retrained.late.extend(late);
        }
        spliced.keep_until(self.contents.segments.len());
        Ok(())
    }

    /// Returns the key range of adjacent models.
    fn covered(&self, range: &Range<usize>) -> (Vec<u8>, Option<Vec<u8>>) {
        let segments = &self.contents.segments;
        let first_fence = |model: usize| segments[model].first_fence().to_vec();
        // The first model also covers keys below its first fence.
        let from = if range.start == 0 {
            Vec::new()
        } else {
            first_fence(range.start)
        };
        let end = (range.end < segments.len()).then(|| first_fence(range.end));
        (from, end)
    }

    /// Writes the snapshot, and swaps the root. `None` if a load was faster and has trained its own
    /// models.
    async fn install(
        &self,
        batch: &mut Batch,
        spliced: SplicedModels<'_>,
        stretches: &RetrainRanges,
    ) -> Result<Option<InstalledRoot>, ByteIndexError> {
        let access = &self.access;
        let fences = spliced.segments.iter().map(StringSegment::first_fence);
        if !fences.is_sorted_by(|one, next| one < next) {
            // No session could read it.
            let first = self.entry.record.first_leaf.place();
            let what = Contradiction::LinkToTheLeft;
            return Err(access.contradiction(first, what).into());
        }
        let generation = draw_generation(access, batch).await?;
        let mut contents = Contents {
            table: access.table,
            generation,
            record_count: spliced.record_count(),
            segments: spliced.segments,
            runs: spliced.runs,
            residuals: spliced.residuals,
        };
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let allocator = allocator.taking_reserve();
        let snapshot_range = stretches
            .snapshot_range
            .take()
            .map(|(snapshot_range, _)| snapshot_range);
        let written = write_snapshot_into(access, &allocator, &mut contents, snapshot_range);
        let (root, range) = written.await?;
        let filled = self.fill_renewed(batch, &contents, &spliced.renewed);
        if let Err(error) = filled.await {
            // Nothing names it.
            give_back_snapshot(&allocator, range, access.table, generation, false).await?;
            return Err(error);
        }
        let is_swapped = swap_root(access, batch, self.entry, self.root, root).await?;
        give_back_snapshot(&allocator, range, access.table, generation, is_swapped).await?;
        if !is_swapped {
            return Ok(None);
        }
        let counts = [&spliced.unlisted[..], &spliced.pairs];
        self.count_anew(batch, &contents, counts).await?;
        Ok(Some(InstalledRoot { root, contents }))
    }

    /// Adds to the counters of new models the pages that they do not list and the pairs left in
    /// them. If this never happens, later splits and deletes make the models due.
    async fn count_anew(
        &self,
        batch: &mut Batch,
        contents: &Contents,
        counts: [&[(usize, u64)]; 2],
    ) -> Result<(), ByteIndexError> {
        batch.clear();
        for (word, counts) in (0..).zip(counts) {
            for (run, count) in counts {
                batch.fetch_add(contents.runs[*run].synonym_table.word_at(word), *count);
            }
        }
        if !batch.is_empty() {
            self.access.endpoint.execute(batch).await?;
        }
        Ok(())
    }

    /// Returns the error for a contradiction in the snapshot behind the root.
    fn damage(&self, what: String) -> ByteIndexError {
        let (addr, table) = (self.root.place(), self.access.table);
        IndexError::SnapshotDamaged(Box::new(SnapshotDamage { addr, table, what })).into()
    }
}

impl RetrainRanges {
    /// Sets whether new pages must leave free space for the snapshot after the next, as much as is
    /// reserved for the next.
    fn leave_space(&self, leaves: bool) {
        let snapshot_range = self.snapshot_range.get().filter(|_| leaves);
        let chunk_count = snapshot_range.map_or(0, |(snapshot_range, _)| snapshot_range.count);
        self.state.leases().set_left_chunk_count(chunk_count);
    }

    fn leaves_space(&self) -> bool {
        self.state.leases().left_chunk_count() > 0
    }

    async fn let_space_go<E: Endpoint>(
        &self,
        access: &PageAccess<'_, E>,
    ) -> Result<(), ByteIndexError> {
        let Some((snapshot_range, generation)) = self.snapshot_range.take() else {
            return Ok(());
        };
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        Ok(give_back_snapshot(&allocator, snapshot_range, access.table, generation, false).await?)
    }

    /// Gives back the leases for new pages. Returns whether value blocks are left: others may still
    /// read them, so the next sweep frees them.
    ///
    /// # Errors
    /// The fabric failed; the next sweep then frees the leases too.
    pub async fn give_back<E: Endpoint>(
        &self,
        access: &PageAccess<'_, E>,
    ) -> Result<bool, ByteIndexError> {
        self.let_space_go(access).await?;
        for mut lease in self.state.leases().take_all() {
            let given_back = lease.give_back(access).await.map_err(ByteIndexError::from);
            match given_back {
                // Leases on a lost node are gone.
                Err(error) if error.lost_node().is_some() => {}
                given_back => given_back?,
            }
        }
        let blocks = self.state.block_store();
        blocks.give_back(&block_access(access)).await?;
        Ok(!blocks.is_empty())
    }
}
