//! Merges of two leaves, of which one is retired in favor of a third and the other is not yet: the
//! mover has died in between (LEAF-8).

use std::rc::Rc;

use farleaf_base::RemoteAddr;
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::hint::{Hint, SearchLayer};
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::{IndexState, Layer};
use farleaf_leaf::words::moving::MoveSource;
use farleaf_leaf::words::{LeafLease, LeaseShape};
use farleaf_pool::allocation::ChunkAllocator;

use crate::crash::loaded;
use crate::cutting::{Cut, Tear};
use crate::pool::{access, layer_kind};
use crate::scene::Scene;
use crate::tables::LEARNED;

/// Returns a scene in which the mover of the leaves with these numbers has died after it had
/// retired the right one.
fn half_moved(numbers: [usize; 2]) -> Scene {
    let mut scene = Scene::of(loaded(LEARNED, 300));
    let mover = scene.pool.register();
    let addrs = numbers.map(|number| scene.leaves[number]);
    {
        let (pool, entry) = (&scene.pool, &scene.entry);
        let own = access(&pool.plain, &pool.layout, mover, entry);
        let (mut batch, broken) = (Batch::new(), std::cell::Cell::default());
        let mut sources = addrs.map(|addr| MoveSource {
            addr,
            leaf: own.blank(),
        });
        for source in sources.iter_mut().rev() {
            let lock = own.lock(&mut batch, source.addr, None, &mut source.leaf, &broken);
            block_on(lock, || 0).expect("nobody has it");
        }
        let shape = LeaseShape::leaves(own.geometry);
        let allocator = ChunkAllocator::new(&pool.plain, &pool.layout, mover);
        let leased = allocator.lease_pieces(own.table, shape.purpose, shape.piece_count);
        let (chunk, free) = block_on(leased, || 0).expect("there is room");
        let mut lease = LeafLease::new(shape);
        lease.add(&own, chunk, free);
        let place = lease.take().expect("it is not empty");
        let link = sources[1].leaf.image().link();
        batch.clear();
        let change = own.change(place);
        let _ = change.take_over(&mut batch, mover, &mut sources, link);
        // The new leaf, and the right one's link, state and unlock.
        let new_leaf = batch.verbs()[0].word_count;
        let cut = pool.cutting(Cut {
            effect_count: u64::from(new_leaf) + 3,
            tear: Tear::First,
        });
        let endpoint = &cut;
        block_on(endpoint.execute(&mut batch), || 0).expect_err("it is cut off");
    }
    scene.pool.fence(mover);
    scene
}

/// Promise (LEAF-9): a hint that is too far right leads a client to the right leaf for a key of the
/// left one. The client does not change the replacing leaf while others still find the left one
/// unretired. (It did, and others saw the old value after the new one.)
#[test]
fn a_hint_too_far_right_leads_past_no_leaf_that_is_still_to_be_retired() {
    let mut scene = half_moved([3, 4]);
    let (writer, reader) = (scene.pool.register(), scene.pool.register());
    let (pool, entry) = (&scene.pool, &scene.entry);
    let mut reading = pool.client(reader, entry);
    let keys = reading.scan().expect("nothing fails");
    let left = scene.leaves[3];
    let mut writing = pool.client(writer, entry);
    let misled = |key: u64, right: RemoteAddr| {
        let own = writing_access(&scene);
        let directory = read_snapshot(
            own.endpoint,
            own.layout,
            own.geometry,
            own.table,
            entry.root,
        );
        let directory = block_on(directory, || 0).expect("it is sound");
        let mut layer = Layer::new(layer_kind(entry), directory.into());
        let hint = layer.locate(key);
        let is_left = hint.addr == left;
        let parent = hint.parent;
        layer.learn(
            key,
            Hint {
                addr: right,
                parent,
            },
        );
        is_left.then_some(layer)
    };
    let mut count = 0;
    for (key, value) in keys {
        let Some(layer) = misled(key, scene.leaves[4]) else {
            continue;
        };
        count += 1;
        writing.state = IndexState::new(layer, Rc::clone(&writing.broken));
        writing.state.follow_retired();
        writing.put(key, !value).expect("nothing fails");
        assert_eq!(
            reading.get(key).expect("nothing fails"),
            Some(!value),
            "{key}"
        );
    }
    assert!(count > 0, "no hint leads to the left leaf");
}

fn writing_access(
    scene: &Scene,
) -> farleaf_leaf::words::LeafAccess<'_, farleaf_fabric::mapped::MappedEndpoint> {
    let (pool, none) = (&scene.pool, farleaf_base::OwnerWord::FREE);
    access(&pool.plain, &pool.layout, none, &scene.entry)
}
