//! Reading keys in ascending order (D6, D9): a trained piece is one contiguous READ.

use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::hint::Hint;
use farleaf_leaf::Look;
use farleaf_page::{Fence, Outside, PageBuffer, PageImage, Reference, Value};
use farleaf_types::RemoteAddr;

use super::read::Arrival;
use super::{ByteIndex, Sight};
use crate::error::ByteIndexError;

/// Bytes of pages that one batch reads at the most.
const AHEAD_SIZE_BYTES_MAX: usize = 128 << 10;
/// Bytes of values outside that are read with one batch, unless one alone has more.
const VALUE_BATCH_SIZE_BYTES_MAX: usize = 4 << 20;

/// A record as a scan finds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value; empty if only keys were asked for.
    pub value: Vec<u8>,
}

/// Where a scan stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanCursor {
    /// The smallest key not passed yet; `None` at the end.
    next_key: Option<Vec<u8>>,
    /// The first key that is not wanted any more; `None`: all are.
    end: Option<Vec<u8>>,
    /// Whether values are read, too.
    has_values: bool,
    /// Where the next key was expected, and of which directory that is: when there is a newer one,
    /// the page may be anything by now (D7).
    hint: Option<(Hint, u32)>,
}

impl ScanCursor {
    /// A scan from `key` on, inclusive, to `end`, exclusive, or to the last key.
    pub fn new(key: &[u8], end: Option<&[u8]>) -> Self {
        let is_empty = end.is_some_and(|end| end <= key);
        Self {
            next_key: (!is_empty).then(|| key.to_vec()),
            end: end.map(<[u8]>::to_vec),
            has_values: true,
            hint: None,
        }
    }

    /// The same, which reads no values: those that are outside cost a round trip per scan.
    #[must_use]
    pub fn of_keys(self) -> Self {
        Self {
            has_values: false,
            ..self
        }
    }

    /// Whether all keys have been passed.
    pub const fn is_finished(&self) -> bool {
        self.next_key.is_none()
    }

    /// The smallest key not passed yet; `None` at the end.
    pub fn next_key(&self) -> Option<&[u8]> {
        self.next_key.as_deref()
    }

    /// The first key that is not wanted any more; `None`: all are.
    pub fn end(&self) -> Option<&[u8]> {
        self.end.as_deref()
    }

    /// Whether values are read, too.
    pub const fn has_values(&self) -> bool {
        self.has_values
    }

    fn is_wanted(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_none_or(|end| key < end)
    }

    /// Goes on from the fence at which a page ends.
    fn pass(&mut self, high: &Fence) {
        self.next_key = match high {
            Fence::End => None,
            Fence::Before(key) => Some(key.clone()),
            Fence::Behind(key) => Some([key, &[0][..]].concat()),
        }
        .filter(|key| self.is_wanted(key));
    }

    /// Goes on right behind a key.
    pub fn pass_key(&mut self, key: &[u8]) {
        self.next_key = Some([key, &[0]].concat()).filter(|key| self.is_wanted(key));
    }

    /// All keys have been passed.
    pub fn finish(&mut self) {
        self.next_key = None;
    }
}

/// Pages that one batch of a scan has brought, in no order.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    pages: Vec<(Hint, PageBuffer)>,
}

impl ReadAhead {
    /// Takes a page out that was read.
    fn take(&mut self, addr: RemoteAddr) -> Option<(Hint, PageBuffer)> {
        let place = self.pages.iter().position(|(hint, _)| hint.addr == addr)?;
        Some(self.pages.swap_remove(place))
    }

    pub(super) fn into_pages(self) -> Vec<(Hint, PageBuffer)> {
        self.pages
    }
}

/// What a page has for a scan.
pub(super) struct PageRecords {
    /// Ascending; those whose values are outside without them.
    pub(super) records: Vec<(Record, Option<Reference>)>,
    /// Where the page ends.
    pub(super) high: Fence,
}

/// Values of a scan that are outside: the record's index, the page, and where the value is.
pub(super) type Pending = Vec<(usize, RemoteAddr, Reference)>;

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Adds up to `wanted` records to `records`, ascending: as many, unless the keys that the
    /// cursor is for end before. One round trip on a trained table, one more if values are outside,
    /// and one for each long key outside.
    ///
    /// # Errors
    /// The fabric failed, a page is damaged, or the table was dropped. The cursor then stands
    /// behind the last record that was added.
    pub async fn scan(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        wanted: usize,
        records: &mut Vec<Record>,
    ) -> Result<(), ByteIndexError> {
        let end = records.len() + wanted;
        while let Some(from) = cursor.next_key.clone() {
            if records.len() >= end {
                break;
            }
            let known = cursor.hint.take();
            let known = known.filter(|(_, version)| *version == self.state.layer_version());
            let hint = known.map_or_else(|| self.locate(&from).page, |(hint, _)| hint);
            let page_count = self.expected_page_count(end - records.len());
            let ahead = self.read_ahead(batch, hint, page_count).await?;
            let first = records.len();
            let mut pending = Pending::new();
            let passed = self
                .consume(batch, cursor, (hint, ahead), end, (records, &mut pending))
                .await;
            let filled = self
                .fill_values(batch, records, core::mem::take(&mut pending))
                .await;
            if let Err(error) = filled {
                // Their values are not there: the next call begins with them again.
                cursor.next_key = records.get(first).map(|record| record.key.clone());
                records.truncate(first);
                return Err(error);
            }
            passed?;
        }
        Ok(())
    }

    /// Pages that so many records are expected in, and one.
    pub(super) fn expected_page_count(&self, wanted: usize) -> u32 {
        let page_size_bytes = self.access.geometry.page_size_bytes();
        let count_max = (AHEAD_SIZE_BYTES_MAX / page_size_bytes) as u64;
        let layer = self.state.layer();
        let directory = layer.directory();
        let per_page = directory.record_count() as f64 / f64::from(directory.page_count());
        // Pages of a table that was never loaded are as splits leave them.
        let expected = (wanted as f64 / per_page.max(1.0)).ceil() as u64 + 1;
        expected.min(count_max) as u32
    }

    /// Reads a page, and the trained pages from its parent's next on, with their known synonyms:
    /// one batch, and one verb for each piece side by side.
    pub(super) async fn read_ahead(
        &self,
        batch: &mut Batch,
        hint: Hint,
        page_count: u32,
    ) -> Result<ReadAhead, ByteIndexError> {
        let mut pieces: Vec<(Hint, u32)> = Vec::new();
        {
            let layer = self.state.layer();
            let directory = layer.directory();
            let is_trained = directory
                .page(hint.parent)
                .is_some_and(|it| it.addr == hint.addr);
            if !is_trained {
                pieces.push((hint, 1));
            }
            let mut parent = hint.parent;
            let mut left = page_count;
            if !is_trained {
                let own = layer.synonyms_of(parent).filter(|addr| *addr != hint.addr);
                pieces.extend(own.map(|addr| (Hint { addr, parent }, 1)));
                parent += 1;
                left = left.saturating_sub(1);
            }
            while left > 0 {
                let Some((first, count)) = directory.run_from(parent, left) else {
                    break;
                };
                pieces.push((first, count));
                for parent in parent..parent + count {
                    let synonyms = layer.synonyms_of(parent);
                    pieces.extend(synonyms.map(|addr| (Hint { addr, parent }, 1)));
                }
                (parent, left) = (parent + count, left - count);
            }
        }
        self.read_pieces(batch, &pieces).await
    }

    /// Reads pieces of pages side by side; trained ones have ascending parents. Keeps those that
    /// are intact and not retired.
    pub(super) async fn read_pieces(
        &self,
        batch: &mut Batch,
        pieces: &[(Hint, u32)],
    ) -> Result<ReadAhead, ByteIndexError> {
        let geometry = self.access.geometry;
        batch.clear();
        let posted = pieces.iter().map(|(first, count)| {
            let count = *count as usize;
            batch.cost_mut().leaves_read += count as u64;
            let words = (count - 1) * geometry.page_size_words() + geometry.image_size_words();
            batch.read(geometry.state(first.addr), words)
        });
        let posted: Vec<_> = posted.collect();
        self.access.endpoint.execute(batch).await?;
        let mut ahead = ReadAhead::default();
        for ((first, count), read) in pieces.iter().zip(posted) {
            for index in 0..*count {
                let start = index as usize * geometry.page_size_words();
                let image = PageImage::new(geometry, &batch.words(read)[start..]);
                let blocks = u64::from(index) * geometry.stride_blocks();
                let hint = Hint {
                    addr: first.addr.offset_blocks(blocks),
                    parent: first.parent + index,
                };
                if self.access.is_intact(image.words(), hint.addr) && !image.is_retired() {
                    ahead.pages.push((hint, PageBuffer::copy_of(image)));
                }
            }
        }
        Ok(ahead)
    }

    /// Takes the records of pages in the order of links, as long as each covers the cursor; what is
    /// not there costs another batch.
    async fn consume(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        (mut hint, mut ahead): (Hint, ReadAhead),
        end: usize,
        (records, pending): (&mut Vec<Record>, &mut Pending),
    ) -> Result<(), ByteIndexError> {
        let mut is_first = true;
        while let Some(from) = cursor.next_key.clone() {
            if records.len() >= end {
                break;
            }
            let read = ahead.take(hint.addr);
            let Some((_, page)) = read.filter(|_| self.is_current()) else {
                if !is_first {
                    cursor.hint = Some((hint, self.state.layer_version()));
                    return Ok(());
                }
                // It was torn, or retired: look at it as a get does.
                let torn = (hint, Sight::Look(Look::Torn));
                let Arrival { hint: at, page, .. } = self.walk(batch, &from, torn).await?;
                hint = at;
                let at = (at.addr, &page);
                self.take_page(batch, cursor, at, end, (records, pending))
                    .await?;
                hint = self.next_of(hint, &page);
                is_first = false;
                continue;
            };
            is_first = false;
            let mut outside = Outside::new();
            let at = (hint.addr, &page);
            match self.look_surely(batch, at, &from, &mut outside).await? {
                Look::Here => {
                    self.take_page(batch, cursor, at, end, (records, pending))
                        .await?;
                    hint = self.next_of(hint, &page);
                }
                look => {
                    let sight = (hint, Sight::Look(look));
                    let Arrival { hint: at, page, .. } = self.walk(batch, &from, sight).await?;
                    let arrived = (at.addr, &page);
                    self.take_page(batch, cursor, arrived, end, (records, pending))
                        .await?;
                    hint = self.next_of(at, &page);
                }
            }
        }
        // The page may have more records than were wanted.
        cursor.hint = None;
        Ok(())
    }

    /// Where a scan goes on from a page.
    fn next_of(&self, hint: Hint, page: &PageBuffer) -> Hint {
        let link = page.image().link().place();
        let next = self.state.layer().next_trained(hint.parent);
        match next {
            Some(next) if next.addr == link => next,
            _ => Hint {
                addr: link,
                parent: hint.parent,
            },
        }
    }

    /// Takes the records of a page that covers the cursor, and moves it: behind the page, or behind
    /// the last record that is wanted.
    async fn take_page(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        (addr, page): (RemoteAddr, &PageBuffer),
        end: usize,
        (records, pending): (&mut Vec<Record>, &mut Pending),
    ) -> Result<(), ByteIndexError> {
        let from = cursor.next_key.clone().unwrap_or_default();
        let found = self
            .records_of(batch, (addr, page), &from, cursor.has_values)
            .await?;
        let Some(found) = found else {
            // Stale: a page that is there now has the records.
            return Box::pin(self.take_newer(batch, cursor, addr, end, (records, pending))).await;
        };
        take_records(cursor, (addr, found), end, (records, pending));
        Ok(())
    }

    #[cold]
    async fn take_newer(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        addr: RemoteAddr,
        end: usize,
        into: (&mut Vec<Record>, &mut Pending),
    ) -> Result<(), ByteIndexError> {
        let from = cursor.next_key.clone().unwrap_or_default();
        let torn = (Hint { addr, parent: 0 }, Sight::Look(Look::Torn));
        let mut stale_count = 0;
        loop {
            let Arrival { hint, page, .. } = self.walk(batch, &from, torn).await?;
            let at = (hint.addr, &page);
            let found = self.records_of(batch, at, &from, cursor.has_values).await?;
            if let Some(found) = found {
                take_records(cursor, (hint.addr, found), end, into);
                return Ok(());
            }
            self.note_stale(hint.addr, &mut stale_count)?;
        }
    }

    /// The records of a page, and where it ends; `None` if it is stale. `covered` is a key that the
    /// page covers.
    pub(super) async fn records_of(
        &self,
        batch: &mut Batch,
        (addr, page): (RemoteAddr, &PageBuffer),
        covered: &[u8],
        has_values: bool,
    ) -> Result<Option<PageRecords>, ByteIndexError> {
        let mut outside = Outside::new();
        if !self
            .fetch_strings(batch, (addr, page), &mut outside)
            .await?
        {
            return Ok(None);
        }
        let image = page.image();
        let prefix = covered.get(..image.prefix_size_bytes());
        let prefix = prefix.ok_or_else(|| self.damaged(addr))?;
        let slots = image.sorted_slots(&outside);
        let slots = slots.map_err(|_| self.damaged(addr))?;
        let mut found = Vec::with_capacity(slots.len());
        for slot in slots {
            let suffix = image.whole_suffix(slot, &outside);
            let suffix = suffix.map_err(|_| self.damaged(addr))?;
            let key = [prefix, suffix].concat();
            let (value, reference) = match image.value(slot) {
                _ if !has_values => (Vec::new(), None),
                Value::Inline(value) => (value.to_vec(), None),
                Value::Outside(reference) => (Vec::new(), Some(reference)),
            };
            found.push((Record { key, value }, reference));
        }
        let high = self.fence_of(addr, (prefix, image), image.high(), &outside)?;
        Ok(Some(PageRecords {
            records: found,
            high,
        }))
    }

    /// A fence of a page whose prefix is known.
    pub(super) fn fence_of(
        &self,
        addr: RemoteAddr,
        (prefix, _image): (&[u8], PageImage<'_>),
        fence: farleaf_page::StoredFence<'_>,
        outside: &Outside,
    ) -> Result<Fence, ByteIndexError> {
        use farleaf_page::{Stored, StoredFence};
        let whole = |stored: Stored<'_>| match stored {
            Stored::Inline(suffix) => Ok([prefix, suffix].concat()),
            Stored::Outside { reference, .. } => {
                let string = outside.get(reference);
                string.map(<[u8]>::to_vec).map_err(|_| self.damaged(addr))
            }
        };
        Ok(match fence {
            StoredFence::Before(stored) => Fence::Before(whole(stored)?),
            StoredFence::Behind(stored) => Fence::Behind(whole(stored)?),
            StoredFence::End => Fence::End,
        })
    }

    /// Reads values that are outside, as many at once as are not too large together. A record that
    /// was changed meanwhile is read as a get reads it; one that is gone is left out.
    pub(super) async fn fill_values(
        &self,
        batch: &mut Batch,
        records: &mut Vec<Record>,
        pending: Pending,
    ) -> Result<(), ByteIndexError> {
        let mut gone = Vec::new();
        let mut rest = &pending[..];
        while !rest.is_empty() {
            let mut size_bytes = 0;
            let fits = |(_, _, reference): &&(usize, RemoteAddr, Reference)| {
                size_bytes += reference.size_bytes as usize;
                size_bytes <= VALUE_BATCH_SIZE_BYTES_MAX
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (part, after) = rest.split_at(count);
            rest = after;
            let strings: Vec<_> = part.iter().map(|(_, addr, it)| (*addr, *it)).collect();
            let values = self.read_strings(batch, &strings).await?;
            for ((index, ..), value) in part.iter().zip(values) {
                let record = &mut records[*index];
                if let Some(value) = value {
                    record.value = value;
                    continue;
                }
                let key = record.key.clone();
                let got = Box::pin(self.get(batch, &key, |value| value.map(<[u8]>::to_vec)));
                match got.await? {
                    Some(value) => record.value = value,
                    None => gone.push(*index),
                }
            }
        }
        for index in gone.into_iter().rev() {
            records.remove(index);
        }
        Ok(())
    }
}

/// Takes what a cursor is for of a page's records, and moves it: behind the page, or behind the
/// last record that is wanted.
fn take_records(
    cursor: &mut ScanCursor,
    (addr, found): (RemoteAddr, PageRecords),
    end: usize,
    (records, pending): (&mut Vec<Record>, &mut Pending),
) {
    let from = cursor.next_key.clone().unwrap_or_default();
    for (record, value) in found.records {
        if record.key < from || !cursor.is_wanted(&record.key) {
            continue;
        }
        if records.len() == end {
            let last = records.last().expect("at least one was wanted");
            cursor.pass_key(&last.key.clone());
            return;
        }
        if let Some(reference) = value {
            pending.push((records.len(), addr, reference));
        }
        records.push(record);
    }
    cursor.pass(&found.high);
}
