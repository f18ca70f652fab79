//! Segments and residuals in memory, which map a key to a leaf.

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

/// Predicted place of a key. Numbers count the leaves of all segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Predicted leaf.
    pub leaf: u32,
    /// Adjacent leaf that may contain the key just as well: read both together.
    pub also: Option<u32>,
}

/// Segment in memory: half a cache line.
#[derive(Clone, Copy, Debug)]
enum SegmentEntry {
    Line {
        slope: f64,
        first_coordinate: u64,
        intercept: f32,
        /// Number of its first leaf in the directory.
        first_leaf: u32,
        /// Number of its first residual or block in the directory, if it has any.
        first_residual: u32,
        prefix_size: u16,
        alphabet: Alphabet,
    },
    FrontCoded {
        first_leaf: u32,
        /// Index among the front-coded segments.
        index: u32,
        prefix_size: u16,
    },
}

const _: () = assert!(size_of::<SegmentEntry>() == 32);

impl SegmentEntry {
    #[inline]
    fn first_leaf(&self) -> u32 {
        match self {
            Self::Line { first_leaf, .. } | Self::FrontCoded { first_leaf, .. } => *first_leaf,
        }
    }
}

/// Prediction of a segment for a key.
enum SegmentPrediction {
    /// Line with the key's coordinate, and the number of the line's first residual.
    Line(StringLine, u64, u32),
    /// Leaf that contains the key.
    Leaf(u32),
}

/// Result of a training over strings, as one process holds it: immutable, replaced as a whole.
///
/// Lookups compare only the first `prefix_size` bytes of a first fence and the bytes that
/// distinguish it from others. They do not allocate.
#[derive(Debug)]
pub struct StringDirectory {
    routes: StringRoutes,
    entries: Box<[SegmentEntry]>,
    /// Error of each segment; 0 for front-coded ones.
    errors: Box<[f32]>,
    /// Fences of the front-coded segments, in order.
    fences: Box<[FrontCodedFences]>,
    leaf_count: u32,
    residuals: Residuals,
}

impl StringDirectory {
    /// Builds a directory. Checks that segments ascend, and that the number of residuals is right,
    /// because they may come from elsewhere.
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
                    entries.push(SegmentEntry::FrontCoded {
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

    fn line_entry(segment: &LineSegment, first_leaf: u32, first_residual: u32) -> SegmentEntry {
        let line = segment.line();
        SegmentEntry::Line {
            slope: line.slope,
            first_coordinate: line.first_coordinate,
            intercept: line.intercept,
            first_leaf,
            first_residual,
            prefix_size: segment.parts().prefix_size,
            alphabet: line.alphabet,
        }
    }

    /// Predicts the leaf of a key, or two adjacent leaves.
    ///
    /// - A front-coded segment returns the right leaf.
    /// - A line is right for keys that were a leaf's first or last key, unless both sides of a
    ///   fence have the same position.
    /// - For other and later keys, a line is right within
    ///   [`predicted_range`](Self::predicted_range), plus or minus a leaf at each end. Of two
    ///   leaves, one is, and the other is adjacent.
    #[inline]
    pub fn locate(&self, key: &[u8]) -> Located {
        let segment = self.routes.find(key);
        let leaves = self.leaves_of(segment);
        let count = leaves.end - leaves.start;
        let (leaf, is_pair) = match self.predict_in(segment, key, count) {
            SegmentPrediction::Line(line, coordinate, first_residual) => {
                self.leaf_by_line(&line, coordinate, first_residual as usize, count)
            }
            SegmentPrediction::Leaf(leaf) => (leaf, false),
        };
        let leaf = leaves.start + leaf;
        Located {
            leaf: leaf - u32::from(is_pair),
            also: is_pair.then_some(leaf),
        }
    }

    /// Returns the prediction of a segment of `count` leaves for a key.
    #[inline]
    fn predict_in(&self, segment: usize, key: &[u8], count: u32) -> SegmentPrediction {
        match self.entries[segment] {
            SegmentEntry::Line {
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
                SegmentPrediction::Line(line, coordinate, first_residual)
            }
            SegmentEntry::FrontCoded {
                index, prefix_size, ..
            } => SegmentPrediction::Leaf(self.leaf_by_fences(
                segment,
                index,
                prefix_size,
                key,
                count,
            )),
        }
    }

    /// Returns the leaf of a segment for a coordinate; true if it may also be the one before.
    #[inline]
    fn leaf_by_line(
        &self,
        line: &StringLine,
        coordinate: u64,
        first_residual: usize,
        count: u32,
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

    /// Returns the leaf of a front-coded segment that contains a key.
    fn leaf_by_fences(
        &self,
        segment: usize,
        index: u32,
        prefix_size: u16,
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

    /// Returns the first and last leaf that may contain a key, given its segment's error, without
    /// residuals. A single leaf for front-coded segments.
    pub fn predicted_range(&self, key: &[u8]) -> (u32, u32) {
        let segment = self.routes.find(key);
        let leaves = self.leaves_of(segment);
        let count = leaves.end - leaves.start;
        let (from, to) = match self.predict_in(segment, key, count) {
            SegmentPrediction::Line(line, coordinate, _) => {
                line.range(coordinate, count, self.errors[segment])
            }
            SegmentPrediction::Leaf(leaf) => (leaf, leaf),
        };
        (leaves.start + from, leaves.start + to)
    }

    /// Returns the segment that predicts a key.
    pub fn segment_of(&self, key: &[u8]) -> usize {
        self.routes.find(key)
    }

    /// Returns the segment of a leaf, which must be one of the directory's.
    pub fn segment_of_leaf(&self, leaf: u32) -> usize {
        self.entries
            .partition_point(|entry| entry.first_leaf() <= leaf)
            - 1
    }

    /// Returns the numbers of a segment's leaves.
    #[inline]
    pub fn leaves_of(&self, segment: usize) -> core::ops::Range<u32> {
        self.entries[segment].first_leaf()..self.end_leaf(segment)
    }

    /// Returns the number of segments.
    pub fn segment_count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of front-coded segments.
    pub fn front_coded_count(&self) -> usize {
        self.fences.len()
    }

    /// Returns the number of leaves.
    pub fn leaf_count(&self) -> u32 {
        self.leaf_count
    }

    /// Returns the size in bytes of all memory held: this value itself, routes, segments, fences
    /// and residuals.
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
            .map_or(self.leaf_count, SegmentEntry::first_leaf)
    }
}
