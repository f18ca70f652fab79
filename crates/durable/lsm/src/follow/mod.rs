//! Who follows an engine, and a directory that follows another one's: what replication stands on
//! (FO1 to FO12 of `docs/lsm.md`).
//!
//! Nothing here knows of a network. An engine tells a [`Follow`] of its edits, and lets it read the
//! log's bytes and the trees' ([`Engine::base`](crate::Engine::base),
//! [`ValueLog::read_raw`](crate::log::ValueLog::read_raw)). On the other side [`Filling`] takes in
//! what an engine has, and becomes a [`Follower`], which takes in what comes then, and becomes an
//! engine.
//!
//! | module | what it holds |
//! |---|---|
//! | `edit` | who follows, and what is told to it |
//! | `fresh` | blocks of new trees that need not be read to be told |
//! | `filling` | a directory that takes in what an engine has |
//! | `previous` | the copy that was there before, of which it takes what is the same |
//! | `piece` | what a piece of a copy is told by: its content |
//! | `shared` | what a directory says whose devices another one has, too |
//! | `intake` | the log that comes to a follower, for any thread |
//! | `follower` | one that has it, and takes in what comes; its promotion |
//! | `sent` | trees that come ready made (Send-Index) |
//! | `scrub` | looks for bits that have flipped there |
//! | `whole` | up to where the records of a log are whole that comes in pieces |
//! | `fault` | mistakes that tests plant in what a follower writes |
//! | `feed` | trees that it makes itself, from the log's records (Build-Index) |

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
pub use filling::{BaseEnd, Filling};
pub use follower::{FollowOptions, Follower, IndexKind, InstalledEdit, SegmentSum};
pub(crate) use fresh::{FreshBlocks, FreshRoom};
pub use intake::{Intake, LogIntake};
pub use piece::PieceSum;
pub use scrub::OwnPiece;

/// The file that a directory has which follows another engine (FO5).
pub(crate) const FOLLOWER: &str = "FOLLOWER";

/// Whether a directory follows another engine, and is opened by [`Follower::open`] alone.
///
/// # Errors
/// It cannot be listed.
pub fn follows(storage: &dyn Storage) -> std::io::Result<bool> {
    Ok(storage.list()?.iter().any(|name| name == FOLLOWER))
}

/// How far the log of a directory goes that nobody has open, an engine's or a follower's, by what
/// of it is whole: of two copies of one engine the one that goes further has more, unless one that
/// has lost the end of its log was flushed since: a flush may end at a segment to come, and a merge
/// moves records. Reads the log from the last flush on.
///
/// # Errors
/// [`LsmError::DamagedManifest`], or it cannot be read.
pub fn reach(storage: &Arc<dyn Storage>) -> Result<LogPosition, LsmError> {
    let (manifest, _) = Manifest::open(Arc::clone(storage))?;
    let manifest = Arc::new(manifest);
    let state = manifest.state();
    let used = state.log_segments();
    let named_by = (!used.is_empty()).then_some(&manifest);
    let file = device::open_file(&**storage, log::FILE, named_by)?;
    let device = Device::new(file, (log::FILE, storage.name()), &used);
    log::replay::reach(&device, &state)
}
