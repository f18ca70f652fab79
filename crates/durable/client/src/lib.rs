//! Clients of persistent tables: tables on disks, of which several servers have each record.
//!
//! A [`Cluster`] is what a program has of the servers: a coordinator, a map of which server is
//! primary of which keys, and connections. A [`PersistentTable`] offers what tables in far memory
//! do: get, put, compare-and-swap, scans in both directions. Rules KQ1 to KQ5 are in
//! `docs/persistent-tables.md`, the map's in `docs/cluster.md` (CP21).
//!
//! | module | what it holds |
//! |---|---|
//! | `cluster` | [`Cluster`]: how an operation finds its server |
//! | `table` | [`PersistentTable`] |
//! | `scan` | [`Records`] |
//! | `asks` | what servers are asked |
//! | `connections` | connections that nobody uses at the moment |
//! | [`protocol`] | requests and replies as bytes |

#![forbid(unsafe_code)]

mod asks;
mod cluster;
mod connections;
mod error;
pub mod protocol;
mod scan;
mod table;

pub use cluster::{ClientOptions, Cluster, PersistentTableOptions};
pub use error::ClientError;
pub use farleaf_cluster::coordinator::SharedCoordinator;
pub use scan::Records;
pub use table::{Durability, Insertion, PersistentTable, Record, Swap};
