//! Operations of a table over several pools, as blocking calls.

use std::ops::RangeBounds;

use farleaf_index::load::LoadSummary;
use farleaf_index::operation::HintCounters;

use super::{AsyncPartitionedTable, PartitionedInfo, PartitionedReverseScan, PartitionedScan};
use crate::table::{Insertion, Swap, Table, Update};
use crate::{Error, PartialCounts, TableStats};

/// Ordered map from u64 keys to u64 values over several pools, each of which has one key range. It
/// uses one session in each pool.
#[derive(Clone, Debug)]
pub struct PartitionedTable(AsyncPartitionedTable);

impl PartitionedTable {
    pub(super) fn new(table: AsyncPartitionedTable) -> Self {
        Self(table)
    }

    /// Returns the same operations as futures.
    pub fn asynchronous(&self) -> &AsyncPartitionedTable {
        &self.0
    }

    /// Returns the properties that are known without reading the table.
    pub fn info(&self) -> &PartitionedInfo {
        self.0.info()
    }

    /// Returns the parts in key order, each a table of its pool.
    pub fn parts(&self) -> &[Table] {
        self.0.parts()
    }

    /// Executes an operation on the key's part, waiting only for that pool.
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

    /// Returns the value of a key; see [`AsyncPartitionedTable::get`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::get`].
    #[inline]
    pub fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        self.by_part(key, |part| part.get(key))
    }

    /// Returns the values of many keys; see [`AsyncPartitionedTable::multi_get`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::multi_get`].
    pub fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
        self.0.sessions().drive(self.0.multi_get(keys))
    }

    /// Reads the values of many keys into a vector; see [`AsyncPartitionedTable::multi_get_into`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::multi_get_into`].
    pub fn multi_get_into(&self, keys: &[u64], values: &mut Vec<Option<u64>>) -> Result<(), Error> {
        self.0.sessions().drive(self.0.multi_get_into(keys, values))
    }

    /// Writes a key and returns its previous value; see [`AsyncPartitionedTable::put`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::put`].
    pub fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        self.by_part(key, |part| part.put(key, value))
    }

    /// Writes a key if it is absent; see [`AsyncPartitionedTable::insert`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::insert`].
    pub fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
        self.by_part(key, |part| part.insert(key, value))
    }

    /// Writes a key if it is present; see [`AsyncPartitionedTable::update`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::update`].
    pub fn update(&self, key: u64, value: u64) -> Result<Update, Error> {
        self.by_part(key, |part| part.update(key, value))
    }

    /// Removes a key and returns its value; see [`AsyncPartitionedTable::delete`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::delete`].
    pub fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
        self.by_part(key, |part| part.delete(key))
    }

    /// Replaces a key's value if it is the expected one; see
    /// [`AsyncPartitionedTable::compare_and_swap`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::compare_and_swap`].
    pub fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<Swap, Error> {
        self.by_part(key, |part| part.compare_and_swap(key, expected, new))
    }

    /// Reads records in key order into a vector; see [`AsyncPartitionedTable::scan_into`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::scan_into`].
    pub fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        let scan = self.0.scan_into(from, limit, records);
        self.0.sessions().drive(scan)
    }

    /// Returns an iterator over the first `limit` records from `from` on, ascending, across parts,
    /// which reads on demand and is not a snapshot (LEAF-9).
    pub fn scan(&self, from: u64, limit: usize) -> PartitionedScan {
        PartitionedScan::new(self.0.clone(), from, u64::MAX, limit)
    }

    /// Returns an iterator over the records of a key range, ascending, across parts, which reads on
    /// demand and is not a snapshot (LEAF-9).
    pub fn range(&self, range: impl RangeBounds<u64>) -> PartitionedScan {
        PartitionedScan::of_range(self.0.clone(), &range)
    }

    /// Returns an iterator over the first `limit` records from `from` down, inclusive, in
    /// descending order, across parts, which reads on demand and is not a snapshot (LEAF-9).
    pub fn scan_reverse(&self, from: u64, limit: usize) -> PartitionedReverseScan {
        PartitionedReverseScan::new(self.0.clone(), from, 0, limit)
    }

    /// Returns an iterator over the records of a key range in descending order, across parts, which
    /// reads on demand and is not a snapshot (LEAF-9).
    pub fn range_reverse(&self, range: impl RangeBounds<u64>) -> PartitionedReverseScan {
        PartitionedReverseScan::of_range(self.0.clone(), &range)
    }

    /// Returns the record with the largest key up to this one, as [`Table::floor`] does in each
    /// part from that of the key down until one has a record.
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::scan_into`].
    pub fn floor(&self, key: u64) -> Result<Option<(u64, u64)>, Error> {
        self.scan_reverse(key, 1).next().transpose()
    }

    /// Returns the record with the smallest key from this one on, as [`Table::ceiling`] does in
    /// each part from that of the key up until one has a record.
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::scan_into`].
    pub fn ceiling(&self, key: u64) -> Result<Option<(u64, u64)>, Error> {
        self.scan(key, 1).next().transpose()
    }

    /// Estimates the number of records; see [`AsyncPartitionedTable::len_estimate`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::len_estimate`].
    pub fn len_estimate(&self) -> Result<u64, Error> {
        self.0.sessions().drive(self.0.len_estimate())
    }

    /// Loads records in key order into an empty table; see [`AsyncPartitionedTable::bulk_load`].
    ///
    /// # Errors
    /// The same as those of [`AsyncPartitionedTable::bulk_load`].
    pub fn bulk_load(
        &self,
        records: impl IntoIterator<Item = (u64, u64)>,
        progress: impl FnMut(u64),
    ) -> Result<LoadSummary, Error> {
        let load = self.0.bulk_load(records, progress);
        self.0.sessions().drive(load)
    }

    /// Returns the [`Table::stats`] of each part, in order.
    ///
    /// # Errors
    /// The same as those of [`Table::stats`].
    pub fn stats(&self) -> Result<Vec<TableStats>, Error> {
        let parts = self.0.parts().iter().enumerate();
        let stats = parts.map(|(number, part)| self.0.ended(number, part.stats()));
        stats.collect()
    }

    /// Returns the bytes of far memory that the table owns in all pools.
    ///
    /// # Errors
    /// The same as those of [`Table::memory_bytes`].
    pub fn memory_bytes(&self) -> Result<u64, Error> {
        let parts = self.0.parts().iter().enumerate();
        let sizes = parts.map(|(number, part)| self.0.ended(number, part.memory_bytes()));
        sizes.sum()
    }

    /// Returns how often this session's hints were wrong; see
    /// [`AsyncPartitionedTable::hint_counters`].
    pub fn hint_counters(&self) -> HintCounters {
        self.0.hint_counters()
    }

    /// Returns the session's bytes of metadata; see [`AsyncPartitionedTable::metadata_bytes`].
    pub fn metadata_bytes(&self) -> u64 {
        self.0.metadata_bytes()
    }

    /// Returns fetches and evictions under a metadata budget; see
    /// [`AsyncPartitionedTable::partial_counts`].
    pub fn partial_counts(&self) -> Option<PartialCounts> {
        self.0.partial_counts()
    }
}
