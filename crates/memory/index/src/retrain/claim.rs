//! Room for a new run: how much, and on which node.

use farleaf_fabric::Endpoint;
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange, Others, Placement};
use farleaf_region::chunk::ChunkPurpose;

use super::{Retraining, Stretch};

/// One in so many chunks is what a stretch needs at first of which many leaves are underfull.
const SHRINKING_SHARE: u64 = 4;

/// Chunks for synonym leaf tables that find no room in the run.
const TABLES_CHUNK_COUNT: u64 = 1;

/// Claims room for a run of so many chunks, or less, for a generation. On the node that the stretch
/// is on, unless that is much fuller than another one or takes nothing new: then on the emptiest
/// that has room.
pub(super) async fn claim_run<E: Endpoint>(
    work: &Retraining<'_, E>,
    stretch: &Stretch,
    (wanted_count, generation): (u64, u16),
) -> Result<ChunkRange, RegionError> {
    let access = &work.access;
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let mut allocator = allocator.taking_used_first();
    let purpose = ChunkPurpose::Run {
        slots: access.geometry.slots(),
        generation,
    };
    // In a pool that is nearly full, as much as there is room for: it stops then (R6). Room is left
    // for what R5 writes, a chunk larger than the old one: it could not be committed without. What
    // shrinks seldom needs more than it had (else it waits, with its run, for the old one's
    // chunks), and may take what splits and other retrainings leave; a longer run than it fills
    // would leave that in pieces.
    let mut chunk_count = wanted_count;
    let mut others = Others {
        piece_count: work.contents.chunk_count(),
        single_count: TABLES_CHUNK_COUNT,
    };
    if stretch.makes_room {
        chunk_count = chunk_count.div_ceil(SHRINKING_SHARE);
        allocator = allocator.taking_reserve();
    } else {
        others.piece_count += 1;
    }
    let mut placement = Placement::read(&allocator, access.layout).await?;
    let old = work.contents.models[stretch.models.start].base.node();
    let mut node = placement.staying_on(old);
    loop {
        // U1: what R5 writes is on the home node.
        let is_home = node == access.layout.home().node;
        let others = if is_home { others } else { Others::default() };
        let allocator = allocator.on(node);
        let claimed = allocator.claim_beside(chunk_count, others, purpose, access.table);
        match claimed.await {
            // U4: there is no room on a node that was lost just now.
            Err(error)
                if (matches!(error, RegionError::Full { .. })
                    || error.lost_node() == Some(node))
                    && placement.rule_out(node) =>
            {
                node = placement.emptiest();
            }
            claimed => return claimed,
        }
    }
}
