//! Keys in L0: two words that distinguish most of them; the rest is stored with the log position.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering as Memory};

use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};

use super::arena::Arena;
use super::node::SlotKey;
use crate::place::LogPosition;
use crate::prefetch::Span;

/// Number of bytes of a key in its head.
const HEAD_SIZE_BYTES: usize = 16;
const WORD_SIZE_BYTES: usize = 8;
/// Number of words of an entry before those of the key: its log position, and `Meta`.
const PLACE_WORD_COUNT: usize = 2;

const KEY_SIZE_BITS: u32 = 13;
const _: () = assert!(KEY_SIZE_BYTES_MAX < 1 << KEY_SIZE_BITS);
const _: () = assert!((VALUE_SIZE_BYTES_MAX as u64) < 1 << 40);

/// First 16 bytes of a key, padded with zeros. If two keys have different heads, the order of the
/// heads is the order of the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head(pub(super) u64, pub(super) u64);

impl Head {
    pub(super) fn of(key: &[u8]) -> Self {
        Self(word(key, 0), word(key, 1))
    }
}

/// Returns a word of a key, padded with zeros.
fn word(key: &[u8], index: usize) -> u64 {
    let rest = key.get(index * WORD_SIZE_BYTES..).unwrap_or(&[]);
    let mut bytes = [0; WORD_SIZE_BYTES];
    match rest.first_chunk() {
        Some(whole) => bytes = *whole,
        None => bytes[..rest.len()].copy_from_slice(rest),
    }
    u64::from_be_bytes(bytes)
}

/// Returns the number of words of a key behind its head.
const fn rest_word_count(key_size_bytes: usize) -> usize {
    key_size_bytes
        .saturating_sub(HEAD_SIZE_BYTES)
        .div_ceil(WORD_SIZE_BYTES)
}

/// Properties of a version, apart from its log position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) key_size_bytes: usize,
    pub(super) is_delete: bool,
    pub(super) record_size_bytes: u64,
}

impl Meta {
    fn word(self) -> u64 {
        let flag = u64::from(self.is_delete) << KEY_SIZE_BITS;
        self.record_size_bytes << (KEY_SIZE_BITS + 1) | flag | self.key_size_bytes as u64
    }

    fn of(word: u64) -> Self {
        Self {
            key_size_bytes: (word & ((1 << KEY_SIZE_BITS) - 1)) as usize,
            is_delete: word >> KEY_SIZE_BITS & 1 == 1,
            record_size_bytes: word >> (KEY_SIZE_BITS + 1),
        }
    }
}

/// Search position in the order of all versions: behind the versions of the key written at `limit`
/// or later, and before its other versions. (The newest version is first.)
#[derive(Clone, Copy, Debug)]
pub(super) struct SearchPosition<'k> {
    pub(super) head: Head,
    pub(super) key: &'k [u8],
    pub(super) limit: u64,
}

impl<'k> SearchPosition<'k> {
    /// Creates the search position before the versions of a key that were written before a log
    /// position.
    pub(super) fn new(key: &'k [u8], bound: LogPosition) -> Self {
        Self {
            head: Head::of(key),
            key,
            limit: bound.0,
        }
    }

    /// Creates the search position before all versions of a key.
    pub(super) fn before(key: &'k [u8]) -> Self {
        Self::new(key, LogPosition::MAX)
    }

    /// Creates the search position behind all versions of a key.
    pub(super) fn behind(key: &'k [u8]) -> Self {
        Self::new(key, LogPosition(0))
    }
}

/// Storage of entries, except their heads.
pub(super) type Words = Arena<AtomicU64, 10>;

impl Words {
    /// Writes an entry at the first free number; returns its number, and the next free one.
    pub(super) fn write(
        &self,
        from: u32,
        key: &[u8],
        position: LogPosition,
        meta: Meta,
    ) -> (u32, u32) {
        let rest_count = rest_word_count(key.len());
        let count = PLACE_WORD_COUNT + rest_count;
        let entry = self.allocate(from, count);
        let words = self.some(entry, count);
        // Readers that see the order that names the entry also see these stores.
        words[0].store(position.0, Memory::Relaxed);
        words[1].store(meta.word(), Memory::Relaxed);
        for (index, to) in words[PLACE_WORD_COUNT..].iter().enumerate() {
            to.store(word(key, 2 + index), Memory::Relaxed);
        }
        let next = entry.checked_add(count as u32);
        (entry, next.expect("an L0 is smaller than that"))
    }

    pub(super) fn place(&self, entry: u32) -> (LogPosition, Meta) {
        let words = self.some(entry, PLACE_WORD_COUNT);
        let [position, meta] = [0, 1].map(|index| words[index].load(Memory::Relaxed));
        (LogPosition(position), Meta::of(meta))
    }

    /// Returns the memory range of an entry, as far as it is known without reading the entry.
    pub(super) fn span(&self, entry: u32) -> Span {
        Span::of(self.some(entry, PLACE_WORD_COUNT))
    }

    fn rest(&self, entry: u32, key_size_bytes: usize) -> impl Iterator<Item = u64> {
        let count = rest_word_count(key_size_bytes);
        let words = self.some(entry, PLACE_WORD_COUNT + count);
        let rest = words[PLACE_WORD_COUNT..].iter();
        rest.map(|word| word.load(Memory::Relaxed))
    }

    /// Returns true if a version is before a search position.
    pub(super) fn is_before(&self, key: SlotKey, search: &SearchPosition<'_>) -> bool {
        match key.head.cmp(&search.head) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => {
                let (position, meta) = self.place(key.entry);
                match self.compare_rest(key.entry, meta, search.key) {
                    Ordering::Equal => position.0 >= search.limit,
                    differs => differs == Ordering::Less,
                }
            }
        }
    }

    /// Returns true if a version belongs to the searched key.
    pub(super) fn is_of(&self, key: SlotKey, search: &SearchPosition<'_>) -> bool {
        key.head == search.head && {
            let (_, meta) = self.place(key.entry);
            self.compare_rest(key.entry, meta, search.key) == Ordering::Equal
        }
    }

    /// Compares an entry's key with another key that has the same head.
    fn compare_rest(&self, entry: u32, meta: Meta, key: &[u8]) -> Ordering {
        let size_bytes = meta.key_size_bytes;
        if size_bytes.max(key.len()) > HEAD_SIZE_BYTES {
            let mut own = self.rest(entry, size_bytes);
            let count = rest_word_count(size_bytes.max(key.len()));
            for index in 0..count {
                // Both are padded with zeros.
                let own = own.next().unwrap_or(0);
                match own.cmp(&word(key, 2 + index)) {
                    Ordering::Equal => {}
                    differs => return differs,
                }
            }
        }
        // If keys differ only by zeros at the end, the shorter one is less.
        size_bytes.cmp(&key.len())
    }

    /// Copies a version's key into a buffer, replacing its contents.
    pub(super) fn read_key(&self, key: SlotKey, size_bytes: usize, to: &mut Vec<u8>) {
        to.clear();
        to.extend_from_slice(&key.head.0.to_be_bytes());
        to.extend_from_slice(&key.head.1.to_be_bytes());
        for word in self.rest(key.entry, size_bytes) {
            to.extend_from_slice(&word.to_be_bytes());
        }
        to.truncate(size_bytes);
    }
}
