//! Compactions that are blocked by other sessions: they leave nothing behind, and are retried.

use core::cell::Cell;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_index::fg::FgLayer;
use farleaf_index::load::{LoadPlan, bulk_load};
use farleaf_index::operation::Decision;
use farleaf_index::retrain::compact::{
    Compacted, Compaction, CompactionGoal, CompactionLeases, compact,
};
use farleaf_index::tree::head::{Head, read_head};
use farleaf_index::{Index, IndexState, Layer, LayerKind};
use farleaf_node::NodeEndpoint;
use farleaf_node::agent;
use farleaf_node::retrain::{RetrainPolicy, Retrainer};
use farleaf_node::sessions::AgentEvent;
use farleaf_node::sweep::MemoryMaintainer;
use farleaf_pool::catalog::{CatalogEntry, underfull_count_addr};
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::ChunkIndex;

use crate::audit::{chunks, usage};
use crate::catalog::{TableShape, create, find};
use crate::crash::sample;
use crate::leaves::{ends, lock, set_lock, tear};
use crate::meanwhile::Interrupted;
use crate::pool::{Pool, access};
use crate::tables::LEARNED;

const FG: TableShape = TableShape {
    kind: LayerKind::Fg,
    ..LEARNED
};
/// Request to move the whole tree, whatever leaves there are.
const WHOLE_TREE: CompactionGoal = CompactionGoal {
    step_count_max: u64::MAX,
    finishes_another: false,
    moves_tree: true,
};
/// Number of polls that is enough for every wait that ends.
const POLL_COUNT: u32 = 1000;
const EAGER: RetrainPolicy = RetrainPolicy {
    split_count_min: 1,
    look_tick_count: 0,
    ..RetrainPolicy::DEFAULT
};

fn empty() -> Pool {
    let mut pool = Pool::new();
    let owner = pool.register();
    create(&pool, &pool.plain, owner, "records", FG).expect("it can be made");
    pool.fence(owner);
    pool
}

fn load(pool: &mut Pool, record_count: u64) {
    let owner = pool.register();
    load_by(pool, &pool.plain, owner, &find_now(pool), record_count);
    pool.fence(owner);
}

/// Loads the table in a session that has opened it with this entry.
fn load_by<E: Endpoint>(
    pool: &Pool,
    endpoint: &E,
    owner: OwnerWord,
    entry: &CatalogEntry,
    record_count: u64,
) {
    let plan = LoadPlan {
        kind: FG.kind,
        fill_percent: FG.fill_percent,
        epsilon_keys: 16.0,
        entry_count_max: 61,
    };
    let (broken, records) = (Cell::default(), sample(record_count));
    let of = access(endpoint, &pool.layout, owner, entry);
    let load = bulk_load(of, entry, plan, &broken, records.into_iter(), |_| ());
    block_on(load, || 0).expect("an empty table can be loaded");
}

fn loaded(record_count: u64) -> Pool {
    let mut pool = empty();
    load(&mut pool, record_count);
    pool
}

fn find_now(pool: &Pool) -> CatalogEntry {
    find(pool, "records").expect("it is there")
}

fn head_of(pool: &Pool, entry: &CatalogEntry) -> Head {
    let of = access(&pool.plain, &pool.layout, OwnerWord::FREE, entry);
    block_on(read_head(&of, entry.root), || 0).expect("it is sound")
}

/// Returns the leaves, as a reader finds them.
fn leaves(pool: &Pool) -> Vec<RemoteAddr> {
    let entry = find_now(pool);
    let state = state_of(pool, &entry);
    // Leaves that were moved and are not published yet are found, too.
    state.follow_retired();
    let of = access(&pool.plain, &pool.layout, OwnerWord::FREE, &entry);
    let (index, mut batch, mut leaves) = (Index::new(of, &state), Batch::new(), Vec::new());
    let mut survey = index.survey();
    let mut next = || block_on(index.survey_next(&mut batch, &mut survey), || 0);
    while let Some(leaf) = next().expect("all are good") {
        leaves.push(leaf.addr);
    }
    leaves
}

fn state_of(pool: &Pool, entry: &CatalogEntry) -> IndexState {
    let counter = underfull_count_addr(&pool.layout, entry.index);
    let layer = Layer::Fg(FgLayer::new(head_of(pool, entry)));
    IndexState::new(layer, Rc::default()).with_underfull_counter(Some(counter))
}

fn is_anything_owned_by(pool: &Pool, owner: OwnerWord) -> bool {
    chunks(pool).iter().any(|chunk| chunk.owner == owner)
}

/// Runs a compaction; `None` if it was interrupted while it was idle.
fn compacted(
    pool: &Pool,
    owner: OwnerWord,
    entry: &CatalogEntry,
    head: &Head,
    wanted: CompactionGoal,
) -> Option<Compacted> {
    compacted_from(pool, owner, entry, head, wanted, false)
}

/// Runs a compaction with the pool's only node draining if `is_left`.
fn compacted_from(
    pool: &Pool,
    owner: OwnerWord,
    entry: &CatalogEntry,
    head: &Head,
    wanted: CompactionGoal,
    is_left: bool,
) -> Option<Compacted> {
    let (broken, leased) = (Cell::new(false), CompactionLeases::default());
    let work = Compaction {
        access: access(&pool.plain, &pool.layout, owner, entry),
        entry,
        head,
        root: entry.root,
        merged_count_max: FG.slots as usize * 3 / 4,
        broken: &broken,
    };
    let compacted = {
        let mut compacted = pin!(compact(&work, &leased, wanted, |_| is_left, || true));
        let mut polls_left = POLL_COUNT;
        let bounded = poll_fn(|context| match compacted.as_mut().poll(context) {
            Poll::Ready(compacted) => Poll::Ready(Some(compacted)),
            Poll::Pending if polls_left == 0 => Poll::Ready(None),
            Poll::Pending => {
                polls_left -= 1;
                Poll::Pending
            }
        });
        block_on(bounded, || 0)
    };
    block_on(leased.give_back(&work.access), || 0).expect("it can");
    compacted.map(|it| it.expect("nothing fails"))
}

fn tick<E: Endpoint>(retrainer: &Retrainer, maintainer: &MemoryMaintainer<E>) {
    let stop = AtomicBool::new(false);
    block_on(retrainer.tick(maintainer, &stop), || 0).expect("nothing fails");
}

/// Promise: a compaction that is interrupted while it waits for the lock of a table's only leaf, to
/// install the new root, gives the new tree's memory back. (The node kept it, and each retry added
/// another one.)
#[test]
fn a_tree_whose_root_never_came_into_force_is_given_back() {
    ends(|| {
        let mut pool = empty();
        let (node, client) = (pool.register(), pool.register());
        let entry = find_now(&pool);
        let head = head_of(&pool, &entry);
        let before = usage(&pool);
        set_lock(&pool, &entry, entry.record.first_leaf, client);
        assert!(compacted(&pool, node, &entry, &head, WHOLE_TREE).is_none());
        assert!(!is_anything_owned_by(&pool, node));
        assert_eq!(usage(&pool), before);
        assert_eq!(find_now(&pool).root, entry.root);
        set_lock(&pool, &entry, entry.record.first_leaf, OwnerWord::FREE);
        let done = compacted(&pool, node, &entry, &head, WHOLE_TREE);
        assert!(matches!(done, Some(Compacted::Done(_))), "{done:?}");
        assert_ne!(find_now(&pool).root, entry.root);
    });
}

/// Promise: the head of a tree shows that sessions may use older trees also when a load has
/// replaced the compacted tree of an empty table. (It did not, and a sweep could free a tree in
/// which sessions still searched.)
#[test]
fn a_load_over_a_compacted_tree_tells_of_it() {
    let mut pool = empty();
    let node = pool.register();
    let entry = find_now(&pool);
    let head = head_of(&pool, &entry);
    assert!(!head.is_compacted);
    let done = compacted(&pool, node, &entry, &head, WHOLE_TREE);
    assert!(matches!(done, Some(Compacted::Done(_))), "{done:?}");
    let compacted = head_of(&pool, &find_now(&pool));
    assert!(compacted.is_compacted);
    // By a client that opened the table before the compaction.
    let client = pool.register();
    load_by(&pool, &pool.plain, client, &entry, 40);
    let loaded = head_of(&pool, &find_now(&pool));
    assert!(loaded.is_compacted && loaded.generation != compacted.generation);
}

/// Promise: the head shows it also when the compaction happens at any time during the load.
#[test]
fn a_load_tells_of_a_compaction_beside_it() {
    let mut told_count = 0;
    for at in 0.. {
        let mut pool = empty();
        let (node, client) = (pool.register(), pool.register());
        let entry = find_now(&pool);
        let head = head_of(&pool, &entry);
        let endpoint = Interrupted::new(pool.endpoint(), at, || {
            compacted(&pool, node, &entry, &head, WHOLE_TREE);
        });
        load_by(&pool, &endpoint, client, &entry, 40);
        let is_over = endpoint.has_not_happened();
        drop(endpoint);
        let root = find_now(&pool);
        let replaced = head_of(&pool, &root).is_compacted;
        told_count += usize::from(replaced);
        // During the load's last batches there was no compaction: it waited for the first leaf, or
        // found a loaded table.
        assert!(replaced || is_over || at >= 8, "before batch {at}");
        if is_over {
            break;
        }
    }
    assert!(told_count >= 8, "{told_count}");
}

/// Promise: a compacted tree that a load replaces is not freed at once if the compaction's agent
/// dies before it has given the tree back. This holds even if the load began earlier and has the
/// smaller generation. (It was, with sessions in it.)
#[test]
fn a_tree_that_an_older_load_replaces_waits_for_its_sessions() {
    let mut pool = empty();
    let (node, client) = (pool.register(), pool.register());
    let entry = find_now(&pool);
    let head = head_of(&pool, &entry);
    // Late in the load, which has drawn its number by then.
    let replaced = Cell::new(0);
    let endpoint = Interrupted::new(pool.endpoint(), 4, || {
        compacted(&pool, node, &entry, &head, WHOLE_TREE);
        replaced.set(head_of(&pool, &find_now(&pool)).generation);
    });
    load_by(&pool, &endpoint, client, &entry, 40);
    drop(endpoint);
    let load = head_of(&pool, &find_now(&pool)).generation;
    assert!(0 < load && load < replaced.get(), "{load}, {replaced:?}");
    let inner = Some(ChunkPurpose::Inner {
        generation: replaced.get(),
    });
    let all = chunks(&pool);
    let number = all.iter().position(|chunk| chunk.purpose == inner);
    let chunk = ChunkIndex(number.expect("it is there") as u64);
    // The state in which the agent left it.
    let mut batch = Batch::new();
    batch.write_word(pool.layout.chunk_entry(chunk), node.word());
    block_on(pool.plain.execute(&mut batch), || 0).expect("inside");
    pool.fence(node);
    pool.sweep();
    let left = chunks(&pool)[chunk.0 as usize];
    assert_eq!(left.purpose, inner);
    assert!(left.owner.is_free(), "it is garbage (T2)");
}

/// Promise (LEAF-7): a session that opened a table before its tree was moved can load it after the
/// memory of the old tree was reused. (It read the old head, and reported the table as corrupted.)
#[test]
fn a_load_goes_by_the_root_that_is_in_force() {
    let mut pool = empty();
    let (node, client) = (pool.register(), pool.register());
    let entry = find_now(&pool);
    let done = compacted(&pool, node, &entry, &head_of(&pool, &entry), WHOLE_TREE);
    assert!(matches!(done, Some(Compacted::Done(_))), "{done:?}");
    let mut batch = Batch::new();
    batch.write(entry.root.place().word_at(0), &[0; 8]);
    block_on(pool.plain.execute(&mut batch), || 0).expect("inside");
    load_by(&pool, &pool.plain, client, &entry, 40);
    assert_eq!(head_of(&pool, &find_now(&pool)).record_count, 40);
}

/// Promise: a load that commits between reading the root and the compaction stays valid, whatever
/// leaves the compaction has moved, and nothing is leased afterwards.
#[test]
fn a_table_that_is_loaded_meanwhile_is_as_it_was_loaded() {
    let mut pool = empty();
    let node = pool.register();
    let entry = find_now(&pool);
    let head = head_of(&pool, &entry);
    load(&mut pool, 40);
    let root = find_now(&pool).root;
    let before = leaves(&pool);
    let outcome = compacted_from(&pool, node, &entry, &head, WHOLE_TREE, true);
    assert!(matches!(outcome, Some(Compacted::Loaded)), "{outcome:?}");
    assert_eq!(find_now(&pool).root, root);
    assert!(!is_anything_owned_by(&pool, node));
    let after = leaves(&pool);
    assert_eq!(after.len(), before.len());
    assert!(
        after.iter().all(|leaf| !before.contains(leaf)),
        "all have moved"
    );
    let state = state_of(&pool, &find_now(&pool));
    state.follow_retired();
    let of = access(&pool.plain, &pool.layout, node, &entry);
    let (index, mut batch) = (Index::new(of, &state), Batch::new());
    for (key, value) in sample(40) {
        let found = block_on(index.get(&mut batch, key), || 0);
        assert_eq!(found.expect("nothing fails"), Some(value), "{key}");
    }
}

/// Promise: a merge that failed because a client held the left leaf is retried, however small the
/// table is. (The table was recorded as having nothing to merge.)
#[test]
fn a_merge_that_somebody_was_in_the_way_of_is_tried_again() {
    let mut pool = loaded(10);
    let (node, client) = (pool.register(), pool.register());
    let entry = find_now(&pool);
    let both = leaves(&pool);
    assert_eq!(both.len(), 2);
    let state = state_of(&pool, &entry);
    let of = access(&pool.plain, &pool.layout, client, &entry);
    let (index, mut batch) = (Index::new(of, &state), Batch::new());
    for (key, _) in sample(8) {
        let remove = |value: Option<u64>| (Decision::Remove, value.is_some());
        let removed = block_on(index.modify(&mut batch, key, remove), || 0);
        assert!(removed.expect("nothing fails"), "{key}");
    }
    assert!(find_now(&pool).underfull_count > 0);
    set_lock(&pool, &entry, both[0], client);
    let maintainer = pool.maintainer(pool.endpoint(), node);
    let retrainer = Retrainer::new(EAGER, || 0);
    tick(&retrainer, &maintainer);
    assert_eq!(leaves(&pool), both);
    set_lock(&pool, &entry, both[0], OwnerWord::FREE);
    tick(&retrainer, &maintainer);
    assert_eq!(leaves(&pool).len(), 1);
}

/// Promise: a corrupted table with chunks that no sweep can sort is not compacted for them
/// repeatedly.
#[test]
fn a_damaged_table_is_compacted_for_its_unsorted_chunks_once() {
    let mut pool = loaded(40);
    let node = pool.register();
    let entry = find_now(&pool);
    split_by(&pool, node, &entry);
    let maintainer = pool.maintainer(pool.endpoint(), node);
    let retrainer = Retrainer::new(EAGER, || 0);
    // A link to an invalid address.
    let of = access(&pool.plain, &pool.layout, node, &entry);
    let mut batch = Batch::new();
    batch.write_word(of.geometry.link(leaves(&pool)[2]), (1 << 39) + 1);
    block_on(pool.plain.execute(&mut batch), || 0).expect("inside");
    // Returns the round trips of a tick without those that take over chunks.
    let ticked = || {
        let control = || {
            let cost = maintainer
                .endpoint
                .counters()
                .kind(OperationKind::Control)
                .cost;
            cost.round_trips - cost.atomics
        };
        let before = control();
        tick(&retrainer, &maintainer);
        control() - before
    };
    let first = ticked();
    let rested = ticked();
    assert!(rested < first, "{first}, then {rested}");
    let again = ticked();
    assert!(
        again < first,
        "{first}, then {again}: it was compacted again"
    );
    assert_eq!(find_now(&pool).root, entry.root);
}

/// Splits leaves in the node's session: the leased chunks are then as if no sweep had been able to
/// sort them.
fn split_by(pool: &Pool, node: OwnerWord, entry: &CatalogEntry) {
    let state = state_of(pool, entry);
    let of = access(&pool.plain, &pool.layout, node, entry);
    let (index, mut batch) = (Index::new(of, &state), Batch::new());
    for key in 1..=20 {
        let set = |_: Option<u64>| (Decision::Set(key), ());
        let put = block_on(index.modify(&mut batch, key, set), || 0);
        put.expect("there is room");
    }
    assert!(is_anything_owned_by(pool, node));
}

/// Client that is stopped in the middle of a change of a leaf, and a node with chunks that no sweep
/// can sort before the client continues.
struct Stopped {
    pool: Pool,
    entry: CatalogEntry,
    node: OwnerWord,
    client: OwnerWord,
    leaf: RemoteAddr,
}

impl Stopped {
    fn new() -> Self {
        let mut pool = loaded(40);
        let (node, client) = (pool.register(), pool.register());
        let entry = find_now(&pool);
        split_by(&pool, node, &entry);
        let leaf = leaves(&pool)[1];
        set_lock(&pool, &entry, leaf, client);
        tear(&pool, &entry, leaf);
        Self {
            pool,
            entry,
            node,
            client,
            leaf,
        }
    }
}

/// Promise: chunks that the node has taken over, and cannot sort by a new tree because of a stopped
/// client, are swept when the client continues. (No sweep was scheduled, and the memory stayed the
/// node's until the next death.)
#[test]
fn a_sweep_by_a_new_tree_that_gives_up_is_asked_for_again() {
    ends(|| {
        let Stopped {
            pool,
            entry,
            node,
            client,
            leaf: stopped,
        } = Stopped::new();

        let maintainer = pool.maintainer(pool.endpoint(), node);
        let retrainer = Retrainer::new(EAGER, || 0);
        tick(&retrainer, &maintainer);
        let root = find_now(&pool).root;
        assert_ne!(root, entry.root, "there is a new tree");
        assert!(is_anything_owned_by(&pool, node));
        assert!(retrainer.take_wanted_sweep(), "another sweep is due");
        assert!(!retrainer.take_wanted_sweep(), "once");
        assert_eq!(lock(&pool, &entry, stopped), client);

        tear(&pool, &entry, stopped);
        set_lock(&pool, &entry, stopped, OwnerWord::FREE);
        let swept = block_on(maintainer.sweep(), || 0).expect("nothing fails");
        assert_eq!((swept.given_up_count, swept.chunk_count), (0, 1));
        assert!(!is_anything_owned_by(&pool, node));
        retrainer.rescan();
        tick(&retrainer, &maintainer);
        assert_eq!(
            find_now(&pool).root,
            root,
            "no further tree is written for it"
        );
    });
}

/// Promise: the agent schedules that sweep itself.
#[test]
fn the_agent_sweeps_again_by_itself() {
    ends(|| {
        let Stopped {
            pool,
            entry,
            node,
            client: _,
            leaf: stopped,
        } = Stopped::new();
        let (events, heard) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let maintainer = MemoryMaintainer {
            blocks: farleaf_node::sweep::BlockSweepers::default(),
            endpoint: NodeEndpoint::new(&pool.memory, None).expect("no device"),
            layout: pool.layout.clone(),
            owner: node,
        };
        let agent = agent::start(
            maintainer,
            |_| None,
            heard,
            Arc::clone(&stop),
            Some(EAGER),
            None,
        );
        let agent = agent.expect("a thread is left");
        let until = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until(&|| find_now(&pool).root != entry.root);
        // Until the next sweep has given up, which is not observable.
        std::thread::sleep(Duration::from_millis(500));
        assert!(is_anything_owned_by(&pool, node));
        tear(&pool, &entry, stopped);
        set_lock(&pool, &entry, stopped, OwnerWord::FREE);
        // No further session dies.
        until(&|| !is_anything_owned_by(&pool, node));
        stop.store(true, Ordering::Relaxed);
        events.send(AgentEvent::Stop).expect("it listens");
        assert!(agent.join().is_ok());
    });
}
