//! The catalog: which tables there are.
//!
//! An entry is four blocks:
//!
//! | word | meaning |
//! |---|---|
//! | 0 | state (8: 0 free, 1 live, 2 dropped), table id (32): the commit word |
//! | 1 | slots, or blocks of a page (8), search layer (8), fill in percent (8), kind (8: 0 words, 1 bytes), epsilon in thousandths of a key (32) |
//! | 2 | first leaf that the table ever had |
//! | 3 | size of the name in bytes |
//! | 4..12 | name, UTF-8 |
//! | 12 | checksum of words 1 to 11, 18 to 22 and the table id |
//! | 13 | sequence number of the drop (D7) |
//! | 16 | root: the search layer's snapshot; its spare bits number the load. CAS |
//! | 17 | with a tree: leaves made underfull by deletes that no compaction has seen (C7). FAA |
//! | 18..22 | which part of a table over several pools it is, or 0 ([`PartRecord`]) |
//! | 22 | of a table of bytes: the largest value that lies in a page, in bytes |
//! | 24 | the root that a bulk load is about to install, or 0 |
//!
//! - **C1.** Entries are made and dropped only under the catalog lock, whose owner word is
//!   recovered from a fenced owner by CAS. Nothing needs repair then: C2 and C3 commit by one word.
//! - **C2.** Creation writes words 1 to 31, then word 0 (one batch); the first leaf and the root
//!   are complete before (awaited).
//! - **C3.** Dropping writes word 0 = dropped. Only the memory node writes a dropped entry after
//!   that: words 16 and 24 = 0 (C5), then the next sequence number is drawn and noted in word 13,
//!   then word 0 = free when the grace period is over (D7) and all of the table's chunks are given
//!   back.
//! - **C4.** The root is swapped by CAS, without the lock, by whoever finds the first leaf retired
//!   while word 24 names a root that is not installed yet (see the bulk load's rules).
//! - **C5.** Words 16, 17 and 24 are outside of the checksum, as they change without the lock. Each
//!   commits by itself (F3), and either of a table's roots, old or new, leads to all of it: the old
//!   one's leaves are retired, and whoever meets one asks for the newest (B4). But a READ returns
//!   words in any order (F3), so one that began before an entry was made could bring its live word
//!   0 with what word 16 was before. If that was 0, the entry counts as read while it was written.
//!   And it was 0, or a root of this very table: that of the table that had the entry before was
//!   zeroed before the drop's sequence number was drawn, so a READ that saw it belongs to an
//!   operation that began before, and until that ends the entry does not become free (D7, G2).
//! - **C6.** Who reads the catalog reads its own session's word in the same batch, and believes
//!   nothing if that does not say that the session is alive: a node that has restarted is empty.
//!   Nobody writes word 16 of a dropped entry again: every CAS expects another root than 0. A load
//!   that is under way may still write word 24, and deletes add to word 17: nobody believes them of
//!   a dropped entry, and creation writes them anew, when all of that is over (C3).
//! - **C7.** Word 17 is a count, and decides nothing but when somebody looks. It is the table's and
//!   not the tree's, as deletes go on by a tree that a compaction is about to replace, or just has:
//!   who compacts takes off what was counted before he looked at the leaves, and no more. A leaf
//!   and its count may lie on two nodes, so the count may come first: of each operation that is
//!   under way then, one leaf at the most is taken off and not seen.

use farleaf_types::{RemoteAddr, SequenceNumber, TableId, WordAddr, crc32c};

use crate::RegionError;
use crate::layout::RegionLayout;
use crate::part::{PART_SIZE_WORDS, PartRecord};

/// Tables that a pool can have.
pub const TABLE_COUNT_MAX: u64 = 256;
/// Blocks of an entry.
pub const ENTRY_SIZE_BLOCKS: u64 = 4;
/// Words of an entry.
pub const ENTRY_SIZE_WORDS: usize = 32;
/// Longest name, in bytes.
pub const NAME_SIZE_BYTES_MAX: usize = NAME_SIZE_WORDS * 8;

const NAME_SIZE_WORDS: usize = 8;
const NAME_WORD: usize = 4;
const CHECKSUM_WORD: usize = 12;
const DROPPED_WORD: u64 = 13;
const ROOT_WORD: u64 = 16;
const UNDERFULL_COUNT_WORD: u64 = 17;
const PART_WORD: usize = 18;
const PENDING_ROOT_WORD: u64 = 24;
const INLINE_VALUE_WORD: usize = 22;
/// The table id, words 1 to 11, the part's, and that of the kind.
const CHECKED_SIZE_WORDS: usize = CHECKSUM_WORD + PART_SIZE_WORDS + 1;

const _: () = assert!(PART_WORD as u64 > UNDERFULL_COUNT_WORD);
const _: () = assert!(PART_WORD + PART_SIZE_WORDS == INLINE_VALUE_WORD);
const _: () = assert!((INLINE_VALUE_WORD as u64) < PENDING_ROOT_WORD);
const _: () = assert!(NAME_WORD + NAME_SIZE_WORDS == CHECKSUM_WORD);
const _: () = assert!(ENTRY_SIZE_WORDS as u64 == ENTRY_SIZE_BLOCKS * 8);

/// What state an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// No table.
    Free,
    /// A table.
    Live,
    /// A table that was dropped and whose memory may still be read.
    Dropped,
}

/// What a table's keys and values are, and so what its leaves look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// Words of 64 bits, in leaves of so many slots.
    Words {
        /// Slots per leaf.
        slots: u8,
    },
    /// Byte strings, in pages.
    Bytes {
        /// Blocks per page.
        page_size_blocks: u8,
        /// Largest value that lies in a page, in bytes.
        inline_value_size_bytes: u16,
    },
}

const KIND_WORDS: u64 = 0;
const KIND_BYTES: u64 = 1;
/// In a chunk's block, added to the blocks of a page.
const PAGE_SHAPE: u8 = 128;

impl TableKind {
    /// How the block of a chunk with leaves of such a table names their shape.
    pub const fn leaf_shape(self) -> u8 {
        match self {
            Self::Words { slots } => slots,
            Self::Bytes {
                page_size_blocks, ..
            } => PAGE_SHAPE | page_size_blocks,
        }
    }

    /// Slots per leaf, if it has leaves of words.
    pub const fn slots(self) -> Option<u8> {
        match self {
            Self::Words { slots } => Some(slots),
            Self::Bytes { .. } => None,
        }
    }

    /// What words 1 and 22 say of it.
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

    /// The kind that words 1 and 22 name; `None`: a later version's.
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

/// What never changes in a table's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableRecord {
    /// Its number.
    pub id: TableId,
    /// Its name, 1 to 64 bytes.
    pub name: String,
    /// What its keys and values are.
    pub kind: TableKind,
    /// Which search layer clients use, as `farleaf-index` numbers them.
    pub search_layer: u8,
    /// How full a bulk load makes leaves, in percent.
    pub fill_percent: u8,
    /// Error bound of the models, in thousandths of a key.
    pub epsilon_milli: u32,
    /// The first leaf that the table ever had.
    pub first_leaf: RemoteAddr,
    /// Which part of a table over several pools it is; `None`: it is a table by itself.
    pub part: Option<PartRecord>,
}

/// A catalog entry that is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogEntry {
    /// Its place.
    pub index: u64,
    /// Live or dropped.
    pub state: EntryState,
    /// The table.
    pub record: TableRecord,
    /// When it was dropped.
    pub dropped_at: SequenceNumber,
    /// The search layer's snapshot.
    pub root: RemoteAddr,
    /// Of a table with a tree, leaves that deletes have made underfull since a compaction looked at
    /// them, and those that two neighbours in one would still have saved then (C7).
    pub underfull_count: u64,
    /// The root that a bulk load is about to install.
    pub pending_root: RemoteAddr,
}

/// Word 0 of a live table.
pub fn live_word(id: TableId) -> u64 {
    1 << 56 | u64::from(id.0)
}

/// Word 0 of a dropped table.
pub fn dropped_word(id: TableId) -> u64 {
    2 << 56 | u64::from(id.0)
}

/// The word of an entry that says when it was dropped.
pub fn dropped_at_addr(layout: &RegionLayout, index: u64) -> WordAddr {
    layout.catalog_entry(index).offset(DROPPED_WORD)
}

/// The word of an entry that names the root.
pub fn root_addr(layout: &RegionLayout, index: u64) -> WordAddr {
    layout.catalog_entry(index).offset(ROOT_WORD)
}

/// The word of an entry that counts underfull leaves (C7).
pub fn underfull_count_addr(layout: &RegionLayout, index: u64) -> WordAddr {
    layout.catalog_entry(index).offset(UNDERFULL_COUNT_WORD)
}

/// The word of an entry that names the root to come.
pub fn pending_root_addr(layout: &RegionLayout, index: u64) -> WordAddr {
    layout.catalog_entry(index).offset(PENDING_ROOT_WORD)
}

impl TableRecord {
    /// Words 1 to 31 of the entry of a new table.
    pub fn encode_body(&self, root: RemoteAddr) -> [u64; ENTRY_SIZE_WORDS - 1] {
        assert!(
            (1..=NAME_SIZE_BYTES_MAX).contains(&self.name.len()),
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
    /// Reads an entry; `None` when it is free.
    ///
    /// # Errors
    /// [`RegionError::CatalogDamaged`]; or it was read while it was being written, so that whoever
    /// does not hold the catalog lock reads again before believing it.
    pub fn decode(index: u64, words: &[u64]) -> Result<Option<Self>, RegionError> {
        let damaged = RegionError::CatalogDamaged { index };
        let id = TableId(words[0] as u32);
        let state = match words[0] >> 56 {
            0 => return Ok(None),
            1 => EntryState::Live,
            2 => EntryState::Dropped,
            _ => return Err(damaged),
        };
        let name_size = words[3] as usize;
        if words[CHECKSUM_WORD] != checksum(words, id) || name_size > NAME_SIZE_BYTES_MAX {
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
    use farleaf_types::NodeId;

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
    fn c5_a_live_entry_without_root_was_read_while_it_was_written() {
        let mut words = entry_words();
        words[ROOT_WORD as usize] = 0;
        let torn = CatalogEntry::decode(3, &words);
        assert!(
            matches!(torn, Err(RegionError::CatalogDamaged { index: 3 })),
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

    /// Promise: which part of what a table is comes back as it was written, at its place.
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

    /// Promise: a table of bytes comes back with its pages' size and its values' limit, at their
    /// places; a kind that this version does not know is not guessed at.
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
                    matches!(damaged, Err(RegionError::CatalogDamaged { index: 3 }))
                        || (word == 0 && bit == 63 && damaged.is_err()),
                    "word {word}, bit {bit}: {damaged:?}"
                );
            }
        }
    }
}
