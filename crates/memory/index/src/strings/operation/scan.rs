//! Ascending scans (LEAF-6, LEAF-9): adjacent trained pages are one contiguous READ.

use crate::hint::Hint;
use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::strings::{Outside, PageBuffer, PageImage};
use farleaf_leaf::words::LeafCheck;

use super::cursor::ScanCursor;
use super::read::CoveringPage;
use super::records::RecordBuffer;
use super::scan_page::ScanOutput;
use super::scan_run::PagesRead;
use super::{ByteIndex, PageVerdict};
use crate::strings::error::ByteIndexError;

/// Maximum bytes of pages per batch.
const AHEAD_SIZE_BYTES_MAX: usize = 128 << 10;

/// Pages that one batch of a scan has read, unordered.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    pages: Vec<(Hint, PageBuffer)>,
}

impl ReadAhead {
    /// Takes a page that was read.
    fn take(&mut self, addr: RemoteAddr) -> Option<(Hint, PageBuffer)> {
        let place = self.pages.iter().position(|(hint, _)| hint.addr == addr)?;
        Some(self.pages.swap_remove(place))
    }

    pub(super) fn into_pages(self) -> Vec<(Hint, PageBuffer)> {
        self.pages
    }
}

/// Pages that a scan will read with one batch.
struct PagesAhead {
    /// First page of each piece, and number of adjacent pages.
    pieces: Vec<(Hint, u32)>,
    /// Number of pages that may still be added.
    left: u32,
}

impl PagesAhead {
    fn new(page_count: u32) -> Self {
        Self {
            pieces: Vec::new(),
            left: page_count.max(1),
        }
    }

    fn push(&mut self, first: Hint, count: u32) {
        self.pieces.push((first, count));
        self.left -= count;
    }

    fn push_synonyms(&mut self, parent: u32, synonyms: impl Iterator<Item = RemoteAddr>) {
        for addr in synonyms.take(self.left as usize) {
            self.push(Hint { addr, parent }, 1);
        }
    }
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Adds `wanted` records to `records`, ascending, or fewer if the cursor's range ends before.
    /// Costs one round trip on a trained table, one more if values are outside their pages, and one
    /// for each long key outside.
    ///
    /// # Errors
    /// The fabric failed, a page is corrupted, or the table was dropped. The cursor then stands
    /// after the last record that was added.
    pub async fn scan(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        wanted: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), ByteIndexError> {
        let end = records.len().saturating_add(wanted);
        while cursor.next_key.is_some() && records.len() < end {
            // Another future of the session may have switched to another layer since the last
            // piece.
            let layer_version = self.state.layer_version();
            let index = Self {
                layer_version,
                ..*self
            };
            index.scan_piece(batch, cursor, end, records).await?;
        }
        Ok(())
    }

    /// Executes one batch of a scan.
    async fn scan_piece(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        end: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), ByteIndexError> {
        let Some(from) = &cursor.next_key else {
            return Ok(());
        };
        let known = cursor.hint.take();
        let known = known.filter(|(_, version)| *version == self.state.layer_version());
        if let Some((hint, _)) = known {
            self.hold_page(batch, hint.parent).await?;
        }
        let hint = match known.filter(|_| self.is_current()) {
            Some((hint, _)) => hint,
            None => self.place(batch, from).await?.page,
        };
        let page_count = self.expected_page_count(end - records.len());
        let read = self.read_ahead(batch, hint, from, page_count).await?;
        let first = records.len();
        let mut output = ScanOutput {
            records,
            end,
            pending: Vec::new(),
        };
        // Pages as a load and most splits leave them contain everything that the scan needs.
        let passed = match self.take_run(batch, cursor, hint, &read, &mut output) {
            None => Ok(()),
            Some(hint) => {
                let ahead = self.copied(batch, &read);
                Box::pin(self.consume(batch, cursor, hint, ahead, &mut output)).await
            }
        };
        let ScanOutput {
            records, pending, ..
        } = output;
        if !pending.is_empty()
            && let Err(error) = self.fill_values(batch, records, pending).await
        {
            // The values are missing: the next call begins with these records again.
            cursor.next_key = records.get(first).map(|(key, _)| key.to_vec());
            records.truncate(first);
            return Err(error);
        }
        passed
    }

    /// Returns the number of pages expected to contain so many records, plus one.
    pub(super) fn expected_page_count(&self, wanted: usize) -> u32 {
        let page_size_bytes = self.access.geometry.page_size_bytes();
        let count_max = (AHEAD_SIZE_BYTES_MAX / page_size_bytes) as u64;
        let per_page = self.state.records_per_page();
        // The conversion saturates if the float is too large.
        let expected = (wanted as f64 / per_page).ceil() as u64;
        expected.saturating_add(1).min(count_max) as u32
    }

    /// Reads a page and the known pages that follow it from a key on (trained ones and their
    /// synonyms), up to the number wanted: one batch, with one verb for each adjacent piece.
    async fn read_ahead(
        &self,
        batch: &mut Batch,
        hint: Hint,
        from: &[u8],
        page_count: u32,
    ) -> Result<PagesRead, ByteIndexError> {
        let mut ahead = PagesAhead::new(page_count);
        {
            let layer = self.state.layer();
            let mut parent = hint.parent;
            let is_trained = layer.page(parent).is_some_and(|it| it.addr == hint.addr);
            if !is_trained {
                ahead.push(hint, 1);
                let own = layer.synonyms_behind(parent, from);
                ahead.push_synonyms(parent, own.filter(|addr| *addr != hint.addr));
                parent += 1;
            }
            while ahead.left > 0
                && let Some((first, count)) = layer.run_from(parent, ahead.left)
            {
                let run = ahead.pieces.len();
                ahead.pieces.push((first, 0));
                while ahead.pieces[run].1 < count && ahead.left > 0 {
                    ahead.pieces[run].1 += 1;
                    ahead.left -= 1;
                    // Synonyms of pages after the first one begin after the key.
                    ahead.push_synonyms(parent, layer.synonyms_behind(parent, from));
                    parent += 1;
                }
            }
        }
        self.read_pieces(batch, &ahead.pieces).await
    }

    /// Reads pieces of adjacent pages; trained ones have ascending parents.
    pub(super) async fn read_pieces(
        &self,
        batch: &mut Batch,
        pieces: &[(Hint, u32)],
    ) -> Result<PagesRead, ByteIndexError> {
        let geometry = self.access.geometry;
        batch.clear();
        let mut read = PagesRead::with_capacity(geometry, pieces.len());
        for (first, count) in pieces {
            batch.cost_mut().leaves_read += u64::from(*count);
            let before_last = (*count as usize - 1) * geometry.page_size_words();
            let words = before_last + geometry.image_size_words();
            let slot = batch.read(geometry.state(first.addr), words);
            read.add(slot, *first, *count);
        }
        self.access.endpoint.execute(batch).await?;
        Ok(read)
    }

    /// Copies the pages that a batch has read, if they are intact and not retired.
    pub(super) fn copied(&self, batch: &Batch, read: &PagesRead) -> ReadAhead {
        let mut ahead = ReadAhead::default();
        for (hint, words) in read.pages(batch) {
            let image = PageImage::new(self.access.geometry, words);
            if self.access.is_intact(image.words(), hint.addr) && !image.is_retired() {
                ahead.pages.push((hint, PageBuffer::copy_of(image)));
            }
        }
        ahead
    }

    /// Takes the records of pages in the order of links, as long as each page covers the cursor.
    /// Missing pages cost another batch.
    async fn consume(
        &self,
        batch: &mut Batch,
        cursor: &mut ScanCursor,
        mut hint: Hint,
        mut ahead: ReadAhead,
        output: &mut ScanOutput<'_>,
    ) -> Result<(), ByteIndexError> {
        let (mut is_first, mut last) = (true, None);
        while let Some(from) = cursor.next_key.clone() {
            if output.records.len() >= output.end {
                break;
            }
            let read = ahead.take(hint.addr);
            let Some((_, page)) = read.filter(|_| self.is_current()) else {
                if !is_first {
                    cursor.hint = Some((hint, self.layer_version));
                    return Ok(());
                }
                // The page was torn or retired: walk as a get does.
                let torn = PageVerdict::LeafCheck(LeafCheck::Torn);
                let walk = self.walk(batch, &from, hint, torn);
                let CoveringPage { hint: at, page, .. } = walk.await?;
                (hint, last) = (at, Some(at));
                self.take_page(batch, cursor, at.addr, &page, output)
                    .await?;
                hint = self.next_of(hint, page.image());
                is_first = false;
                continue;
            };
            is_first = false;
            let mut outside = Outside::new();
            let look = self.look_with_strings(batch, hint.addr, &page, &from, &mut outside);
            match look.await? {
                LeafCheck::Here => {
                    last = Some(hint);
                    self.take_page(batch, cursor, hint.addr, &page, output)
                        .await?;
                    hint = self.next_of(hint, page.image());
                }
                look => {
                    let walk = self.walk(batch, &from, hint, PageVerdict::LeafCheck(look));
                    let CoveringPage { hint: at, page, .. } = walk.await?;
                    last = Some(at);
                    self.take_page(batch, cursor, at.addr, &page, output)
                        .await?;
                    hint = self.next_of(at, page.image());
                }
            }
        }
        // The page may contain more records than wanted, so the next call begins with it.
        cursor.hint = last.map(|last| (last, self.layer_version));
        Ok(())
    }

    /// Returns the page where a scan continues after a page.
    pub(super) fn next_of(&self, hint: Hint, image: PageImage<'_>) -> Hint {
        let link = image.link().place();
        let next = self.state.layer().next_trained(hint.parent);
        match next {
            Some(next) if next.addr == link => next,
            _ => Hint {
                addr: link,
                parent: hint.parent,
            },
        }
    }
}
