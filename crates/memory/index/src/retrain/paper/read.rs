//! What a retraining without moving reads of old tables: counters, entries, and the leaves that are
//! named, many with one batch.

use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::LeafImage;
use farleaf_region::members::MemberState;
use farleaf_types::RemoteAddr;

use super::super::Retraining;
use crate::IndexError;
use crate::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
use crate::snapshot::is_place;

/// READs in one batch.
const READ_COUNT_MAX: usize = 256;

/// A leaf that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    pub(super) addr: RemoteAddr,
    pub(super) low: u64,
    pub(super) link: RemoteAddr,
    pub(super) record_count: u64,
}

impl Met {
    pub(super) fn new(addr: RemoteAddr, image: LeafImage<'_>) -> Self {
        Self {
            addr,
            low: image.low(),
            link: image.link(),
            record_count: image.record_count() as u64,
        }
    }
}

/// `slot_use` of synonym leaf tables; 0 of one that there is not.
pub(super) async fn counters<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    tables: &[(RemoteAddr, u32)],
) -> Result<Vec<u64>, IndexError> {
    let mut counts = Vec::with_capacity(tables.len());
    for part in tables.chunks(READ_COUNT_MAX) {
        batch.clear();
        let reads: Vec<_> = part
            .iter()
            .map(|(table, _)| (!table.is_null()).then(|| batch.read(table.word_at(0), 1)))
            .collect();
        work.access.endpoint.execute(batch).await?;
        let words = reads.into_iter();
        counts.extend(words.map(|read| read.map_or(0, |read| batch.words(read)[0])));
    }
    Ok(counts)
}

/// The leaves that entries of tables name, from one number to another: only hints, but
/// every one is a place for a leaf. Those that are not written are left out.
pub(super) async fn listed<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    tables: &[(RemoteAddr, u32)],
    (from, to): (&[u64], &[u64]),
) -> Result<Vec<RemoteAddr>, IndexError> {
    let access = &work.access;
    let pieces = tables.iter().zip(from.iter().zip(to));
    let pieces = pieces.filter_map(|((table, capacity), (from, to))| {
        let capacity = u64::from(*capacity);
        let (from, to) = ((*from).min(capacity), (*to).min(capacity));
        (from < to).then(|| {
            (
                table.word_at(SYNONYM_TABLE_HEADER_SIZE_WORDS + from),
                (to - from) as usize,
            )
        })
    });
    let pieces: Vec<_> = pieces.collect();
    let mut leaves = Vec::new();
    for part in pieces.chunks(READ_COUNT_MAX) {
        batch.clear();
        let reads: Vec<_> = part
            .iter()
            .map(|(start, word_count)| batch.read(*start, *word_count))
            .collect();
        access.endpoint.execute(batch).await?;
        let words = reads.iter().flat_map(|read| batch.words(*read));
        let named = words.map(|word| RemoteAddr::from_word(*word).place());
        leaves.extend(named.filter(|leaf| is_place(access.layout, access.geometry, *leaf)));
    }
    Ok(leaves)
}

/// Reads leaves. Leaves out those that are torn just now, retired, another table's, or on a lost
/// node (R9).
pub(super) async fn intact<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    leaves: &[RemoteAddr],
) -> Result<Vec<Met>, IndexError> {
    let access = &work.access;
    let geometry = access.geometry;
    let members = access.layout.members();
    let is_lost = |leaf: &&RemoteAddr| members.state(leaf.node()) == Some(MemberState::Lost);
    let leaves: Vec<RemoteAddr> = leaves.iter().filter(|it| !is_lost(it)).copied().collect();
    let mut met = Vec::with_capacity(leaves.len());
    for part in leaves.chunks(READ_COUNT_MAX) {
        batch.clear();
        let reads: Vec<_> = part
            .iter()
            .map(|leaf| batch.read(geometry.state(*leaf), geometry.image_size_words()))
            .collect();
        batch.cost_mut().leaves_read += part.len() as u64;
        access.endpoint.execute(batch).await?;
        for (addr, read) in part.iter().zip(reads) {
            let image = LeafImage::new(geometry, batch.words(read));
            if image.is_intact(*addr, access.table) && !image.is_retired() {
                met.push(Met::new(*addr, image));
            }
        }
    }
    Ok(met)
}
