//! Many keys in their order, in both directions.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use super::Snapshot;
use super::read::not_of_the_key;
use crate::error::LsmError;
use crate::head::KnownKey;
use crate::log::{Record, ValueLog};
use crate::memtable::MemtableCursor;
use crate::tree::{Deletes, Entry, EntrySource, Merge, ReadAhead, TreeCursor};

/// Which key comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The next greater one.
    Ascending,
    /// The next less one.
    Descending,
}

/// Bounds of a scan: the lower one, the upper one.
pub type KeyRange<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Keys of a snapshot, with their values.
///
/// For each key one read of the log; of trees, those that are in the range, with reading ahead when
/// it ascends. After an error it has ended.
pub struct Scan<'s> {
    snapshot: &'s Snapshot,
    merge: Option<Merge<Box<dyn EntrySource + 's>, &'s ValueLog>>,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    direction: Direction,
    record: Record,
}

impl fmt::Debug for Scan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} scan of {:?}", self.direction, self.snapshot)
    }
}

impl Snapshot {
    /// Goes through the keys between two bounds. Seeks in all trees: a block for each level.
    ///
    /// # Errors
    /// [`LsmError::DamagedLog`], [`LsmError::DamagedTree`], or files cannot be read.
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
            Direction::Ascending => Merge::new(sources, Deletes::Go, keys)?,
            Direction::Descending => Merge::descending(sources, Deletes::Go, keys)?,
        };
        Ok(Scan {
            snapshot: self,
            merge: Some(merge),
            lower: lower.map(<[u8]>::to_vec),
            upper: upper.map(<[u8]>::to_vec),
            direction,
            record: Record::default(),
        })
    }
}

/// A cursor of a tree that advances.
struct Forward(TreeCursor);
/// A cursor whose next entry is the one before.
struct Backward<C>(C);

// Only merges that write trees ask for the sizes of records.
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
    /// Whether what is known of a key tells that it, and all that come later, are out of range.
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

    /// Whether a key is the one from which the scan goes on, and not of it.
    fn is_excluded_start(&self, key: &[u8]) -> bool {
        let start = match self.direction {
            Direction::Ascending => &self.lower,
            Direction::Descending => &self.upper,
        };
        matches!(start, Bound::Excluded(start) if start == key)
    }

    fn take_next(&mut self) -> Result<Option<Pair>, LsmError> {
        loop {
            let Some(entry) = self.merge.as_ref().and_then(EntrySource::entry) else {
                return Ok(None);
            };
            if self.is_behind(entry.key) {
                return Ok(None);
            }
            let position = entry.position;
            self.snapshot.core.log.read(position, &mut self.record)?;
            let order = entry.key.compare(KnownKey::whole(self.record.key()));
            // Not told: the key begins with what is known, and goes on.
            if order.is_some_and(Ordering::is_ne) {
                return Err(not_of_the_key(position));
            }
            if let Some(merge) = &mut self.merge {
                merge.advance()?;
            }
            let key = self.record.key().to_vec();
            if self.is_behind(KnownKey::whole(&key)) {
                return Ok(None);
            }
            if !self.is_excluded_start(&key) {
                return Ok(Some((key, std::mem::take(&mut self.record).into_value())));
            }
        }
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<Pair, LsmError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.take_next();
        if !matches!(next, Ok(Some(_))) {
            self.merge = None;
        }
        next.transpose()
    }
}
