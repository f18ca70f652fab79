//! Iterators over the records of a table over several pools.

use std::ops::RangeBounds;

use super::AsyncPartitionedTable;
use crate::Error;
use crate::scan::{ReverseScan, Scan, ends};

/// Iterator over records of a table over several pools in ascending order. It reads them in
/// batches, part after part, and ends after an error.
#[derive(Debug)]
pub struct PartitionedScan {
    table: AsyncPartitionedTable,
    /// Number of the part that `scan` reads.
    number: usize,
    current: Scan,
    /// Largest key to return.
    last: u64,
    left: usize,
    is_finished: bool,
}

impl PartitionedScan {
    pub(super) fn new(table: AsyncPartitionedTable, from: u64, last: u64, left: usize) -> Self {
        let number = table.part_of(from);
        let current = scan_of_part(&table, number, from, last, left);
        Self {
            table,
            number,
            current,
            last,
            left,
            is_finished: left == 0,
        }
    }

    pub(super) fn of_range(table: AsyncPartitionedTable, range: &impl RangeBounds<u64>) -> Self {
        match ends(range) {
            Some((from, last)) => Self::new(table, from, last, usize::MAX),
            None => Self::new(table, 0, 0, 0),
        }
    }

    /// Continues with the next part; returns `false` if no other part can have records of the
    /// range.
    fn enter_next_part(&mut self) -> bool {
        let bounds = &self.table.info().bounds;
        let high = *bounds.range(self.number).end();
        let Some(from) = high.checked_add(1).filter(|from| *from <= self.last) else {
            return false;
        };
        self.number += 1;
        self.current = scan_of_part(&self.table, self.number, from, self.last, self.left);
        true
    }
}

/// Returns the records of a part from `from` to `last` or the end of the part.
fn scan_of_part(
    table: &AsyncPartitionedTable,
    number: usize,
    from: u64,
    last: u64,
    left: usize,
) -> Scan {
    let last = last.min(*table.info().bounds.range(number).end());
    let part = table.parts()[number].asynchronous().clone();
    Scan::new(part, from, last, left)
}

/// Iterator over records of a table over several pools in descending order. It reads them in
/// batches, part after part, and ends after an error.
#[derive(Debug)]
pub struct PartitionedReverseScan {
    table: AsyncPartitionedTable,
    /// Number of the part that `current` reads.
    number: usize,
    current: ReverseScan,
    /// Smallest key to return.
    last: u64,
    left: usize,
    is_finished: bool,
}

impl PartitionedReverseScan {
    /// Creates an iterator from `from` down to `last`, both inclusive.
    pub(super) fn new(table: AsyncPartitionedTable, from: u64, last: u64, left: usize) -> Self {
        let number = table.part_of(from);
        let current = reverse_scan_of_part(&table, number, from, last, left);
        Self {
            table,
            number,
            current,
            last,
            left,
            is_finished: left == 0,
        }
    }

    pub(super) fn of_range(table: AsyncPartitionedTable, range: &impl RangeBounds<u64>) -> Self {
        match ends(range) {
            Some((least, most)) => Self::new(table, most, least, usize::MAX),
            None => Self::new(table, 0, 0, 0),
        }
    }

    /// Continues with the previous part; returns `false` if no other part can have records of the
    /// range.
    fn enter_next_part(&mut self) -> bool {
        let low = *self.table.info().bounds.range(self.number).start();
        let Some(from) = low.checked_sub(1).filter(|from| *from >= self.last) else {
            return false;
        };
        self.number -= 1;
        self.current = reverse_scan_of_part(&self.table, self.number, from, self.last, self.left);
        true
    }
}

/// Returns the records of a part from `from` down to `last` or the start of the part.
fn reverse_scan_of_part(
    table: &AsyncPartitionedTable,
    number: usize,
    from: u64,
    last: u64,
    left: usize,
) -> ReverseScan {
    let last = last.max(*table.info().bounds.range(number).start());
    let part = table.parts()[number].asynchronous().clone();
    ReverseScan::new(part, from, last, left)
}

macro_rules! iterator {
    ($name:ident) => {
        impl Iterator for $name {
            type Item = Result<(u64, u64), Error>;

            fn next(&mut self) -> Option<Self::Item> {
                while !self.is_finished {
                    match self.current.next() {
                        Some(Ok(record)) => {
                            self.left -= 1;
                            self.is_finished = self.left == 0;
                            return Some(Ok(record));
                        }
                        Some(Err(error)) => {
                            self.is_finished = true;
                            return Some(Err(self.table.in_part(self.number, error)));
                        }
                        None => self.is_finished = !self.enter_next_part(),
                    }
                }
                None
            }
        }

        impl std::iter::FusedIterator for $name {}
    };
}

iterator!(PartitionedScan);
iterator!(PartitionedReverseScan);
