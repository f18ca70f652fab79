//! The part table of a snapshot: the position of each part and its first key.
//!
//! | word | meaning for a part |
//! |---|---|
//! | 0 | numbers of its first page (32) and of its first model (32) |
//! | 1 | its first word, from the end of the part table (32), size of its first fence (32) |
//! | 2 | address of its first page |
//!
//! If there are many parts, a session with a metadata budget keeps every 2nd, 4th, 8th... head. A
//! head then leads to several adjacent parts, which are read as one.

use core::ops::Range;

use crate::partial::ALLOCATION_BYTES;
use farleaf_base::RemoteAddr;
use farleaf_leaf::strings::PageGeometry;
use farleaf_pool::PoolLayout;

use super::contents::Contents;
use super::header::{HEAD_SIZE_WORDS, HEADER_SIZE_WORDS, Header};
use super::part::{Part, Span, bytes_of, halves, words_of};
use crate::strings::directory::can_be_page;

/// Position of a part.
#[derive(Clone, Copy, Debug)]
struct Head {
    first_page: u32,
    first_model: u32,
    /// First word of the part, counted from the end of the part table.
    start_word: u32,
    /// End of the part's first fence within all fences.
    fence_end: u32,
    first_addr: RemoteAddr,
}

/// Part table and header: what a session knows of a snapshot before it reads parts.
#[derive(Debug)]
pub(crate) struct Heads {
    header: Header,
    all: Box<[Head]>,
    fences: Box<[u8]>,
    /// Whether the first fence is stored. Thinned heads omit it: it may be long and is not needed,
    /// because every key below the second fence belongs to the first head.
    has_first_fence: bool,
}

/// Encodes the part table; also returns the size of all first fences in bytes.
pub(super) fn encode_heads(
    contents: &Contents,
    spans: &[Span],
    parts: &[Vec<u64>],
    geometry: PageGeometry,
) -> (Vec<u64>, u32) {
    let (mut words, mut fences, mut start) = (Vec::new(), Vec::new(), 0);
    for (span, part) in spans.iter().zip(parts) {
        let model = span.models.start;
        let fence = contents.segments[model].first_fence();
        words.push(halves(span.first_page, model as u32));
        words.push(halves(start, fence.len() as u32));
        words.push(contents.runs[model].page(0, geometry).word());
        fences.extend_from_slice(fence);
        start += part.len() as u32;
    }
    words.extend(words_of(&fences));
    (words, fences.len() as u32)
}

impl Heads {
    /// Decodes the part table that follows a header.
    ///
    /// # Errors
    /// Describes what is wrong with the words.
    pub(super) fn decode(
        header: &Header,
        header_and_table: &[u64],
        layout: &PoolLayout,
        geometry: PageGeometry,
    ) -> Result<Self, String> {
        if !header.is_sealed(header_and_table) {
            return Err("checksum mismatch in its header or part table".to_owned());
        }
        let table = &header_and_table[HEADER_SIZE_WORDS..];
        let (words, fences) = table.split_at(header.part_count as usize * HEAD_SIZE_WORDS);
        let fences = bytes_of(fences, header.fence_size_bytes as usize);
        let mut fence_end = 0_u32;
        let mut heads = Vec::with_capacity(header.part_count as usize);
        for words in words.as_chunks::<HEAD_SIZE_WORDS>().0 {
            let end = fence_end.checked_add((words[1] >> 32) as u32);
            fence_end = end.ok_or("its part table is inconsistent")?;
            let first_addr = RemoteAddr::from_word(words[2]);
            if first_addr.spare() != 0 || !can_be_page(layout, geometry, first_addr) {
                return Err(format!("the page at {first_addr} is outside the pool"));
            }
            heads.push(Head {
                first_page: words[0] as u32,
                first_model: (words[0] >> 32) as u32,
                start_word: words[1] as u32,
                fence_end,
                first_addr,
            });
        }
        let (first, last) = (heads[0], heads[heads.len() - 1]);
        let is_sound = fence_end as usize == fences.len()
            && (first.first_page, first.first_model, first.start_word) == (0, 0, 0)
            && heads.is_sorted_by(|one, next| {
                one.first_page < next.first_page
                    && one.first_model < next.first_model
                    && one.start_word < next.start_word
            })
            && last.first_page < header.page_count
            && u64::from(last.start_word) < header.parts_size_words;
        if !is_sound {
            return Err("its part table is inconsistent".to_owned());
        }
        // All fences are complete, so each can be checked.
        let heads = Self {
            header: *header,
            all: heads.into(),
            fences: fences.into(),
            has_first_fence: true,
        };
        if !(1..heads.count()).all(|part| heads.fence(part - 1) < heads.fence(part)) {
            return Err("the fences of its part table are not in ascending order".to_owned());
        }
        Ok(heads)
    }

    /// Returns every `step`th head.
    fn every(&self, step: usize) -> Self {
        let (mut heads, mut fences) = (Vec::new(), Vec::new());
        for number in (0..self.count()).step_by(step) {
            if number > 0 {
                fences.extend_from_slice(self.fence(number));
            }
            heads.push(Head {
                fence_end: fences.len() as u32,
                ..self.all[number]
            });
        }
        Self {
            header: self.header,
            all: heads.into(),
            fences: fences.into(),
            has_first_fence: false,
        }
    }

    /// Returns the header of the snapshot.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the number of heads.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    fn fence(&self, number: usize) -> &[u8] {
        let before = number.checked_sub(1).map_or(0, |it| self.all[it].fence_end);
        &self.fences[before as usize..self.all[number].fence_end as usize]
    }

    /// Returns the head that leads to a key: the last one that does not begin above it, or the
    /// first.
    pub(crate) fn of_key(&self, key: &[u8]) -> usize {
        let (mut from, mut to) = (1, self.count());
        while from < to {
            let middle = from.midpoint(to);
            if self.fence(middle) <= key {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from - 1
    }

    /// Returns the head that leads to the page with this number.
    pub(crate) fn of_page(&self, page: u32) -> usize {
        self.all.partition_point(|head| head.first_page <= page) - 1
    }

    /// Returns the number and the address of a head's first page.
    pub(crate) fn first_page(&self, number: usize) -> (u32, RemoteAddr) {
        let head = &self.all[number];
        (head.first_page, head.first_addr)
    }

    /// Returns the words that a head leads to, counted from the end of the part table.
    pub(crate) fn words_of(&self, number: usize) -> Range<usize> {
        let end = self.all.get(number + 1);
        let end = end.map_or(self.header.parts_size_words as usize, |next| {
            next.start_word as usize
        });
        self.all[number].start_word as usize..end
    }

    /// Decodes the words that a head leads to.
    ///
    /// # Errors
    /// Describes what is wrong with the words.
    pub(crate) fn decode_part(
        &self,
        number: usize,
        words: &[u64],
        layout: &PoolLayout,
        geometry: PageGeometry,
    ) -> Result<Part, String> {
        let part = Part::decode(words, self.header.shape, layout, geometry)?;
        let head = self.all[number];
        let end = self.all.get(number + 1);
        let end = end.map_or(self.header.page_count, |next| next.first_page);
        let is_it = part.first_page == head.first_page
            && part.first_model == head.first_model
            && part.page_count == end - head.first_page
            && part.first_addr(geometry) == head.first_addr
            && (number == 0 && !self.has_first_fence
                || part.segments[0].first_fence() == self.fence(number));
        if !is_it {
            return Err("a part contradicts the part table".to_owned());
        }
        Ok(part)
    }

    /// Keeps every 2nd, 4th, 8th... head, until they fit in `size_bytes_max`, or until one is left.
    #[must_use]
    pub(crate) fn thinned(self, size_bytes_max: u64) -> Self {
        let mut sample = self.every(1);
        while sample.size_bytes() > size_bytes_max && sample.count() > 1 {
            sample = sample.every(2);
        }
        sample
    }

    /// Returns the bytes of memory that depend on the number of heads.
    pub(crate) fn size_bytes(&self) -> u64 {
        let (heads, fences) = (size_of_val(&*self.all), size_of_val(&*self.fences));
        (heads + fences) as u64 + 2 * ALLOCATION_BYTES
    }
}
