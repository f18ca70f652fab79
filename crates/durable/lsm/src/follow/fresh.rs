//! Blocks of trees that were just written, for who follows: they need not be read again (FO10).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::place::SEGMENT_SIZE_BYTES;

/// How much of an engine's new trees is kept in memory at a time: some flushes, or a merge of some
/// hundred thousand entries. What is beyond is read when it is needed.
const KEPT_SIZE_BYTES_MAX: u64 = 4 * SEGMENT_SIZE_BYTES;

/// How much is kept of an engine's new trees.
#[derive(Debug, Default)]
pub(crate) struct FreshRoom {
    kept_size_bytes: AtomicU64,
}

/// The blocks of a tree's segment, as they were written.
#[derive(Debug)]
pub(crate) struct FreshBlocks {
    blocks: Vec<u8>,
    room: Arc<FreshRoom>,
}

impl FreshRoom {
    /// Keeps blocks, if there is room for them; they are taken out of the buffer then.
    pub(crate) fn keep(self: &Arc<Self>, blocks: &mut Vec<u8>) -> Option<FreshBlocks> {
        // What the buffer takes, not what is in it.
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

    /// Promise: no more is kept than there is room for; what is dropped makes room; a buffer of
    /// which nothing is kept stays as it was.
    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let room = Arc::new(FreshRoom::default());
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
