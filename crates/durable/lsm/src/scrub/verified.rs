//! Pieces of an engine's files whose own checksums are right, for whoever compares them with a
//! follower's copy (SC8).

use serde::{Deserialize, Serialize};

use super::Scrub;
use crate::place::{LogNumber, TreeId};
use crate::written::WrittenSum;

/// A piece of a copy that a primary and its followers have in common: up to 2 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PieceName {
    /// A closed log segment.
    Log {
        /// Its number.
        number: LogNumber,
    },
    /// A segment of a tree.
    Tree {
        /// The tree.
        id: TreeId,
        /// Index of the segment in the tree.
        index: usize,
    },
}

/// A piece that a [`Scrub`] has read from the engine's disk and found to be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedPiece {
    /// Name of the piece.
    pub name: PieceName,
    /// Log segment in which the record begins that goes on in this one: the piece is needed as
    /// long as that segment is. The piece's own number for every other log segment.
    pub(crate) head: LogNumber,
    /// Length and checksum of the bytes, from the first one on, that count: those behind the last
    /// record of a log segment do not.
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
    /// Sets whether the pieces that steps verify are kept for
    /// [`take_verified`](Self::take_verified): a checksum of each.
    pub fn set_comparing(&mut self, is_comparing: bool) {
        self.is_comparing = is_comparing;
        if !is_comparing {
            self.verified.clear();
        }
    }

    /// The oldest verified piece that was not taken yet.
    pub fn take_verified(&mut self) -> Option<VerifiedPiece> {
        self.verified.pop_front()
    }
}
