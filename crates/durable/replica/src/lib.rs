//! Replication of persistent tables (Talos, sections 3 and 4).
//!
//! A primary's engine has all data. Backups have its log in registered buffers before a write is
//! acknowledged.
//!
//! ```text
//!   primary                                        a backup's memory         its device
//!   +-----------------------+  WRITE, same offset  +--------------------+
//!   | log segment's buffer  |--------------------->| log buffers        |--> log
//!   | group commit          |  CAS of the epoch    | epoch, log end     |
//!   |                       |--------------------->| written, synced to |
//!   | flush, merge          |  WRITE, and a call   |                    |
//!   | trees, edits          |--------------------->| buffer for trees   |--> trees, manifest
//!   +-----------------------+                      +--------------------+
//! ```
//!
//! Rules REPLICATION-1 to REPLICATION-17 are in `docs/reference/replication.md`. The crate is
//! generic over [`Endpoint`](farleaf_fabric::Endpoint), so it works over every fabric. Over `verbs`
//! a backup has a loopback to its own memory (REPLICATION-8).
//!
//! | module | contents |
//! |---|---|
//! | `primary` | [`Primary`]: writes, reads, backups, background work |
//! | `links` | group commit, syncs, loss of backups, fencing by epochs |
//! | `all_connections` | runs one action on the connections to all backups in parallel |
//! | `raise`, `epoch_state` | continuing at a later epoch, and stopping |
//! | `log_connection` | sends the log into one backup's buffers |
//! | `verified_acks`, `receipt`, `mismatch` | checks that a backup wrote what its primary wrote |
//! | `index_connection`, `ship` | send trees and edits to one backup |
//! | `fill` | fills a backup while the primary serves |
//! | `adopt` | skips pieces that a backup being filled already has |
//! | `compare` | compares verified pieces of the primary with its backups' |
//! | `backup_entry` | the primary's state of one backup |
//! | [`backup`] | [`Backup`]: serving, and promotion to an engine |
//! | `layout` | positions of words in a backup's memory |
//! | `request` | messages from a primary to a backup |
//!
//! The crate does not decide which replica is primary or which backups exist. The control plane,
//! which keeps the map of regions, does.

#![forbid(unsafe_code)]

pub mod backup;

mod adopt;
mod all_connections;
mod backup_entry;
mod compare;
mod epoch_state;
mod error;
mod fill;
mod index_connection;
mod layout;
mod links;
mod log_connection;
mod mismatch;
mod primary;
mod raise;
mod receipt;
mod request;
mod ship;
mod verified_acks;

pub use backup::{
    Backup, BackupCounts, BackupOptions, BackupStatus, BackupTail, promote_directory,
};
pub use backup_entry::LinkStatus;
pub use compare::ComparisonCounts;
pub use error::{BackupId, Epoch, ReplicaError};
pub use fill::BackupConnections;
pub use layout::Layout;
pub use mismatch::{ComparedPart, Mismatch};
pub use primary::{Primary, PrimaryStatus, PrimaryWorkDone, ReplicationOptions};
