//! The full check: every record, every leaf, every chunk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farleaf::{Pool, Table};
use farleaf_executor::block_on;
use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::shm::{PoolName, ShmClient};
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions, TcpEndpoint};
use farleaf_fabric::{Batch, Control, Endpoint};
use farleaf_leaf::LeafGeometry;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_region::catalog::{CatalogEntry, ENTRY_SIZE_WORDS, TABLE_COUNT_MAX};
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::{ChunkIndex, SUPERBLOCK_SIZE_WORDS};
use farleaf_region::{PoolLayout, RegionLayout, Superblock};
use farleaf_types::{NodeId, OwnerWord, RemoteAddr};

use crate::journal::{Intent, Journal};
use crate::node::POOL;
use crate::worker::Deal;

/// What the sweep has time for after the last death.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(10);
const MULTI_GET_COUNT: usize = 4096;

/// Waits until something holds, because the memory node sweeps by and by.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SWEEP_TIME_MAX;
    while !holds() {
        assert!(Instant::now() < end, "not even by and by: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The region below a pool, as the protocols see it.
pub(crate) struct Below {
    endpoint: BelowEndpoint,
    pub(crate) layout: PoolLayout,
    /// Keeps the connection.
    _client: Box<dyn Control>,
}

/// How the checks look at the region.
enum BelowEndpoint {
    Mapped(MappedEndpoint),
    /// Where an RDMA device serves it: as a process that only reads.
    Network(TcpEndpoint),
}

/// Runs something that is generic over endpoints on either.
macro_rules! with_endpoint {
    ($below:expr, $endpoint:ident => $work:expr) => {
        match &$below {
            BelowEndpoint::Mapped($endpoint) => $work,
            BelowEndpoint::Network($endpoint) => $work,
        }
    };
}

impl Below {
    /// The region of a pool at an address.
    pub(crate) fn open_at(address: &str) -> Self {
        let Some(network) = address.strip_prefix("verbs:") else {
            return Self::open();
        };
        let client = TcpClient::connect(network, &TcpConnectOptions::default());
        let client = client.expect("it is served");
        let endpoint = client.endpoint(None).expect("a connection");
        let size_bytes = client.region_size_bytes();
        Self::of(
            BelowEndpoint::Network(endpoint),
            size_bytes,
            Box::new(client),
        )
    }

    pub(crate) fn open() -> Self {
        let name = PoolName::new(POOL).expect("a name");
        let (client, memory, size_bytes) = ShmClient::connect(&name).expect("it is served");
        let region = MappedRegion::map_shared(memory, size_bytes).expect("a mapping");
        let endpoint = BelowEndpoint::Mapped(MappedEndpoint::new(Arc::new(region)));
        Self::of(endpoint, size_bytes, Box::new(client))
    }

    fn of(endpoint: BelowEndpoint, size_bytes: u64, client: Box<dyn Control>) -> Self {
        let mut words = [0; SUPERBLOCK_SIZE_WORDS];
        let superblock = RegionLayout::superblock_addr(NodeId(0));
        words.copy_from_slice(&read(&endpoint, superblock, SUPERBLOCK_SIZE_WORDS));
        let layout = PoolLayout::from(RegionLayout {
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

    /// Whether a leaf's lock is held by somebody.
    pub(crate) fn is_locked(&self, geometry: LeafGeometry, leaf: RemoteAddr) -> bool {
        read(&self.endpoint, geometry.lock(leaf), 1)[0] != 0
    }

    /// Takes a leaf's lock (D5); `false` if somebody holds it.
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

    /// The first leaf of a table, as the catalog has it.
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

fn read(endpoint: &BelowEndpoint, addr: farleaf_types::WordAddr, count: usize) -> Vec<u64> {
    let mut batch = Batch::new();
    let slot = batch.read(addr, count);
    with_endpoint!(*endpoint, endpoint => {
        block_on(endpoint.execute(&mut batch), endpoint.completions()).expect("a read");
    });
    batch.words(slot).to_vec()
}

/// Nothing missing, nothing twice, nothing else: the table is what the journals say, and is read so
/// by every kind of read. A write in doubt may have happened.
pub(crate) fn check_records(table: &Table, deal: Deal, journals: &[Journal]) {
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

/// What a check of the memory found.
#[expect(clippy::struct_field_names, reason = "they are all counts")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryFound {
    pub(crate) split_count: u64,
    pub(crate) leaf_chunk_count: u64,
    pub(crate) free_leaf_count: u64,
}

/// No lock stays, nothing is left of sessions that ended, the tree is sound, and every leaf's place
/// is in use or free, but not both: leased leaves have come back.
pub(crate) fn check_memory(pool: &Pool, table: &Table, first_leaf: RemoteAddr) -> MemoryFound {
    eventually("only this session and the node's are alive", || {
        pool.usage().expect("a usage").session_count == 2
    });
    let below = Below::open_at(&pool.info().address);
    eventually("nobody leases a chunk", || {
        below.chunks().iter().all(|chunk| chunk.owner.is_free())
    });
    let stats = table.stats().expect("a survey");
    assert!(stats.sound && stats.locked_leaves == 0, "{stats:?}");
    assert!(!below.is_catalog_locked());

    let mut used = BTreeSet::new();
    let visit = |leaf: &farleaf::LeafReport| assert!(used.insert(leaf.addr.word()), "{leaf:?}");
    table.survey(visit).expect("a survey");
    let geometry = LeafGeometry::new(table.info().options.slots).expect("a geometry");
    let mut found = MemoryFound {
        split_count: stats.leaves - stats.trained_leaves,
        leaf_chunk_count: 0,
        free_leaf_count: 0,
    };
    for (index, chunk) in below.chunks().iter().enumerate() {
        let is_leaves = matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }));
        if !is_leaves || chunk.table.0 != table.info().id {
            continue;
        }
        found.leaf_chunk_count += 1;
        found.free_leaf_count += chunk.free.count();
        let leaf_count = geometry.chunk_leaf_count();
        let free: BTreeSet<u64> = chunk.free.iter(leaf_count).collect();
        for number in 0..leaf_count {
            let start = below.layout.chunk_start(ChunkIndex(index as u64));
            let leaf = start.offset_blocks(number * geometry.stride_blocks());
            let is_used = used.contains(&leaf.word()) || leaf == first_leaf;
            assert!(
                is_used != free.contains(&number),
                "leaf {number} of chunk {index} is in use: {is_used}"
            );
            assert!(!below.is_locked(geometry, leaf), "{leaf} is locked");
        }
    }
    found
}
