//! Scans in descending order, floor and ceiling of a table as futures.

use farleaf_fabric::OperationKind;
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
        self.scan_reverse_on(&mut cursor, limit, records).await?;
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

    /// Adds at least `wanted` records in descending order and moves the cursor before them.
    pub(crate) async fn scan_reverse_on(
        &self,
        cursor: &mut ReverseScanCursor,
        wanted: usize,
        records: &mut Vec<(u64, u64)>,
    ) -> Result<(), Error> {
        loop {
            let begun = match self.session.begin_at_once(&self.state) {
                Some(begun) => begun,
                None if self.is_remote() => {
                    return self.scan_reverse_remote(cursor, wanted, records).await;
                }
                None if self.has_node_writes() => {
                    return self.scan_reverse_by_models(cursor, wanted, records).await;
                }
                None => self.session.begin_on_slow_path(&self.state).await?,
            };
            let mut operation = self.operation(begun);
            let done = operation
                .index
                .scan_reverse(&mut operation.batch, cursor, wanted, records)
                .await;
            match operation.finish(OperationKind::Scan, done) {
                Ok(done) => return Ok(done),
                Err(error) => self.refresh_after(error).await?,
            }
        }
    }
}
