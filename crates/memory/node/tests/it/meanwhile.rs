//! Sessions that act and die during a sweep: nothing that they committed is treated as a leftover,
//! wherever between two of the sweep's batches it happens.

use core::cell::{Cell, RefCell};
use core::future::{Future, ready};
use farleaf_executor::block_on;

use farleaf_base::{BLOCK_SIZE_WORDS, NodeId, OwnerWord};
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint};
use farleaf_index::LayerKind;
use farleaf_pool::allocation::ChunkAllocator;
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::CHUNK_SIZE_BLOCKS;

use crate::catalog::{create, find};
use crate::crash::{Tables, audit_tables, contents, loaded, only_records, sample};
use crate::cutting::{Cut, CuttingEndpoint, Tear};
use crate::pool::{Client, Pool};
use crate::tables::LEARNED;
use crate::trees::scene_of;

/// Endpoint that runs a callback before one of its batches.
pub(crate) struct Interrupted<'a> {
    inner: MappedEndpoint,
    batch_count: Cell<u64>,
    at: u64,
    happens: RefCell<Option<Box<dyn FnOnce() + 'a>>>,
}

impl<'a> Interrupted<'a> {
    /// Creates an endpoint that runs `happens` before batch `at`, counted from 0.
    pub(crate) fn new(inner: MappedEndpoint, at: u64, happens: impl FnOnce() + 'a) -> Self {
        Self {
            inner,
            batch_count: Cell::new(0),
            at,
            happens: RefCell::new(Some(Box::new(happens))),
        }
    }

    /// Returns whether the callback has not run, because there were too few batches.
    pub(crate) fn has_not_happened(&self) -> bool {
        self.happens.borrow().is_some()
    }
}

impl Endpoint for Interrupted<'_> {
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        if self.batch_count.replace(self.batch_count.get() + 1) == self.at
            && let Some(happens) = self.happens.take()
        {
            happens();
        }
        ready(self.inner.execute_now(batch))
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.memory_word_count(node)
    }
}

/// Lets a session work before each batch of a sweep in turn, and die owning everything; checks the
/// tables afterwards.
fn is_kept(setup: impl Fn() -> Pool, work: impl Fn(&mut Pool, OwnerWord), expected: &Tables) {
    for at in 0.. {
        let mut pool = setup();
        let dead = pool.register();
        pool.fence(dead);
        let (owner, node) = (pool.register(), pool.register());
        let pool = RefCell::new(pool);
        let inner = pool.borrow().endpoint();
        let endpoint = Interrupted::new(inner, at, || {
            let mut pool = pool.borrow_mut();
            work(&mut pool, owner);
            pool.fence(owner);
        });
        let maintainer = pool.borrow().maintainer(endpoint, node);
        block_on(maintainer.sweep(), || 0).expect("nothing fails");
        let is_over = maintainer.endpoint.has_not_happened();
        drop(maintainer);
        let mut pool = pool.into_inner();
        pool.fence(node);
        if is_over {
            assert!(at > 2, "a sweep has more batches than {at}");
            return;
        }
        assert_eq!(contents(&mut pool), *expected, "before batch {at}");
        pool.sweep();
        assert_eq!(
            contents(&mut pool),
            *expected,
            "before batch {at}, swept again"
        );
        audit_tables(&pool, expected);
    }
}

/// Work of a session through an endpoint.
type Work = fn(&Pool, &CuttingEndpoint, OwnerWord);

/// Returns work that is interrupted `to_end` effects before its end.
fn dies_before_end(
    setup: impl Fn() -> Pool,
    work: Work,
    to_end: u64,
) -> impl Fn(&mut Pool, OwnerWord) {
    let mut pool = setup();
    let owner = pool.register();
    let endpoint = pool.cutting(Cut::NEVER);
    work(&pool, &endpoint, owner);
    let cut = Cut {
        effect_count: endpoint.effect_count() - to_end,
        tear: Tear::First,
    };
    move |pool, owner| work(pool, &pool.cutting(cut), owner)
}

/// Promise: the set of swept chunks is determined before the catalog is read.
#[test]
fn a_table_that_is_made_while_a_sweep_is_under_way_is_kept() {
    let create: Work = |pool, endpoint, owner| {
        let _ = create(pool, endpoint, owner, "records", LEARNED);
    };
    // After the catalog entry come eight words for each of two chunks, and the catalog's lock.
    let work = dies_before_end(Pool::new, create, 17);
    is_kept(Pool::new, work, &only_records([]));
}

/// Promise: the set of swept chunks is determined before the roots are read.
#[test]
fn a_load_that_commits_while_a_sweep_is_under_way_is_kept() {
    let load: Work = |pool, endpoint, owner| {
        let entry = find(pool, "records").expect("it is there");
        let client = Client::open(endpoint, &pool.layout, owner, &entry);
        let _ = client.expect("opening writes nothing").load(&sample(40));
    };
    let setup = || loaded(LEARNED, 0);
    // After the commit come eight words for each of two chunks.
    let work = dies_before_end(setup, load, 16);
    is_kept(setup, work, &only_records(sample(40)));
}

/// Promise: a leaf that a split links during a sweep is in use.
#[test]
fn a_split_while_a_sweep_is_under_way_is_kept() {
    let keys = || (1..=9).map(|key| (key * 10, key));
    let split = |pool: &mut Pool, owner: OwnerWord| {
        let entry = find(pool, "records").expect("it is there");
        let mut client = pool.client(owner, &entry);
        for (key, value) in keys() {
            client.put(key, value).expect("nothing fails");
        }
    };
    is_kept(|| loaded(LEARNED, 0), split, &only_records(keys()));
}

/// Checks a chunk that a live session owns with this purpose when a sweep lists it. Before one of
/// the sweep's batches the session gives the chunk back and claims it for another purpose, in which
/// all words look like locks of dead sessions.
fn is_left_alone(setup: impl Fn() -> Pool, purpose: impl Fn(&CatalogEntry) -> ChunkPurpose) {
    for at in 0.. {
        let mut pool = setup();
        let (dead, owner, node) = (pool.register(), pool.register(), pool.register());
        pool.fence(dead);
        let entry = find(&pool, "records").expect("it is there");
        let table = entry.record.id;
        let words = vec![dead.word(); (CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS) as usize];
        let allocator = ChunkAllocator::new(&pool.plain, &pool.layout, owner).taking_used_first();
        let claim = |purpose| block_on(allocator.claim(1, purpose, table), || 0);
        let range = claim(purpose(&entry)).expect("there is room");
        let start = pool.layout.chunk_start(range.first).word_at(0);
        let endpoint = Interrupted::new(pool.endpoint(), at, || {
            let (free, none) = (ChunkPurpose::Free, FreeLeaves::default());
            let given = block_on(allocator.give_back(range, free, table, none), || 0);
            given.expect("nothing fails");
            let claimed = claim(ChunkPurpose::Snapshot { generation: 9 });
            assert_eq!(claimed.expect("there is room"), range);
            let mut batch = Batch::new();
            batch.write(start, &words);
            pool.plain.execute_now(&mut batch).expect("nothing fails");
        });
        let maintainer = pool.maintainer(endpoint, node);
        block_on(maintainer.sweep(), || 0).expect("nothing fails");
        if maintainer.endpoint.has_not_happened() {
            assert!(at > 2, "a sweep has more batches than {at}");
            return;
        }
        let mut batch = Batch::new();
        let read = batch.read(start, words.len());
        pool.plain.execute_now(&mut batch).expect("nothing fails");
        assert!(batch.words(read) == words, "before batch {at}");
    }
}

/// Promise: a sweep ignores such words in a former chunk of leaves and in a former chunk of inner
/// nodes. (Seed 410,015,820: an unfinished load gave a chunk of leaves back, and a new root of the
/// tree was placed in it.)
#[test]
fn chunks_leased_for_something_else_while_a_sweep_lists_them_are_left_alone() {
    let slots = u8::try_from(LEARNED.slots).expect("a few");
    is_left_alone(|| loaded(LEARNED, 40), |_| ChunkPurpose::Leaves { slots });
    let of_tree = |entry: &CatalogEntry| ChunkPurpose::Inner {
        generation: entry.root.spare(),
    };
    is_left_alone(|| scene_of(LayerKind::RfTree).pool, of_tree);
}
