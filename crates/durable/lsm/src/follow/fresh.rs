//! Blocks of recently written trees, kept in memory for the follower.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::place::SEGMENT_SIZE_BYTES;

/// Maximum bytes of an engine's new trees in memory: some flushes, or a merge of some hundred
/// thousand entries. Other blocks are read when they are needed.
const KEPT_SIZE_BYTES_MAX: u64 = 4 * SEGMENT_SIZE_BYTES;

/// Memory budget for the blocks of an engine's new trees.
#[derive(Debug, Default)]
pub(crate) struct FreshBlockBudget {
    kept_size_bytes: AtomicU64,
}

/// Blocks of a tree's segment, as they were written.
#[derive(Debug)]
pub(crate) struct FreshBlocks {
    blocks: Vec<u8>,
    room: Arc<FreshBlockBudget>,
}

impl FreshBlockBudget {
    /// Takes the blocks out of the buffer and keeps them, if they fit into the budget.
    pub(crate) fn keep(self: &Arc<Self>, blocks: &mut Vec<u8>) -> Option<FreshBlocks> {
        // The budget counts the buffer's capacity, not its contents.
        let size_bytes = blocks.capacity() as u64;
        let take = |kept: u64| {
            let sum = kept + size_bytes;
            (sum <= KEPT_SIZE_BYTES_MAX).then_some(sum)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let taken = self.kept_size_bytes.fetch_update(set, fetch, take);
        taken.ok().map(|_| FreshBlocks {
            blocks: std::mem::take(blocks),
            room: Arc::clone(self),
        })
    }

    #[cfg(test)]
    pub(crate) fn kept_size_bytes(&self) -> u64 {
        self.kept_size_bytes.load(Ordering::Relaxed)
    }
}

impl FreshBlocks {
    pub(crate) fn blocks(&self) -> &[u8] {
        &self.blocks
    }
}

impl Drop for FreshBlocks {
    fn drop(&mut self) {
        let size_bytes = self.blocks.capacity() as u64;
        let kept = &self.room.kept_size_bytes;
        kept.fetch_sub(size_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: kept blocks never exceed the budget, dropping them frees it, and a buffer that is
    /// not kept stays unchanged.
    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let room = Arc::new(FreshBlockBudget::default());
        let segment = || vec![7; SEGMENT_SIZE_BYTES as usize];
        let mut kept: Vec<_> = (0..4).map(|_| room.keep(&mut segment())).collect();
        assert!(kept.iter().all(Option::is_some));
        assert_eq!(room.kept_size_bytes(), KEPT_SIZE_BYTES_MAX);
        let mut one = vec![1, 2, 3];
        assert!(room.keep(&mut one).is_none());
        assert_eq!(one, [1, 2, 3]);
        drop(kept.pop());
        let fresh = room.keep(&mut one).expect("there is room");
        assert_eq!((fresh.blocks(), one.len()), (&[1, 2, 3][..], 0));
        drop((kept, fresh));
        assert_eq!(room.kept_size_bytes(), 0);
    }
}
