//! Trees: immutable B+-trees of key heads and log positions.
//!
//! A [`TreeBuilder`] writes a tree once, from left to right, into a [`BlockSink`]. A [`Tree`] then
//! reads it from a [`BlockSource`] through a cache. The place of its blocks is the caller's
//! business: a tree refers to them by number. A [`KeySource`] provides keys that are longer than
//! the tree knows.
//!
//! `docs/explanation/lsm.md` describes the format under *Trees*.
//!
//! | module | contents |
//! |---|---|
//! | `format` | header and checksum of all blocks |
//! | `leaf`, `pointer` | layout of leaves |
//! | `leaf_builder` | the leaf being filled, and when it is full |
//! | `separator`, `inner` | separators between children, and layout of inner blocks |
//! | `filter`, `hash` | Bloom filters over the hashes of keys |
//! | `references` | log segments to which a tree refers |
//! | `shape` | description of a tree in the manifest |
//! | `builder` | writing a tree |
//! | `reader` | finding one key of a tree |
//! | `cursor` | iterating over a tree, in both directions |
//! | `merge` | merging several sources of entries |

mod builder;
mod cursor;
mod filter;
mod format;
mod hash;
mod inner;
mod leaf;
mod leaf_builder;
mod merge;
mod pointer;
mod reader;
mod references;
mod separator;
mod shape;
#[cfg(test)]
mod tests;

use crate::error::LsmError;
use crate::head::{KeySource, KnownKey};
use crate::place::{BLOCK_SIZE_BYTES, BlockNumber, LogPosition, TreeId};

pub use builder::TreeBuilder;
pub use cursor::{ReadAhead, TreeCursor, TreeEntries};
pub use format::Block;
pub use hash::key_hash;
pub(crate) use hash::mix;
pub use merge::{Deletes, EntrySource, Merge};
pub use reader::{Candidate, Tree};
pub use references::{Reference, References};
pub use shape::{BlockRange, TreeShape};
#[cfg(test)]
pub(crate) use tests::{block_for_tests, random_numbers};

/// Destination of a tree's blocks, written sequentially.
pub trait BlockSink {
    /// Appends blocks. A builder appends a whole segment each time, and the rest the last time: no
    /// call has blocks of two segments. The caller clears what is left in the buffer.
    ///
    /// # Errors
    /// The blocks cannot be written. The tree will not be finished.
    fn append(&mut self, blocks: &mut Vec<u8>) -> Result<(), LsmError>;
}

impl<S: BlockSink + ?Sized> BlockSink for &mut S {
    fn append(&mut self, blocks: &mut Vec<u8>) -> Result<(), LsmError> {
        (**self).append(blocks)
    }
}

/// Checks that bytes are blocks of a tree from this number on, by their checksums and headers.
///
/// # Errors
/// [`LsmError::CorruptTree`] names the first invalid block.
pub fn check_blocks(tree: TreeId, first: BlockNumber, bytes: &[u8]) -> Result<(), LsmError> {
    for (number, block) in (first.0..).zip(bytes.chunks(BLOCK_SIZE_BYTES)) {
        let number = BlockNumber(number);
        let Some(block) = block.first_chunk() else {
            return Err(format::damaged(tree, number, "it is incomplete"));
        };
        format::check_block(block, tree, number)?;
    }
    Ok(())
}

/// Source of a tree's blocks.
pub trait BlockSource: Send + Sync {
    /// Fills a buffer with consecutive blocks from this one. Trees request only blocks that they
    /// have, and never blocks of two segments at a time.
    ///
    /// # Errors
    /// The blocks cannot be read.
    fn read(&self, first: BlockNumber, buffer: &mut [u8]) -> Result<(), LsmError>;
}

/// Entry of a tree, or for one, with the known part of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'k> {
    /// Known part of the key.
    pub key: KnownKey<'k>,
    /// Hash of the whole key ([`key_hash`]).
    pub hash: u64,
    /// Position of the record.
    pub position: LogPosition,
    /// Whether the record is a delete.
    pub is_delete: bool,
}

/// Returns the whole key, reading it from the log if it is not known completely.
fn whole_key(
    key: KnownKey<'_>,
    position: LogPosition,
    keys: &dyn KeySource,
) -> Result<Vec<u8>, LsmError> {
    if !key.continues {
        return Ok(key.bytes.to_vec());
    }
    let mut whole = Vec::new();
    keys.append_key(position, &mut whole)?;
    Ok(whole)
}
