//! Pieces of the primary's files that are valid are compared with its backups' (RP17).

use std::sync::Arc;

use farleaf_fabric::Endpoint;
use farleaf_lsm::follow::{IndexKind, OwnPiece};
use farleaf_lsm::scrub::{PieceName, VerifiedPiece};
use farleaf_lsm::written::WrittenSum;
use farleaf_lsm::{Engine, LsmError};

use crate::error::Failure;
use crate::links::Links;
use crate::member::Member;
use crate::mismatch::{ComparedPart, Mismatch};
use crate::request::{Reply, Request};
use crate::ship::{ShipError, ask, unexpected, way_of};

/// What comparing pieces with backups has found since the primary was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComparisonCounts {
    /// Pieces of backups that were the same as the primary's.
    pub equal_count: u64,
    /// Pieces of backups that differed, or that the backup did not have.
    pub mismatch_count: u64,
}

/// How a piece of a backup compares with the primary's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    Equal,
    /// The backup does not have the piece yet, or nobody needs it any more.
    NotComparable,
    Mismatch(Mismatch),
}

impl<E: Endpoint + Send> Links<E> {
    /// Whether there is a backup with which pieces can be compared.
    pub(crate) fn has_comparable(&self) -> bool {
        self.members().values().any(|it| is_comparable(it))
    }

    /// Compares a piece of the engine with that of each backup that has everything. A backup whose
    /// piece differs is lost (RP6), and is filled again by whoever keeps the map.
    ///
    /// # Errors
    /// [`LsmError::Stopped`]: the engine's.
    pub(crate) fn compare(
        &self,
        engine: &Engine,
        piece: &VerifiedPiece,
    ) -> Result<ComparisonCounts, LsmError> {
        let mut counts = ComparisonCounts::default();
        let is_of_tree = matches!(piece.name, PieceName::Tree { .. });
        // RP11: such a backup has trees of its own.
        if is_of_tree && self.index == IndexKind::Built {
            return Ok(counts);
        }
        let members: Vec<_> = self.members().values().cloned().collect();
        for member in members.iter().filter(|it| is_comparable(it)) {
            match self.compare_with(engine, (member, piece)) {
                Ok(Compared::Equal) => counts.equal_count += 1,
                Ok(Compared::NotComparable) => {}
                Ok(Compared::Mismatch(found)) => {
                    counts.mismatch_count += 1;
                    member.note_mismatch(&found);
                    self.lose(member.id, &found.to_string());
                }
                Err(ShipError::Own(error)) => return Err(error),
                Err(error) => {
                    let (backup, how) = (member.id, error.to_string());
                    let error = self.fail(Failure::Lost { backup, how });
                    tracing::warn!(%error, "a piece was not compared");
                }
            }
        }
        Ok(counts)
    }

    fn compare_with(
        &self,
        engine: &Engine,
        (member, piece): (&Arc<Member<E>>, &VerifiedPiece),
    ) -> Result<Compared, ShipError> {
        let request = Request::Piece {
            name: piece.name,
            size_bytes: piece.sum.size_bytes,
        };
        // As long as it is held, no edit is brought to this backup.
        let mut way = way_of(member);
        let found = match ask(&mut way, member, &request)? {
            Reply::Piece(found) => found,
            other => return Err(unexpected(other)),
        };
        let sum = match found {
            OwnPiece::Found(sum) if sum == piece.sum => return Ok(Compared::Equal),
            OwnPiece::NotYet => return Ok(Compared::NotComparable),
            // RP11: it reclaims log segments by itself.
            OwnPiece::Absent if self.index == IndexKind::Built => {
                return Ok(Compared::NotComparable);
            }
            OwnPiece::Found(sum) => sum,
            OwnPiece::Absent => WrittenSum::of(b""),
        };
        // In this order: an edit that reclaims the piece was made before it came to the backup, and
        // one that names the piece, and is in force, waits here or has come to the backup.
        let is_needed = engine.needs_piece(piece)?;
        let is_coming = found == OwnPiece::Absent && is_added_by_an_edit(member, piece.name);
        Ok(if is_needed && !is_coming && is_comparable(member) {
            Compared::Mismatch(Mismatch {
                part: part_of(piece.name),
                primary: piece.sum,
                backup: sum,
            })
        } else {
            Compared::NotComparable
        })
    }
}

fn is_comparable<E>(member: &Member<E>) -> bool {
    member.is_filled() && member.lost().is_none()
}

/// Whether an edit that the backup has not got adds the tree.
fn is_added_by_an_edit<E>(member: &Member<E>, name: PieceName) -> bool {
    let PieceName::Tree { id, .. } = name else {
        return false;
    };
    let edits = member.edits();
    let mut added = edits.iter().filter_map(|it| it.added.as_ref());
    added.any(|(_, tree)| tree.id() == id)
}

const fn part_of(name: PieceName) -> ComparedPart {
    match name {
        PieceName::Log { number } => ComparedPart::LogSegment(number),
        PieceName::Tree { id, index } => ComparedPart::TreeSegment { tree: id, index },
    }
}
