//! L0: the newest writes, in memory, in the order of their keys (VL4).
//!
//! A B+-tree that one writes and many read at the same time, none of whom waits for another one:
//!
//! - **MT1. Versions.** An entry is a version of a key: its place in the log, whether it deletes,
//!   the size of its record. All versions of a key are there, the newest first. A node has the
//!   first 16 bytes of each key as two words, which tell most keys apart; the rest of an entry lies
//!   elsewhere, is written before any node names it, and stays as it is.
//! - **MT2. Publishing.** A node has 15 slots. A slot is written once, before the node's *order*
//!   names it. The order is one word: which slots count, by rank. It is stored by a release and
//!   loaded by an acquire; whoever has loaded it sees all that it names, whatever comes later.
//! - **MT3. Splits.** A leaf without a free slot stays as it is. Its entries and the new one go to
//!   two new leaves, or, if the new one is behind all of them and the next leaf is not sparse, that
//!   one alone goes to a new leaf.
//!   The node above names what is new by one store of its order; if it has too few slots left, it
//!   stays as it is, too, and a new one takes its place, and so on. The root is one word. The leaf
//!   before is told which one comes behind it now. What was replaced is not changed any more.
//! - **MT4. Separators.** Nothing leaves a tree. A leaf's least key when it was made is the key
//!   that the node above has of it, and what is less never comes into it; the first leaf has none.
//! - **MT5. Room.** All that is given out goes when the tree goes.
//!
//! *Why a reader misses nothing.* It has to see what was inserted before it began, at T. Each node
//! that it comes to was in force at T or later: the root that it loads is; a node that is in force
//! when it reads a number from it names one that is in force; and one that was replaced at F names
//! what was in force then, F being later than T, as by the same argument it was in force at T or
//! later. A leaf has in its range all that was inserted before it was replaced (MT3), ranges begin
//! where they always did (MT4), and which leaf is behind is as of the same moment. Versions that
//! come later are those of later places in the log, and a reader that is bound to a place passes
//! them over.

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
use self::key::{Meta, Sought};
use self::tree::Tree;
use crate::place::LogPosition;
use crate::version::LogPin;

/// (Key, place in the log), put or delete, in order.
///
/// All versions of a key are there, each with its place; so a reader that is bound to a place sees
/// what was written before it, whatever comes later. Whoever reads waits for nobody. Who writes
/// does so one at a time; the log's lock sees to that already (VL4).
pub struct Memtable {
    tree: Tree,
    /// The log is read again from there for what is in here.
    start: LogPosition,
    /// When it is frozen: where it ends, and the log that it leads to.
    end: OnceLock<(LogPosition, LogPin)>,
}

/// What a memtable answers to a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where the record is.
    pub position: LogPosition,
    /// It deletes the key.
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
    /// The largest that one may become, as its parts have numbers of 32 bits: 16 GiB.
    pub const SIZE_BYTES_MAX: usize = 16 << 30;

    /// An empty one for what is written from a place in the log on.
    pub fn new(start: LogPosition) -> Self {
        Self {
            tree: Tree::new(),
            start,
            end: OnceLock::new(),
        }
    }

    /// Takes in a put or a delete. Costs a search, and some 120 bytes.
    pub fn insert(
        &self,
        key: &[u8],
        (position, record_size_bytes): (LogPosition, u64),
        is_delete: bool,
    ) {
        let meta = Meta {
            key_size_bytes: key.len(),
            is_delete,
            record_size_bytes,
        };
        self.tree.insert(key, position, meta);
    }

    /// The newest version of a key of those that were written before a place.
    pub fn get(&self, key: &[u8], bound: LogPosition) -> Option<Found> {
        let sought = Sought::new(key, bound);
        let at = self.tree.first_from(&sought)?;
        self.tree.is_of(&at, &sought).then(|| {
            let (position, meta) = self.tree.place(&at);
            Found {
                position,
                is_delete: meta.is_delete,
            }
        })
    }

    /// Bytes that it takes.
    pub fn size_bytes(&self) -> usize {
        self.tree.size_bytes()
    }

    /// Bytes of the log that the records of all its versions take.
    pub fn log_size_bytes(&self) -> u64 {
        self.tree.log_size_bytes()
    }

    /// Versions in it, all of each key.
    pub fn entry_count(&self) -> usize {
        self.tree.entry_count()
    }

    /// The place in the log from which on it has everything.
    pub const fn start(&self) -> LogPosition {
        self.start
    }

    /// Nothing is written into it any more: it has everything up to a place, and keeps the log that
    /// it leads to.
    pub fn freeze(&self, end: LogPosition, pin: LogPin) {
        let is_first = self.end.set((end, pin)).is_ok();
        assert!(is_first, "a memtable is frozen once");
    }

    /// Where it ends, if it is frozen.
    pub fn end(&self) -> Option<LogPosition> {
        self.end.get().map(|(end, _)| *end)
    }
}
