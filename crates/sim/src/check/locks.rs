//! D8: when everybody is gone and the sweep has been there, nobody holds anything.

use farleaf_region::chunk::ChunkPurpose;
use farleaf_region::layout::ChunkIndex;

use super::Violation;
use super::region::Region;

/// Checks the catalog's lock, the locks of all leaves and places for leaves, and the owners of all
/// chunks.
pub fn check(region: &Region) -> Vec<Violation> {
    let mut held = Vec::new();
    let catalog = region.word(region.layout.catalog_lock());
    if catalog != 0 {
        held.push(format!("the catalog is locked by {catalog:#x}"));
    }
    let linked = region.leaves.iter().filter(|leaf| leaf.lock != 0);
    held.extend(linked.map(|leaf| format!("{} is locked by {:#x}", leaf.addr, leaf.lock)));
    let geometry = region.geometry();
    for (index, chunk) in region.chunks.iter().enumerate() {
        if !chunk.owner.is_free() {
            held.push(format!("chunk {index} is leased by {}", chunk.owner));
        }
        if !matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. })) {
            continue;
        }
        for leaf in region.places(ChunkIndex(index as u64)) {
            let lock = region.word(geometry.lock(leaf));
            if lock != 0 {
                held.push(format!("{leaf} is locked by {lock:#x}"));
            }
        }
    }
    held.into_iter()
        .map(|how| Violation::new("locks", how))
        .collect()
}
