//! Following: the interface of an engine for its follower, and a directory that follows another
//! engine. Replication is built on it.
//!
//! This module is independent of networks. An engine announces its edits to a [`Follow`], and lets
//! it read the log's bytes and the trees' blocks ([`Engine::base`](crate::Engine::base),
//! [`ValueLog::read_raw`](crate::log::ValueLog::read_raw)). On the other side, [`Filling`] receives
//! a base and becomes a [`Follower`]. That receives everything later, and becomes an engine when it
//! is promoted.
//!
//! `docs/explanation/lsm.md` describes it under *Following an engine*.
//!
//! | module | contents |
//! |---|---|
//! | `edit` | interface of a follower, and the edits announced to it |
//! | `fresh` | blocks of new trees in memory, so that they need not be read for sending |
//! | `filling` | a directory that receives a base |
//! | `previous` | the previous copy, from which equal pieces are reused |
//! | `piece` | checksum that identifies a piece of a copy |
//! | `shared` | file that marks a directory whose devices are shared with another copy |
//! | `intake` | accepting the log, from any thread |
//! | `follower` | a directory with a base, which receives later log and edits; its promotion |
//! | `sent` | trees received from the engine (Send-Index) |
//! | `scrub` | scrubbing a follower |
//! | `whole` | end of the last complete record in a log that arrives in pieces |
//! | `fault` | faults that tests inject into a follower's writes |
//! | `feed` | decoding records of the log for own trees (Build-Index) |

mod edit;
mod fault;
mod feed;
mod filling;
mod follower;
mod fresh;
mod intake;
mod piece;
mod previous;
mod scrub;
mod sent;
pub(crate) mod shared;
#[cfg(test)]
mod tests;
mod whole;

use std::sync::Arc;

use crate::device::{self, Device};
use crate::error::LsmError;
use crate::log;
use crate::manifest::Manifest;
use crate::place::LogPosition;
use crate::storage::Storage;

pub use edit::{Edit, Follow, SharedTree};
#[doc(hidden)]
pub use fault::{Mistake, WriteFault};
pub use filling::{BaseManifest, Filling};
pub use follower::{FollowOptions, Follower, IndexKind, InstalledEdit, SegmentSum};
pub(crate) use fresh::{FreshBlockBudget, FreshBlocks};
pub use intake::{Intake, LogIntake};
pub use piece::PieceSum;
pub use scrub::OwnPiece;

/// File that marks a directory as following another engine.
pub(crate) const FOLLOWER: &str = "FOLLOWER";

/// Returns true if a directory follows another engine; only [`Follower::open`] opens such a
/// directory.
///
/// # Errors
/// The directory cannot be listed.
pub fn follows(storage: &dyn Storage) -> std::io::Result<bool> {
    Ok(storage.list()?.iter().any(|name| name == FOLLOWER))
}

/// Returns how far the complete records of a log go, in a closed directory of an engine or a
/// follower.
///
/// If two copies of one engine are compared, the one that goes further has more data. An exception
/// is a copy that lost the end of its log and was flushed since: a flush may end at a later
/// segment, and a merge moves records. Reads the log from the last flush on.
///
/// # Errors
/// [`LsmError::CorruptManifest`], or the directory cannot be read.
pub fn reach(storage: &Arc<dyn Storage>) -> Result<LogPosition, LsmError> {
    let (manifest, _) = Manifest::open(Arc::clone(storage))?;
    let manifest = Arc::new(manifest);
    let state = manifest.state();
    let used = state.log_segments();
    let named_by = (!used.is_empty()).then_some(&manifest);
    let file = device::open_file(&**storage, log::FILE, named_by)?;
    let device = Device::new(file, log::FILE, storage.name(), &used);
    log::replay::reach(&device, &state)
}
