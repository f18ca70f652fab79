//! Retraining of tables of byte strings: models are trained anew over pages where they are, and
//! pages that deletes have emptied become fewer.
//!
//! - **BR1.** The memory node alone retrains, one table at a time. A model is due when so many
//!   splits of its pages have been counted as its policy says (T1), or so many of its pages that
//!   deletes have made underfull; with fewer splits once the table is at rest.
//! - **BR2.** Pages are walked along their links, from the last page that the model before the
//!   first due one was trained on, to where the next model begins. Lower fences never change, so
//!   what is trained on them stays true; what splits meanwhile is found by links, as ever. Where
//!   only splits were counted nothing is moved. What kind of models the new ones are is chosen
//!   anew.
//! - **BR3.** New models list their pages one by one, 8 bytes each; those that are not due keep
//!   their runs, residuals and synonym leaf tables (but for BR9).
//! - **BR4.** A snapshot is written whole, and then one CAS of the root lets it count (R1). The
//!   old one is reused when every session has followed (D7). What it names beside itself is named
//!   by the new one, too, but for synonym leaf tables of models that are gone, or that get another
//!   one (BR9).
//! - **BR5.** Sessions that have not followed yet count splits, and underfull pages, in the
//!   synonym leaf tables that are gone. When all have followed, and before these are reused, what
//!   came since they were read for BR1 is added to the counters of the models in whose place it
//!   is, for which these may be due again. So a table that grows faster than sessions follow is
//!   trained whole in the end. Where a counter cannot be read, or the node dies first, links lead
//!   to the splits that it has counted; underfull pages count again when deletes make others of
//!   their model so.
//! - **BR6.** Where underfull pages were counted, two neighbours of those walked whose records fit
//!   into three quarters of one page become one by M1 to M3, if they lie on one node: from right
//!   to left, once each; so of many empty pages a retraining leaves half, and counts the pairs
//!   that are left, for which the models are due again. Of a large table it makes one page for
//!   eight that there are. It holds room for its snapshot before it makes any, by the pages that
//!   have been counted, and new pages on the home go into new chunks only while there is room in
//!   one piece for the next snapshot, too; if none could be made otherwise, into one. Else new
//!   pages could take all that there is, and nothing retired would ever be free. The new page's
//!   place is leased like a split's. It waits for the right one's lock while it holds none, and
//!   for the left one's not at all; what links to the left one is linked to the new one before the
//!   next step (BR7). Before the table's first page is retired the pending root is zeroed (R1). No
//!   merge crosses into a model that is due for splits alone: what is given up before the root is
//!   swapped leaves pages that reach from one model into the next, so whoever comes next has to
//!   take the same models together. It does, as under one root no count of underfull pages becomes
//!   less.
//! - **BR7.** Where the walk has come to a page through retired ones (BP6, BR6, or a retrainer
//!   that died), the page to the left is linked to it, under its lock, before the root is swapped.
//!   So when a root is in force, no page that is alive links to a retired one that was met in the
//!   range of its new models, and none lies in a run that it does not name: such runs, and retired
//!   pages of shared chunks that were met, are reused when every session has followed (D7, T3).
//!   What kept models name stays, retired or not, and so does what that leads to, as it lies in
//!   their range (BR6). The table's first page keeps its place for ever.
//! - **BR8.** Of a retrainer that dies nobody knows what it has retired. The next one reads the
//!   links of all pages in shared chunks (T4). A retired one whose lower fence lies in it counts
//!   like a split of the model in whose range it is, and is reused like what was met (BR7) once
//!   that has been retrained. One whose lower fence lies outside of it goes with its table.
//! - **BR9.** A snapshot in what is kept for retraining (A6) is gone as a whole when the next one
//!   is in force: a kept model whose synonym leaf table lies there gets another one, in the new
//!   snapshot, with what was counted and announced in the old one; what comes there later is late
//!   (BR5). Else a few tables would keep a chunk each, and no snapshot could find so many side by
//!   side as it takes.
//! - **BR10.** Where there is no room for a snapshot that lists all pages, a retraining for which
//!   pages become fewer lists one in four, in 16, or in 64, of those that splits have made; the
//!   others count as splits, and are found by links. Those that lie in runs are listed always, as
//!   what names none of its pages is reused (BR7).

mod late;
mod listing;
mod merging;
mod renewal;
mod splice;

pub use late::{LateCounter, count_late};

use core::cell::Cell;
use core::ops::Range;
use std::rc::Rc;

use farleaf_fabric::{Batch, CountedBatch, Endpoint, OperationKind};
use farleaf_index::load::{draw_generation, finish_root};
use farleaf_index::retrain::swap_root;
use farleaf_index::{IndexError, SnapshotDamage};
use farleaf_leaf::Contradiction;
use farleaf_model::strings::StringSegment;
use farleaf_page::format::{PageAccess, block_access};
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::catalog::CatalogEntry;
use farleaf_types::RemoteAddr;
use listing::Listing;

use crate::error::ByteIndexError;
use crate::operation::{ByteIndex, ByteIndexState};
use crate::snapshot::{Contents, give_back_snapshot, read_contents, write_snapshot_into};
use splice::Spliced;

/// Pages that a retraining makes of others at the most: one for so many of the table's, or so many
/// if that is more. What is retired is reused only when all have followed.
const STEP_SHARE: u64 = 8;
const STEP_COUNT_MIN: u64 = 1024;

/// A table, as it is looked at once.
#[derive(Debug)]
pub struct Looked<'a, E> {
    access: PageAccess<'a, E>,
    entry: &'a CatalogEntry,
    /// The root.
    pub root: RemoteAddr,
    /// What it names.
    pub contents: Contents,
    /// What was counted in each model.
    pub counted: Vec<CountedModel>,
}

/// What was counted in a model since it was trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedModel {
    /// Its synonym leaf table; null: it has none, and nothing was counted.
    pub synonym_table: RemoteAddr,
    /// Pages that it was trained on.
    pub page_count: u32,
    /// Pages that splits have added.
    pub splits: u64,
    /// Pages that deletes have made underfull.
    pub underfull: u64,
}

/// What is to be done with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    No,
    /// It is trained anew.
    Training,
    /// And pages of it become fewer.
    Merging,
}

/// Models that are retrained, and what is held meanwhile: it outlives a retraining that is cut off
/// while it waits for somebody.
#[derive(Debug)]
pub struct Stretches {
    /// Models side by side, and whether pages of theirs become fewer.
    ranges: Vec<(Range<usize>, bool)>,
    state: ByteIndexState,
    /// Kept for the snapshot while pages are merged, and in which generation's name.
    room: Cell<Option<(ChunkRange, u16)>>,
    listing: Listing,
}

/// What a retraining has made.
#[derive(Debug, Default)]
pub struct Retrained {
    /// Pages that were trained on.
    pub page_count: u64,
    /// Models that were made.
    pub model_count: u64,
    /// Models that were retrained.
    pub replaced_count: u64,
    /// Records in the pages, about.
    pub record_count: u64,
    /// Pages that took the place of two.
    pub made_count: u64,
    /// Pages that were retired, by this retraining or before, and that nothing leads to any more
    /// but sessions that have not followed yet (BR7).
    pub retired: Vec<RemoteAddr>,
    /// Where the models begin that were retrained, and where the next ones do; `None`: at the end.
    pub ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// The counters of synonym leaf tables that are gone (BR5, BR9).
    pub late: Vec<LateCounter>,
    /// Why pages did not become fewer: there was no room for what takes their place.
    no_room: Option<ByteIndexError>,
}

/// The root that a retraining has put in force, and what it names.
#[derive(Debug)]
pub struct Installed {
    /// The root.
    pub root: RemoteAddr,
    /// What it names.
    pub contents: Contents,
}

impl<'a, E: Endpoint> Looked<'a, E> {
    /// Looks at a table: its root, what that names, and what was counted since. `None`: it was
    /// dropped. Three round trips, and those of reading the snapshot.
    ///
    /// # Errors
    /// The snapshot is damaged, or the fabric failed.
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
                // Whatever is there, sums of it stay numbers.
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

    /// The model that covers a key.
    pub fn model_of(&self, key: &[u8]) -> usize {
        let segments = &self.contents.segments;
        let begun = segments.partition_point(|segment| segment.first_fence() <= key);
        // The first model covers what is below its first fence, too.
        begun.saturating_sub(1)
    }

    /// The models to be retrained; `None`: none is due.
    ///
    /// # Errors
    /// The snapshot contradicts itself.
    pub fn stretches(
        &self,
        due: &[Due],
        broken: &Rc<Cell<bool>>,
    ) -> Result<Option<Stretches>, ByteIndexError> {
        let mut ranges = Vec::<(Range<usize>, bool)>::new();
        for (model, due) in due.iter().enumerate() {
            let merges = *due == Due::Merging;
            match ranges.last_mut() {
                _ if *due == Due::No => {}
                // BR6: no merge crosses from one kind into the other.
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
        Ok(Some(Stretches {
            ranges,
            state,
            room: Cell::new(None),
            listing: Listing::default(),
        }))
    }

    /// Retrains models of a table. `may_go_on` is asked before each step that merges pages. `None`:
    /// the table was loaded meanwhile, and the load's root is in force. A round trip for each page,
    /// those of the steps, and of writing the snapshot; and two for each kept model whose synonym
    /// leaf table lies in the reserve (BR9).
    ///
    /// # Errors
    /// Pages are damaged, the pool is full, or the fabric failed: the root is as it was, and what
    /// was retired is found again (BR8).
    pub async fn retrain(
        &self,
        stretches: &Stretches,
        may_go_on: impl Fn() -> bool,
    ) -> Result<Option<(Retrained, Installed)>, ByteIndexError> {
        let index = ByteIndex::new(self.access, &stretches.state);
        let mut batch = CountedBatch::new(self.access.endpoint, OperationKind::Control);
        let (mut spliced, mut retrained) = (Spliced::new(&self.contents), Retrained::default());
        let has_merging = stretches.ranges.iter().any(|(_, merges)| *merges);
        if has_merging {
            self.hold_room(stretches).await?;
        }
        let retrained_all = self
            .retrain_all(
                &index,
                &mut batch,
                (stretches, may_go_on),
                (&mut spliced, &mut retrained),
            )
            .await;
        let has_trained = stretches.ranges.iter().any(|(_, merges)| !merges);
        let failed = match retrained_all {
            // Sessions would follow to a new root for nothing.
            Ok(()) if retrained.made_count == 0 && !has_trained => retrained.no_room.take(),
            Ok(()) => None,
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            stretches.let_room_go(&self.access).await?;
            return Err(error);
        }
        (retrained.page_count, retrained.model_count) = (spliced.page_count, spliced.model_count);
        retrained.record_count = spliced.record_count();
        retrained.late.extend(self.renew(&mut spliced));
        let installed = self.install(&mut batch, spliced, stretches).await?;
        Ok(installed.map(|installed| (retrained, installed)))
    }

    /// Walks, links, merges and trains, stretch by stretch.
    async fn retrain_all(
        &self,
        index: &ByteIndex<'_, E>,
        batch: &mut Batch,
        (stretches, may_go_on): (&Stretches, impl Fn() -> bool),
        (spliced, retrained): (&mut Spliced<'_>, &mut Retrained),
    ) -> Result<(), ByteIndexError> {
        let page_counts = self
            .contents
            .runs
            .iter()
            .map(|run| u64::from(run.page_count));
        let step_count_max = STEP_COUNT_MIN.max(page_counts.sum::<u64>() / STEP_SHARE);
        for (range, merges) in &stretches.ranges {
            let mut walked = self.walk(index, batch, range).await?;
            self.relink(index, batch, &mut walked, retrained).await?;
            if *merges {
                let may_go_on = (stretches, &may_go_on, step_count_max);
                self.merge(index, batch, (&mut walked, may_go_on), retrained)
                    .await?;
            }
            spliced.keep_until(range.start);
            let is_pair = |left: &_, right: &_| index.is_pair(left, right);
            let at = (&self.access, range.clone());
            spliced.train(&walked.pages, at, is_pair, &stretches.listing)?;
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

    /// The keys that models side by side cover.
    fn covered(&self, range: &Range<usize>) -> (Vec<u8>, Option<Vec<u8>>) {
        let segments = &self.contents.segments;
        let first_fence = |model: usize| segments[model].first_fence().to_vec();
        // The first model covers what is below its first fence, too.
        let from = if range.start == 0 {
            Vec::new()
        } else {
            first_fence(range.start)
        };
        let end = (range.end < segments.len()).then(|| first_fence(range.end));
        (from, end)
    }

    /// BR4: writes the snapshot, and swaps the root. `None`: a load was faster, and has trained its
    /// own.
    async fn install(
        &self,
        batch: &mut Batch,
        spliced: Spliced<'_>,
        stretches: &Stretches,
    ) -> Result<Option<Installed>, ByteIndexError> {
        let access = &self.access;
        let fences = spliced.segments.iter().map(StringSegment::first_fence);
        if !fences.is_sorted_by(|one, next| one < next) {
            // Nobody could read it.
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
        let room = stretches.room.take().map(|(room, _)| room);
        let written = write_snapshot_into(access, &allocator, &mut contents, room);
        let (root, range) = written.await?;
        let filled = self.fill_renewed(batch, &contents, &spliced.renewed);
        if let Err(error) = filled.await {
            // Nothing names it.
            give_back_snapshot(&allocator, range, (access.table, generation), false).await?;
            return Err(error);
        }
        let is_swapped = swap_root(access, batch, self.entry, (self.root, root)).await?;
        give_back_snapshot(&allocator, range, (access.table, generation), is_swapped).await?;
        if !is_swapped {
            return Ok(None);
        }
        let counts = [&spliced.unlisted[..], &spliced.pairs];
        self.count_anew(batch, &contents, counts).await?;
        Ok(Some(Installed { root, contents }))
    }

    /// BR6, BR10: tells new models of pages that they do not list, and of the pairs that are left
    /// in them. If this never happens, splits and deletes do.
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

    /// That the snapshot behind the root contradicts itself.
    fn damage(&self, what: String) -> ByteIndexError {
        let (addr, table) = (self.root.place(), self.access.table);
        IndexError::SnapshotDamaged(Box::new(SnapshotDamage { addr, table, what })).into()
    }
}

impl Stretches {
    /// Whether new pages leave room for the snapshot after the next: as much as is held for that.
    fn leave_room(&self, leaves: bool) {
        let room = self.room.get().filter(|_| leaves);
        let chunk_count = room.map_or(0, |(room, _)| room.count);
        self.state.leases().set_left_chunk_count(chunk_count);
    }

    fn leaves_room(&self) -> bool {
        self.state.leases().left_chunk_count() > 0
    }

    async fn let_room_go<E: Endpoint>(
        &self,
        access: &PageAccess<'_, E>,
    ) -> Result<(), ByteIndexError> {
        let Some((room, generation)) = self.room.take() else {
            return Ok(());
        };
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let whose = (access.table, generation);
        Ok(give_back_snapshot(&allocator, room, whose, false).await?)
    }

    /// Gives back what was leased for new pages. What is left of value blocks, as others may still
    /// read them, is for the next sweep (W5): whether there is any.
    ///
    /// # Errors
    /// The fabric failed: then the leases are, too.
    pub async fn give_back<E: Endpoint>(
        &self,
        access: &PageAccess<'_, E>,
    ) -> Result<bool, ByteIndexError> {
        self.let_room_go(access).await?;
        for mut lease in self.state.leases().take_all() {
            let given_back = lease.give_back(access).await.map_err(ByteIndexError::from);
            match given_back {
                // What is on a lost node is gone (U4).
                Err(error) if error.lost_node().is_some() => {}
                given_back => given_back?,
            }
        }
        let blocks = self.state.block_store();
        blocks.give_back(&block_access(access)).await?;
        Ok(!blocks.is_empty())
    }
}
