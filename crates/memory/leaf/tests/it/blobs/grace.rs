//! Grace periods of unlinked blocks, and holders of blocks.

use farleaf_base::OwnerWord;
use farleaf_executor::block_on;
use farleaf_fabric::Endpoint;
use farleaf_fabric::OperationKind;
use farleaf_leaf::blobs::{BlockStore, FatPointer, Generation, Recycled, SizeClass};

use crate::blobs::account::{account, check_whole};
use crate::blobs::world::{Client, MAIN_NODE, World, string};

fn place_of_next(world: &World, client: &Client<impl Endpoint>) -> FatPointer {
    client
        .put(world, 200, &string(5, 100))
        .expect("there is room");
    world.linked(200).expect("just linked")
}

/// Promise: an unlinked block is not reused while any session, including its own, has not published
/// the number drawn afterwards; then it is reused with the next generation.
#[test]
fn a_block_is_written_anew_only_when_all_have_passed() {
    let mut world = World::new(3);
    let (client, reader) = (world.client(), world.client());
    client
        .put(&world, 1, &string(1, 100))
        .expect("there is room");
    let old = world.linked(1).expect("linked");
    client.delete(&world, 1).expect("it is there");
    let waits = Recycled {
        passed_count: 0,
        waiting_count: 1,
    };
    // No session has published anything yet; the first of these draws the number.
    for _ in 0..2 {
        assert_eq!(client.recycle(&world).expect("nothing fails"), waits);
    }
    world.publish(client.owner);
    assert_eq!(
        client.recycle(&world).expect("nothing fails"),
        waits,
        "the reader has not"
    );
    let taken: Vec<_> = (0..63).map(|_| place_of_next(&world, &client)).collect();
    assert!(taken.iter().all(|pointer| pointer.place() != old.place()));
    check_whole(&world, old);

    world.publish(reader.owner);
    world.publish(world.node);
    let passed = client.recycle(&world).expect("nothing fails");
    assert_eq!(passed.passed_count, 1);
    let again = place_of_next(&world, &client);
    let next = old.generation().next();
    assert_eq!((again.place(), again.generation()), (old.place(), next));
    assert_ne!(again, old, "an old reference is told from the new one");
    account(&world);
}

/// Promise: unfinished operations of the own session count, too.
#[test]
fn own_operations_are_waited_for() {
    let mut world = World::new(3);
    let client = world.client();
    client
        .put(&world, 1, &string(1, 100))
        .expect("there is room");
    client.delete(&world, 1).expect("it is there");
    client.recycle(&world).expect("nothing fails");
    world.publish(world.node);
    assert_eq!(
        client.recycle(&world).expect("nothing fails").passed_count,
        0
    );
    world.publish(client.owner);
    assert_eq!(
        client.recycle(&world).expect("nothing fails").passed_count,
        1
    );
}

/// Promise: fenced sessions are not waited for.
#[test]
fn the_fenced_are_not_waited_for() {
    let mut world = World::new(3);
    let (client, silent) = (world.client(), world.client());
    client
        .put(&world, 1, &string(1, 100))
        .expect("there is room");
    client.delete(&world, 1).expect("it is there");
    client.recycle(&world).expect("nothing fails");
    world.publish(client.owner);
    world.publish(world.node);
    assert_eq!(
        client.recycle(&world).expect("nothing fails").passed_count,
        0
    );
    world.fence(silent.owner);
    assert_eq!(
        client.recycle(&world).expect("nothing fails").passed_count,
        1
    );
}

/// Promise: blocks retired after a number was drawn wait for the next one.
#[test]
fn each_number_is_for_what_was_retired_before() {
    let mut world = World::new(3);
    let client = world.client();
    for key in [1, 2] {
        client
            .put(&world, key, &string(1, 100))
            .expect("there is room");
    }
    client.delete(&world, 1).expect("it is there");
    client.recycle(&world).expect("nothing fails");
    world.publish_all();
    world.publish(world.node);
    client.delete(&world, 2).expect("it is there");
    let recycled = client.recycle(&world).expect("nothing fails");
    assert_eq!((recycled.passed_count, recycled.waiting_count), (1, 1));
}

/// Promise: generations increase with each use, and wrap.
#[test]
fn generations_grow_and_come_round() {
    let mut world = World::new(3);
    let client = world.client();
    // A chunk has one piece of this size, and the generation after the last is the first.
    let mut last: Option<FatPointer> = None;
    for round in 0..u64::from(Generation::COUNT) + 3 {
        client
            .put(&world, 1, &string(round, 40_000))
            .expect("there is room");
        let pointer = world.linked(1).expect("linked");
        if let Some(last) = last {
            assert_eq!(pointer, last.next(pointer.form()), "round {round}");
        }
        last = Some(pointer);
        client.delete(&world, 1).expect("it is there");
        client.recycle(&world).expect("nothing fails");
        world.publish_all();
        world.publish(world.node);
        client.recycle(&world).expect("nothing fails");
    }
}

/// Promise: if two sessions lease pieces of the same chunk, no piece belongs to both.
#[test]
fn two_sessions_share_a_chunk() {
    let mut world = World::new(3);
    let (one, two) = (world.client(), world.client());
    let class = SizeClass::from_number(1).expect("a class");
    let mut places = std::collections::BTreeSet::new();
    for client in [&one, &two, &one] {
        let access = world.access(client);
        let lease = client.store.lease_more(&access, MAIN_NODE, class);
        block_on(lease, || 0).expect("there is room");
    }
    assert_eq!(one.store.piece_count(MAIN_NODE, class), 128);
    for client in [&one, &two] {
        while let Some(pointer) = client.store.take(MAIN_NODE, class) {
            assert!(places.insert(pointer.place().word()), "{pointer} twice");
            client.store.put_back(pointer);
            assert_eq!(
                client.store.take(MAIN_NODE, class),
                Some(pointer),
                "it comes back"
            );
        }
    }
    assert_eq!(places.len(), 3 * 64);
    let account = account(&world);
    assert_eq!((account.held, account.free_pieces), (3 * 64, 341 - 3 * 64));
}

/// Promise: pieces that a session gives back are free, and the chunk, if all of them are; blocks
/// that others may still read stay held, and the session reports them.
#[test]
fn what_is_given_back_is_free() {
    let mut world = World::new(3);
    let before = world.free_chunk_count();
    let client = world.client();
    for key in 0..4 {
        let size_bytes = [100, 3000, 60_000, 200_000][usize::from(key)];
        client
            .put(&world, key, &string(1, size_bytes))
            .expect("there is room");
    }
    for key in 0..4 {
        client.delete(&world, key).expect("it is there");
    }
    client.give_back(&world).expect("nothing fails");
    let held = client.store.held();
    assert_eq!(
        (held.free_count, held.limbo_count),
        (0, 4),
        "nobody has published"
    );
    account(&world);
    world.publish_all();
    world.publish(world.node);
    client.give_back(&world).expect("nothing fails");
    let held = client.store.held();
    assert_eq!((held.free_count, held.limbo_count), (0, 0));
    assert_eq!(account(&world).free_pieces, 0);
    assert_eq!(world.free_chunk_count(), before);
}

/// Promise: pieces in a chunk that another session leases at the moment stay held. A store that
/// takes over the rest of another one has all of it, including limbo with its number, and gives it
/// back later.
#[test]
fn what_cannot_be_given_back_is_taken_over() {
    let mut world = World::new(3);
    let before = world.free_chunk_count();
    let (client, other) = (world.client(), world.client());
    for (key, size_bytes) in [(1, 100), (2, 3000), (3, 200_000)] {
        client
            .put(&world, key, &string(1, size_bytes))
            .expect("there is room");
    }
    for key in [2, 3] {
        client.delete(&world, key).expect("it is there");
    }
    client.recycle(&world).expect("nothing fails");
    // Another session leases the chunk of the first one's pieces.
    let retained = world.linked(1).expect("linked");
    let chunk = world.layout.chunk_of(retained.place()).expect("in a chunk");
    let lease = world.layout.chunk_entry(chunk);
    world.write(lease, &[other.owner.word()]);
    client.give_back(&world).expect("nothing fails");
    let held = client.store.held();
    assert_eq!((held.free_count, held.limbo_count), (63, 2));

    let session = Client {
        endpoint: world.endpoint(),
        owner: client.owner,
        store: BlockStore::new(),
    };
    session
        .put(&world, 4, &string(1, 3000))
        .expect("there is room");
    let own = session.store.held();
    session.store.take_over(client.store);
    let both = session.store.held();
    assert_eq!(both.free_count, own.free_count + held.free_count);
    assert_eq!(both.limbo_count, 2);

    world.write(lease, &[OwnerWord::FREE.word()]);
    account(&world);
    for key in [1, 4] {
        session.delete(&world, key).expect("it is there");
    }
    assert_eq!(
        session.recycle(&world).expect("nothing fails").passed_count,
        0
    );
    world.publish_all();
    world.publish(world.node);
    session.give_back(&world).expect("nothing fails");
    assert!(session.store.is_empty());
    account(&world);
    assert_eq!(world.free_chunk_count(), before);
}

/// Promise: leasing from the chunk used last costs two round trips; checking limbo costs one, or
/// none if it is empty.
#[test]
fn costs_are_as_documented() {
    let mut world = World::new(3);
    let client = world.client();
    let class = SizeClass::from_number(1).expect("a class");
    let lease = || {
        let access = world.access(&client);
        let lease = client.store.lease_more(&access, MAIN_NODE, class);
        block_on(lease, || 0).expect("there is room");
    };
    let control = || client.endpoint.counters().kind(OperationKind::Control).cost;
    lease();
    let before = control();
    lease();
    let after = control();
    assert_eq!(after.round_trips - before.round_trips, 2);
    assert_eq!(after.bytes_read - before.bytes_read, 64 + 64 * 8);
    assert_eq!(after.bytes_written - before.bytes_written, 64 * 8 + 56 + 8);

    client.recycle(&world).expect("nothing fails");
    assert_eq!(
        control().round_trips,
        after.round_trips,
        "nothing is in limbo"
    );
    client
        .put(&world, 1, &string(1, 100))
        .expect("there is room");
    client.delete(&world, 1).expect("it is there");
    client.recycle(&world).expect("nothing fails");
    let recycled = control();
    assert_eq!(recycled.round_trips - after.round_trips, 1);
    assert_eq!(recycled.bytes_read - after.bytes_read, 65_472);
    assert_eq!(recycled.atomics - after.atomics, 1);
}

/// Promise: nothing is held on a lost node any more.
#[test]
fn a_lost_node_is_forgotten() {
    let mut world = World::new(3);
    let client = world.client();
    client
        .put(&world, 1, &string(1, 100))
        .expect("there is room");
    client.delete(&world, 1).expect("it is there");
    let held = client.store.held();
    assert!(held.free_count > 0 && held.limbo_count == 1);
    client.store.forget(MAIN_NODE);
    assert_eq!(
        client.store.held(),
        farleaf_leaf::blobs::StoreHoldings::default()
    );
    let class = SizeClass::from_number(1).expect("a class");
    assert_eq!(client.store.take(MAIN_NODE, class), None);
    assert!(client.store.is_empty());
}

/// Promise: a store that has lost track is never empty, nor is a store that takes it over.
#[test]
fn unknown_blocks_are_never_empty() {
    let (store, session) = (BlockStore::new(), BlockStore::new());
    assert!(store.is_empty() && session.is_empty());
    store.note_unknown_blocks();
    assert!(!store.is_empty());
    session.take_over(store);
    assert!(!session.is_empty());
}
