//! Sweeps inner nodes that dead sessions left locked, or leased and never linked. The rules are
//! those for leaves; see [`sweep`](crate::sweep).

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::rf_tree::{RfTreeLayer, SearchLayerCache};
use farleaf_index::tree::TreeAccess;
use farleaf_index::tree::head::{Head, read_head};
use farleaf_index::tree::node::{
    CHUNK_NODE_COUNT, IMAGE_SIZE_WORDS, InnerNode, NODE_SIZE_BLOCKS, image_addr, lock_addr,
};
use farleaf_index::{IndexError, IndexState, Layer};
use farleaf_leaf::words::LeafAccess;
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;

use super::{MemoryMaintainer, SweepReport};

/// Tree of a table, as a sweep has read it.
pub(super) struct KnownTree {
    pub(super) head: Head,
    /// Chunks of the tree, and that of its head.
    pub(super) named: BTreeSet<ChunkIndex>,
    pub(super) state: IndexState,
}

/// Returns the addresses of a chunk's inner nodes.
fn inner_places(start: RemoteAddr) -> impl Iterator<Item = RemoteAddr> {
    (0..CHUNK_NODE_COUNT).map(move |index| start.offset_blocks(index * NODE_SIZE_BLOCKS))
}

impl<E: Endpoint> MemoryMaintainer<E> {
    /// Sweeps the locks of the tree behind a root, and reads it.
    pub(super) async fn read_tree(
        &self,
        access: &LeafAccess<'_, E>,
        root: RemoteAddr,
        report: &mut SweepReport,
    ) -> Result<KnownTree, IndexError> {
        let broken = core::cell::Cell::new(false);
        let tree = TreeAccess {
            leaves: *access,
            broken: &broken,
        };
        let head = read_head(access, root).await?;
        let chunks = tree.chunks(head.generation).await?;
        for chunk in &chunks {
            self.sweep_inner_locks(&tree, head.generation, *chunk, report)
                .await?;
        }
        let level = tree.level(head.generation).await?;
        let cache = SearchLayerCache::new(head, level);
        let layer = Layer::RfTree(RfTreeLayer::new(Arc::new(cache)));
        let state = IndexState::new(layer, Rc::default());
        state.follow_retired();
        let of_head = self.layout.chunk_of(head.addr);
        Ok(KnownTree {
            head,
            named: chunks.into_iter().chain(of_head).collect(),
            state,
        })
    }

    /// Sweeps the locks of a chunk's inner nodes.
    async fn sweep_inner_locks(
        &self,
        tree: &TreeAccess<'_, E>,
        generation: u16,
        chunk: ChunkIndex,
        report: &mut SweepReport,
    ) -> Result<(), IndexError> {
        let mut batch = Batch::new();
        let is_inner = |purpose| purpose == ChunkPurpose::Inner { generation };
        let places: Vec<_> = inner_places(self.layout.chunk_start(chunk)).collect();
        let table = tree.leaves.table;
        for (place, owner) in self.held_locks(&mut batch, &places, lock_addr).await? {
            if self
                .is_dead(&mut batch, owner, place, table, is_inner)
                .await?
            {
                tree.recover(&mut batch, place, owner).await?;
                report.lock_count += 1;
            }
        }
        Ok(())
    }

    /// Returns which inner nodes of a leased chunk are free: those at which a descent to their
    /// level for their lower fence does not arrive. Makes the contents of free nodes unreadable.
    pub(super) async fn sort_inner(
        &self,
        access: &LeafAccess<'_, E>,
        head: &Head,
        chunk: ChunkIndex,
    ) -> Result<FreeLeaves, IndexError> {
        let broken = core::cell::Cell::new(false);
        let tree = TreeAccess {
            leaves: *access,
            broken: &broken,
        };
        let mut batch = Batch::new();
        let mut free = FreeLeaves::default();
        let root = tree.root(&mut batch, head).await?;
        for (index, place) in (0..).zip(inner_places(self.layout.chunk_start(chunk))) {
            batch.clear();
            let read = batch.read(image_addr(place), IMAGE_SIZE_WORDS);
            self.endpoint.execute(&mut batch).await?;
            let node = InnerNode::from_words(batch.words(read));
            let (low, level) = (node.low(), node.level());
            let is_node = level > 0 && level <= root.spare();
            let mut arrived = None;
            if is_node {
                let descent = tree.descend(&mut batch, root.place(), low, level, |_| {});
                arrived = descent.await?.map(|found| found.addr);
            }
            if arrived == Some(place) {
                continue;
            }
            if !node.was_never_written() {
                batch.clear();
                let (state_addr, _) = node.state_word(place);
                batch.write_word(state_addr, 0);
                batch.write_word(lock_addr(place), OwnerWord::FREE.word());
                self.endpoint.execute(&mut batch).await?;
            }
            free.insert(index);
        }
        Ok(free)
    }
}
