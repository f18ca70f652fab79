//! Tests of the audit of trees.

use core::cell::Cell;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::block_on;
use farleaf_index::LayerKind;
use farleaf_index::load::{LoadPlan, bulk_load};
use farleaf_index::tree::TreeAccess;
use farleaf_index::tree::head::read_head;
use farleaf_index::tree::node::{
    CHUNK_NODE_COUNT, ChildEntry, InnerNode, NODE_SIZE_BLOCKS, NODE_SIZE_WORDS, lock_addr,
};
use farleaf_node::audit::{Finding, Promise};
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::ChunkIndex;

use crate::audit::chunks;
use crate::catalog::{TableShape, create, find};
use crate::crash::sample;
use crate::pool::{Pool, access};
use crate::scene::Scene;
use crate::tables::LEARNED;

pub(crate) const RECORD_COUNT: u64 = 3000;
/// Entries per node, so that there are several nodes above the leaves, under a root.
const NODE_ENTRY_COUNT: u32 = 61;

fn scene() -> Scene {
    scene_of(LayerKind::RfTree)
}

/// Returns a loaded table of this kind, sound.
pub(crate) fn scene_of(kind: LayerKind) -> Scene {
    let shape = TableShape { kind, ..LEARNED };
    let mut pool = Pool::new();
    let owner = pool.register();
    create(&pool, &pool.plain, owner, "records", shape).expect("it can be made");
    let entry = find(&pool, "records").expect("it was made");
    let plan = LoadPlan {
        kind,
        fill_percent: shape.fill_percent,
        epsilon_keys: 16.0,
        entry_count_max: NODE_ENTRY_COUNT,
    };
    let access = access(&pool.plain, &pool.layout, owner, &entry);
    let (broken, records) = (Cell::default(), sample(RECORD_COUNT));
    let load = bulk_load(access, &entry, plan, &broken, records.into_iter(), |_| ());
    block_on(load, || 0).expect("an empty table can be loaded");
    pool.fence(owner);
    let entry = find(&pool, "records").expect("it is there");
    let scene = Scene {
        leaves: Vec::new(),
        table: entry.record.id,
        pool,
        entry,
    };
    assert_eq!(scene.findings(), []);
    scene
}

/// Returns the nodes of a level, in order.
fn level(scene: &Scene, level: u16) -> Vec<(RemoteAddr, InnerNode)> {
    // A load creates its own tree beside the one that the table was created with.
    let chunks = chunks(&scene.pool).into_iter().zip(0..);
    let generations = chunks.filter_map(|(chunk, index)| match chunk.purpose {
        Some(ChunkPurpose::Inner { generation }) => Some((generation, ChunkIndex(index))),
        _ => None,
    });
    let generations: Vec<_> = generations.collect();
    let last = generations.iter().map(|(generation, _)| *generation).max();
    let own = generations
        .iter()
        .filter(|(generation, _)| Some(*generation) == last);
    let places = own.flat_map(|(_, chunk)| {
        let start = scene.pool.layout.chunk_start(*chunk);
        (0..CHUNK_NODE_COUNT).map(move |index| start.offset_blocks(index * NODE_SIZE_BLOCKS))
    });
    let nodes = places.filter_map(|place| {
        let words = scene.words(lock_addr(place), NODE_SIZE_WORDS as u64);
        let node = InnerNode::from_words(&words[1..]);
        let is_one = node.is_intact(place, scene.table) && node.level() == level;
        is_one.then_some((place, node))
    });
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_by_key(|(_, node)| node.low());
    nodes
}

fn write(scene: &Scene, place: RemoteAddr, mut node: InnerNode) {
    node.seal(place, scene.table);
    scene.write(lock_addr(place), &node.node_words(0));
}

/// Promise: a level that does not cover all keys exactly once, or contains a foreign node, is
/// found, with the address.
#[test]
fn a_level_that_does_not_tile_is_found() {
    let scene = scene();
    let nodes = level(&scene, 1);
    let roots = level(&scene, 2);
    assert!(nodes.len() > 3 && roots.len() == 1, "{}", nodes.len());
    let (place, sound) = nodes[1].clone();
    // Nodes after it on the level are not reached then, and reported as lost.
    let assert_broken_at = |node| {
        let broken = Finding::InnerRangeBroken {
            table: scene.table,
            level: 1,
            node,
        };
        let (lost, others): (Vec<_>, Vec<_>) = scene
            .findings()
            .into_iter()
            .partition(|finding| matches!(finding, Finding::LeafLost { .. }));
        assert_eq!(others, [broken]);
        assert!(!lost.is_empty());
    };

    let mut gap = sound.clone();
    gap.set_high(sound.high() - 1);
    write(&scene, place, gap);
    assert_broken_at(nodes[2].0);

    let mut round = sound.clone();
    round.set_link(nodes[0].0);
    write(&scene, place, round);
    assert_broken_at(nodes[0].0);

    let mut up = sound.clone();
    up.set_link(roots[0].0);
    write(&scene, place, up);
    assert_broken_at(roots[0].0);

    // Torn: a word has changed, and its state has not.
    write(&scene, place, sound.clone());
    assert_eq!(scene.findings(), []);
    let (low, word) = (lock_addr(place).offset(2), sound.low());
    scene.write(low, &[word + 1]);
    assert_broken_at(place);
}

/// Promise: the tree lists only leaves of the chain; other entries are found.
#[test]
fn a_child_that_is_no_leaf_is_found() {
    let scene = scene();
    let (place, sound) = level(&scene, 1)[1].clone();
    let entry = sound.sorted_entries()[2];
    let elsewhere = entry.child.offset_blocks(1);
    let mut astray = sound.clone();
    astray.retain(|it| it.low != entry.low);
    astray.add(ChildEntry {
        low: entry.low,
        child: elsewhere,
    });
    write(&scene, place, astray);
    let finding = Finding::ChildNotLinked {
        table: scene.table,
        node: place,
        child: elsewhere,
    };
    assert_eq!(finding.promise(), Promise::Root);
    assert_eq!(scene.findings(), [finding]);
    write(&scene, place, sound);
    assert_eq!(scene.findings(), []);
}

/// Promise: a session that reads chunks of a tree as a whole does not list leaves in a node that
/// nothing links to. The node's creator may have died, or may not have linked it yet. (Leaves were
/// listed in such a node, it was split, and its sibling was listed, while a sweep freed it.)
#[test]
fn a_node_that_nothing_links_to_is_nobodys_parent() {
    let scene = scene();
    let (left_place, left) = level(&scene, 1)[1].clone();
    let entries = left.sorted_entries();
    let middle = entries[entries.len() / 2].low;
    let mut sibling = InnerNode::new(1, middle, left.high(), left.link());
    for entry in entries.iter().filter(|entry| entry.low >= middle) {
        sibling.add(*entry).expect("half of a node fits");
    }
    // After all others in their chunk.
    let root = level(&scene, 2)[0].0;
    let place = root.offset_blocks(NODE_SIZE_BLOCKS);
    assert!(level(&scene, 1).iter().all(|(other, _)| *other < root));
    write(&scene, place, sibling);
    let parents = || {
        let leaves = access(
            &scene.pool.plain,
            &scene.pool.layout,
            OwnerWord::FREE,
            &scene.entry,
        );
        let broken = Cell::default();
        let tree = TreeAccess {
            leaves,
            broken: &broken,
        };
        let head = block_on(read_head(&leaves, scene.entry.root), || 0).expect("a head");
        let read = block_on(tree.level(head.generation), || 0).expect("a level");
        read.nodes
            .into_iter()
            .map(|node| node.child)
            .collect::<Vec<_>>()
    };
    let all: Vec<_> = level(&scene, 1)
        .into_iter()
        .map(|(place, _)| place)
        .collect();
    let others = |place: RemoteAddr| all.iter().copied().filter(move |it| *it != place);
    assert_eq!(parents(), others(place).collect::<Vec<_>>());
    let mut linked = left;
    linked.set_link(place);
    linked.set_high(middle - 1);
    linked.retain(|entry| entry.low < middle);
    write(&scene, left_place, linked);
    assert_eq!(parents(), all);
}
