//! Sends edits and trees to backups (REPLICATION-9).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, TryLockError};

use farleaf_fabric::Endpoint;
use farleaf_lsm::LsmError;
use farleaf_lsm::follow::{Edit, InstalledEdit, SharedTree};
use farleaf_lsm::log::record::SEGMENT_HEADER_SIZE_BYTES;
use farleaf_lsm::place::{LogNumber, LogPosition};
use farleaf_lsm::written::WrittenSum;
use thiserror::Error;

use crate::backup_entry::BackupEntry;
use crate::error::WriteFailure;
use crate::index_connection::{IndexConnection, IndexConnectionError};
use crate::links::BackupLinks;
use crate::mismatch::{ComparedPart, Mismatch};
use crate::request::{FREED_COUNT_MAX, ReplicationReply, ReplicationRequest};

/// Reason why something was not sent to a backup.
#[derive(Debug, Error)]
pub(crate) enum ShipError {
    /// The primary cannot read its own data.
    #[error("{0}")]
    Own(#[from] LsmError),
    #[error("{0}")]
    Way(#[from] IndexConnectionError),
    /// The backup wrote something else than it was sent (REPLICATION-15).
    #[error("{0}")]
    Mismatch(#[from] Mismatch),
}

impl<E: Endpoint + Send> BackupLinks<E> {
    /// Sends the next edit to one of the backups that lack one. Returns false if none lacks an
    /// edit, or other threads send them. A backup that rejects the edit is lost.
    ///
    /// # Errors
    /// If the primary cannot read its own trees.
    pub(crate) fn ship_next(&self) -> Result<bool, LsmError> {
        let backup_entries: Vec<_> = self.backup_entries().values().cloned().collect();
        for backup_entry in backup_entries {
            if backup_entry.lost().is_some() {
                continue;
            }
            let mut connection = match backup_entry.index.try_lock() {
                Ok(connection) => connection,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            let Some(edit) = backup_entry.edits().front().map(Arc::clone) else {
                continue;
            };
            match ship(&mut connection, &backup_entry, &edit) {
                Ok(()) => {
                    backup_entry.edits().pop_front();
                }
                Err(ShipError::Own(error)) => return Err(error),
                Err(error) => {
                    let (backup, how) = (backup_entry.id, error.to_string());
                    let error = self.fail(WriteFailure::Lost { backup, how });
                    tracing::warn!(%error, "cannot send an edit to a backup");
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Returns the highest number of edits that a backup lacks. Backups being filled do not count:
    /// they get no edits before they are filled.
    pub(crate) fn behind_count(&self) -> usize {
        let backup_entries = self.backup_entries();
        let behind = backup_entries
            .values()
            .filter(|it| it.lost().is_none() && it.is_filled());
        behind.map(|it| it.edits().len()).max().unwrap_or(0)
    }
}

fn ship<E: Endpoint>(
    connection: &mut IndexConnection<E>,
    backup_entry: &BackupEntry<E>,
    edit: &Edit,
) -> Result<(), ShipError> {
    if let Some((_, tree)) = &edit.added {
        send_tree(connection, backup_entry, tree)?;
    }
    // A request frees as many segments as fit; the last request has the rest of the edit.
    let (first, rest) = split(&edit.freed);
    for freed in first {
        let only = InstalledEdit {
            log_end: LogPosition(0),
            read_from: None,
            removed: Vec::new(),
            added: None,
            freed: freed.to_vec(),
        };
        call(connection, backup_entry, &ReplicationRequest::Edit(only))?;
    }
    let added = edit.added.as_ref();
    let edit = InstalledEdit {
        log_end: edit.log_end,
        read_from: edit.read_from,
        removed: edit.removed.clone(),
        added: added.map(|(level, tree)| (*level, tree.id(), tree.shape())),
        freed: rest.to_vec(),
    };
    call(connection, backup_entry, &ReplicationRequest::Edit(edit))
}

fn split(freed: &[LogNumber]) -> (impl Iterator<Item = &[LogNumber]>, &[LogNumber]) {
    let chunks = freed.chunks_exact(FREED_COUNT_MAX);
    let rest = chunks.remainder();
    (chunks, rest)
}

/// Sends the blocks of a tree, one segment at a time.
pub(crate) fn send_tree<E: Endpoint>(
    connection: &mut IndexConnection<E>,
    backup_entry: &BackupEntry<E>,
    tree: &SharedTree,
) -> Result<(), ShipError> {
    let mut buffer = Vec::new();
    for index in 0..tree.segment_count() {
        let blocks = tree.read_segment(index, &mut buffer)?;
        let request = ReplicationRequest::TreeSegment {
            id: tree.id(),
            index,
            size_bytes: blocks.len() as u32,
        };
        put(connection, backup_entry, blocks, &request)?;
    }
    Ok(())
}

/// Truncates a log segment to its counted bytes, so that the rest is neither sent nor written. The
/// segment header is kept, as it identifies the segment.
pub(crate) fn keep_counted(bytes: &mut Vec<u8>, counted_size_bytes: usize) {
    bytes.truncate(counted_size_bytes.max(SEGMENT_HEADER_SIZE_BYTES));
}

/// Makes a backup write a segment, and compares its checksum with that of the sent bytes
/// (REPLICATION-15).
pub(crate) fn put<E: Endpoint>(
    connection: &mut IndexConnection<E>,
    backup_entry: &BackupEntry<E>,
    bytes: &[u8],
    request: &ReplicationRequest,
) -> Result<(), ShipError> {
    let counters = &backup_entry.counters;
    counters.request_count.fetch_add(1, Ordering::Relaxed);
    counters
        .index_size_bytes
        .fetch_add(bytes.len() as u64, Ordering::Relaxed);
    let written = match connection.put(bytes, request, || backup_entry.is_given_up())? {
        ReplicationReply::Written(written) => written,
        other => return Err(unexpected(other)),
    };
    let part = match *request {
        ReplicationRequest::LogSegment { number, .. } => ComparedPart::LogSegment(number),
        ReplicationRequest::TreeSegment { id, index, .. } => {
            ComparedPart::TreeSegment { tree: id, index }
        }
        _ => unreachable!("nothing else has bytes"),
    };
    let compared = Mismatch::check(part, WrittenSum::of(bytes), written);
    compared.inspect_err(|found| backup_entry.note_mismatch(found))?;
    Ok(())
}

/// Returns the error for a reply that does not match the request.
pub(crate) fn unexpected(reply: ReplicationReply) -> ShipError {
    IndexConnectionError::Answer(format!("{reply:?} is not a reply to the request")).into()
}

pub(crate) fn call<E: Endpoint>(
    connection: &mut IndexConnection<E>,
    backup_entry: &BackupEntry<E>,
    request: &ReplicationRequest,
) -> Result<(), ShipError> {
    let counters = &backup_entry.counters;
    counters.request_count.fetch_add(1, Ordering::Relaxed);
    connection.call(request, || backup_entry.is_given_up())?;
    Ok(())
}

pub(crate) fn ask<E: Endpoint>(
    connection: &mut IndexConnection<E>,
    backup_entry: &BackupEntry<E>,
    request: &ReplicationRequest,
) -> Result<ReplicationReply, ShipError> {
    let counters = &backup_entry.counters;
    counters.request_count.fetch_add(1, Ordering::Relaxed);
    Ok(connection.ask(request, || backup_entry.is_given_up())?)
}

/// Waits for and locks the connection to a backup.
pub(crate) fn lock_index_connection<E>(
    backup_entry: &BackupEntry<E>,
) -> std::sync::MutexGuard<'_, IndexConnection<E>> {
    backup_entry
        .index
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}
