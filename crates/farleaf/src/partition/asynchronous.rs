//! Operations of a table over several pools, as futures.

use std::iter;
use std::rc::Rc;

use farleaf_executor::together;
use farleaf_fabric::Cost;
use farleaf_index::load::LoadSummary;
use farleaf_index::operation::HintCounters;

use super::session::Sessions;
use super::{PartitionError, PartitionedInfo};
use crate::table::{Insertion, Swap, Table, Update};
use crate::{AsyncTable, Error, ErrorKind, LoadError, PartialCounts};

/// Operations of a table over several pools, as futures. An operation on a key is the same
/// operation on the key's part, with its cost and guarantees ([`AsyncTable`]). If it fails, the
/// error names the part ([`PartitionError::Part`]).
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

/// Keys of a `multi_get` that belong to one part, and the positions of their values.
#[derive(Clone, Default)]
struct PartKeys {
    keys: Vec<u64>,
    places: Vec<usize>,
}

impl AsyncPartitionedTable {
    pub(super) fn new(sessions: Rc<Sessions>, info: PartitionedInfo, parts: Vec<Table>) -> Self {
        let opened = Rc::new(Opened { info, parts });
        Self { sessions, opened }
    }

    /// Returns the properties that are known without reading the table.
    pub fn info(&self) -> &PartitionedInfo {
        &self.opened.info
    }

    /// Returns the parts in key order, each a table of its pool.
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

    /// Ends an operation of a part: records its cost as the last one, and adds the part to its
    /// error.
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

    /// Returns the value of a key; see [`AsyncTable::get`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::get`].
    #[inline]
    pub async fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        let number = self.part_of(key);
        let found = self.part(number).get(key).await;
        self.ended(number, found)
    }

    /// Returns the values of many keys, in the order of the keys. Costs an
    /// [`AsyncTable::multi_get`] in each part that has some of them, all parts at once.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get); an error of one part fails the whole operation.
    pub async fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
        let mut values = Vec::new();
        self.multi_get_into(keys, &mut values).await?;
        Ok(values)
    }

    /// Reads the values of many keys like [`multi_get`](Self::multi_get) into a vector, which is
    /// cleared first.
    ///
    /// # Errors
    /// The same as those of [`multi_get`](Self::multi_get).
    pub async fn multi_get_into(
        &self,
        keys: &[u64],
        values: &mut Vec<Option<u64>>,
    ) -> Result<(), Error> {
        values.clear();
        let mut shares = vec![PartKeys::default(); self.opened.parts.len()];
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
                // Cleared because a `None` of the failed part would look like an absent key.
                values.clear();
                Err(self.in_part(number, error))
            }
        }
    }

    /// Writes a key and returns its previous value; see [`AsyncTable::put`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::put`].
    pub async fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        let number = self.part_of(key);
        let previous = self.part(number).put(key, value).await;
        self.ended(number, previous)
    }

    /// Writes a key if it is absent; see [`AsyncTable::insert`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::insert`].
    pub async fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
        let number = self.part_of(key);
        let inserted = self.part(number).insert(key, value).await;
        self.ended(number, inserted)
    }

    /// Writes a key if it is present; see [`AsyncTable::update`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::update`].
    pub async fn update(&self, key: u64, value: u64) -> Result<Update, Error> {
        let number = self.part_of(key);
        let updated = self.part(number).update(key, value).await;
        self.ended(number, updated)
    }

    /// Removes a key and returns its value; see [`AsyncTable::delete`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::delete`].
    pub async fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
        let number = self.part_of(key);
        let previous = self.part(number).delete(key).await;
        self.ended(number, previous)
    }

    /// Replaces a key's value if it is the expected one; see [`AsyncTable::compare_and_swap`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::compare_and_swap`].
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

    /// Replaces the contents of `records` by the first `limit` records from `from` on, ascending,
    /// one part after the other. Costs an [`AsyncTable::scan_into`] for each part that it reaches.
    /// The result is not a snapshot (LEAF-9).
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
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

    /// Estimates the number of records as the sum over all parts, which it samples concurrently.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
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

    /// Returns the sum of [`AsyncTable::hint_counters`] over the parts.
    pub fn hint_counters(&self) -> HintCounters {
        let mut sum = HintCounters::default();
        for part in &self.opened.parts {
            sum += part.hint_counters();
        }
        sum
    }

    /// Returns the bytes that this session holds to find leaves of all parts.
    pub fn metadata_bytes(&self) -> u64 {
        self.opened.parts.iter().map(Table::metadata_bytes).sum()
    }

    /// Returns the sum of [`AsyncTable::partial_counts`] over the parts.
    pub fn partial_counts(&self) -> Option<PartialCounts> {
        let mut sum = PartialCounts::default();
        for part in &self.opened.parts {
            sum += part.partial_counts()?;
        }
        Some(sum)
    }

    /// Loads an empty table from a sequence that ascends by key; each record goes to the part of
    /// its key. The parts are loaded in order, and the records of *each* part appear at once or not
    /// at all ([`AsyncTable::bulk_load`]). If part N fails, the parts before it are loaded, those
    /// behind it are unchanged, and the error is [`PartitionError::PartlyLoaded`]. Calls `progress`
    /// with the number of records of all parts together.
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::bulk_load`]. A part that has records is found before any
    /// record is loaded.
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

    /// Checks that no part has records.
    async fn check_empty(&self) -> Result<(), Error> {
        let parts = self.opened.parts.iter();
        let checks = parts.map(|part| async {
            let mut records = Vec::new();
            let first = part.asynchronous().scan_into(0, 1, &mut records).await;
            first.map(|()| records.is_empty())
        });
        for (number, is_empty) in together(checks).await.into_iter().enumerate() {
            if !self.ended(number, is_empty)? {
                let error = ErrorKind::Load(LoadError::TableNotEmpty);
                return Err(self.in_part(number, error.into()));
            }
        }
        Ok(())
    }
}

/// Removes records beyond a part's range. They can be written to a part alone
/// ([`open_part`](crate::AsyncSession::open_part)) and do not belong to the table.
fn keep_up_to(high: u64, records: &mut Vec<(u64, u64)>) {
    if records.last().is_some_and(|(key, _)| *key > high) {
        records.truncate(records.partition_point(|(key, _)| *key <= high));
    }
}
