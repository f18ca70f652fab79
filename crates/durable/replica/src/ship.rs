//! Edits and trees on their way to backups (RP9).

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

use crate::error::Failure;
use crate::index_way::{IndexWay, IndexWayError};
use crate::links::Links;
use crate::member::Member;
use crate::mismatch::{ComparedPart, Mismatch};
use crate::request::{FREED_COUNT_MAX, Reply, Request};

/// Why something did not go to a backup.
#[derive(Debug, Error)]
pub(crate) enum ShipError {
    /// This side cannot read its own.
    #[error("{0}")]
    Own(#[from] LsmError),
    #[error("{0}")]
    Way(#[from] IndexWayError),
    /// RP15.
    #[error("{0}")]
    Mismatch(#[from] Mismatch),
}

impl<E: Endpoint + Send> Links<E> {
    /// Brings the next edit to one of the backups that lack one; false: none does, or others bring
    /// it. A backup that does not take it in is lost.
    ///
    /// # Errors
    /// This side cannot read its own trees.
    pub(crate) fn ship_next(&self) -> Result<bool, LsmError> {
        let members: Vec<_> = self.members().values().cloned().collect();
        for member in members {
            if member.lost().is_some() {
                continue;
            }
            let mut way = match member.index.try_lock() {
                Ok(way) => way,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            let Some(edit) = member.edits().front().map(Arc::clone) else {
                continue;
            };
            match ship(&mut way, &member, &edit) {
                Ok(()) => {
                    member.edits().pop_front();
                }
                Err(ShipError::Own(error)) => return Err(error),
                Err(error) => {
                    let (backup, how) = (member.id, error.to_string());
                    let error = self.fail(Failure::Lost { backup, how });
                    tracing::warn!(%error, "an edit was not taken in");
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// How many edits the backup lacks that lacks most. Of one that is being filled, nothing can be
    /// brought to it before: nobody waits for it.
    pub(crate) fn behind_count(&self) -> usize {
        let members = self.members();
        let behind = members
            .values()
            .filter(|it| it.lost().is_none() && it.is_filled());
        behind.map(|it| it.edits().len()).max().unwrap_or(0)
    }
}

fn ship<E: Endpoint>(
    way: &mut IndexWay<E>,
    member: &Member<E>,
    edit: &Edit,
) -> Result<(), ShipError> {
    if let Some((_, tree)) = &edit.added {
        send_tree(way, member, tree)?;
    }
    // As many freed segments as a request has room for; the last one has all the rest, too.
    let (first, rest) = split(&edit.freed);
    for freed in first {
        let only = InstalledEdit {
            log_end: LogPosition(0),
            read_from: None,
            removed: Vec::new(),
            added: None,
            freed: freed.to_vec(),
        };
        call(way, member, &Request::Edit(only))?;
    }
    let added = edit.added.as_ref();
    let edit = InstalledEdit {
        log_end: edit.log_end,
        read_from: edit.read_from,
        removed: edit.removed.clone(),
        added: added.map(|(level, tree)| (*level, tree.id(), tree.shape())),
        freed: rest.to_vec(),
    };
    call(way, member, &Request::Edit(edit))
}

fn split(freed: &[LogNumber]) -> (impl Iterator<Item = &[LogNumber]>, &[LogNumber]) {
    let chunks = freed.chunks_exact(FREED_COUNT_MAX);
    let rest = chunks.remainder();
    (chunks, rest)
}

/// Brings the blocks of a tree, a segment at a time.
pub(crate) fn send_tree<E: Endpoint>(
    way: &mut IndexWay<E>,
    member: &Member<E>,
    tree: &SharedTree,
) -> Result<(), ShipError> {
    let mut buffer = Vec::new();
    for index in 0..tree.segment_count() {
        let blocks = tree.read_segment(index, &mut buffer)?;
        let request = Request::TreeSegment {
            id: tree.id(),
            index,
            size_bytes: blocks.len() as u32,
        };
        put(way, member, blocks, &request)?;
    }
    Ok(())
}

/// Drops what does not count of a log segment, which need not be sent, nor written; but for what a
/// segment begins with, so that it is told from others.
pub(crate) fn keep_counted(bytes: &mut Vec<u8>, counted_size_bytes: usize) {
    bytes.truncate(counted_size_bytes.max(SEGMENT_HEADER_SIZE_BYTES));
}

/// Has a backup write a segment, and compares what it wrote with what it was sent (RP15).
pub(crate) fn put<E: Endpoint>(
    way: &mut IndexWay<E>,
    member: &Member<E>,
    bytes: &[u8],
    request: &Request,
) -> Result<(), ShipError> {
    let counters = &member.counters;
    counters.request_count.fetch_add(1, Ordering::Relaxed);
    counters
        .index_size_bytes
        .fetch_add(bytes.len() as u64, Ordering::Relaxed);
    let written = match way.put(bytes, request, || member.is_given_up())? {
        Reply::Written(written) => written,
        other => return Err(unexpected(other)),
    };
    let part = match *request {
        Request::LogSegment { number, .. } => ComparedPart::LogSegment(number),
        Request::TreeSegment { id, index, .. } => ComparedPart::TreeSegment { tree: id, index },
        _ => unreachable!("nothing else has bytes"),
    };
    let compared = Mismatch::check(part, (WrittenSum::of(bytes), written));
    compared.inspect_err(|found| member.note_mismatch(found))?;
    Ok(())
}

/// An answer to another question.
pub(crate) fn unexpected(reply: Reply) -> ShipError {
    IndexWayError::Answer(format!("{reply:?} answers something else")).into()
}

pub(crate) fn call<E: Endpoint>(
    way: &mut IndexWay<E>,
    member: &Member<E>,
    request: &Request,
) -> Result<(), ShipError> {
    let counters = &member.counters;
    counters.request_count.fetch_add(1, Ordering::Relaxed);
    way.call(request, || member.is_given_up())?;
    Ok(())
}

pub(crate) fn ask<E: Endpoint>(
    way: &mut IndexWay<E>,
    member: &Member<E>,
    request: &Request,
) -> Result<Reply, ShipError> {
    let counters = &member.counters;
    counters.request_count.fetch_add(1, Ordering::Relaxed);
    Ok(way.ask(request, || member.is_given_up())?)
}

/// The way of one member, waited for.
pub(crate) fn way_of<E>(member: &Member<E>) -> std::sync::MutexGuard<'_, IndexWay<E>> {
    member.index.lock().unwrap_or_else(PoisonError::into_inner)
}
