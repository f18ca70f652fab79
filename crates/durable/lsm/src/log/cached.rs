//! Blocks of the log in the engine's cache (VL9).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::cache::{BlockCache, LogBlock};
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogNumber, LogPosition};
use crate::tree::mix;

/// For a record of more bytes no block is kept: few are in one, and many go on in the next, so for
/// each that is found whole blocks were read for others. (With records of 1 KiB, and eight times as
/// many as the cache has room for, scans took a fifth longer.)
pub(super) const KEEPING_SIZE_BYTES_MAX: usize = BLOCK_SIZE_BYTES / 8;

/// One of up to so many is found in blocks that are kept for others.
pub(super) const FOUND_SIZE_BYTES_MAX: usize = BLOCK_SIZE_BYTES;

/// Which blocks were read of late is remembered for so many at the most.
const REMEMBERED_COUNT_MAX: usize = 1 << 20;

/// Blocks of log segments in which nothing more is written, kept beside those of trees.
///
/// A block is kept when it is asked for the second time, not right behind the first, and while so
/// many others were asked for between as the cache has room for, about. So who passes over records
/// in the order of the log, or over more blocks than there is room for, reads few whole blocks for
/// them, and drives out little.
#[derive(Debug)]
pub(super) struct CachedBlocks {
    blocks: Arc<BlockCache>,
    /// In pairs, by a hash of the block: another part of the hash of the last two that were asked
    /// for.
    asked: Box<[AtomicU32]>,
    /// The hash of the last one.
    last: AtomicU64,
}

impl CachedBlocks {
    pub(super) fn new(blocks: Arc<BlockCache>) -> Self {
        let room = blocks.block_count_max();
        let count = match room {
            0 => 0,
            room => (2 * room.next_power_of_two()).min(REMEMBERED_COUNT_MAX),
        };
        let asked = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self {
            blocks,
            asked,
            last: AtomicU64::new(0),
        }
    }

    /// Looks at the rest of a place's block, from there on, if it is kept.
    pub(super) fn look<R>(
        &self,
        position: LogPosition,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        if self.asked.is_empty() {
            return None;
        }
        let (number, offset) = block_of(position);
        let look = |block: &LogBlock| look(&block[offset..]);
        self.blocks.look_at_log(position.number(), number, look)
    }

    /// Whether a block of which a record was read from the device is to be kept.
    pub(super) fn is_wanted(&self, segment: LogNumber, number: BlockNumber) -> bool {
        if self.asked.is_empty() || self.blocks.has_log(segment, number) {
            return false;
        }
        let hash = mix(segment.0 ^ mix(u64::from(number.0)));
        if self.last.swap(hash, Ordering::Relaxed) == hash {
            return false;
        }
        let place = hash as usize & (self.asked.len() - 1) & !1;
        let [newer, older] = [0, 1].map(|index| &self.asked[place + index]);
        let tag = (hash >> 32) as u32 | 1;
        // Who asks at the same time may forget one for the other: it is a guess.
        let before = newer.swap(tag, Ordering::Relaxed);
        before == tag || older.swap(before, Ordering::Relaxed) == tag
    }

    pub(super) fn keep(&self, segment: LogNumber, number: BlockNumber, block: &Arc<LogBlock>) {
        self.blocks.insert_log(segment, number, block);
    }
}

/// Which block of its segment a place is in, and where in the block.
pub(super) const fn block_of(position: LogPosition) -> (BlockNumber, usize) {
    let offset = position.offset();
    let number = BlockNumber((offset / BLOCK_SIZE_BYTES) as u32);
    (number, offset % BLOCK_SIZE_BYTES)
}
