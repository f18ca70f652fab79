//! Tests that the checks of a node's memory detect violations: each promise is broken by hand once.

use std::collections::BTreeSet;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use farleaf::AsyncSession;
use farleaf::host::SessionHost;
use farleaf_base::OwnerWord;
use farleaf_base::random::Random;
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::LayerKind;
use farleaf_leaf::words::{LeafAccess, LeafBuffer, LeafGeometry};
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::catalog::{self, CatalogEntry};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::layout::ChunkIndex;
use farleaf_sim::check::memory::Region;
use farleaf_sim::check::{Findings, closing, drops};
use farleaf_sim::fabric::Freedoms;
use farleaf_sim::fabric::SharedWorld;
use farleaf_sim::fabric::endpoint::{SimEndpoint, StillEndpoint};
use farleaf_sim::history::{Answer, Operation, TableShape};
use farleaf_sim::node::{Node, REGION_SIZE_BYTES};
use farleaf_sim::session::{Session, SimHost};

/// Memory of a node with a table of a few leaves, swept.
struct Scene {
    node: Rc<Node>,
    session: Session<StillEndpoint>,
    /// Endpoint of another client, which damages the memory.
    endpoint: StillEndpoint,
    owner: OwnerWord,
    entry: CatalogEntry,
}

fn open(node: &Rc<Node>) -> Session<StillEndpoint> {
    let endpoint = StillEndpoint::new(&node.world);
    let owner = node.register(endpoint.client());
    let host = SimHost::new(
        node,
        endpoint.client(),
        &Findings::default(),
        Arc::default(),
    );
    let opened = Session::open(AsyncSession::new(host, endpoint, owner), None);
    block_on(opened, || 0).expect("it opens")
}

impl Scene {
    fn new() -> Self {
        let size_words = REGION_SIZE_BYTES as usize / 8;
        let world = SharedWorld::new(&[size_words], Freedoms::CALM, Random::new(1));
        let node = Node::new(&world);
        let entry = node
            .create_table(LayerKind::Learned, 61, 8, 75)
            .expect("it fits");
        let session = open(&node);
        for key in 0..40 {
            let put = Operation::Put(key, key + 1);
            let put = block_on(session.perform(&put, None), || 0);
            assert!(matches!(put, Ok(Answer::Changed { .. })));
        }
        block_on(session.close(), || 0).expect("it closes");
        let session = open(&node);
        let endpoint = StillEndpoint::new(&world);
        let owner = node.register(endpoint.client());
        Self {
            node,
            session,
            endpoint,
            owner,
            entry,
        }
    }

    fn access(&self) -> LeafAccess<'_, StillEndpoint> {
        LeafAccess {
            endpoint: &self.endpoint,
            layout: &self.node.layout,
            geometry: LeafGeometry::new(self.entry.record.kind.slots().expect("of words").into())
                .expect("made here"),
            table: self.entry.record.id,
            owner: self.owner,
        }
    }

    /// Returns the broken promises.
    fn broken(&self) -> BTreeSet<&'static str> {
        let memory = Region::read(&self.node, &self.session).expect("nothing fails");
        let violations = memory.expect("there is a table").check();
        violations
            .iter()
            .map(|violation| violation.promise)
            .collect()
    }

    fn execute(&self, post: impl FnOnce(&mut Batch)) {
        let mut batch = Batch::new();
        post(&mut batch);
        block_on(self.session.endpoint().execute(&mut batch), || 0).expect("inside");
    }

    fn first_leaf(&self) -> farleaf_base::RemoteAddr {
        let entry = self.node.entry().expect("readable").expect("there");
        entry.record.first_leaf
    }
}

#[test]
fn a_sound_pool_breaks_nothing() {
    assert_eq!(Scene::new().broken(), BTreeSet::new());
}

#[test]
fn a_lock_that_stays_is_seen() {
    let scene = Scene::new();
    let lock = scene.access().geometry.lock(scene.first_leaf());
    scene.execute(|batch| batch.write_word(lock, 7));
    assert_eq!(scene.broken(), BTreeSet::from(["locks"]));
}

#[test]
fn a_gap_between_leaves_is_seen() {
    let scene = Scene::new();
    let (access, leaf) = (scene.access(), scene.first_leaf());
    let broken = std::cell::Cell::new(false);
    let mut batch = Batch::new();
    let read = access.read_intact(&mut batch, leaf, &broken);
    let mut image: LeafBuffer = block_on(read, || 0).expect("intact");
    let (key, high) = (image.image().key(0), image.image().high());
    image.set_high(high - 1);
    scene.execute(|batch| access.change(leaf).write_new(batch, &mut image));
    assert_eq!(scene.broken(), BTreeSet::from(["tiling"]), "a gap");
    image.set_high(high);
    image.set_record(1, key, 1);
    scene.execute(|batch| access.change(leaf).write_new(batch, &mut image));
    assert_eq!(scene.broken(), BTreeSet::from(["tiling"]), "a key twice");
}

/// Promise: a root of a load that did not happen is detected.
#[test]
fn a_root_of_another_load_is_seen() {
    let scene = Scene::new();
    let entry = scene.node.entry().expect("readable").expect("there");
    let place = catalog::root_addr(&scene.node.layout, entry.index);
    scene.execute(|batch| batch.write_word(place, entry.root.with_spare(3).word()));
    assert!(scene.broken().contains("roots"));
}

#[test]
fn a_damaged_catalog_is_seen() {
    let scene = Scene::new();
    let place = scene.node.layout.catalog_entry(0).offset(2);
    scene.execute(|batch| batch.write_word(place, 99));
    assert!(scene.broken().contains("catalog"));
}

#[test]
fn leaves_and_chunks_that_nobody_has_are_seen() {
    let scene = Scene::new();
    let access = scene.access();
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let leaf_count = access.geometry.chunk_leaf_count();
    let slots = access.geometry.slots();
    let leased = allocator.lease_leaves(access.table, slots, leaf_count);
    let (chunk, _): (ChunkIndex, FreeLeaves) = block_on(leased, || 0).expect("there is room");
    assert_eq!(scene.broken(), BTreeSet::from(["locks"]), "it is leased");
    let range = ChunkRange {
        first: chunk,
        count: 1,
    };
    let purpose = ChunkPurpose::Leaves { slots };
    let given = allocator.give_back(range, purpose, access.table, FreeLeaves::default());
    block_on(given, || 0).expect("inside");
    assert_eq!(
        scene.broken(),
        BTreeSet::from(["leaks"]),
        "its leaves are lost"
    );
}

#[test]
fn a_free_chunk_that_is_not_zero_is_seen() {
    let scene = Scene::new();
    let access = scene.access();
    let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
    let purpose = ChunkPurpose::Snapshot { generation: 9 };
    let claimed = allocator.claim(1, purpose, access.table);
    let range: ChunkRange = block_on(claimed, || 0).expect("there is room");
    let free = FreeLeaves::default();
    let given = allocator.give_back(range, ChunkPurpose::Free, access.table, free);
    block_on(given, || 0).expect("inside");
    assert_eq!(
        scene.broken(),
        BTreeSet::new(),
        "given back as it was found"
    );
    let inside = access.layout.chunk_start(range.first).word_at(99);
    scene.execute(|batch| batch.write_word(inside, 1));
    assert_eq!(scene.broken(), BTreeSet::from(["leaks"]));
}

/// Promise (FABRIC-6): a session that reports its end with a batch in flight, or that the node
/// counts as alive, is detected; one that has drained is not.
#[test]
fn a_session_that_closes_too_early_is_seen() {
    let node = Scene::new().node;
    for is_posted in [false, true] {
        let endpoint = SimEndpoint::new(&node.world);
        let owner = node.register(endpoint.client());
        let findings = Findings::default();
        let host = SimHost::<SimEndpoint>::new(&node, endpoint.client(), &findings, Arc::default());
        if is_posted {
            let mut batch = Batch::new();
            batch.read(node.layout.sequence(), 1);
            let mut execution = pin!(endpoint.execute(&mut batch));
            let polled = execution
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        }
        assert!(closing::not_fenced(&node, owner).is_some(), "it lives");
        host.close_session(owner).expect("nothing fails");
        assert!(closing::not_fenced(&node, owner).is_none());
        let found: Vec<_> = findings.take().iter().map(|it| it.promise).collect();
        let expected: &[&str] = if is_posted { &["closing"] } else { &[] };
        assert_eq!(found, expected);
    }
}

/// Promise: a dropped table is reported until its entry and its chunks are free.
#[test]
fn a_dropped_table_that_is_not_freed_is_seen() {
    let scene = Scene::new();
    let shape = TableShape {
        layer: LayerKind::Rolex,
        slots: 12,
        fill_percent: 50,
        pages: None,
    };
    for operation in [Operation::Create(shape), Operation::Drop] {
        let done = block_on(scene.session.perform(&operation, None), || 0);
        assert!(matches!(done, Ok(Answer::Created(_) | Answer::Dropped)));
    }
    let keeper = scene
        .node
        .keeper(StillEndpoint::new(&scene.node.world), scene.owner);
    let found = || {
        let entries = block_on(keeper.catalog(), || 0).expect("readable");
        let access = scene.access();
        let allocator = ChunkAllocator::new(access.endpoint, access.layout, access.owner);
        let chunks = block_on(allocator.entries(), || 0).expect("readable");
        drops::check(&entries, &chunks)
    };
    let violations = found();
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert!(!violations[0].how.contains("chunks []"), "{violations:?}");
    block_on(scene.session.close(), || 0).expect("it closes");
    block_on(keeper.reclaim(), || 0).expect("its number is drawn");
    assert_eq!(found().len(), 1, "not free yet");
    block_on(keeper.reclaim(), || 0).expect("it is freed");
    assert_eq!(found(), []);
}
