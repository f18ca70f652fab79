//! The operations of a table over several pools, as futures.

use std::iter;
use std::rc::Rc;

use farleaf_fabric::Cost;
use farleaf_index::load::LoadSummary;
use farleaf_index::operation::HintCounters;

use super::session::Sessions;
use super::together::together;
use super::{PartitionError, PartitionedInfo};
use crate::table::{Insertion, Swap, Table, Update};
use crate::{AsyncTable, Error, ErrorKind, LoadError, PartialCounts};

/// The operations of a table over several pools, as futures. One on a key is the same operation of
/// the key's part, and costs and promises what that does ([`AsyncTable`]); if it fails, the error
/// names the part ([`PartitionError::Part`]).
#[derive(Clone, Debug)]
pub struct AsyncPartitionedTable {
    sessions: Rc<Sessions>,
    opened: Rc<Opened>,
}

#[derive(Debug)]
struct Opened {
    info: PartitionedInfo,
    parts: Vec<Table>,
}

/// Keys of a `multi_get` that one part has, and the places of their values.
#[derive(Clone, Default)]
struct Share {
    keys: Vec<u64>,
    places: Vec<usize>,
}

impl AsyncPartitionedTable {
    pub(super) fn new(sessions: Rc<Sessions>, info: PartitionedInfo, parts: Vec<Table>) -> Self {
        let opened = Rc::new(Opened { info, parts });
        Self { sessions, opened }
    }

    /// What there is to know of the table without looking into it.
    pub fn info(&self) -> &PartitionedInfo {
        &self.opened.info
    }

    /// The parts, in order: each the table of its pool.
    pub fn parts(&self) -> &[Table] {
        &self.opened.parts
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    #[inline]
    pub(super) fn part_of(&self, key: u64) -> usize {
        self.opened.info.bounds.part_of(key)
    }

    fn part(&self, number: usize) -> &AsyncTable {
        self.opened.parts[number].asynchronous()
    }

    /// An operation of this part has ended: its cost is the last, its failure names the part.
    #[inline]
    pub(super) fn ended<R>(&self, number: usize, result: Result<R, Error>) -> Result<R, Error> {
        self.sessions.last_cost.set(self.cost_of(number));
        result.map_err(|error| self.in_part(number, error))
    }

    fn cost_of(&self, number: usize) -> Cost {
        self.sessions.all[number].last_cost()
    }

    #[cold]
    pub(super) fn in_part(&self, number: usize, error: Error) -> Error {
        self.sessions.in_part(&self.opened.info.name, number, error)
    }

    /// The value of a key. See [`AsyncTable::get`].
    ///
    /// # Errors
    /// See [`AsyncTable::get`].
    #[inline]
    pub async fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        let number = self.part_of(key);
        let found = self.part(number).get(key).await;
        self.ended(number, found)
    }

    /// The values of many keys, in their order: what [`AsyncTable::multi_get`] costs in each part
    /// that has some of them, all parts at once.
    ///
    /// # Errors
    /// As for [`get`](Self::get); one part's is that of all.
    pub async fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
        let mut values = Vec::new();
        self.multi_get_into(keys, &mut values).await?;
        Ok(values)
    }

    /// [`multi_get`](Self::multi_get) into a vector that is cleared first.
    ///
    /// # Errors
    /// As for [`multi_get`](Self::multi_get).
    pub async fn multi_get_into(
        &self,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
    ) -> Result<(), Error> {
        values.clear();
        let mut shares = vec![Share::default(); self.opened.parts.len()];
        for (place, key) in keys.iter().enumerate() {
            let share = &mut shares[self.part_of(*key)];
            share.keys.push(*key);
            share.places.push(place);
        }
        let shares = shares.iter().enumerate();
        let shares = shares.filter(|(_, share)| !share.keys.is_empty());
        let gets = shares.map(|(number, share)| async move {
            let found = self.part(number).multi_get(&share.keys).await;
            (number, share, found, self.cost_of(number))
        });
        let mut cost = Cost::default();
        values.resize(keys.len(), None);
        let mut failed = None;
        for (number, share, found, part_cost) in together(gets).await {
            cost += part_cost;
            match found {
                Ok(found) => {
                    for (place, value) in share.places.iter().zip(found) {
                        values[*place] = value;
                    }
                }
                Err(error) => failed = failed.or(Some((number, error))),
            }
        }
        self.sessions.last_cost.set(cost);
        match failed {
            None => Ok(()),
            Some((number, error)) => {
                // What is `None` here is not absent.
                values.clear();
                Err(self.in_part(number, error))
            }
        }
    }

    /// See [`AsyncTable::put`].
    ///
    /// # Errors
    /// See [`AsyncTable::put`].
    pub async fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        let number = self.part_of(key);
        let previous = self.part(number).put(key, value).await;
        self.ended(number, previous)
    }

    /// See [`AsyncTable::insert`].
    ///
    /// # Errors
    /// See [`AsyncTable::insert`].
    pub async fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
        let number = self.part_of(key);
        let inserted = self.part(number).insert(key, value).await;
        self.ended(number, inserted)
    }

    /// See [`AsyncTable::update`].
    ///
    /// # Errors
    /// See [`AsyncTable::update`].
    pub async fn update(&self, key: u64, value: u64) -> Result<Update, Error> {
        let number = self.part_of(key);
        let updated = self.part(number).update(key, value).await;
        self.ended(number, updated)
    }

    /// See [`AsyncTable::delete`].
    ///
    /// # Errors
    /// See [`AsyncTable::delete`].
    pub async fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
        let number = self.part_of(key);
        let previous = self.part(number).delete(key).await;
        self.ended(number, previous)
    }

    /// See [`AsyncTable::compare_and_swap`].
    ///
    /// # Errors
    /// See [`AsyncTable::compare_and_swap`].
    pub async fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<Swap, Error> {
        let number = self.part_of(key);
        let swapped = self.part(number).compare_and_swap(key, expected, new).await;
        self.ended(number, swapped)
    }

    /// Replaces `records` by the first `limit` records from `from` on, ascending, over bounds, one
    /// part after the other. What [`AsyncTable::scan_into`] costs, for each part that it comes to.
    /// Not a snapshot (D9).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        let bounds = &self.opened.info.bounds;
        let first = bounds.part_of(from);
        let scanned = self.part(first).scan_into(from, limit, records).await;
        self.ended(first, scanned)?;
        keep_up_to(*bounds.range(first).end(), records);
        let mut cost = self.sessions.last_cost.get();
        let mut more = Vec::new();
        for number in first + 1..bounds.part_count() {
            let left = limit - records.len();
            if left == 0 {
                break;
            }
            let (low, high) = bounds.range(number).into_inner();
            let scanned = self.part(number).scan_into(low, left, &mut more).await;
            let scanned = self.ended(number, scanned);
            cost += self.cost_of(number);
            self.sessions.last_cost.set(cost);
            scanned?;
            keep_up_to(high, &mut more);
            records.append(&mut more);
        }
        Ok(())
    }

    /// About how many records the table has: the sum over its parts, all at once.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn len_estimate(&self) -> Result<u64, Error> {
        let parts = self.opened.parts.iter();
        let estimates = parts.map(|part| part.asynchronous().len_estimate());
        let estimates = together(estimates).await;
        let mut cost = Cost::default();
        (0..estimates.len()).for_each(|number| cost += self.cost_of(number));
        self.sessions.last_cost.set(cost);
        let mut sum = 0;
        for (number, estimate) in estimates.into_iter().enumerate() {
            sum += estimate.map_err(|error| self.in_part(number, error))?;
        }
        Ok(sum)
    }

    /// The sum of what [`AsyncTable::hint_counters`] tells of each part.
    pub fn hint_counters(&self) -> HintCounters {
        let mut sum = HintCounters::default();
        for part in &self.opened.parts {
            sum += part.hint_counters();
        }
        sum
    }

    /// Bytes that this session holds to find leaves of all parts.
    pub fn metadata_bytes(&self) -> u64 {
        self.opened.parts.iter().map(Table::metadata_bytes).sum()
    }

    /// The sum of what [`AsyncTable::partial_counts`] tells of each part.
    pub fn partial_counts(&self) -> Option<PartialCounts> {
        let mut sum = PartialCounts::default();
        for part in &self.opened.parts {
            sum += part.partial_counts()?;
        }
        Some(sum)
    }

    /// Fills an empty table from a sequence that ascends by key: each record goes to the part of
    /// its key. The parts are loaded one after the other, and *each* appears at once or not at all
    /// ([`AsyncTable::bulk_load`]); so if part N fails, those before it are loaded, those behind it
    /// are as they were, and the error says so ([`PartitionError::PartlyLoaded`]). `progress` is
    /// told of records of all parts together.
    ///
    /// # Errors
    /// As for [`AsyncTable::bulk_load`]. That a part has records is found before any is loaded.
    pub async fn bulk_load(
        &self,
        records: impl IntoIterator<Item = (u64, u64)>,
        mut progress: impl FnMut(u64),
    ) -> Result<LoadSummary, Error> {
        self.check_empty().await?;
        let bounds = &self.opened.info.bounds;
        let mut records = records.into_iter().peekable();
        let mut sum = LoadSummary::default();
        for number in 0..bounds.part_count() {
            let high = *bounds.range(number).end();
            let share = iter::from_fn(|| records.next_if(|(key, _)| *key <= high));
            let loaded_before = sum.record_count;
            let tell = |count| progress(loaded_before + count);
            match self.part(number).bulk_load(share, tell).await {
                Ok(part) => {
                    sum.record_count += part.record_count;
                    sum.leaf_count += part.leaf_count;
                    sum.model_count += part.model_count;
                }
                Err(error) if loaded_before == 0 => return Err(self.in_part(number, error)),
                Err(source) => {
                    return Err(PartitionError::PartlyLoaded {
                        name: self.opened.info.name.clone(),
                        number: number as u16,
                        pool: self.sessions.address(number).to_owned(),
                        loaded: loaded_before,
                        source,
                    }
                    .into());
                }
            }
        }
        Ok(sum)
    }

    /// No part has records.
    async fn check_empty(&self) -> Result<(), Error> {
        let parts = self.opened.parts.iter();
        let looks = parts.map(|part| async {
            let mut records = Vec::new();
            let looked = part.asynchronous().scan_into(0, 1, &mut records).await;
            looked.map(|()| records.is_empty())
        });
        for (number, is_empty) in together(looks).await.into_iter().enumerate() {
            if !self.ended(number, is_empty)? {
                let error = ErrorKind::Load(LoadError::TableNotEmpty);
                return Err(self.in_part(number, error.into()));
            }
        }
        Ok(())
    }
}

/// What was written to a part beyond its range ([`open_part`](crate::AsyncSession::open_part)) is
/// no record of the table.
fn keep_up_to(high: u64, records: &mut Vec<(u64, u64)>) {
    if records.last().is_some_and(|(key, _)| *key > high) {
        records.truncate(records.partition_point(|(key, _)| *key <= high));
    }
}
