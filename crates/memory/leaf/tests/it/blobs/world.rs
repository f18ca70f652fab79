//! Node memory with sessions, and a "page" of pointers that represents a test's table.

use std::sync::Arc;

use farleaf_base::{Incarnation, NodeId, OwnerWord, RemoteAddr, SessionId, TableId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_leaf::blobs::sweep::{BlockSweepReport, BlockSweeper, ReferenceAnswer, ReferenceQuery};
use farleaf_leaf::blobs::{
    BlockAccess, BlockError, BlockStore, Content, FatPointer, Role, SpaceNeed,
};
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::members::{Member, MemberState};
use farleaf_pool::session::{alive_word, fenced_word, published_addr};
use farleaf_pool::{NodeLayout, PoolLayout, Superblock};

pub(crate) const TABLE: TableId = TableId(7);
pub(crate) const MAIN_NODE: NodeId = NodeId(0);
pub(crate) const DATA_NODE: NodeId = NodeId(1);
/// Number of places of the page: a key is one byte.
pub(crate) const KEY_COUNT: u64 = 256;

pub(crate) struct World {
    pub(crate) memory: Arc<MappedMemory>,
    pub(crate) layout: PoolLayout,
    pub(crate) node: OwnerWord,
    page: RemoteAddr,
    sessions: Vec<OwnerWord>,
}

/// Session, alive or not, with its store.
pub(crate) struct Client<E> {
    pub(crate) endpoint: E,
    pub(crate) owner: OwnerWord,
    pub(crate) store: BlockStore,
}

impl World {
    pub(crate) fn new(size_mib: u64) -> Self {
        let size_bytes = size_mib << 20;
        let memory = Arc::new(MappedMemory::anonymous(size_bytes).expect("memory"));
        let superblock = Superblock::new(size_bytes, 1).expect("large enough");
        let layout = PoolLayout::from(NodeLayout {
            node: MAIN_NODE,
            superblock,
        });
        let mut world = Self {
            memory,
            layout,
            node: OwnerWord::FREE,
            page: RemoteAddr::NULL,
            sessions: Vec::new(),
        };
        world.node = world.register();
        let purpose = ChunkPurpose::Snapshot { generation: 0 };
        world.page = world
            .layout
            .chunk_start(world.add_chunk(purpose, TABLE).first);
        world
    }

    /// Adds memory of another node of the pool, which only [`DyingEndpoint::of_two`] reaches.
    ///
    /// [`DyingEndpoint::of_two`]: crate::blobs::mortal::Mortal::of_two
    pub(crate) fn add_data_node(&self, size_mib: u64) -> Arc<MappedMemory> {
        let size_bytes = size_mib << 20;
        let layout = NodeLayout {
            node: DATA_NODE,
            superblock: Superblock::new(size_bytes, 1).expect("large enough"),
        };
        let address = "data node".to_owned();
        let member = Member { layout, address };
        self.layout.members().learn(member, MemberState::Active);
        Arc::new(MappedMemory::anonymous(size_bytes).expect("memory"))
    }

    pub(crate) fn endpoint(&self) -> MappedEndpoint {
        MappedEndpoint::new(Arc::clone(&self.memory))
    }

    pub(crate) fn register(&mut self) -> OwnerWord {
        let number = self.sessions.len() as u16 + 1;
        let (session, incarnation) = (SessionId::new(number), Incarnation::new(number.into()));
        let session = session.expect("not zero");
        let block = self.layout.session(session);
        self.write(block, &[alive_word(incarnation), 0, 0]);
        let owner = OwnerWord::new(session, incarnation);
        self.sessions.push(owner);
        owner
    }

    /// Registers another session with the number of a fenced one.
    pub(crate) fn register_again(&mut self, fenced: OwnerWord) -> OwnerWord {
        let (session, incarnation) = fenced.holder().expect("a session");
        let incarnation = Incarnation::new(incarnation.number() + 1000);
        self.write(
            self.layout.session(session),
            &[alive_word(incarnation), 0, 0],
        );
        let owner = OwnerWord::new(session, incarnation);
        self.sessions.push(owner);
        owner
    }

    pub(crate) fn client(&mut self) -> Client<MappedEndpoint> {
        Client {
            endpoint: self.endpoint(),
            owner: self.register(),
            store: BlockStore::new(),
        }
    }

    pub(crate) fn fence(&mut self, owner: OwnerWord) {
        let (session, incarnation) = owner.holder().expect("a session");
        self.write(self.layout.session(session), &[fenced_word(incarnation)]);
        self.sessions.retain(|other| *other != owner);
    }

    pub(crate) fn alive(&self) -> &[OwnerWord] {
        &self.sessions
    }

    /// Publishes for a session, which has no operation in progress.
    pub(crate) fn publish(&self, owner: OwnerWord) {
        let (session, _) = owner.holder().expect("a session");
        let sequence = self.word(self.layout.sequence());
        self.write(published_addr(&self.layout, session), &[sequence]);
    }

    /// Publishes for all sessions, including the node, which publishes between its sweeps.
    pub(crate) fn publish_all(&self) {
        self.sessions.iter().for_each(|owner| self.publish(*owner));
    }

    pub(crate) fn words(&self, at: WordAddr, word_count: usize) -> Vec<u64> {
        let mut batch = Batch::new();
        let read = batch.read(at, word_count);
        self.endpoint().execute_now(&mut batch).expect("inside");
        batch.words(read).to_vec()
    }

    pub(crate) fn word(&self, at: WordAddr) -> u64 {
        self.words(at, 1)[0]
    }

    pub(crate) fn write(&self, at: WordAddr, words: &[u64]) {
        let mut batch = Batch::new();
        batch.write(at, words);
        self.endpoint().execute_now(&mut batch).expect("inside");
    }

    /// Adds an unleased chunk for another purpose.
    pub(crate) fn add_chunk(&self, purpose: ChunkPurpose, table: TableId) -> ChunkRange {
        let endpoint = self.endpoint();
        let allocator = ChunkAllocator::new(&endpoint, &self.layout, self.node);
        let range = block_on(allocator.claim(1, purpose, table), || 0).expect("there is room");
        let given = allocator.give_back(range, purpose, table, FreeLeaves::default());
        block_on(given, || 0).expect("nothing fails");
        range
    }

    /// Leaves no two adjacent free chunks outside the reserve; returns the number of free chunks.
    pub(crate) fn fragment(&self) -> u64 {
        let endpoint = self.endpoint();
        let allocator = ChunkAllocator::new(&endpoint, &self.layout, self.node);
        let (other, purpose) = (TableId(99), ChunkPurpose::Models);
        let mut free_count = 0;
        while let Ok(range) = block_on(allocator.claim(1, purpose, other), || 0) {
            let is_free = range.first.number() % 2 == 0;
            if is_free {
                free_count += 1;
            }
            // The others stay leased until all are claimed.
        }
        for (chunk, entry) in self.chunks() {
            if entry.table != other {
                continue;
            }
            let range = ChunkRange {
                first: chunk,
                count: 1,
            };
            let purpose = if chunk.number() % 2 == 0 {
                ChunkPurpose::Free
            } else {
                purpose
            };
            let given = allocator.give_back(range, purpose, other, FreeLeaves::default());
            block_on(given, || 0).expect("nothing fails");
        }
        free_count
    }

    pub(crate) fn chunks(
        &self,
    ) -> Vec<(farleaf_pool::ChunkIndex, farleaf_pool::chunk::ChunkEntry)> {
        let endpoint = self.endpoint();
        let allocator = ChunkAllocator::new(&endpoint, &self.layout, self.node);
        let table = block_on(allocator.entries(), || 0).expect("nothing fails");
        table.iter().map(|(index, entry)| (index, *entry)).collect()
    }

    pub(crate) fn free_chunk_count(&self) -> usize {
        let chunks = self.chunks();
        let is_used = |purpose| purpose != Some(ChunkPurpose::Free);
        let used = chunks.iter().filter(|(_, entry)| is_used(entry.purpose));
        self.layout.superblock.chunk_count as usize - used.count()
    }

    pub(crate) fn slot(&self, key: u8) -> WordAddr {
        self.page.word_at(key.into())
    }

    pub(crate) fn linked(&self, key: u8) -> Option<FatPointer> {
        FatPointer::from_word(self.word(self.slot(key)))
    }

    /// Returns all pointers of the page.
    pub(crate) fn all_linked(&self) -> Vec<FatPointer> {
        let words = self.words(self.page.word_at(0), KEY_COUNT as usize);
        words
            .into_iter()
            .filter_map(FatPointer::from_word)
            .collect()
    }

    pub(crate) fn access<'a, E: Endpoint>(&'a self, client: &'a Client<E>) -> BlockAccess<'a, E> {
        BlockAccess {
            endpoint: &client.endpoint,
            layout: &self.layout,
            table: TABLE,
            owner: client.owner,
        }
    }

    /// Runs one sweep of the node, which asks the page.
    pub(crate) fn sweep(&self, sweeper: &BlockSweeper) -> BlockSweepReport {
        self.sweep_with(sweeper, |question| {
            let [key] = question.locator else {
                panic!("a locator of another table: {question:?}");
            };
            let linked = self.linked(*key);
            if linked == Some(question.pointer) {
                ReferenceAnswer::Referred
            } else {
                ReferenceAnswer::Unreferred
            }
        })
    }

    pub(crate) fn sweep_with(
        &self,
        sweeper: &BlockSweeper,
        answer: impl Fn(ReferenceQuery<'_>) -> ReferenceAnswer,
    ) -> BlockSweepReport {
        let endpoint = self.endpoint();
        let access = BlockAccess {
            endpoint: &endpoint,
            layout: &self.layout,
            table: TABLE,
            owner: self.node,
        };
        let asks = async |question: ReferenceQuery<'_>| Ok::<_, BlockError>(answer(question));
        block_on(sweeper.sweep(&access, asks), || 0).expect("nothing fails")
    }

    /// Sweeps, and lets all live sessions publish, until nothing waits any more.
    pub(crate) fn sweep_out(&self) -> BlockSweepReport {
        self.leave_free_chunks();
        let sweeper = BlockSweeper::new();
        let mut sum = BlockSweepReport::default();
        for _ in 0..8 {
            let report = self.sweep(&sweeper);
            self.publish_all();
            sum.settled_count += report.settled_count;
            sum.taken_count += report.taken_count;
            sum.freed_count += report.freed_count;
            if report == BlockSweepReport::default() {
                return sum;
            }
        }
        panic!("sweeping does not end: {sum:?}");
    }

    /// Frees chunks that dead sessions had only claimed, as the node's sweep of chunks does.
    fn leave_free_chunks(&self) {
        let endpoint = self.endpoint();
        let allocator = ChunkAllocator::new(&endpoint, &self.layout, self.node);
        for (first, entry) in self.chunks() {
            let is_left = !entry.owner.is_free() && !self.sessions.contains(&entry.owner);
            if !is_left || entry.purpose != Some(ChunkPurpose::Free) {
                continue;
            }
            let taken = block_on(allocator.take_over(first, entry.owner), || 0);
            assert!(taken.expect("nothing fails").is_some());
            let range = ChunkRange { first, count: 1 };
            let (free, none) = (ChunkPurpose::Free, FreeLeaves::default());
            let given = allocator.give_back(range, free, TABLE, none);
            block_on(given, || 0).expect("nothing fails");
        }
    }
}

impl<E: Endpoint> Client<E> {
    /// Writes a string and makes the page refer to it; unlinks the previous one.
    pub(crate) fn put(&self, world: &World, key: u8, string: &[u8]) -> Result<(), BlockError> {
        block_on(self.put_async(world, key, string), || 0)
    }

    async fn put_async(&self, world: &World, key: u8, string: &[u8]) -> Result<(), BlockError> {
        let access = world.access(self);
        let locator = [key];
        let content = Content::new(Role::Value, &locator, string)?;
        let mut batch = Batch::new();
        let pointer = match content.space_need() {
            SpaceNeed::Piece(class) => loop {
                if let Some(pointer) = self.store.take(MAIN_NODE, class) {
                    break pointer;
                }
                self.store.lease_more(&access, MAIN_NODE, class).await?;
            },
            SpaceNeed::Chunks(_) => {
                let written = self
                    .store
                    .write_ahead(&access, &mut batch, MAIN_NODE, &content);
                written.await?
            }
        };
        batch.clear();
        if matches!(content.space_need(), SpaceNeed::Piece(_)) {
            access.post_write(&mut batch, pointer, &content);
        }
        self.link(world, batch, key, pointer.word()).await
    }

    /// Unlinks a string.
    pub(crate) fn delete(&self, world: &World, key: u8) -> Result<(), BlockError> {
        block_on(self.link(world, Batch::new(), key, 0), || 0)
    }

    async fn link(
        &self,
        world: &World,
        mut batch: Batch,
        key: u8,
        word: u64,
    ) -> Result<(), BlockError> {
        let access = world.access(self);
        let old = world.linked(key);
        if let Some(old) = old {
            access.post_unlink(&mut batch, old)?;
        }
        batch.write_word(world.slot(key), word);
        self.endpoint.execute(&mut batch).await?;
        if let Some(old) = old {
            self.store.retire(old);
        }
        Ok(())
    }

    pub(crate) fn recycle(
        &self,
        world: &World,
    ) -> Result<farleaf_leaf::blobs::Recycled, BlockError> {
        block_on(self.store.recycle(&world.access(self)), || 0)
    }

    pub(crate) fn give_back(&self, world: &World) -> Result<(), BlockError> {
        block_on(self.store.give_back(&world.access(self)), || 0)
    }
}

/// Returns a string whose bytes all follow from the first eight, so that corruption is detectable.
pub(crate) fn string(seed: u64, size_bytes: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut words = Vec::with_capacity(size_bytes / 8 + 1);
    words.push(seed);
    while words.len() * 8 < size_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.push(state);
    }
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.truncate(size_bytes);
    bytes
}
