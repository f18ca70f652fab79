//! Every chunk and every leaf is either in use or free, and what is free is zero (A4).

use std::collections::BTreeSet;

use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};
use farleaf_types::{BLOCK_SIZE_WORDS, RemoteAddr};

use super::Violation;
use super::region::Region;

/// Checks every chunk, and in those that splits take leaves from, every leaf.
pub fn check(region: &Region) -> Vec<Violation> {
    let linked = region.leaves.iter().map(|leaf| leaf.addr).collect();
    let mut lost = Vec::new();
    let root = region.entry.root.spare();
    for (index, chunk) in region.chunks.iter().enumerate() {
        let place = ChunkIndex(index as u64);
        match chunk.purpose {
            Some(ChunkPurpose::Free) => {
                let start = region.layout.chunk_start(place).word_at(0);
                let word_count = (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize;
                if !region.is_zero(start, word_count) {
                    lost.push(format!("chunk {index} is free and not zero"));
                }
            }
            Some(ChunkPurpose::Leaves { .. }) => {
                lost.extend(leaves(region, place, chunk, &linked));
            }
            Some(ChunkPurpose::Run { generation, .. }) if generation == root => {}
            // The table's first snapshot stays.
            Some(ChunkPurpose::Snapshot { generation })
                if generation == root || generation == 0 => {}
            Some(ChunkPurpose::Run { generation, .. } | ChunkPurpose::Snapshot { generation }) => {
                lost.push(format!(
                    "chunk {index} is of load {generation}, which never happened"
                ));
            }
            None => lost.push(format!("chunk {index} is for something unknown")),
        }
    }
    lost.into_iter()
        .map(|how| Violation::new("leaks", how))
        .collect()
}

/// A leaf is linked, or free, or the first one, which stays when a load retires it.
fn leaves(
    region: &Region,
    index: ChunkIndex,
    chunk: &ChunkEntry,
    linked: &BTreeSet<RemoteAddr>,
) -> Vec<String> {
    let count = region.geometry().chunk_leaf_count();
    let free: BTreeSet<u64> = chunk.free.iter(count).collect();
    let mut lost = Vec::new();
    for (number, leaf) in (0..).zip(region.places(index)) {
        let is_linked = linked.contains(&leaf);
        let is_kept = is_linked || leaf == region.entry.record.first_leaf;
        match (free.contains(&number), is_kept) {
            (true, true) if is_linked => lost.push(format!("{leaf} is free and in use")),
            (false, false) => lost.push(format!("{leaf} is neither free nor in use")),
            _ => {}
        }
    }
    lost
}
