//! The usual way of a scan: pages that one batch has read, in the order of links, taken where they
//! lie in the batch.

use farleaf_fabric::{Batch, Endpoint, ReadSlot};
use farleaf_index::hint::Hint;
use farleaf_page::{PageGeometry, PageImage, Placement, StoredFence, StoredPrefix, Value};
use farleaf_types::RemoteAddr;

use super::cursor::ScanCursor;
use super::records::RecordBuffer;
use super::scan_page::Pending;
use super::{ByteIndex, NOTHING_OUTSIDE};

/// Pages that one batch has read: pieces of them side by side.
#[derive(Debug)]
pub(super) struct PagesRead {
    geometry: PageGeometry,
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    first: Hint,
    count: u32,
    slot: ReadSlot,
}

/// Which page of which piece.
type PageIndex = (usize, u32);

impl PagesRead {
    pub(super) fn with_capacity(geometry: PageGeometry, count: usize) -> Self {
        Self {
            geometry,
            pieces: Vec::with_capacity(count),
        }
    }

    /// A READ brings so many pages side by side.
    pub(super) fn add(&mut self, slot: ReadSlot, (first, count): (Hint, u32)) {
        self.pieces.push(Piece { first, count, slot });
    }

    /// Each of them, and the words from its image on.
    pub(super) fn pages<'b>(&'b self, batch: &'b Batch) -> impl Iterator<Item = (Hint, &'b [u64])> {
        let pieces = self.pieces.iter().enumerate();
        let indexes = pieces.flat_map(|(piece, it)| (0..it.count).map(move |page| (piece, page)));
        indexes.map(|index| self.page(batch, index))
    }

    #[inline]
    fn page<'b>(&self, batch: &'b Batch, (piece, page): PageIndex) -> (Hint, &'b [u64]) {
        let Piece { first, slot, .. } = self.pieces[piece];
        let hint = Hint {
            addr: self.addr(first.addr, page),
            parent: first.parent + page,
        };
        let start = page as usize * self.geometry.page_size_words();
        (hint, &batch.words(slot)[start..])
    }

    #[inline]
    fn addr(&self, first: RemoteAddr, page: u32) -> RemoteAddr {
        first.offset_blocks(u64::from(page) * self.geometry.stride_blocks())
    }

    /// Which of them is at an address, where the one behind `last` is likely to be.
    #[inline]
    fn find(&self, last: PageIndex, addr: RemoteAddr) -> Option<PageIndex> {
        let (piece, page) = (last.0, last.1 + 1);
        let is_next = |it: &Piece| page < it.count && self.addr(it.first.addr, page) == addr;
        if self.pieces.get(piece).is_some_and(is_next) {
            return Some((piece, page));
        }
        let is_it = |it: &Piece| it.first.addr == addr;
        if self.pieces.get(piece + 1).is_some_and(is_it) {
            return Some((piece + 1, 0));
        }
        self.find_anywhere(addr)
    }

    fn find_anywhere(&self, addr: RemoteAddr) -> Option<PageIndex> {
        let mut pieces = self.pieces.iter().enumerate();
        pieces.find_map(|(piece, it)| {
            let mut pages = 0..it.count;
            let page = pages.find(|page| self.addr(it.first.addr, *page) == addr)?;
            Some((piece, page))
        })
    }
}

/// What became of a page.
enum Taken {
    /// All of it was passed.
    Whole,
    /// There are as many records as are wanted.
    Enough,
    /// It ends before the cursor: a model has named it, or the one behind it.
    Before,
    /// It cannot be taken as it lies there.
    Not,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Takes records of pages in the order of links from a page on, as long as these were read and
    /// have all but values in them, and moves the cursor. The page at which something else has to
    /// be done; `None`: nothing has, the cursor has its hint, or there are as many as are wanted.
    pub(super) fn take_run(
        &self,
        batch: &Batch,
        cursor: &mut ScanCursor,
        (hint, read): (Hint, &PagesRead),
        end: usize,
        (records, pending): (&mut RecordBuffer, &mut Pending),
    ) -> Option<Hint> {
        let (mut at, mut last) = (hint, None);
        while cursor.next_key.is_some() && records.len() < end {
            if !self.is_current() {
                return Some(at);
            }
            let index = match last {
                None => read.find_anywhere(at.addr),
                Some(last) => read.find(last, at.addr),
            };
            let Some(index) = index else {
                if last.is_none() {
                    return Some(at);
                }
                cursor.hint = Some((at, self.layer_version));
                return None;
            };
            let (page, words) = read.page(batch, index);
            let image = PageImage::new(self.access.geometry, words);
            match self.take_at_once(image, page, cursor, end, (records, pending)) {
                Taken::Enough => {
                    // The next call begins with it: there may be no model that leads here.
                    cursor.hint = Some((page, self.layer_version));
                    return None;
                }
                Taken::Whole => {}
                Taken::Before if last.is_none() => {}
                Taken::Before | Taken::Not => return Some(at),
            }
            (at, last) = (self.next_of(page, image), Some(index));
        }
        None
    }

    fn take_at_once(
        &self,
        image: PageImage<'_>,
        page: Hint,
        cursor: &mut ScanCursor,
        end: usize,
        (records, pending): (&mut RecordBuffer, &mut Pending),
    ) -> Taken {
        let from = cursor.next_key.as_deref().unwrap_or_default();
        if !self.access.is_intact(image.words(), page.addr) || image.is_retired() {
            return Taken::Not;
        }
        match image.placement(from, NOTHING_OUTSIDE) {
            Placement::Here => {}
            Placement::Right => return Taken::Before,
            Placement::Left | Placement::Unsure(_) => return Taken::Not,
        }
        let (StoredPrefix::Inline(prefix), Some(order)) = (image.prefix(), image.slots_in_order())
        else {
            return Taken::Not;
        };
        // The page covers it, so it begins with the prefix.
        let from = from.get(prefix.len()..).unwrap_or_default();
        let ends_here = cursor.end().is_some() && !is_wanted_to(cursor, prefix, image.high());
        self.state.note_passed(image.record_count());
        let mut last = &[][..];
        for slot in order.iter() {
            let suffix = image.key(slot).in_page();
            if suffix < from {
                continue;
            }
            if ends_here && !cursor.is_wanted_parts(prefix, suffix) {
                break;
            }
            if records.len() == end {
                cursor.pass_parts(prefix, last);
                return Taken::Enough;
            }
            let value = match image.value(slot) {
                _ if !cursor.has_values => &[],
                Value::Inline(value) => value,
                Value::Outside(reference) => {
                    pending.push((records.len(), page.addr, reference));
                    &[]
                }
            };
            records.push_parts((prefix, suffix), value);
            last = suffix;
        }
        cursor.pass_stored(prefix, image.high());
        Taken::Whole
    }
}

/// Whether all keys before a page's upper fence are wanted.
fn is_wanted_to(cursor: &ScanCursor, prefix: &[u8], high: StoredFence<'_>) -> bool {
    match high {
        StoredFence::Before(stored) | StoredFence::Behind(stored) => {
            cursor.is_wanted_parts(prefix, stored.in_page())
        }
        StoredFence::End => false,
    }
}
