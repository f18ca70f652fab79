//! Sends a base to a backup that may already have most of it (REPLICATION-14).

use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use farleaf_fabric::Endpoint;
use farleaf_lsm::engine::EngineBase;
use farleaf_lsm::follow::PieceSum;
use farleaf_lsm::log::extent::Extents;
use farleaf_lsm::place::{LogNumber, TreeId};
use farleaf_lsm::tree::TreeShape;
use farleaf_lsm::{Engine, LsmError};

use crate::backup_entry::BackupEntry;
use crate::index_connection::{IndexConnection, IndexConnectionError};
use crate::request::{ReplicationReply, ReplicationRequest};
use crate::ship::{ShipError, ask, call, keep_counted, put, unexpected};

/// Number of pieces, of 2 MiB each, that are read and checksummed ahead of the offered one.
const AHEAD_COUNT: usize = 2;

/// Pieces of a base, in order.
enum BasePiece {
    Log {
        number: LogNumber,
        end: Option<u32>,
        bytes: Vec<u8>,
        /// Number of bytes that count, and their checksum.
        counted: (u32, PieceSum),
    },
    TreeSegment {
        id: TreeId,
        index: usize,
        blocks: Vec<u8>,
        sum: PieceSum,
    },
    /// End of a tree, after all its segments.
    Tree {
        level: usize,
        id: TreeId,
        shape: TreeShape,
    },
}

/// Offers each piece of a base, and sends those that the backup lacks. Another thread reads and
/// checksums ahead, while the backup does the same with its own pieces.
pub(crate) fn offer_base<E: Endpoint>(
    engine: &Engine,
    connection: &mut IndexConnection<E>,
    backup_entry: &BackupEntry<E>,
    base: &EngineBase,
) -> Result<(), ShipError> {
    thread::scope(|scope| {
        let (to, pieces) = sync_channel(AHEAD_COUNT);
        let reader = thread::Builder::new().name("read-base".to_owned());
        let reading = reader.spawn_scoped(scope, move || {
            if let Err(error) = read_pieces(engine, base, &to) {
                // If the receiver is gone, something else has failed before.
                let _ = to.send(Err(error));
            }
        });
        reading.map_err(IndexConnectionError::NoThread)?;
        for piece in pieces {
            offer(connection, backup_entry, piece?)?;
        }
        Ok(())
    })
}

/// Reads all pieces, as long as the receiver takes them.
fn read_pieces(
    engine: &Engine,
    base: &EngineBase,
    to: &SyncSender<Result<BasePiece, LsmError>>,
) -> Result<(), LsmError> {
    let mut extents = Extents::new(base.engine, base.read_from);
    for (number, end) in &base.log {
        let mut bytes = Vec::new();
        engine.log().read_raw(number.start(), &mut bytes)?;
        let counted = &bytes[..extents.size_of(*number, *end, &bytes)];
        let counted = (counted.len() as u32, PieceSum::of(counted));
        keep_counted(&mut bytes, counted.0 as usize);
        let piece = BasePiece::Log {
            number: *number,
            end: *end,
            counted,
            bytes,
        };
        if to.send(Ok(piece)).is_err() {
            return Ok(());
        }
    }
    for (level, tree) in &base.trees {
        let (id, shape) = (tree.id(), tree.shape());
        for index in 0..tree.segment_count() {
            let mut buffer = Vec::new();
            let blocks = tree.read_segment(index, &mut buffer)?.to_vec();
            let piece = BasePiece::TreeSegment {
                id,
                index,
                sum: PieceSum::of(&blocks),
                blocks,
            };
            if to.send(Ok(piece)).is_err() {
                return Ok(());
            }
        }
        let level = *level;
        if to.send(Ok(BasePiece::Tree { level, id, shape })).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn offer<E: Endpoint>(
    connection: &mut IndexConnection<E>,
    backup_entry: &BackupEntry<E>,
    piece: BasePiece,
) -> Result<(), ShipError> {
    let (offer, bytes, request) = match piece {
        BasePiece::Log {
            number,
            end,
            bytes,
            counted: (size_bytes, sum),
        } => {
            let offer = ReplicationRequest::LogOffer {
                number,
                end,
                size_bytes,
                sum,
            };
            let request = ReplicationRequest::LogSegment {
                number,
                end,
                size_bytes: bytes.len() as u32,
            };
            (offer, bytes, request)
        }
        BasePiece::TreeSegment {
            id,
            index,
            blocks,
            sum,
        } => {
            let size_bytes = blocks.len() as u32;
            let offer = ReplicationRequest::TreeOffer {
                id,
                index,
                size_bytes,
                sum,
            };
            let request = ReplicationRequest::TreeSegment {
                id,
                index,
                size_bytes,
            };
            (offer, blocks, request)
        }
        BasePiece::Tree { level, id, shape } => {
            return call(
                connection,
                backup_entry,
                &ReplicationRequest::Tree { level, id, shape },
            );
        }
    };
    match ask(connection, backup_entry, &offer)? {
        ReplicationReply::Taken(true) => {
            let kept_size_bytes = &backup_entry.counters.kept_size_bytes;
            kept_size_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            Ok(())
        }
        ReplicationReply::Taken(false) => put(connection, backup_entry, &bytes, &request),
        other => Err(unexpected(other)),
    }
}
