//! A backup that did not write what its primary wrote (RP15), or whose disk has something else
//! (RP17).

use core::fmt;

use farleaf_lsm::place::{LogNumber, TreeId};
use farleaf_lsm::written::WrittenSum;
use thiserror::Error;

/// Part of a region's data that a primary and its backups compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComparedPart {
    /// A segment of the log, or its beginning if it is still being filled.
    LogSegment(LogNumber),
    /// A segment of a tree, counted from 0 on.
    TreeSegment {
        /// Which tree.
        tree: TreeId,
        /// Which of its segments.
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
    /// What was compared.
    pub part: ComparedPart,
    /// What the primary has.
    pub primary: WrittenSum,
    /// What the backup has acknowledged, or what its disk has; 0 bytes: nothing.
    pub backup: WrittenSum,
}

impl Mismatch {
    /// Compares what both sides have of a part.
    pub(crate) fn check(
        part: ComparedPart,
        (primary, backup): (WrittenSum, WrittenSum),
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
