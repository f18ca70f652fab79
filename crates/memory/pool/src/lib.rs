//! Layout of a memory node's memory, and the protocols by which sessions share it.
//!
//! ```text
//! block 0        superblock: magic, format version, sizes, checksum          ([`Superblock`])
//! blocks 1..     one hot word each: alloc_num, catalog lock, sequence, ...   ([`layout`])
//! blocks 6..     what retraining has done, and its queue              ([`tally`], [`queue`])
//! sessions       one block per session number                                ([`session`])
//! catalog        four blocks per table                                       ([`catalog`])
//! members        two blocks per node of the pool                             ([`members`])
//! chunk table    one block per chunk: owner, purpose, free leaves            ([`chunk`])
//! chunks         64 KiB each: leaves, runs of leaves, search-layer snapshots
//! ```
//!
//! A pool of several nodes has all of this in the memory of its main node. The other nodes use only
//! the superblock, the chunk table, its hot word and the chunks.
//!
//! Each format has one module with its layout, its decoder and its golden bytes. [`allocation`] and
//! [`catalog`] contain the two protocols of this crate. A client may die between any two of their
//! verbs. Neither is on the path of a read or a write.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod catalog;
pub mod chunk;
pub mod layout;
pub mod members;
pub mod part;
pub mod queue;
pub mod session;
pub mod tally;

mod error;
#[cfg(test)]
mod fuzz;
mod pool_layout;

pub use error::PoolError;
pub use layout::{ChunkIndex, FORMAT_VERSION, NodeLayout, Superblock, SuperblockError};
pub use pool_layout::PoolLayout;
