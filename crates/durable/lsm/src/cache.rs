//! Blocks of trees and of the log in memory, under a budget.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogNumber, TreeId};
use crate::tree::{Block, mix};

/// Threads that want different blocks seldom wait for each other with so many.
const SHARD_COUNT_MAX: usize = 16;
/// A shard of fewer blocks would have no choice which to give up.
const SHARD_SIZE_BLOCKS_MIN: usize = 64;

/// Keeps blocks of trees that were read and checked, and blocks of the log as they were read.
///
/// It has never more bytes of blocks than its budget. Who is given up when another one comes is
/// decided by CLOCK, a hand that passes over blocks that were asked for since it came by, once, and
/// takes the first other one. Blocks that were never asked for again, as those of a scan, go first.
///
/// Whoever has an `Arc` of a block keeps it, given up or not.
pub struct BlockCache {
    shards: Vec<Shard>,
}

/// A block of the log, unchecked: what is read of it is checked each time.
pub type LogBlock = [u8; BLOCK_SIZE_BYTES];

/// How a cache is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Blocks of trees that were there when they were asked for.
    pub hit_count: u64,
    /// Blocks that were not.
    pub miss_count: u64,
    /// Bytes of the blocks that are there now.
    pub size_bytes: u64,
}

impl BlockCache {
    /// An empty one. A budget of less than a block keeps nothing.
    pub fn new(budget_bytes: usize) -> Self {
        let block_count = budget_bytes / BLOCK_SIZE_BYTES;
        let shard_count = (block_count / SHARD_SIZE_BLOCKS_MIN).clamp(1, SHARD_COUNT_MAX);
        let shard = |index: usize| {
            let rest = usize::from(index < block_count % shard_count);
            Shard::new(block_count / shard_count + rest)
        };
        Self {
            shards: (0..shard_count).map(shard).collect(),
        }
    }

    /// A block, if it is there.
    pub fn get(&self, tree: TreeId, number: BlockNumber) -> Option<Arc<Block>> {
        let key = Key::of_tree(tree, number);
        let shard = self.shard(key);
        let found = shard.get(key);
        let counter = if found.is_some() {
            &shard.hit_count
        } else {
            &shard.miss_count
        };
        counter.fetch_add(1, Ordering::Relaxed);
        match found? {
            Kept::Tree(block) => Some(block),
            Kept::Log(_) => unreachable!("a tree's key has a tree's block"),
        }
    }

    /// Keeps a block, in the place of others if need be. One that is there stays.
    pub fn insert(&self, tree: TreeId, number: BlockNumber, block: &Arc<Block>) {
        let key = Key::of_tree(tree, number);
        self.shard(key)
            .insert(key, || Kept::Tree(Arc::clone(block)));
    }

    /// Looks at a block of a log segment, if it is there. Blocks wait meanwhile that are to come
    /// into its part of the cache. So nothing is written to the block's own memory, which is often
    /// in no processor's cache.
    pub fn look_at_log<R>(
        &self,
        segment: LogNumber,
        number: BlockNumber,
        look: impl FnOnce(&LogBlock) -> R,
    ) -> Option<R> {
        let key = Key::of_log(segment, number);
        let clock = self.shard(key).read();
        match clock.get(key)? {
            Kept::Log(block) => Some(look(block)),
            Kept::Tree(_) => unreachable!("the log's key has the log's block"),
        }
    }

    /// Whether a block of a log segment is there.
    pub fn has_log(&self, segment: LogNumber, number: BlockNumber) -> bool {
        self.look_at_log(segment, number, |_| ()).is_some()
    }

    /// Keeps a block of a log segment in which nothing more is written.
    pub fn insert_log(&self, segment: LogNumber, number: BlockNumber, block: &Arc<LogBlock>) {
        let key = Key::of_log(segment, number);
        self.shard(key).insert(key, || Kept::Log(Arc::clone(block)));
    }

    /// How many blocks it has room for.
    pub fn block_count_max(&self) -> usize {
        self.shards.iter().map(|it| it.block_count_max).sum()
    }

    /// Gives up all blocks of a tree that is gone. Looks at all that there are.
    pub fn forget(&self, tree: TreeId) {
        self.shards.iter().for_each(|it| it.forget(tree));
    }

    /// How it is doing. Taken shard by shard, so not of one moment.
    pub fn counts(&self) -> CacheCounts {
        let mut counts = CacheCounts::default();
        for shard in &self.shards {
            counts.hit_count += shard.hit_count.load(Ordering::Relaxed);
            counts.miss_count += shard.miss_count.load(Ordering::Relaxed);
            counts.size_bytes += (shard.read().blocks.len() * BLOCK_SIZE_BYTES) as u64;
        }
        counts
    }

    fn shard(&self, key: Key) -> &Shard {
        // Of bits in the middle, as the map of a shard takes those at both ends.
        let part = key.mixed() >> 16 & u64::from(u32::MAX);
        &self.shards[(part * self.shards.len() as u64 >> 32) as usize]
    }
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts().fmt(f)
    }
}

/// Whose block it is, and which. Numbers of trees and of log segments are never given again.
///
/// In three words, so that a shard's map of many blocks is small: it is looked into for each record
/// that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    owner: [u32; 2],
    number: u32,
}

const _: () = assert!(size_of::<(Key, u32)>() == 16);

impl Key {
    const fn of_tree(tree: TreeId, number: BlockNumber) -> Self {
        Self::new(tree.0, number)
    }

    const fn of_log(segment: LogNumber, number: BlockNumber) -> Self {
        // Both are counted from small numbers on.
        Self::new(!segment.0, number)
    }

    const fn new(owner: u64, number: BlockNumber) -> Self {
        Self {
            owner: [(owner >> 32) as u32, owner as u32],
            number: number.0,
        }
    }

    const fn owner(self) -> u64 {
        (self.owner[0] as u64) << 32 | self.owner[1] as u64
    }

    const fn mixed(self) -> u64 {
        mix(self.owner() ^ mix(self.number as u64))
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mixed());
    }
}

#[derive(Clone)]
enum Kept {
    Tree(Arc<Block>),
    Log(Arc<LogBlock>),
}

/// A part of the cache, with a lock of its own.
struct Shard {
    block_count_max: usize,
    clock: RwLock<Clock>,
    hit_count: AtomicU64,
    miss_count: AtomicU64,
}

/// The parts of slots are apart, as those that are looked at for each read are small then.
#[derive(Default)]
struct Clock {
    /// Which slot a block is in.
    places: HashMap<Key, u32, BuildHasherDefault<MixedHasher>>,
    keys: Vec<Key>,
    blocks: Vec<Kept>,
    /// It was asked for since the hand came by.
    are_wanted: Vec<AtomicBool>,
    hand: usize,
}

impl Shard {
    fn new(block_count_max: usize) -> Self {
        Self {
            // Slots have numbers of 32 bits.
            block_count_max: block_count_max.min(u32::MAX as usize),
            clock: RwLock::default(),
            hit_count: AtomicU64::new(0),
            miss_count: AtomicU64::new(0),
        }
    }

    fn get(&self, key: Key) -> Option<Kept> {
        self.read().get(key).cloned()
    }

    fn insert(&self, key: Key, block: impl FnOnce() -> Kept) {
        if self.block_count_max == 0 {
            return;
        }
        let clock = &mut *self.write();
        if clock.places.contains_key(&key) {
            return;
        }
        if clock.blocks.len() < self.block_count_max {
            clock.push(key, block(), false);
            return;
        }
        let slot = clock.unwanted();
        let before = std::mem::replace(&mut clock.keys[slot], key);
        clock.blocks[slot] = block();
        clock.places.remove(&before);
        clock.places.insert(key, slot as u32);
    }

    fn forget(&self, tree: TreeId) {
        let clock = &mut *self.write();
        let all = std::mem::take(clock);
        let wanted = all.are_wanted.into_iter().map(AtomicBool::into_inner);
        for ((key, block), is_wanted) in all.keys.into_iter().zip(all.blocks).zip(wanted) {
            if key.owner() != tree.0 {
                clock.push(key, block, is_wanted);
            }
        }
    }

    // No step between two changes of a clock panics, so one whose holder did is whole.
    fn read(&self) -> RwLockReadGuard<'_, Clock> {
        self.clock.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Clock> {
        self.clock.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock {
    fn get(&self, key: Key) -> Option<&Kept> {
        let slot = *self.places.get(&key)? as usize;
        let is_wanted = &self.are_wanted[slot];
        // Most are wanted already: who only reads leaves the line to the other cores.
        if !is_wanted.load(Ordering::Relaxed) {
            is_wanted.store(true, Ordering::Relaxed);
        }
        Some(&self.blocks[slot])
    }

    fn push(&mut self, key: Key, block: Kept, is_wanted: bool) {
        self.places.insert(key, self.keys.len() as u32);
        self.keys.push(key);
        self.blocks.push(block);
        self.are_wanted.push(AtomicBool::new(is_wanted));
    }

    /// Moves the hand behind the next slot that was not asked for; twice around at the most.
    fn unwanted(&mut self) -> usize {
        loop {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.blocks.len();
            if !std::mem::take(self.are_wanted[slot].get_mut()) {
                return slot;
            }
        }
    }
}

/// What comes is mixed already.
#[derive(Default)]
struct MixedHasher(u64);

impl Hasher for MixedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 ^= number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::block_for_tests;

    const TREE: TreeId = TreeId(1);

    fn insert(cache: &BlockCache, tree: TreeId, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let block = Arc::new(block_for_tests(tree, BlockNumber(number)));
            cache.insert(tree, BlockNumber(number), &block);
        }
    }

    fn present(cache: &BlockCache, tree: TreeId, numbers: std::ops::Range<u32>) -> usize {
        let is_there = |it: &u32| cache.get(tree, BlockNumber(*it)).is_some();
        numbers.filter(is_there).count()
    }

    /// Promise: never more bytes than the budget, whatever it is, and nearly all of it is used.
    #[test]
    fn the_budget_is_kept() {
        for budget_blocks in [0, 1, 2, 63, 100, 1_000, 3_001] {
            let cache = BlockCache::new(budget_blocks * BLOCK_SIZE_BYTES + 4_000);
            for start in (0..10_000).step_by(500) {
                insert(&cache, TREE, start..start + 500);
                let blocks = cache.counts().size_bytes as usize / BLOCK_SIZE_BYTES;
                assert!(blocks <= budget_blocks);
            }
            let blocks = cache.counts().size_bytes as usize / BLOCK_SIZE_BYTES;
            assert_eq!(blocks, budget_blocks, "10,000 blocks fill each shard");
            assert_eq!(present(&cache, TREE, 0..10_000), budget_blocks);
        }
    }

    /// Promise: blocks that are asked for again and again stay while a scan goes by, and those of
    /// the scan go.
    #[test]
    fn what_is_wanted_stays() {
        let cache = BlockCache::new(32 * BLOCK_SIZE_BYTES);
        insert(&cache, TREE, 0..16);
        for start in (100..1_000).step_by(10) {
            assert_eq!(present(&cache, TREE, 0..16), 16);
            insert(&cache, TREE, start..start + 10);
        }
        assert_eq!(present(&cache, TREE, 0..16), 16);
        assert_eq!(present(&cache, TREE, 100..1_000), 16);
    }

    /// Promise: when all are wanted, one goes nevertheless.
    #[test]
    fn all_wanted_is_no_endless_turn() {
        let cache = BlockCache::new(8 * BLOCK_SIZE_BYTES);
        insert(&cache, TREE, 0..8);
        assert_eq!(present(&cache, TREE, 0..8), 8);
        insert(&cache, TREE, 8..9);
        assert_eq!(present(&cache, TREE, 0..9), 8);
    }

    /// Promise: hits and misses are counted, and a tree that is forgotten leaves nothing, and its
    /// room to others; trees do not take each other's blocks.
    #[test]
    fn trees_are_forgotten_and_counted() {
        let cache = BlockCache::new(2_048 * BLOCK_SIZE_BYTES);
        insert(&cache, TREE, 0..500);
        insert(&cache, TreeId(2), 0..300);
        assert_eq!(present(&cache, TREE, 0..600), 500);
        cache.forget(TREE);
        assert_eq!(present(&cache, TREE, 0..600), 0);
        assert_eq!(present(&cache, TreeId(2), 0..600), 300);
        let counts = CacheCounts {
            hit_count: 800,
            miss_count: 100 + 600 + 300,
            size_bytes: 300 * BLOCK_SIZE_BYTES as u64,
        };
        assert_eq!(cache.counts(), counts);
        insert(&cache, TREE, 0..9_000);
        assert!(cache.counts().size_bytes <= 2_048 * BLOCK_SIZE_BYTES as u64);
    }

    /// Promise: many threads at a time find only right blocks, under the budget.
    #[test]
    fn threads_share_it() {
        let cache = BlockCache::new(100 * BLOCK_SIZE_BYTES);
        std::thread::scope(|scope| {
            for tree in 1..=4 {
                let cache = &cache;
                scope.spawn(move || {
                    for turn in 0..20 {
                        insert(cache, TreeId(tree), turn..turn + 50);
                        assert!(present(cache, TreeId(tree), turn..turn + 50) <= 50);
                        if turn % 5 == 4 {
                            cache.forget(TreeId(tree));
                        }
                    }
                });
            }
        });
        assert!(cache.counts().size_bytes <= 100 * BLOCK_SIZE_BYTES as u64);
    }
}
