//! Moves runs away from draining nodes by retraining them on other nodes.

use std::collections::BTreeSet;
use std::rc::Rc;

use farleaf_base::{BLOCK_SIZE_BYTES, NodeId, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::retrain::Stretch;
use farleaf_index::{Index, IndexError, IndexState, Layer, LayerKind};
use farleaf_leaf::words::LeafImage;
use farleaf_pool::chunk::ChunkEntry;
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::members::MemberState;

use super::Retrainer;
use super::look::LearnedTableView;
use super::policy::ModelChanges;
use crate::sweep::MemoryMaintainer;
use crate::wait_limit::WaitLimit;

impl Retrainer {
    /// Returns the models to move next because they, or leaves that splits have added to them, are
    /// on a draining node. Costs nothing while no node is draining.
    pub(super) async fn due_for_drain<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        table: &LearnedTableView<'_, E>,
        counted: &[ModelChanges],
        wait_limit: &WaitLimit<'_>,
        is_own_look: bool,
    ) -> Result<Option<Stretch>, IndexError> {
        let members = maintainer.layout.members();
        let is_draining = |node: NodeId| members.state(node) == Some(MemberState::Draining);
        if wait_limit.is_over() || !members.reachable().any(is_draining) {
            return Ok(None);
        }
        let models = &table.contents.models;
        if table.kind() != LayerKind::Learned {
            if self
                .logged_undrained
                .borrow_mut()
                .insert(table.access.table)
            {
                tracing::warn!(
                    table = table.entry.record.name,
                    "leaves of a table with search layer 'rolex' cannot be moved; the drain \
                     completes only after the table is dropped"
                );
            }
            return Ok(None);
        }
        let lost_models = self.lost_models.borrow().clone();
        let id = table.access.table;
        let moves = |model: usize| {
            let of = &models[model];
            is_draining(of.base.node()) && !lost_models.is_given_up(id, of)
        };
        let on_draining = (0..models.len()).find(|model| moves(*model));
        let first = match on_draining {
            Some(first) => Some(first),
            // Only at the node's own checks: it reads whole chunks.
            None if is_own_look => {
                let found = self
                    .model_of_leaves_left(maintainer, table, wait_limit)
                    .await?;
                found.filter(|model| !lost_models.is_given_up(id, &models[*model]))
            }
            None => None,
        };
        let Some(first) = first else {
            return Ok(None);
        };
        let leaves = |model: usize| u64::from(models[model].leaf_count) + counted[model].splits;
        // Each retraining writes a snapshot of the whole table, which every session reads.
        let all: u64 = (0..models.len()).map(leaves).sum();
        let leaf_count_max = self
            .policy
            .leaf_count_max
            .max(all / self.policy.table_share);
        let mut leaf_count = leaves(first);
        let mut end = first + 1;
        let is_alone = |model: usize| lost_models.is_alone(id, &models[model]);
        while end < models.len()
            && !is_alone(first)
            && moves(end)
            && !is_alone(end)
            && leaf_count + leaves(end) <= leaf_count_max
        {
            leaf_count += leaves(end);
            end += 1;
        }
        let synonym_count = counted[first..end].iter().map(|model| model.splits).sum();
        Ok(Some(Stretch {
            models: first..end,
            synonym_count,
            frees_space: false,
        }))
    }

    /// Returns the model of a leaf that a split has placed on a draining node although its model is
    /// elsewhere. Also frees chunks of which all leaves are free. If leaves are neither in use nor
    /// free, schedules a search for retired ones.
    async fn model_of_leaves_left<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        table: &LearnedTableView<'_, E>,
        wait_limit: &WaitLimit<'_>,
    ) -> Result<Option<usize>, IndexError> {
        let members = maintainer.layout.members();
        let access = &table.access;
        let has_lost = members.all().any(|(_, state)| state == MemberState::Lost);
        let searcher = has_lost.then(|| searcher(table));
        let is_left = |(index, chunk): &(ChunkIndex, &ChunkEntry)| {
            members.state(index.node()) == Some(MemberState::Draining)
                && chunk.has_leaves(access.table)
        };
        let mut batch = Batch::new();
        for (index, chunk) in table.chunks.iter().filter(is_left) {
            batch.clear();
            let free: BTreeSet<u64> = chunk
                .free
                .iter(access.geometry.chunk_leaf_count())
                .collect();
            if free.len() as u64 == access.geometry.chunk_leaf_count() {
                // The chunk was leased and not used, or its leaves are free again.
                let leaf_size_bytes = access.geometry.stride_blocks() * BLOCK_SIZE_BYTES;
                maintainer
                    .free_leaves(index, access.table, leaf_size_bytes, &[])
                    .await?;
                continue;
            }
            let places = (0..).zip(maintainer.chunk_places(access, index));
            let reads: Vec<_> = places
                .filter(|(number, _)| !free.contains(number))
                .map(|(_, leaf)| leaf)
                .map(|leaf| {
                    let image = access.geometry.state(leaf);
                    (leaf, batch.read(image, access.geometry.image_size_words()))
                })
                .collect();
            maintainer.endpoint.execute(&mut batch).await?;
            let mut live_count = 0;
            let lows = reads.into_iter().filter_map(|(leaf, read)| {
                let image = LeafImage::new(access.geometry, batch.words(read));
                let counts = image.is_intact(leaf, access.table) && !image.is_retired();
                counts.then(|| (leaf, image.low()))
            });
            let lows: Vec<(RemoteAddr, u64)> = lows.collect();
            for (leaf, low) in lows {
                live_count += 1;
                let models = &table.contents.models;
                let behind = models.partition_point(|model| model.first_key <= low);
                let model = behind.saturating_sub(1);
                let is_counted = models
                    .get(model)
                    .is_some_and(|model| members.is_reachable(model.base.node()));
                if !is_counted {
                    continue;
                }
                // A leaf that only a lost leaf links to does not move with its model.
                let is_reached = match &searcher {
                    Some(state) => is_reached(table, state, leaf, low, wait_limit).await?,
                    None => true,
                };
                if is_reached {
                    return Ok(Some(model));
                }
            }
            if live_count == 0 && chunk.owner.is_free() {
                self.is_scan_due.set(true);
            }
        }
        Ok(None)
    }
}

/// Returns a search state with the models of the root and without hints of sessions.
fn searcher<E: Endpoint>(table: &LearnedTableView<'_, E>) -> IndexState {
    let contents = (*table.contents).clone();
    let directory = contents.into_directory(table.access.geometry);
    let layer = Layer::new(LayerKind::Learned, directory.into());
    let state = IndexState::new(layer, Rc::default());
    state.follow_retired();
    state
}

/// Returns whether a search for a leaf's lower fence reaches the leaf. False if the search has to
/// wait for a stopped client.
async fn is_reached<E: Endpoint>(
    table: &LearnedTableView<'_, E>,
    state: &IndexState,
    addr: RemoteAddr,
    low: u64,
    wait_limit: &WaitLimit<'_>,
) -> Result<bool, IndexError> {
    let (index, mut batch) = (Index::new(table.access, state), Batch::new());
    match wait_limit
        .wait(index.is_in_use(&mut batch, addr, low))
        .await
    {
        Some(Err(error)) if error.lost_node().is_some() => Ok(false),
        Some(is_reached) => is_reached,
        None => Ok(false),
    }
}
