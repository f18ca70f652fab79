//! Compactions that somebody is in the way of: they leave nothing behind, and are not forgotten.

use core::cell::Cell;
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::fg::FgLayer;
use farleaf_index::load::{LoadPlan, bulk_load};
use farleaf_index::operation::Decision;
use farleaf_index::retrain::compact::{Compacted, Compaction, Leased, Wanted, compact};
use farleaf_index::tree::head::{Head, read_head};
use farleaf_index::{Index, IndexState, Layer, LayerKind};
use farleaf_node::retrain::{RetrainPolicy, Retrainer};
use farleaf_region::catalog::{CatalogEntry, underfull_count_addr};
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::audit::{chunks, usage};
use crate::catalog::{Shape, create, find};
use crate::crash::sample;
use crate::leaves::{ends, lock, set_lock, tear};
use crate::pool::{Pool, access};
use crate::tables::LEARNED;

const FG: Shape = Shape {
    kind: LayerKind::Fg,
    ..LEARNED
};
/// The tree is to be moved, whatever leaves there are.
const WHOLE_TREE: Wanted = Wanted {
    step_count_max: u64::MAX,
    finishes_another: false,
    moves_tree: true,
};
/// More often than anybody rests who need not.
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
    let entry = find_now(pool);
    let plan = LoadPlan {
        kind: FG.kind,
        fill_percent: FG.fill_percent,
        epsilon_keys: 16.0,
        entry_count_max: 61,
    };
    let (broken, records) = (Cell::default(), sample(record_count));
    let of = access(&pool.plain, &pool.layout, owner, &entry);
    let load = bulk_load(of, &entry, plan, &broken, records.into_iter(), |_| ());
    block_on(load, || 0).expect("an empty table can be loaded");
    pool.fence(owner);
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

/// The leaves, as a reader finds them.
fn leaves(pool: &Pool) -> Vec<RemoteAddr> {
    let entry = find_now(pool);
    let state = state_of(pool, &entry);
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

/// `None`: it was cut off, while it rested.
fn compacted(
    pool: &Pool,
    owner: OwnerWord,
    (entry, head): (&CatalogEntry, &Head),
    wanted: Wanted,
) -> Option<Compacted> {
    let (broken, leased) = (Cell::new(false), Leased::default());
    let work = Compaction {
        access: access(&pool.plain, &pool.layout, owner, entry),
        entry,
        head,
        root: entry.root,
        merged_count_max: FG.slots as usize * 3 / 4,
        broken: &broken,
    };
    let compacted = {
        let mut compacted = pin!(compact(&work, &leased, wanted, (|_| false, || true)));
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

fn tick<E: Endpoint>(retrainer: &Retrainer, keeper: &farleaf_node::sweep::Keeper<E>) {
    let stop = AtomicBool::new(false);
    block_on(retrainer.tick(keeper, &stop), || 0).expect("nothing fails");
}

/// Promise (R8): a compaction that is cut off while the new root waits for the lock of a table's
/// only leaf gives the new tree's memory back. (It stayed the node's, and there was another one
/// after each rest.)
#[test]
fn a_tree_whose_root_never_came_into_force_is_given_back() {
    ends(|| {
        let mut pool = empty();
        let (node, client) = (pool.register(), pool.register());
        let entry = find_now(&pool);
        let of = (&entry, &head_of(&pool, &entry));
        let before = usage(&pool);
        set_lock(&pool, &entry, entry.record.first_leaf, client);
        assert!(compacted(&pool, node, of, WHOLE_TREE).is_none());
        assert!(!is_anything_owned_by(&pool, node));
        assert_eq!(usage(&pool), before);
        assert_eq!(find_now(&pool).root, entry.root);
        set_lock(&pool, &entry, entry.record.first_leaf, OwnerWord::FREE);
        let done = compacted(&pool, node, of, WHOLE_TREE);
        assert!(matches!(done, Some(Compacted::Done(_))), "{done:?}");
        assert_ne!(find_now(&pool).root, entry.root);
    });
}

/// Promise (K5): the head of a tree tells that there may be sessions in older ones also when a load
/// has replaced the compacted tree of an empty table. (It did not, and a sweep could free a tree in
/// which sessions still searched.)
#[test]
fn a_load_over_a_compacted_tree_tells_of_it() {
    let mut pool = empty();
    let node = pool.register();
    let entry = find_now(&pool);
    let head = head_of(&pool, &entry);
    assert!(!head.is_compacted);
    let done = compacted(&pool, node, (&entry, &head), WHOLE_TREE);
    assert!(matches!(done, Some(Compacted::Done(_))), "{done:?}");
    let compacted = head_of(&pool, &find_now(&pool));
    assert!(compacted.is_compacted);
    load(&mut pool, 40);
    let loaded = head_of(&pool, &find_now(&pool));
    assert!(loaded.is_compacted && loaded.generation != compacted.generation);
}

/// Promise (R1): a load that commits between a look at the root and the compaction stays, whatever
/// the compaction has moved of it, and nothing is leased afterwards.
#[test]
fn a_table_that_is_loaded_meanwhile_is_as_it_was_loaded() {
    let mut pool = empty();
    let node = pool.register();
    let entry = find_now(&pool);
    let head = head_of(&pool, &entry);
    load(&mut pool, 40);
    let root = find_now(&pool).root;
    let outcome = compacted(&pool, node, (&entry, &head), WHOLE_TREE);
    assert!(matches!(outcome, Some(Compacted::Loaded)), "{outcome:?}");
    assert_eq!(find_now(&pool).root, root);
    assert!(!is_anything_owned_by(&pool, node));
    let state = state_of(&pool, &find_now(&pool));
    let of = access(&pool.plain, &pool.layout, node, &entry);
    let (index, mut batch) = (Index::new(of, &state), Batch::new());
    for (key, value) in sample(40) {
        let found = block_on(index.get(&mut batch, key), || 0);
        assert_eq!(found.expect("nothing fails"), Some(value), "{key}");
    }
}

/// Promise (T1): a merge that did not take place because a client held the leaf to the left is
/// tried again, however small the table is. (It was noted as a table with nothing to merge.)
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
    let keeper = pool.keeper(pool.endpoint(), node);
    let retrainer = Retrainer::new(EAGER, || 0);
    tick(&retrainer, &keeper);
    assert_eq!(leaves(&pool), both);
    set_lock(&pool, &entry, both[0], OwnerWord::FREE);
    tick(&retrainer, &keeper);
    assert_eq!(leaves(&pool).len(), 1);
}

/// Promise (W6): what the node has taken over, and a client that is stopped keeps it from sorting
/// by a new tree, too, is swept when the client goes on. (Nobody asked for that sweep, and the
/// memory stayed the node's until the next death.)
#[test]
fn a_sweep_by_a_new_tree_that_gives_up_is_asked_for_again() {
    ends(|| {
        let mut pool = loaded(40);
        let (node, client) = (pool.register(), pool.register());
        let entry = find_now(&pool);
        let state = state_of(&pool, &entry);
        let of = access(&pool.plain, &pool.layout, node, &entry);
        let (index, mut batch) = (Index::new(of, &state), Batch::new());
        // Splits, in the node's name: what they lease is as if no sweep had been able to sort it.
        for key in 1..=20 {
            let set = |_: Option<u64>| (Decision::Set(key), ());
            let put = block_on(index.modify(&mut batch, key, set), || 0);
            put.expect("there is room");
        }
        drop(state);
        assert!(is_anything_owned_by(&pool, node));
        let stopped = leaves(&pool)[1];
        set_lock(&pool, &entry, stopped, client);
        tear(&pool, &entry, stopped);

        let keeper = pool.keeper(pool.endpoint(), node);
        let retrainer = Retrainer::new(EAGER, || 0);
        tick(&retrainer, &keeper);
        let root = find_now(&pool).root;
        assert_ne!(root, entry.root, "there is a new tree");
        assert!(is_anything_owned_by(&pool, node));
        assert!(retrainer.take_wanted_sweep(), "another sweep is due");
        assert!(!retrainer.take_wanted_sweep(), "once");
        assert_eq!(lock(&pool, &entry, stopped), client);

        tear(&pool, &entry, stopped);
        set_lock(&pool, &entry, stopped, OwnerWord::FREE);
        let swept = block_on(keeper.sweep(), || 0).expect("nothing fails");
        assert_eq!((swept.given_up_count, swept.chunk_count), (0, 1));
        assert!(!is_anything_owned_by(&pool, node));
        retrainer.look_again();
        tick(&retrainer, &keeper);
        assert_eq!(
            find_now(&pool).root,
            root,
            "no further tree is written for it"
        );
    });
}
