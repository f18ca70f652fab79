//! The catalog: list of a pool's tables.
//!
//! An entry is four blocks:
//!
//! | word | meaning |
//! |---|---|
//! | 0 | state (8: 0 free, 1 live, 2 dropped), table id (32): the commit word |
//! | 1 | layout (below) |
//! | 2 | first leaf that the table ever had |
//! | 3 | size of the name in bytes |
//! | 4..12 | name, UTF-8 |
//! | 12 | checksum of words 1 to 11, 18 to 22 and the table id |
//! | 13 | sequence number of the drop (LEAF-7) |
//! | 16 | root: the search layer's snapshot; its spare bits number the load. CAS |
//! | 17 | with a tree: leaves that deletes left underfull since the last compaction. FAA |
//! | 18..22 | part of a table over several pools, or 0 ([`PartRecord`]) |
//! | 22 | table of bytes: size of the largest inline value in bytes |
//! | 24 | root that a bulk load is about to install, or 0 |
//!
//! Word 1 has, from the lowest bit on: slots, or blocks of a page (8), search layer (8), fill in
//! percent (8), kind (8: 0 words, 1 bytes), epsilon in thousandths of a key (32).
//!
//! - **Lock.** Entries are created and dropped only under the catalog lock, which a CAS recovers
//!   from a fenced owner. No repair is needed then, because creation and dropping commit by one
//!   word.
//! - **Creation** writes words 1 to 31, then word 0, in one batch. The first leaf and the root are
//!   complete (awaited) before.
//! - **Dropping** writes word 0 = dropped. Afterwards only the memory node writes the entry. It
//!   sets words 16 and 24 to 0, then draws the next sequence number and writes it to word 13. It
//!   sets word 0 = free when the grace period is over (LEAF-7) and all of the table's chunks are
//!   given back.
//! - **Root.** A session may find the first leaf retired while word 24 names a root that is not
//!   installed yet. It then swaps the root by CAS, without the lock.
//! - **Unchecked words.** Words 16, 17 and 24 change without the lock, so the checksum excludes
//!   them. Each commits by itself (FABRIC-3). Either of a table's roots, old or new, leads to the
//!   whole table: the old one's leaves are retired, and a session that meets one reads the newest
//!   root.
//! - **Torn reads.** A READ returns words in any order (FABRIC-3). One that began before an entry
//!   was created could return its live word 0 with an earlier word 16. If that is 0, the reader
//!   treats the entry as read during creation. Otherwise it is a root of this table, for the
//!   following reason. The previous table's root was zeroed before the number of its drop was
//!   drawn. A READ that saw it belongs to an operation that began before, and until that operation
//!   ends, the entry does not become free (LEAF-7).
//! - **Reading.** A session that reads the catalog reads its own session's word in the same batch.
//!   If the session is not alive, it ignores the catalog, because a restarted node is empty. Word
//!   16 of a dropped entry is never written again, because every CAS expects a root other than 0. A
//!   load in progress may still write word 24, and deletes may increment word 17. They are ignored
//!   in a dropped entry, and creation overwrites them after all of that has ended.
//! - **Underfull count.** Word 17 only decides when a compaction checks the table. It belongs to
//!   the table, not the tree, because deletes use a tree that a compaction is about to replace or
//!   has just replaced. A compaction subtracts exactly the count from before it read the leaves. A
//!   leaf and its count may be on two nodes, so the count may come first. Then at most one leaf of
//!   each operation in progress is subtracted without having been seen.

use farleaf_base::limits::TABLE_NAME_SIZE_BYTES_MAX;
use farleaf_base::{RemoteAddr, SequenceNumber, TableId, WordAddr, crc32c};

use crate::PoolError;
use crate::layout::NodeLayout;
use crate::part::{PART_SIZE_WORDS, PartRecord};

/// Largest number of tables in a pool.
pub const TABLE_COUNT_MAX: u64 = 256;
/// Number of blocks of an entry.
pub const ENTRY_SIZE_BLOCKS: u64 = 4;
/// Number of words of an entry.
pub const ENTRY_SIZE_WORDS: usize = 32;
const NAME_SIZE_WORDS: usize = 8;
const _: () = assert!(NAME_SIZE_WORDS * 8 == TABLE_NAME_SIZE_BYTES_MAX);
const NAME_WORD: usize = 4;
const CHECKSUM_WORD: usize = 12;
const DROPPED_WORD: u64 = 13;
const ROOT_WORD: u64 = 16;
const UNDERFULL_COUNT_WORD: u64 = 17;
const PART_WORD: usize = 18;
const PENDING_ROOT_WORD: u64 = 24;
const INLINE_VALUE_WORD: usize = 22;
/// Words of the checksum's input: table id, words 1 to 11, part record, and the inline value size.
const CHECKED_SIZE_WORDS: usize = CHECKSUM_WORD + PART_SIZE_WORDS + 1;

const _: () = assert!(PART_WORD as u64 > UNDERFULL_COUNT_WORD);
const _: () = assert!(PART_WORD + PART_SIZE_WORDS == INLINE_VALUE_WORD);
const _: () = assert!((INLINE_VALUE_WORD as u64) < PENDING_ROOT_WORD);
const _: () = assert!(NAME_WORD + NAME_SIZE_WORDS == CHECKSUM_WORD);
const _: () = assert!(ENTRY_SIZE_WORDS as u64 == ENTRY_SIZE_BLOCKS * 8);

/// State of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// The entry has no table.
    Free,
    /// The entry has a table.
    Live,
    /// The entry's table was dropped, and its memory may still be read.
    Dropped,
}

/// Kind of a table's keys and values, which determines the format of its leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// 64-bit words, in leaves with this number of slots.
    Words {
        /// Slots per leaf.
        slots: u8,
    },
    /// Byte strings, in pages.
    Bytes {
        /// Blocks per page.
        page_size_blocks: u8,
        /// Size of the largest inline value in bytes.
        inline_value_size_bytes: u16,
    },
}

const KIND_WORDS: u64 = 0;
const KIND_BYTES: u64 = 1;
/// Added to the blocks of a page in a chunk's block.
const PAGE_SHAPE: u8 = 128;

impl TableKind {
    /// Returns the shape of such a table's leaves, as the block of a chunk stores it.
    pub const fn leaf_shape(self) -> u8 {
        match self {
            Self::Words { slots } => slots,
            Self::Bytes {
                page_size_blocks, ..
            } => PAGE_SHAPE | page_size_blocks,
        }
    }

    /// Returns the slots per leaf, if the table has leaves of words.
    pub const fn slots(self) -> Option<u8> {
        match self {
            Self::Words { slots } => Some(slots),
            Self::Bytes { .. } => None,
        }
    }

    /// Encodes the parts of words 1 and 22 for the kind.
    fn encode(self) -> (u64, u64) {
        match self {
            Self::Words { slots } => (u64::from(slots) | KIND_WORDS << 24, 0),
            Self::Bytes {
                page_size_blocks,
                inline_value_size_bytes,
            } => (
                u64::from(page_size_blocks) | KIND_BYTES << 24,
                inline_value_size_bytes.into(),
            ),
        }
    }

    /// Decodes the kind from words 1 and 22; `None` if it is of a later version.
    fn decode(word: u64, inline_value_word: u64) -> Option<Self> {
        match (word >> 24 & 0xFF, inline_value_word) {
            (KIND_WORDS, 0) => Some(Self::Words { slots: word as u8 }),
            (KIND_BYTES, size) => Some(Self::Bytes {
                page_size_blocks: word as u8,
                inline_value_size_bytes: u16::try_from(size).ok()?,
            }),
            _ => None,
        }
    }
}

/// Properties of a table that never change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRecord {
    /// Number of the table.
    pub id: TableId,
    /// Name of the table, 1 to 64 bytes.
    pub name: String,
    /// Kind of the table's keys and values.
    pub kind: TableKind,
    /// Search layer that clients use, as `farleaf-index` numbers them.
    pub search_layer: u8,
    /// Percentage of a leaf's slots that a bulk load uses.
    pub fill_percent: u8,
    /// Error bound of the models, in thousandths of a key.
    pub epsilon_milli: u32,
    /// First leaf that the table ever had.
    pub first_leaf: RemoteAddr,
    /// Part of a table over several pools; `None` for an ordinary table.
    pub part: Option<PartRecord>,
}

/// Catalog entry that is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// Index of the entry.
    pub index: u64,
    /// State: live or dropped.
    pub state: EntryState,
    /// Table of the entry.
    pub record: TableRecord,
    /// Sequence number of the drop.
    pub dropped_at: SequenceNumber,
    /// Snapshot of the search layer.
    pub root: RemoteAddr,
    /// For a table with a tree: number of leaves that deletes have left underfull since the last
    /// compaction, plus those that merging two neighbors would still have saved then.
    pub underfull_count: u64,
    /// Root that a bulk load is about to install.
    pub pending_root: RemoteAddr,
}

/// Returns word 0 of a live table.
pub fn live_word(id: TableId) -> u64 {
    1 << 56 | u64::from(id.0)
}

/// Returns word 0 of a dropped table.
pub fn dropped_word(id: TableId) -> u64 {
    2 << 56 | u64::from(id.0)
}

/// Returns the address of an entry's drop number.
pub fn dropped_at_addr(layout: &NodeLayout, index: u64) -> WordAddr {
    layout.catalog_entry(index).offset(DROPPED_WORD)
}

/// Returns the address of an entry's root.
pub fn root_addr(layout: &NodeLayout, index: u64) -> WordAddr {
    layout.catalog_entry(index).offset(ROOT_WORD)
}

/// Returns the address of an entry's count of underfull leaves.
pub fn underfull_count_addr(layout: &NodeLayout, index: u64) -> WordAddr {
    layout.catalog_entry(index).offset(UNDERFULL_COUNT_WORD)
}

/// Returns the address of an entry's pending root.
pub fn pending_root_addr(layout: &NodeLayout, index: u64) -> WordAddr {
    layout.catalog_entry(index).offset(PENDING_ROOT_WORD)
}

impl TableRecord {
    /// Encodes words 1 to 31 of the entry of a new table.
    pub fn encode_body(&self, root: RemoteAddr) -> [u64; ENTRY_SIZE_WORDS - 1] {
        assert!(
            (1..=TABLE_NAME_SIZE_BYTES_MAX).contains(&self.name.len()),
            "names are checked where they come in"
        );
        let mut words = [0; ENTRY_SIZE_WORDS];
        let (kind, inline_value_size) = self.kind.encode();
        words[1] = kind
            | u64::from(self.search_layer) << 8
            | u64::from(self.fill_percent) << 16
            | u64::from(self.epsilon_milli) << 32;
        words[2] = self.first_leaf.word();
        words[3] = self.name.len() as u64;
        for (index, byte) in self.name.bytes().enumerate() {
            words[NAME_WORD + index / 8] |= u64::from(byte) << (index % 8 * 8);
        }
        let part = PartRecord::encode(self.part.as_ref());
        words[PART_WORD..][..PART_SIZE_WORDS].copy_from_slice(&part);
        words[INLINE_VALUE_WORD] = inline_value_size;
        words[CHECKSUM_WORD] = checksum(&words, self.id);
        words[ROOT_WORD as usize] = root.word();
        let mut body = [0; ENTRY_SIZE_WORDS - 1];
        body.copy_from_slice(&words[1..]);
        body
    }
}

fn checksum(words: &[u64], id: TableId) -> u64 {
    let mut input = [0; CHECKED_SIZE_WORDS];
    input[0] = u64::from(id.0);
    input[1..CHECKSUM_WORD].copy_from_slice(&words[1..CHECKSUM_WORD]);
    input[CHECKSUM_WORD..].copy_from_slice(&words[PART_WORD..=INLINE_VALUE_WORD]);
    u64::from(crc32c(&input))
}

impl CatalogEntry {
    /// Decodes an entry; `None` if it is free.
    ///
    /// # Errors
    /// [`PoolError::CatalogDamaged`], also for an entry read while it was being written. A caller
    /// without the catalog lock must therefore read again before it reports the error.
    pub fn decode(index: u64, words: &[u64]) -> Result<Option<Self>, PoolError> {
        let damaged = PoolError::CatalogDamaged { index };
        let id = TableId(words[0] as u32);
        let state = match words[0] >> 56 {
            0 => return Ok(None),
            1 => EntryState::Live,
            2 => EntryState::Dropped,
            _ => return Err(damaged),
        };
        let name_size = words[3] as usize;
        if words[CHECKSUM_WORD] != checksum(words, id) || name_size > TABLE_NAME_SIZE_BYTES_MAX {
            return Err(damaged);
        }
        let name = (0..name_size)
            .map(|index| (words[NAME_WORD + index / 8] >> (index % 8 * 8)) as u8)
            .collect();
        let Ok(name) = String::from_utf8(name) else {
            return Err(damaged);
        };
        let Some(part) = PartRecord::decode(&words[PART_WORD..][..PART_SIZE_WORDS]) else {
            return Err(damaged);
        };
        let Some(kind) = TableKind::decode(words[1], words[INLINE_VALUE_WORD]) else {
            return Err(damaged);
        };
        let record = TableRecord {
            id,
            name,
            kind,
            search_layer: (words[1] >> 8) as u8,
            fill_percent: (words[1] >> 16) as u8,
            epsilon_milli: (words[1] >> 32) as u32,
            first_leaf: RemoteAddr::from_word(words[2]),
            part,
        };
        let root = RemoteAddr::from_word(words[ROOT_WORD as usize]);
        if state == EntryState::Live && root.is_null() {
            return Err(damaged);
        }
        Ok(Some(Self {
            index,
            state,
            record,
            dropped_at: SequenceNumber(words[DROPPED_WORD as usize]),
            root,
            underfull_count: words[UNDERFULL_COUNT_WORD as usize],
            pending_root: RemoteAddr::from_word(words[PENDING_ROOT_WORD as usize]),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::PartitionedTableId;
    use farleaf_base::NodeId;

    fn record() -> TableRecord {
        TableRecord {
            id: TableId(0x77),
            name: "cities-äöü".to_owned(),
            kind: TableKind::Words { slots: 12 },
            search_layer: 1,
            fill_percent: 75,
            epsilon_milli: 16_000,
            first_leaf: RemoteAddr::new(NodeId(0), 0x1234),
            part: None,
        }
    }

    fn entry_words() -> Vec<u64> {
        let root = RemoteAddr::new(NodeId(0), 0x99).with_spare(1);
        let mut words = vec![live_word(TableId(0x77))];
        words.extend(record().encode_body(root));
        words
    }

    #[test]
    fn entry_words_are_golden() {
        let words = entry_words();
        assert_eq!(
            words[..4],
            [0x0100_0000_0000_0077, 0x0000_3E80_004B_010C, 0x1234, 13]
        );
        assert_eq!(words[4], u64::from_le_bytes(*b"cities-\xC3"));
        assert_eq!(
            words[16..],
            [[0x0000_0100_0000_0099, 0, 0, 0], [0; 4], [0; 4], [0; 4]].concat()
        );
    }

    #[test]
    fn entries_survive_the_way() {
        let mut words = entry_words();
        words[17] = 5;
        let entry = CatalogEntry::decode(3, &words)
            .expect("good")
            .expect("not free");
        assert_eq!(
            (entry.index, entry.state, &entry.record),
            (3, EntryState::Live, &record())
        );
        assert_eq!((entry.root.spare(), entry.underfull_count), (1, 5));
        assert!(
            CatalogEntry::decode(3, &[0; ENTRY_SIZE_WORDS])
                .expect("free")
                .is_none()
        );
    }

    #[test]
    fn a_live_entry_without_root_was_read_while_it_was_written() {
        let mut words = entry_words();
        words[ROOT_WORD as usize] = 0;
        let torn = CatalogEntry::decode(3, &words);
        assert!(
            matches!(torn, Err(PoolError::CatalogDamaged { index: 3 })),
            "{torn:?}"
        );
        words[0] = dropped_word(TableId(0x77));
        let dropped = CatalogEntry::decode(3, &words).expect("good");
        let dropped = dropped.expect("not free");
        assert_eq!(
            (dropped.state, dropped.root.is_null()),
            (EntryState::Dropped, true)
        );
    }

    /// Promise: part records are decoded as they were encoded, at their place.
    #[test]
    fn parts_survive_the_way() {
        let part = PartRecord {
            table: PartitionedTableId(0x1234_5678_9ABC_DEF0),
            number: 1,
            count: 3,
            low: 1_000,
            high: 1_999,
        };
        let record = TableRecord {
            part: Some(part),
            ..record()
        };
        let mut words = vec![live_word(record.id)];
        words.extend(record.encode_body(RemoteAddr::new(NodeId(0), 0x99)));
        assert_eq!(
            words[PART_WORD..][..PART_SIZE_WORDS],
            [0x1234_5678_9ABC_DEF0, 0x0003_0001, 1_000, 1_999]
        );
        let entry = CatalogEntry::decode(3, &words).expect("good");
        assert_eq!(entry.expect("not free").record, record);
    }

    /// Promise: a table of bytes keeps its pages' size and its inline value size, at their places;
    /// a kind unknown to this version is rejected.
    #[test]
    fn kinds_survive_the_way() {
        let kind = TableKind::Bytes {
            page_size_blocks: 16,
            inline_value_size_bytes: 300,
        };
        let record = TableRecord { kind, ..record() };
        let mut words = vec![live_word(record.id)];
        words.extend(record.encode_body(RemoteAddr::new(NodeId(0), 0x99)));
        assert_eq!((words[1] as u32, words[22]), (0x014B_0110, 300));
        assert_eq!(kind.leaf_shape(), 0x90);
        let entry = CatalogEntry::decode(3, &words).expect("good");
        assert_eq!(entry.expect("not free").record, record);
        words[1] ^= 3 << 24;
        words[CHECKSUM_WORD] = checksum(&words, record.id);
        assert!(CatalogEntry::decode(3, &words).is_err());
    }

    #[test]
    fn any_damage_is_seen() {
        let of_part_and_kind = PART_WORD..=INLINE_VALUE_WORD;
        for word in (1..=CHECKSUM_WORD).chain(of_part_and_kind).chain([0]) {
            for bit in [0, 13, 63] {
                let mut words = entry_words();
                words[word] ^= 1 << bit;
                if word == 0 && bit == 13 {
                    words[0] ^= 1 << 14;
                }
                let damaged = CatalogEntry::decode(3, &words);
                assert!(
                    matches!(damaged, Err(PoolError::CatalogDamaged { index: 3 }))
                        || (word == 0 && bit == 63 && damaged.is_err()),
                    "word {word}, bit {bit}: {damaged:?}"
                );
            }
        }
    }
}
