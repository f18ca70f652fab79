//! Reads of a retraining without moving: counters and entries of old tables, and the leaves that
//! they name, many in one batch.

use farleaf_base::RemoteAddr;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::words::LeafImage;
use farleaf_pool::members::MemberState;

use super::super::Retraining;
use crate::IndexError;
use crate::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
use crate::snapshot::is_place;

/// Largest number of READs in one batch.
const READ_COUNT_MAX: usize = 256;

/// Leaf that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadLeaf {
    pub(super) addr: RemoteAddr,
    pub(super) low: u64,
    pub(super) link: RemoteAddr,
    pub(super) record_count: u64,
}

impl ReadLeaf {
    pub(super) fn new(addr: RemoteAddr, image: LeafImage<'_>) -> Self {
        Self {
            addr,
            low: image.low(),
            link: image.link(),
            record_count: image.record_count() as u64,
        }
    }
}

/// Reads `slot_use` of synonym leaf tables; 0 for a missing table.
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

/// Reads the leaves that entries of tables name, within a range of numbers per table. The result is
/// only hints, but each is a valid place for a leaf. Unwritten entries are left out.
pub(super) async fn listed<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    tables: &[(RemoteAddr, u32)],
    from: &[u64],
    to: &[u64],
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

/// Reads leaves. Leaves out those that are torn, retired, of another table, or on a lost node.
pub(super) async fn intact<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    leaves: &[RemoteAddr],
) -> Result<Vec<ReadLeaf>, IndexError> {
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
                met.push(ReadLeaf::new(*addr, image));
            }
        }
    }
    Ok(met)
}
