//! Keys in L0: two words that tell most of them apart, and the rest beside the place in the log
//! (MT1).

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering as Memory};

use super::arena::Arena;
use super::node::Key;
use crate::place::{KEY_SIZE_BYTES_MAX, LogPosition, VALUE_SIZE_BYTES_MAX};
use crate::prefetch::Span;

/// What a head has of a key.
const HEAD_SIZE_BYTES: usize = 16;
const WORD_SIZE_BYTES: usize = 8;
/// An entry's words before those of the key: its place, and `Meta`.
const PLACE_WORD_COUNT: usize = 2;

const KEY_SIZE_BITS: u32 = 13;
const _: () = assert!(KEY_SIZE_BYTES_MAX < 1 << KEY_SIZE_BITS);
const _: () = assert!((VALUE_SIZE_BYTES_MAX as u64) < 1 << 40);

/// The first 16 bytes of a key, zeros behind its end: of two keys with other heads the one with the
/// lesser head is the lesser one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head(pub(super) u64, pub(super) u64);

impl Head {
    pub(super) fn of(key: &[u8]) -> Self {
        Self(word(key, 0), word(key, 1))
    }
}

/// A word of a key, zeros behind its end.
fn word(key: &[u8], index: usize) -> u64 {
    let rest = key.get(index * WORD_SIZE_BYTES..).unwrap_or(&[]);
    let mut bytes = [0; WORD_SIZE_BYTES];
    match rest.first_chunk() {
        Some(whole) => bytes = *whole,
        None => bytes[..rest.len()].copy_from_slice(rest),
    }
    u64::from_be_bytes(bytes)
}

/// Words of a key behind the head.
const fn rest_word_count(key_size_bytes: usize) -> usize {
    key_size_bytes
        .saturating_sub(HEAD_SIZE_BYTES)
        .div_ceil(WORD_SIZE_BYTES)
}

/// What is said of a version besides its place.
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

/// A place in the order of all versions: behind those of the key that were written at `limit` or
/// later, and before all others of the key. (The newest comes first.)
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought<'k> {
    pub(super) head: Head,
    pub(super) key: &'k [u8],
    pub(super) limit: u64,
}

impl<'k> Sought<'k> {
    /// Before the versions of a key that were written before a place in the log.
    pub(super) fn new(key: &'k [u8], bound: LogPosition) -> Self {
        Self {
            head: Head::of(key),
            key,
            limit: bound.0,
        }
    }

    /// Before all versions of a key.
    pub(super) fn before(key: &'k [u8]) -> Self {
        Self::new(key, LogPosition::MAX)
    }

    /// Behind all versions of a key.
    pub(super) fn behind(key: &'k [u8]) -> Self {
        Self::new(key, LogPosition(0))
    }
}

/// What entries have but for their heads.
pub(super) type Words = Arena<AtomicU64, 10>;

impl Words {
    /// Writes an entry, from the first number on that is not given out; says which it has, and
    /// which is the next.
    pub(super) fn write(
        &self,
        from: u32,
        key: &[u8],
        (position, meta): (LogPosition, Meta),
    ) -> (u32, u32) {
        let rest_count = rest_word_count(key.len());
        let count = PLACE_WORD_COUNT + rest_count;
        let entry = self.make_room(from, count);
        let words = self.some(entry, count);
        // Seen by whoever sees the order that names it.
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

    /// Where an entry is, as far as that is known without looking at it.
    pub(super) fn span(&self, entry: u32) -> Span {
        Span::of(self.some(entry, PLACE_WORD_COUNT))
    }

    fn rest(&self, entry: u32, key_size_bytes: usize) -> impl Iterator<Item = u64> {
        let count = rest_word_count(key_size_bytes);
        let words = self.some(entry, PLACE_WORD_COUNT + count);
        let rest = words[PLACE_WORD_COUNT..].iter();
        rest.map(|word| word.load(Memory::Relaxed))
    }

    /// Whether a version is before a place.
    pub(super) fn is_before(&self, key: Key, sought: &Sought<'_>) -> bool {
        match key.head.cmp(&sought.head) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => {
                let (position, meta) = self.place(key.entry);
                match self.compare_rest(key.entry, meta, sought.key) {
                    Ordering::Equal => position.0 >= sought.limit,
                    differs => differs == Ordering::Less,
                }
            }
        }
    }

    /// Whether a version is of this key.
    pub(super) fn is_of(&self, key: Key, sought: &Sought<'_>) -> bool {
        key.head == sought.head && {
            let (_, meta) = self.place(key.entry);
            self.compare_rest(key.entry, meta, sought.key) == Ordering::Equal
        }
    }

    /// An entry's key beside another one with the same head.
    fn compare_rest(&self, entry: u32, meta: Meta, key: &[u8]) -> Ordering {
        let size_bytes = meta.key_size_bytes;
        if size_bytes.max(key.len()) > HEAD_SIZE_BYTES {
            let mut own = self.rest(entry, size_bytes);
            let count = rest_word_count(size_bytes.max(key.len()));
            for index in 0..count {
                // Zeros are behind the end of each.
                let own = own.next().unwrap_or(0);
                match own.cmp(&word(key, 2 + index)) {
                    Ordering::Equal => {}
                    differs => return differs,
                }
            }
        }
        // Of keys with the same bytes but for zeros at the end the shorter one is less.
        size_bytes.cmp(&key.len())
    }

    /// Puts a version's key into a buffer, in the place of what that had.
    pub(super) fn read_key(&self, key: Key, size_bytes: usize, to: &mut Vec<u8>) {
        to.clear();
        to.extend_from_slice(&key.head.0.to_be_bytes());
        to.extend_from_slice(&key.head.1.to_be_bytes());
        for word in self.rest(key.entry, size_bytes) {
            to.extend_from_slice(&word.to_be_bytes());
        }
        to.truncate(size_bytes);
    }
}
