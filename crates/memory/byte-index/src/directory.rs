//! Models over strings, and where their pages are, in this process's memory.

use core::ops::Range;

use farleaf_index::hint::{Announcement, Hint, due_split_count};
use farleaf_model::strings::{Residuals, StringDirectory, StringModelError, StringSegment};
use farleaf_page::PageGeometry;
use farleaf_region::PoolLayout;
use farleaf_types::RemoteAddr;

/// The pages of a model: side by side, as a load writes them, or one by one where they are (BR3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its first page, if they lie side by side; else null.
    pub base: RemoteAddr,
    /// Each page; none if they lie side by side.
    pub listed: Box<[RemoteAddr]>,
    /// How many there are.
    pub page_count: u32,
    /// Its synonym leaf table: the counter, then entries. Null when it has none.
    pub synonym_table: RemoteAddr,
    /// Entries that the synonym leaf table has room for.
    pub synonym_capacity: u32,
}

impl Run {
    /// Pages side by side, which have no synonym leaf table yet.
    pub fn side_by_side(base: RemoteAddr, page_count: u32, synonym_capacity: u32) -> Self {
        Self {
            base,
            listed: Box::default(),
            page_count,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity,
        }
    }

    /// Pages that lie anywhere.
    pub fn listed(pages: Box<[RemoteAddr]>, synonym_capacity: u32) -> Self {
        Self {
            base: RemoteAddr::NULL,
            page_count: pages.len() as u32,
            listed: pages,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity,
        }
    }

    /// Whether its pages are listed.
    pub const fn is_listed(&self) -> bool {
        self.base.is_null()
    }

    /// Where one of its pages is.
    #[inline]
    pub fn page(&self, number: u32, geometry: PageGeometry) -> RemoteAddr {
        if self.is_listed() {
            return self.listed[number as usize];
        }
        let stride = geometry.stride_blocks();
        self.base.offset_blocks(u64::from(number) * stride)
    }
}

/// What a training told, as one process holds it: immutable, replaced as a whole.
#[derive(Debug)]
pub struct ByteDirectory {
    geometry: PageGeometry,
    generation: u16,
    record_count: u64,
    models: StringDirectory,
    runs: Box<[Run]>,
}

/// Where a key probably is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The page.
    pub page: Hint,
    /// The trained page behind its parent, if the key may as well be there.
    pub also: Option<Hint>,
}

impl Place {
    /// This page.
    pub(crate) const fn at(page: Hint) -> Self {
        Self { page, also: None }
    }
}

impl ByteDirectory {
    /// Puts a directory together: a run for each segment, of as many pages as it has leaves
    /// (asserted).
    ///
    /// # Errors
    /// Segments or residuals contradict each other.
    pub fn build(
        geometry: PageGeometry,
        (generation, record_count): (u16, u64),
        segments: &[StringSegment],
        residuals: Residuals,
        runs: Vec<Run>,
    ) -> Result<Self, StringModelError> {
        assert_eq!(segments.len(), runs.len(), "a run for each segment");
        for (segment, run) in segments.iter().zip(&runs) {
            assert_eq!(segment.leaf_count(), run.page_count);
            assert!(!run.is_listed() || run.listed.len() == run.page_count as usize);
        }
        Ok(Self {
            geometry,
            generation,
            record_count,
            models: StringDirectory::build(segments, residuals)?,
            runs: runs.into(),
        })
    }

    /// What its pages are like.
    pub const fn geometry(&self) -> PageGeometry {
        self.geometry
    }

    /// Which load made it.
    pub const fn generation(&self) -> u16 {
        self.generation
    }

    /// How many records it was trained on.
    pub const fn record_count(&self) -> u64 {
        self.record_count
    }

    /// How many trained pages there are.
    pub fn page_count(&self) -> u32 {
        self.models.leaf_count()
    }

    /// How many models there are.
    pub fn model_count(&self) -> usize {
        self.runs.len()
    }

    /// How many of them are front-coded.
    pub fn front_coded_count(&self) -> usize {
        self.models.front_coded_count()
    }

    /// Bytes that lookups touch, and those of what splits do.
    pub fn size_bytes(&self) -> u64 {
        let listed = self.runs.iter().map(|run| size_of_val(&*run.listed));
        (self.models.size_bytes() + size_of_val(&*self.runs) + listed.sum::<usize>()) as u64
    }

    /// About how many pieces of memory it consists of: ten of its own, two for each model that is
    /// front-coded, and one for each list of pages.
    pub fn allocation_count(&self) -> u64 {
        let listed = self.runs.iter().filter(|run| run.is_listed()).count();
        (10 + 2 * self.front_coded_count() + listed) as u64
    }

    /// L2: the page that a key is in, as far as the training knows, or two of them.
    #[inline]
    pub fn locate(&self, key: &[u8]) -> Place {
        let located = self.models.locate(key);
        Place {
            page: self.page_of(located.leaf),
            also: located.also.map(|page| self.page_of(page)),
        }
    }

    fn page_of(&self, number: u32) -> Hint {
        let model = self.models.segment_of_leaf(number);
        let first = self.models.leaves_of(model).start;
        Hint {
            addr: self.runs[model].page(number - first, self.geometry),
            parent: number,
        }
    }

    /// The trained page with this number; `None` when there is none.
    pub fn page(&self, number: u32) -> Option<Hint> {
        (number < self.page_count()).then(|| self.page_of(number))
    }

    /// The trained page with this number, and how many of its model lie side by side from it on, of
    /// `count_max` at the most.
    pub fn run_from(&self, number: u32, count_max: u32) -> Option<(Hint, u32)> {
        let page = self.page(number)?;
        let model = self.models.segment_of_leaf(number);
        let end = self.models.leaves_of(model).end;
        let most = (end - number).min(count_max.max(1));
        let count = if self.runs[model].is_listed() {
            let is_beside = |ahead: &u32| self.is_beside(page.addr, *ahead, number + ahead);
            1 + (1..most).take_while(is_beside).count() as u32
        } else {
            most
        };
        Some((page, count))
    }

    /// How many pages of its model lie side by side up to the trained page with this number, itself
    /// among them, of `count_max` at the most.
    pub fn run_up_to(&self, number: u32, count_max: u32) -> u32 {
        let model = self.models.segment_of_leaf(number);
        let start = self.models.leaves_of(model).start;
        let most = (number - start + 1).min(count_max.max(1));
        if !self.runs[model].is_listed() {
            return most;
        }
        let is_beside = |back: &u32| {
            let from = self.page_of(number - back).addr;
            self.is_beside(from, *back, number)
        };
        1 + (1..most).take_while(is_beside).count() as u32
    }

    /// Whether the page with this number lies so many pages behind a place.
    fn is_beside(&self, from: RemoteAddr, page_count: u32, number: u32) -> bool {
        let addr = self.page_of(number).addr;
        let blocks = u64::from(page_count) * self.geometry.stride_blocks();
        addr.node() == from.node() && addr.block() == from.block() + blocks
    }

    /// Where a split of a page of this parent is announced.
    pub fn announcement(&self, parent: u32) -> Option<Announcement> {
        self.page(parent)?;
        let model = self.models.segment_of_leaf(parent);
        let run = &self.runs[model];
        if run.synonym_table.is_null() {
            return None;
        }
        let parent_in_model = parent - self.models.leaves_of(model).start;
        Some(Announcement {
            counter: run.synonym_table.word_at(0),
            capacity: run.synonym_capacity,
            model: model as u32,
            parent_in_model: u16::try_from(parent_in_model).ok()?,
            due_split_count: due_split_count(run.page_count),
        })
    }

    /// The model of the trained page with this number, which must be one.
    pub fn model_of(&self, number: u32) -> usize {
        self.models.segment_of_leaf(number)
    }

    /// The numbers of a model's pages.
    pub fn pages_of(&self, model: u32) -> Range<u32> {
        self.models.leaves_of(model as usize)
    }
}

/// Whether an address that somebody has announced or listed is one of a place in the pool where a
/// page could be.
pub(crate) fn can_be_page(layout: &PoolLayout, geometry: PageGeometry, addr: RemoteAddr) -> bool {
    let last_block = geometry.stride_blocks() - 1;
    layout.chunk_of(addr).is_some()
        && addr.block() + last_block < RemoteAddr::BLOCK_COUNT_MAX
        && layout.chunk_of(addr.offset_blocks(last_block)).is_some()
}
