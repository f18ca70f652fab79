//! Segments and residuals in memory: from a key to a leaf.

use crate::strings::alphabet::Alphabet;
use crate::strings::boundary::find_by_bytes;
use crate::strings::error::StringModelError;
use crate::strings::packed::{PackedBlock, find_by_steps};
use crate::strings::routes::StringRoutes;
use crate::strings::segment::{SHIFT_MAX, StringLine, StringSegment, coordinate_behind};

/// What corrects predictions, for the leaves of all segments in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Residuals {
    /// Nothing: the leaf that the line points to is taken.
    None,
    /// A byte per leaf.
    Bytes {
        /// Positions are counted in units of 2^-`shift` leaves.
        shift: u32,
        /// From [`byte_residuals`](crate::strings::byte_residuals), segment after segment.
        residuals: Vec<i8>,
    },
    /// 16 bytes per 30 leaves, or fewer at a segment's end: for leaves of one record.
    Packed {
        /// From [`packed_blocks`](crate::strings::packed_blocks), segment after segment.
        blocks: Vec<PackedBlock>,
    },
}

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
struct Entry {
    slope: f64,
    first_coordinate: u64,
    intercept: f32,
    /// Number of its first leaf in the directory.
    first_leaf: u32,
    /// Number of its first block in the directory, if there are blocks.
    first_block: u32,
    prefix_size: u16,
    alphabet: Alphabet,
}

const _: () = assert!(size_of::<Entry>() == 32);

impl Entry {
    #[inline]
    fn line(&self) -> StringLine {
        StringLine {
            slope: self.slope,
            first_coordinate: self.first_coordinate,
            intercept: self.intercept,
            alphabet: self.alphabet,
        }
    }
}

/// What a training over strings told, as one process holds it: immutable, replaced as a whole.
///
/// Only the first `prefix_size` bytes of a first fence and what tells it from others are looked at;
/// lookups do not allocate.
#[derive(Debug)]
pub struct StringDirectory {
    routes: StringRoutes,
    entries: Box<[Entry]>,
    errors: Box<[f32]>,
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
        let fences: Vec<&[u8]> = segments
            .iter()
            .map(|segment| &*segment.parts().first_fence)
            .collect();
        let routes = StringRoutes::build(&fences)?;
        let (mut leaf_count, mut block_count) = (0_u32, 0);
        let mut entries = Vec::with_capacity(segments.len());
        for segment in segments {
            let (parts, line) = (segment.parts(), segment.line());
            entries.push(Entry {
                slope: line.slope,
                first_coordinate: line.first_coordinate,
                intercept: line.intercept,
                first_leaf: leaf_count,
                first_block: block_count as u32,
                prefix_size: parts.prefix_size,
                alphabet: parts.alphabet,
            });
            let sum = leaf_count.checked_add(parts.leaf_count);
            leaf_count = sum.ok_or(StringModelError::TooMany { what: "leaves" })?;
            block_count += PackedBlock::count_for(parts.leaf_count);
        }
        let residuals = checked(residuals, leaf_count as usize, block_count)?;
        Ok(Self {
            routes,
            entries: entries.into(),
            errors: segments
                .iter()
                .map(|segment| segment.parts().error_max)
                .collect(),
            leaf_count,
            residuals,
        })
    }

    /// L2: the leaf that a key is in, as far as the training knows, or two of them.
    ///
    /// Of keys that were a leaf's first or last one, it is the right leaf unless positions of both
    /// sides of a fence are one; of others, and of keys that came later, within the bound that
    /// [`predicted_range`](Self::predicted_range) has, give or take a leaf at each end.
    #[inline]
    pub fn locate(&self, key: &[u8]) -> Located {
        let segment = self.routes.find(key);
        let entry = &self.entries[segment];
        let coordinate = self.coordinate(segment, key);
        let count = self.end_leaf(segment) - entry.first_leaf;
        let single = |leaf: u32| Located {
            leaf: entry.first_leaf + leaf,
            also: None,
        };
        let pair = |leaf: u32| Located {
            leaf: entry.first_leaf + leaf - 1,
            also: Some(entry.first_leaf + leaf),
        };
        match &self.residuals {
            Residuals::None => {
                let position = entry.line().position(coordinate, 0);
                single(position.clamp(0, i64::from(count) - 1) as u32)
            }
            Residuals::Bytes { shift, residuals } => {
                let start = entry.first_leaf as usize;
                let residuals = &residuals[start..start + count as usize];
                match find_by_bytes(&entry.line(), coordinate, residuals, *shift) {
                    (leaf, false) => single(leaf),
                    (leaf, true) => pair(leaf),
                }
            }
            Residuals::Packed { blocks } => {
                let start = entry.first_block as usize;
                let blocks = &blocks[start..start + PackedBlock::count_for(count)];
                match find_by_steps(&entry.line(), coordinate, blocks, count) {
                    (leaf, false) => single(leaf),
                    (leaf, true) => pair(leaf),
                }
            }
        }
    }

    /// Every leaf that a key may be in given its segment's error, first and last number: L3,
    /// without residuals.
    pub fn predicted_range(&self, key: &[u8]) -> (u32, u32) {
        let segment = self.routes.find(key);
        let entry = &self.entries[segment];
        let count = self.end_leaf(segment) - entry.first_leaf;
        let coordinate = self.coordinate(segment, key);
        let (from, to) = entry.line().range(coordinate, count, self.errors[segment]);
        (entry.first_leaf + from, entry.first_leaf + to)
    }

    /// The segment that predicts a key.
    pub fn segment_of(&self, key: &[u8]) -> usize {
        self.routes.find(key)
    }

    /// The segment that a leaf, which must be one of the directory's, belongs to.
    pub fn segment_of_leaf(&self, leaf: u32) -> usize {
        self.entries
            .partition_point(|entry| entry.first_leaf <= leaf)
            - 1
    }

    /// The numbers of a segment's leaves.
    pub fn leaves_of(&self, segment: usize) -> core::ops::Range<u32> {
        self.entries[segment].first_leaf..self.end_leaf(segment)
    }

    /// How many segments there are.
    pub fn segment_count(&self) -> usize {
        self.entries.len()
    }

    /// How many leaves there are.
    pub fn leaf_count(&self) -> u32 {
        self.leaf_count
    }

    /// All memory held, in bytes: this value itself, routes, segments and residuals.
    pub fn size_bytes(&self) -> usize {
        let residuals = match &self.residuals {
            Residuals::None => 0,
            Residuals::Bytes { residuals, .. } => size_of_val(&**residuals),
            Residuals::Packed { blocks } => size_of_val(&**blocks),
        };
        size_of::<Self>() - size_of::<StringRoutes>()
            + self.routes.size_bytes()
            + size_of_val(&*self.entries)
            + size_of_val(&*self.errors)
            + residuals
    }

    #[inline]
    fn coordinate(&self, segment: usize, key: &[u8]) -> u64 {
        let entry = &self.entries[segment];
        let prefix_size = usize::from(entry.prefix_size);
        let order = self.routes.compare_prefix(segment, prefix_size, key);
        coordinate_behind(order, prefix_size, key, entry.alphabet)
    }

    #[inline]
    fn end_leaf(&self, segment: usize) -> u32 {
        self.entries
            .get(segment + 1)
            .map_or(self.leaf_count, |next| next.first_leaf)
    }
}

/// The residuals, with no room to spare, if they are as many as they have to be.
fn checked(
    mut residuals: Residuals,
    leaf_count: usize,
    block_count: usize,
) -> Result<Residuals, StringModelError> {
    let (what, expected, actual) = match &mut residuals {
        Residuals::None => return Ok(residuals),
        Residuals::Bytes { shift, .. } if *shift > SHIFT_MAX => {
            return Err(StringModelError::Shift { shift: *shift });
        }
        Residuals::Bytes { residuals, .. } => {
            residuals.shrink_to_fit();
            ("residuals", leaf_count, residuals.len())
        }
        Residuals::Packed { blocks } => {
            blocks.shrink_to_fit();
            ("blocks of thresholds", block_count, blocks.len())
        }
    };
    if expected != actual {
        return Err(StringModelError::Residuals {
            what,
            expected,
            actual,
        });
    }
    Ok(residuals)
}
