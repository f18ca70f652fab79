//! L0: the newest writes, in memory, in the order of their keys (VL4).

use std::borrow::Borrow;
use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::ops::Bound;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering as Memory};

use crossbeam_skiplist::SkipMap;
use crossbeam_skiplist::map;
use smallvec::SmallVec;

use crate::error::LsmError;
use crate::head::KnownKey;
use crate::place::LogPosition;
use crate::tree::{Entry, EntrySource, key_hash};
use crate::version::LogPin;

/// What an entry takes, a short key in it: the tower, the head, the place.
const ENTRY_SIZE_BYTES: usize = 112;
/// A key of so many bytes lies in the entry; of a longer one the entry has the first 16.
const SHORT_KEY_SIZE_BYTES: usize = 24;

/// A skip list of (key, place in the log), put or delete.
///
/// All versions of a key are there, each with its place; so a reader that is bound to a place sees
/// what was written before it, whatever comes later. Whoever reads waits for nobody.
pub struct Memtable {
    /// Of equal keys the newest first.
    entries: SkipMap<Version, Value>,
    /// The log is read again from there for what is in here.
    start: LogPosition,
    /// When it is frozen: where it ends, and the log that it leads to.
    end: OnceLock<(LogPosition, LogPin)>,
    size_bytes: AtomicUsize,
    entry_count: AtomicUsize,
}

/// A version of a key.
#[derive(Debug, PartialEq, Eq)]
struct Version {
    head: Head,
    key: SmallVec<[u8; SHORT_KEY_SIZE_BYTES]>,
    position: LogPosition,
}

/// The first 16 bytes of a key, zeros behind its end: of two keys with other heads the one with the
/// lesser head is the lesser one. So most entries that a search passes are told by two words in
/// the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Head(u64, u64);

impl Head {
    fn of(key: &[u8]) -> Self {
        let mut words = [0; 16];
        let size_bytes = key.len().min(16);
        words[..size_bytes].copy_from_slice(&key[..size_bytes]);
        let both = u128::from_be_bytes(words);
        Self((both >> 64) as u64, both as u64)
    }
}

#[derive(Clone, Copy, Debug)]
struct Value {
    is_delete: bool,
    record_size_bytes: u64,
}

/// What is looked for: a version whose key is somewhere else.
trait Place {
    fn place(&self) -> (Head, &[u8], Reverse<LogPosition>);
}

/// That.
struct Sought<'k> {
    head: Head,
    key: &'k [u8],
    position: LogPosition,
}

impl<'k> Sought<'k> {
    fn new(key: &'k [u8], position: LogPosition) -> Self {
        Self {
            head: Head::of(key),
            key,
            position,
        }
    }
}

impl Place for Version {
    fn place(&self) -> (Head, &[u8], Reverse<LogPosition>) {
        (self.head, &self.key, Reverse(self.position))
    }
}

impl Place for Sought<'_> {
    fn place(&self) -> (Head, &[u8], Reverse<LogPosition>) {
        (self.head, self.key, Reverse(self.position))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'p> Borrow<dyn Place + 'p> for Version {
    fn borrow(&self) -> &(dyn Place + 'p) {
        self
    }
}

impl Ord for dyn Place + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}

impl PartialOrd for dyn Place + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Place + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for dyn Place + '_ {}

/// What a memtable answers to a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where the record is.
    pub position: LogPosition,
    /// It deletes the key.
    pub is_delete: bool,
}

impl fmt::Debug for Memtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "L0 from {} on, {} entries",
            self.start,
            self.entry_count()
        )
    }
}

impl Memtable {
    /// An empty one for what is written from a place in the log on.
    pub fn new(start: LogPosition) -> Self {
        Self {
            entries: SkipMap::new(),
            start,
            end: OnceLock::new(),
            size_bytes: AtomicUsize::new(0),
            entry_count: AtomicUsize::new(0),
        }
    }

    /// Takes in a put or a delete.
    pub fn insert(
        &self,
        key: &[u8],
        (position, record_size_bytes): (LogPosition, u64),
        is_delete: bool,
    ) {
        let version = Version {
            head: Head::of(key),
            key: key.into(),
            position,
        };
        let value = Value {
            is_delete,
            record_size_bytes,
        };
        self.entries.insert(version, value);
        let size_bytes = ENTRY_SIZE_BYTES + if is_short(key) { 0 } else { key.len() };
        self.size_bytes.fetch_add(size_bytes, Memory::Relaxed);
        self.entry_count.fetch_add(1, Memory::Relaxed);
    }

    /// The newest version of a key of those that were written before a place.
    pub fn get(&self, key: &[u8], bound: LogPosition) -> Option<Found> {
        let entry = self.newest(key, bound)?;
        (entry.key().key[..] == *key).then(|| Found {
            position: entry.key().position,
            is_delete: entry.value().is_delete,
        })
    }

    /// The newest version of a key before a place; if there is none, what comes behind it.
    fn newest(&self, key: &[u8], bound: LogPosition) -> Option<Slot<'_>> {
        let newest = LogPosition(bound.0.checked_sub(1)?);
        let place: &dyn Place = &Sought::new(key, newest);
        self.entries.lower_bound(Bound::Included(place))
    }

    /// Bytes that it takes, about.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes.load(Memory::Relaxed)
    }

    /// Versions in it, all of each key.
    pub fn entry_count(&self) -> usize {
        self.entry_count.load(Memory::Relaxed)
    }

    /// The place in the log from which on it has everything.
    pub const fn start(&self) -> LogPosition {
        self.start
    }

    /// Nothing is written into it any more: it has everything up to a place, and keeps the log that
    /// it leads to.
    pub fn freeze(&self, end: LogPosition, pin: LogPin) {
        let is_first = self.end.set((end, pin)).is_ok();
        assert!(is_first, "a memtable is frozen once");
    }

    /// Where it ends, if it is frozen.
    pub fn end(&self) -> Option<LogPosition> {
        self.end.get().map(|(end, _)| *end)
    }
}

fn is_short(key: &[u8]) -> bool {
    key.len() <= SHORT_KEY_SIZE_BYTES
}

type Slot<'m> = map::Entry<'m, Version, Value>;

/// Goes through the keys of a memtable as of a place in the log, each with its newest version,
/// ascending or descending. At first it is nowhere. A step is a search or two, so many versions of
/// a key cost no more than that; forward it is none where a key has one version, and that is in
/// sight.
pub struct MemtableCursor<'m> {
    memtable: &'m Memtable,
    bound: LogPosition,
    current: Option<Slot<'m>>,
    hash: u64,
}

impl fmt::Debug for MemtableCursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:?} of {:?}", self.entry(), self.memtable)
    }
}

impl<'m> MemtableCursor<'m> {
    /// Of what was written before a place in the log.
    pub const fn new(memtable: &'m Memtable, bound: LogPosition) -> Self {
        Self {
            memtable,
            bound,
            current: None,
            hash: 0,
        }
    }

    /// Goes to the first key.
    pub fn seek_first(&mut self) {
        self.settle_from(self.memtable.entries.front());
    }

    /// Goes to the last key.
    pub fn seek_last(&mut self) {
        self.settle_back_from(self.memtable.entries.back());
    }

    /// Goes to the first key that is not less than this one.
    pub fn seek(&mut self, key: &[u8]) {
        let place: &dyn Place = &Sought::new(key, LogPosition::MAX);
        let slot = self.memtable.entries.lower_bound(Bound::Included(place));
        self.settle_from(slot);
    }

    /// Goes to the last key that is not greater than this one.
    pub fn seek_back(&mut self, key: &[u8]) {
        let place: &dyn Place = &Sought::new(key, LogPosition(0));
        let slot = self.memtable.entries.upper_bound(Bound::Included(place));
        self.settle_back_from(slot);
    }

    /// The entry that it is on.
    pub fn entry(&self) -> Option<Entry<'_>> {
        let slot = self.current.as_ref()?;
        Some(Entry {
            key: KnownKey::whole(&slot.key().key),
            hash: self.hash,
            position: slot.key().position,
            is_delete: slot.value().is_delete,
        })
    }

    /// Size of the record of the entry that it is on.
    pub fn record_size_bytes(&self) -> u64 {
        let slot = self.current.as_ref();
        slot.map_or(0, |slot| slot.value().record_size_bytes)
    }

    /// Goes to the next key.
    pub fn advance(&mut self) {
        if let Some(slot) = self.current.take() {
            self.settle_from(self.behind(&slot));
        }
    }

    /// Goes to the key before.
    pub fn retreat(&mut self) {
        if let Some(slot) = self.current.take() {
            self.settle_back_from(self.before(&slot));
        }
    }

    /// The first version of the next key. No search, if no other version comes between.
    fn behind(&self, slot: &Slot<'m>) -> Option<Slot<'m>> {
        let next = slot.next()?;
        if next.key().key != slot.key().key {
            return Some(next);
        }
        let place: &dyn Place = &Sought::new(&slot.key().key, LogPosition(0));
        self.memtable.entries.lower_bound(Bound::Excluded(place))
    }

    /// The last version of the key before.
    fn before(&self, slot: &Slot<'m>) -> Option<Slot<'m>> {
        let place: &dyn Place = &Sought::new(&slot.key().key, LogPosition::MAX);
        self.memtable.entries.upper_bound(Bound::Excluded(place))
    }

    /// Goes to the version of the slot's key that is in sight, or to the next key that has one.
    fn settle_from(&mut self, mut slot: Option<Slot<'m>>) {
        while let Some(first) = slot {
            if self.settle_on_first(&first) || self.settle(&first) {
                return;
            }
            slot = self.behind(&first);
        }
        self.current = None;
    }

    fn settle_back_from(&mut self, mut slot: Option<Slot<'m>>) {
        while let Some(last) = slot {
            if self.settle(&last) {
                return;
            }
            slot = self.before(&last);
        }
        self.current = None;
    }

    /// The first version of a key is the newest one: if it is in sight, it is that.
    fn settle_on_first(&mut self, first: &Slot<'m>) -> bool {
        let is_in_sight = first.key().position < self.bound;
        if is_in_sight {
            self.hash = key_hash(&first.key().key);
            self.current = Some(first.clone());
        }
        is_in_sight
    }

    /// Goes to the version of a slot's key that is in sight, if there is one.
    fn settle(&mut self, any: &Slot<'m>) -> bool {
        let key = &any.key().key;
        let newest = self.memtable.newest(key, self.bound);
        self.current = newest.filter(|it| it.key().key == *key);
        if self.current.is_some() {
            self.hash = key_hash(key);
        }
        self.current.is_some()
    }
}

/// What a flush takes: ascending.
impl EntrySource for MemtableCursor<'_> {
    fn entry(&self) -> Option<Entry<'_>> {
        MemtableCursor::entry(self)
    }

    fn record_size_bytes(&self) -> u64 {
        MemtableCursor::record_size_bytes(self)
    }

    fn advance(&mut self) -> Result<(), LsmError> {
        MemtableCursor::advance(self);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::tree::random_numbers;

    /// Short keys, keys that end by zeros, and keys that differ behind the head, or where they are
    /// too long to lie in the entry.
    fn key_of(number: u64) -> Vec<u8> {
        let size_bytes = number as usize % 3 + 1;
        let mut key = format!("{:03}", number % 300).into_bytes()[..size_bytes].to_vec();
        match number >> 8 & 7 {
            0 => key.resize(size_bytes + 1 + number as usize % 20, 0),
            1 => drop(key.splice(..0, *b"sixteen in front")),
            2 => drop(key.splice(..0, [9; 30])),
            _ => {}
        }
        key
    }

    type Model = BTreeMap<Vec<u8>, (LogPosition, bool)>;

    /// 3,000 versions of a few hundred keys, and how it was when half of them were there.
    fn filled() -> (Memtable, LogPosition, [Model; 2]) {
        let memtable = Memtable::new(LogPosition(0));
        let mut models = [Model::new(), Model::new()];
        let half = LogPosition(1_500 * 10);
        for (index, number) in random_numbers(1).take(3_000).enumerate() {
            let position = LogPosition(index as u64 * 10);
            let (key, is_delete) = (key_of(number), number >> 20 & 3 == 3);
            memtable.insert(&key, (position, number >> 50), is_delete);
            if position < half {
                models[0].insert(key.clone(), (position, is_delete));
            }
            models[1].insert(key, (position, is_delete));
        }
        (memtable, half, models)
    }

    fn at(cursor: &MemtableCursor<'_>) -> Option<(Vec<u8>, (LogPosition, bool))> {
        let entry = cursor.entry()?;
        assert!(!entry.key.goes_on);
        assert_eq!(entry.hash, key_hash(entry.key.bytes));
        let key = entry.key.bytes.to_vec();
        Some((key, (entry.position, entry.is_delete)))
    }

    fn cloned(
        pair: Option<(&Vec<u8>, &(LogPosition, bool))>,
    ) -> Option<(Vec<u8>, (LogPosition, bool))> {
        pair.map(|(key, value)| (key.clone(), *value))
    }

    /// Promise: at any place in the log it is what a map was then: gets, walks in both directions,
    /// and seeks of keys that are there or not.
    #[test]
    fn it_is_what_a_map_was() {
        let (memtable, half, models) = filled();
        for (bound, model) in [half, LogPosition::MAX].into_iter().zip(&models) {
            let mut cursor = MemtableCursor::new(&memtable, bound);
            cursor.seek_first();
            for (key, value) in model {
                assert_eq!(at(&cursor), Some((key.clone(), *value)));
                cursor.advance();
            }
            assert_eq!(at(&cursor), None);
            cursor.seek_last();
            for (key, value) in model.iter().rev() {
                assert_eq!(at(&cursor), Some((key.clone(), *value)));
                cursor.retreat();
            }
            assert_eq!(at(&cursor), None);
            for number in (0..2_000).chain(random_numbers(2).take(2_000)) {
                let mut key = key_of(number);
                if number % 5 == 0 {
                    key.pop();
                }
                let found = memtable.get(&key, bound);
                let found = found.map(|it| (it.position, it.is_delete));
                assert_eq!(found, model.get(&key).copied(), "{key:?}");
                cursor.seek(&key);
                assert_eq!(at(&cursor), cloned(model.range(key.clone()..).next()));
                cursor.seek_back(&key);
                assert_eq!(at(&cursor), cloned(model.range(..=key).next_back()));
            }
        }
        assert_eq!(memtable.get(b"1", LogPosition(0)), None);
    }

    /// Promise: versions are counted, and their bytes with what they take beside the keys.
    #[test]
    fn sizes_are_counted() {
        let memtable = Memtable::new(LogPosition(0));
        for index in 0..10 {
            memtable.insert(b"key", (LogPosition(index), 5), false);
        }
        assert_eq!(memtable.entry_count(), 10);
        assert_eq!(memtable.size_bytes(), 10 * ENTRY_SIZE_BYTES);
        memtable.insert(&[b'z'; 25], (LogPosition(10), 5), false);
        assert_eq!(memtable.size_bytes(), 11 * ENTRY_SIZE_BYTES + 25);
        let mut cursor = MemtableCursor::new(&memtable, LogPosition::MAX);
        cursor.seek_first();
        assert_eq!(cursor.record_size_bytes(), 5);
        assert_eq!(cursor.entry().map(|it| it.position), Some(LogPosition(9)));
    }
}
