//! Splits and underfull pages that are counted where nobody looks any more (BR5).

use core::cell::Cell;
use std::rc::Rc;

use farleaf_fabric::{CountedBatch, Endpoint, OperationKind};
use farleaf_index::load::finish_root;
use farleaf_page::format::PageAccess;
use farleaf_region::catalog::CatalogEntry;
use farleaf_types::WordAddr;

use super::CountedModel;
use crate::error::ByteIndexError;
use crate::snapshot::{Contents, read_contents};

/// Of a model: splits, and underfull pages.
const COUNTER_COUNT: usize = 2;

/// Where sessions that have not followed yet count splits and underfull pages (BR5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LateCounter {
    /// Two words: splits, then underfull pages.
    counters: WordAddr,
    /// What they said before.
    seen: [u64; COUNTER_COUNT],
    /// Where its model began, and the next one did; `None`: it was the last.
    from: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl LateCounter {
    /// The counters of a model whose table is about to be gone, which say so much.
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

/// BR5: counts what came late, which `late` tells of, in the models of the root that stands; how
/// many splits and underfull pages these were. Two round trips, and those of reading the snapshot.
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
        // The first model covers what is below its first fence, too.
        let first = begins_before(&it.from).min(contents.runs.len() - 1);
        let end = it.end.as_ref();
        let end = end.map_or(contents.runs.len(), |end| begins_before(end));
        let models = &contents.runs[first..end.max(first + 1)];
        let placed = models.iter().filter(|run| !run.synonym_table.is_null());
        let placed: Vec<_> = placed.collect();
        // Nobody knows in which of them; a model that none is in is walked in vain, once.
        let each = counts.map(|count| count.div_ceil(placed.len().max(1) as u64));
        for run in placed {
            for (word, each) in (0..).zip(each).filter(|(_, each)| *each > 0) {
                batch.fetch_add(run.synonym_table.word_at(word), each);
            }
        }
    }
    if !batch.is_empty() {
        access.endpoint.execute(&mut batch).await?;
    }
    Ok(came.iter().flat_map(|(_, counts)| counts).sum())
}
