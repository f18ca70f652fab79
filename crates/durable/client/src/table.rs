//! Operations on a persistent table as blocking calls.

use std::fmt;
use std::sync::Arc;

use farleaf_base::limits::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};
use farleaf_cluster::ids::{TableId, TableIncarnation};
use farleaf_cluster::record::TableRecord;
use farleaf_net::secret::Scope;

use crate::cluster::{Cluster, KeyLocation};
use crate::error::ClientError;
use crate::protocol::scope::TableScope;
use crate::protocol::{Condition, DeleteRange, Exchange};
use crate::region_operations::{ExchangeResult, Get, Write};
use crate::scan::Records;

/// Key with its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Key of the record.
    pub key: Vec<u8>,
    /// Value of the record.
    pub value: Vec<u8>,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When all replicas of its region have it in memory. The write is lost only if all of them
    /// fail at once.
    Memory,
    /// When it is also on the disks of all replicas.
    Sync,
}

/// Result of an insert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The key was absent and has the value now.
    Inserted,
    /// The key was present, with this value, which is unchanged.
    AlreadyPresent(Vec<u8>),
}

/// Result of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The value was as expected and has been replaced.
    Swapped,
    /// The value was this one; nothing has changed.
    Differs(Option<Vec<u8>>),
}

/// Most keys, and most bytes of records, that one request reads or writes.
const REQUEST_COUNT: usize = 4096;
const REQUEST_SIZE_BYTES: usize = 1 << 20;

/// Ordered map from byte strings to byte strings on the disks of several servers. Keys have 0 to
/// 4,096 bytes and sort as unsigned bytes; values have 0 to 64 MiB.
///
/// Can be used by any number of threads; clones are the same table. Each get, put, delete and
/// exchange is linearizable. A write of several records is acknowledged as a whole but not atomic:
/// after an error some records may be written and others not. A scan is not a snapshot: it sees
/// each record at some moment during the scan.
///
/// While a key's region has no primary, an operation waits up to the
/// [`patience`](crate::ClientOptions::patience). If a connection fails before a write's reply, the
/// result is [`OutcomeUnknown`](ClientError::OutcomeUnknown). The client does not retry it, because
/// that might undo another client's write.
#[derive(Clone)]
pub struct PersistentTable {
    cluster: Cluster,
    name: Arc<str>,
    id: TableId,
    /// Incarnation of the table, so that the handle never refers to a later table of the same
    /// number.
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

    /// Returns the incarnation, which tells the table apart from others that have the same number.
    pub fn incarnation(&self) -> TableIncarnation {
        self.incarnation
    }

    /// Returns the scope of keys that are limited to this table, and to its keys that begin with
    /// `prefix`, for [`Secret::limited_text`](farleaf_net::secret::Secret::limited_text); `None` if
    /// the prefix is longer than [`KEY_PREFIX_SIZE_BYTES_MAX`](crate::KEY_PREFIX_SIZE_BYTES_MAX).
    pub fn key_scope(&self, prefix: &[u8]) -> Option<Scope> {
        let scope = TableScope {
            table: self.id,
            incarnation: self.incarnation,
            prefix: prefix.to_vec(),
        };
        scope.encode()
    }

    /// Returns the same table with another durability of its writes. The default is
    /// [`Memory`](Durability::Memory) with several replicas, and [`Sync`](Durability::Sync) with
    /// one.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Returns the table's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the table's number.
    pub fn id(&self) -> TableId {
        self.id
    }

    /// Returns the number of replicas of each region.
    pub fn replica_count(&self) -> usize {
        self.replica_count
    }

    /// Returns when a write is acknowledged.
    pub fn durability(&self) -> Durability {
        self.durability
    }

    pub(crate) fn ask<A: crate::cluster::RegionOperation>(
        &self,
        place: KeyLocation<'_>,
        ask: &mut A,
    ) -> Result<A::Answer, ClientError> {
        self.cluster.ask(self, place, ask)
    }

    /// Returns a key's value. Costs one round trip.
    ///
    /// # Errors
    /// Any [`ClientError`]; nothing has changed.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        check_key(key)?;
        let mut ask = Get { keys: &[key] };
        let values = self.ask(KeyLocation::At(key), &mut ask)?;
        Ok(values.into_iter().next().flatten())
    }

    /// Returns the values of keys, which may be in any order. Costs one round trip for each region
    /// that has some of them; large values take more.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
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
            let got = self.ask(KeyLocation::At(rest[0]), &mut Get { keys: rest })?;
            for value in got {
                values[order[done_count]] = value;
                done_count += 1;
            }
        }
        Ok(values)
    }

    /// Writes a key. Costs one round trip, and one from the primary to its backups.
    ///
    /// Does not return whether the key was present, which would cost a read;
    /// [`replace`](Self::replace) does.
    ///
    /// # Errors
    /// Any [`ClientError`]; the write may have taken effect if the [outcome is
    /// unknown](ClientError::is_outcome_unknown).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), ClientError> {
        check(key, value)?;
        let records = [(key, Some(value))];
        self.ask(KeyLocation::At(key), &mut Write { records: &records })
            .map(drop)
    }

    /// Writes keys, in this order if a key occurs twice. Costs one round trip for each region that
    /// has some of them, and for each 4,096 of them or MiB.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put); some of the records may have been written.
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
        // Sorted stably, so that a key's last value stays its last.
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
            let written = self.ask(KeyLocation::At(first), &mut Write { records: part });
            let written = written.map_err(|error| error.behind(done_count))?;
            done_count += written as u64;
            records = &records[written..];
        }
        Ok(())
    }

    /// Writes a key and returns its previous value. Costs one round trip.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        check(key, value)?;
        let exchanged = self.exchange(key, Condition::Any, Some(value), true)?;
        Ok(exchanged.previous)
    }

    /// Writes a key if it is absent. Costs one round trip.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<Insertion, ClientError> {
        check(key, value)?;
        let exchanged = self.exchange(key, Condition::Absent, Some(value), true)?;
        Ok(match exchanged.previous {
            Some(previous) if !exchanged.is_done => Insertion::AlreadyPresent(previous),
            _ => Insertion::Inserted,
        })
    }

    /// Writes a key if it is present, and returns whether it was. Costs one round trip.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, ClientError> {
        check(key, value)?;
        let exchanged = self.exchange(key, Condition::Present, Some(value), false)?;
        Ok(exchanged.is_done)
    }

    /// Removes a key, and returns whether it was present. Costs one round trip.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn delete(&self, key: &[u8]) -> Result<bool, ClientError> {
        check_key(key)?;
        let exchanged = self.exchange(key, Condition::Present, None, false)?;
        Ok(exchanged.is_done)
    }

    /// Removes a key, and returns its value. Costs one round trip.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn take(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ClientError> {
        check_key(key)?;
        let exchanged = self.exchange(key, Condition::Present, None, true)?;
        Ok(exchanged.previous)
    }

    /// Replaces a key's value (`None`: absent) if it is the expected one. Costs one round trip.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put).
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swap, ClientError> {
        check(key, new.unwrap_or_default())?;
        check_size("value", expected.unwrap_or_default(), VALUE_SIZE_BYTES_MAX)?;
        let condition = expected.map_or(Condition::Absent, Condition::Equals);
        let exchanged = self.exchange(key, condition, new, true)?;
        Ok(if exchanged.is_done {
            Swap::Swapped
        } else {
            Swap::Differs(exchanged.previous)
        })
    }

    fn exchange(
        &self,
        key: &[u8],
        condition: Condition<'_>,
        new: Option<&[u8]>,
        returns_previous: bool,
    ) -> Result<ExchangeResult, ClientError> {
        let mut ask = Exchange {
            key,
            condition,
            new,
            returns_previous,
        };
        self.ask(KeyLocation::At(key), &mut ask)
    }

    /// Removes the keys from `start`, inclusive, to `end`, exclusive, or to the last key, and
    /// returns their number. Costs a round trip for each region, and for each 4,096 keys.
    ///
    /// # Errors
    /// The same as those of [`put`](Self::put); some keys may have been removed.
    pub fn delete_range(&self, start: &[u8], end: Option<&[u8]>) -> Result<u64, ClientError> {
        let mut from = Some(start.to_vec());
        let mut count = 0;
        while let Some(lower) = from.filter(|from| end.is_none_or(|end| from.as_slice() < end)) {
            let mut ask = DeleteRange {
                lower: &lower,
                upper: end,
                count_max: REQUEST_COUNT as u32,
            };
            let deleted = self.ask(KeyLocation::At(&lower), &mut ask);
            let (deleted, next) = deleted.map_err(|error| error.behind(count))?;
            count += u64::from(deleted);
            from = next;
        }
        Ok(count)
    }

    /// Returns at most `limit` records from `start`, inclusive, to `end`, exclusive, or to the last
    /// record. Costs a round trip for each region, and for each 4 MiB of records.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, ClientError> {
        self.range(start, end).at_most(limit).take(limit).collect()
    }

    /// Returns the last records of the range, descending.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub fn scan_reverse(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, ClientError> {
        let records = self.range_reverse(start, end).at_most(limit);
        records.take(limit).collect()
    }

    /// Returns an iterator over the records from `start`, inclusive, to `end`, exclusive, or to the
    /// last record, ascending. It reads ahead on demand and is not a snapshot.
    pub fn range(&self, start: &[u8], end: Option<&[u8]>) -> Records {
        Records::new(self.clone(), start, end, false)
    }

    /// Returns an iterator over the records of a range, descending.
    pub fn range_reverse(&self, start: &[u8], end: Option<&[u8]>) -> Records {
        Records::new(self.clone(), start, end, true)
    }

    /// Returns an iterator over the records whose keys have a prefix.
    pub fn prefix(&self, prefix: &[u8]) -> Records {
        let end = end_of_prefix(prefix);
        self.range(prefix, end.as_deref())
    }

    /// Removes all keys with a prefix, and returns their number.
    ///
    /// # Errors
    /// The same as those of [`delete_range`](Self::delete_range).
    pub fn delete_prefix(&self, prefix: &[u8]) -> Result<u64, ClientError> {
        self.delete_range(prefix, end_of_prefix(prefix).as_deref())
    }
}

/// Returns the number of records that go into one request.
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

/// Returns the first key behind all keys with a prefix; `None` if there is no such key.
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

    /// Promise: the range of a prefix ends behind the last key that has it, and before the next
    /// key.
    #[test]
    fn prefixes_end() {
        assert_eq!(end_of_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(end_of_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(end_of_prefix(b"\xff"), None);
        assert_eq!(end_of_prefix(b""), None);
    }

    /// Promise: a request has at least one record, and no more than fit.
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
