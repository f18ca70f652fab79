//! Models over strings, and where their pages are, in this process's memory.

use farleaf_index::hint::{Announcement, Hint, due_split_count};
use farleaf_model::strings::{Residuals, StringDirectory, StringModelError, StringSegment};
use farleaf_page::PageGeometry;
use farleaf_types::RemoteAddr;

/// The pages of a model: side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its first page.
    pub base: RemoteAddr,
    /// How many there are.
    pub page_count: u32,
    /// Its synonym leaf table: the counter, then entries. Null when it has none.
    pub synonym_table: RemoteAddr,
    /// Entries that the synonym leaf table has room for.
    pub synonym_capacity: u32,
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
    /// The page behind it, side by side with it, if the key may as well be there.
    pub also: Option<Hint>,
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
            assert_eq!(segment.parts().leaf_count, run.page_count);
        }
        Ok(Self {
            geometry,
            generation,
            record_count,
            models: StringDirectory::build(segments, residuals)?,
            runs: runs.into(),
        })
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

    /// Bytes that lookups touch, and those of what splits do.
    pub fn size_bytes(&self) -> u64 {
        (self.models.size_bytes() + size_of_val(&*self.runs)) as u64
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
        let stride = self.geometry.stride_blocks();
        let base = self.runs[model].base;
        Hint {
            addr: base.offset_blocks(u64::from(number - first) * stride),
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
        let end = self
            .models
            .leaves_of(self.models.segment_of_leaf(number))
            .end;
        Some((page, (end - number).min(count_max.max(1))))
    }

    /// How many pages of its model lie side by side up to the trained page with this number, itself
    /// among them, of `count_max` at the most.
    pub fn run_up_to(&self, number: u32, count_max: u32) -> u32 {
        let start = self
            .models
            .leaves_of(self.models.segment_of_leaf(number))
            .start;
        (number - start + 1).min(count_max.max(1))
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

    /// The number of a model's first page.
    pub fn first_page_of(&self, model: u32) -> u32 {
        self.models.leaves_of(model as usize).start
    }
}
