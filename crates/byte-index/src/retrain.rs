//! Retraining of tables of byte strings: models are trained anew over pages where they are.
//!
//! - **BR1.** The memory node alone retrains, one table at a time. A model is due when so many
//!   splits of its pages have been announced as its policy says (T1).
//! - **BR2.** Pages are walked along their links, from the one that covers the first key of the
//!   first due model to where the next one begins. Lower fences never change, so what is trained on
//!   them stays true; what splits meanwhile is found by links, as ever. Nothing is locked or moved.
//!   What kind of models the new ones are is chosen anew.
//! - **BR3.** New models list their pages one by one, 8 bytes each; those that are not due keep
//!   their runs, residuals and synonym leaf tables.
//! - **BR4.** A snapshot is written whole, and then one CAS of the root lets it count (R1). The old
//!   one is reused when every session has followed (D7). What it names beside itself is named by
//!   the new one, too, but for synonym leaf tables of models that are gone.
//! - **BR5.** Sessions that have not followed yet count splits in the synonym leaf tables of models
//!   that are gone. When all have followed, and before these are reused, what came since they were
//!   read for BR1 is added to the counters of the models in whose place it is: late splits, for
//!   which these may be due again. So a table that grows faster than sessions follow is trained
//!   whole in the end. Where a counter cannot be read, links lead to what it has counted.

use core::cell::Cell;
use core::ops::Range;
use std::rc::Rc;

use farleaf_fabric::{Batch, CountedBatch, Endpoint, OperationKind};
use farleaf_index::load::{draw_generation, finish_root};
use farleaf_index::retrain::swap_root;
use farleaf_index::{IndexError, SnapshotDamage};
use farleaf_leaf::Contradiction;
use farleaf_model::strings::{
    Boundary, PackedBlock, Residuals, StringSegment, StringSegmentBuilder,
};
use farleaf_page::format::PageAccess;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::catalog::CatalogEntry;
use farleaf_types::{RemoteAddr, WordAddr};

use crate::directory::Run;
use crate::error::ByteIndexError;
use crate::load::synonym_capacity;
use crate::operation::{ByteIndex, ByteIndexState, SurveyedPage};
use crate::snapshot::{Contents, give_back_snapshot, read_contents, write_snapshot};

/// Most pages of a model: what is retrained together when one place of it grows.
const PAGE_COUNT_MAX: u32 = 1 << 12;
/// What residuals of a byte can hold, in units of positions.
const RESIDUAL_ROOM: f64 = 126.0;

/// What a retraining has made.
#[derive(Clone, Debug)]
pub struct Retrained {
    /// The root that is in force.
    pub root: RemoteAddr,
    /// What it names.
    pub contents: Contents,
    /// Pages that were trained on.
    pub page_count: u64,
    /// Models that were made.
    pub model_count: u64,
    /// The counters of models that are gone (BR5).
    pub late: Vec<LateCounter>,
}

/// Where sessions that have not followed yet count splits (BR5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateCounter {
    counter: WordAddr,
    /// What it said before.
    seen: u64,
    /// Where its model began, and the next one did; `None`: it was the last.
    from: Vec<u8>,
    end: Option<Vec<u8>>,
}

/// Retrains the models of a table that are due, which `is_due` says of so many pages that so many
/// splits were announced of; `None`: none is, or the table was dropped. A round trip for each page
/// of these, and those of reading and writing the snapshot.
///
/// # Errors
/// Pages are damaged, the pool is full, or the fabric failed; the table is as it was.
pub async fn retrain<E: Endpoint>(
    access: &PageAccess<'_, E>,
    entry: &CatalogEntry,
    broken: &Rc<Cell<bool>>,
    is_due: impl Fn(u32, u64) -> bool,
) -> Result<Option<Retrained>, ByteIndexError> {
    let root = finish_root(access, entry, broken).await?;
    if root.is_null() {
        return Ok(None);
    }
    let (layout, table) = (access.layout, access.table);
    let old = read_contents(access.endpoint, layout, access.geometry, table, root).await?;
    let mut batch = CountedBatch::new(access.endpoint, OperationKind::Control);
    let (due, late) = due_ranges(access, &mut batch, &old, is_due).await?;
    if due.is_empty() {
        return Ok(None);
    }
    let directory = old.clone().into_directory(access.geometry);
    let directory = directory.map_err(|what| damage(access, root, what))?;
    let state = ByteIndexState::new(directory.into(), 0, Rc::clone(broken));
    state.follow_retired();
    let index = ByteIndex::new(*access, &state);
    let mut spliced = Spliced::new(&old);
    for range in due {
        let pages = walk(&index, &mut batch, &old, &range).await?;
        spliced.keep_until(range.start);
        spliced.train(&pages, (access, range))?;
    }
    spliced.keep_until(old.segments.len());
    let installed = install(access, entry, (root, &mut batch), spliced).await?;
    Ok(installed.map(|retrained| Retrained { late, ..retrained }))
}

/// BR5: counts late splits, which `late` tells of, in the models of the root that stands; how many
/// these were. Two round trips, and those of reading the snapshot.
///
/// # Errors
/// The snapshot is damaged, or the fabric failed.
pub async fn count_late<E: Endpoint>(
    access: &PageAccess<'_, E>,
    entry: &CatalogEntry,
    broken: &Rc<Cell<bool>>,
    late: &[LateCounter],
) -> Result<u64, ByteIndexError> {
    let mut batch = CountedBatch::new(access.endpoint, OperationKind::Control);
    let reads = late.iter().map(|it| (it, batch.read(it.counter, 1)));
    let reads: Vec<_> = reads.collect();
    access.endpoint.execute(&mut batch).await?;
    let came = reads.into_iter();
    let came = came.map(|(it, read)| (it, batch.words(read)[0].saturating_sub(it.seen)));
    let came: Vec<_> = came.filter(|(_, count)| *count > 0).collect();
    if came.is_empty() {
        return Ok(0);
    }
    let root = finish_root(access, entry, broken).await?;
    if root.is_null() {
        return Ok(0);
    }
    let (layout, table) = (access.layout, access.table);
    let contents = read_contents(access.endpoint, layout, access.geometry, table, root).await?;
    batch.clear();
    let begins_before = |fence: &[u8]| {
        let segments = &contents.segments;
        segments.partition_point(|segment| segment.first_fence() < fence)
    };
    for (it, count) in &came {
        // The first model covers what is below its first fence, too.
        let first = begins_before(&it.from).min(contents.runs.len() - 1);
        let end = it.end.as_ref();
        let end = end.map_or(contents.runs.len(), |end| begins_before(end));
        let models = &contents.runs[first..end.max(first + 1)];
        let placed = models.iter().filter(|run| !run.synonym_table.is_null());
        let placed: Vec<_> = placed.collect();
        // Nobody knows in which of them; a model that none is in is walked in vain, once.
        let each = count.div_ceil(placed.len().max(1) as u64);
        for run in placed {
            batch.fetch_add(run.synonym_table.word_at(0), each);
        }
    }
    if !batch.is_empty() {
        access.endpoint.execute(&mut batch).await?;
    }
    Ok(came.iter().map(|(_, count)| count).sum())
}

/// Ranges of models side by side that are due, and their counters.
async fn due_ranges<E: Endpoint>(
    access: &PageAccess<'_, E>,
    batch: &mut Batch,
    contents: &Contents,
    is_due: impl Fn(u32, u64) -> bool,
) -> Result<(Vec<Range<usize>>, Vec<LateCounter>), ByteIndexError> {
    batch.clear();
    let placed = contents.runs.iter().enumerate();
    let placed = placed.filter(|(_, run)| !run.synonym_table.is_null());
    let counters = placed.map(|(model, run)| (model, batch.read(run.synonym_table.word_at(0), 1)));
    let counters: Vec<_> = counters.collect();
    access.endpoint.execute(batch).await?;
    let (mut due, mut late) = (Vec::<Range<usize>>::new(), Vec::new());
    for (model, read) in counters {
        let (run, seen) = (&contents.runs[model], batch.words(read)[0]);
        if !is_due(run.page_count, seen) {
            continue;
        }
        let next = contents.segments.get(model + 1);
        late.push(LateCounter {
            counter: run.synonym_table.word_at(0),
            seen,
            from: contents.segments[model].first_fence().to_vec(),
            end: next.map(|next| next.first_fence().to_vec()),
        });
        match due.last_mut() {
            Some(last) if last.end == model => last.end += 1,
            _ => due.push(model..model + 1),
        }
    }
    Ok((due, late))
}

/// BR2: the pages of due models, in order.
async fn walk<E: Endpoint>(
    index: &ByteIndex<'_, E>,
    batch: &mut Batch,
    old: &Contents,
    range: &Range<usize>,
) -> Result<Vec<SurveyedPage>, ByteIndexError> {
    let first_fence = |model: usize| old.segments[model].first_fence();
    // The first model covers what is below its first fence, too.
    let from: &[u8] = if range.start == 0 {
        b""
    } else {
        first_fence(range.start)
    };
    let end = (range.end < old.segments.len()).then(|| first_fence(range.end));
    index.pages_between(batch, from, end).await
}

/// Old models and new ones, in order.
struct Spliced<'a> {
    old: &'a Contents,
    /// Old models taken or replaced so far, and their residuals or blocks.
    passed: (usize, usize),
    segments: Vec<StringSegment>,
    runs: Vec<Run>,
    residuals: Residuals,
    page_count: u64,
    record_count: u64,
    model_count: u64,
}

impl<'a> Spliced<'a> {
    fn new(old: &'a Contents) -> Self {
        Self {
            old,
            passed: (0, 0),
            segments: Vec::new(),
            runs: Vec::new(),
            residuals: old.residuals.emptied(),
            page_count: 0,
            record_count: 0,
            model_count: 0,
        }
    }

    /// Passes old models up to one; those that are kept are taken over.
    fn pass(&mut self, until: usize, is_kept: bool) {
        let (model, residual) = self.passed;
        let (segments, runs) = (
            &self.old.segments[model..until],
            &self.old.runs[model..until],
        );
        let counts = segments.iter().map(|it| self.residuals.count_of(it));
        let residual_end = residual + counts.sum::<usize>();
        if is_kept {
            self.segments.extend_from_slice(segments);
            self.runs.extend_from_slice(runs);
            let kept = residual..residual_end;
            self.residuals.extend_from(&self.old.residuals, kept);
        }
        self.passed = (until, residual_end);
    }

    fn keep_until(&mut self, model: usize) {
        self.pass(model, true);
    }

    /// Trains models over pages, in the place of old ones.
    fn train<E: Endpoint>(
        &mut self,
        pages: &[SurveyedPage],
        (access, range): (&PageAccess<'_, E>, Range<usize>),
    ) -> Result<(), ByteIndexError> {
        let is_ascending = pages.is_sorted_by(|one, next| one.fence < next.fence);
        assert!(!pages.is_empty(), "a walk begins with a page");
        if !is_ascending {
            let what = Contradiction::LinkToTheLeft;
            return Err(access.contradiction(pages[0].addr, what).into());
        }
        let epsilon = match &self.residuals {
            Residuals::Bytes { shift, .. } => RESIDUAL_ROOM / f64::from(1 << shift),
            Residuals::Packed { .. } | Residuals::None => PackedBlock::EPSILON_MAX,
        };
        let mut builder = StringSegmentBuilder::new(epsilon, PAGE_COUNT_MAX);
        let mut segments = Vec::new();
        for page in pages {
            segments.extend(builder.push(&page.fence));
        }
        segments.extend(builder.finish());
        let mut rest = pages;
        for segment in segments {
            let (own, after) = rest.split_at(segment.leaf_count() as usize);
            self.add(segment, own);
            rest = after;
        }
        self.pass(range.end, false);
        Ok(())
    }

    fn add(&mut self, segment: StringSegment, pages: &[SurveyedPage]) {
        let boundaries = pages.iter().map(|page| Boundary {
            last: page.last_before.as_deref(),
            fence: &page.fence,
            first: page.first.as_deref().unwrap_or(&page.fence),
        });
        self.residuals.push(&segment, boundaries);
        let page_count = pages.len() as u32;
        self.page_count += u64::from(page_count);
        self.record_count += pages.iter().map(|page| page.record_count).sum::<u64>();
        self.model_count += 1;
        self.segments.push(segment);
        self.runs.push(Run::listed(
            pages.iter().map(|page| page.addr).collect(),
            synonym_capacity(page_count),
        ));
    }
}

/// BR4: writes the snapshot, and swaps the root.
async fn install<E: Endpoint>(
    access: &PageAccess<'_, E>,
    entry: &CatalogEntry,
    (root, batch): (RemoteAddr, &mut Batch),
    spliced: Spliced<'_>,
) -> Result<Option<Retrained>, ByteIndexError> {
    let generation = draw_generation(access, batch).await?;
    let record_count = spliced.record_count();
    let (page_count, model_count) = (spliced.page_count, spliced.model_count);
    let contents = Contents {
        table: access.table,
        generation,
        record_count,
        segments: spliced.segments,
        runs: spliced.runs,
        residuals: spliced.residuals,
    };
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let allocator = allocator.taking_reserve();
    let written = write_snapshot(access, &allocator, contents).await;
    let (new_root, range) = written?;
    let is_swapped = swap_root(access, batch, entry, (root, new_root)).await?;
    give_back_snapshot(&allocator, range, (access.table, generation), is_swapped).await?;
    if !is_swapped {
        // A load was faster: it has trained its own.
        return Ok(None);
    }
    let (layout, table) = (access.layout, access.table);
    let contents = read_contents(access.endpoint, layout, access.geometry, table, new_root);
    Ok(Some(Retrained {
        root: new_root,
        contents: contents.await?,
        page_count,
        model_count,
        late: Vec::new(),
    }))
}

impl Spliced<'_> {
    /// About how many records there are: in pages that no walk has seen as many as ever.
    fn record_count(&self) -> u64 {
        let pages =
            |runs: &[Run]| -> u64 { runs.iter().map(|run| u64::from(run.page_count)).sum() };
        let kept = pages(&self.runs) - self.page_count;
        let mean = self.old.record_count as f64 / pages(&self.old.runs) as f64;
        self.record_count + (mean * kept as f64) as u64
    }
}

/// That the snapshot behind a root contradicts itself.
fn damage<E>(access: &PageAccess<'_, E>, root: RemoteAddr, what: String) -> ByteIndexError {
    let (addr, table) = (root.place(), access.table);
    IndexError::SnapshotDamaged(Box::new(SnapshotDamage { addr, table, what })).into()
}
