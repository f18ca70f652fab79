//! Costs of each operation with each search layer, in units that do not depend on hardware: round
//! trips, bytes and atomics by the session's counters, and the bytes that the session holds.
//!
//! For each layer a new pool is loaded with the same keys. One session first executes as many gets
//! as are counted, to fill its caches. The counted operations follow in this order, the same number
//! of each: gets, scans of 10 and of 100 records and updates of random loaded records, inserts, and
//! deletes of loaded records. No retraining runs and no other session is open, so that the counts
//! are the same in every run. Every answer is checked.

mod config;
mod measure;
mod rows;

pub use config::CostsConfig;
pub use measure::{CostRow, run};
