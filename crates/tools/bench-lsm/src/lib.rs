//! Farleaf's LSM engine beside fjall and RocksDB: the same records, requests and durability, in one
//! run.
//!
//! | module | what it holds |
//! |---|---|
//! | [`engines`] | the engines, a file each, and what each has to offer |
//! | [`work`] | loads and runs: drawn by a seed, the same for all |
//! | [`comparison`] | rounds, interleaved |
//! | [`device`] | bytes that this process has the device write and read |
//! | [`report`] | medians and ratios, as a table and as JSON |
//!
//! What it is not: a gate. Times on a shared machine vary by a tenth and more; hence medians of
//! rounds that all engines take in turn, and ratios of one run.
#![doc = include_str!("../../../docs/lsm-peers.md")]
#![forbid(unsafe_code)]

pub mod comparison;
pub mod device;
pub mod engines;
pub mod report;
pub mod work;
