//! A chunk's block in the chunk table: who leases it, what it is for, which of its leaves are free.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | owner word of the session that leases it; 0 = nobody. CAS |
//! | 1 | purpose (8), slots per leaf (8), generation (16), table id (32) |
//! | 2..8 | free leaves, one bit each; holds only while nobody leases the chunk |
//!
//! A chunk of value blocks has their size class in the place of slots, and its bits, one for each
//! piece, hold at all times: what is marked is free (A8). A chunk of an extent has its position in
//! that extent in the place of the generation.
//!
//! Words 1 to 7 are written only by who holds word 0.

use farleaf_types::{OwnerWord, TableId};

use crate::layout::CHUNK_SIZE_BYTES;

/// Words of a chunk's block.
pub const CHUNK_ENTRY_SIZE_WORDS: usize = 8;
const FREE_SIZE_WORDS: usize = 6;
/// Most leaves that a chunk can hold and that the free bits can tell apart.
pub const CHUNK_LEAF_COUNT_MAX: u64 = (FREE_SIZE_WORDS * 64) as u64;
const _: () = assert!(
    CHUNK_SIZE_BYTES / 192 <= CHUNK_LEAF_COUNT_MAX,
    "192 bytes: the least leaf"
);

/// What a chunk is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPurpose {
    /// Nothing: anyone may claim it.
    Free,
    /// Leaves that splits make, one by one.
    Leaves {
        /// Slots of each leaf.
        slots: u8,
    },
    /// Part of a run: leaves side by side from chunk to chunk, made by one load or retraining.
    Run {
        /// Slots of each leaf.
        slots: u8,
        /// The load or retraining, as the root of the table's catalog entry numbers it.
        generation: u16,
    },
    /// Part of a search layer's snapshot.
    Snapshot {
        /// The load that made it.
        generation: u16,
    },
    /// Inner nodes of a tree of search layer nodes, one by one.
    Inner {
        /// The load that made the tree.
        generation: u16,
    },
    /// Rings of a session that makes calls (S5); of no table.
    Rings,
    /// Models of a table that the node trains, and their translation tables.
    Models,
    /// Value blocks of a table of byte strings, one by one.
    Blocks {
        /// Into how many pieces it is cut, as a number of `farleaf-block`.
        class: u8,
    },
    /// Part of a value block that takes whole chunks side by side.
    Extent {
        /// How many chunks of that block lie before it.
        position: u16,
    },
}

impl ChunkPurpose {
    /// Of the chunk that lies so many behind the first of those that are claimed together for this.
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

/// What a chunk's block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Who leases it.
    pub owner: OwnerWord,
    /// What it is for; a number that this version does not know reads as `None`.
    pub purpose: Option<ChunkPurpose>,
    /// Whose it is; 0 when free.
    pub table: TableId,
    /// Free leaves, or inner nodes, while nobody leases it.
    pub free: FreeLeaves,
}

/// Which leaves of a chunk are free, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeLeaves([u64; FREE_SIZE_WORDS]);

impl FreeLeaves {
    /// The first `count` leaves are free.
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

    /// Whether a leaf is marked as free; one that a chunk cannot have is not.
    pub fn contains(&self, index: u64) -> bool {
        let word = self.0.get((index / 64) as usize);
        word.is_some_and(|word| word >> (index % 64) & 1 != 0)
    }

    /// How many are free.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The free leaves below `leaf_count`, ascending.
    pub fn iter(&self, leaf_count: u64) -> impl Iterator<Item = u64> {
        let words = self.0;
        (0..leaf_count.min(CHUNK_LEAF_COUNT_MAX))
            .filter(move |index| words[(index / 64) as usize] >> (index % 64) & 1 != 0)
    }
}

/// Word 1 of a chunk's block.
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
    /// Reads a chunk's block.
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

    /// Words 1 to 7 of a chunk's block.
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
