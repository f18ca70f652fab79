//! Scans: keys in order, in both directions.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use super::Snapshot;
use super::read::not_of_the_key;
use crate::error::LsmError;
use crate::head::KnownKey;
use crate::log::{Record, ValueLog};
use crate::memtable::MemtableCursor;
use crate::place::LogPosition;
use crate::prefetch::Span;
use crate::tree::{Deletes, Entry, EntrySource, Merge, ReadAhead, TreeCursor};

/// Direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Ascending key order.
    Ascending,
    /// Descending key order.
    Descending,
}

/// Bounds of a scan: lower and upper.
pub type KeyRange<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// Key and value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

/// Maximum number of entries whose records are prefetched together. Records are not adjacent in
/// memory, so their cache misses overlap.
const AHEAD_COUNT_MAX: usize = 32;
/// Number of entries that a scan first reads ahead. It doubles each time, so that a short scan does
/// little useless work.
const FIRST_AHEAD_COUNT: usize = 4;

/// Size in bytes from which a record's buffer becomes its value. Values of smaller records are
/// copied.
const COPIED_SIZE_BYTES_MAX: usize = 64 << 10;

/// Iterator over keys of a snapshot and their values.
///
/// Each key costs one read of the log. Of the trees, it reads the blocks in the range, with
/// read-ahead if the scan is ascending. It looks at up to 32 entries ahead. After an error, it
/// ends.
pub struct Scan<'s> {
    snapshot: &'s Snapshot,
    /// Remaining entries; `None` if nothing follows those that were read ahead.
    merge: Option<Merge<Box<dyn EntrySource + 's>, &'s ValueLog>>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    direction: Direction,
    ahead: VecDeque<ReadAheadEntry>,
    ahead_count: usize,
    /// Error that ended the scan, if any. It is returned after the entries that were read ahead.
    failed: Option<LsmError>,
    /// Reusable buffers of keys that were read ahead.
    buffers: Vec<Vec<u8>>,
    record: Record,
}

/// Entry that was read ahead, and whose record is not read yet.
struct ReadAheadEntry {
    /// Known bytes of the key.
    key: Vec<u8>,
    continues: bool,
    position: LogPosition,
}

impl fmt::Debug for Scan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} scan of {:?}", self.direction, self.snapshot)
    }
}

impl Snapshot {
    /// Scans the keys between two bounds. Seeking in all trees costs one block per level.
    ///
    /// # Errors
    /// [`LsmError::CorruptLog`], [`LsmError::CorruptTree`], or files cannot be read.
    pub fn scan(
        &self,
        (lower, upper): KeyRange<'_>,
        direction: Direction,
    ) -> Result<Scan<'_>, LsmError> {
        let from = match (direction, lower, upper) {
            (Direction::Ascending, from, _) | (Direction::Descending, _, from) => from,
        };
        let from = match from {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        let mut sources: Vec<Box<dyn EntrySource + '_>> = Vec::new();
        for memtable in self.version.memtables() {
            let mut cursor = MemtableCursor::new(memtable, self.bound);
            match (direction, from) {
                (Direction::Ascending, Some(key)) => cursor.seek(key),
                (Direction::Ascending, None) => cursor.seek_first(),
                (Direction::Descending, Some(key)) => cursor.seek_back(key),
                (Direction::Descending, None) => cursor.seek_last(),
            }
            match direction {
                Direction::Ascending => sources.push(Box::new(cursor)),
                Direction::Descending => sources.push(Box::new(Backward(cursor))),
            }
        }
        let keys = &*self.core.log;
        for live in self.version.trees() {
            let mut cursor = TreeCursor::new(Arc::clone(live.tree()), ReadAhead::SCAN);
            match (direction, from) {
                (Direction::Ascending, Some(key)) => cursor.seek(key, keys)?,
                (Direction::Ascending, None) => cursor.seek_first()?,
                (Direction::Descending, Some(key)) => cursor.seek_back(key, keys)?,
                (Direction::Descending, None) => cursor.seek_last()?,
            }
            match direction {
                Direction::Ascending => sources.push(Box::new(Forward(cursor))),
                Direction::Descending => sources.push(Box::new(Backward(cursor))),
            }
        }
        let merge = match direction {
            Direction::Ascending => Merge::new(sources, Deletes::Omit, keys)?,
            Direction::Descending => Merge::descending(sources, Deletes::Omit, keys)?,
        };
        Ok(Scan {
            snapshot: self,
            merge: Some(merge),
            lower: lower.map(<[u8]>::to_vec),
            upper: upper.map(<[u8]>::to_vec),
            direction,
            ahead: VecDeque::new(),
            ahead_count: FIRST_AHEAD_COUNT,
            failed: None,
            buffers: Vec::new(),
            record: Record::default(),
        })
    }
}

/// Cursor of a tree that moves forward.
struct Forward(TreeCursor);
/// Cursor that moves backward.
struct Backward<C>(C);

// Only merges that write trees use the sizes of records.
impl EntrySource for Forward {
    fn entry(&self) -> Option<Entry<'_>> {
        self.0.entry()
    }

    fn record_size_bytes(&self) -> u64 {
        0
    }

    fn advance(&mut self) -> Result<(), LsmError> {
        self.0.advance()
    }
}

impl EntrySource for Backward<TreeCursor> {
    fn entry(&self) -> Option<Entry<'_>> {
        self.0.entry()
    }

    fn record_size_bytes(&self) -> u64 {
        0
    }

    fn advance(&mut self) -> Result<(), LsmError> {
        self.0.retreat()
    }
}

impl EntrySource for Backward<MemtableCursor<'_>> {
    fn entry(&self) -> Option<Entry<'_>> {
        self.0.entry()
    }

    fn record_size_bytes(&self) -> u64 {
        self.0.record_size_bytes()
    }

    fn advance(&mut self) -> Result<(), LsmError> {
        self.0.retreat();
        Ok(())
    }
}

impl Scan<'_> {
    /// Returns true if the known bytes of a key prove that it, and all later ones, are out of
    /// range.
    fn is_behind(&self, key: KnownKey<'_>) -> bool {
        let is_ascending = self.direction == Direction::Ascending;
        let end = if is_ascending {
            &self.upper
        } else {
            &self.lower
        };
        let (end, is_excluded) = match end {
            Bound::Unbounded => return false,
            Bound::Included(end) => (end, false),
            Bound::Excluded(end) => (end, true),
        };
        let order = key.compare(KnownKey::whole(end));
        order.is_some_and(|order| match order {
            Ordering::Equal => is_excluded,
            Ordering::Greater => is_ascending,
            Ordering::Less => !is_ascending,
        })
    }

    /// Returns true if a key is the excluded bound at which the scan starts.
    fn is_excluded_start(&self, key: &[u8]) -> bool {
        let start = match self.direction {
            Direction::Ascending => &self.lower,
            Direction::Descending => &self.upper,
        };
        matches!(start, Bound::Excluded(start) if start == key)
    }

    /// Takes the next entries of the merge and prefetches all their records at once, so that cache
    /// misses overlap.
    fn read_ahead(&mut self) {
        self.take_ahead();
        self.ahead_count = (2 * self.ahead_count).min(AHEAD_COUNT_MAX);
        let log = &self.snapshot.core.log;
        let mut spans = [Span::EMPTY; AHEAD_COUNT_MAX];
        for (span, next) in spans.iter_mut().zip(&self.ahead) {
            *span = log.span(next.position);
        }
        for span in &spans[..self.ahead.len()] {
            span.prefetch();
        }
    }

    fn take_ahead(&mut self) {
        while self.ahead.len() < self.ahead_count {
            let Some(entry) = self.merge.as_ref().and_then(EntrySource::entry) else {
                return;
            };
            if self.is_behind(entry.key) {
                self.merge = None;
                return;
            }
            let mut key = self.buffers.pop().unwrap_or_default();
            key.clear();
            key.extend_from_slice(entry.key.bytes);
            self.ahead.push_back(ReadAheadEntry {
                key,
                continues: entry.key.continues,
                position: entry.position,
            });
            if let Some(Err(error)) = self.merge.as_mut().map(EntrySource::advance) {
                self.failed = Some(error);
                self.merge = None;
            }
        }
    }

    fn take_next(&mut self) -> Result<Option<KeyValue>, LsmError> {
        loop {
            if self.ahead.is_empty() {
                self.read_ahead();
            }
            let Some(next) = self.ahead.pop_front() else {
                return self.failed.take().map_or(Ok(None), Err);
            };
            let position = next.position;
            self.snapshot.core.log.read(position, &mut self.record)?;
            let known = KnownKey {
                bytes: &next.key,
                continues: next.continues,
            };
            let key = self.record.key();
            let order = known.compare(KnownKey::whole(key));
            // `None` means that the key begins with the known bytes and continues, so it may be
            // right.
            if order.is_some_and(Ordering::is_ne) {
                return Err(not_of_the_key(position));
            }
            self.buffers.push(next.key);
            if self.is_behind(KnownKey::whole(key)) {
                return Ok(None);
            }
            if !self.is_excluded_start(key) {
                let key = key.to_vec();
                let value = if self.record.size_bytes() > COPIED_SIZE_BYTES_MAX {
                    std::mem::take(&mut self.record).into_value()
                } else {
                    self.record.value().to_vec()
                };
                return Ok(Some((key, value)));
            }
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<KeyValue, LsmError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.take_next();
        if !matches!(next, Ok(Some(_))) {
            self.merge = None;
            self.ahead.clear();
            self.failed = None;
        }
        next.transpose()
    }
}
