//! What can go wrong with an engine.

use std::io;

use thiserror::Error;

use crate::place::{LogPosition, TreeId};
use crate::storage;

/// An operating failure of an engine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LsmError {
    /// An option says what an engine cannot do.
    #[error("the option {option} is {given}; it can be {allowed}")]
    BadOption {
        /// Which one.
        option: &'static str,
        /// What it is.
        given: u64,
        /// What it can be.
        allowed: &'static str,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {file} in {directory}: {source}")]
    Storage {
        /// What was tried: "read", "write", "sync"...
        action: &'static str,
        /// Of which file.
        file: String,
        /// Where.
        directory: String,
        /// What the storage said.
        source: io::Error,
    },
    /// A key is longer than keys can be.
    #[error("the key has {size_bytes} bytes, and a key can have 4096 at the most")]
    KeyTooLong {
        /// How long it is.
        size_bytes: usize,
    },
    /// A value is longer than values can be.
    #[error("the value has {size_bytes} bytes, and a value can have 67108864 (64 MiB) at the most")]
    ValueTooLong {
        /// How long it is.
        size_bytes: usize,
    },
    /// What the log has at a place is not what was written there.
    #[error("the log is damaged at {position}: {how}")]
    DamagedLog {
        /// Where.
        position: LogPosition,
        /// How.
        how: String,
    },
    /// A block of a tree is not what was written there.
    #[error("block {block} of tree {} is damaged: {how}", .tree.0)]
    DamagedTree {
        /// Of which tree.
        tree: TreeId,
        /// Which block.
        block: u32,
        /// How.
        how: String,
    },
    /// The manifest is not one that this engine has written.
    #[error(
        "the manifest {file} in {directory} is damaged: {how}; restore the directory from a copy, or \
         a replica"
    )]
    DamagedManifest {
        /// Which file.
        file: String,
        /// Where.
        directory: String,
        /// How.
        how: String,
    },
    /// The directory was written by a later version.
    #[error(
        "{directory} has format version {version}, and this program knows version {known} \
         alone: use the program that wrote it, or a newer one; nothing was changed"
    )]
    VersionFromTheFuture {
        /// Where.
        directory: String,
        /// Which it has.
        version: u32,
        /// The latest that is known here.
        known: u32,
    },
    /// The directory was written by an earlier version, whose format is not read any more.
    #[error(
        "{directory} has format version {version}, and this program knows version {known} alone: \
         read it with the program that wrote it, and write what is in it anew with this one; \
         nothing was changed"
    )]
    VersionFromThePast {
        /// Where.
        directory: String,
        /// Which it has.
        version: u32,
        /// The only one that is known here.
        known: u32,
    },
    /// A directory is to be made, no id was given, and none can be drawn.
    #[error(
        "no id can be drawn for the directory to be made: {0}; try again, or give one in the options"
    )]
    NoIdentity(#[source] io::Error),
    /// Somebody has the directory open.
    #[error("{directory} is open in another engine: stop that one first; nothing was changed")]
    Locked {
        /// Which.
        directory: String,
    },
    /// The directory follows another engine: it is a backup's.
    #[error(
        "{directory} is a backup's, which follows another engine: promote it, or open that one; \
         nothing was changed"
    )]
    Follows {
        /// Which.
        directory: String,
    },
    /// What a follower was told by the engine that it follows cannot be.
    #[error("what came from the engine that is followed cannot be: {how}; nothing of it was done")]
    CannotFollow {
        /// Why not.
        how: String,
    },
    /// Those who follow this engine do not have what they must have before it goes on.
    #[error("those who follow do not have the log up to {end}: {how}")]
    NotFollowed {
        /// Up to where they should.
        end: LogPosition,
        /// Why they do not.
        how: String,
    },
    /// An earlier write failed, so nothing is written any more: what was acknowledged is on the
    /// device, and what was not may be there.
    #[error(
        "nothing is written any more since an earlier failure: {first}; open the directory again"
    )]
    Stopped {
        /// The first failure.
        first: String,
    },
}

impl LsmError {
    /// Whether the disk, or a quota of it, is full. If a write found that out, nothing was changed,
    /// and it can be tried again when there is room; after a sync, the engine has stopped.
    pub fn is_no_room(&self) -> bool {
        matches!(self, Self::Storage { source, .. } if storage::is_no_room(source))
    }

    /// Whether what the log or a tree has is not what was written there.
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::DamagedLog { .. } | Self::DamagedTree { .. })
    }
}
