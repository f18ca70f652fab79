//! The LSM engine of persistent tables: values in a log, heads of keys in B+-trees.
//!
//! The rules VL (value log), LT (trees), LC (levels and what becomes free) and MF (manifest) are in
//! `docs/lsm.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`engine`] | the map: open, put, get, scan, and background work |
//! | [`version`] | what a reader sees, and what must stay because of it |
//! | [`memtable`] | L0: the newest writes, in memory |
//! | [`log`] | the value log |
//! | [`manifest`] | what each segment is |
//! | [`device`] | files of segments |
//! | [`storage`] | files: real ones, ones that fail, ones that lose power |
//! | [`place`] | segments, positions, blocks |
//! | [`head`] | keys as far as trees have them |
//! | [`tree`] | B+-trees: written once, read, merged |
//! | [`cache`] | their blocks in memory, under a budget |

#![forbid(unsafe_code)]

pub mod cache;
pub mod device;
pub mod engine;
pub mod error;
pub mod head;
pub mod log;
pub mod manifest;
pub mod memtable;
pub mod place;
pub mod storage;
pub mod tree;
pub mod version;

pub use engine::{Durability, Engine, EngineOptions};
pub use error::LsmError;
