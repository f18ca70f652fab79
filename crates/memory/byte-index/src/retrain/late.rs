//! Splits and underfull pages counted in dropped synonym leaf tables.

use core::cell::Cell;
use std::rc::Rc;

use farleaf_base::WordAddr;
use farleaf_fabric::{CountedBatch, Endpoint, OperationKind};
use farleaf_index::load::finish_root;
use farleaf_leaf::strings::format::PageAccess;
use farleaf_pool::catalog::CatalogEntry;

use super::CountedModel;
use crate::error::ByteIndexError;
use crate::snapshot::{Contents, read_contents};

/// Number of counters per model: splits, and underfull pages.
const COUNTER_COUNT: usize = 2;

/// Counters in which sessions that have not followed yet count splits and underfull pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateCounter {
    /// Address of two words: splits, then underfull pages.
    counters: WordAddr,
    /// Values that were already counted.
    seen: [u64; COUNTER_COUNT],
    /// Range of the model: its first key, and that of the next model; `None` if it was the last.
    from: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl LateCounter {
    /// Returns the counters of a model whose table is about to be dropped, with the values counted
    /// so far.
    pub(super) fn of(contents: &Contents, model: usize, counted: CountedModel) -> Self {
        let next = contents.segments.get(model + 1);
        Self {
            counters: counted.synonym_table.word_at(0),
            seen: [counted.splits, counted.underfull],
            from: contents.segments[model].first_fence().to_vec(),
            end: next.map(|next| next.first_fence().to_vec()),
        }
    }
}

/// Adds late counts of the counters in `late` to the models of the current root; returns how many
/// splits and underfull pages these were. Models that share the range of a counter share its
/// splits; each gets all underfull pages, at most as many as it has pages. Costs two round trips,
/// and those of reading the snapshot.
///
/// # Errors
/// The snapshot is corrupted, or the fabric failed.
pub async fn count_late<E: Endpoint>(
    access: &PageAccess<'_, E>,
    entry: &CatalogEntry,
    broken: &Rc<Cell<bool>>,
    late: &[LateCounter],
) -> Result<u64, ByteIndexError> {
    let mut batch = CountedBatch::new(access.endpoint, OperationKind::Control);
    let reads = late
        .iter()
        .map(|it| (it, batch.read(it.counters, COUNTER_COUNT)));
    let reads: Vec<_> = reads.collect();
    access.endpoint.execute(&mut batch).await?;
    let came = reads.into_iter();
    let came = came.map(|(it, read)| {
        let words = batch.words(read);
        let counts: [u64; COUNTER_COUNT] =
            core::array::from_fn(|index| words[index].saturating_sub(it.seen[index]));
        (it, counts)
    });
    let came: Vec<_> = came.filter(|(_, counts)| *counts != [0, 0]).collect();
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
    for (it, counts) in &came {
        // The first model also covers keys below its first fence.
        let first = begins_before(&it.from).min(contents.runs.len() - 1);
        let end = it.end.as_ref();
        let end = end.map_or(contents.runs.len(), |end| begins_before(end));
        let models = &contents.runs[first..end.max(first + 1)];
        let placed = models.iter().filter(|run| !run.synonym_table.is_null());
        let placed: Vec<_> = placed.collect();
        // It is unknown which of these models they belong to. Each may have all of the underfull
        // pages: with fewer it might never be due, and its empty pages would never be merged. A
        // model without any is walked once for nothing.
        let [splits, underfull] = *counts;
        let split_share = splits.div_ceil(placed.len().max(1) as u64);
        for run in placed {
            let each = [split_share, underfull.min(run.page_count.into())];
            for (word, count) in (0..).zip(each).filter(|(_, count)| *count > 0) {
                batch.fetch_add(run.synonym_table.word_at(word), count);
            }
        }
    }
    if !batch.is_empty() {
        access.endpoint.execute(&mut batch).await?;
    }
    Ok(came.iter().flat_map(|(_, counts)| counts).sum())
}
