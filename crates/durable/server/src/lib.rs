//! Region servers: they have replicas of persistent tables on their disks, and serve them to
//! clients as long as the control plane says so.
//!
//! ```text
//!   clients --requests--> front --> served: primary's engine --one-sided WRITEs--> other servers
//!                                       ^
//!   coordinator --records--> agent --> host --orders--> one thread for each replica
//! ```
//!
//! The rules RS1 to RS14 are in `docs/persistent-tables.md`; what a host has to promise (RH1 to
//! RH6) is in `docs/cluster.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | [`server`] | [`RegionServer`]: starts all of it, and stops it |
//! | `broken` | replicas that have broken: rests, and what of them can go on |
//! | [`compare`] | replicas compared byte by byte, from the directories of their servers |
//! | `contact` | what is said of a coordinator that does not answer |
//! | `directory` | a server's directory: whose it is |
//! | `place` | a replica's directory: which copy in it is in force (RS1) |
//! | `open_storage` | how directories of data are opened, and how much room there is |
//! | `host` | from the agent's orders to replicas |
//! | `open_replicas` | the replicas that are open, and those that are prepared for a split |
//! | `note_file` | a small file that is replaced as a whole, on a full disk, too |
//! | `replica` | a replica, and the thread that has it |
//! | `seen_file` | what was seen of the coordinator last (ID5) |
//! | `served` | a region as clients see it; when an operation may be acknowledged (RS2) |
//! | `operations` | what clients ask, done |
//! | `attachment` | the secret of a backup's memory, which is agreed on and not sent |
//! | `orphans` | what cannot be proved to be garbage, moved aside (ID3) |
//! | `peer` | what servers ask each other |
//! | `front` | who answers which request |
//! | `log_ends` | writes the ends of all logs to their disks, without a sync |
//! | `watchdog` | finds backups that hang |

#![forbid(unsafe_code)]

mod agent_thread;
mod attachment;
mod broken;
pub mod compare;
mod contact;
mod context;
mod directory;
mod error;
mod front;
mod host;
mod log_ends;
mod note_file;
mod open_replicas;
mod open_storage;
mod operations;
mod orphans;
mod peer;
mod place;
mod replica;
mod seen_file;
mod served;
pub mod server;
mod watchdog;

pub use error::ServerError;
#[doc(hidden)]
pub use open_storage::{DiskRoom, OpenStorage};
pub use server::{PreparedServer, RegionServer, ServerOptions};
