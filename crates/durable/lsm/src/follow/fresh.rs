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
    budget: Arc<FreshBlockBudget>,
}

impl FreshBlockBudget {
    /// Takes the blocks out of the buffer and keeps them, if they fit into the budget.
    pub(crate) fn keep(self: &Arc<Self>, blocks: &mut Vec<u8>) -> Option<FreshBlocks> {
        // The budget counts the buffer's capacity, not its contents.
        let size_bytes = blocks.capacity() as u64;
        let take = |kept_size_bytes: u64| {
            let sum = kept_size_bytes + size_bytes;
            (sum <= KEPT_SIZE_BYTES_MAX).then_some(sum)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let taken = self.kept_size_bytes.fetch_update(set, fetch, take);
        taken.ok().map(|_| FreshBlocks {
            blocks: std::mem::take(blocks),
            budget: Arc::clone(self),
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
        let kept_size_bytes = &self.budget.kept_size_bytes;
        kept_size_bytes.fetch_sub(size_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: kept blocks never exceed the budget, dropping them frees it, and a buffer that is
    /// not kept stays unchanged.
    #[test]
    fn no_more_is_kept_than_there_is_space_for() {
        let budget = Arc::new(FreshBlockBudget::default());
        let segment = || vec![7; SEGMENT_SIZE_BYTES as usize];
        let mut retained_blocks: Vec<_> = (0..4).map(|_| budget.keep(&mut segment())).collect();
        assert!(retained_blocks.iter().all(Option::is_some));
        assert_eq!(budget.kept_size_bytes(), KEPT_SIZE_BYTES_MAX);
        let mut one = vec![1, 2, 3];
        assert!(budget.keep(&mut one).is_none());
        assert_eq!(one, [1, 2, 3]);
        drop(retained_blocks.pop());
        let fresh = budget.keep(&mut one).expect("there is room");
        assert_eq!((fresh.blocks(), one.len()), (&[1, 2, 3][..], 0));
        drop((retained_blocks, fresh));
        assert_eq!(budget.kept_size_bytes(), 0);
    }
}
