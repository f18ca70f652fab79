//! The LSM engine of persistent tables: values in a log, heads of keys in B+-trees.
//!
//! The rules VL (value log), LT (trees), LC (levels and what becomes free) and MF (manifest) are in
//! `docs/lsm.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`storage`] | files: real ones, ones that fail, ones that lose power |
//! | [`place`] | segments, positions, blocks |
//! | [`head`] | keys as far as trees have them |
//! | [`tree`] | B+-trees: written once, read, merged |
//! | [`cache`] | their blocks in memory, under a budget |

#![forbid(unsafe_code)]

pub mod cache;
pub mod device;
pub mod error;
pub mod head;
pub mod log;
pub mod manifest;
pub mod place;
pub mod storage;
pub mod tree;

pub use error::LsmError;
