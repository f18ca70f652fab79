//! The LSM engine of persistent tables: values in a log, heads of keys in B+-trees.
//!
//! An engine is an ordered map from byte strings to byte strings in a directory, for one process at
//! a time. It has no transactions (a write changes one key) and no compression. It starts no thread
//! unless asked to.
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
//! `docs/explanation/lsm.md` describes file formats, durability, background work, and replication.
//!
//! | module | contents |
//! |---|---|
//! | [`follow`] | interface for replication: following an engine, and a follower's directory |
//! | [`engine`] | the map: open, put, get, scan, and background work |
//! | [`version`] | state that a reader uses, and what must stay on the devices because of it |
//! | [`memtable`] | L0: the newest writes, in memory |
//! | [`log`] | the value log |
//! | [`manifest`] | use of each segment |
//! | [`device`], [`free`] | files of segments, and their free segments |
//! | [`storage`] | files: real ones, ones with injected faults, ones that simulate power failures |
//! | [`inspect`] | reading a directory without opening it, and comparing two |
//! | [`scrub`] | reading the devices to find flipped bits |
//! | [`place`] | numbers of segments, log positions, trees and blocks |
//! | [`written`] | checksums of written data, which replicas compare |
//! | [`head`] | comparing keys of which only the first bytes are known |
//! | [`tree`] | B+-trees: written once, read, merged |
//! | [`cache`] | blocks in memory, under a budget |
//! | `prefetch` | hints to the processor about memory that will be read soon |

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
