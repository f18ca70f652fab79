//! Codec of inner nodes. Only this module knows the layout of entries and what the checksum covers.
//!
//! | word | name | meaning |
//! |---|---|---|
//! | 0 | lock | like a leaf's lock |
//! | 1 | state | version (16), level (16), CRC-32C (32) over all that follows, address and table |
//! | 2 | low | inclusive lower fence, never changes |
//! | 3 | high | inclusive upper fence |
//! | 4 | link | the right sibling |
//! | 5 | bitmap | valid entries |
//! | 6.. | entries | 61 times a child's lower fence and its address |
//!
//! Entries outside the bitmap may have any content; the checksum counts them as zero.

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, TableId, WordAddr, crc32c};
use farleaf_leaf::words::LeaseShape;
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::CHUNK_SIZE_BLOCKS;

/// Largest number of entries of a node.
pub const ENTRY_COUNT_MAX: usize = 61;
/// Size of a node in words.
pub const NODE_SIZE_WORDS: usize = 128;
/// Size of an image, which is a node without its lock, in words.
pub const IMAGE_SIZE_WORDS: usize = NODE_SIZE_WORDS - 1;
/// Size of a node in blocks.
pub const NODE_SIZE_BLOCKS: u64 = NODE_SIZE_WORDS as u64 / BLOCK_SIZE_WORDS;
/// Number of nodes in a chunk.
pub const CHUNK_NODE_COUNT: u64 = CHUNK_SIZE_BLOCKS / NODE_SIZE_BLOCKS;

const ENTRIES_WORD: usize = 6;
const _: () = assert!(ENTRIES_WORD + 2 * ENTRY_COUNT_MAX == NODE_SIZE_WORDS);
const _: () = assert!(CHUNK_NODE_COUNT * NODE_SIZE_BLOCKS == CHUNK_SIZE_BLOCKS);
const ALL_ENTRIES: u64 = (1 << ENTRY_COUNT_MAX) - 1;

const STATE: usize = 0;
const LOW: usize = 1;
const HIGH: usize = 2;
const LINK: usize = 3;
const BITMAP: usize = 4;
const ENTRIES: usize = ENTRIES_WORD - 1;

/// Returns the shape in which inner nodes are leased.
pub fn lease_shape(generation: u16) -> LeaseShape {
    LeaseShape {
        purpose: ChunkPurpose::Inner { generation },
        piece_count: CHUNK_NODE_COUNT,
        stride_blocks: NODE_SIZE_BLOCKS,
    }
}

/// Returns the address of a node's lock.
pub fn lock_addr(node: RemoteAddr) -> WordAddr {
    node.word_at(0)
}

/// Returns the address of a node's image.
pub fn image_addr(node: RemoteAddr) -> WordAddr {
    node.word_at(1)
}

/// Returns the address in far memory of one word of an image.
fn word_addr(node: RemoteAddr, word: usize) -> WordAddr {
    node.word_at(word as u64 + 1)
}

/// Child, as its parent lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChildEntry {
    /// Lower fence of the child.
    pub low: u64,
    /// Address of the child: a hint, like everything in a search layer.
    pub child: RemoteAddr,
}

/// Position of a key relative to one intact node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPosition {
    /// The key is in this node's range.
    Here,
    /// The key is further right: continue with this node.
    On(RemoteAddr),
    /// The key is further left, or there is no link: the hint was wrong.
    Lost,
}

/// Private copy of a node's words without its lock. Its contents are meaningless until
/// [`is_intact`](Self::is_intact) has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InnerNode(Box<[u64; IMAGE_SIZE_WORDS]>);

impl InnerNode {
    /// Creates a node without entries. Its checksum must be computed by [`seal`](Self::seal).
    pub fn new(level: u16, low: u64, high: u64, link: RemoteAddr) -> Self {
        let mut words = Box::new([0; IMAGE_SIZE_WORDS]);
        words[STATE] = u64::from(level) << 32;
        words[LOW] = low;
        words[HIGH] = high;
        words[LINK] = link.word();
        Self(words)
    }

    /// Copies words that were read.
    ///
    /// # Panics
    /// If there are not exactly [`IMAGE_SIZE_WORDS`] words.
    pub fn from_words(words: &[u64]) -> Self {
        let mut own = Box::new([0; IMAGE_SIZE_WORDS]);
        own.copy_from_slice(words);
        Self(own)
    }

    /// Returns whether the words are a valid node of this table at this address.
    pub fn is_intact(&self, addr: RemoteAddr, table: TableId) -> bool {
        self.0[STATE] as u32 == self.checksum(addr, table) && self.level() > 0
    }

    /// Returns whether no node was ever written here.
    pub fn was_never_written(&self) -> bool {
        self.0[STATE] == 0
    }

    fn checksum(&self, addr: RemoteAddr, table: TableId) -> u32 {
        let mut input = [0; IMAGE_SIZE_WORDS + 1];
        input[0] = addr.place().word();
        input[1] = u64::from(table.0) << 32 | self.0[STATE] >> 32;
        input[2..=ENTRIES].copy_from_slice(&self.0[LOW..ENTRIES]);
        for slot in self.slots() {
            let at = ENTRIES + 2 * slot;
            input[at + 1..at + 3].copy_from_slice(&self.0[at..at + 2]);
        }
        crc32c(&input)
    }

    /// Returns the level; 1 is the level above the leaves.
    pub fn level(&self) -> u16 {
        (self.0[STATE] >> 32) as u16
    }

    /// Returns the inclusive lower fence.
    pub fn low(&self) -> u64 {
        self.0[LOW]
    }

    /// Returns the inclusive upper fence.
    pub fn high(&self) -> u64 {
        self.0[HIGH]
    }

    /// Returns the right sibling.
    pub fn link(&self) -> RemoteAddr {
        RemoteAddr::from_word(self.0[LINK])
    }

    fn bitmap(&self) -> u64 {
        self.0[BITMAP] & ALL_ENTRIES
    }

    fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let bitmap = self.bitmap();
        (0..ENTRY_COUNT_MAX).filter(move |slot| bitmap >> slot & 1 != 0)
    }

    fn entry(&self, slot: usize) -> ChildEntry {
        let at = ENTRIES + 2 * slot;
        ChildEntry {
            low: self.0[at],
            child: RemoteAddr::from_word(self.0[at + 1]),
        }
    }

    /// Returns the number of valid entries.
    pub fn entry_count(&self) -> usize {
        self.bitmap().count_ones() as usize
    }

    /// Returns the entries in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = ChildEntry> + '_ {
        self.slots().map(|slot| self.entry(slot))
    }

    /// Returns the entries by their lower fences.
    pub fn sorted_entries(&self) -> Vec<ChildEntry> {
        let mut entries: Vec<ChildEntry> = self.entries().collect();
        entries.sort_unstable();
        entries
    }

    /// Returns the child that has a key: the one with the highest lower fence not above the key.
    /// `None` if all are further right, as can happen in a corrupted node.
    pub fn child_of(&self, key: u64) -> Option<ChildEntry> {
        let entries = self.entries().filter(|entry| entry.low <= key);
        entries.max_by_key(|entry| entry.low)
    }

    /// Returns whether a child with this lower fence is listed.
    pub fn lists(&self, low: u64) -> bool {
        self.entries().any(|entry| entry.low == low)
    }

    /// Returns where a key is relative to this node.
    pub fn key_position(&self, key: u64) -> KeyPosition {
        if key < self.low() {
            return KeyPosition::Lost;
        }
        if key <= self.high() {
            return KeyPosition::Here;
        }
        if self.link().is_null() {
            return KeyPosition::Lost;
        }
        KeyPosition::On(self.link().place())
    }

    /// Adds an entry in a free slot and returns the slot; `None` if all slots are used.
    pub fn add(&mut self, entry: ChildEntry) -> Option<usize> {
        let slot = (!self.bitmap()).trailing_zeros() as usize;
        if slot >= ENTRY_COUNT_MAX {
            return None;
        }
        self.set(slot, entry);
        self.0[BITMAP] |= 1 << slot;
        Some(slot)
    }

    fn set(&mut self, slot: usize, entry: ChildEntry) {
        let at = ENTRIES + 2 * slot;
        self.0[at] = entry.low;
        self.0[at + 1] = entry.child.word();
    }

    /// Removes the entries for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(ChildEntry) -> bool) {
        let remaining = self.slots().filter(|slot| keep(self.entry(*slot)));
        self.0[BITMAP] = remaining.fold(0, |bitmap, slot| bitmap | 1 << slot);
    }

    /// Sets the upper fence.
    pub fn set_high(&mut self, high: u64) {
        self.0[HIGH] = high;
    }

    /// Sets the link.
    pub fn set_link(&mut self, link: RemoteAddr) {
        self.0[LINK] = link.word();
    }

    /// Computes the state with the next version.
    pub fn seal(&mut self, addr: RemoteAddr, table: TableId) {
        let version = (self.0[STATE] >> 48).wrapping_add(1) & 0xFFFF;
        self.0[STATE] = version << 48 | u64::from(self.level()) << 32;
        self.0[STATE] |= u64::from(self.checksum(addr, table));
    }

    /// Returns the words of the whole node, with this word as its lock.
    pub fn node_words(&self, lock: u64) -> [u64; NODE_SIZE_WORDS] {
        let mut words = [0; NODE_SIZE_WORDS];
        words[0] = lock;
        words[1..].copy_from_slice(&*self.0);
        words
    }

    /// Returns the address of the state, and its word.
    pub fn state_word(&self, addr: RemoteAddr) -> (WordAddr, u64) {
        (word_addr(addr, STATE), self.0[STATE])
    }

    /// Returns the address of the upper fence, and its word.
    pub fn high_word(&self, addr: RemoteAddr) -> (WordAddr, u64) {
        (word_addr(addr, HIGH), self.0[HIGH])
    }

    /// Returns the address of the link, and its word.
    pub fn link_word(&self, addr: RemoteAddr) -> (WordAddr, u64) {
        (word_addr(addr, LINK), self.0[LINK])
    }

    /// Returns the address of the bitmap, and its word.
    pub fn bitmap_word(&self, addr: RemoteAddr) -> (WordAddr, u64) {
        (word_addr(addr, BITMAP), self.0[BITMAP])
    }

    /// Returns the address of an entry, and its words.
    pub fn entry_words(&self, addr: RemoteAddr, slot: usize) -> (WordAddr, &[u64]) {
        let at = ENTRIES + 2 * slot;
        (word_addr(addr, at), &self.0[at..at + 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    fn at(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    fn node(count: u64) -> InnerNode {
        let mut node = InnerNode::new(1, 10, 999, at(64));
        for index in (0..count).rev() {
            let entry = ChildEntry {
                low: 10 + index * 10,
                child: at(1000 + index),
            };
            assert!(node.add(entry).is_some());
        }
        node
    }

    /// Format: a later version that changes it must have another number.
    #[test]
    fn words_are_golden() {
        let mut node = node(2);
        node.seal(at(32), TableId(7));
        let words = node.node_words(0);
        assert_eq!(words[1] >> 32, 0x0001_0001);
        assert_eq!(words[2..6], [10, 999, 64, 0b11]);
        assert_eq!(words[6..10], [20, 1001, 10, 1000]);
        assert!(words[10..].iter().all(|word| *word == 0));
        assert_eq!(words[1] as u32, GOLDEN_CHECKSUM, "{:#x}", words[1] as u32);
    }

    const GOLDEN_CHECKSUM: u32 = 0x2698_B07C;

    /// The checksum detects any change of a valid word, and ignores entries outside the bitmap.
    #[test]
    fn the_checksum_covers_what_counts() {
        let (addr, table) = (at(32), TableId(7));
        let mut node = node(3);
        node.seal(addr, table);
        assert!(node.is_intact(addr, table));
        assert!(!node.is_intact(at(48), table));
        assert!(!node.is_intact(addr, TableId(8)));
        for word in 0..IMAGE_SIZE_WORDS {
            let mut torn = node.clone();
            torn.0[word] ^= 1 << 40;
            let counts = word < ENTRIES + 6;
            assert_eq!(torn.is_intact(addr, table), !counts, "word {word}");
        }
    }

    /// A key is led to the child with the highest fence not above it, in whatever order the entries
    /// are.
    #[test]
    fn children_are_found_by_their_fences() {
        let node = node(5);
        for (key, child) in [(10, 1000), (19, 1000), (20, 1001), (55, 1004), (900, 1004)] {
            assert_eq!(node.child_of(key).map(|it| it.child), Some(at(child)));
        }
        assert_eq!(node.child_of(9), None);
        assert_eq!(node.key_position(999), KeyPosition::Here);
        assert_eq!(node.key_position(1000), KeyPosition::On(at(64)));
        assert_eq!(node.key_position(9), KeyPosition::Lost);
    }

    /// A node takes 61 entries, and one more after one was removed.
    #[test]
    fn slots_are_used_again() {
        let mut node = node(61);
        let more = ChildEntry {
            low: 11,
            child: at(5),
        };
        assert_eq!(node.add(more), None);
        node.retain(|entry| entry.low != 40);
        assert_eq!(node.entry_count(), 60);
        assert!(node.add(more).is_some());
        assert!(node.lists(11) && !node.lists(40));
        assert!(node.sorted_entries().is_sorted());
    }
}
