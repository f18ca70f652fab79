//! Who follows an engine, and a directory that follows another one's: what replication stands on
//! (FO1 to FO10 of `docs/lsm.md`).
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
//! | `follower` | one that has it, and takes in what comes; its promotion |
//! | `sent` | trees that come ready made (Send-Index) |
//! | `scrub` | looks for bits that have flipped there |
//! | `feed` | trees that it makes itself, from the log's records (Build-Index) |

mod edit;
mod feed;
mod filling;
mod follower;
mod fresh;
mod piece;
mod previous;
mod scrub;
mod sent;
pub(crate) mod shared;
#[cfg(test)]
mod tests;

pub use edit::{Edit, Follow, SharedTree};
pub use filling::{BaseEnd, Filling};
pub use follower::{FollowOptions, Follower, IndexKind, InstalledEdit};
pub(crate) use fresh::{FreshBlocks, FreshRoom};
pub use piece::PieceSum;

/// The file that a directory has which follows another engine (FO5).
pub(crate) const FOLLOWER: &str = "FOLLOWER";

/// Whether a directory follows another engine, and is opened by [`Follower::open`] alone.
///
/// # Errors
/// It cannot be listed.
pub fn follows(storage: &dyn crate::storage::Storage) -> std::io::Result<bool> {
    Ok(storage.list()?.iter().any(|name| name == FOLLOWER))
}
