//! Operations of a table as blocking calls.

use std::ops::RangeBounds;
use std::pin::pin;

use farleaf_index::load::LoadSummary;
use farleaf_index::operation::HintCounters;

use crate::at_once::{GetAttempt, MultiGetAttempt};
use crate::options::TableInfo;
use crate::scan::{ReverseScan, Scan};
use crate::{AsyncTable, Error, PartialCounts};

/// Result of an insert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The key was absent and has the value now.
    Inserted,
    /// The key was present, with this value, which is unchanged.
    AlreadyPresent(u64),
}

/// Result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The key was present, with this value, and has the new one now.
    Updated(u64),
    /// The key was absent, and still is.
    Absent,
}

/// Result of a compare-and-swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The value was as expected and has been replaced.
    Swapped,
    /// The value was this one; nothing has changed.
    Differs(Option<u64>),
}

// Futures are pinned where they are created: each has a few hundred bytes, and passing it by value
// would copy it twice.

/// Ordered map from u64 keys to u64 values, as one session accesses it. Every u64 is a valid key.
#[derive(Clone, Debug)]
pub struct Table(AsyncTable);

impl Table {
    pub(crate) fn new(table: AsyncTable) -> Self {
        Self(table)
    }

    /// Returns the same operations as futures.
    pub fn asynchronous(&self) -> &AsyncTable {
        &self.0
    }

    /// Returns the properties that are known without reading the table.
    pub fn info(&self) -> &TableInfo {
        self.0.info()
    }

    /// Returns the value of a key; see [`AsyncTable::get`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::get`].
    #[inline]
    pub fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        match self.0.get_at_once(key) {
            GetAttempt::Done(value) => Ok(value),
            GetAttempt::Unfinished(rest) => self.0.session.drive(pin!(self.0.get_rest(key, rest))),
        }
    }

    /// Returns the values of many keys; see [`AsyncTable::multi_get`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::multi_get`].
    pub fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
        let mut values = Vec::new();
        self.multi_get_into(keys, &mut values)?;
        Ok(values)
    }

    /// Reads the values of many keys into a vector; see [`AsyncTable::multi_get_into`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::multi_get_into`].
    #[inline]
    pub fn multi_get_into(&self, keys: &[u64], values: &mut Vec<Option<u64>>) -> Result<(), Error> {
        match self.0.multi_get_at_once(keys, values) {
            MultiGetAttempt::Done => Ok(()),
            MultiGetAttempt::Unfinished(rest) => {
                let rest = self.0.multi_get_rest(keys, values, rest);
                self.0.session.drive(pin!(rest))
            }
        }
    }

    /// Writes a key and returns its previous value; see [`AsyncTable::put`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::put`].
    #[inline]
    pub fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        self.0.session.drive(pin!(self.0.put(key, value)))
    }

    /// Writes a key if it is absent; see [`AsyncTable::insert`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::insert`].
    pub fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
        self.0.session.drive(pin!(self.0.insert(key, value)))
    }

    /// Writes a key if it is present; see [`AsyncTable::update`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::update`].
    #[inline]
    pub fn update(&self, key: u64, value: u64) -> Result<Update, Error> {
        self.0.session.drive(pin!(self.0.update(key, value)))
    }

    /// Removes a key and returns its value; see [`AsyncTable::delete`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::delete`].
    pub fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
        self.0.session.drive(pin!(self.0.delete(key)))
    }

    /// Replaces a key's value if it is the expected one; see [`AsyncTable::compare_and_swap`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::compare_and_swap`].
    pub fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<Swap, Error> {
        self.0
            .session
            .drive(pin!(self.0.compare_and_swap(key, expected, new)))
    }

    /// Reads records in key order into a vector; see [`AsyncTable::scan_into`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::scan_into`].
    pub fn scan_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        self.0
            .session
            .drive(pin!(self.0.scan_into(from, limit, records)))
    }

    /// Returns an iterator over the first `limit` records from `from` on, ascending. It reads them
    /// on demand and is not a snapshot (LEAF-9).
    pub fn scan(&self, from: u64, limit: usize) -> Scan {
        Scan::new(self.0.clone(), from, u64::MAX, limit)
    }

    /// Returns an iterator over the records of a key range, ascending. It reads them on demand and
    /// is not a snapshot (LEAF-9).
    pub fn range(&self, range: impl RangeBounds<u64>) -> Scan {
        Scan::of_range(self.0.clone(), &range)
    }

    /// Reads records in descending order into a vector; see [`AsyncTable::scan_reverse_into`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::scan_reverse_into`].
    pub fn scan_reverse_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        let scan = self.0.scan_reverse_into(from, limit, records);
        self.0.session.drive(pin!(scan))
    }

    /// Returns an iterator over the first `limit` records from `from` down, inclusive, in
    /// descending order. It reads them on demand and is not a snapshot (LEAF-9).
    pub fn scan_reverse(&self, from: u64, limit: usize) -> ReverseScan {
        ReverseScan::new(self.0.clone(), from, 0, limit)
    }

    /// Returns an iterator over the records of a key range in descending order. It reads them on
    /// demand and is not a snapshot (LEAF-9).
    pub fn range_reverse(&self, range: impl RangeBounds<u64>) -> ReverseScan {
        ReverseScan::of_range(self.0.clone(), &range)
    }

    /// Returns the record with the largest key up to this one; see [`AsyncTable::floor`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::floor`].
    pub fn floor(&self, key: u64) -> Result<Option<(u64, u64)>, Error> {
        self.0.session.drive(pin!(self.0.floor(key)))
    }

    /// Returns the record with the smallest key from this one on; see [`AsyncTable::ceiling`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::ceiling`].
    pub fn ceiling(&self, key: u64) -> Result<Option<(u64, u64)>, Error> {
        self.0.session.drive(pin!(self.0.ceiling(key)))
    }

    /// Estimates the number of records; see [`AsyncTable::len_estimate`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::len_estimate`].
    pub fn len_estimate(&self) -> Result<u64, Error> {
        self.0.session.drive(pin!(self.0.len_estimate()))
    }

    /// Loads records in key order into an empty table; see [`AsyncTable::bulk_load`].
    ///
    /// # Errors
    /// The same as those of [`AsyncTable::bulk_load`].
    pub fn bulk_load(
        &self,
        records: impl IntoIterator<Item = (u64, u64)>,
        progress: impl FnMut(u64),
    ) -> Result<LoadSummary, Error> {
        let session = &self.0.session;
        session.drive(pin!(self.0.bulk_load(records, progress)))
    }

    /// Returns how often this session's hints were wrong; see [`AsyncTable::hint_counters`].
    pub fn hint_counters(&self) -> HintCounters {
        self.0.hint_counters()
    }

    /// Returns the session's bytes of metadata; see [`AsyncTable::metadata_bytes`].
    pub fn metadata_bytes(&self) -> u64 {
        self.0.metadata_bytes()
    }

    /// Returns fetches and evictions under a metadata budget; see [`AsyncTable::partial_counts`].
    pub fn partial_counts(&self) -> Option<PartialCounts> {
        self.0.partial_counts()
    }
}
