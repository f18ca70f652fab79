//! Differences between a backup's data and its primary's, written (REPLICATION-15) or on disk
//! (REPLICATION-17).

use core::fmt;

use farleaf_lsm::place::{LogNumber, TreeId};
use farleaf_lsm::written::WrittenSum;
use thiserror::Error;

/// Part of a region's data that a primary and its backups compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedPart {
    /// A segment of the log, or the written part of the open one.
    LogSegment(LogNumber),
    /// A segment of a tree, counted from 0.
    TreeSegment {
        /// The tree.
        tree: TreeId,
        /// Index of the segment in the tree.
        index: usize,
    },
}

impl fmt::Display for ComparedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogSegment(number) => write!(f, "log segment {}", number.0),
            Self::TreeSegment { tree, index } => write!(f, "segment {index} of tree {}", tree.0),
        }
    }
}

/// Lengths and checksums of the same part on a primary and on a backup, which differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("checksum mismatch in {part}: the primary has {primary}, the backup has {backup}")]
pub struct Mismatch {
    /// The compared part.
    pub part: ComparedPart,
    /// Length and checksum on the primary.
    pub primary: WrittenSum,
    /// Length and checksum that the backup has acknowledged or has on its disk; 0 bytes if it has
    /// nothing.
    pub backup: WrittenSum,
}

impl Mismatch {
    /// Compares the checksums of both sides.
    pub(crate) fn check(
        part: ComparedPart,
        primary: WrittenSum,
        backup: WrittenSum,
    ) -> Result<(), Self> {
        let found = Self {
            part,
            primary,
            backup,
        };
        if primary == backup {
            Ok(())
        } else {
            Err(found)
        }
    }
}
