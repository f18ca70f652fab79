//! Segments and residuals in memory: from a key to a leaf.

use core::cmp::Ordering;

use crate::strings::alphabet::Alphabet;
use crate::strings::boundary::find_by_bytes;
use crate::strings::error::StringModelError;
use crate::strings::front_coded::FrontCodedFences;
use crate::strings::line::{LineSegment, StringLine, coordinate_behind};
use crate::strings::packed::{PackedBlock, find_by_steps};
use crate::strings::residuals::Residuals;
use crate::strings::routes::StringRoutes;
use crate::strings::segment::StringSegment;

/// Where a key is, as far as the training knows; numbers count the leaves of all segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The leaf.
    pub leaf: u32,
    /// The leaf behind it, if the key may as well be there: both are to be read together.
    pub also: Option<u32>,
}

/// A segment in memory: half a cache line.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Line {
        slope: f64,
        first_coordinate: u64,
        intercept: f32,
        /// Number of its first leaf in the directory.
        first_leaf: u32,
        /// Number of its first residual or block in the directory, if there are any.
        first_residual: u32,
        prefix_size: u16,
        alphabet: Alphabet,
    },
    FrontCoded {
        first_leaf: u32,
        /// Which of the front-coded segments it is.
        index: u32,
        prefix_size: u16,
    },
}

const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    #[inline]
    fn first_leaf(&self) -> u32 {
        match self {
            Self::Line { first_leaf, .. } | Self::FrontCoded { first_leaf, .. } => *first_leaf,
        }
    }
}

/// What a segment says of a key.
enum Said {
    /// The key's coordinate on a line; and the number of the line's first residual.
    Line(StringLine, u64, u32),
    /// The leaf that it is in.
    Leaf(u32),
}

/// What a training over strings told, as one process holds it: immutable, replaced as a whole.
///
/// Only the first `prefix_size` bytes of a first fence and what tells it from others are looked at;
/// lookups do not allocate.
#[derive(Debug)]
pub struct StringDirectory {
    routes: StringRoutes,
    entries: Box<[Entry]>,
    /// Of each segment; 0 of front-coded ones.
    errors: Box<[f32]>,
    /// Of front-coded segments, in order.
    fences: Box<[FrontCodedFences]>,
    leaf_count: u32,
    residuals: Residuals,
}

impl StringDirectory {
    /// Puts a directory together. Segments must ascend, and residuals be as many as they need: what
    /// comes from elsewhere is checked here.
    pub fn build(
        segments: &[StringSegment],
        residuals: Residuals,
    ) -> Result<Self, StringModelError> {
        let first_fences: Vec<&[u8]> = segments.iter().map(StringSegment::first_fence).collect();
        let routes = StringRoutes::build(&first_fences)?;
        let (mut leaf_count, mut residual_count) = (0_u32, 0);
        let mut entries = Vec::with_capacity(segments.len());
        let (mut errors, mut fences) = (Vec::with_capacity(segments.len()), Vec::new());
        for segment in segments {
            match segment {
                StringSegment::Line(line) => {
                    entries.push(Self::line_entry(line, leaf_count, residual_count));
                    errors.push(line.parts().error_max);
                }
                StringSegment::FrontCoded(segment) => {
                    entries.push(Entry::FrontCoded {
                        first_leaf: leaf_count,
                        index: fences.len() as u32,
                        prefix_size: segment.prefix_size(),
                    });
                    errors.push(0.0);
                    fences.push(segment.fences.clone());
                }
            }
            let sum = leaf_count.checked_add(segment.leaf_count());
            leaf_count = sum.ok_or(StringModelError::TooMany { what: "leaves" })?;
            residual_count += residuals.count_of(segment) as u32;
        }
        Ok(Self {
            routes,
            entries: entries.into(),
            errors: errors.into(),
            fences: fences.into(),
            leaf_count,
            residuals: residuals.checked(segments)?,
        })
    }

    fn line_entry(segment: &LineSegment, first_leaf: u32, first_residual: u32) -> Entry {
        let line = segment.line();
        Entry::Line {
            slope: line.slope,
            first_coordinate: line.first_coordinate,
            intercept: line.intercept,
            first_leaf,
            first_residual,
            prefix_size: segment.parts().prefix_size,
            alphabet: line.alphabet,
        }
    }

    /// L2: the leaf that a key is in, as far as the training knows, or two of them.
    ///
    /// Of front-coded segments it is the right leaf. Of lines, it is for keys that were a leaf's
    /// first or last one, unless positions of both sides of a fence are one; of others, and of keys
    /// that came later, within the bound that [`predicted_range`](Self::predicted_range) has, give
    /// or take a leaf at each end; of two leaves one is, and the other lies beside it.
    #[inline]
    pub fn locate(&self, key: &[u8]) -> Located {
        let segment = self.routes.find(key);
        let leaves = self.leaves_of(segment);
        let count = leaves.end - leaves.start;
        let (leaf, is_pair) = match self.ask(segment, key, count) {
            Said::Line(line, coordinate, first_residual) => {
                self.leaf_by_line(&line, coordinate, (first_residual as usize, count))
            }
            Said::Leaf(leaf) => (leaf, false),
        };
        let leaf = leaves.start + leaf;
        Located {
            leaf: leaf - u32::from(is_pair),
            also: is_pair.then_some(leaf),
        }
    }

    /// What a segment of so many leaves says of a key.
    #[inline]
    fn ask(&self, segment: usize, key: &[u8], count: u32) -> Said {
        match self.entries[segment] {
            Entry::Line {
                slope,
                first_coordinate,
                intercept,
                first_residual,
                prefix_size,
                alphabet,
                ..
            } => {
                let line = StringLine {
                    slope,
                    first_coordinate,
                    intercept,
                    alphabet,
                };
                let prefix_size = usize::from(prefix_size);
                let order = self.routes.compare_prefix(segment, prefix_size, key);
                let coordinate = coordinate_behind(order, prefix_size, key, alphabet);
                Said::Line(line, coordinate, first_residual)
            }
            Entry::FrontCoded {
                index, prefix_size, ..
            } => Said::Leaf(self.leaf_by_fences(segment, (index, prefix_size), key, count)),
        }
    }

    /// The leaf of a segment that a coordinate belongs to; true: or the one before it.
    #[inline]
    fn leaf_by_line(
        &self,
        line: &StringLine,
        coordinate: u64,
        (first_residual, count): (usize, u32),
    ) -> (u32, bool) {
        match &self.residuals {
            Residuals::None => {
                let position = line.position(coordinate, 0);
                (position.clamp(0, i64::from(count) - 1) as u32, false)
            }
            Residuals::Bytes { shift, residuals } => {
                let residuals = &residuals[first_residual..first_residual + count as usize];
                find_by_bytes(line, coordinate, residuals, *shift)
            }
            Residuals::Packed { blocks } => {
                let end = first_residual + PackedBlock::count_for(count);
                find_by_steps(line, coordinate, &blocks[first_residual..end], count)
            }
        }
    }

    /// The leaf of a front-coded segment that a key is in.
    fn leaf_by_fences(
        &self,
        segment: usize,
        (index, prefix_size): (u32, u16),
        key: &[u8],
        count: u32,
    ) -> u32 {
        let prefix_size = usize::from(prefix_size);
        match self.routes.compare_prefix(segment, prefix_size, key) {
            Ordering::Less => 0,
            Ordering::Equal => self.fences[index as usize].find(&key[prefix_size..]),
            Ordering::Greater => count - 1,
        }
    }

    /// Every leaf that a key may be in given its segment's error, first and last number: L3,
    /// without residuals. One leaf of a front-coded segment.
    pub fn predicted_range(&self, key: &[u8]) -> (u32, u32) {
        let segment = self.routes.find(key);
        let leaves = self.leaves_of(segment);
        let count = leaves.end - leaves.start;
        let (from, to) = match self.ask(segment, key, count) {
            Said::Line(line, coordinate, _) => line.range(coordinate, count, self.errors[segment]),
            Said::Leaf(leaf) => (leaf, leaf),
        };
        (leaves.start + from, leaves.start + to)
    }

    /// The segment that predicts a key.
    pub fn segment_of(&self, key: &[u8]) -> usize {
        self.routes.find(key)
    }

    /// The segment that a leaf, which must be one of the directory's, belongs to.
    pub fn segment_of_leaf(&self, leaf: u32) -> usize {
        self.entries
            .partition_point(|entry| entry.first_leaf() <= leaf)
            - 1
    }

    /// The numbers of a segment's leaves.
    #[inline]
    pub fn leaves_of(&self, segment: usize) -> core::ops::Range<u32> {
        self.entries[segment].first_leaf()..self.end_leaf(segment)
    }

    /// How many segments there are.
    pub fn segment_count(&self) -> usize {
        self.entries.len()
    }

    /// How many of them are front-coded.
    pub fn front_coded_count(&self) -> usize {
        self.fences.len()
    }

    /// How many leaves there are.
    pub fn leaf_count(&self) -> u32 {
        self.leaf_count
    }

    /// All memory held, in bytes: this value itself, routes, segments, fences and residuals.
    pub fn size_bytes(&self) -> usize {
        let fences = self.fences.iter().map(FrontCodedFences::heap_size_bytes);
        size_of::<Self>() - size_of::<StringRoutes>()
            + self.routes.size_bytes()
            + size_of_val(&*self.entries)
            + size_of_val(&*self.errors)
            + size_of_val(&*self.fences)
            + fences.sum::<usize>()
            + self.residuals.heap_size_bytes()
    }

    #[inline]
    fn end_leaf(&self, segment: usize) -> u32 {
        self.entries
            .get(segment + 1)
            .map_or(self.leaf_count, Entry::first_leaf)
    }
}
