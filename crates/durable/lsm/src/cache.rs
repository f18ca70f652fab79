//! Block cache: blocks of trees and of the log in memory, under a budget.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogNumber, TreeId};
use crate::tree::{Block, mix};

/// Maximum number of shards: enough that threads that want different blocks seldom contend.
const SHARD_COUNT_MAX: usize = 16;
/// Minimum number of blocks per shard: a smaller shard has too little choice of what to evict.
const SHARD_SIZE_BLOCKS_MIN: usize = 64;

/// Cache of tree blocks that were read and verified, and of log blocks as they were read.
///
/// The cached blocks never exceed the budget. The CLOCK algorithm chooses the block to evict. Its
/// hand skips a block once if the block was requested since the hand's last visit, and evicts the
/// first other one. So blocks that were not requested again, as those of a scan, are evicted first.
///
/// An `Arc` of a block stays valid after the block is evicted.
pub struct BlockCache {
    shards: Vec<Shard>,
}

/// Unverified block of the log: each read verifies the records that it uses.
pub type LogBlock = [u8; BLOCK_SIZE_BYTES];

/// Counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Requests for tree blocks that were in the cache.
    pub hit_count: u64,
    /// Requests for tree blocks that were not in the cache.
    pub miss_count: u64,
    /// Current size of the cached blocks in bytes.
    pub size_bytes: u64,
}

impl BlockCache {
    /// Creates an empty cache. A budget of less than a block keeps nothing.
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

    /// Returns a tree block if the cache has it.
    pub fn get(&self, tree: TreeId, number: BlockNumber) -> Option<Arc<Block>> {
        let key = BlockKey::of_tree(tree, number);
        let shard = self.shard(key);
        let found = shard.get(key);
        let counter = if found.is_some() {
            &shard.hit_count
        } else {
            &shard.miss_count
        };
        counter.fetch_add(1, Ordering::Relaxed);
        match found? {
            CachedBlock::Tree(block) => Some(block),
            CachedBlock::Log(_) => unreachable!("a tree's key has a tree's block"),
        }
    }

    /// Adds a tree block, and evicts others if needed. A block that is already cached stays.
    pub fn insert(&self, tree: TreeId, number: BlockNumber, block: &Arc<Block>) {
        let key = BlockKey::of_tree(tree, number);
        self.shard(key)
            .insert(key, || CachedBlock::Tree(Arc::clone(block)));
    }

    /// Calls a function with a block of a log segment, if the cache has it.
    ///
    /// Insertions into the same shard wait meanwhile. In return, nothing writes to the block's own
    /// memory, such as a reference count, which often is in no processor's cache.
    pub fn with_log_block<R>(
        &self,
        segment: LogNumber,
        number: BlockNumber,
        look: impl FnOnce(&LogBlock) -> R,
    ) -> Option<R> {
        let key = BlockKey::of_log(segment, number);
        let clock = self.shard(key).read();
        match clock.get(key)? {
            CachedBlock::Log(block) => Some(look(block)),
            CachedBlock::Tree(_) => unreachable!("the log's key has the log's block"),
        }
    }

    /// Returns true if the cache has this block of a log segment.
    pub fn has_log(&self, segment: LogNumber, number: BlockNumber) -> bool {
        self.with_log_block(segment, number, |_| ()).is_some()
    }

    /// Adds a block of a log segment. Nothing may be written into that block any more.
    pub fn insert_log(&self, segment: LogNumber, number: BlockNumber, block: &Arc<LogBlock>) {
        let key = BlockKey::of_log(segment, number);
        self.shard(key)
            .insert(key, || CachedBlock::Log(Arc::clone(block)));
    }

    /// Returns the maximum number of blocks.
    pub fn block_count_max(&self) -> usize {
        self.shards.iter().map(|it| it.block_count_max).sum()
    }

    /// Removes all blocks of a deleted tree. The cost is a pass over all cached blocks.
    pub fn forget(&self, tree: TreeId) {
        self.shards.iter().for_each(|it| it.forget(tree));
    }

    /// Returns the counters. They are read shard by shard, so they are not from one moment.
    pub fn counts(&self) -> CacheCounts {
        let mut counts = CacheCounts::default();
        for shard in &self.shards {
            counts.hit_count += shard.hit_count.load(Ordering::Relaxed);
            counts.miss_count += shard.miss_count.load(Ordering::Relaxed);
            counts.size_bytes += (shard.read().blocks.len() * BLOCK_SIZE_BYTES) as u64;
        }
        counts
    }

    fn shard(&self, key: BlockKey) -> &Shard {
        // Bits from the middle, since the hash map of a shard uses those at both ends.
        let part = key.mixed() >> 16 & u64::from(u32::MAX);
        &self.shards[(part * self.shards.len() as u64 >> 32) as usize]
    }
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts().fmt(f)
    }
}

/// Identity of a block: tree or log segment, and number. Tree ids and segment numbers are never
/// reused.
///
/// A key has three 32-bit words to keep the map of a shard small: every record read does a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockKey {
    owner: [u32; 2],
    number: u32,
}

const _: () = assert!(size_of::<(BlockKey, u32)>() == 16);

impl BlockKey {
    const fn of_tree(tree: TreeId, number: BlockNumber) -> Self {
        Self::new(tree.0, number)
    }

    const fn of_log(segment: LogNumber, number: BlockNumber) -> Self {
        // Tree ids and segment numbers both count up from small numbers, so the complement is
        // distinct.
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

impl Hash for BlockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mixed());
    }
}

#[derive(Clone)]
enum CachedBlock {
    Tree(Arc<Block>),
    Log(Arc<LogBlock>),
}

/// Part of the cache with its own lock.
struct Shard {
    block_count_max: usize,
    clock: RwLock<Clock>,
    hit_count: AtomicU64,
    miss_count: AtomicU64,
}

/// Slots of a shard. Their parts are in separate vectors, so that those used by each read are
/// small.
#[derive(Default)]
struct Clock {
    /// Slot of each block.
    places: HashMap<BlockKey, u32, BuildHasherDefault<MixedHasher>>,
    keys: Vec<BlockKey>,
    blocks: Vec<CachedBlock>,
    /// Whether the slot's block was requested since the hand's last visit.
    reference_bits: Vec<AtomicBool>,
    hand: usize,
}

impl Shard {
    fn new(block_count_max: usize) -> Self {
        Self {
            // Slot numbers have 32 bits.
            block_count_max: block_count_max.min(u32::MAX as usize),
            clock: RwLock::default(),
            hit_count: AtomicU64::new(0),
            miss_count: AtomicU64::new(0),
        }
    }

    fn get(&self, key: BlockKey) -> Option<CachedBlock> {
        self.read().get(key).cloned()
    }

    fn insert(&self, key: BlockKey, block: impl FnOnce() -> CachedBlock) {
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
        let slot = clock.next_victim();
        let before = std::mem::replace(&mut clock.keys[slot], key);
        clock.blocks[slot] = block();
        clock.places.remove(&before);
        clock.places.insert(key, slot as u32);
    }

    fn forget(&self, tree: TreeId) {
        let clock = &mut *self.write();
        let all = std::mem::take(clock);
        let wanted = all.reference_bits.into_iter().map(AtomicBool::into_inner);
        for ((key, block), is_wanted) in all.keys.into_iter().zip(all.blocks).zip(wanted) {
            if key.owner() != tree.0 {
                clock.push(key, block, is_wanted);
            }
        }
    }

    // No step between two changes of a `Clock` panics, so a poisoned lock protects consistent data.
    fn read(&self) -> RwLockReadGuard<'_, Clock> {
        self.clock.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Clock> {
        self.clock.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock {
    fn get(&self, key: BlockKey) -> Option<&CachedBlock> {
        let slot = *self.places.get(&key)? as usize;
        let is_wanted = &self.reference_bits[slot];
        // Most blocks are wanted already. Reading first keeps the cache line shared between cores.
        if !is_wanted.load(Ordering::Relaxed) {
            is_wanted.store(true, Ordering::Relaxed);
        }
        Some(&self.blocks[slot])
    }

    fn push(&mut self, key: BlockKey, block: CachedBlock, is_wanted: bool) {
        self.places.insert(key, self.keys.len() as u32);
        self.keys.push(key);
        self.blocks.push(block);
        self.reference_bits.push(AtomicBool::new(is_wanted));
    }

    /// Moves the hand past the next slot that was not requested, and returns the slot. This takes
    /// at most two rounds.
    fn next_victim(&mut self) -> usize {
        loop {
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.blocks.len();
            if !std::mem::take(self.reference_bits[slot].get_mut()) {
                return slot;
            }
        }
    }
}

/// Hasher that returns its input, which is already mixed.
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

    /// Promise: the cache never exceeds its budget, whatever it is, and uses nearly all of it.
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

    /// Promise: blocks that are requested repeatedly survive a scan, and those of the scan are
    /// evicted.
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

    /// Promise: if all blocks are wanted, one is evicted nevertheless.
    #[test]
    fn all_wanted_is_no_endless_turn() {
        let cache = BlockCache::new(8 * BLOCK_SIZE_BYTES);
        insert(&cache, TREE, 0..8);
        assert_eq!(present(&cache, TREE, 0..8), 8);
        insert(&cache, TREE, 8..9);
        assert_eq!(present(&cache, TREE, 0..9), 8);
    }

    /// Promise: hits and misses are counted. A removed tree leaves no blocks and frees their space.
    /// Trees do not get each other's blocks.
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

    /// Promise: many concurrent threads get only correct blocks, and the cache stays within its
    /// budget.
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
