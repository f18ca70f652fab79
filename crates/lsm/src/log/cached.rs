//! Blocks of the log in the engine's cache (VL9).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cache::{BlockCache, LogBlock};
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogNumber, LogPosition};
use crate::tree::mix;

/// A record of more bytes is not looked for in blocks: few are in one, and many go on in the next,
/// so for each that is found whole blocks were read for others. (With records of 1 KiB, and eight
/// times as many as the cache has room for, scans took a fifth longer.)
pub(super) const CACHED_SIZE_BYTES_MAX: usize = BLOCK_SIZE_BYTES / 8;

/// Which blocks were read of late is remembered for so many at the most.
const REMEMBERED_COUNT_MAX: usize = 1 << 20;

/// Blocks of log segments in which nothing more is written, kept beside those of trees.
///
/// A block is kept when it is asked for the second time, while so many others were asked for
/// between as the cache has room for, about: reads of records each of which is read once read no
/// whole blocks for them, and drive out nothing.
#[derive(Debug)]
pub(super) struct CachedBlocks {
    blocks: Arc<BlockCache>,
    /// By a hash of the block: a part of the hash of the last one that was asked for.
    asked: Box<[AtomicU32]>,
}

impl CachedBlocks {
    pub(super) fn new(blocks: Arc<BlockCache>) -> Self {
        let room = blocks.block_count_max();
        let count = match room {
            0 => 0,
            room => room.next_power_of_two().min(REMEMBERED_COUNT_MAX),
        };
        let asked = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self { blocks, asked }
    }

    /// Calls a function with the block of a place, and where in it that is, if it is kept.
    pub(super) fn get(&self, position: LogPosition) -> Option<(Arc<LogBlock>, usize)> {
        if self.asked.is_empty() {
            return None;
        }
        let (number, offset) = block_of(position);
        let block = self.blocks.get_log(position.number(), number)?;
        Some((block, offset))
    }

    /// Whether the block of a place is to be kept: it was asked for before, and is not there.
    pub(super) fn is_wanted(&self, position: LogPosition) -> bool {
        if self.asked.is_empty() {
            return false;
        }
        let (number, _) = block_of(position);
        let hash = mix(position.number().0 ^ mix(u64::from(number.0)));
        let asked = &self.asked[hash as usize & (self.asked.len() - 1)];
        let tag = (hash >> 32) as u32 | 1;
        asked.swap(tag, Ordering::Relaxed) == tag
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
