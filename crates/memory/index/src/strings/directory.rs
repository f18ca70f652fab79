//! Models over strings and addresses of their pages, in this process's memory.

use core::ops::Range;

use crate::hint::{Announcement, Hint, due_split_count};
use farleaf_base::RemoteAddr;
use farleaf_leaf::strings::PageGeometry;
use farleaf_model::strings::{Residuals, StringDirectory, StringModelError, StringSegment};
use farleaf_pool::PoolLayout;

/// Pages of a model: adjacent, as a load writes them, or listed one by one, as retraining finds
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Address of the first page if the pages are adjacent; else null.
    pub base: RemoteAddr,
    /// Address of each page; empty if the pages are adjacent.
    pub listed: Box<[RemoteAddr]>,
    /// Number of pages.
    pub page_count: u32,
    /// Address of the model's synonym leaf table: the counter, then entries. Null if it has none.
    pub synonym_table: RemoteAddr,
    /// Capacity of the synonym leaf table, in entries.
    pub synonym_capacity: u32,
}

impl Run {
    /// Returns a run of adjacent pages without a synonym leaf table.
    pub fn side_by_side(base: RemoteAddr, page_count: u32, synonym_capacity: u32) -> Self {
        Self {
            base,
            listed: Box::default(),
            page_count,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity,
        }
    }

    /// Returns a run of pages at arbitrary addresses.
    pub fn listed(pages: Box<[RemoteAddr]>, synonym_capacity: u32) -> Self {
        Self {
            base: RemoteAddr::NULL,
            page_count: pages.len() as u32,
            listed: pages,
            synonym_table: RemoteAddr::NULL,
            synonym_capacity,
        }
    }

    /// Returns whether the pages are listed one by one.
    pub const fn is_listed(&self) -> bool {
        self.base.is_null()
    }

    /// Returns the address of a page of the run.
    #[inline]
    pub fn page(&self, number: u32, geometry: PageGeometry) -> RemoteAddr {
        if self.is_listed() {
            return self.listed[number as usize];
        }
        let stride = geometry.stride_blocks();
        self.base.offset_blocks(u64::from(number) * stride)
    }
}

/// Result of a training, as one process holds it: immutable, replaced as a whole.
#[derive(Debug)]
pub struct ByteDirectory {
    geometry: PageGeometry,
    generation: u16,
    record_count: u64,
    models: StringDirectory,
    runs: Box<[Run]>,
}

/// Location where a key is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLocation {
    /// Page that probably covers the key.
    pub page: Hint,
    /// Trained page after the parent of `page`, if the key may be there instead.
    pub also: Option<Hint>,
}

impl KeyLocation {
    /// Returns a location with only this page.
    pub(crate) const fn at(page: Hint) -> Self {
        Self { page, also: None }
    }
}

impl ByteDirectory {
    /// Builds a directory with one run per segment; each run must have as many pages as its segment
    /// has leaves (asserted).
    ///
    /// # Errors
    /// Segments or residuals contradict each other.
    pub fn build(
        geometry: PageGeometry,
        generation: u16,
        record_count: u64,
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

    /// Returns the geometry of the pages.
    pub const fn geometry(&self) -> PageGeometry {
        self.geometry
    }

    /// Returns the generation of the load that created the directory.
    pub const fn generation(&self) -> u16 {
        self.generation
    }

    /// Returns the number of records that the models were trained on.
    pub const fn record_count(&self) -> u64 {
        self.record_count
    }

    /// Returns the number of trained pages.
    pub fn page_count(&self) -> u32 {
        self.models.leaf_count()
    }

    /// Returns the number of models.
    pub fn model_count(&self) -> usize {
        self.runs.len()
    }

    /// Returns the number of front-coded models.
    pub fn front_coded_count(&self) -> usize {
        self.models.front_coded_count()
    }

    /// Returns the bytes that lookups and announcements of splits access.
    pub fn size_bytes(&self) -> u64 {
        let listed = self.runs.iter().map(|run| size_of_val(&*run.listed));
        (self.models.size_bytes() + size_of_val(&*self.runs) + listed.sum::<usize>()) as u64
    }

    /// Returns the approximate number of memory allocations: ten of its own, two per front-coded
    /// model, and one per list of pages.
    pub fn allocation_count(&self) -> u64 {
        let listed = self.runs.iter().filter(|run| run.is_listed()).count();
        (10 + 2 * self.front_coded_count() + listed) as u64
    }

    /// Returns the page that covers a key according to the training, or two candidates.
    #[inline]
    pub fn locate(&self, key: &[u8]) -> KeyLocation {
        let located = self.models.locate(key);
        KeyLocation {
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

    /// Returns the trained page with this number, or `None` if there is none.
    pub fn page(&self, number: u32) -> Option<Hint> {
        (number < self.page_count()).then(|| self.page_of(number))
    }

    /// Returns the trained page with this number, and how many pages of its model lie adjacent from
    /// it on (at most `count_max`).
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

    /// Returns how many pages of its model lie adjacent up to and including the trained page with
    /// this number (at most `count_max`).
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

    /// Returns whether the page with this number lies exactly `page_count` pages behind an address.
    fn is_beside(&self, from: RemoteAddr, page_count: u32, number: u32) -> bool {
        let addr = self.page_of(number).addr;
        let blocks = u64::from(page_count) * self.geometry.stride_blocks();
        addr.node() == from.node() && addr.block() == from.block() + blocks
    }

    /// Returns where a split of a page of this parent is announced.
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

    /// Returns the model of the trained page with this number, which must exist.
    pub fn model_of(&self, number: u32) -> usize {
        self.models.segment_of_leaf(number)
    }

    /// Returns the numbers of a model's pages.
    pub fn pages_of(&self, model: u32) -> Range<u32> {
        self.models.leaves_of(model as usize)
    }
}

/// Returns whether an announced or listed address is in the pool and could be that of a page.
pub(crate) fn can_be_page(layout: &PoolLayout, geometry: PageGeometry, addr: RemoteAddr) -> bool {
    let last_block = geometry.stride_blocks() - 1;
    layout.chunk_of(addr).is_some()
        && addr.block() + last_block < RemoteAddr::BLOCK_COUNT_MAX
        && layout.chunk_of(addr.offset_blocks(last_block)).is_some()
}
