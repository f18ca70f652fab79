//! The operations of a table over several pools, as blocking calls.

use std::ops::RangeBounds;

use farleaf_index::load::LoadSummary;
use farleaf_index::operation::HintCounters;

use super::{AsyncPartitionedTable, PartitionedInfo, PartitionedScan};
use crate::table::{Insertion, Swap, Table, Update};
use crate::{Error, PartialCounts, TableStats};

/// An ordered map from u64 keys to u64 values over several pools, each of which has the keys of a
/// range: a session in each of them, and one handle.
#[derive(Clone, Debug)]
pub struct PartitionedTable(AsyncPartitionedTable);

impl PartitionedTable {
    pub(super) fn new(table: AsyncPartitionedTable) -> Self {
        Self(table)
    }

    /// The same operations as futures.
    pub fn asynchronous(&self) -> &AsyncPartitionedTable {
        &self.0
    }

    /// What there is to know of the table without looking into it.
    pub fn info(&self) -> &PartitionedInfo {
        self.0.info()
    }

    /// The parts, in order: each the table of its pool.
    pub fn parts(&self) -> &[Table] {
        self.0.parts()
    }

    /// An operation on a key, by the table that has it: waits for that pool alone.
    #[inline]
    fn by_part<R>(
        &self,
        key: u64,
        operation: impl FnOnce(&Table) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let number = self.0.part_of(key);
        let result = operation(&self.0.parts()[number]);
        self.0.ended(number, result)
    }

    /// See [`AsyncPartitionedTable::get`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::get`].
    #[inline]
    pub fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        self.by_part(key, |part| part.get(key))
    }

    /// See [`AsyncPartitionedTable::multi_get`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::multi_get`].
    pub fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
        self.0.sessions().drive(self.0.multi_get(keys))
    }

    /// See [`AsyncPartitionedTable::multi_get_into`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::multi_get_into`].
    pub fn multi_get_into(&self, keys: &[u64], values: &mut Vec<Option<u64>>) -> Result<(), Error> {
        self.0.sessions().drive(self.0.multi_get_into(keys, values))
    }

    /// See [`AsyncPartitionedTable::put`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::put`].
    pub fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        self.by_part(key, |part| part.put(key, value))
    }

    /// See [`AsyncPartitionedTable::insert`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::insert`].
    pub fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
        self.by_part(key, |part| part.insert(key, value))
    }

    /// See [`AsyncPartitionedTable::update`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::update`].
    pub fn update(&self, key: u64, value: u64) -> Result<Update, Error> {
        self.by_part(key, |part| part.update(key, value))
    }

    /// See [`AsyncPartitionedTable::delete`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::delete`].
    pub fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
        self.by_part(key, |part| part.delete(key))
    }

    /// See [`AsyncPartitionedTable::compare_and_swap`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::compare_and_swap`].
    pub fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<Swap, Error> {
        self.by_part(key, |part| part.compare_and_swap(key, expected, new))
    }

    /// See [`AsyncPartitionedTable::scan_into`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::scan_into`].
    pub fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        let scan = self.0.scan_into(from, limit, records);
        self.0.sessions().drive(scan)
    }

    /// The first `limit` records from `from` on, ascending, over bounds, read as they are asked
    /// for. Not a snapshot (D9).
    pub fn scan(&self, from: u64, limit: usize) -> PartitionedScan {
        PartitionedScan::new(self.0.clone(), from, u64::MAX, limit)
    }

    /// The records with keys in a range, ascending, over bounds, read as they are asked for. Not a
    /// snapshot (D9).
    pub fn range(&self, range: impl RangeBounds<u64>) -> PartitionedScan {
        PartitionedScan::of_range(self.0.clone(), &range)
    }

    /// See [`AsyncPartitionedTable::len_estimate`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::len_estimate`].
    pub fn len_estimate(&self) -> Result<u64, Error> {
        self.0.sessions().drive(self.0.len_estimate())
    }

    /// See [`AsyncPartitionedTable::bulk_load`].
    ///
    /// # Errors
    /// See [`AsyncPartitionedTable::bulk_load`].
    pub fn bulk_load(
        &self,
        records: impl IntoIterator<Item = (u64, u64)>,
        progress: impl FnMut(u64),
    ) -> Result<LoadSummary, Error> {
        let load = self.0.bulk_load(records, progress);
        self.0.sessions().drive(load)
    }

    /// What [`Table::stats`] tells of each part, in order.
    ///
    /// # Errors
    /// As for [`Table::stats`].
    pub fn stats(&self) -> Result<Vec<TableStats>, Error> {
        let parts = self.0.parts().iter().enumerate();
        let stats = parts.map(|(number, part)| self.0.ended(number, part.stats()));
        stats.collect()
    }

    /// Bytes of far memory that are the table's, in all pools.
    ///
    /// # Errors
    /// As for [`Table::memory_bytes`].
    pub fn memory_bytes(&self) -> Result<u64, Error> {
        let parts = self.0.parts().iter().enumerate();
        let sizes = parts.map(|(number, part)| self.0.ended(number, part.memory_bytes()));
        sizes.sum()
    }

    /// See [`AsyncPartitionedTable::hint_counters`].
    pub fn hint_counters(&self) -> HintCounters {
        self.0.hint_counters()
    }

    /// See [`AsyncPartitionedTable::metadata_bytes`].
    pub fn metadata_bytes(&self) -> u64 {
        self.0.metadata_bytes()
    }

    /// See [`AsyncPartitionedTable::partial_counts`].
    pub fn partial_counts(&self) -> Option<PartialCounts> {
        self.0.partial_counts()
    }
}
