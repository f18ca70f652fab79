//! Sessions that die at each verb of their life, and the state after a sweep.

use farleaf_leaf::blobs::{BlockError, BlockStore};

use crate::blobs::account::account;
use crate::blobs::dying_endpoint::{DyingEndpoint, LastWrite};
use crate::blobs::world::{Client, World, string};

/// 3 chunks.
const LARGE: usize = 150_000;

/// Runs a session's life: pieces of several sizes, extents, updates of others' strings, deletes,
/// completed grace periods, and an orderly end. Live sessions publish meanwhile.
fn live(world: &World, client: &Client<DyingEndpoint>) -> Result<(), BlockError> {
    client.put(world, 0, &string(1, 100))?;
    client.put(world, 0, &string(2, 100))?;
    client.put(world, 1, &string(3, 30_000))?;
    client.put(world, 2, &string(4, LARGE))?;
    client.put(world, 2, &string(5, LARGE))?;
    for _ in 0..2 {
        client.recycle(world)?;
        world.publish_all();
    }
    client.put(world, 2, &string(6, LARGE))?;
    client.delete(world, 1)?;
    client.delete(world, 3)?;
    client.put(world, 4, &string(7, 60_000))?;
    for _ in 0..2 {
        client.recycle(world)?;
        world.publish_all();
    }
    client.put(world, 5, &string(8, LARGE))?;
    client.delete(world, 5)?;
    client.recycle(world)?;
    world.publish_all();
    client.give_back(world)
}

/// Runs one life that ends after `count` changes; returns the number of unused changes if it ended
/// by itself.
fn die_after(count: u64, last_write: LastWrite, is_fragmented: bool) -> Option<u64> {
    let mut world = World::new(4);
    if is_fragmented {
        assert!(world.fragment() >= 12);
    }
    let other = world.client();
    for key in [0, 2, 3] {
        let size_bytes = if key == 2 { LARGE } else { 100 };
        other
            .put(&world, key, &string(key.into(), size_bytes))
            .expect("there is room");
    }
    let dying_endpoint = Client {
        endpoint: DyingEndpoint::new(&world.memory, count, last_write),
        owner: world.register(),
        store: BlockStore::new(),
    };
    let lived = live(&world, &dying_endpoint);
    let rest = dying_endpoint.endpoint.left();
    assert_eq!(
        lived.is_err(),
        dying_endpoint.endpoint.is_dead(),
        "{lived:?}"
    );
    world.fence(dying_endpoint.owner);
    drop(dying_endpoint);
    world.sweep_out();
    let before = account(&world);

    // The others continue, with the dead session's strings and with what is free again.
    for key in 0..6 {
        other
            .put(&world, key, &string(9, 100))
            .expect("there is room");
        other
            .put(&world, key, &string(10, LARGE / 2))
            .expect("there is room");
        other.recycle(&world).expect("nothing fails");
        world.publish_all();
    }
    for key in 0..6 {
        other.delete(&world, key).expect("it is there");
    }
    for _ in 0..2 {
        other.recycle(&world).expect("nothing fails");
        world.publish_all();
    }
    other.give_back(&world).expect("nothing fails");
    let after = account(&world);
    assert_eq!((after.linked, after.held), (0, 0), "{before:?} {after:?}");
    assert_eq!(after.free_pieces, 0, "chunks of which all is free are free");
    lived.is_ok().then_some(rest)
}

fn die_everywhere(is_fragmented: bool) {
    const MOST: u64 = 1 << 20;
    let rest = die_after(MOST, LastWrite::Nothing, is_fragmented);
    let change_count = MOST - rest.expect("it ended by itself");
    assert!(change_count > 100, "{change_count}");
    let last_writes = [
        LastWrite::Nothing,
        LastWrite::Beginning,
        LastWrite::End,
        LastWrite::EverySecond,
    ];
    for count in 0..change_count {
        let last_write = last_writes[count as usize % 4];
        let result = std::panic::catch_unwind(|| die_after(count, last_write, is_fragmented));
        let rest = result.unwrap_or_else(|_| {
            panic!("died after {count} of {change_count} changes, {last_write:?}")
        });
        assert_eq!(rest, None, "it was to die");
    }
}

/// Promise: whenever a session dies, a sweep accounts for everything that it held or had linked.
/// Each block is referred to, free, or held by a live session, and referenced blocks are intact.
#[test]
fn nothing_is_lost_or_freed_by_a_death_at_any_verb() {
    die_everywhere(false);
}

/// Promise: the same holds if large strings are lists.
#[test]
fn nothing_is_lost_or_freed_by_a_death_among_lists() {
    die_everywhere(true);
}
