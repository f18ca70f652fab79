//! What must hold of a region in which nobody works any more and which was swept: ranges tile the
//! keys (D6), no lock stays (D8), and every leaf and every chunk is either in use or free.

use std::collections::BTreeSet;

use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_index::IndexError;
use farleaf_leaf::LeafGeometry;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::{CHUNK_SIZE_BLOCKS, ChunkIndex};
use farleaf_types::{BLOCK_SIZE_WORDS, OwnerWord, RemoteAddr, WordAddr};

use super::Violation;
use crate::fabric::endpoint::StillEndpoint;
use crate::node::Node;
use crate::session::Session;

/// More leaves than any run makes.
const LEAF_COUNT_MAX: usize = 100_000;

/// Everything that is looked at.
struct Audit<'a> {
    node: &'a Node,
    entry: CatalogEntry,
    chunks: Vec<ChunkEntry>,
    linked: Vec<RemoteAddr>,
    violations: Vec<Violation>,
}

/// Checks the whole region. `session`: one that has just been opened, to walk with.
///
/// # Errors
/// Something cannot be read, which is a violation by itself.
pub fn check(node: &Node, session: &Session<StillEndpoint>) -> Result<Vec<Violation>, IndexError> {
    let Some(entry) = node.entry()? else {
        let gone = Violation::new("region", "the table is gone");
        return Ok(vec![gone]);
    };
    let allocator = ChunkAllocator::new(session.endpoint(), &node.layout, OwnerWord::FREE);
    let mut audit = Audit {
        node,
        entry,
        chunks: block_on(allocator.entries(), || 0)?,
        linked: Vec::new(),
        violations: Vec::new(),
    };
    audit.expect(audit.word(node.layout.catalog_lock()) == 0, "locks", || {
        "the catalog is locked".to_owned()
    });
    audit.check_tiling(session)?;
    audit.check_chunks();
    Ok(audit.violations)
}

impl Audit<'_> {
    fn expect(&mut self, holds: bool, promise: &'static str, how: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(Violation::new(promise, how()));
        }
    }

    fn word(&self, at: WordAddr) -> u64 {
        self.node.world.borrow().words(at, 1)[0]
    }

    fn geometry(&self) -> LeafGeometry {
        LeafGeometry::new(self.entry.record.slots.into()).expect("made here")
    }

    /// D6.
    fn check_tiling(&mut self, session: &Session<StillEndpoint>) -> Result<(), IndexError> {
        let index = session.index();
        let (mut batch, mut survey) = (Batch::new(), index.survey());
        let mut next_low = Some(0);
        while let Some(leaf) = block_on(index.survey_next(&mut batch, &mut survey), || 0)? {
            let follows = Some(leaf.low) == next_low && leaf.low <= leaf.high;
            self.expect(follows, "tiling", || {
                format!(
                    "{} begins at {:#x}, not at {next_low:x?}",
                    leaf.addr, leaf.low
                )
            });
            self.expect(leaf.is_sound, "tiling", || {
                format!("{} has a key twice or outside of its fences", leaf.addr)
            });
            self.expect(leaf.lock == 0, "locks", || {
                format!("{} is locked by {:#x}", leaf.addr, leaf.lock)
            });
            next_low = leaf.high.checked_add(1);
            self.linked.push(leaf.addr);
            if self.linked.len() > LEAF_COUNT_MAX {
                self.expect(false, "tiling", || {
                    "the chain of leaves has no end".to_owned()
                });
                return Ok(());
            }
        }
        self.expect(next_low.is_none(), "tiling", || {
            format!("the last leaf ends before {next_low:x?}")
        });
        Ok(())
    }

    /// No chunk is leased or of nobody, what is free is zero, and what holds leaves is accounted
    /// for, leaf by leaf.
    fn check_chunks(&mut self) {
        let root = self.entry.root.spare();
        for index in 0..self.chunks.len() {
            let chunk = self.chunks[index];
            let place = ChunkIndex(index as u64);
            self.expect(chunk.owner.is_free(), "chunks", || {
                format!("chunk {index} is still leased by {}", chunk.owner)
            });
            match chunk.purpose {
                Some(ChunkPurpose::Free) => self.check_zero(place),
                Some(ChunkPurpose::Run { generation, .. }) => {
                    self.expect(generation == root, "chunks", || {
                        format!("chunk {index} is of load {generation}, which never happened")
                    });
                }
                Some(ChunkPurpose::Snapshot { generation }) => {
                    let is_used = generation == root || generation == 0;
                    self.expect(is_used, "chunks", || {
                        format!("chunk {index} is of load {generation}, which never happened")
                    });
                }
                Some(ChunkPurpose::Leaves { .. }) => self.check_leaves(place, &chunk),
                None => self.expect(false, "chunks", || {
                    format!("chunk {index} is for something unknown")
                }),
            }
        }
    }

    /// A4.
    fn check_zero(&mut self, chunk: ChunkIndex) {
        let start = self.node.layout.chunk_start(chunk).word_at(0);
        let word_count = (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize;
        let is_zero = {
            let world = self.node.world.borrow();
            world.words(start, word_count).iter().all(|word| *word == 0)
        };
        self.expect(is_zero, "chunks", || {
            format!("{chunk:?} is free and not zero")
        });
    }

    /// A leaf is linked, free, or the retired first one; and nobody holds it.
    fn check_leaves(&mut self, chunk: ChunkIndex, entry: &ChunkEntry) {
        let geometry = self.geometry();
        let linked: BTreeSet<RemoteAddr> = self.linked.iter().copied().collect();
        let free: BTreeSet<u64> = entry.free.iter(geometry.chunk_leaf_count()).collect();
        let start = self.node.layout.chunk_start(chunk);
        for number in 0..geometry.chunk_leaf_count() {
            let leaf = start.offset_blocks(number * geometry.stride_blocks());
            let lock = self.word(geometry.lock(leaf));
            self.expect(lock == 0, "locks", || {
                format!("{leaf} is locked by {lock:#x}")
            });
            let is_linked = linked.contains(&leaf);
            let is_kept = is_linked || leaf == self.entry.record.first_leaf;
            let is_free = free.contains(&number);
            self.expect(!(is_free && is_linked), "leaves", || {
                format!("{leaf} is free and in use")
            });
            self.expect(is_free || is_kept, "leaves", || {
                format!("{leaf} is neither free nor in use")
            });
        }
    }
}
