//! Head of a tree: one block that names its root.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | format (16), generation (16), table id (32) |
//! | 1 | number of records when the tree was built |
//! | 2 | address of the table's first leaf when the tree was built |
//! | 3 | largest number of entries of a node (32), CRC-32C of address and words 0 to 3 without it |
//! | 4 | root: the inner node at the top, with its level in the spare bits. CAS |
//! | 5 | number of leaves when the tree was built, plus one for each split. FAA |
//! | 6 | 1: a compaction built the tree, or built one that a load has replaced with it |
//! | 7 | 0 |
//!
//! The head is at the start of its chunk, and the table's root word names it.

use farleaf_base::{RemoteAddr, TableId, WordAddr, crc32c};
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_leaf::words::LeafAccess;

use super::node::ENTRY_COUNT_MAX;
use crate::{IndexError, SnapshotDamage};

/// Smallest permitted maximum of entries of a node: one for each of the two nodes of a split, and
/// one more.
pub const ENTRY_COUNT_MIN: u32 = 3;
const HEAD_SIZE_WORDS: usize = 8;
const FORMAT: u64 = 2;
const ROOT_WORD: u64 = 4;
const LEAF_COUNT_WORD: u64 = 5;
const COMPACTED_WORD: usize = 6;

/// Head of a tree, as read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Address of the head.
    pub addr: RemoteAddr,
    /// Generation of the load or compaction that built the tree.
    pub generation: u16,
    /// Number of records when the tree was built.
    pub record_count: u64,
    /// Address of the first leaf when the tree was built.
    pub first_leaf: RemoteAddr,
    /// Largest number of entries that a node gets.
    pub entry_count_max: u32,
    /// Address of the inner node at the top, with its level in the spare bits.
    pub root: RemoteAddr,
    /// Number of leaves when the tree was built, plus one for each split.
    pub leaf_count: u64,
    /// True if a compaction built the tree, or built one that a load has replaced with it. If so,
    /// sessions may be using older trees.
    pub is_compacted: bool,
}

impl Head {
    /// Returns the address of the word with the root's address.
    pub fn root_addr(&self) -> WordAddr {
        self.addr.word_at(ROOT_WORD)
    }

    /// Returns the address of the counter of leaves.
    pub fn leaf_count_addr(&self) -> WordAddr {
        self.addr.word_at(LEAF_COUNT_WORD)
    }

    /// Returns the table's root word that names the head.
    pub fn root_word(&self) -> RemoteAddr {
        self.addr.with_spare(self.generation)
    }

    /// Returns the level of the node at the top.
    pub fn height(&self) -> u16 {
        self.root.spare()
    }

    /// Returns the words of a new head.
    pub fn encode(&self, table: TableId) -> [u64; HEAD_SIZE_WORDS] {
        let mut words = [0; HEAD_SIZE_WORDS];
        words[0] = FORMAT << 48 | u64::from(self.generation) << 32 | u64::from(table.0);
        words[1] = self.record_count;
        words[2] = self.first_leaf.word();
        words[3] = u64::from(self.entry_count_max) << 32;
        words[3] |= self.checksum(&words);
        words[4] = self.root.word();
        words[5] = self.leaf_count;
        words[COMPACTED_WORD] = self.is_compacted.into();
        words
    }

    fn checksum(&self, words: &[u64]) -> u64 {
        let input = [
            self.addr.word(),
            words[0],
            words[1],
            words[2],
            words[3] >> 32,
        ];
        crc32c(&input).into()
    }

    fn decode(addr: RemoteAddr, table: TableId, words: &[u64]) -> Result<Self, String> {
        let head = Self {
            addr,
            generation: (words[0] >> 32) as u16,
            record_count: words[1],
            first_leaf: RemoteAddr::from_word(words[2]),
            entry_count_max: (words[3] >> 32) as u32,
            root: RemoteAddr::from_word(words[4]),
            leaf_count: words[5],
            is_compacted: words[COMPACTED_WORD] != 0,
        };
        if words[0] >> 48 != FORMAT {
            return Err(format!("its head has unknown format {}", words[0] >> 48));
        }
        if words[0] as u32 != table.0 {
            return Err(format!("its head belongs to table {}", words[0] as u32));
        }
        if words[3] & u64::from(u32::MAX) != head.checksum(words) {
            return Err("checksum mismatch in its head".to_owned());
        }
        let possible = ENTRY_COUNT_MIN..=ENTRY_COUNT_MAX as u32;
        if !possible.contains(&head.entry_count_max) {
            let count = head.entry_count_max;
            return Err(format!("invalid maximum of {count} entries per node"));
        }
        Ok(head)
    }
}

/// Returns the address of the word of a head that says whether sessions may use older trees. It is
/// changed only before the root is in force.
pub(crate) fn compacted_addr(root: RemoteAddr) -> WordAddr {
    root.place().word_at(COMPACTED_WORD as u64)
}

/// Reads the head that a table's root names. Costs one round trip.
///
/// # Errors
/// [`IndexError::SnapshotDamaged`], or the fabric failed.
pub async fn read_head<E: Endpoint>(
    access: &LeafAccess<'_, E>,
    root: RemoteAddr,
) -> Result<Head, IndexError> {
    let addr = root.place();
    let damaged = |what| {
        let table = access.table;
        IndexError::SnapshotDamaged(Box::new(SnapshotDamage { addr, table, what }))
    };
    if access.layout.chunk_of(addr).is_none() {
        return Err(damaged("its root is outside the pool".to_owned()));
    }
    let mut batch = Batch::new();
    let read = batch.read(addr.word_at(0), HEAD_SIZE_WORDS);
    let executed = access.endpoint.execute(&mut batch).await;
    let counters = access.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    executed?;
    let head = Head::decode(addr, access.table, batch.words(read)).map_err(damaged)?;
    if head.generation != root.spare() {
        let what = format!("its head belongs to load {}", head.generation);
        return Err(damaged(what));
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    /// Format: a later version that changes it must have another number, and other words are
    /// rejected.
    #[test]
    fn words_are_golden_and_damage_is_seen() {
        let at = |block| RemoteAddr::new(NodeId(0), block);
        let head = Head {
            addr: at(2048),
            generation: 3,
            record_count: 1000,
            first_leaf: at(4096),
            entry_count_max: 61,
            root: at(5000).with_spare(2),
            leaf_count: 167,
            is_compacted: true,
        };
        let words = head.encode(TableId(9));
        let root = (2 << 40) + 5000;
        assert_eq!(words[0], 0x0002_0003_0000_0009);
        assert_eq!(words[1..3], [1000, 4096]);
        assert_eq!(words[3] >> 32, 61);
        assert_eq!(words[3] as u32, GOLDEN_CHECKSUM, "{:#x}", words[3] as u32);
        assert_eq!(words[4..], [root, 167, 1, 0]);
        assert_eq!(Head::decode(at(2048), TableId(9), &words), Ok(head));
        assert!(Head::decode(at(2049), TableId(9), &words).is_err());
        assert!(Head::decode(at(2048), TableId(8), &words).is_err());
        for word in 0..4 {
            let mut damaged = words;
            damaged[word] ^= 1 << 33;
            let decoded = Head::decode(at(2048), TableId(9), &damaged);
            assert!(decoded.is_err(), "word {word}");
        }
    }

    const GOLDEN_CHECKSUM: u32 = 0x862A_AB9E;
}
