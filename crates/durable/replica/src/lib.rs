//! Replication of persistent tables: a primary, whose engine has all, and backups, which have its
//! log in registered buffers before a write is acknowledged (Talos, sections 3 and 4).
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
//! The rules RP1 to RP17 are in `docs/replication.md`. Generic over
//! [`Endpoint`](farleaf_fabric::Endpoint), so it works over every fabric; over `verbs` a backup
//! has a loopback to its own memory (RP8).
//!
//! | module | what it holds |
//! |---|---|
//! | `primary` | [`Primary`]: writes, reads, backups, background work |
//! | `links` | group commit, syncs, losing backups, fencing by epochs |
//! | `raise`, `standing` | going on at a later epoch, and stopping |
//! | `log_way` | the log into one backup's buffers |
//! | `agreement`, `receipt`, `mismatch` | whether a backup wrote what its primary wrote |
//! | `index_way`, `ship` | trees and edits to one backup |
//! | `fill` | filling a backup while the primary serves |
//! | `adopt` | a backup that is filled keeps what it has already |
//! | `compare` | verified pieces of the primary are compared with its backups' |
//! | `member` | what a primary knows of a backup |
//! | [`backup`] | [`Backup`]: serving, and becoming an engine |
//! | `layout` | where in a backup's memory things are |
//! | `request` | what is asked by messages |
//!
//! What it is not: it does not decide who is primary, and which backups there are. Whoever keeps
//! the map of regions does.

#![forbid(unsafe_code)]

pub mod backup;

mod adopt;
mod agreement;
mod compare;
mod error;
mod fill;
mod index_way;
mod layout;
mod links;
mod log_way;
mod member;
mod mismatch;
mod primary;
mod raise;
mod receipt;
mod request;
mod ship;
mod standing;

pub use backup::{
    Backup, BackupCounts, BackupOptions, BackupStatus, BackupTail, promote_directory,
};
pub use compare::ComparisonCounts;
pub use error::{BackupId, Epoch, ReplicaError};
pub use fill::BackupWays;
pub use layout::Layout;
pub use member::LinkStatus;
pub use mismatch::{ComparedPart, Mismatch};
pub use primary::{Primary, PrimaryStatus, PrimaryWorked, ReplicationOptions};
