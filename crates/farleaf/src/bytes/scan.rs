//! Iterators over records of byte strings in both directions, which read ahead.

use std::fmt;

use farleaf_index::strings::operation::{Record, RecordBuffer, ReverseCursor, ScanCursor};

use super::AsyncByteTable;
use crate::Error;

/// Records that the first read requests, and the factor by which later reads request more.
const FIRST_COUNT: usize = 32;
const GROWTH: usize = 2;
const COUNT_MAX: usize = 4096;
/// Most bytes of records that are read ahead: a read requests no more records than are expected to
/// fit.
const AHEAD_SIZE_BYTES: usize = 4 << 20;

/// Number of records that the next read requests.
#[derive(Debug)]
struct ReadAheadCount {
    next_count: usize,
}

impl ReadAheadCount {
    fn take(&mut self) -> usize {
        let count = self.next_count;
        self.next_count = (count * GROWTH).min(COUNT_MAX);
        count
    }

    /// Adapts the number of records to the sizes that were read.
    fn learn(&mut self, records: &RecordBuffer) {
        let size = |(key, value): (&[u8], &[u8])| key.len() + value.len();
        let size_bytes: usize = records.iter().map(size).sum();
        let mean = size_bytes / records.len().max(1);
        let fitting = AHEAD_SIZE_BYTES / mean.max(1);
        self.next_count = self.next_count.min(fitting.max(1));
    }
}

macro_rules! scan {
    ($(#[$doc:meta])* $name:ident, $cursor:ident, $read:ident) => {
        $(#[$doc])*
        pub struct $name {
            table: AsyncByteTable,
            cursor: $cursor,
            read: RecordBuffer,
            /// Number of records of `read` that have been returned.
            returned_count: usize,
            pace: ReadAheadCount,
            has_failed: bool,
            /// Bounds of the range, for reversing the direction.
            range: (Vec<u8>, Option<Vec<u8>>),
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("cursor", &self.cursor)
                    .finish_non_exhaustive()
            }
        }

        impl $name {
            pub(super) fn new(
                table: AsyncByteTable,
                start: &[u8],
                end: Option<&[u8]>,
            ) -> Self {
                Self {
                    table,
                    cursor: $cursor::new(start, end),
                    read: RecordBuffer::new(),
                    returned_count: 0,
                    pace: ReadAheadCount {
                        next_count: FIRST_COUNT,
                    },
                    has_failed: false,
                    range: (start.to_vec(), end.map(<[u8]>::to_vec)),
                }
            }

            /// Returns the same iterator with empty values; values outside the pages are not read.
            #[must_use]
            pub fn keys_only(mut self) -> Self {
                self.cursor = self.cursor.of_keys();
                self
            }

            fn read_more(&mut self) -> Result<(), Error> {
                self.read.clear();
                self.returned_count = 0;
                while self.read.is_empty() && !self.cursor.is_finished() {
                    let wanted = self.pace.take();
                    let read = self.table.$read(&mut self.cursor, wanted, &mut self.read);
                    self.table.session.drive(read)?;
                }
                self.pace.learn(&self.read);
                Ok(())
            }

            /// Returns key and value of the next record like [`next`](Iterator::next), but borrowed
            /// from the read buffer, without allocating.
            pub fn next_in_place(&mut self) -> Option<Result<(&[u8], &[u8]), Error>> {
                if self.has_failed {
                    return None;
                }
                if self.returned_count == self.read.len()
                    && let Err(error) = self.read_more()
                {
                    self.has_failed = true;
                    return Some(Err(error));
                }
                self.returned_count += 1;
                let record = self.read.get(self.returned_count - 1);
                if record.is_none() {
                    // The iterator has ended for good.
                    self.returned_count = self.read.len();
                }
                record.map(Ok)
            }
        }

        impl Iterator for $name {
            type Item = Result<Record, Error>;

            fn next(&mut self) -> Option<Self::Item> {
                let record = self.next_in_place()?;
                Some(record.map(|(key, value)| Record {
                    key: key.to_vec(),
                    value: value.to_vec(),
                }))
            }
        }

        impl std::iter::FusedIterator for $name {}
    };
}

scan!(
    /// Iterator over records in ascending order; see [`ByteTable::range`](crate::ByteTable::range).
    ByteScan,
    ScanCursor,
    scan_on
);
scan!(
    /// Iterator over records in descending order; see
    /// [`ByteTable::range_reverse`](crate::ByteTable::range_reverse).
    ByteReverseScan,
    ReverseCursor,
    scan_reverse_on
);

impl ByteScan {
    /// Returns an iterator over the whole range in descending order, including records already
    /// returned.
    #[must_use]
    pub fn rev(self) -> ByteReverseScan {
        let (start, end) = self.range;
        ByteReverseScan::new(self.table, &start, end.as_deref())
    }
}

impl ByteReverseScan {
    /// Returns an iterator over the whole range in ascending order, including records already
    /// returned.
    #[must_use]
    pub fn rev(self) -> ByteScan {
        let (start, end) = self.range;
        ByteScan::new(self.table, &start, end.as_deref())
    }
}
