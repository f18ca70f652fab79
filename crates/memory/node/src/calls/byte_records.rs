//! The records of one table of byte strings that the node holds (J7, J9).

use std::collections::BTreeMap;
use std::mem;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use farleaf_index::rpc::Failure;
use farleaf_index::rpc::bytes::{ByteRange, ByteReply, Packing};

use super::room::{Room, Share};

/// What a record takes of the node's memory beside its key and its value, about: an entry of a node
/// of the tree, of which half may be empty (48), what is kept of the value (48), and the heads and
/// ends of three blocks of the heap. Of a million records it was 123 to 162 bytes, most of the
/// shortest.
pub(super) const RECORD_SIZE_BYTES: u64 = 160;

/// Keys that are looked up under one lock.
const KEYS_PER_LOCK: usize = 64;

/// A value, and what its record has taken of the room. It never changes: whoever has a hold on it
/// reads it whole, whatever becomes of the key (J7).
#[derive(Debug)]
pub(super) struct StoredValue {
    bytes: Box<[u8]>,
    share: Share,
}

/// By key.
pub(super) type ByteRecords = BTreeMap<Box<[u8]>, Arc<StoredValue>>;

/// A value that is to be stored.
#[derive(Debug)]
pub(super) struct Offer {
    /// Its bytes.
    pub(super) bytes: Box<[u8]>,
    /// What was taken for it already.
    pub(super) share: Share,
}

/// When a key is changed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Condition<'a> {
    Always,
    IfAbsent,
    IfPresent,
    IfEqual(Option<&'a [u8]>),
}

/// A write to one key.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) key: &'a [u8],
    pub(super) condition: Condition<'a>,
    pub(super) value: Option<Offer>,
    pub(super) wants_previous: bool,
    /// What the reply may have: a longer value is held until the rest of it has been read.
    pub(super) room_bytes: usize,
}

/// What became of it.
#[derive(Debug)]
pub(super) struct Changed {
    pub(super) is_done: bool,
    pub(super) was_present: bool,
    pub(super) previous: Option<Arc<StoredValue>>,
}

/// Something that was found, and how much of its value goes into the reply.
pub(super) type Packed = (Arc<StoredValue>, usize);

/// Records of a range.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) records: Vec<(Box<[u8]>, Packed)>,
    pub(super) is_end: bool,
}

/// A table's records.
#[derive(Debug)]
pub(super) struct ByteTableRecords {
    records: RwLock<ByteRecords>,
    room: Arc<Room>,
}

impl StoredValue {
    /// The value.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Offer {
    /// A value that nothing was taken for yet.
    pub(super) fn new(bytes: &[u8], room: &Arc<Room>) -> Self {
        Self {
            bytes: bytes.into(),
            share: Share::new(room),
        }
    }

    /// Stores it as the value of a key of so many bytes; `None`: there is no room (J9).
    pub(super) fn stored(mut self, key_size_bytes: usize) -> Option<Arc<StoredValue>> {
        let size_bytes = record_size_bytes(key_size_bytes, self.bytes.len());
        let has_room = self.share.resize(size_bytes);
        has_room.then(|| Arc::new(self.into_stored()))
    }

    /// The same in the place of another value, whose share it may have if nobody needs that value
    /// any more.
    fn stored_for(
        mut self,
        old: &mut Arc<StoredValue>,
        key_size_bytes: usize,
        is_old_held: bool,
    ) -> Option<Arc<StoredValue>> {
        let Some(old) = Arc::get_mut(old).filter(|_| !is_old_held) else {
            return self.stored(key_size_bytes);
        };
        let size_bytes = record_size_bytes(key_size_bytes, self.bytes.len());
        let has_room = self.share.resize_with(&mut old.share, size_bytes);
        has_room.then(|| Arc::new(self.into_stored()))
    }

    fn into_stored(self) -> StoredValue {
        StoredValue {
            bytes: self.bytes,
            share: self.share,
        }
    }
}

fn record_size_bytes(key_size_bytes: usize, value_size_bytes: usize) -> u64 {
    (key_size_bytes + value_size_bytes) as u64 + RECORD_SIZE_BYTES
}

impl Condition<'_> {
    fn holds(self, found: Option<&[u8]>) -> bool {
        match self {
            Self::Always => true,
            Self::IfAbsent => found.is_none(),
            Self::IfPresent => found.is_some(),
            Self::IfEqual(expected) => found == expected,
        }
    }

    /// Whether who asks knows what was there, if it holds.
    fn is_told(self) -> bool {
        matches!(self, Self::IfEqual(_))
    }
}

impl ByteTableRecords {
    /// None yet.
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self {
            records: RwLock::default(),
            room,
        }
    }

    /// What values count against.
    pub(super) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// The values of as many of the first keys as there is room for in a reply.
    pub(super) fn find(&self, keys: &[&[u8]], packing: &mut Packing) -> Vec<Option<Packed>> {
        let mut values = Vec::new();
        // Part by part: who waits to change a record does not wait for all of them.
        for part in keys.chunks(KEYS_PER_LOCK) {
            let records = self.records();
            for key in part {
                let Some(value) = records.get(*key) else {
                    if !packing.take_absent() {
                        return values;
                    }
                    values.push(None);
                    continue;
                };
                let Some(here) = packing.take(None, value.bytes.len()) else {
                    return values;
                };
                values.push(Some((Arc::clone(value), here)));
            }
        }
        values
    }

    /// The first records of a range, as many as there is room for in a reply.
    pub(super) fn scan(&self, range: &ByteRange<'_>, packing: &mut Packing) -> Scanned {
        let mut scanned = Scanned {
            records: Vec::new(),
            is_end: false,
        };
        if range.end.is_some_and(|end| end <= range.start) {
            scanned.is_end = true;
            return scanned;
        }
        let records = self.records();
        let end = range.end.map_or(Bound::Unbounded, Bound::Excluded);
        let mut found = records.range::<[u8], _>((Bound::Included(range.start), end));
        loop {
            let next = if range.descends {
                found.next_back()
            } else {
                found.next()
            };
            let Some((key, value)) = next else {
                scanned.is_end = true;
                return scanned;
            };
            if scanned.records.len() == range.limit as usize {
                return scanned;
            }
            let size_bytes = if range.of_keys { 0 } else { value.bytes.len() };
            let Some(here) = packing.take(Some(key.len()), size_bytes) else {
                return scanned;
            };
            let value = (Arc::clone(value), here);
            scanned.records.push((key.clone(), value));
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.records().len() as u64
    }

    /// J7.
    pub(super) fn change(&self, change: Change<'_>) -> Result<Changed, Failure> {
        let Change {
            key,
            condition,
            value,
            wants_previous,
            room_bytes,
        } = change;
        // Declared before the lock: what goes is freed when others can go on.
        let mut previous = None;
        let was_present;
        let tells_previous = wants_previous && !condition.is_told();
        {
            let records = self.records.write();
            let mut records = records.unwrap_or_else(PoisonError::into_inner);
            let found = records.get_mut(key);
            was_present = found.is_some();
            if !condition.holds(found.as_deref().map(|found| found.bytes())) {
                let previous = found.filter(|_| wants_previous);
                return Ok(Changed {
                    is_done: false,
                    was_present,
                    previous: previous.map(|found| Arc::clone(found)),
                });
            }
            match (value, found) {
                (Some(value), Some(place)) => {
                    let size_bytes = ByteReply::size_bytes(None, place.bytes.len());
                    let is_held = tells_previous && size_bytes > room_bytes;
                    let value = value.stored_for(place, key.len(), is_held);
                    previous = Some(mem::replace(place, value.ok_or(Failure::Full)?));
                }
                (Some(value), None) => {
                    let value = value.stored(key.len()).ok_or(Failure::Full)?;
                    records.insert(key.into(), value);
                }
                (None, Some(_)) => previous = records.remove(key),
                (None, None) => {}
            }
        }
        Ok(Changed {
            is_done: true,
            was_present,
            previous: previous.filter(|_| tells_previous),
        })
    }

    /// What a load brought is the table's, if that is empty.
    pub(super) fn take_over(&self, loaded: ByteRecords) -> Result<u64, Failure> {
        let records = self.records.write();
        let mut records = records.unwrap_or_else(PoisonError::into_inner);
        if !records.is_empty() {
            return Err(Failure::NotEmpty);
        }
        *records = loaded;
        Ok(records.len() as u64)
    }

    fn records(&self) -> RwLockReadGuard<'_, ByteRecords> {
        self.records.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
