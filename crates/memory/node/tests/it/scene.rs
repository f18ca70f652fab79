//! A node's memory with a table, initially sound, and ways to corrupt it by hand for the audit to
//! find.

use farleaf_base::{OwnerWord, RemoteAddr, TableId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::words::{LeafBuffer, LeafGeometry, LeafImage};
use farleaf_node::audit::{Finding, Promise};
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;

use crate::audit::chunks;
use crate::catalog::find;
use crate::crash::loaded;
use crate::leaves::leaves;
use crate::pool::Pool;
use crate::tables::LEARNED;

const RECORD_COUNT: u64 = 3000;

/// Node's memory with a table that was loaded and grew by splits, swept and sound.
pub(crate) struct Scene {
    pub(crate) pool: Pool,
    pub(crate) entry: CatalogEntry,
    /// Leaves of the table, in order; splits created some of them.
    pub(crate) leaves: Vec<RemoteAddr>,
    pub(crate) table: TableId,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let mut scene = Self::of(loaded(LEARNED, RECORD_COUNT));
        let owner = scene.pool.register();
        let mut client = scene.pool.client(owner, &scene.entry);
        for key in 5_000..5_060 {
            client.put(key, 1).expect("there is room");
        }
        client.give_back().expect("closing succeeds");
        drop(client);
        scene.pool.fence(owner);
        scene.pool.sweep();
        let scene = Self::of(scene.pool);
        assert_eq!(scene.findings(), []);
        scene
    }

    pub(crate) fn of(mut pool: Pool) -> Self {
        let entry = find(&pool, "records").expect("it is there");
        let leaves = leaves(&mut pool, &entry);
        Self {
            leaves: leaves.iter().map(|leaf| leaf.addr).collect(),
            table: entry.record.id,
            pool,
            entry,
        }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let audit = farleaf_node::audit::audit(&self.pool.plain, &self.pool.layout);
        block_on(audit, || 0).expect("nothing fails").findings
    }

    pub(crate) fn promises(&self) -> Vec<Promise> {
        let mut promises: Vec<_> = self.findings().iter().map(Finding::promise).collect();
        promises.sort_unstable();
        promises.dedup();
        promises
    }

    pub(crate) fn write(&self, at: WordAddr, words: &[u64]) {
        let mut batch = Batch::new();
        batch.write(at, words);
        block_on(self.pool.plain.execute(&mut batch), || 0).expect("inside");
    }

    pub(crate) fn words(&self, at: WordAddr, word_count: u64) -> Vec<u64> {
        let words = (0..word_count).map(|index| self.pool.word(at.offset(index)));
        words.collect()
    }

    pub(crate) fn geometry(&self) -> LeafGeometry {
        LeafGeometry::new(self.entry.record.kind.slots().expect("of words").into())
            .expect("made here")
    }

    /// Returns a copy of a leaf's image.
    pub(crate) fn leaf(&self, leaf: RemoteAddr) -> LeafBuffer {
        let geometry = self.geometry();
        let words = self.words(geometry.state(leaf), geometry.image_size_words() as u64);
        LeafBuffer::copy_of(LeafImage::new(geometry, &words))
    }

    /// Writes a leaf with a matching checksum.
    pub(crate) fn set_leaf(&self, place: RemoteAddr, mut leaf: LeafBuffer) {
        let access = crate::pool::access(
            &self.pool.plain,
            &self.pool.layout,
            OwnerWord::FREE,
            &self.entry,
        );
        let mut batch = Batch::new();
        access.change(place).write_new(&mut batch, &mut leaf);
        block_on(self.pool.plain.execute(&mut batch), || 0).expect("inside");
    }

    /// Returns the first chunk for which `is_it` holds.
    pub(crate) fn chunk(&self, is_it: impl Fn(&ChunkEntry) -> bool) -> (ChunkIndex, ChunkEntry) {
        let chunks = chunks(&self.pool);
        let index = chunks.iter().position(is_it).expect("there is one");
        (ChunkIndex(index as u64), chunks[index])
    }

    pub(crate) fn leaf_chunk(&self) -> (ChunkIndex, ChunkEntry) {
        self.chunk(|it| matches!(it.purpose, Some(ChunkPurpose::Leaves { .. })))
    }

    pub(crate) fn set_chunk(&self, index: ChunkIndex, purpose: ChunkPurpose, free: FreeLeaves) {
        let body = ChunkEntry::encode_body(purpose, self.table, free);
        self.write(self.pool.layout.chunk_entry(index).offset(1), &body);
    }

    /// Assigns an unused chunk to the table for a purpose.
    pub(crate) fn add_chunk(&self, purpose: ChunkPurpose) -> ChunkIndex {
        let allocator = ChunkAllocator::new(
            &self.pool.plain,
            &self.pool.layout,
            OwnerWord::from_word(7 << 48 | 1),
        );
        let claimed = block_on(allocator.claim(1, purpose, self.table), || 0);
        let range = claimed.expect("there is room");
        let given = allocator.give_back(range, purpose, self.table, FreeLeaves::default());
        block_on(given, || 0).expect("inside");
        range.first
    }

    /// Returns the addresses of a free leaf and a linked one in a leaf chunk.
    pub(crate) fn free_and_linked(&self) -> (RemoteAddr, RemoteAddr) {
        let (index, chunk) = self.leaf_chunk();
        let geometry = self.geometry();
        let start = self.pool.layout.chunk_start(index);
        let place = |number| start.offset_blocks(number * geometry.stride_blocks());
        let mut free = chunk.free.iter(geometry.chunk_leaf_count());
        let free = place(free.next().expect("some are free"));
        let places = (0..geometry.chunk_leaf_count()).map(place);
        let mut linked = places.filter(|leaf| self.leaves.contains(leaf));
        (free, linked.next().expect("splits took some"))
    }
}
