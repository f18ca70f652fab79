//! Tables over several pools: each pool has the keys of one range, and its main node serves them.
//!
//! A pool has one main node, which executes the calls of its `rpc` and `xstore` tables and trains
//! the models of the latter. A table that needs more than one server has a *part* in each of
//! several pools, divided by key (XStore, section 5). A part is an ordinary table of its pool, so
//! search layers, fabrics and recovery work unchanged. This module adds the bounds between the
//! parts, and checks that all clients of a table agree on them (docs/explanation/partitions.md).
//!
//! | module | contents |
//! |---|---|
//! | [`bounds`] | key ranges of the parts |
//! | [`agreement`] | check that the parts found in the pools form one complete table |
//! | [`pool`] | the pools |
//! | [`session`] | creating, opening, listing and dropping tables |
//! | [`asynchronous`], [`table`], [`scan`] | operations: futures, blocking calls, iterator |
//! | [`error`] | errors that only tables over several pools have |

mod agreement;
mod asynchronous;
mod bounds;
mod error;
mod pool;
mod scan;
mod session;
mod table;

pub use agreement::{ListedPartition, PartitionedInfo};
pub use asynchronous::AsyncPartitionedTable;
pub use bounds::Bounds;
pub use error::PartitionError;
pub use pool::{PART_COUNT_MAX, PartitionedPool};
pub use scan::{PartitionedReverseScan, PartitionedScan};
pub use session::PartitionedSession;
pub use table::PartitionedTable;
