//! Compares valid pieces of the primary's files with its backups' (REPLICATION-17).

use std::sync::Arc;

use farleaf_fabric::Endpoint;
use farleaf_lsm::follow::{IndexKind, OwnPiece};
use farleaf_lsm::scrub::{PieceName, VerifiedPiece};
use farleaf_lsm::written::WrittenSum;
use farleaf_lsm::{Engine, LsmError};

use crate::backup_entry::BackupEntry;
use crate::error::WriteFailure;
use crate::links::BackupLinks;
use crate::mismatch::{ComparedPart, Mismatch};
use crate::request::{ReplicationReply, ReplicationRequest};
use crate::ship::{ShipError, ask, lock_index_connection, unexpected};

/// Results of comparisons with backups since the primary was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ComparisonCounts {
    /// Number of pieces of backups that equaled the primary's.
    pub equal_count: u64,
    /// Number of pieces of backups that differed or were missing.
    pub mismatch_count: u64,
}

/// Result of comparing a backup's piece with the primary's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    Equal,
    /// The backup does not have the piece yet, or the piece is no longer needed.
    NotComparable,
    Mismatch(Mismatch),
}

impl<E: Endpoint + Send> BackupLinks<E> {
    /// Returns whether there is a backup whose pieces can be compared.
    pub(crate) fn has_comparable(&self) -> bool {
        self.backup_entries().values().any(|it| is_comparable(it))
    }

    /// Compares a piece of the engine with that of each filled backup. A backup whose piece differs
    /// is lost (REPLICATION-6); the control plane has it filled again.
    ///
    /// # Errors
    /// [`LsmError::Stopped`] of the engine.
    pub(crate) fn compare(
        &self,
        engine: &Engine,
        piece: &VerifiedPiece,
    ) -> Result<ComparisonCounts, LsmError> {
        let mut counts = ComparisonCounts::default();
        let is_of_tree = matches!(piece.name, PieceName::Tree { .. });
        // Such a backup builds its own trees (REPLICATION-11).
        if is_of_tree && self.index == IndexKind::Built {
            return Ok(counts);
        }
        let backup_entries: Vec<_> = self.backup_entries().values().cloned().collect();
        for backup_entry in backup_entries.iter().filter(|it| is_comparable(it)) {
            match self.compare_with(engine, backup_entry, piece) {
                Ok(Compared::Equal) => counts.equal_count += 1,
                Ok(Compared::NotComparable) => {}
                Ok(Compared::Mismatch(found)) => {
                    counts.mismatch_count += 1;
                    backup_entry.note_mismatch(&found);
                    self.lose(backup_entry.id, &found.to_string());
                }
                Err(ShipError::Own(error)) => return Err(error),
                Err(error) => {
                    let (backup, how) = (backup_entry.id, error.to_string());
                    let error = self.fail(WriteFailure::Lost { backup, how });
                    tracing::warn!(%error, "cannot compare a segment with a backup");
                }
            }
        }
        Ok(counts)
    }

    fn compare_with(
        &self,
        engine: &Engine,
        backup_entry: &Arc<BackupEntry<E>>,
        piece: &VerifiedPiece,
    ) -> Result<Compared, ShipError> {
        let request = ReplicationRequest::Piece {
            name: piece.name,
            size_bytes: piece.sum.size_bytes,
        };
        // While this lock is held, no edit is sent to the backup.
        let mut connection = lock_index_connection(backup_entry);
        let found = match ask(&mut connection, backup_entry, &request)? {
            ReplicationReply::Piece(found) => found,
            other => return Err(unexpected(other)),
        };
        let sum = match found {
            OwnPiece::Found(sum) if sum == piece.sum => return Ok(Compared::Equal),
            OwnPiece::NotYet => return Ok(Compared::NotComparable),
            // Such a backup reclaims log segments by itself (REPLICATION-11).
            OwnPiece::Absent if self.index == IndexKind::Built => {
                return Ok(Compared::NotComparable);
            }
            OwnPiece::Found(sum) => sum,
            OwnPiece::Absent => WrittenSum::of(b""),
        };
        // In this order: an edit that reclaims the piece was made before it was sent to the backup.
        // An edit in force that adds the piece either waits here or was already sent.
        let is_needed = engine.needs_piece(piece)?;
        let is_coming = found == OwnPiece::Absent && is_added_by_an_edit(backup_entry, piece.name);
        Ok(if is_needed && !is_coming && is_comparable(backup_entry) {
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

fn is_comparable<E>(backup_entry: &BackupEntry<E>) -> bool {
    backup_entry.is_filled() && backup_entry.lost().is_none()
}

/// Returns whether an edit that the backup lacks adds the tree.
fn is_added_by_an_edit<E>(backup_entry: &BackupEntry<E>, name: PieceName) -> bool {
    let PieceName::Tree { id, .. } = name else {
        return false;
    };
    let edits = backup_entry.edits();
    let mut added = edits.iter().filter_map(|it| it.added.as_ref());
    added.any(|(_, tree)| tree.id() == id)
}

const fn part_of(name: PieceName) -> ComparedPart {
    match name {
        PieceName::Log { number } => ComparedPart::LogSegment(number),
        PieceName::Tree { id, index } => ComparedPart::TreeSegment { tree: id, index },
    }
}
