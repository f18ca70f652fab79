//! What each operation costs with each search layer, in units that no hardware changes: round
//! trips, bytes and atomics by the session's own counters, and what the session holds.
//!
//! For each layer a pool of its own is loaded with the same keys, and one session does as many gets
//! as are counted afterwards, so that it has met what it keeps. Then come, in this order and each
//! so often: gets, scans of 10 and of 100 records and updates of random loaded records, inserts,
//! and deletes of loaded records. Nothing is retrained meanwhile and nobody else is in the pool, so
//! that the counts are the same in every run. Every answer is checked.

mod config;
mod measure;
mod rows;

pub use config::CostsConfig;
pub use measure::{CostRow, CostsSink, run};
pub use rows::{cost_row, header_text};
