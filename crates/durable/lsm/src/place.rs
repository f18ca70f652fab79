//! Where things are: segments of the device, places in the log, blocks of a tree.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Size of a segment.
pub const SEGMENT_SIZE_BYTES: u64 = 2 << 20;
/// Binary logarithm of [`SEGMENT_SIZE_BYTES`].
pub const SEGMENT_SIZE_SHIFT: u32 = 21;
/// Size of a tree's block.
pub const BLOCK_SIZE_BYTES: usize = 4096;
/// Blocks of a tree in one segment.
pub const SEGMENT_SIZE_BLOCKS: u32 = (SEGMENT_SIZE_BYTES / BLOCK_SIZE_BYTES as u64) as u32;
/// Most levels of an engine: if each had only twice what the one before has, the last one would
/// have more than can be counted.
pub const LEVEL_COUNT_MAX: usize = 64;
/// Longest key.
pub const KEY_SIZE_BYTES_MAX: usize = 4096;
/// Longest value: 64 MiB.
pub const VALUE_SIZE_BYTES_MAX: usize = 64 << 20;

const _: () = assert!(1 << SEGMENT_SIZE_SHIFT == SEGMENT_SIZE_BYTES);

/// A segment of the device, counted from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SegmentId(pub u32);

impl SegmentId {
    /// No device has one behind it: 4 PiB are there before.
    pub const MAX: Self = Self((1 << 31) - 1);

    /// Where it begins on the device.
    pub const fn offset(self) -> u64 {
        (self.0 as u64) << SEGMENT_SIZE_SHIFT
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {}", self.0)
    }
}

/// A segment of the log, counted since the log began, and never again.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LogNumber(pub u64);

impl LogNumber {
    /// Where it begins in the log.
    pub const fn start(self) -> LogPosition {
        LogPosition(self.0 << SEGMENT_SIZE_SHIFT)
    }

    /// The one behind it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A place in the log: bytes since it began. Later writes have higher ones (VL4). 54 bits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LogPosition(pub u64);

impl LogPosition {
    /// No place in the log is behind this one.
    pub const MAX: Self = Self((1 << 54) - 1);

    /// The log segment that it is in.
    pub const fn number(self) -> LogNumber {
        LogNumber(self.0 >> SEGMENT_SIZE_SHIFT)
    }

    /// Bytes from the beginning of that segment.
    pub const fn offset(self) -> usize {
        (self.0 & (SEGMENT_SIZE_BYTES - 1)) as usize
    }

    /// So many bytes further on.
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

/// A tree, numbered from 1 on, and never again.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct TreeId(pub u64);

impl TreeId {
    /// No tree has a higher number: a million of them a second take 290,000 years.
    pub const MAX: Self = Self((1 << 63) - 1);
}

/// A block within a tree: [`SEGMENT_SIZE_BLOCKS`] for each of its segments, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockNumber(pub u32);

impl BlockNumber {
    /// Which of the tree's segments it is in.
    pub const fn segment_index(self) -> usize {
        (self.0 / SEGMENT_SIZE_BLOCKS) as usize
    }

    /// Bytes from the beginning of that segment.
    pub const fn offset(self) -> u64 {
        (self.0 % SEGMENT_SIZE_BLOCKS) as u64 * BLOCK_SIZE_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a place names its segment and where it is in there, at both ends of a segment.
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
