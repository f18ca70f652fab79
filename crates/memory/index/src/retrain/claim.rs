//! Claiming space for a new run: how much, and on which node.

use farleaf_fabric::Endpoint;
use farleaf_pool::PoolError;
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange, LaterClaims, NodeChoice};
use farleaf_pool::chunk::ChunkPurpose;

use super::{Retraining, Stretch};

/// Share of chunks, as a divisor, that a stretch with many underfull leaves needs at first.
const SHRINKING_SHARE: u64 = 4;

/// Number of chunks for synonym leaf tables that do not fit into the run.
const TABLES_CHUNK_COUNT: u64 = 1;

/// Claims space for a run of `wanted_count` chunks or fewer, for a generation. Uses the stretch's
/// node, unless that is much fuller than another node or takes nothing new: then the emptiest node
/// with space.
pub(super) async fn claim_run<E: Endpoint>(
    work: &Retraining<'_, E>,
    stretch: &Stretch,
    wanted_count: u64,
    generation: u16,
) -> Result<ChunkRange, PoolError> {
    let access = &work.access;
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let mut allocator = allocator.taking_used_first();
    let purpose = ChunkPurpose::Run {
        slots: access.geometry.slots(),
        generation,
    };
    // In a pool that is nearly full, claim what is available; the run stops there. Keep space for
    // what the publication writes, including a larger snapshot: without it the run could not be
    // committed. A shrinking stretch seldom needs more than it had; otherwise it waits, with its
    // run, for the old run's chunks. It may use what splits and other retrainings leave; a run
    // longer than needed would leave that space fragmented.
    let mut chunk_count = wanted_count;
    let mut others = LaterClaims {
        piece_count: work.contents.chunk_count(),
        single_count: TABLES_CHUNK_COUNT,
    };
    if stretch.frees_space {
        chunk_count = chunk_count.div_ceil(SHRINKING_SHARE);
        allocator = allocator.taking_reserve();
    } else {
        others.piece_count += 1;
    }
    let mut placement = NodeChoice::read(&allocator, access.layout).await?;
    let old = work.contents.models[stretch.models.start].base.node();
    let mut node = placement.replacement_node_for(old);
    loop {
        // The publication writes to the main node.
        let is_main_node = node == access.layout.main_node().node;
        let others = if is_main_node {
            others
        } else {
            LaterClaims::default()
        };
        let allocator = allocator.on(node);
        let claimed = allocator.claim_beside(chunk_count, others, purpose, access.table);
        match claimed.await {
            // A node that was just lost has no space.
            Err(error)
                if (matches!(error, PoolError::Full { .. }) || error.lost_node() == Some(node))
                    && placement.exclude(node) =>
            {
                node = placement.emptiest();
            }
            claimed => return claimed,
        }
    }
}
