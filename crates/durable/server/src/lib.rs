//! Region servers: they store replicas of persistent tables on their disks, and serve them to
//! clients as the control plane orders.
//!
//! ```text
//!   clients --requests--> dispatcher --> primary's engine --one-sided WRITEs--> other servers
//!                                             ^
//!   coordinator --records--> agent --> host --orders--> one thread for each replica
//! ```
//!
//! `docs/explanation/persistent-tables.md` explains the guarantees. The promises of a host are in
//! `docs/reference/control-plane.md`, *Promises of a region host*.
//!
//! | module | contents |
//! |---|---|
//! | [`server`] | [`RegionServer`]: starts and stops all parts |
//! | `agent_thread` | the thread of the agent |
//! | `broken` | replicas that have broken: back-off, and copies that can continue |
//! | [`compare`] | comparison of replicas byte by byte, from their servers' directories |
//! | `outage_log` | log messages about a coordinator that does not answer |
//! | `damage` | corruption that all copies of a region have |
//! | `directory` | a server's directory and its identity |
//! | `place` | a replica's directory, and its copy in force |
//! | `open_storage` | opening of data directories, and free space |
//! | `host` | turns the agent's orders into replicas |
//! | `open_replicas` | open replicas, and those prepared for a split |
//! | `note_file` | a small file that is replaced atomically, even on a full disk |
//! | `replica` | a replica and its thread |
//! | `seen_file` | the newest state seen of the coordinator |
//! | `served` | a region as clients see it; when an operation may be acknowledged |
//! | `operations` | execution of clients' requests |
//! | `options` | [`ServerOptions`] |
//! | `attachment` | the secret of a backup's memory, which is agreed on and never sent |
//! | `orphans` | files moved aside because nothing proves that they can be deleted |
//! | `peer` | requests between servers |
//! | `dispatcher` | dispatch of requests |
//! | `log_ends` | writes the ends of all logs to their disks, without a sync |
//! | `sync` | locks that ignore poisoning |
//! | `watchdog` | finds backups that hang |

#![forbid(unsafe_code)]

mod agent_thread;
mod attachment;
mod broken;
pub mod compare;
mod context;
mod damage;
mod directory;
mod dispatcher;
mod error;
mod host;
mod log_ends;
mod note_file;
mod open_replicas;
mod open_storage;
mod operations;
mod options;
mod orphans;
mod outage_log;
mod peer;
mod place;
mod replica;
mod seen_file;
mod served;
pub mod server;
mod sync;
mod watchdog;

pub use error::ServerError;
#[doc(hidden)]
pub use open_storage::{DiskSpace, OpenStorage};
pub use options::{ServerOptions, ServerTls};
pub use server::{PreparedServer, RegionServer};
