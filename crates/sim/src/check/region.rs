//! A region in which nobody works any more and which was swept, read while the world stands still:
//! what the checks of tiling, locks and leaks look at.

use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use std::rc::Rc;

use farleaf_index::operation::LeafReport;
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::{Index, IndexError, IndexState, Layer, LayerKind};
use farleaf_leaf::{LeafAccess, LeafGeometry};
use farleaf_region::RegionLayout;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::ChunkEntry;
use farleaf_region::layout::ChunkIndex;
use farleaf_types::{OwnerWord, RemoteAddr, WordAddr};

use super::{Violation, leaks, locks, tiling};
use crate::fabric::endpoint::StillEndpoint;
use crate::fabric::world::SharedWorld;
use crate::node::Node;
use crate::session::Session;

/// More leaves than any run makes.
const LEAF_COUNT_MAX: usize = 100_000;

/// Everything that is looked at.
#[derive(Debug)]
pub struct Region {
    world: SharedWorld,
    /// Its parts.
    pub layout: RegionLayout,
    /// The table.
    pub entry: CatalogEntry,
    /// All chunks that were ever handed out.
    pub chunks: Vec<ChunkEntry>,
    /// The table's leaves, in the order of their links; if that has no end, its beginning.
    pub leaves: Vec<LeafReport>,
}

impl Region {
    /// Reads the region. `session`: one that has just been opened, to walk with. `None`: there is
    /// no table.
    ///
    /// # Errors
    /// Something cannot be read, which breaks a promise by itself.
    pub fn read(node: &Node, session: &Session<StillEndpoint>) -> Result<Option<Self>, IndexError> {
        let Some(entry) = node.entry()? else {
            return Ok(None);
        };
        let allocator = ChunkAllocator::new(session.endpoint(), &node.layout, OwnerWord::FREE);
        let chunks = block_on(allocator.entries(), || 0)?;
        let geometry = LeafGeometry::new(entry.record.slots.into()).expect("made here");
        let id = entry.record.id;
        let snapshot = read_snapshot(session.endpoint(), &node.layout, geometry, id, entry.root);
        let directory = block_on(snapshot, || 0)?;
        let state = IndexState::new(
            Layer::new(LayerKind::Learned, directory.into()),
            Rc::default(),
        );
        state.follow_retired();
        let access = LeafAccess {
            endpoint: session.endpoint(),
            layout: &node.layout,
            geometry,
            table: id,
            owner: OwnerWord::FREE,
        };
        let index = Index::new(access, &state);
        let (mut batch, mut survey) = (Batch::new(), index.survey());
        let mut leaves = Vec::new();
        while let Some(leaf) = block_on(index.survey_next(&mut batch, &mut survey), || 0)? {
            leaves.push(leaf);
            if leaves.len() > LEAF_COUNT_MAX {
                break;
            }
        }
        Ok(Some(Self {
            world: SharedWorld::clone(&node.world),
            layout: node.layout,
            entry,
            chunks,
            leaves,
        }))
    }

    /// All checks.
    pub fn check(&self) -> Vec<Violation> {
        [tiling::check(self), locks::check(self), leaks::check(self)].concat()
    }

    /// A word, as it is.
    pub fn word(&self, at: WordAddr) -> u64 {
        self.world.borrow().words(at, 1)[0]
    }

    /// Whether all these words are zero.
    pub fn is_zero(&self, from: WordAddr, word_count: usize) -> bool {
        let world = self.world.borrow();
        world.words(from, word_count).iter().all(|word| *word == 0)
    }

    /// The shape of the table's leaves.
    ///
    /// # Panics
    /// The catalog names a geometry that there is not.
    pub fn geometry(&self) -> LeafGeometry {
        LeafGeometry::new(self.entry.record.slots.into()).expect("made here")
    }

    /// Every place of a chunk at which there may be a leaf.
    pub fn places(&self, chunk: ChunkIndex) -> impl Iterator<Item = RemoteAddr> + use<> {
        let geometry = self.geometry();
        let start = self.layout.chunk_start(chunk);
        (0..geometry.chunk_leaf_count())
            .map(move |number| start.offset_blocks(number * geometry.stride_blocks()))
    }
}
