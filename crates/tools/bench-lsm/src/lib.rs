//! Comparison of Farleaf's LSM engine with fjall and RocksDB: the same records, requests and
//! durability, in one run.
//!
//! | module | content |
//! |---|---|
//! | [`engines`] | the engines, a file each, and their common interface |
//! | [`work`] | loads and runs: drawn by a seed, the same for all |
//! | [`comparison`] | rounds, interleaved |
//! | [`device`] | device bytes that this process writes and reads |
//! | [`report`] | medians and ratios, as a table and as JSON |
//!
//! The comparison is not a gate: times on a shared machine vary by a tenth and more. It therefore
//! reports medians of rounds that all engines take in turn, and ratios within one run.
#![doc = include_str!("../../../../docs/explanation/lsm-peers.md")]
#![forbid(unsafe_code)]

pub mod comparison;
pub mod device;
pub mod engines;
pub mod report;
pub mod work;
