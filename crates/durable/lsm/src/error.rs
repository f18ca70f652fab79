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
    #[error("invalid option {option}: {given}; it must be {allowed}")]
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
    /// A key exceeds [`KEY_SIZE_BYTES_MAX`](farleaf_base::limits::KEY_SIZE_BYTES_MAX).
    #[error("the key has {size_bytes} bytes; the maximum is 4096")]
    KeyTooLong {
        /// Size of the key in bytes.
        size_bytes: usize,
    },
    /// A value exceeds [`VALUE_SIZE_BYTES_MAX`](farleaf_base::limits::VALUE_SIZE_BYTES_MAX).
    #[error("the value has {size_bytes} bytes; the maximum is 67108864 (64 MiB)")]
    ValueTooLong {
        /// Size of the value in bytes.
        size_bytes: usize,
    },
    /// The log is corrupted.
    #[error("the log is corrupted at {position}: {how}")]
    CorruptLog {
        /// Log position of the corrupted data.
        position: LogPosition,
        /// Description of the corruption.
        how: String,
    },
    /// A block of a tree is corrupted.
    #[error("block {block} of tree {} is corrupted: {how}", .tree.0)]
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
        "the manifest {file} in {directory} is corrupted: {how}; restore the directory from a \
         copy, or a replica"
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
        "{directory} has format version {version}, and this version supports only {known}: a newer \
         version has written it; use that version here, too; nothing was changed"
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
        "{directory} has format version {version}, and this version supports only {known}: an \
         older version has written it; export the records with that version and import them with \
         this one; nothing was changed"
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
    #[error("cannot generate an id for the new directory: {0}; retry, or set an id in the options")]
    NoRandomId(#[source] io::Error),
    /// Another engine or process has the directory open.
    #[error("{directory} is open in another engine; close that engine first; nothing was changed")]
    Locked {
        /// Path of the directory.
        directory: String,
    },
    /// The directory follows another engine: it belongs to a backup.
    #[error(
        "{directory} belongs to a backup, which follows another engine; promote the backup, or \
         open the directory of that engine; nothing was changed"
    )]
    Follows {
        /// Path of the directory.
        directory: String,
    },
    /// A follower received something invalid from the engine that it follows.
    #[error("invalid input from the followed engine: {how}; the input was rejected")]
    CannotFollow {
        /// Description of the invalid input.
        how: String,
    },
    /// The follower does not have the log that it needs before the engine can continue.
    #[error("the followers do not have the log up to {end}: {how}")]
    NotFollowed {
        /// Log position that the follower should have reached.
        end: LogPosition,
        /// Reason why the follower has not reached it.
        how: String,
    },
    /// An earlier write failed, so the engine refuses all writes. Acknowledged data is on the
    /// device; other data may be.
    #[error(
        "the engine refuses all writes after an earlier failure: {first}; reopen the directory"
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
