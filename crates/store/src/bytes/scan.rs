//! Iterators over records of byte strings, in either order, that read ahead.

use std::collections::VecDeque;
use std::fmt;

use farleaf_byte_index::operation::{Record, ReverseCursor, ScanCursor};

use super::AsyncByteTable;
use crate::Error;

/// Records asked for with the first read, and the factor by which later reads ask for more.
const FIRST_COUNT: usize = 32;
const GROWTH: usize = 2;
const COUNT_MAX: usize = 4096;
/// Bytes of records that are read ahead: no more are asked for at once than so many are expected
/// to have.
const AHEAD_SIZE_BYTES: usize = 4 << 20;

/// How many records the next read asks for.
#[derive(Debug)]
struct Pace {
    next_count: usize,
}

impl Pace {
    fn take(&mut self) -> usize {
        let count = self.next_count;
        self.next_count = (count * GROWTH).min(COUNT_MAX);
        count
    }

    /// Learns from what was read how many are not too large together.
    fn learn(&mut self, records: &[Record]) {
        let size = |record: &Record| record.key.len() + record.value.len();
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
            read: VecDeque<Record>,
            pace: Pace,
            has_failed: bool,
            /// The range, for the other order.
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
                    read: VecDeque::new(),
                    pace: Pace {
                        next_count: FIRST_COUNT,
                    },
                    has_failed: false,
                    range: (start.to_vec(), end.map(<[u8]>::to_vec)),
                }
            }

            /// The same records without their values: those that are outside are not read.
            #[must_use]
            pub fn keys_only(mut self) -> Self {
                self.cursor = self.cursor.of_keys();
                self
            }

            fn read_more(&mut self) -> Result<(), Error> {
                let mut records = Vec::new();
                while records.is_empty() && !self.cursor.is_finished() {
                    let wanted = self.pace.take();
                    let table = self.table.clone();
                    let read = table.$read(&mut self.cursor, wanted, &mut records);
                    table.session.drive(read)?;
                }
                self.pace.learn(&records);
                self.read = records.into();
                Ok(())
            }
        }

        impl Iterator for $name {
            type Item = Result<Record, Error>;

            fn next(&mut self) -> Option<Self::Item> {
                if self.has_failed {
                    return None;
                }
                if self.read.is_empty()
                    && let Err(error) = self.read_more()
                {
                    self.has_failed = true;
                    return Some(Err(error));
                }
                self.read.pop_front().map(Ok)
            }
        }

        impl std::iter::FusedIterator for $name {}
    };
}

scan!(
    /// Records in ascending order; see [`ByteTable::range`](crate::ByteTable::range).
    ByteScan,
    ScanCursor,
    scan_on
);
scan!(
    /// Records in descending order; see
    /// [`ByteTable::range_reverse`](crate::ByteTable::range_reverse).
    ByteReverseScan,
    ReverseCursor,
    scan_reverse_on
);

impl ByteScan {
    /// All records of the range in descending order, whatever was returned already.
    #[must_use]
    pub fn rev(self) -> ByteReverseScan {
        let (start, end) = self.range;
        ByteReverseScan::new(self.table, &start, end.as_deref())
    }
}

impl ByteReverseScan {
    /// All records of the range in ascending order, whatever was returned already.
    #[must_use]
    pub fn rev(self) -> ByteScan {
        let (start, end) = self.range;
        ByteScan::new(self.table, &start, end.as_deref())
    }
}
