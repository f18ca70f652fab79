//! Operations on a persistent table as blocking calls.

use std::fmt;
use std::sync::Arc;

use farleaf_cluster::client::Route;
use farleaf_cluster::ids::{TableId, TableIncarnation};
use farleaf_cluster::record::TableRecord;

use crate::asks::{DeleteRange, Exchange, Exchanged, Get, ScanPart, Write};
use crate::cluster::{Cluster, Place};
use crate::error::ClientError;
use crate::protocol::{Condition, KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};
use crate::scan::Records;

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When all of its region's servers have it in memory: it is lost only if all of them are, at
    /// once.
    Memory,
    /// When it is on the disks of all of them, too.
    Sync,
}

/// What an insert found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The key was absent and has the value now.
    Inserted,
    /// The key was present, with this value, which it still has.
    AlreadyPresent(Vec<u8>),
}

/// What a compare-and-swap found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// What was expected; it has been replaced.
    Swapped,
    /// This; nothing has changed.
    Differs(Option<Vec<u8>>),
}

/// So many keys, or bytes of records, are asked for or written by one request.
const REQUEST_COUNT: usize = 4096;
const REQUEST_SIZE_BYTES: usize = 1 << 20;

/// An ordered map from byte strings to byte strings that lies on disks, and on several servers:
/// keys of 0 to 4,096 bytes, in the order of unsigned bytes, and values of 0 to 64 MiB.
///
/// Any number of threads may use it; clones are the same one. A get, a put, a delete, an exchange
/// is linearizable, each by itself. Writes of several records are acknowledged together, and are
/// not one: some may be there and others not, if there is an error. A scan is not a snapshot: it
/// sees each record as it is at some moment while the scan runs.
///
/// An operation waits, up to the [`patience`](crate::ClientOptions::patience), while its key has
/// no primary. A write whose connection fails before its answer is
/// [`OutcomeUnknown`](ClientError::OutcomeUnknown), and is not tried again: another client's write
/// might be undone by that.
#[derive(Clone)]
pub struct PersistentTable {
    cluster: Cluster,
    name: Arc<str>,
    id: TableId,
    /// Which creation of a table it is, so that it never is another one (ID4).
    incarnation: TableIncarnation,
    replica_count: usize,
    durability: Durability,
}

impl fmt::Debug for PersistentTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "persistent table '{}' ({}), {:?}",
            self.name, self.id, self.durability
        )
    }
}

impl PersistentTable {
    pub(crate) fn new(cluster: Cluster, record: &TableRecord) -> Result<Self, ClientError> {
        let name = &*record.name;
        let incarnation = record.incarnation.ok_or_else(|| ClientError::NotAdopted {
            name: name.to_owned(),
        })?;
        let replica_count = record.replica_count;
        let durability = if replica_count > 1 {
            Durability::Memory
        } else {
            Durability::Sync
        };
        Ok(Self {
            cluster,
            name: name.into(),
            id: record.table,
            incarnation,
            replica_count,
            durability,
        })
    }

    /// Which creation of a table it is (ID4).
    pub fn incarnation(&self) -> TableIncarnation {
        self.incarnation
    }

    /// The same table, whose writes are acknowledged at another moment. Without this, it is
    /// [`Memory`](Durability::Memory) where there are several replicas, and
    /// [`Sync`](Durability::Sync) where there is one.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    pub fn id(&self) -> TableId {
        self.id
    }

    /// How many servers have each record.
    pub fn replica_count(&self) -> usize {
        self.replica_count
    }

    /// When a write is acknowledged.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    pub(crate) fn ask<A: crate::cluster::Ask>(
        &self,
        place: Place<'_>,
        ask: &mut A,
    ) -> Result<A::Answer, ClientError> {
        self.cluster.ask(self, place, ask)
    }

    /// A key's value. One round trip.
    ///
    /// # Errors
    /// [`ClientError`]; nothing has changed.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        check_key(key)?;
        let mut ask = Get { keys: &[key] };
        let values = self.ask(Place::At(key), &mut ask)?;
        Ok(values.into_iter().next().flatten())
    }

    /// The values of keys. One round trip for each region that has some of them, if they are not
    /// large; keys may be in any order.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<Vec<u8>>>, ClientError> {
        let mut values = vec![None; keys.len()];
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|index| keys[*index].as_ref());
        let sorted: Vec<&[u8]> = order.iter().map(|index| keys[*index].as_ref()).collect();
        sorted.iter().try_for_each(|key| check_key(key))?;
        let mut done_count = 0;
        while done_count < sorted.len() {
            let rest = &sorted[done_count..sorted.len().min(done_count + REQUEST_COUNT)];
            let got = self.ask(Place::At(rest[0]), &mut Get { keys: rest })?;
            for value in got {
                values[order[done_count]] = value;
                done_count += 1;
            }
        }
        Ok(values)
    }

    /// Gives a key a value. One round trip, and one from its primary to the backups.
    ///
    /// It does not tell whether the key had one: that would take a read. [`replace`](Self::replace)
    /// does.
    ///
    /// # Errors
    /// [`ClientError`]; what is [unknown](ClientError::is_outcome_unknown) may be there.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        check(key, value)?;
        let records = [(key, Some(value))];
        self.ask(Place::At(key), &mut Write { records: &records })
            .map(drop)
    }

    /// Gives keys values, in this order where a key is there twice. One round trip for each region
    /// that some of them are in, and each 4,096 of them, or mebibyte.
    ///
    /// # Errors
    /// As of [`put`](Self::put): some may be there, and others not.
    pub fn multi_put<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        records: &[(K, V)],
    ) -> Result<(), ClientError> {
        let of = |(key, value): &'_ (K, V)| check(key.as_ref(), value.as_ref());
        records.iter().try_for_each(of)?;
        let mut sorted: Vec<(&[u8], Option<&[u8]>)> = Vec::with_capacity(records.len());
        for (key, value) in records {
            sorted.push((key.as_ref(), Some(value.as_ref())));
        }
        // Stable: the last one of a key is the last one still.
        sorted.sort_by_key(|(key, _)| *key);
        self.write_sorted(&sorted)
    }

    pub(crate) fn write_sorted(
        &self,
        mut records: &[(&[u8], Option<&[u8]>)],
    ) -> Result<(), ClientError> {
        let mut done_count = 0;
        while let Some((first, _)) = records.first() {
            let part = &records[..part_count(records)];
            let written = self.ask(Place::At(first), &mut Write { records: part });
            let written = written.map_err(|error| error.behind(done_count))?;
            done_count += written as u64;
            records = &records[written..];
        }
        Ok(())
    }

    /// Writes a key, and tells what it had. One round trip.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        check(key, value)?;
        let exchanged = self.exchange(key, (Condition::Any, Some(value)), true)?;
        Ok(exchanged.previous)
    }

    /// Writes a key if it is absent. One round trip.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insertion, ClientError> {
        check(key, value)?;
        let exchanged = self.exchange(key, (Condition::Absent, Some(value)), true)?;
        Ok(match exchanged.previous {
            Some(previous) if !exchanged.is_done => Insertion::AlreadyPresent(previous),
            _ => Insertion::Inserted,
        })
    }

    /// Writes a key if it is present; whether it was. One round trip.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, ClientError> {
        check(key, value)?;
        let exchanged = self.exchange(key, (Condition::Present, Some(value)), false)?;
        Ok(exchanged.is_done)
    }

    /// Removes a key; whether it was there. One round trip.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    pub fn delete(&self, key: &[u8]) -> Result<bool, ClientError> {
        check_key(key)?;
        let exchanged = self.exchange(key, (Condition::Present, None), false)?;
        Ok(exchanged.is_done)
    }

    /// Removes a key, and tells what it had. One round trip.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    pub fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        check_key(key)?;
        let exchanged = self.exchange(key, (Condition::Present, None), true)?;
        Ok(exchanged.previous)
    }

    /// Replaces a key's value, or that it is absent, if it is what is expected. One round trip.
    ///
    /// # Errors
    /// As of [`put`](Self::put).
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap, ClientError> {
        check(key, new.unwrap_or_default())?;
        check_size("value", expected.unwrap_or_default(), VALUE_SIZE_BYTES_MAX)?;
        let condition = expected.map_or(Condition::Absent, Condition::Equals);
        let exchanged = self.exchange(key, (condition, new), true)?;
        Ok(if exchanged.is_done {
            Swap::Swapped
        } else {
            Swap::Differs(exchanged.previous)
        })
    }

    fn exchange(
        &self,
        key: &[u8],
        (condition, new): (Condition<'_>, Option<&[u8]>),
        returns_previous: bool,
    ) -> Result<Exchanged, ClientError> {
        let mut ask = Exchange {
            key,
            condition,
            new,
            returns_previous,
        };
        self.ask(Place::At(key), &mut ask)
    }

    /// Removes the keys from `start` on, inclusive, to `end`, exclusive, or to the last one; how
    /// many there were. A round trip for each region, and each 4,096 keys.
    ///
    /// # Errors
    /// As of [`put`](Self::put): some may be gone.
    pub fn delete_range(&self, start: &[u8], end: Option<&[u8]>) -> Result<u64, ClientError> {
        let mut from = Some(start.to_vec());
        let mut count = 0;
        while let Some(lower) = from.filter(|from| end.is_none_or(|end| from.as_slice() < end)) {
            let mut ask = DeleteRange {
                lower: &lower,
                upper: end,
                count_max: REQUEST_COUNT as u32,
            };
            let deleted = self.ask(Place::At(&lower), &mut ask);
            let (deleted, next) = deleted.map_err(|error| error.behind(count))?;
            count += u64::from(deleted);
            from = next;
        }
        Ok(count)
    }

    /// Records from `start` on, inclusive, to `end`, exclusive, or to the last one, so many at the
    /// most. A round trip for each region, and 4 MiB of records.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, ClientError> {
        self.range(start, end).at_most(limit).take(limit).collect()
    }

    /// The same records from the last one on.
    ///
    /// # Errors
    /// As of [`get`](Self::get).
    pub fn scan_reverse(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, ClientError> {
        let records = self.range_reverse(start, end).at_most(limit);
        records.take(limit).collect()
    }

    /// The records from `start` on, inclusive, to `end`, exclusive, or to the last one, ascending,
    /// read ahead as they are asked for. Not a snapshot.
    pub fn range(&self, start: &[u8], end: Option<&[u8]>) -> Records {
        Records::new(self.clone(), (start, end), false)
    }

    /// The records of a range, descending.
    pub fn range_reverse(&self, start: &[u8], end: Option<&[u8]>) -> Records {
        Records::new(self.clone(), (start, end), true)
    }

    /// The records whose keys begin with a string.
    pub fn prefix(&self, prefix: &[u8]) -> Records {
        let end = end_of_prefix(prefix);
        self.range(prefix, end.as_deref())
    }

    /// Removes all keys that begin with a string; how many there were.
    ///
    /// # Errors
    /// As of [`delete_range`](Self::delete_range).
    pub fn delete_prefix(&self, prefix: &[u8]) -> Result<u64, ClientError> {
        self.delete_range(prefix, end_of_prefix(prefix).as_deref())
    }

    pub(crate) fn scan_part(
        &self,
        place: Place<'_>,
        part: &mut ScanPart<'_>,
    ) -> Result<(Vec<Record>, bool, Route), ClientError> {
        self.ask(place, part)
    }
}

/// How many records go into one request.
fn part_count(records: &[(&[u8], Option<&[u8]>)]) -> usize {
    let mut size_bytes = 0;
    let fitting = records.iter().take(REQUEST_COUNT).take_while(|it| {
        let (key, value) = it;
        let is_first = size_bytes == 0;
        size_bytes += key.len() + value.map_or(0, <[u8]>::len) + 8;
        is_first || size_bytes <= REQUEST_SIZE_BYTES
    });
    fitting.count()
}

/// The first key behind all that begin with a string; none: there is none.
fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let place = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=place].to_vec();
    end[place] += 1;
    Some(end)
}

fn check_key(key: &[u8]) -> Result<(), ClientError> {
    check_size("key", key, KEY_SIZE_BYTES_MAX)
}

fn check(key: &[u8], value: &[u8]) -> Result<(), ClientError> {
    check_key(key)?;
    check_size("value", value, VALUE_SIZE_BYTES_MAX)
}

fn check_size(what: &'static str, bytes: &[u8], size_bytes_max: usize) -> Result<(), ClientError> {
    if bytes.len() <= size_bytes_max {
        return Ok(());
    }
    Err(ClientError::TooLong {
        what,
        size_bytes: bytes.len(),
        size_bytes_max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a prefix's range ends behind the last key that begins with it, and before the next.
    #[test]
    fn prefixes_end() {
        assert_eq!(end_of_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(end_of_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(end_of_prefix(b"\xff"), None);
        assert_eq!(end_of_prefix(b""), None);
    }

    /// Promise: a request has one record at least, and no more than fit.
    #[test]
    fn requests_have_their_size() {
        let large = vec![0; REQUEST_SIZE_BYTES + 1];
        let record = (&b"k"[..], Some(&large[..]));
        assert_eq!(part_count(&[record, record]), 1);
        let half = vec![0; REQUEST_SIZE_BYTES / 3];
        let record = (&b"k"[..], Some(&half[..]));
        assert_eq!(part_count(&[record; 5]), 2);
        let small = (&b"k"[..], None);
        assert_eq!(part_count(&vec![small; 5000]), REQUEST_COUNT);
    }
}
