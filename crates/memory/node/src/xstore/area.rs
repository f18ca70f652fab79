//! Allocation of a table's models in far memory.
//!
//! There are two kinds of allocations, translation tables and records of sub-models, with sizes in
//! powers of two. A freed allocation is reused only for the same kind. Chunks are claimed when
//! there is no free allocation, and are kept until the table is dropped.

use std::collections::BTreeMap;

use farleaf_base::{BLOCK_SIZE_WORDS, OwnerWord, RemoteAddr, TableId};
use farleaf_fabric::Endpoint;
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::CHUNK_SIZE_BYTES;
use farleaf_pool::{PoolError, PoolLayout};

const CHUNK_SIZE_BLOCKS: u64 = CHUNK_SIZE_BYTES / 8 / BLOCK_SIZE_WORDS;

/// Use of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaceKind {
    /// A translation table.
    Table,
    /// The models of a generation: the lines of the top model, and the records of the sub-models.
    Records,
}

/// Allocations of one table.
#[derive(Debug, Default)]
pub struct ModelArea {
    /// Free allocations, by kind and size in blocks.
    free: BTreeMap<(PlaceKind, u64), Vec<RemoteAddr>>,
    /// Unused rest of the last chunks claimed for each kind: address, and number of blocks.
    rest: BTreeMap<PlaceKind, (RemoteAddr, u64)>,
}

impl ModelArea {
    /// Allocates so many words, if that is possible without another chunk.
    pub(super) fn take(&mut self, kind: PlaceKind, word_count: usize) -> Option<RemoteAddr> {
        let blocks = size_blocks(word_count);
        if let Some(free) = self.free.get_mut(&(kind, blocks))
            && let Some(place) = free.pop()
        {
            return Some(place);
        }
        let (start, left) = self.rest.get_mut(&kind)?;
        if *left < blocks {
            return None;
        }
        let place = *start;
        *start = start.offset_blocks(blocks);
        *left -= blocks;
        Some(place)
    }

    /// Frees an allocation that the newest models do not use.
    pub(super) fn give(&mut self, kind: PlaceKind, word_count: usize, place: RemoteAddr) {
        let blocks = size_blocks(word_count);
        self.free.entry((kind, blocks)).or_default().push(place);
    }

    /// Adds claimed chunks, which are unused.
    pub(super) fn extend(&mut self, kind: PlaceKind, start: RemoteAddr, chunk_count: u64) {
        let blocks = chunk_count * CHUNK_SIZE_BLOCKS;
        if let Some((old, left)) = self.rest.insert(kind, (start, blocks)) {
            self.scatter(kind, old, left);
        }
    }

    /// Splits the rest of older chunks into free allocations, large ones first.
    fn scatter(&mut self, kind: PlaceKind, mut start: RemoteAddr, mut left: u64) {
        while left > 0 {
            let blocks = 1 << left.ilog2();
            self.free.entry((kind, blocks)).or_default().push(start);
            start = start.offset_blocks(blocks);
            left -= blocks;
        }
    }
}

/// Returns the size of an allocation for so many words, in blocks.
fn size_blocks(word_count: usize) -> u64 {
    let blocks = (word_count as u64).div_ceil(BLOCK_SIZE_WORDS).max(1);
    blocks.next_power_of_two()
}

/// Claims enough chunks for an allocation of so many words.
pub(super) async fn claim<E: Endpoint>(
    endpoint: &E,
    layout: &PoolLayout,
    owner: OwnerWord,
    table: TableId,
    word_count: usize,
) -> Result<(RemoteAddr, u64), PoolError> {
    let allocator = ChunkAllocator::new(endpoint, layout, owner);
    let chunk_count = size_blocks(word_count).div_ceil(CHUNK_SIZE_BLOCKS);
    let range = allocator.claim(chunk_count, ChunkPurpose::Models, table);
    let range = range.await?;
    let free = FreeLeaves::default();
    let given = allocator.give_back(range, ChunkPurpose::Models, table, free);
    given.await?;
    Ok((layout.chunk_start(range.first), chunk_count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    fn at(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    /// Promise: an allocation is never used for the other kind, nor twice at once.
    #[test]
    fn places_do_not_overlap() {
        let mut area = ModelArea::default();
        assert_eq!(area.take(PlaceKind::Table, 1), None);
        area.extend(PlaceKind::Table, at(0), 1);
        assert_eq!(area.take(PlaceKind::Records, 1), None);
        area.extend(PlaceKind::Records, at(5000), 1);
        let first = area.take(PlaceKind::Table, 9).expect("room");
        let second = area.take(PlaceKind::Table, 8).expect("room");
        assert_eq!((first, second), (at(0), at(2)));
        area.give(PlaceKind::Table, 9, first);
        assert_eq!(area.take(PlaceKind::Records, 9), Some(at(5000)));
        assert_eq!(area.take(PlaceKind::Table, 16), Some(first));
    }

    /// Promise: the rest of a chunk is used after another one is claimed.
    #[test]
    fn nothing_is_lost() {
        let mut area = ModelArea::default();
        area.extend(PlaceKind::Table, at(0), 1);
        assert_eq!(area.take(PlaceKind::Table, 8), Some(at(0)));
        area.extend(PlaceKind::Table, at(CHUNK_SIZE_BLOCKS), 1);
        let mut found = Vec::new();
        for size in (0..10).rev() {
            let words = (BLOCK_SIZE_WORDS << size) as usize;
            let place = area.take(PlaceKind::Table, words).expect("room");
            found.push((place.block(), 1_u64 << size));
        }
        let total: u64 = found.iter().map(|(_, blocks)| blocks).sum();
        assert_eq!(total, CHUNK_SIZE_BLOCKS - 1);
        assert!(found.iter().all(|(block, _)| *block < CHUNK_SIZE_BLOCKS));
    }
}
