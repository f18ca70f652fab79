//! Reading keys in descending order. There are no links to the left: the search layer names the
//! pages there, and links to the right fill what it does not know of.

use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::IndexError;
use farleaf_index::hint::Hint;
use farleaf_leaf::{Course, Look};
use farleaf_page::{Fence, Outside, PageBuffer, PageError};

use super::ByteIndex;
use super::records::RecordBuffer;
use super::scan::ReadAhead;
use super::scan_page::Pending;
use crate::error::ByteIndexError;

/// Where a scan in descending order stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReverseCursor {
    /// All keys from here on have been passed; `None`: all keys have.
    before: Option<Fence>,
    /// The smallest key that is wanted.
    start: Vec<u8>,
    has_values: bool,
}

impl ReverseCursor {
    /// A scan from the greatest key below `end`, or from the last key, down to `start`, inclusive.
    pub fn new(start: &[u8], end: Option<&[u8]>) -> Self {
        let is_empty = end.is_some_and(|end| end <= start);
        let before = end.map_or(Fence::End, |end| Fence::Before(end.to_vec()));
        Self {
            before: (!is_empty).then_some(before),
            start: start.to_vec(),
            has_values: true,
        }
    }

    /// The same, which reads no values.
    #[must_use]
    pub fn of_keys(self) -> Self {
        Self {
            has_values: false,
            ..self
        }
    }

    /// Whether all keys have been passed.
    pub const fn is_finished(&self) -> bool {
        self.before.is_none()
    }

    /// The fence before which all is left to pass.
    pub fn before(&self) -> Option<&Fence> {
        self.before.as_ref()
    }

    /// The smallest key that is wanted.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// Whether values are read, too.
    pub const fn has_values(&self) -> bool {
        self.has_values
    }

    /// All keys have been passed.
    pub fn finish(&mut self) {
        self.before = None;
    }

    /// All keys from this fence on have been passed.
    pub fn pass(&mut self, to: Fence) {
        let is_over = to <= Fence::Before(self.start.clone());
        self.before = (!is_over).then_some(to);
    }
}

/// A page that has the keys right below a fence.
struct Below {
    hint: Hint,
    page: PageBuffer,
    low: Fence,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Adds up to `wanted` records to `records`, descending: as many, unless the keys that the
    /// cursor is for end before. One round trip for as many pages as lie side by side to the left
    /// in their model, and are expected to be needed, and one more if values are outside; one for
    /// each page that a split has made and this session has not met.
    ///
    /// # Errors
    /// The fabric failed, a page is damaged, or the table was dropped. The cursor then stands
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
                // Of another layer a hint says nothing.
                if let Some(Hint { parent, .. }) = hint {
                    self.hold_page(batch, parent).await?;
                }
                let start = match hint.filter(|_| self.is_current()) {
                    None => self.hint_below(batch, &before).await?,
                    Some(hint) => self.left_of_fence(hint, &before),
                };
                let page_count = self.expected_page_count(end - records.len());
                let read = self.read_ahead_to_the_left(batch, (start, &before), page_count);
                ahead = read.await?.into_pages();
                match below_in(&mut ahead, &before) {
                    Some(below) => below,
                    None => self.walk_below(batch, start, &before).await?,
                }
            };
            hint = Some(below.hint);
            self.take_below(batch, cursor, (below, before), end, records)
                .await?;
        }
        Ok(())
    }

    /// The page to look at for the keys right below a fence.
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

    /// The page to look at after one that begins at the fence.
    fn left_of_fence(&self, failed: Hint, before: &Fence) -> Hint {
        let layer = self.state.layer();
        let trained = layer.page(failed.parent);
        if let Some(trained) = trained.filter(|trained| trained.addr != failed.addr) {
            // Of the same parent there are pages further left: the trained one, at the last.
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

    /// The same, where nothing of the same parent is further left.
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

    /// Reads a page and those that are known to lie to the left of it, trained ones and their
    /// synonyms, as many in all as are wanted.
    async fn read_ahead_to_the_left(
        &self,
        batch: &mut Batch,
        (hint, before): (Hint, &Fence),
        page_count: u32,
    ) -> Result<ReadAhead, ByteIndexError> {
        let mut pieces: Vec<(Hint, u32)> = Vec::new();
        {
            let layer = self.state.layer();
            let run_count = layer.run_up_to(hint.parent, page_count);
            // Of the first parent only what begins before the fence.
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
            // Not if its part was forgotten meanwhile: then there is the page alone.
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

    /// Goes from page to page until one begins before a fence and ends at it, or behind it.
    async fn walk_below(
        &self,
        batch: &mut Batch,
        mut hint: Hint,
        before: &Fence,
    ) -> Result<Below, ByteIndexError> {
        let (mut course, mut stale_count) = (Course::<Vec<u8>>::default(), 0);
        let key = before.string().unwrap_or_default();
        let (mut has_gone_right, mut retired_trained) = (false, None);
        loop {
            let broken = &self.state.broken;
            let page = self.access.read_intact(batch, hint.addr, broken).await?;
            if !self.is_current() {
                // Another future has replaced the layer: the hint's parent is another page there.
                return Err(IndexError::Outdated.into());
            }
            let link = page.image().link();
            if link.is_retired() {
                // What it names is its successor's, or gone.
                if self.is_trained(hint) {
                    retired_trained = Some(hint.parent);
                }
                let look = Look::Retired(link.place());
                hint = self.go_on(batch, &mut course, key, (hint, None), look)?;
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
            // Where many lie between, the next step would pass them all again.
            if let Some(low) = low.least_key() {
                self.learn(&low, hint);
            }
            let look = if low >= *before {
                Look::Left
            } else if high < *before {
                Look::Right(link.place())
            } else {
                return Ok(Below { hint, page, low });
            };
            if look == Look::Left {
                // What has taken over the trained page begins where that does: nothing of the same
                // parent is further left.
                let left = if retired_trained == Some(hint.parent) {
                    self.left_of_parent(hint, before)
                } else {
                    self.left_of_fence(hint, before)
                };
                if has_gone_right || left.parent != hint.parent {
                    // Counts the hop, so that the way ends also in a damaged table. Those from one
                    // synonym of a parent to the next are as many as this session has met.
                    self.go_on(batch, &mut course, key, (hint, None), look)?;
                }
                hint = left;
                continue;
            }
            has_gone_right |= matches!(look, Look::Right(_));
            hint = self.go_on(batch, &mut course, key, (hint, low.least_key()), look)?;
        }
    }

    /// Takes the records of a page below a fence, and moves the cursor: before the page, or before
    /// the last record that is wanted.
    async fn take_below(
        &self,
        batch: &mut Batch,
        cursor: &mut ReverseCursor,
        (below, before): (Below, Fence),
        end: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), ByteIndexError> {
        let Below { hint, page, low } = below;
        // The page covers its low end.
        let covered = low.least_key().unwrap_or_default();
        let at = (hint.addr, &page);
        let found = self
            .records_of(batch, at, &covered, cursor.has_values)
            .await?;
        let Some(found) = found else {
            // Stale: it is read again.
            let below = self.walk_below(batch, hint, &before).await?;
            let again = self.take_below(batch, cursor, (below, before), end, records);
            return Box::pin(again).await;
        };
        let first = records.len();
        let mut pending = Pending::new();
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

/// Takes the page out of those read that begins before a fence and ends at it, or behind it.
fn below_in(ahead: &mut Vec<(Hint, PageBuffer)>, before: &Fence) -> Option<Below> {
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
            return Some(Below { hint, page, low });
        }
    }
    None
}
