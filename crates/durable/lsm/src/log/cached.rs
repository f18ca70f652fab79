//! Log blocks in the engine's cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::cache::{BlockCache, LogBlock};
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogNumber, LogPosition};
use crate::tree::mix;

/// Size in bytes up to which a record's blocks are kept.
///
/// Only few larger records fit into a block, and many continue in the next one. So for each record
/// found in a kept block, several whole blocks would be read. (With records of 1 KiB and data of
/// eight times the cache's size, scans took a fifth longer.)
pub(super) const KEEPING_SIZE_BYTES_MAX: usize = BLOCK_SIZE_BYTES / 8;

/// Maximum size in bytes of a record that is looked up in kept blocks.
pub(super) const FOUND_SIZE_BYTES_MAX: usize = BLOCK_SIZE_BYTES;

/// Maximum number of recent block requests that are remembered.
const REMEMBERED_COUNT_MAX: usize = 1 << 20;

/// Blocks of closed log segments, kept in the same cache as tree blocks.
///
/// A block is kept at its second request if other blocks were requested in between, but not many
/// more than fit into the cache. So a scan in log order, or one over more blocks than fit, reads
/// few whole blocks and evicts little.
#[derive(Debug)]
pub(super) struct CachedBlocks {
    blocks: Arc<BlockCache>,
    /// Recent requests. A block's hash selects a pair of slots with other hash bits of the last two
    /// blocks requested there.
    recent_requests: Box<[AtomicU32]>,
    /// Hash of the last requested block.
    last: AtomicU64,
}

impl CachedBlocks {
    pub(super) fn new(blocks: Arc<BlockCache>) -> Self {
        let capacity = blocks.block_count_max();
        let count = match capacity {
            0 => 0,
            capacity => (2 * capacity.next_power_of_two()).min(REMEMBERED_COUNT_MAX),
        };
        let recent_requests = (0..count).map(|_| AtomicU32::new(0)).collect();
        Self {
            blocks,
            recent_requests,
            last: AtomicU64::new(0),
        }
    }

    /// Calls a function with the rest of a position's block, if the block is kept.
    pub(super) fn look<R>(
        &self,
        position: LogPosition,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        if self.recent_requests.is_empty() {
            return None;
        }
        let (number, offset) = block_of(position);
        let look = |block: &LogBlock| look(&block[offset..]);
        self.blocks.with_log_block(position.number(), number, look)
    }

    /// Returns true if a block from which a record was read should be kept.
    pub(super) fn is_wanted(&self, segment: LogNumber, number: BlockNumber) -> bool {
        if self.recent_requests.is_empty() || self.blocks.has_log(segment, number) {
            return false;
        }
        let hash = mix(segment.0 ^ mix(u64::from(number.0)));
        if self.last.swap(hash, Ordering::Relaxed) == hash {
            return false;
        }
        let place = hash as usize & (self.recent_requests.len() - 1) & !1;
        let [newer, older] = [0, 1].map(|index| &self.recent_requests[place + index]);
        let tag = (hash >> 32) as u32 | 1;
        // Concurrent requests may overwrite each other's entry; this is only a heuristic.
        let before = newer.swap(tag, Ordering::Relaxed);
        before == tag || older.swap(before, Ordering::Relaxed) == tag
    }

    pub(super) fn keep(&self, segment: LogNumber, number: BlockNumber, block: &Arc<LogBlock>) {
        self.blocks.insert_log(segment, number, block);
    }
}

/// Returns the block of a position within its segment, and the offset within the block.
pub(super) const fn block_of(position: LogPosition) -> (BlockNumber, usize) {
    let offset = position.offset();
    let number = BlockNumber((offset / BLOCK_SIZE_BYTES) as u32);
    (number, offset % BLOCK_SIZE_BYTES)
}
