//! Scans in descending order, floor and ceiling of a table as futures.

use farleaf_index::operation::ReverseScanCursor;

use crate::host::SessionHost;
use crate::{AsyncTable, Error};

impl<H: SessionHost> AsyncTable<H> {
    /// Replaces the contents of `records` by the first `limit` records from `from` down, inclusive,
    /// in descending order. Costs one round trip on a freshly loaded table of layer `learned`,
    /// `rolex` or `rf-tree` without a metadata budget; a [`get`](Self::get) per leaf otherwise. The
    /// result is not a snapshot (LEAF-9).
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn scan_reverse_into(
        &self,
        from: u64,
        limit: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        records.clear();
        let mut cursor = ReverseScanCursor::from(from);
        self.scan_on(&mut cursor, limit, records).await?;
        records.truncate(limit);
        Ok(())
    }

    /// Returns the record with the largest key that is at most `key`; `None` if there is none.
    /// Costs as much as [`scan_reverse_into`](Self::scan_reverse_into) for one record; leaves
    /// without records between are read, too.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn floor(&self, key: u64) -> Result<Option<(u64, u64)>, Error> {
        let mut records = Vec::new();
        self.scan_reverse_into(key, 1, &mut records).await?;
        Ok(records.first().copied())
    }

    /// Returns the record with the smallest key that is at least `key`; `None` if there is none.
    /// Costs as much as [`scan_into`](Self::scan_into) for one record; leaves without records
    /// between are read, too.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn ceiling(&self, key: u64) -> Result<Option<(u64, u64)>, Error> {
        let mut records = Vec::new();
        self.scan_into(key, 1, &mut records).await?;
        Ok(records.first().copied())
    }
}
