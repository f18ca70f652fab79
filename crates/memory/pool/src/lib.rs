//! What lies where in a memory node's region, and how sessions share it.
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
//! A pool of several nodes has all of this in the region of its home node; of the regions of the
//! others, the superblock, the chunk table, its hot word and the chunks are in use.
//!
//! Each format has one module with its layout, its decoder and its golden bytes. [`allocation`]
//! and [`catalog`] hold the two protocols of this crate; both are made so that a client may die
//! between any two verbs. Neither is on the path of a read or a write.

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
mod pool;

pub use error::RegionError;
pub use layout::{ChunkIndex, FORMAT_VERSION, RegionLayout, Superblock, SuperblockError};
pub use pool::PoolLayout;
