//! Synonym leaf tables of new models. Such tables are to the left of the run's leaves, where there
//! usually is space, otherwise in their own chunks. The tables outlive the snapshot: models that
//! are not retrained keep theirs.

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint, ProtocolPhase};
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange, LaterClaims};
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::CHUNK_SIZE_BYTES;

use super::mover::{MoveResult, NewLeaf};
use super::{Retraining, Stretch};
use crate::directory::Model;
use crate::hint::due_split_count;
use crate::load::synonym_capacity;
use crate::snapshot::table_size_words;
use crate::{IndexError, LayerKind};

/// Approximate number of words that one batch writes.
const WRITE_SIZE_WORDS: usize = 16 << 10;

/// Number of leaves of a short model.
const SHORT_MODEL_LEAF_COUNT: u64 = 32;

/// Model without a table, and the initial counters of its table.
pub(super) struct UntabledModel<'a> {
    model: &'a mut Model,
    split_count: u64,
    underfull_count: u64,
}

/// Returns the models that need a table: the new ones, and one that lost its tail.
pub(super) fn wanting<'a, E: Endpoint>(
    work: &Retraining<'_, E>,
    moved: &MoveResult,
    trained: &'a mut [Model],
    cut: Option<&'a mut Model>,
) -> Vec<UntabledModel<'a>> {
    let mut leaves = &moved.leaves[..];
    let trained = trained.iter_mut().map(|model| {
        let (own, others) = leaves.split_at(model.leaf_count as usize);
        leaves = others;
        UntabledModel {
            model,
            split_count: 0,
            // Number of leaves that another retraining would save: each merges at most two into
            // one.
            underfull_count: mergeable_count(own, work.merged_count_max),
        }
    });
    let mut wanting: Vec<UntabledModel<'a>> = trained.collect();
    wanting.extend(cut.map(|model| UntabledModel {
        // The rest may have splits that are not counted again, so it is due at once. If the run was
        // too short, the rest continues with leaves that are as underfull.
        split_count: due_split_count(model.leaf_count),
        underfull_count: if moved.frees_space {
            u64::from(model.leaf_count)
        } else {
            0
        },
        model,
    }));
    wanting
}

/// Returns the approximate number of blocks for the tables of a run that is too short for its
/// stretch: those of the new models, and of one old model that loses its tail.
pub(super) fn block_count_of_short<E: Endpoint>(
    work: &Retraining<'_, E>,
    stretch: &Stretch,
    leaf_count: u64,
) -> u64 {
    let old = work.contents.models[stretch.models.clone()].iter();
    let cut_words = old.map(table_size_words).max().unwrap_or(0);
    let model_count = 1 + leaf_count / SHORT_MODEL_LEAF_COUNT;
    let new_words = synonym_capacity(LayerKind::Learned, leaf_count as u32);
    (cut_words as u64 + u64::from(new_words)).div_ceil(BLOCK_SIZE_WORDS) + 2 * model_count
}

/// Returns new models whose counters start at zero.
pub(super) fn empty(trained: &mut [Model]) -> Vec<UntabledModel<'_>> {
    let wanting = trained.iter_mut().map(|model| UntabledModel {
        model,
        split_count: 0,
        underfull_count: 0,
    });
    wanting.collect()
}

/// Returns the number of pairs of neighbors that fit into one leaf, as steps from right to left
/// find them.
fn mergeable_count(leaves: &[NewLeaf], merged_count_max: usize) -> u64 {
    let mut leaves = leaves.iter().rev().peekable();
    let mut pair_count = 0;
    while let Some(right) = leaves.next() {
        let is_pair = |left: &&NewLeaf| {
            left.is_left_of(right) && left.record_count + right.record_count <= merged_count_max
        };
        pair_count += u64::from(leaves.next_if(is_pair).is_some());
    }
    pair_count
}

/// Free space of a run, to the left of its leaves.
pub(super) struct RunSpace {
    start: RemoteAddr,
    block_count: u64,
}

impl RunSpace {
    /// No free space.
    pub(super) const NONE: Self = Self {
        start: RemoteAddr::NULL,
        block_count: 0,
    };

    pub(super) fn before(first_leaf: RemoteAddr, start: RemoteAddr) -> Self {
        Self {
            start,
            block_count: first_leaf.block() - start.block(),
        }
    }
}

/// Result of placing tables.
pub(super) struct PlacedTables {
    /// Address where the used part of the run begins.
    pub(super) run_used_from: RemoteAddr,
    /// Chunks that had to be claimed for the tables.
    pub(super) elsewhere: Option<ChunkRange>,
}

/// Places the tables next to each other, and writes them.
pub(super) async fn place<E: Endpoint>(
    work: &Retraining<'_, E>,
    batch: &mut Batch,
    allocator: &ChunkAllocator<'_, E>,
    generation: u16,
    run_space: RunSpace,
    wanting: Vec<UntabledModel<'_>>,
) -> Result<PlacedTables, IndexError> {
    let access = &work.access;
    access.endpoint.enters(ProtocolPhase::Tables);
    let size_words: usize = wanting
        .iter()
        .map(|wanting| table_size_words(wanting.model))
        .sum();
    let block_count = size_words as u64 / BLOCK_SIZE_WORDS;
    let leaves = run_space.start.offset_blocks(run_space.block_count);
    let placed = if let Some(left) = run_space.block_count.checked_sub(block_count) {
        PlacedTables {
            run_used_from: run_space.start.offset_blocks(left),
            elsewhere: None,
        }
    } else {
        let chunk_count = (size_words as u64 * 8).div_ceil(CHUNK_SIZE_BYTES);
        let purpose = ChunkPurpose::Snapshot { generation };
        let snapshot = LaterClaims {
            piece_count: work.contents.chunk_count(),
            single_count: 0,
        };
        let claimed = allocator
            .claim_whole_beside(chunk_count, snapshot, purpose, access.table)
            .await?;
        PlacedTables {
            run_used_from: leaves,
            elsewhere: Some(claimed),
        }
    };
    let mut next = match placed.elsewhere {
        Some(claimed) => access.layout.chunk_start(claimed.first),
        None => placed.run_used_from,
    };
    batch.clear();
    let mut posted = 0;
    for UntabledModel {
        model,
        split_count,
        underfull_count,
    } in wanting
    {
        // A retrainer that died after this point may have written here before.
        let mut words = vec![0; table_size_words(model)];
        (words[0], words[1]) = (split_count, underfull_count);
        batch.write(next.word_at(0), &words);
        model.synonym_table = next;
        next = next.offset_blocks(words.len() as u64 / BLOCK_SIZE_WORDS);
        posted += words.len();
        if posted >= WRITE_SIZE_WORDS {
            access.endpoint.execute(batch).await?;
            batch.clear();
            posted = 0;
        }
    }
    if posted > 0 {
        access.endpoint.execute(batch).await?;
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    fn made(low: u64, high: u64, record_count: usize) -> NewLeaf {
        NewLeaf {
            addr: RemoteAddr::new(NodeId(0), low),
            low,
            high,
            record_count,
            keys: None,
        }
    }

    /// Checks that two leaves with a lost one between them never count as a pair that could merge.
    /// Otherwise their model would always be due, because no retraining merges them.
    #[test]
    fn leaves_beside_a_lost_one_are_no_pair() {
        let neighbours = [made(0, 9, 2), made(10, 19, 2), made(20, u64::MAX, 2)];
        assert_eq!(mergeable_count(&neighbours, 4), 1);
        assert_eq!(mergeable_count(&neighbours, 3), 0);
        let around_lost = [made(0, 9, 2), made(20, u64::MAX, 2)];
        assert_eq!(mergeable_count(&around_lost, 4), 0);
    }
}
