//! Descending scans. Pages have no links to the left: the search layer names the pages there, and
//! links to the right lead to those that it does not know of.

use crate::IndexError;
use crate::hint::Hint;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::strings::{Fence, Outside, PageBuffer, PageError};
use farleaf_leaf::words::{LeafCheck, SearchPath};

use super::ByteIndex;
use super::records::RecordBuffer;
use super::scan::ReadAhead;
use super::scan_page::PendingValues;
use crate::strings::error::ByteIndexError;

/// Position and bounds of a descending scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReverseCursor {
    /// Fence from which on all keys have been passed; `None` if all keys have.
    before: Option<Fence>,
    /// Inclusive lower end of the scan.
    start: Vec<u8>,
    has_values: bool,
}

impl ReverseCursor {
    /// Creates a scan from the greatest key below `end`, or from the last key, down to `start`,
    /// inclusive.
    pub fn new(start: &[u8], end: Option<&[u8]>) -> Self {
        let is_empty = end.is_some_and(|end| end <= start);
        let before = end.map_or(Fence::End, |end| Fence::Before(end.to_vec()));
        Self {
            before: (!is_empty).then_some(before),
            start: start.to_vec(),
            has_values: true,
        }
    }

    /// Makes the scan read keys only.
    #[must_use]
    pub fn of_keys(self) -> Self {
        Self {
            has_values: false,
            ..self
        }
    }

    /// Returns whether all keys have been passed.
    pub const fn is_finished(&self) -> bool {
        self.before.is_none()
    }

    /// Returns the fence below which keys are still to be passed.
    pub fn before(&self) -> Option<&Fence> {
        self.before.as_ref()
    }

    /// Returns the inclusive lower end of the scan.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// Returns whether the scan reads values.
    pub const fn has_values(&self) -> bool {
        self.has_values
    }

    /// Moves to the end.
    pub fn finish(&mut self) {
        self.before = None;
    }

    /// Moves to a fence: all keys from it on have been passed.
    pub fn pass(&mut self, to: Fence) {
        let is_over = to <= Fence::Before(self.start.clone());
        self.before = (!is_over).then_some(to);
    }
}

/// Page that contains the keys right below a fence.
struct PageBelow {
    hint: Hint,
    page: PageBuffer,
    low: Fence,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Adds `wanted` records to `records`, descending, or fewer if the cursor's range ends before.
    /// Costs one round trip for all needed pages that lie adjacent to the left in their model, and
    /// one more if values are outside their pages; one for each page that a split created and this
    /// session does not know.
    ///
    /// # Errors
    /// The fabric failed, a page is corrupted, or the table was dropped. The cursor then stands
    /// before the last record that was added.
    pub async fn scan_reverse(
        &self,
        batch: &mut Batch,
        cursor: &mut ReverseCursor,
        wanted: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), ByteIndexError> {
        let end = records.len().saturating_add(wanted);
        let mut ahead: Vec<(Hint, PageBuffer)> = Vec::new();
        let mut hint = None;
        while let Some(before) = cursor.before.clone() {
            if records.len() >= end {
                break;
            }
            let below = if let Some(below) = below_in(&mut ahead, &before) {
                below
            } else {
                // A hint of another layer says nothing.
                if let Some(Hint { parent, .. }) = hint {
                    self.hold_page(batch, parent).await?;
                }
                let start = match hint.filter(|_| self.is_current()) {
                    None => self.hint_below(batch, &before).await?,
                    Some(hint) => self.left_of_fence(hint, &before),
                };
                let page_count = self.expected_page_count(end - records.len());
                let read = self.read_ahead_to_the_left(batch, start, &before, page_count);
                ahead = read.await?.into_pages();
                match below_in(&mut ahead, &before) {
                    Some(below) => below,
                    None => self.walk_below(batch, start, &before).await?,
                }
            };
            hint = Some(below.hint);
            self.take_below(batch, cursor, below, before, end, records)
                .await?;
        }
        Ok(())
    }

    /// Returns the page to examine for the keys right below a fence.
    async fn hint_below(&self, batch: &mut Batch, before: &Fence) -> Result<Hint, ByteIndexError> {
        if let Some(string) = before.string() {
            return Ok(self.place(batch, string).await?.page);
        }
        let last = self.state.layer().page_count() - 1;
        self.hold_page(batch, last).await?;
        let layer = self.state.layer();
        let trained = layer.page(last).ok_or(IndexError::Outdated)?;
        let synonym = layer.synonyms_of(last).last();
        Ok(synonym.map_or(trained, |addr| Hint { addr, ..trained }))
    }

    /// Returns the page to examine after one that begins at the fence.
    fn left_of_fence(&self, failed: Hint, before: &Fence) -> Hint {
        let layer = self.state.layer();
        let trained = layer.page(failed.parent);
        if let Some(trained) = trained.filter(|trained| trained.addr != failed.addr) {
            // The same parent has pages further left, the last of which is the trained page.
            let synonyms: Vec<_> = layer.synonyms_of(failed.parent).collect();
            let own = synonyms.iter().position(|addr| *addr == failed.addr);
            let left = own
                .and_then(|own| own.checked_sub(1))
                .map(|left| synonyms[left]);
            return left.map_or(trained, |addr| Hint { addr, ..failed });
        }
        drop(layer);
        self.left_of_parent(failed, before)
    }

    /// Returns the page to examine if no page of the same parent is further left.
    fn left_of_parent(&self, failed: Hint, before: &Fence) -> Hint {
        let layer = self.state.layer();
        let key = before.string().unwrap_or_default();
        let left = layer.left_of(key, failed);
        left.unwrap_or_else(|| layer.first_page())
    }

    fn is_trained(&self, hint: Hint) -> bool {
        let layer = self.state.layer();
        let trained = layer.page(hint.parent);
        trained.is_some_and(|trained| trained.addr == hint.addr)
    }

    /// Reads a page and the known pages to the left of it (trained ones and their synonyms), up to
    /// the number wanted.
    async fn read_ahead_to_the_left(
        &self,
        batch: &mut Batch,
        hint: Hint,
        before: &Fence,
        page_count: u32,
    ) -> Result<ReadAhead, ByteIndexError> {
        let mut pieces: Vec<(Hint, u32)> = Vec::new();
        {
            let layer = self.state.layer();
            let run_count = layer.run_up_to(hint.parent, page_count);
            // Of the first parent, only pages that begin before the fence.
            let (mut left, mut key, mut count) = (page_count.max(1), before.string(), 0);
            while left > 0 && count < run_count {
                let parent = hint.parent - count;
                let own = layer.synonyms_before(parent, key.take());
                let own = own.rev().take(left as usize);
                let known = pieces.len();
                pieces.extend(own.map(|addr| (Hint { addr, parent }, 1)));
                left -= (pieces.len() - known) as u32;
                if left > 0 {
                    (count, left) = (count + 1, left - 1);
                }
            }
            let first = hint.parent + 1 - count;
            // If its part was evicted in the meantime, only the page itself.
            let run = layer.page(first).filter(|_| count > 0);
            let has_hint = run.is_some() && self.is_trained(hint)
                || pieces.iter().any(|(known, _)| known.addr == hint.addr);
            pieces.extend(run.map(|trained| (trained, count)));
            if !has_hint {
                pieces.push((hint, 1));
            }
        }
        let read = self.read_pieces(batch, &pieces).await?;
        Ok(self.copied(batch, &read))
    }

    /// Walks from page to page until one begins before a fence and ends at or after it.
    async fn walk_below(
        &self,
        batch: &mut Batch,
        mut hint: Hint,
        before: &Fence,
    ) -> Result<PageBelow, ByteIndexError> {
        let (mut course, mut stale_count) = (SearchPath::<Vec<u8>>::default(), 0);
        let key = before.string().unwrap_or_default();
        let (mut has_gone_right, mut retired_trained) = (false, None);
        loop {
            let broken = &self.state.broken;
            let page = self.access.read_intact(batch, hint.addr, broken).await?;
            if !self.is_current() {
                // Another future has replaced the layer, in which the hint's parent is another
                // page.
                return Err(IndexError::Outdated.into());
            }
            let link = page.image().link();
            if link.is_retired() {
                // The strings that the page names belong to its successor, or are gone.
                if self.is_trained(hint) {
                    retired_trained = Some(hint.parent);
                }
                let look = LeafCheck::Retired(link.place());
                hint = self.go_on(batch, &mut course, key, hint, None, look)?;
                continue;
            }
            let mut outside = Outside::new();
            let fences = self
                .with_strings(batch, hint.addr, &mut outside, |outside| {
                    let image = page.image();
                    let low = image.whole_fence(image.low(), outside);
                    let high = image.whole_fence(image.high(), outside);
                    Ok::<_, PageError>((low?, high?))
                })
                .await?;
            let Some((low, high)) = fences else {
                self.note_stale(hint.addr, &mut stale_count)?;
                continue;
            };
            // If many pages lie between, the next step would walk past all of them again.
            if let Some(low) = low.least_key() {
                self.learn(&low, hint);
            }
            let look = if low >= *before {
                LeafCheck::Left
            } else if high < *before {
                LeafCheck::Right(link.place())
            } else {
                return Ok(PageBelow { hint, page, low });
            };
            if look == LeafCheck::Left {
                // The successor of the trained page begins where the trained page did: no page of
                // the same parent is further left.
                let left = if retired_trained == Some(hint.parent) {
                    self.left_of_parent(hint, before)
                } else {
                    self.left_of_fence(hint, before)
                };
                if has_gone_right || left.parent != hint.parent {
                    // Counts the hop, so that the walk ends even in a corrupted table. The number
                    // of hops from one synonym of a parent to the next is limited by what this
                    // session knows.
                    self.go_on(batch, &mut course, key, hint, None, look)?;
                }
                hint = left;
                continue;
            }
            has_gone_right |= matches!(look, LeafCheck::Right(_));
            hint = self.go_on(batch, &mut course, key, hint, low.least_key(), look)?;
        }
    }

    /// Takes the records of a page below a fence, and moves the cursor before the page, or before
    /// the last wanted record.
    async fn take_below(
        &self,
        batch: &mut Batch,
        cursor: &mut ReverseCursor,
        below: PageBelow,
        before: Fence,
        end: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), ByteIndexError> {
        let PageBelow { hint, page, low } = below;
        // The page covers its lower fence.
        let covered = low.least_key().unwrap_or_default();
        let found = self
            .records_of(batch, hint.addr, &page, &covered, cursor.has_values)
            .await?;
        let Some(found) = found else {
            // The page is stale: read it again.
            let below = self.walk_below(batch, hint, &before).await?;
            let again = self.take_below(batch, cursor, below, before, end, records);
            return Box::pin(again).await;
        };
        let first = records.len();
        let mut pending = PendingValues::new();
        let mut to = low;
        let wanted = found
            .records
            .into_iter()
            .rev()
            .filter(|(record, _)| before.is_behind(&record.key) && record.key >= cursor.start);
        for (record, value) in wanted {
            if records.len() == end {
                let (last, _) = records.last().expect("at least one was wanted");
                to = Fence::Before(last.to_vec());
                break;
            }
            if let Some(reference) = value {
                pending.push((records.len(), hint.addr, reference));
            }
            records.push(&record.key, &record.value);
        }
        if let Err(error) = self.fill_values(batch, records, pending).await {
            records.truncate(first);
            return Err(error);
        }
        cursor.pass(to);
        Ok(())
    }
}

/// Takes the page that begins before a fence and ends at or after it from those read.
fn below_in(ahead: &mut Vec<(Hint, PageBuffer)>, before: &Fence) -> Option<PageBelow> {
    let nothing = Outside::new();
    for index in 0..ahead.len() {
        let image = ahead[index].1.image();
        let low = image.whole_fence(image.low(), &nothing);
        let high = image.whole_fence(image.high(), &nothing);
        if let (Ok(low), Ok(high)) = (low, high)
            && low < *before
            && *before <= high
        {
            let (hint, page) = ahead.swap_remove(index);
            return Some(PageBelow { hint, page, low });
        }
    }
    None
}
