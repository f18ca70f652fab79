//! Iterators over records in key order.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use farleaf_index::operation::{ReverseScanCursor, ScanCursor};

use crate::direction::DirectedCursor;
use crate::{AsyncTable, Error};

/// Records that the first read requests, and the factor by which later reads request more.
const FIRST_COUNT: usize = 64;
const GROWTH: usize = 4;
/// Most records that one read requests.
const COUNT_MAX: usize = 4096;

/// Iterator over records of a table in ascending order, read in batches. It ends after an error.
pub struct Scan(RecordReader<ScanCursor>);

/// Iterator over records of a table in descending order, read in batches. It ends after an error.
pub struct ReverseScan(RecordReader<ReverseScanCursor>);

/// Records of a range, read in batches that grow.
struct RecordReader<C> {
    table: AsyncTable,
    cursor: C,
    /// Last key to return.
    last: u64,
    left: usize,
    read: Vec<(u64, u64)>,
    /// Number of records of `read` that have been returned.
    returned: usize,
    next_count: usize,
    is_finished: bool,
}

impl<C: DirectedCursor> RecordReader<C> {
    fn new(table: AsyncTable, cursor: C, last: u64, left: usize) -> Self {
        Self {
            table,
            cursor,
            last,
            left,
            read: Vec::new(),
            returned: 0,
            next_count: FIRST_COUNT,
            is_finished: left == 0,
        }
    }

    fn read_more(&mut self) -> Result<(), Error> {
        self.read.clear();
        self.returned = 0;
        if self.cursor.next_key().is_none() {
            return Ok(());
        }
        let wanted = self.next_count.min(self.left);
        self.next_count = (self.next_count * GROWTH).min(COUNT_MAX);
        let scan = self.table.scan_on(&mut self.cursor, wanted, &mut self.read);
        self.table.session.drive(scan)
    }

    fn next_record(&mut self) -> Option<Result<(u64, u64), Error>> {
        if self.is_finished {
            return None;
        }
        if self.returned == self.read.len()
            && let Err(error) = self.read_more()
        {
            self.is_finished = true;
            return Some(Err(error));
        }
        let record = self.read.get(self.returned).copied();
        let record = record.filter(|(key, _)| !C::precedes(self.last, *key));
        self.returned += 1;
        self.left -= 1;
        self.is_finished = record.is_none() || self.left == 0;
        record.map(Ok)
    }
}

/// Returns the first and the last key of a range, unless the range is empty.
pub(crate) fn ends(range: &impl RangeBounds<u64>) -> Option<(u64, u64)> {
    let from = match range.start_bound() {
        Bound::Included(key) => Some(*key),
        Bound::Excluded(key) => key.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let last = match range.end_bound() {
        Bound::Included(key) => Some(*key),
        Bound::Excluded(key) => key.checked_sub(1),
        Bound::Unbounded => Some(u64::MAX),
    };
    from.zip(last).filter(|(from, last)| from <= last)
}

impl Scan {
    pub(crate) fn new(table: AsyncTable, from: u64, last: u64, left: usize) -> Self {
        Self(RecordReader::new(table, ScanCursor::from(from), last, left))
    }

    pub(crate) fn of_range(table: AsyncTable, range: &impl RangeBounds<u64>) -> Self {
        match ends(range) {
            Some((from, last)) => Self::new(table, from, last, usize::MAX),
            None => Self::new(table, 0, 0, 0),
        }
    }
}

impl ReverseScan {
    /// Creates an iterator from `from` down to `last`, both inclusive.
    pub(crate) fn new(table: AsyncTable, from: u64, last: u64, left: usize) -> Self {
        let cursor = ReverseScanCursor::from(from);
        Self(RecordReader::new(table, cursor, last, left))
    }

    pub(crate) fn of_range(table: AsyncTable, range: &impl RangeBounds<u64>) -> Self {
        match ends(range) {
            Some((least, most)) => Self::new(table, most, least, usize::MAX),
            None => Self::new(table, 0, 0, 0),
        }
    }
}

macro_rules! iterator {
    ($name:ident) => {
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("cursor", &self.0.cursor)
                    .finish_non_exhaustive()
            }
        }

        impl Iterator for $name {
            type Item = Result<(u64, u64), Error>;

            fn next(&mut self) -> Option<Self::Item> {
                self.0.next_record()
            }
        }

        impl std::iter::FusedIterator for $name {}
    };
}

iterator!(Scan);
iterator!(ReverseScan);
