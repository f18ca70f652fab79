//! Trees: immutable B+-trees of heads of keys and places in the log (LT1 to LT5).
//!
//! A tree is written once, from left to right, by a [`TreeBuilder`] into a [`BlockSink`]; from then
//! on a [`Tree`] reads it from a [`BlockSource`], through a cache. Where its blocks are is not this
//! module's business: a tree knows its blocks by their numbers, and keys that are longer than what
//! it has of them by a [`KeySource`].
//!
//! | module | what it holds |
//! |---|---|
//! | `format` | the header and checksum of all blocks |
//! | `leaf`, `pointer` | leaves as they are read and written |
//! | `leaf_builder` | the leaf that is being filled, and when it is full |
//! | `separator`, `inner` | what stands between two children, and the blocks of those |
//! | `filter`, `hash` | which keys are not there |
//! | `references` | which log segments a tree leads into |
//! | `shape` | what the manifest keeps of a tree |
//! | `builder` | writes a tree |
//! | `reader` | one key of a tree |
//! | `cursor` | all keys of a tree, in both directions |
//! | `merge` | many sources of entries as one |

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

/// Where the blocks of a tree are written, one behind the other.
pub trait BlockSink {
    /// Appends blocks. A builder appends a whole segment each time, and what is left the last time:
    /// no call has blocks of two segments. What is left in the buffer is cleared by the caller.
    ///
    /// # Errors
    /// They cannot be written: the tree will not be finished.
    fn append(&mut self, blocks: &mut Vec<u8>) -> Result<(), LsmError>;
}

impl<S: BlockSink + ?Sized> BlockSink for &mut S {
    fn append(&mut self, blocks: &mut Vec<u8>) -> Result<(), LsmError> {
        (**self).append(blocks)
    }
}

/// FO5: whether bytes are blocks of a tree, from this number on, by their checksums and headers.
///
/// # Errors
/// [`LsmError::DamagedTree`]: which one is not.
pub fn check_blocks(tree: TreeId, first: BlockNumber, bytes: &[u8]) -> Result<(), LsmError> {
    for (number, block) in (first.0..).zip(bytes.chunks(BLOCK_SIZE_BYTES)) {
        let number = BlockNumber(number);
        let Some(block) = block.first_chunk() else {
            return Err(format::damaged(tree, number, "it is not whole"));
        };
        format::check_block(block, tree, number)?;
    }
    Ok(())
}

/// Where the blocks of a tree are read.
pub trait BlockSource: Send + Sync {
    /// Fills a buffer with as many blocks as it is long, from this one on. Trees ask only for
    /// blocks that they have, and never for blocks of two segments at a time.
    ///
    /// # Errors
    /// They cannot be read.
    fn read(&self, first: BlockNumber, buffer: &mut [u8]) -> Result<(), LsmError>;
}

/// An entry of a tree, as far as the tree knows it, or as it comes to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'k> {
    /// The key, as far as it is known.
    pub key: KnownKey<'k>,
    /// The hash of all of it ([`key_hash`]).
    pub hash: u64,
    /// Where its record is.
    pub position: LogPosition,
    /// The record deletes it.
    pub is_delete: bool,
}

/// Reads a key from the log if all of it is not known.
fn whole_key(
    key: KnownKey<'_>,
    position: LogPosition,
    keys: &dyn KeySource,
) -> Result<Vec<u8>, LsmError> {
    if !key.goes_on {
        return Ok(key.bytes.to_vec());
    }
    let mut whole = Vec::new();
    keys.append_key(position, &mut whole)?;
    Ok(whole)
}
