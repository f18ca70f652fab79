//! One table over several pools: each pool has the keys of a range, and its home serves them.
//!
//! A pool is served by one home: it executes the calls of its `rpc` and `xstore` tables and trains
//! the models of the latter. A table that is to have more than one server has a *part* in each of
//! several pools, cut by key (XStore, section 5). A part is an ordinary table of its pool, so every
//! search layer, fabric and recovery is what it is without: what is added is which part has a key,
//! and that all who open the table agree on that (rules O1 to O7, `docs/partitions.md`).
//!
//! | module | what it holds |
//! |---|---|
//! | [`bounds`] | which part has which keys |
//! | [`agreement`] | whether what lies in the pools is one whole table |
//! | [`pool`] | the pools |
//! | [`session`] | making, opening, listing and dropping |
//! | [`asynchronous`], [`table`], [`scan`] | the operations: as futures, as calls, as an iterator |
//! | [`together`] | futures of all parts under way at once |
//! | [`error`] | what can go wrong that cannot in one pool |

mod agreement;
mod asynchronous;
mod bounds;
mod error;
mod pool;
mod scan;
mod session;
mod table;
mod together;

pub use agreement::{ListedPartition, PartitionedInfo};
pub use asynchronous::AsyncPartitionedTable;
pub use bounds::Bounds;
pub use error::PartitionError;
pub use pool::{PART_COUNT_MAX, PartitionedPool};
pub use scan::PartitionedScan;
pub use session::PartitionedSession;
pub use table::PartitionedTable;
