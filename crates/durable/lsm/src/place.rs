//! Numbers of segments, log positions, trees and blocks.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Size of a segment in bytes.
pub const SEGMENT_SIZE_BYTES: u64 = 2 << 20;
/// Binary logarithm of [`SEGMENT_SIZE_BYTES`].
pub const SEGMENT_SIZE_SHIFT: u32 = 21;
/// Size of a tree's block in bytes.
pub const BLOCK_SIZE_BYTES: usize = 4096;
/// Number of tree blocks in one segment.
pub const SEGMENT_SIZE_BLOCKS: u32 = (SEGMENT_SIZE_BYTES / BLOCK_SIZE_BYTES as u64) as u32;
/// Maximum number of levels. If each level had only twice the entries of the one before, the last
/// one would exceed 64 bits.
pub const LEVEL_COUNT_MAX: usize = 64;

const _: () = assert!(1 << SEGMENT_SIZE_SHIFT == SEGMENT_SIZE_BYTES);

/// Number of a segment on a device, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SegmentId(pub u32);

impl SegmentId {
    /// Largest segment number of a device, which then has 4 PiB.
    pub const MAX: Self = Self((1 << 31) - 1);

    /// Returns the device offset at which the segment begins, in bytes.
    pub const fn offset(self) -> u64 {
        (self.0 as u64) << SEGMENT_SIZE_SHIFT
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}", self.0)
    }
}

/// Number of a log segment, from 0 and never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LogNumber(pub u64);

impl LogNumber {
    /// Returns the log position at which the segment begins.
    pub const fn start(self) -> LogPosition {
        LogPosition(self.0 << SEGMENT_SIZE_SHIFT)
    }

    /// Returns the number of the next log segment.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Position in the log: bytes since the log began, 54 bits. Later writes have higher positions.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LogPosition(pub u64);

impl LogPosition {
    /// Largest log position.
    pub const MAX: Self = Self((1 << 54) - 1);

    /// Returns the log segment that contains the position.
    pub const fn number(self) -> LogNumber {
        LogNumber(self.0 >> SEGMENT_SIZE_SHIFT)
    }

    /// Returns the offset within the log segment, in bytes.
    pub const fn offset(self) -> usize {
        (self.0 & (SEGMENT_SIZE_BYTES - 1)) as usize
    }

    /// Returns the position this many bytes later.
    #[must_use]
    pub const fn plus(self, size_bytes: u64) -> Self {
        Self(self.0 + size_bytes)
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.number().0, self.offset())
    }
}

/// Number of a tree, from 1 and never reused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TreeId(pub u64);

impl TreeId {
    /// Largest tree number: a million trees per second reach it in 290,000 years.
    pub const MAX: Self = Self((1 << 63) - 1);
}

/// Number of a block within a tree: [`SEGMENT_SIZE_BLOCKS`] for each of its segments, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockNumber(pub u32);

impl BlockNumber {
    /// Returns the index of the block's segment among the tree's segments.
    pub const fn segment_index(self) -> usize {
        (self.0 / SEGMENT_SIZE_BLOCKS) as usize
    }

    /// Returns the offset of the block within its segment, in bytes.
    pub const fn offset(self) -> u64 {
        (self.0 % SEGMENT_SIZE_BLOCKS) as u64 * BLOCK_SIZE_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a position has the right segment and offset at both ends of a segment.
    #[test]
    fn places_are_taken_apart() {
        let last = LogNumber(7).start().plus(SEGMENT_SIZE_BYTES - 1);
        assert_eq!((last.number(), last.offset()), (LogNumber(7), 0x1f_ffff));
        let first = last.plus(1);
        assert_eq!((first.number(), first.offset()), (LogNumber(8), 0));
        assert_eq!(LogPosition::MAX.number().next().start().0, 1 << 54);
        let block = BlockNumber(SEGMENT_SIZE_BLOCKS * 3 + 5);
        assert_eq!((block.segment_index(), block.offset()), (3, 5 * 4096));
        assert_eq!(SegmentId(3).offset(), 6 << 20);
    }
}
