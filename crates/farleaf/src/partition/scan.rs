//! Iterator over the records of a table over several pools.

use std::ops::RangeBounds;

use super::AsyncPartitionedTable;
use crate::Error;
use crate::scan::{Scan, ends};

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
        let current = scan_of_part(&table, number, (from, last), left);
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
        self.current = scan_of_part(&self.table, self.number, (from, self.last), self.left);
        true
    }
}

/// Returns the records of a part from `from` to `last` or the end of the part.
fn scan_of_part(
    table: &AsyncPartitionedTable,
    number: usize,
    (from, last): (u64, u64),
    left: usize,
) -> Scan {
    let last = last.min(*table.info().bounds.range(number).end());
    let part = table.parts()[number].asynchronous().clone();
    Scan::new(part, from, last, left)
}

impl Iterator for PartitionedScan {
    type Item = Result<(u64, u64), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_finished {
            return None;
        }
        loop {
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
                None if self.enter_next_part() => {}
                None => {
                    self.is_finished = true;
                    return None;
                }
            }
        }
    }
}

impl std::iter::FusedIterator for PartitionedScan {}
