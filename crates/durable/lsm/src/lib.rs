//! The LSM engine of persistent tables: values in a log, heads of keys in B+-trees.
//!
//! An ordered map from byte strings to byte strings in a directory, for one process at a time. What
//! it is not: it has no transactions (a write is one key), no compression, and no thread of its own
//! unless it is asked for one.
//!
//! ```
//! use std::sync::Arc;
//!
//! use farleaf_lsm::storage::DirectoryStorage;
//! use farleaf_lsm::{Durability, Engine, EngineOptions};
//!
//! let directory = tempfile::tempdir()?;
//! let storage = Arc::new(DirectoryStorage::open(directory.path())?);
//! let engine = Engine::open(storage, EngineOptions::new())?;
//! let _worker = engine.start_worker();
//! engine.put(b"key", b"value", Durability::Sync)?;
//! assert_eq!(engine.get(b"key")?, Some(b"value".to_vec()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The rules VL (value log), LT (trees), LC (levels and what becomes free), MF (manifest), FO
//! (following) and SC (scrubbing) are in `docs/lsm.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`follow`] | who follows an engine, and a directory that does: replication stands on it |
//! | [`engine`] | the map: open, put, get, scan, and background work |
//! | [`version`] | what a reader sees, and what must stay because of it |
//! | [`memtable`] | L0: the newest writes, in memory |
//! | [`log`] | the value log |
//! | [`manifest`] | what each segment is |
//! | [`device`], [`free`] | files of segments, and which of those are free |
//! | [`storage`] | files: real ones, ones that fail, ones that lose power |
//! | [`inspect`] | reading a directory without opening it, and comparing two |
//! | [`scrub`] | looking for bits that have flipped |
//! | [`place`] | segments, positions, blocks |
//! | [`written`] | checksums of what was written, which replicas compare |
//! | [`head`] | keys as far as trees have them |
//! | [`tree`] | B+-trees: written once, read, merged |
//! | [`cache`] | their blocks in memory, under a budget |
//! | `prefetch` | asking the processor for memory that is read soon |

pub mod cache;
pub mod device;
pub mod engine;
pub mod error;
pub mod follow;
pub mod free;
pub mod head;
pub mod inspect;
pub mod log;
pub mod manifest;
pub mod memtable;
pub mod place;
#[expect(
    unsafe_code,
    reason = "asks the processor for memory before it is read"
)]
mod prefetch;
pub mod scrub;
pub mod storage;
pub mod tree;
pub mod version;
pub mod written;

pub use engine::{Durability, Engine, EngineOptions};
pub use error::LsmError;
