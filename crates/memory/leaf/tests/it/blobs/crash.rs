//! A session that dies at each verb of its life, and what is left of it after a sweep.

use farleaf_block::{BlockError, BlockStore};

use crate::account::account;
use crate::mortal::{LastWrite, Mortal};
use crate::world::{Client, World, string};

/// 3 chunks.
const LARGE: usize = 150_000;

/// A life: pieces of several sizes, extents, updates of what others have written, deletes, grace
/// periods that pass, and an orderly end. What the living publish is published meanwhile.
fn live(world: &World, client: &Client<Mortal>) -> Result<(), BlockError> {
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

/// One life, that ends after so many changes; returns how many more there would have been room
/// for, if it ended by itself.
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
    let mortal = Client {
        endpoint: Mortal::new(&world.region, count, last_write),
        owner: world.register(),
        store: BlockStore::new(),
    };
    let lived = live(&world, &mortal);
    let rest = mortal.endpoint.left();
    assert_eq!(lived.is_err(), mortal.endpoint.is_dead(), "{lived:?}");
    world.fence(mortal.owner);
    drop(mortal);
    world.sweep_out();
    let before = account(&world);

    // The others go on: with what the dead have written, and with what is free again.
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

/// Promise (BV8): whenever a session dies, all that it held or had linked is referred to, free, or
/// held by the living, once it was swept, and what is referred to is whole.
#[test]
fn nothing_is_lost_or_freed_by_a_death_at_any_verb() {
    die_everywhere(false);
}

/// Promise (BV9): the same where large strings are lists.
#[test]
fn nothing_is_lost_or_freed_by_a_death_among_lists() {
    die_everywhere(true);
}
