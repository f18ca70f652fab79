//! Records of one table of byte strings in the node's own memory.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Bound;
use std::sync::{Arc, RwLock};

use farleaf_base::locks::{read, write};
use farleaf_index::rpc::Failure;
use farleaf_index::rpc::bytes::{ByteRange, ByteReply, Packing};

use super::memory_limit::{MemoryLimit, MemoryShare};

/// Approximate bytes of the node's memory per record, without its key and value: an entry of a node
/// of the tree, half of which may be unused (48), the header of the value (48), and headers and
/// padding of three heap blocks. Measured with a million records: 123 to 162 bytes, most for the
/// shortest records.
pub(super) const RECORD_SIZE_BYTES: u64 = 160;

/// Number of keys looked up under one lock.
const KEYS_PER_LOCK: usize = 64;

/// Value, and the share of the memory limit that its record takes. It never changes: a thread that
/// holds it reads it whole, even if the key is changed or removed.
#[derive(Debug)]
pub(super) struct StoredValue {
    bytes: Box<[u8]>,
    share: MemoryShare,
}

/// Records by key.
pub(super) type ByteRecords = BTreeMap<Box<[u8]>, Arc<StoredValue>>;

/// Value to be stored.
#[derive(Debug)]
pub(super) struct OfferedValue {
    /// Bytes of the value.
    pub(super) bytes: Box<[u8]>,
    /// Share of the memory limit that is already reserved for it.
    pub(super) share: MemoryShare,
}

/// Condition of a write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Condition<'a> {
    Always,
    IfAbsent,
    IfPresent,
    IfEqual(Option<&'a [u8]>),
}

/// Write to one key.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) key: &'a [u8],
    pub(super) condition: Condition<'a>,
    pub(super) value: Option<OfferedValue>,
    pub(super) wants_previous: bool,
    /// Space for the previous value in the reply, in bytes. A longer value is held until the rest
    /// of it has been read.
    pub(super) capacity_bytes: usize,
}

/// Result of a write.
#[derive(Debug)]
pub(super) struct Changed {
    pub(super) is_done: bool,
    pub(super) was_present: bool,
    pub(super) previous: Option<Arc<StoredValue>>,
}

/// Value that was found, and how many bytes of it go into the reply.
pub(super) type PackedValue = (Arc<StoredValue>, usize);

/// Records of a range.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) records: Vec<(Box<[u8]>, PackedValue)>,
    pub(super) is_end: bool,
}

/// All records of a table.
#[derive(Debug)]
pub(super) struct ByteTableRecords {
    records: RwLock<ByteRecords>,
    memory_limit: Arc<MemoryLimit>,
}

impl StoredValue {
    /// Returns the bytes of the value.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl OfferedValue {
    /// Creates a value for which nothing is reserved yet.
    pub(super) fn new(bytes: &[u8], memory_limit: &Arc<MemoryLimit>) -> Self {
        Self {
            bytes: bytes.into(),
            share: MemoryShare::new(memory_limit),
        }
    }

    /// Stores the value for a key of this size; `None` if the memory limit is reached.
    pub(super) fn stored(mut self, key_size_bytes: usize) -> Option<Arc<StoredValue>> {
        let size_bytes = record_size_bytes(key_size_bytes, self.bytes.len());
        let has_capacity = self.share.resize(size_bytes);
        has_capacity.then(|| Arc::new(self.into_stored()))
    }

    /// Stores the value in place of another one, and reuses the other's share if nothing else holds
    /// that value.
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
        let has_capacity = self.share.resize_with(&mut old.share, size_bytes);
        has_capacity.then(|| Arc::new(self.into_stored()))
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

    /// Returns whether the client knows the previous value if the condition holds.
    fn is_told(self) -> bool {
        matches!(self, Self::IfEqual(_))
    }
}

impl ByteTableRecords {
    /// Creates an empty table.
    pub(super) fn new(memory_limit: Arc<MemoryLimit>) -> Self {
        Self {
            records: RwLock::default(),
            memory_limit,
        }
    }

    /// Returns the memory limit that values count toward.
    pub(super) fn memory_limit(&self) -> &Arc<MemoryLimit> {
        &self.memory_limit
    }

    /// Finds the values of as many of the first keys as fit into a reply.
    pub(super) fn find(&self, keys: &[&[u8]], packing: &mut Packing) -> Vec<Option<PackedValue>> {
        let mut values = Vec::new();
        // In parts, so that writers do not wait for the whole lookup.
        for part in keys.chunks(KEYS_PER_LOCK) {
            let records = read(&self.records);
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

    /// Returns the first records of a range, as many as fit into a reply.
    pub(super) fn scan(&self, range: &ByteRange<'_>, packing: &mut Packing) -> Scanned {
        let mut scanned = Scanned {
            records: Vec::new(),
            is_end: false,
        };
        if range.end.is_some_and(|end| end <= range.start) {
            scanned.is_end = true;
            return scanned;
        }
        let records = read(&self.records);
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

    /// Returns the number of records.
    pub(super) fn count(&self) -> u64 {
        read(&self.records).len() as u64
    }

    /// Executes a write.
    pub(super) fn change(&self, change: Change<'_>) -> Result<Changed, Failure> {
        let Change {
            key,
            condition,
            value,
            wants_previous,
            capacity_bytes,
        } = change;
        // Declared before the lock, so that the previous value is freed after the lock is released.
        let mut previous = None;
        let was_present;
        let tells_previous = wants_previous && !condition.is_told();
        {
            let mut records = write(&self.records);
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
                    let is_held = tells_previous && size_bytes > capacity_bytes;
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

    /// Adds the records of a load, if the table is empty.
    pub(super) fn take_over(&self, loaded: ByteRecords) -> Result<u64, Failure> {
        let mut records = write(&self.records);
        if !records.is_empty() {
            return Err(Failure::NotEmpty);
        }
        *records = loaded;
        Ok(records.len() as u64)
    }
}

#[cfg(test)]
mod tests;
