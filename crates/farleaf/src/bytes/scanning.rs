//! Scans and range deletions of a table of byte strings as futures.

use farleaf_fabric::OperationKind;
use farleaf_index::strings::operation::{Record, RecordBuffer, ReverseCursor, ScanCursor};

use super::AsyncByteTable;
use crate::Error;
use crate::host::SessionHost;

/// Keys that a range deletion reads at a time.
const DELETE_SCAN_COUNT: usize = 1024;

impl<H: SessionHost> AsyncByteTable<H> {
    /// Removes all keys from `start`, inclusive, to `end`, exclusive, or to the last key, and
    /// returns their number. Not atomic: another session may see some of them removed and others
    /// not. A key that is written meanwhile may stay. Costs two round trips for each key, and one
    /// for each batch of pages that is read.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get). Keys before the one that failed are removed.
    pub async fn delete_range(&self, start: &[u8], end: Option<&[u8]>) -> Result<u64, Error> {
        let mut cursor = ScanCursor::new(start, end).of_keys();
        let (mut records, mut count) = (RecordBuffer::new(), 0);
        // At least once, so that a broken session returns its error for an empty range, too.
        loop {
            records.clear();
            self.scan_on(&mut cursor, DELETE_SCAN_COUNT, &mut records)
                .await?;
            for (key, _) in records.iter() {
                count += u64::from(self.delete(key).await?);
            }
            if cursor.is_finished() {
                return Ok(count);
            }
        }
    }

    /// Returns the first `limit` records from `start`, inclusive, to `end`, exclusive, or to the
    /// last record, ascending. Costs one round trip on a freshly loaded table, and one more if
    /// values are outside the pages. The result is not a snapshot (LEAF-9).
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        let mut records = RecordBuffer::new();
        self.scan_into(start, end, limit, &mut records).await?;
        Ok(records.to_records())
    }

    /// Scans like [`scan`](Self::scan) into a buffer, which is cleared first. Reusing the buffer
    /// avoids allocations per record.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get). The buffer then contains the records before the
    /// failure.
    pub async fn scan_into(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), Error> {
        records.clear();
        let mut cursor = ScanCursor::new(start, end);
        self.scan_on(&mut cursor, limit, records).await
    }

    /// Returns the last `limit` records of the same range as [`scan`](Self::scan), descending.
    ///
    /// # Errors
    /// The same as those of [`get`](Self::get).
    pub async fn scan_reverse(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Record>, Error> {
        let mut records = RecordBuffer::new();
        self.scan_reverse_into(start, end, limit, &mut records)
            .await?;
        Ok(records.to_records())
    }

    /// Scans like [`scan_reverse`](Self::scan_reverse) into a buffer, which is cleared first.
    ///
    /// # Errors
    /// The same as those of [`scan_into`](Self::scan_into).
    pub async fn scan_reverse_into(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        limit: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), Error> {
        records.clear();
        let mut cursor = ReverseCursor::new(start, end);
        self.scan_reverse_on(&mut cursor, limit, records).await
    }

    /// Adds records and moves the cursor behind them.
    pub(super) async fn scan_on(
        &self,
        cursor: &mut ScanCursor,
        wanted: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), Error> {
        if self.is_remote() {
            return self.scan_remote(cursor, wanted, records).await;
        }
        let end = records.len().saturating_add(wanted);
        self.operate(OperationKind::Scan, async |index, batch| {
            let wanted = end.saturating_sub(records.len());
            index.scan(batch, cursor, wanted, records).await
        })
        .await
    }

    /// Adds records in descending order and moves the cursor before them.
    pub(super) async fn scan_reverse_on(
        &self,
        cursor: &mut ReverseCursor,
        wanted: usize,
        records: &mut RecordBuffer,
    ) -> Result<(), Error> {
        if self.is_remote() {
            return self.scan_remote(cursor, wanted, records).await;
        }
        let end = records.len().saturating_add(wanted);
        self.operate(OperationKind::Scan, async |index, batch| {
            let wanted = end.saturating_sub(records.len());
            index.scan_reverse(batch, cursor, wanted, records).await
        })
        .await
    }
}
