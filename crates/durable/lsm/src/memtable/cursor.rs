//! Cursors over L0, as of a log position.

use std::fmt;

use super::Memtable;
use super::key::SearchPosition;
use super::tree::{MemtableTree, VersionPosition};
use crate::error::LsmError;
use crate::head::KnownKey;
use crate::place::LogPosition;
use crate::tree::{Entry, EntrySource, key_hash};

/// Cursor over the keys of a memtable as of a log position, each with its newest version, ascending
/// or descending. A new cursor is nowhere.
///
/// A step past a key with many versions costs a search or two, however many versions there are. A
/// step past a key with one version costs none, except to another leaf when descending.
pub struct MemtableCursor<'m> {
    memtable: &'m Memtable,
    bound: LogPosition,
    current: Option<CurrentVersion>,
    /// Number of the leaf whose entries were prefetched last.
    leaf: Option<u32>,
    key: Vec<u8>,
}

/// Version at which a cursor is; its key is in the cursor's buffer.
#[derive(Clone, Copy, Debug)]
struct CurrentVersion {
    at: VersionPosition,
    hash: u64,
    position: LogPosition,
    is_delete: bool,
    record_size_bytes: u64,
}

impl fmt::Debug for MemtableCursor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:?} of {:?}", self.entry(), self.memtable)
    }
}

impl<'m> MemtableCursor<'m> {
    /// Creates a cursor over everything written before a log position.
    pub const fn new(memtable: &'m Memtable, bound: LogPosition) -> Self {
        Self {
            memtable,
            bound,
            current: None,
            leaf: None,
            key: Vec::new(),
        }
    }

    /// Moves to the first key.
    pub fn seek_first(&mut self) {
        self.settle_from(self.tree().first());
    }

    /// Moves to the last key.
    pub fn seek_last(&mut self) {
        self.settle_back_from(self.tree().last());
    }

    /// Moves to the first key that is not less than this one.
    pub fn seek(&mut self, key: &[u8]) {
        self.settle_from(self.tree().first_from(&SearchPosition::before(key)));
    }

    /// Moves to the last key that is not greater than this one.
    pub fn seek_back(&mut self, key: &[u8]) {
        self.settle_back_from(self.tree().last_before(&SearchPosition::behind(key)));
    }

    /// Returns the current entry.
    pub fn entry(&self) -> Option<Entry<'_>> {
        let current = self.current?;
        Some(Entry {
            key: KnownKey::whole(&self.key),
            hash: current.hash,
            position: current.position,
            is_delete: current.is_delete,
        })
    }

    /// Returns the size of the current entry's record in bytes.
    pub fn record_size_bytes(&self) -> u64 {
        self.current.map_or(0, |current| current.record_size_bytes)
    }

    /// Moves to the next key.
    pub fn advance(&mut self) {
        if let Some(current) = self.current.take() {
            // The buffer still has its key.
            self.settle_from(self.behind(&current.at));
        }
    }

    /// Moves to the previous key.
    pub fn retreat(&mut self) {
        if let Some(current) = self.current.take() {
            self.settle_back_from(self.before(&current.at));
        }
    }

    const fn tree(&self) -> &'m MemtableTree {
        &self.memtable.tree
    }

    /// Returns the first version of the key behind the one in the buffer, of which `at` is a
    /// version. Costs no search if no other version is in between.
    fn behind(&self, at: &VersionPosition) -> Option<VersionPosition> {
        let next = self.tree().behind(at)?;
        let behind = SearchPosition::behind(&self.key);
        if self.tree().is_of(&next, &behind) {
            self.tree().first_from(&behind)
        } else {
            Some(next)
        }
    }

    /// Returns the last version of the key before the one in the buffer, of which `at` is a
    /// version. Costs no search if that is in the same leaf and no other version is in between.
    fn before(&self, at: &VersionPosition) -> Option<VersionPosition> {
        let before = SearchPosition::before(&self.key);
        match self.tree().before_in_leaf(at) {
            Some(other) if !self.tree().is_of(&other, &before) => Some(other),
            _ => self.tree().last_before(&before),
        }
    }

    /// Moves to the visible version of a key, or of the next key that has one. `first` is the first
    /// version of the first key.
    fn settle_from(&mut self, mut first: Option<VersionPosition>) {
        while let Some(at) = first {
            self.prefetch_leaf(&at);
            self.tree().read_key(&at, &mut self.key);
            // The first version is the newest one, so if it is visible, it is the result.
            let (position, _) = self.tree().place(&at);
            if position < self.bound {
                self.settle_on(at);
                return;
            }
            if self.settle() {
                return;
            }
            first = self.behind(&at);
        }
        self.current = None;
    }

    /// Moves backward to the visible version of a key, or of the previous key that has one. `last`
    /// is the last version of a key.
    fn settle_back_from(&mut self, mut last: Option<VersionPosition>) {
        while let Some(at) = last {
            self.prefetch_leaf(&at);
            self.tree().read_key(&at, &mut self.key);
            if self.settle() {
                return;
            }
            last = self.before(&at);
        }
        self.current = None;
    }

    fn prefetch_leaf(&mut self, at: &VersionPosition) {
        if self.leaf != Some(at.leaf) {
            self.leaf = Some(at.leaf);
            self.tree().prefetch_leaf(at);
        }
    }

    /// Moves to the visible version of the key in the buffer; returns false if there is none.
    fn settle(&mut self) -> bool {
        let search = SearchPosition::new(&self.key, self.bound);
        let newest = self.tree().first_from(&search);
        match newest.filter(|at| self.tree().is_of(at, &search)) {
            Some(at) => {
                self.settle_on(at);
                true
            }
            None => false,
        }
    }

    fn settle_on(&mut self, at: VersionPosition) {
        let (position, meta) = self.tree().place(&at);
        self.current = Some(CurrentVersion {
            at,
            hash: key_hash(&self.key),
            position,
            is_delete: meta.is_delete,
            record_size_bytes: meta.record_size_bytes,
        });
    }
}

/// Ascending source of entries for a flush.
impl EntrySource for MemtableCursor<'_> {
    fn entry(&self) -> Option<Entry<'_>> {
        MemtableCursor::entry(self)
    }

    fn record_size_bytes(&self) -> u64 {
        MemtableCursor::record_size_bytes(self)
    }

    fn advance(&mut self) -> Result<(), LsmError> {
        MemtableCursor::advance(self);
        Ok(())
    }
}
