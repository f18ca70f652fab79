//! A table's operations as blocking calls.

use std::ops::RangeBounds;
use std::pin::pin;

use farleaf_index::load::LoadSummary;
use farleaf_index::operation::HintCounters;

use crate::at_once::{GetBegun, MultiGetBegun};
use crate::options::TableInfo;
use crate::scan::Scan;
use crate::{AsyncTable, Error, PartialCounts};

/// What an insert found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The key was absent and has the value now.
    Inserted,
    /// The key was present, with this value, which it still has.
    AlreadyPresent(u64),
}

/// What an update found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// The key was present, with this value, and has the new one now.
    Updated(u64),
    /// The key was absent, and still is.
    Absent,
}

/// What a compare-and-swap found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// What was expected; it has been replaced.
    Swapped,
    /// This; nothing has changed.
    Differs(Option<u64>),
}

// Futures are pinned where they are made: each is a few hundred bytes, and handing it over by value
// would copy it twice.

/// An ordered map from u64 keys to u64 values, every key from 0 to `u64::MAX` among them; one
/// session's handle to it.
#[derive(Clone, Debug)]
pub struct Table(AsyncTable);

impl Table {
    pub(crate) fn new(table: AsyncTable) -> Self {
        Self(table)
    }

    /// The same operations as futures.
    pub fn asynchronous(&self) -> &AsyncTable {
        &self.0
    }

    /// What there is to know of the table without looking into it.
    pub fn info(&self) -> &TableInfo {
        self.0.info()
    }

    /// See [`AsyncTable::get`].
    ///
    /// # Errors
    /// See [`AsyncTable::get`].
    #[inline]
    pub fn get(&self, key: u64) -> Result<Option<u64>, Error> {
        match self.0.get_at_once(key) {
            GetBegun::Done(value) => Ok(value),
            GetBegun::Unfinished(rest) => self.0.session.drive(pin!(self.0.get_rest(key, rest))),
        }
    }

    /// See [`AsyncTable::multi_get`].
    ///
    /// # Errors
    /// See [`AsyncTable::multi_get`].
    pub fn multi_get(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, Error> {
        let mut values = Vec::new();
        self.multi_get_into(keys, &mut values)?;
        Ok(values)
    }

    /// See [`AsyncTable::multi_get_into`].
    ///
    /// # Errors
    /// See [`AsyncTable::multi_get_into`].
    #[inline]
    pub fn multi_get_into(&self, keys: &[u64], values: &mut Vec<Option<u64>>) -> Result<(), Error> {
        match self.0.multi_get_at_once(keys, values) {
            MultiGetBegun::Done => Ok(()),
            MultiGetBegun::Unfinished(rest) => {
                let rest = self.0.multi_get_rest(keys, values, rest);
                self.0.session.drive(pin!(rest))
            }
        }
    }

    /// See [`AsyncTable::put`].
    ///
    /// # Errors
    /// See [`AsyncTable::put`].
    #[inline]
    pub fn put(&self, key: u64, value: u64) -> Result<Option<u64>, Error> {
        self.0.session.drive(pin!(self.0.put(key, value)))
    }

    /// See [`AsyncTable::insert`].
    ///
    /// # Errors
    /// See [`AsyncTable::insert`].
    pub fn insert(&self, key: u64, value: u64) -> Result<Insertion, Error> {
        self.0.session.drive(pin!(self.0.insert(key, value)))
    }

    /// See [`AsyncTable::update`].
    ///
    /// # Errors
    /// See [`AsyncTable::update`].
    #[inline]
    pub fn update(&self, key: u64, value: u64) -> Result<Update, Error> {
        self.0.session.drive(pin!(self.0.update(key, value)))
    }

    /// See [`AsyncTable::delete`].
    ///
    /// # Errors
    /// See [`AsyncTable::delete`].
    pub fn delete(&self, key: u64) -> Result<Option<u64>, Error> {
        self.0.session.drive(pin!(self.0.delete(key)))
    }

    /// See [`AsyncTable::compare_and_swap`].
    ///
    /// # Errors
    /// See [`AsyncTable::compare_and_swap`].
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

    /// See [`AsyncTable::scan_into`].
    ///
    /// # Errors
    /// See [`AsyncTable::scan_into`].
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

    /// The first `limit` records from `from` on, ascending, read as they are asked for. Not a
    /// snapshot (D9).
    pub fn scan(&self, from: u64, limit: usize) -> Scan {
        Scan::new(self.0.clone(), from, u64::MAX, limit)
    }

    /// The records with keys in a range, ascending, read as they are asked for. Not a snapshot
    /// (D9).
    pub fn range(&self, range: impl RangeBounds<u64>) -> Scan {
        Scan::of_range(self.0.clone(), &range)
    }

    /// See [`AsyncTable::len_estimate`].
    ///
    /// # Errors
    /// See [`AsyncTable::len_estimate`].
    pub fn len_estimate(&self) -> Result<u64, Error> {
        self.0.session.drive(pin!(self.0.len_estimate()))
    }

    /// See [`AsyncTable::bulk_load`].
    ///
    /// # Errors
    /// See [`AsyncTable::bulk_load`].
    pub fn bulk_load(
        &self,
        records: impl IntoIterator<Item = (u64, u64)>,
        progress: impl FnMut(u64),
    ) -> Result<LoadSummary, Error> {
        let session = &self.0.session;
        session.drive(pin!(self.0.bulk_load(records, progress)))
    }

    /// See [`AsyncTable::hint_counters`].
    pub fn hint_counters(&self) -> HintCounters {
        self.0.hint_counters()
    }

    /// See [`AsyncTable::metadata_bytes`].
    pub fn metadata_bytes(&self) -> u64 {
        self.0.metadata_bytes()
    }

    /// See [`AsyncTable::partial_counts`].
    pub fn partial_counts(&self) -> Option<PartialCounts> {
        self.0.partial_counts()
    }
}
