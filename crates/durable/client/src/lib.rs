//! Client of persistent tables: tables on the disks of several servers, each record on several of
//! them.
//!
//! A [`Cluster`] consists of a coordinator, a map of regions and their primaries, and connections
//! to the servers. A [`PersistentTable`] has the operations of pool tables: get, put,
//! compare-and-swap, and scans in both directions. For the request protocol see
//! docs/explanation/persistent-tables.md, for the map CONTROL-21 in
//! docs/reference/control-plane.md.
//!
//! | module | contents |
//! |---|---|
//! | `cluster` | [`Cluster`]: finds the server of an operation |
//! | `table` | [`PersistentTable`] |
//! | `scan` | [`Records`] |
//! | `region_operations` | requests of operations, and how their replies are read |
//! | `connections` | pool of idle connections |
//! | [`protocol`] | encoding of requests and replies |

#![forbid(unsafe_code)]

mod cluster;
mod connections;
mod error;
pub mod protocol;
mod region_operations;
mod scan;
mod table;

pub use cluster::{ClientOptions, Cluster, PersistentTableOptions};
pub use error::ClientError;
pub use farleaf_cluster::coordinator::SharedCoordinator;
pub use protocol::scope::KEY_PREFIX_SIZE_BYTES_MAX;
pub use scan::Records;
pub use table::{Durability, Insertion, PersistentTable, Record, Swap};
