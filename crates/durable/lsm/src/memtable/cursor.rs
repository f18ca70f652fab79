//! Walks through L0, as of a place in the log.

use std::fmt;

use super::Memtable;
use super::key::Sought;
use super::tree::{At, Tree};
use crate::error::LsmError;
use crate::head::KnownKey;
use crate::place::LogPosition;
use crate::tree::{Entry, EntrySource, key_hash};

/// Goes through the keys of a memtable as of a place in the log, each with its newest version,
/// ascending or descending. At first it is nowhere. A step is a search or two where a key has many
/// versions, so these cost no more than that; and none where it has one, but for the step to
/// another leaf, descending.
pub struct MemtableCursor<'m> {
    memtable: &'m Memtable,
    bound: LogPosition,
    current: Option<Current>,
    /// The leaf of which the processor was asked for all.
    leaf: Option<u32>,
    key: Vec<u8>,
}

/// The version that a cursor is on; its key is in the cursor's buffer.
#[derive(Clone, Copy, Debug)]
struct Current {
    at: At,
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
    /// Of what was written before a place in the log.
    pub const fn new(memtable: &'m Memtable, bound: LogPosition) -> Self {
        Self {
            memtable,
            bound,
            current: None,
            leaf: None,
            key: Vec::new(),
        }
    }

    /// Goes to the first key.
    pub fn seek_first(&mut self) {
        self.settle_from(self.tree().first());
    }

    /// Goes to the last key.
    pub fn seek_last(&mut self) {
        self.settle_back_from(self.tree().last());
    }

    /// Goes to the first key that is not less than this one.
    pub fn seek(&mut self, key: &[u8]) {
        self.settle_from(self.tree().first_from(&Sought::before(key)));
    }

    /// Goes to the last key that is not greater than this one.
    pub fn seek_back(&mut self, key: &[u8]) {
        self.settle_back_from(self.tree().last_before(&Sought::behind(key)));
    }

    /// The entry that it is on.
    pub fn entry(&self) -> Option<Entry<'_>> {
        let current = self.current?;
        Some(Entry {
            key: KnownKey::whole(&self.key),
            hash: current.hash,
            position: current.position,
            is_delete: current.is_delete,
        })
    }

    /// Size of the record of the entry that it is on.
    pub fn record_size_bytes(&self) -> u64 {
        self.current.map_or(0, |current| current.record_size_bytes)
    }

    /// Goes to the next key.
    pub fn advance(&mut self) {
        if let Some(current) = self.current.take() {
            // The buffer has its key still.
            self.settle_from(self.behind(&current.at));
        }
    }

    /// Goes to the key before.
    pub fn retreat(&mut self) {
        if let Some(current) = self.current.take() {
            self.settle_back_from(self.before(&current.at));
        }
    }

    const fn tree(&self) -> &'m Tree {
        &self.memtable.tree
    }

    /// The first version of the key behind the one in the buffer, which this is a version of. No
    /// search, if no other version comes between.
    fn behind(&self, at: &At) -> Option<At> {
        let next = self.tree().behind(at)?;
        let behind = Sought::behind(&self.key);
        if self.tree().is_of(&next, &behind) {
            self.tree().first_from(&behind)
        } else {
            Some(next)
        }
    }

    /// The last version of the key before the one in the buffer, which this is a version of. No
    /// search, if that is in the same leaf and no other version comes between.
    fn before(&self, at: &At) -> Option<At> {
        let before = Sought::before(&self.key);
        match self.tree().before_in_leaf(at) {
            Some(other) if !self.tree().is_of(&other, &before) => Some(other),
            _ => self.tree().last_before(&before),
        }
    }

    /// Goes to the version of a key that is in sight, or to the next key that has one. Given is the
    /// first version of the first key.
    fn settle_from(&mut self, mut first: Option<At>) {
        while let Some(at) = first {
            self.prefetch_leaf(&at);
            self.tree().read_key(&at, &mut self.key);
            // The first version is the newest one: if it is in sight, it is that.
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

    /// The same the other way. Given is the last version of a key.
    fn settle_back_from(&mut self, mut last: Option<At>) {
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

    fn prefetch_leaf(&mut self, at: &At) {
        if self.leaf != Some(at.leaf) {
            self.leaf = Some(at.leaf);
            self.tree().prefetch_leaf(at);
        }
    }

    /// Goes to the version in sight of the key in the buffer, if there is one.
    fn settle(&mut self) -> bool {
        let sought = Sought::new(&self.key, self.bound);
        let newest = self.tree().first_from(&sought);
        match newest.filter(|at| self.tree().is_of(at, &sought)) {
            Some(at) => {
                self.settle_on(at);
                true
            }
            None => false,
        }
    }

    fn settle_on(&mut self, at: At) {
        let (position, meta) = self.tree().place(&at);
        self.current = Some(Current {
            at,
            hash: key_hash(&self.key),
            position,
            is_delete: meta.is_delete,
            record_size_bytes: meta.record_size_bytes,
        });
    }
}

/// What a flush takes: ascending.
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
