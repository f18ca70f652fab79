//! Fast path of a scan: pages that one batch has read, in the order of links, used in place in the
//! batch.

use crate::hint::Hint;
use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint, ReadSlot};
use farleaf_leaf::strings::{
    KeyPlacement, PageGeometry, PageImage, StoredFence, StoredPrefix, Value,
};

use super::cursor::ScanCursor;
use super::scan_page::ScanOutput;
use super::{ByteIndex, NOTHING_OUTSIDE};

/// Pages that one batch has read, in adjacent pieces.
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

/// Position of a page: its piece, and its index in the piece.
type PageIndex = (usize, u32);

impl PagesRead {
    pub(super) fn with_capacity(geometry: PageGeometry, count: usize) -> Self {
        Self {
            geometry,
            pieces: Vec::with_capacity(count),
        }
    }

    /// Adds a READ of adjacent pages.
    pub(super) fn add(&mut self, slot: ReadSlot, first: Hint, count: u32) {
        self.pieces.push(Piece { first, count, slot });
    }

    /// Iterates over the pages; each with the words from its image on.
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

    /// Finds the page at an address, beginning with the one after `last`.
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

/// Result of taking a page.
enum PageUse {
    /// The whole page was passed.
    Whole,
    /// The wanted number of records is reached.
    Enough,
    /// The page ends before the cursor: a model has predicted it or a page after it.
    Before,
    /// The page cannot be used in place.
    Not,
}

impl<E: Endpoint> ByteIndex<'_, E> {
    /// Takes the records of pages in the order of links, beginning at a page, as long as the pages
    /// were read and contain everything but values, and moves the cursor. Returns the page that
    /// needs the slow path. `None`: the cursor has its hint, or the wanted number of records is
    /// reached.
    pub(super) fn take_run(
        &self,
        batch: &Batch,
        cursor: &mut ScanCursor,
        hint: Hint,
        read: &PagesRead,
        output: &mut ScanOutput<'_>,
    ) -> Option<Hint> {
        let (mut at, mut last) = (hint, None);
        while cursor.next_key.is_some() && output.records.len() < output.end {
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
            match self.take_at_once(image, page, cursor, output) {
                PageUse::Enough => {
                    // The next call begins with this page: there may be no model that leads here.
                    cursor.hint = Some((page, self.layer_version));
                    return None;
                }
                PageUse::Whole => {}
                PageUse::Before if last.is_none() => {}
                PageUse::Before | PageUse::Not => return Some(at),
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
        output: &mut ScanOutput<'_>,
    ) -> PageUse {
        let (records, end, pending) = (&mut *output.records, output.end, &mut output.pending);
        let from = cursor.next_key.as_deref().unwrap_or_default();
        if !self.access.is_intact(image.words(), page.addr) || image.is_retired() {
            return PageUse::Not;
        }
        match image.placement(from, NOTHING_OUTSIDE) {
            KeyPlacement::Here => {}
            KeyPlacement::Right => return PageUse::Before,
            KeyPlacement::Left | KeyPlacement::Unsure(_) => return PageUse::Not,
        }
        let (StoredPrefix::Inline(prefix), Some(order)) = (image.prefix(), image.slots_in_order())
        else {
            return PageUse::Not;
        };
        // The page covers the key, so the key begins with the prefix.
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
                return PageUse::Enough;
            }
            let value = match image.value(slot) {
                _ if !cursor.has_values => &[],
                Value::Inline(value) => value,
                Value::Outside(reference) => {
                    pending.push((records.len(), page.addr, reference));
                    &[]
                }
            };
            records.push_parts(prefix, suffix, value);
            last = suffix;
        }
        cursor.pass_stored(prefix, image.high());
        PageUse::Whole
    }
}

/// Returns whether all keys below a page's upper fence are wanted.
fn is_wanted_to(cursor: &ScanCursor, prefix: &[u8], high: StoredFence<'_>) -> bool {
    match high {
        StoredFence::Before(stored) | StoredFence::Behind(stored) => {
            cursor.is_wanted_parts(prefix, stored.in_page())
        }
        StoredFence::End => false,
    }
}
