//! Iterator over the records of all regions in key order, in both directions, with read-ahead.

use std::collections::VecDeque;

use crate::cluster::KeyLocation;
use crate::error::ClientError;
use crate::protocol::Scan;
use crate::table::{PersistentTable, Record};

/// Records that the first read requests, and most that a later read requests; the number grows.
const FIRST_COUNT: u32 = 64;
const COUNT_MAX: u32 = 8192;

/// Iterator over the records of a range. It ends after an error.
#[derive(Debug)]
pub struct Records {
    table: PersistentTable,
    /// Bounds of the range that is still to be read; nothing is left if the lower one is `None`.
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    is_descending: bool,
    keys_only: bool,
    next_count: u32,
    limit: Option<usize>,
    read: VecDeque<Record>,
}

impl Records {
    pub(crate) fn new(
        table: PersistentTable,
        start: &[u8],
        end: Option<&[u8]>,
        is_descending: bool,
    ) -> Self {
        Self {
            table,
            lower: Some(start.to_vec()),
            upper: end.map(<[u8]>::to_vec),
            is_descending,
            keys_only: false,
            next_count: FIRST_COUNT,
            limit: None,
            read: VecDeque::new(),
        }
    }

    /// Returns the same iterator with empty values; the servers do not read the values.
    #[must_use]
    pub fn keys_only(mut self) -> Self {
        self.keys_only = true;
        self
    }

    /// Limits the number of records that are read ahead in all.
    #[must_use]
    pub(crate) fn at_most(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self.next_count = u32::try_from(limit).unwrap_or(COUNT_MAX).min(COUNT_MAX);
        self
    }

    /// Reads the next records in one round trip.
    fn read_more(&mut self, lower: &[u8]) -> Result<(), ClientError> {
        let place = if self.is_descending {
            KeyLocation::Below(self.upper.as_deref())
        } else {
            KeyLocation::At(lower)
        };
        let mut part = Scan {
            lower,
            upper: self.upper.as_deref(),
            is_descending: self.is_descending,
            count_max: self.next_count,
            keys_only: self.keys_only,
        };
        let (records, has_more, route) = self.table.ask(place, &mut part)?;
        self.next_count = (self.next_count * 2).min(COUNT_MAX);
        if let Some(limit) = &mut self.limit {
            *limit = limit.saturating_sub(records.len());
            self.next_count = u32::try_from(*limit).unwrap_or(COUNT_MAX).min(COUNT_MAX);
        }
        let last = records.last().map(|record| record.key.clone());
        self.read.extend(records);
        match (self.is_descending, last.filter(|_| has_more)) {
            (false, Some(mut last)) => {
                // The smallest key behind the last one.
                last.push(0);
                self.lower = Some(last);
            }
            (true, Some(last)) => self.upper = Some(last),
            (false, None) => self.lower = route.to.map(|to| to.0),
            (true, None) => {
                let is_first = route.from.0.is_empty();
                self.upper = Some(route.from.0);
                self.lower = self.lower.take().filter(|_| !is_first);
            }
        }
        Ok(())
    }
}

impl Iterator for Records {
    type Item = Result<Record, ClientError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(record) = self.read.pop_front() {
                return Some(Ok(record));
            }
            let lower = self.lower.clone()?;
            let is_empty = self.upper.as_ref().is_some_and(|upper| *upper <= lower);
            if is_empty || self.limit == Some(0) {
                self.lower = None;
                return None;
            }
            if let Err(error) = self.read_more(&lower) {
                self.lower = None;
                return Some(Err(error));
            }
        }
    }
}
