//! Verified pieces of an engine's files, for comparison with a follower's copy.

use serde::{Deserialize, Serialize};

use super::Scrub;
use crate::place::{LogNumber, TreeId};
use crate::written::WrittenSum;

/// Name of a piece that a primary and its followers share: up to 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PieceName {
    /// Closed log segment.
    Log {
        /// Number of the log segment.
        number: LogNumber,
    },
    /// Segment of a tree.
    Tree {
        /// Id of the tree.
        id: TreeId,
        /// Index of the segment in the tree.
        index: usize,
    },
}

/// Piece that a [`Scrub`] has read from the engine's disk and found to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedPiece {
    /// Name of the piece.
    pub name: PieceName,
    /// Log segment in which the record begins that continues in this one; the piece is needed while
    /// that segment is. For every other log segment, its own number.
    pub(crate) head: LogNumber,
    /// Length and checksum of the bytes that count; those behind the last record of a log segment
    /// do not.
    pub sum: WrittenSum,
}

impl VerifiedPiece {
    pub(super) fn log(number: LogNumber, head: LogNumber, counted: &[u8]) -> Self {
        Self {
            name: PieceName::Log { number },
            head,
            sum: WrittenSum::of(counted),
        }
    }

    pub(super) fn tree(id: TreeId, index: usize, blocks: &[u8]) -> Self {
        Self {
            name: PieceName::Tree { id, index },
            head: LogNumber(0),
            sum: WrittenSum::of(blocks),
        }
    }
}

impl Scrub {
    /// Sets whether steps keep checksums of verified pieces for
    /// [`take_verified`](Self::take_verified).
    pub fn set_comparing(&mut self, is_comparing: bool) {
        self.is_comparing = is_comparing;
        if !is_comparing {
            self.verified.clear();
        }
    }

    /// Removes and returns the oldest verified piece.
    pub fn take_verified(&mut self) -> Option<VerifiedPiece> {
        self.verified.pop_front()
    }
}
