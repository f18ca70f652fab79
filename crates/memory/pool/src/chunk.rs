//! A chunk's block in the chunk table: its owner, its purpose, and its free leaves.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | owner word of the session that leases it; 0 = not leased. CAS |
//! | 1 | purpose (8), slots per leaf (8), generation (16), table id (32) |
//! | 2..8 | free leaves, one bit each; valid only while the chunk is not leased |
//!
//! A chunk of value blocks has their size class instead of slots. Its bits, one for each piece, are
//! always valid: a marked piece is free. A chunk of an extent has its position in that extent
//! instead of the generation.
//!
//! Only the holder of word 0 writes words 1 to 7.

use farleaf_base::{OwnerWord, TableId};

use crate::layout::CHUNK_SIZE_BYTES;

/// Number of words of a chunk's block.
pub const CHUNK_ENTRY_SIZE_WORDS: usize = 8;
const FREE_SIZE_WORDS: usize = 6;
/// Largest number of leaves in a chunk that the free bits can distinguish.
pub const CHUNK_LEAF_COUNT_MAX: u64 = (FREE_SIZE_WORDS * 64) as u64;
const _: () = assert!(
    CHUNK_SIZE_BYTES / 192 <= CHUNK_LEAF_COUNT_MAX,
    "192 bytes: the least leaf"
);

/// Purpose of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPurpose {
    /// Unused: any session may claim it.
    Free,
    /// Leaves for splits, used one by one.
    Leaves {
        /// Slots of each leaf.
        slots: u8,
    },
    /// Part of a run: leaves that are adjacent across chunks, created by one load or retraining.
    Run {
        /// Slots of each leaf.
        slots: u8,
        /// Number of the load or retraining, as in the root of the table's catalog entry.
        generation: u16,
    },
    /// Part of a search layer's snapshot.
    Snapshot {
        /// Number of the load that created it.
        generation: u16,
    },
    /// Inner nodes of a tree, used one by one.
    Inner {
        /// Number of the load that created the tree.
        generation: u16,
    },
    /// Rings of a session that makes calls; belongs to no table.
    Rings,
    /// Models of a table that the node trains, and their translation tables.
    Models,
    /// Value blocks of a table of byte strings, used one by one.
    Blocks {
        /// Size class, as `farleaf_leaf::blobs` numbers them.
        class: u8,
    },
    /// Part of a value block that takes whole adjacent chunks.
    Extent {
        /// Number of chunks of that block before this one.
        position: u16,
    },
}

impl ChunkPurpose {
    /// Returns the purpose of the chunk at this offset from the first of those claimed together.
    #[must_use]
    pub fn behind_first(self, offset: u64) -> Self {
        match self {
            Self::Extent { .. } => {
                let position = u16::try_from(offset).expect("a value block has less chunks");
                Self::Extent { position }
            }
            same => same,
        }
    }
}

/// Contents of a chunk's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Owner word of the session that leases the chunk.
    pub owner: OwnerWord,
    /// Purpose of the chunk; `None` if unknown to this version.
    pub purpose: Option<ChunkPurpose>,
    /// Table that owns the chunk; 0 if free.
    pub table: TableId,
    /// Free leaves or inner nodes, valid while the chunk is not leased.
    pub free: FreeLeaves,
}

/// Set of a chunk's free leaves, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeLeaves([u64; FREE_SIZE_WORDS]);

impl FreeLeaves {
    /// Returns a set in which the first `count` leaves are free.
    pub fn first(count: u64) -> Self {
        assert!(
            count <= CHUNK_LEAF_COUNT_MAX,
            "a chunk holds no more leaves"
        );
        let mut free = Self::default();
        (0..count).for_each(|index| free.insert(index));
        free
    }

    /// Marks a leaf as free.
    pub fn insert(&mut self, index: u64) {
        self.0[(index / 64) as usize] |= 1 << (index % 64);
    }

    /// Marks a leaf as in use.
    pub fn remove(&mut self, index: u64) {
        self.0[(index / 64) as usize] &= !(1 << (index % 64));
    }

    /// Returns whether a leaf is marked as free; false for leaves that a chunk cannot have.
    pub fn contains(&self, index: u64) -> bool {
        let word = self.0.get((index / 64) as usize);
        word.is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// Returns the number of free leaves.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Iterates over the free leaves below `leaf_count` in ascending order.
    pub fn iter(&self, leaf_count: u64) -> impl Iterator<Item = u64> {
        let words = self.0;
        (0..leaf_count.min(CHUNK_LEAF_COUNT_MAX))
            .filter(move |index| words[(index / 64) as usize] >> (index % 64) & 1 != 0)
    }
}

/// Returns word 1 of a chunk's block.
pub fn purpose_word(purpose: ChunkPurpose, table: TableId) -> u64 {
    let (number, slots, generation) = match purpose {
        ChunkPurpose::Free => (0, 0, 0),
        ChunkPurpose::Leaves { slots } => (1, slots, 0),
        ChunkPurpose::Run { slots, generation } => (2, slots, generation),
        ChunkPurpose::Snapshot { generation } => (3, 0, generation),
        ChunkPurpose::Inner { generation } => (4, 0, generation),
        ChunkPurpose::Rings => (5, 0, 0),
        ChunkPurpose::Models => (6, 0, 0),
        ChunkPurpose::Blocks { class } => (7, class, 0),
        ChunkPurpose::Extent { position } => (8, 0, position),
    };
    number << 56 | u64::from(slots) << 48 | u64::from(generation) << 32 | u64::from(table.0)
}

impl ChunkEntry {
    /// Returns whether splits of this table take leaves from the chunk.
    pub fn has_leaves(&self, table: TableId) -> bool {
        self.table == table && matches!(self.purpose, Some(ChunkPurpose::Leaves { .. }))
    }

    /// Returns whether splits of this table take leaves from the chunk, and no session leases it.
    pub fn has_unleased_leaves(&self, table: TableId) -> bool {
        self.has_leaves(table) && self.owner.is_free()
    }

    /// Decodes a chunk's block.
    pub fn decode(words: &[u64]) -> Self {
        let word = words[1];
        let (slots, generation) = ((word >> 48) as u8, (word >> 32) as u16);
        let purpose = match word >> 56 {
            0 => Some(ChunkPurpose::Free),
            1 => Some(ChunkPurpose::Leaves { slots }),
            2 => Some(ChunkPurpose::Run { slots, generation }),
            3 => Some(ChunkPurpose::Snapshot { generation }),
            4 => Some(ChunkPurpose::Inner { generation }),
            5 => Some(ChunkPurpose::Rings),
            6 => Some(ChunkPurpose::Models),
            7 => Some(ChunkPurpose::Blocks { class: slots }),
            8 => Some(ChunkPurpose::Extent {
                position: generation,
            }),
            _ => None,
        };
        let mut free = FreeLeaves::default();
        free.0.copy_from_slice(&words[2..CHUNK_ENTRY_SIZE_WORDS]);
        let table = TableId(word as u32);
        Self {
            owner: OwnerWord::from_word(words[0]),
            purpose,
            table,
            free,
        }
    }

    /// Returns words 1 to 7 of a chunk's block.
    pub fn encode_body(
        purpose: ChunkPurpose,
        table: TableId,
        free: FreeLeaves,
    ) -> [u64; CHUNK_ENTRY_SIZE_WORDS - 1] {
        let mut words = [0; CHUNK_ENTRY_SIZE_WORDS - 1];
        words[0] = purpose_word(purpose, table);
        words[1..].copy_from_slice(&free.0);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_golden() {
        let purpose = ChunkPurpose::Run {
            slots: 16,
            generation: 0xABCD,
        };
        let body = ChunkEntry::encode_body(purpose, TableId(0x12_3456), FreeLeaves::first(65));
        assert_eq!(body, [0x0210_ABCD_0012_3456, u64::MAX, 1, 0, 0, 0, 0]);
        let word = |purpose| purpose_word(purpose, TableId(0x12_3456));
        let blocks = ChunkPurpose::Blocks { class: 23 };
        assert_eq!(word(blocks), 0x0717_0000_0012_3456);
        let extent = ChunkPurpose::Extent { position: 0 };
        assert_eq!(word(extent.behind_first(0x0400)), 0x0800_0400_0012_3456);
        assert_eq!(blocks.behind_first(3), blocks);
    }

    #[test]
    fn entries_survive_the_way() {
        let purposes = [
            ChunkPurpose::Free,
            ChunkPurpose::Leaves { slots: 8 },
            ChunkPurpose::Run {
                slots: 12,
                generation: 3,
            },
            ChunkPurpose::Snapshot { generation: 4 },
            ChunkPurpose::Inner { generation: 5 },
            ChunkPurpose::Rings,
            ChunkPurpose::Models,
            ChunkPurpose::Blocks { class: 3 },
            ChunkPurpose::Extent { position: 1024 },
        ];
        for purpose in purposes {
            let mut words = [0; CHUNK_ENTRY_SIZE_WORDS];
            let free = FreeLeaves::first(CHUNK_LEAF_COUNT_MAX);
            words[1..].copy_from_slice(&ChunkEntry::encode_body(purpose, TableId(9), free));
            let entry = ChunkEntry::decode(&words);
            assert_eq!((entry.purpose, entry.table), (Some(purpose), TableId(9)));
            assert_eq!(entry.free.count(), CHUNK_LEAF_COUNT_MAX);
        }
        let unknown = ChunkEntry::decode(&[0, 77 << 56, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            unknown.purpose, None,
            "a later version's purpose is not guessed at"
        );
    }

    #[test]
    fn free_leaves_are_told_one_by_one() {
        let mut free = FreeLeaves::default();
        for index in [0, 63, 64, 340, 383] {
            free.insert(index);
        }
        assert_eq!(free.iter(341).collect::<Vec<_>>(), [0, 63, 64, 340]);
        assert_eq!(free.count(), 5);
        free.remove(63);
        assert_eq!(
            [62, 63, 64, 383, 384].map(|index| free.contains(index)),
            [false, false, true, true, false]
        );
    }
}
