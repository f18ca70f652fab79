//! Scans of a table of byte strings as futures, and what follows from them.

use farleaf_byte_index::operation::{Record, RecordBuffer, ReverseCursor, ScanCursor};
use farleaf_fabric::OperationKind;

use super::AsyncByteTable;
use crate::Error;
use crate::host::Host;

/// Records that one batch of a range's deletion finds.
const DELETE_SCAN_COUNT: usize = 1024;

impl<H: Host> AsyncByteTable<H> {
    /// Removes all keys from `start` on, inclusive, to `end`, exclusive, or to the last one; how
    /// many there were. Each by itself: another session may see some of them gone and others not. A
    /// key that is written meanwhile may stay. Two round trips for each, and one for each piece of
    /// pages.
    ///
    /// # Errors
    /// As for [`get`](Self::get). Keys before the one that failed are removed.
    pub async fn delete_range(&self, start: &[u8], end: Option<&[u8]>) -> Result<u64, Error> {
        let mut cursor = ScanCursor::new(start, end).of_keys();
        let (mut records, mut count) = (RecordBuffer::new(), 0);
        // At least once: a session that is broken says so for an empty range, too.
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

    /// The first `limit` records from `start` on, inclusive, to `end`, exclusive, or to the last
    /// one; ascending. One round trip on a freshly loaded table, one more if values are outside.
    /// Not a snapshot (D9).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
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

    /// [`scan`](Self::scan), into a buffer that is cleared first: one that is used again takes no
    /// memory for any of the records.
    ///
    /// # Errors
    /// As for [`get`](Self::get). The buffer has the records before what could not be read.
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

    /// The last `limit` records of the same range, descending.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
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

    /// [`scan_reverse`](Self::scan_reverse), into a buffer that is cleared first.
    ///
    /// # Errors
    /// As for [`scan_into`](Self::scan_into).
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

    /// The same, downwards.
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
