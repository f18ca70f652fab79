//! Addresses in far memory: a pointer to a 64-byte block, and the address of one word.

use core::fmt;

/// Size in bytes of the aligned unit that is atomic on every fabric (FABRIC-3).
pub const WORD_SIZE_BYTES: u64 = 8;
/// Size in bytes of a block, the unit of [`RemoteAddr`]: one cache line.
pub const BLOCK_SIZE_BYTES: u64 = 64;
/// [`BLOCK_SIZE_BYTES`] in words.
pub const BLOCK_SIZE_WORDS: u64 = BLOCK_SIZE_BYTES / WORD_SIZE_BYTES;

/// Number of a memory node within its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u8);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Pointer to a 64-byte block in far memory, in its stored form.
///
/// ```text
/// bit 63      56 55            40 39                            0
///     [  node  ] [    spare     ] [ offset in 64-byte blocks    ]
/// ```
///
/// The data structure that stores the pointer defines the spare bits. In a leaf's link the lowest
/// bit is the *retired* flag; an entry of a synonym leaf table stores the index of the parent leaf.
/// The all-zero pointer is [`RemoteAddr::NULL`]: block 0 of node 0 holds the superblock, to which
/// no pointer refers.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct RemoteAddr(u64);

impl RemoteAddr {
    /// Null pointer: all bits zero.
    pub const NULL: Self = Self(0);
    const BLOCK_BITS: u32 = 40;
    const SPARE_BITS: u32 = 16;
    const BLOCK_MASK: u64 = (1 << Self::BLOCK_BITS) - 1;
    const SPARE_MASK: u64 = ((1 << Self::SPARE_BITS) - 1) << Self::BLOCK_BITS;
    const RETIRED_BIT: u64 = 1 << Self::BLOCK_BITS;
    /// Number of blocks that a pointer can address: the largest block index plus one.
    pub const BLOCK_COUNT_MAX: u64 = 1 << Self::BLOCK_BITS;

    /// Returns a pointer to block `block` of `node`, with spare bits cleared.
    ///
    /// # Panics
    /// The index needs more than 40 bits, that is, the offset is 64 TiB or more.
    pub const fn new(node: NodeId, block: u64) -> Self {
        assert!(block < Self::BLOCK_COUNT_MAX, "block index beyond 40 bits");
        Self(((node.0 as u64) << 56) | block)
    }

    /// Returns the pointer in its stored form.
    #[inline]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// Reads a stored pointer. Every word is accepted; the caller checks whether the pointer is
    /// valid.
    #[inline]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Returns the memory node.
    #[inline]
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> 56) as u8)
    }

    /// Returns the index of the block in the node's memory.
    #[inline]
    pub const fn block(self) -> u64 {
        self.0 & Self::BLOCK_MASK
    }

    /// Returns the 16 spare bits.
    #[inline]
    pub const fn spare(self) -> u16 {
        (self.0 >> Self::BLOCK_BITS) as u16
    }

    /// Returns a pointer to the same block with other spare bits.
    #[inline]
    #[must_use]
    pub const fn with_spare(self, spare: u16) -> Self {
        Self((self.0 & !Self::SPARE_MASK) | ((spare as u64) << Self::BLOCK_BITS))
    }

    /// Returns a pointer to the same block with spare bits cleared.
    #[inline]
    #[must_use]
    pub const fn place(self) -> Self {
        Self(self.0 & !Self::SPARE_MASK)
    }

    /// Returns true if the pointer is null, whatever its spare bits are.
    #[inline]
    pub const fn is_null(self) -> bool {
        self.place().0 == 0
    }

    /// Returns true if the *retired* flag is set: a leaf's link then names the leaf that replaced
    /// it.
    #[inline]
    pub const fn is_retired(self) -> bool {
        self.0 & Self::RETIRED_BIT != 0
    }

    /// Returns a pointer to the same block with the *retired* flag set.
    #[inline]
    #[must_use]
    pub const fn retired(self) -> Self {
        Self(self.0 | Self::RETIRED_BIT)
    }

    /// Returns the address of the word `index` words after the start of the block.
    #[inline]
    pub const fn word_at(self, index: u64) -> WordAddr {
        WordAddr::new(self.node(), self.block() * BLOCK_SIZE_WORDS + index)
    }

    /// Returns the pointer `block_count` blocks further on the same node, spare bits cleared.
    #[inline]
    #[must_use]
    pub const fn offset_blocks(self, block_count: u64) -> Self {
        Self::new(self.node(), self.block() + block_count)
    }
}

impl fmt::Debug for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{:#x}",
            self.node().0,
            self.block() * BLOCK_SIZE_BYTES
        )?;
        if self.spare() != 0 {
            write!(f, "+{:#x}", self.spare())?;
        }
        Ok(())
    }
}

impl fmt::Display for RemoteAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Address of one aligned 8-byte word: the target of a verb. It counts words, so a misaligned verb
/// cannot be expressed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct WordAddr(u64);

impl WordAddr {
    const INDEX_BITS: u32 = 56;
    const INDEX_MASK: u64 = (1 << Self::INDEX_BITS) - 1;

    /// Returns the address of word number `index` of `node`'s memory.
    #[inline]
    pub const fn new(node: NodeId, index: u64) -> Self {
        Self(((node.0 as u64) << Self::INDEX_BITS) | (index & Self::INDEX_MASK))
    }

    /// Returns the memory node.
    #[inline]
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> Self::INDEX_BITS) as u8)
    }

    /// Returns the block that contains the word.
    #[inline]
    pub const fn block_start(self) -> RemoteAddr {
        RemoteAddr::new(self.node(), (self.0 & Self::INDEX_MASK) / BLOCK_SIZE_WORDS)
    }

    /// Returns the index of the word in the node's memory.
    #[inline]
    pub const fn index(self) -> u64 {
        self.0 & Self::INDEX_MASK
    }

    /// Returns the address `word_count` words further.
    #[inline]
    #[must_use]
    pub const fn offset(self, word_count: u64) -> Self {
        Self::new(self.node(), self.index() + word_count)
    }
}

impl fmt::Debug for WordAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.node().0, u128::from(self.index()) * 8)
    }
}

impl fmt::Display for WordAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_bits_are_golden() {
        let addr = RemoteAddr::new(NodeId(0xAB), 0x12_3456_789A).with_spare(0xCDEF);
        assert_eq!(addr.word(), 0xABCD_EF12_3456_789A);
        assert_eq!((addr.node(), addr.spare()), (NodeId(0xAB), 0xCDEF));
        assert_eq!(addr.place().word(), 0xAB00_0012_3456_789A);
    }

    #[test]
    fn retired_is_the_lowest_spare_bit() {
        let addr = RemoteAddr::new(NodeId(0), 7);
        assert!(!addr.is_retired());
        assert_eq!(addr.retired().spare(), 1);
        assert!(addr.retired().is_retired());
        assert_eq!(addr.retired().place(), addr);
        assert!(
            RemoteAddr::NULL.retired().is_null(),
            "a retired leaf may have no successor"
        );
    }

    #[test]
    fn words_of_a_block_follow_each_other() {
        let addr = RemoteAddr::new(NodeId(3), 2);
        assert_eq!(addr.word_at(5), WordAddr::new(NodeId(3), 21));
        assert_eq!(addr.word_at(5).offset(2).index(), 23);
        assert_eq!(addr.offset_blocks(4).block(), 6);
    }

    #[test]
    #[should_panic(expected = "40 bits")]
    fn a_block_beyond_40_bits_is_refused() {
        let _ = RemoteAddr::new(NodeId(0), RemoteAddr::BLOCK_COUNT_MAX);
    }
}
