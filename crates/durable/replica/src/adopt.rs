//! A base is brought to a backup that may have most of it already (RP14).

use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use farleaf_fabric::Endpoint;
use farleaf_lsm::engine::Base;
use farleaf_lsm::follow::PieceSum;
use farleaf_lsm::log::extent::Extents;
use farleaf_lsm::place::{LogNumber, TreeId};
use farleaf_lsm::tree::TreeShape;
use farleaf_lsm::{Engine, LsmError};

use crate::index_way::{IndexWay, IndexWayError};
use crate::member::Member;
use crate::request::{Reply, Request};
use crate::ship::{ShipError, ask, call, keep_counted, put, unexpected};

/// So many pieces are read and summed ahead of the one that is asked for: 2 MiB each.
const AHEAD_COUNT: usize = 2;

/// What a base consists of, in its order.
enum Piece {
    Log {
        number: LogNumber,
        end: Option<u32>,
        bytes: Vec<u8>,
        /// How many of the bytes count, and what these sum up to.
        counted: (u32, PieceSum),
    },
    TreeSegment {
        id: TreeId,
        index: usize,
        blocks: Vec<u8>,
        sum: PieceSum,
    },
    /// All segments of it have gone before.
    Tree {
        level: usize,
        id: TreeId,
        shape: TreeShape,
    },
}

/// Offers each piece of a base, and sends those that the backup does not have. Another thread reads
/// and sums, while the backup does the same with its own.
pub(crate) fn offer_base<E: Endpoint>(
    engine: &Engine,
    (way, member): (&mut IndexWay<E>, &Member<E>),
    base: &Base,
) -> Result<(), ShipError> {
    thread::scope(|scope| {
        let (to, pieces) = sync_channel(AHEAD_COUNT);
        let reader = thread::Builder::new().name("read-base".to_owned());
        let reading = reader.spawn_scoped(scope, move || {
            if let Err(error) = read_pieces(engine, base, &to) {
                // If nobody waits for it any more, something else has failed before.
                let _ = to.send(Err(error));
            }
        });
        reading.map_err(IndexWayError::NoThread)?;
        for piece in pieces {
            offer(way, member, piece?)?;
        }
        Ok(())
    })
}

/// Reads all pieces, as long as somebody takes them.
fn read_pieces(
    engine: &Engine,
    base: &Base,
    to: &SyncSender<Result<Piece, LsmError>>,
) -> Result<(), LsmError> {
    let mut extents = Extents::new(base.engine, base.read_from);
    for (number, end) in &base.log {
        let mut bytes = Vec::new();
        engine.log().read_raw(number.start(), &mut bytes)?;
        let counted = &bytes[..extents.size_of(*number, *end, &bytes)];
        let counted = (counted.len() as u32, PieceSum::of(counted));
        keep_counted(&mut bytes, counted.0 as usize);
        let piece = Piece::Log {
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
            let piece = Piece::TreeSegment {
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
        if to.send(Ok(Piece::Tree { level, id, shape })).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn offer<E: Endpoint>(
    way: &mut IndexWay<E>,
    member: &Member<E>,
    piece: Piece,
) -> Result<(), ShipError> {
    let (offer, bytes, request) = match piece {
        Piece::Log {
            number,
            end,
            bytes,
            counted: (size_bytes, sum),
        } => {
            let offer = Request::LogOffer {
                number,
                end,
                size_bytes,
                sum,
            };
            let request = Request::LogSegment {
                number,
                end,
                size_bytes: bytes.len() as u32,
            };
            (offer, bytes, request)
        }
        Piece::TreeSegment {
            id,
            index,
            blocks,
            sum,
        } => {
            let size_bytes = blocks.len() as u32;
            let offer = Request::TreeOffer {
                id,
                index,
                size_bytes,
                sum,
            };
            let request = Request::TreeSegment {
                id,
                index,
                size_bytes,
            };
            (offer, blocks, request)
        }
        Piece::Tree { level, id, shape } => {
            return call(way, member, &Request::Tree { level, id, shape });
        }
    };
    match ask(way, member, &offer)? {
        Reply::Taken(true) => {
            let kept = &member.counters.kept_size_bytes;
            kept.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            Ok(())
        }
        Reply::Taken(false) => put(way, member, &bytes, &request),
        other => Err(unexpected(other)),
    }
}
