//! Splits and underfull pages counted in dropped synonym leaf tables.

use core::cell::Cell;
use core::ops::Range;
use std::rc::Rc;

use crate::load::finish_root;
use farleaf_base::WordAddr;
use farleaf_fabric::{CountedBatch, Endpoint, OperationKind};
use farleaf_leaf::strings::format::PageAccess;
use farleaf_model::strings::StringSegment;
use farleaf_pool::catalog::CatalogEntry;

use super::CountedModel;
use crate::strings::error::ByteIndexError;
use crate::strings::snapshot::{Contents, read_contents};

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
    let fences = contents.segments.iter().map(StringSegment::first_fence);
    let fences: Vec<&[u8]> = fences.collect();
    for (it, counts) in &came {
        let models = &contents.runs[models_between(&fences, &it.from, it.end.as_deref())];
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

/// Returns the models whose ranges meet a key range, by the models' first fences: the one that
/// covers `from`, which may begin below it, and all that begin before `end`. The first model also
/// covers keys below its first fence.
fn models_between(fences: &[&[u8]], from: &[u8], end: Option<&[u8]>) -> Range<usize> {
    let begun_count = fences.partition_point(|fence| *fence <= from);
    let first = begun_count.saturating_sub(1);
    let end = end.map_or(fences.len(), |end| {
        fences.partition_point(|fence| *fence < end)
    });
    first..end.max(first + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: late counts go to every model that meets the range of the old one, also to one that
    /// begins below it. (That one was passed over, and a model behind the range was counted.)
    #[test]
    fn models_that_begin_below_a_range_are_counted() {
        let fences: [&[u8]; 3] = [b"a", b"m", b"z"];
        let between = |from: &str, end: Option<&str>| {
            models_between(&fences, from.as_bytes(), end.map(str::as_bytes))
        };
        assert_eq!(between("m", Some("z")), 1..2);
        assert_eq!(between("n", Some("z")), 1..2);
        assert_eq!(between("n", Some("p")), 1..2);
        assert_eq!(between("b", Some("n")), 0..2);
        assert_eq!(between("0", Some("a")), 0..1);
        assert_eq!(between("", None), 0..3);
        assert_eq!(between("zz", None), 2..3);
    }
}
