//! L0: the newest writes, in memory, in key order.
//!
//! L0 is a B+-tree with one writer and any number of concurrent readers, which never wait:
//!
//! - **Versions.** An entry is a version of a key: its log position, whether it is a delete, and
//!   the size of its record. The tree has all versions of a key, newest first. A node has the first
//!   16 bytes of each key as two words, which distinguish most keys. The rest of an entry is stored
//!   elsewhere. It is written before any node refers to it, and never changes.
//! - **Publishing.** A node has 15 slots. A slot is written once, before the node's *order* names
//!   it. The order is one word that lists the used slots by rank. It is stored with release and
//!   loaded with acquire ordering, so a reader that loads it sees everything that it names.
//! - **Splits.** A leaf without a free slot is not changed. Its entries and the new one go to two
//!   new leaves. If the new entry is behind all of them and the next leaf is not sparse, only the
//!   new entry goes to a new leaf. The parent names the new leaves by one store of its order. If
//!   the parent has too few free slots, it is replaced by a new node as well, and so on up. The
//!   root is one word. The previous leaf is linked to the new one. Replaced nodes never change
//!   again.
//! - **Separators.** Nothing is removed from a tree. The parent's key of a leaf is the leaf's least
//!   key at its creation, and no smaller key ever enters the leaf. The first leaf has no separator.
//! - **Memory.** All memory is freed together with the tree.
//!
//! *Why readers miss nothing.* A reader must see everything inserted before it began, at time T.
//! Each node that it visits was in force at T or later:
//!
//! - The root that it loads is in force.
//! - A node that is in force when the reader loads a child from it names a child that is in force.
//! - A node that was replaced at time F names nodes that were in force at F. By the same argument
//!   it was in force at T or later, so F is later than T.
//!
//! A leaf has everything in its range that was inserted before it was replaced (*Splits*). Ranges
//! never change where they begin (*Separators*), and the link to the next leaf is from the same
//! moment. Versions that are added later have later log positions, and a reader with a bound skips
//! them.

mod arena;
mod cursor;
mod key;
mod node;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;
use std::sync::OnceLock;

pub use self::cursor::MemtableCursor;
use self::key::{Meta, SearchPosition};
use self::tree::MemtableTree;
use crate::log::LogPin;
use crate::place::LogPosition;

/// Memtable: sorted map from (key, log position) to put or delete.
///
/// All versions of a key are present. So a reader with a bound sees everything written before that
/// position, whatever is added later. Readers never wait. Writers are serialized; the log's lock
/// already ensures that.
pub struct Memtable {
    tree: MemtableTree,
    /// Log position from which recovery must read to restore the entries.
    start: LogPosition,
    /// End of the memtable and a pin of its log segments, set when it is frozen.
    end: OnceLock<(LogPosition, LogPin)>,
}

/// Result of a get in a memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemtableMatch {
    /// Position of the record.
    pub position: LogPosition,
    /// Whether the record is a delete.
    pub is_delete: bool,
}

impl fmt::Debug for Memtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "L0 from {} on, {} entries",
            self.start,
            self.entry_count()
        )
    }
}

impl Memtable {
    /// Maximum size of a memtable in bytes: 16 GiB, since its parts have numbers of 32 bits.
    pub const SIZE_BYTES_MAX: usize = 16 << 30;

    /// Creates an empty memtable for writes from a log position on.
    pub fn new(start: LogPosition) -> Self {
        Self {
            tree: MemtableTree::new(),
            start,
            end: OnceLock::new(),
        }
    }

    /// Inserts a put or a delete. Costs a search, and about 120 bytes of memory.
    pub fn insert(
        &self,
        key: &[u8],
        position: LogPosition,
        record_size_bytes: u64,
        is_delete: bool,
    ) {
        let meta = Meta {
            key_size_bytes: key.len(),
            is_delete,
            record_size_bytes,
        };
        self.tree.insert(key, position, meta);
    }

    /// Returns the newest version of a key among those written before a log position.
    pub fn get(&self, key: &[u8], bound: LogPosition) -> Option<MemtableMatch> {
        let search = SearchPosition::new(key, bound);
        let at = self.tree.first_from(&search)?;
        self.tree.is_of(&at, &search).then(|| {
            let (position, meta) = self.tree.place(&at);
            MemtableMatch {
                position,
                is_delete: meta.is_delete,
            }
        })
    }

    /// Returns the memory size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.tree.size_bytes()
    }

    /// Returns the size in the log of all versions' records, in bytes.
    pub fn log_size_bytes(&self) -> u64 {
        self.tree.log_size_bytes()
    }

    /// Returns the number of versions of all keys.
    pub fn entry_count(&self) -> usize {
        self.tree.entry_count()
    }

    /// Returns the log position from which on the memtable has everything.
    pub const fn start(&self) -> LogPosition {
        self.start
    }

    /// Freezes the memtable, which has everything up to a log position. It receives no more writes,
    /// and keeps the log segments of its records.
    pub fn freeze(&self, end: LogPosition, pin: LogPin) {
        let is_first = self.end.set((end, pin)).is_ok();
        assert!(is_first, "a memtable is frozen once");
    }

    /// Returns the end of the memtable, if it is frozen.
    pub fn end(&self) -> Option<LogPosition> {
        self.end.get().map(|(end, _)| *end)
    }
}
