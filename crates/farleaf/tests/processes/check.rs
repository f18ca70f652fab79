//! Full check of a pool: every record, every leaf, every chunk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farleaf::{Pool, Table};
use farleaf_base::{NodeId, OwnerWord, RemoteAddr};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::shm::{PoolName, ShmClient};
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions, TcpEndpoint};
use farleaf_fabric::{Batch, Control, Endpoint};
use farleaf_leaf::words::LeafGeometry;
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::catalog::{CatalogEntry, ENTRY_SIZE_WORDS, TABLE_COUNT_MAX};
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_pool::layout::{ChunkIndex, SUPERBLOCK_SIZE_WORDS};
use farleaf_pool::{NodeLayout, PoolLayout, Superblock};

use crate::journal::{Intent, Journal};
use crate::node::POOL;
use crate::worker::KeyDistribution;

/// Longest time for the sweep after the last death.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(10);
const MULTI_GET_COUNT: usize = 4096;

/// Waits until a condition holds, because the memory node sweeps in the background.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SWEEP_TIME_MAX;
    while !holds() {
        assert!(Instant::now() < end, "not even by and by: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Memory of a pool, as the protocols see it.
pub(crate) struct PoolMemory {
    endpoint: PoolMemoryEndpoint,
    pub(crate) layout: PoolLayout,
    /// Keeps the connection open.
    _client: Box<dyn Control>,
}

/// Access of the checks to the memory.
enum PoolMemoryEndpoint {
    Mapped(MappedEndpoint),
    /// Connection of a process that only reads, for memory that an RDMA device serves.
    Network(TcpEndpoint),
}

/// Runs code that is generic over endpoints on either kind.
macro_rules! with_endpoint {
    ($pool_memory:expr, $endpoint:ident => $work:expr) => {
        match &$pool_memory {
            PoolMemoryEndpoint::Mapped($endpoint) => $work,
            PoolMemoryEndpoint::Network($endpoint) => $work,
        }
    };
}

impl PoolMemory {
    /// Opens the memory of the pool at an address.
    pub(crate) fn open_at(address: &str) -> Self {
        let Some(network) = address.strip_prefix("verbs:") else {
            return Self::open();
        };
        let client = TcpClient::connect(network, &TcpConnectOptions::default());
        let client = client.expect("it is served");
        let endpoint = client.endpoint(None).expect("a connection");
        let size_bytes = client.memory_size_bytes();
        Self::of(
            PoolMemoryEndpoint::Network(endpoint),
            size_bytes,
            Box::new(client),
        )
    }

    pub(crate) fn open() -> Self {
        let name = PoolName::new(POOL).expect("a name");
        let (client, memory, size_bytes) = ShmClient::connect(&name).expect("it is served");
        let memory = MappedMemory::map_shared(memory, size_bytes).expect("a mapping");
        let endpoint = PoolMemoryEndpoint::Mapped(MappedEndpoint::new(Arc::new(memory)));
        Self::of(endpoint, size_bytes, Box::new(client))
    }

    fn of(endpoint: PoolMemoryEndpoint, size_bytes: u64, client: Box<dyn Control>) -> Self {
        let mut words = [0; SUPERBLOCK_SIZE_WORDS];
        let superblock = NodeLayout::superblock_addr(NodeId(0));
        words.copy_from_slice(&read(&endpoint, superblock, SUPERBLOCK_SIZE_WORDS));
        let layout = PoolLayout::from(NodeLayout {
            node: NodeId(0),
            superblock: Superblock::decode(&words, size_bytes).expect("a superblock"),
        });
        Self {
            endpoint,
            layout,
            _client: client,
        }
    }

    pub(crate) fn chunks(&self) -> Vec<ChunkEntry> {
        with_endpoint!(self.endpoint, endpoint => {
            let allocator = ChunkAllocator::new(endpoint, &self.layout, OwnerWord::FREE);
            let table = block_on(allocator.entries(), endpoint.completions()).expect("a read");
            table.iter().map(|(_, chunk)| *chunk).collect()
        })
    }

    /// Returns whether a leaf's lock is held.
    pub(crate) fn is_locked(&self, geometry: LeafGeometry, leaf: RemoteAddr) -> bool {
        read(&self.endpoint, geometry.lock(leaf), 1)[0] != 0
    }

    /// Takes a leaf's lock (LEAF-5); returns `false` if it is held.
    pub(crate) fn take_lock(
        &self,
        geometry: LeafGeometry,
        leaf: RemoteAddr,
        owner: OwnerWord,
    ) -> bool {
        let mut batch = Batch::new();
        let swap = batch.compare_swap(geometry.lock(leaf), 0, owner.word());
        with_endpoint!(self.endpoint, endpoint => {
            block_on(endpoint.execute(&mut batch), endpoint.completions()).expect("a swap");
        });
        batch.previous(swap) == 0
    }

    /// Returns the first leaf of a table from the catalog.
    pub(crate) fn first_leaf(&self, table: &str) -> RemoteAddr {
        let word_count = TABLE_COUNT_MAX as usize * ENTRY_SIZE_WORDS;
        let words = read(&self.endpoint, self.layout.catalog_entry(0), word_count);
        let entries = words.chunks_exact(ENTRY_SIZE_WORDS).zip(0..);
        let entries = entries
            .filter_map(|(words, index)| CatalogEntry::decode(index, words).expect("an entry"));
        let mut records = entries.map(|entry| entry.record);
        let found = records.find(|record| record.name == table);
        found.expect("the scene made it").first_leaf
    }

    pub(crate) fn is_catalog_locked(&self) -> bool {
        read(&self.endpoint, self.layout.catalog_lock(), 1)[0] != 0
    }
}

fn read(endpoint: &PoolMemoryEndpoint, addr: farleaf_base::WordAddr, count: usize) -> Vec<u64> {
    let mut batch = Batch::new();
    let slot = batch.read(addr, count);
    with_endpoint!(*endpoint, endpoint => {
        block_on(endpoint.execute(&mut batch), endpoint.completions()).expect("a read");
    });
    batch.words(slot).to_vec()
}

/// Checks that the table has exactly the records of the journals, with every kind of read. A write
/// in doubt may have taken effect.
pub(crate) fn check_records(table: &Table, deal: KeyDistribution, journals: &[Journal]) {
    let doubts: Vec<Option<Intent>> = journals.iter().map(Journal::in_doubt).collect();
    let mut expected = Vec::new();
    for (class, index) in deal.all() {
        let key = deal.key(class, index);
        let mut value = journals[class as usize].values[index as usize];
        if let Some(intent) = doubts[class as usize].filter(|intent| intent.index == index) {
            let found = table.get(key).expect("a get").unwrap_or(0);
            assert!(
                found == intent.old || found == intent.new,
                "class {class}: {found} is in the table after {intent:?}"
            );
            value = found;
        }
        expected.push((key, value));
    }
    let mut scanned = table.range(..).map(|record| record.expect("a scan"));
    for (key, value) in expected.iter().filter(|(_, value)| *value != 0) {
        assert_eq!(scanned.next(), Some((*key, *value)), "the scan");
    }
    assert_eq!(scanned.next(), None, "the end of the scan");
    for part in expected.chunks(MULTI_GET_COUNT) {
        let keys: Vec<u64> = part.iter().map(|(key, _)| *key).collect();
        let found = table.multi_get(&keys).expect("a multi_get");
        for ((key, value), found) in part.iter().zip(found) {
            assert_eq!(found.unwrap_or(0), *value, "multi_get of {key}");
            let found = table.get(*key).expect("a get");
            assert_eq!(found.unwrap_or(0), *value, "get of {key}");
        }
    }
}

/// Results of a check of the memory.
#[expect(clippy::struct_field_names, reason = "they are all counts")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryFound {
    pub(crate) split_count: u64,
    pub(crate) leaf_chunk_count: u64,
    pub(crate) free_leaf_count: u64,
}

/// Checks that no lock is held, nothing is left of ended sessions, the tree is sound, and every
/// leaf's memory is either in use or free: leased leaves have been returned.
pub(crate) fn check_memory(pool: &Pool, table: &Table, first_leaf: RemoteAddr) -> MemoryFound {
    eventually("only this session and the node's are alive", || {
        pool.usage().expect("a usage").session_count == 2
    });
    let pool_memory = PoolMemory::open_at(&pool.info().address);
    eventually("nobody leases a chunk", || {
        pool_memory
            .chunks()
            .iter()
            .all(|chunk| chunk.owner.is_free())
    });
    let stats = table.stats().expect("a survey");
    assert!(stats.sound && stats.locked_leaves == 0, "{stats:?}");
    assert!(!pool_memory.is_catalog_locked());

    let mut used = BTreeSet::new();
    let visit = |leaf: &farleaf::LeafReport| assert!(used.insert(leaf.addr.word()), "{leaf:?}");
    table.survey(visit).expect("a survey");
    let geometry = LeafGeometry::new(table.info().options.slots).expect("a geometry");
    let mut found = MemoryFound {
        split_count: stats.leaves - stats.trained_leaves,
        leaf_chunk_count: 0,
        free_leaf_count: 0,
    };
    for (index, chunk) in pool_memory.chunks().iter().enumerate() {
        let is_leaves = matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }));
        if !is_leaves || chunk.table.0 != table.info().id {
            continue;
        }
        found.leaf_chunk_count += 1;
        found.free_leaf_count += chunk.free.count();
        let leaf_count = geometry.chunk_leaf_count();
        let free: BTreeSet<u64> = chunk.free.iter(leaf_count).collect();
        for number in 0..leaf_count {
            let start = pool_memory.layout.chunk_start(ChunkIndex(index as u64));
            let leaf = start.offset_blocks(number * geometry.stride_blocks());
            let is_used = used.contains(&leaf.word()) || leaf == first_leaf;
            assert!(
                is_used != free.contains(&number),
                "leaf {number} of chunk {index} is in use: {is_used}"
            );
            assert!(!pool_memory.is_locked(geometry, leaf), "{leaf} is locked");
        }
    }
    found
}
