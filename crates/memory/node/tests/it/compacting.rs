//! Compactions of tables with a tree while sessions delete.

use core::cell::Cell;
use std::rc::Rc;

use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::fg::FgLayer;
use farleaf_index::operation::Decision;
use farleaf_index::retrain::compact::{
    Compacted, Compaction, CompactionGoal, CompactionLeases, compact,
};
use farleaf_index::tree::head::read_head;
use farleaf_index::{Index, IndexState, Layer, LayerKind};
use farleaf_leaf::words::LeafAccess;
use farleaf_pool::catalog::{CatalogEntry, underfull_count_addr};

use crate::catalog::find;
use crate::crash::sample;
use crate::pool::{Pool, access};
use crate::trees::{RECORD_COUNT, scene_of};

/// Promise: deletes during a compaction, and deletes by the old tree after it, are counted, and
/// make the next compaction due. (The counter was in the old tree's head, and was lost with it: a
/// table stayed a twenty-fifth full forever.)
#[test]
fn deletes_beside_a_compaction_are_counted() {
    let mut scene = scene_of(LayerKind::Fg);
    let (node, session) = (scene.pool.register(), scene.pool.register());
    let (pool, entry) = (&scene.pool, &scene.entry);
    let of = |owner| access(&pool.plain, &pool.layout, owner, entry);
    let deleting = of(session);
    let head = block_on(read_head(&deleting, entry.root), || 0).expect("it is sound");
    let counter = underfull_count_addr(&pool.layout, entry.index);
    let state = IndexState::new(Layer::Fg(FgLayer::new(head)), Rc::default())
        .with_underfull_counter(Some(counter));

    let thirds: Vec<u64> = sample(RECORD_COUNT).iter().map(|it| it.0).collect();
    let thirds: Vec<&[u64]> = thirds.chunks(RECORD_COUNT as usize / 3).collect();
    delete(deleting, &state, thirds[0]);
    let counted = pool.word(counter);
    assert!(counted >= head.leaf_count / 3 - 1, "{counted}");

    let before = find_now(pool);
    assert_eq!(before.underfull_count, counted);
    let is_begun = Cell::new(false);
    compacted(of(node), &before, || {
        if !is_begun.replace(true) {
            delete(deleting, &state, thirds[1]);
        }
        true
    });
    assert!(is_begun.get());
    // The pairs left of the first third, and all of the second, which the compaction had read
    // before the deletes.
    let between = pool.word(counter);
    assert!((counted..counted * 3 / 2).contains(&between), "{between}");
    // By the replaced tree.
    delete(deleting, &state, thirds[2]);
    let all = pool.word(counter);
    assert!((counted - 1..=counted).contains(&(all - between)), "{all}");

    // Each compaction halves the underfull leaves, until there is nothing to do.
    while find_now(pool).underfull_count > 0 {
        compacted(of(node), &find_now(pool), || true);
    }
    let head = block_on(read_head(&deleting, find_now(pool).root), || 0);
    assert_eq!(head.expect("it is sound").leaf_count, 1);
}

fn find_now(pool: &Pool) -> CatalogEntry {
    find(pool, "records").expect("it is there")
}

fn delete<E: Endpoint>(access: LeafAccess<'_, E>, state: &IndexState, keys: &[u64]) {
    let index = Index::new(access, state);
    let mut batch = Batch::new();
    for key in keys {
        let remove = |value: Option<u64>| (Decision::Remove, value.is_some());
        let removed = block_on(index.modify(&mut batch, *key, remove), || 0);
        assert!(removed.expect("nothing happens to it"), "{key}");
    }
}

fn compacted<E: Endpoint>(
    access: LeafAccess<'_, E>,
    entry: &CatalogEntry,
    may_go_on: impl Fn() -> bool,
) {
    let head = block_on(read_head(&access, entry.root), || 0).expect("it is sound");
    let (broken, leased) = (Cell::new(false), CompactionLeases::default());
    let slot_count = access.geometry.slot_count();
    let work = Compaction {
        access,
        entry,
        head: &head,
        root: entry.root,
        merged_count_max: slot_count * 3 / 4,
        broken: &broken,
    };
    let wanted = CompactionGoal {
        step_count_max: u64::MAX,
        finishes_another: false,
        moves_tree: false,
    };
    let compacted = block_on(compact(&work, &leased, wanted, |_| false, may_go_on), || 0);
    let compacted = compacted.expect("nothing happens to it");
    assert!(matches!(compacted, Compacted::Done(_)), "{compacted:?}");
    block_on(leased.give_back(&work.access), || 0).expect("it can");
}
