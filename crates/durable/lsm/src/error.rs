//! Errors of an engine.

use std::io;

use thiserror::Error;

use crate::place::{LogPosition, TreeId};
use crate::storage;

/// Operating failure of an engine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LsmError {
    /// An option has a value that an engine does not support.
    #[error("the option {option} is {given}; it can be {allowed}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        given: u64,
        /// Allowed values, in words.
        allowed: &'static str,
    },
    /// An operation on a file failed.
    #[error("cannot {action} {file} in {directory}: {source}")]
    Storage {
        /// Operation that failed: "read", "write", "sync"...
        action: &'static str,
        /// Name of the file.
        file: String,
        /// Directory of the file.
        directory: String,
        /// Error of the storage.
        source: io::Error,
    },
    /// A key exceeds [`KEY_SIZE_BYTES_MAX`](crate::place::KEY_SIZE_BYTES_MAX).
    #[error("the key has {size_bytes} bytes, and a key can have 4096 at the most")]
    KeyTooLong {
        /// Size of the key in bytes.
        size_bytes: usize,
    },
    /// A value exceeds [`VALUE_SIZE_BYTES_MAX`](crate::place::VALUE_SIZE_BYTES_MAX).
    #[error("the value has {size_bytes} bytes, and a value can have 67108864 (64 MiB) at the most")]
    ValueTooLong {
        /// Size of the value in bytes.
        size_bytes: usize,
    },
    /// The log is corrupted.
    #[error("the log is damaged at {position}: {how}")]
    CorruptLog {
        /// Log position of the corrupted data.
        position: LogPosition,
        /// Description of the corruption.
        how: String,
    },
    /// A block of a tree is corrupted.
    #[error("block {block} of tree {} is damaged: {how}", .tree.0)]
    CorruptTree {
        /// Tree with the block.
        tree: TreeId,
        /// Number of the block.
        block: u32,
        /// Description of the corruption.
        how: String,
    },
    /// The manifest is corrupted.
    #[error(
        "the manifest {file} in {directory} is damaged: {how}; restore the directory from a copy, or \
         a replica"
    )]
    CorruptManifest {
        /// Name of the file.
        file: String,
        /// Directory of the manifest.
        directory: String,
        /// Description of the corruption.
        how: String,
    },
    /// A later version wrote the directory.
    #[error(
        "{directory} has format version {version}, and this program knows version {known} \
         alone: use the program that wrote it, or a newer one; nothing was changed"
    )]
    NewerVersion {
        /// Path of the directory.
        directory: String,
        /// Format version of the directory.
        version: u32,
        /// Latest supported format version.
        known: u32,
    },
    /// An earlier version wrote the directory, and its format is no longer supported.
    #[error(
        "{directory} has format version {version}, and this program knows version {known} alone: \
         read it with the program that wrote it, and write what is in it anew with this one; \
         nothing was changed"
    )]
    OlderVersion {
        /// Path of the directory.
        directory: String,
        /// Format version of the directory.
        version: u32,
        /// The only supported format version.
        known: u32,
    },
    /// A new directory needs an id: the options set none, and the system has no random numbers.
    #[error(
        "no id can be drawn for the directory to be made: {0}; try again, or give one in the options"
    )]
    NoRandomId(#[source] io::Error),
    /// Another engine or process has the directory open.
    #[error("{directory} is open in another engine: stop that one first; nothing was changed")]
    Locked {
        /// Path of the directory.
        directory: String,
    },
    /// The directory follows another engine: it belongs to a backup.
    #[error(
        "{directory} is a backup's, which follows another engine: promote it, or open that one; \
         nothing was changed"
    )]
    Follows {
        /// Path of the directory.
        directory: String,
    },
    /// A follower received something invalid from the engine that it follows.
    #[error("what came from the engine that is followed cannot be: {how}; nothing of it was done")]
    CannotFollow {
        /// Description of the invalid input.
        how: String,
    },
    /// The follower does not have the log that it needs before the engine can continue.
    #[error("those who follow do not have the log up to {end}: {how}")]
    NotFollowed {
        /// Log position that the follower should have reached.
        end: LogPosition,
        /// Reason why the follower has not reached it.
        how: String,
    },
    /// An earlier write failed, so the engine refuses all writes. Acknowledged data is on the
    /// device; other data may be.
    #[error(
        "nothing is written any more since an earlier failure: {first}; open the directory again"
    )]
    Stopped {
        /// Description of the first failure.
        first: String,
    },
}

impl LsmError {
    /// Returns true if the disk or its quota is full.
    ///
    /// A write that failed with such an error changed nothing, and can be retried when there is
    /// space. A sync that failed with it stops the engine.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self, Self::Storage { source, .. } if storage::is_out_of_space(source))
    }

    /// Returns true if the log or a tree is corrupted.
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::CorruptLog { .. } | Self::CorruptTree { .. })
    }
}
