//! Strings of many chunks that are not adjacent.

use farleaf_base::crc32c_bytes;
use farleaf_executor::block_on;
use farleaf_fabric::Batch;
use farleaf_leaf::blobs::{BlockError, Content, CopyOutcome, Form, Role};

use crate::blobs::account::account;
use crate::blobs::world::{MAIN_NODE, World, string};

const MEBIBYTE: usize = 1 << 20;

/// Promise: 64 MiB fit into single chunks, are read as they were written, and become free again
/// completely.
#[test]
fn the_largest_string_fits_into_single_chunks() {
    let mut world = World::new(150);
    assert!(world.fragment() >= 1026);
    let before = world.free_chunk_count();
    let client = world.client();
    let string = string(1, 64 * MEBIBYTE);
    client.put(&world, 1, &string).expect("there is room");
    let pointer = world.linked(1).expect("linked");
    assert!(matches!(pointer.form(), Form::List(_)), "{pointer}");
    let (mut batch, mut found) = (Batch::new(), Vec::new());
    let access = world.access(&client);
    let read = access.read(
        &mut batch,
        pointer,
        string.len() as u32,
        crc32c_bytes(&string),
        &mut found,
    );
    assert_eq!(block_on(read, || 0).expect("possible"), CopyOutcome::Whole);
    assert!(found == string);
    assert_eq!(account(&world).linked, 1);
    assert!(
        world.free_chunk_count() <= before - 1026,
        "1,025 parts and a list"
    );

    client.delete(&world, 1).expect("it is there");
    client.recycle(&world).expect("nothing fails");
    world.publish_all();
    world.publish(world.node);
    client.give_back(&world).expect("nothing fails");
    account(&world);
    assert_eq!(world.free_chunk_count(), before);
}

/// Promise: if a string does not fit even in several parts, the error names the requested size, and
/// none of its chunks stay claimed.
#[test]
fn a_string_without_space_leaves_nothing_behind() {
    let mut world = World::new(4);
    let free = world.fragment() as usize;
    let client = world.client();
    let before = world.free_chunk_count();
    for size_bytes in [(free + 1) * 65_536, free * 65_536 - 40 * free] {
        // The second string would fit without its list.
        let error = client
            .put(&world, 1, &string(1, size_bytes))
            .expect_err("no room");
        assert!(error.is_full(), "{error}");
        let BlockError::Full { asked_bytes, .. } = error else {
            unreachable!("it is full")
        };
        let chunk_count = size_bytes.div_ceil(65_536) as u64;
        assert!((chunk_count..=chunk_count + 1).contains(&(asked_bytes / 65_536)));
        assert_eq!(world.free_chunk_count(), before);
        account(&world);
    }
    client
        .put(&world, 1, &string(1, (free - 1) * 65_536 - 40 * free))
        .expect("it fits");
    account(&world);
}

/// Promise: an extent that all sessions have passed is reused, if the number of chunks is the same;
/// extents kept for this never cause a full pool.
#[test]
fn extents_are_written_anew() {
    let mut world = World::new(3);
    let client = world.client();
    client
        .put(&world, 1, &string(1, 200_000))
        .expect("there is room");
    let old = world.linked(1).expect("linked");
    client
        .put(&world, 1, &string(2, 100))
        .expect("there is room");
    client.recycle(&world).expect("nothing fails");
    world.publish_all();
    world.publish(world.node);
    client.recycle(&world).expect("nothing fails");
    client
        .put(&world, 2, &string(3, 200_001))
        .expect("there is room");
    let new = world.linked(2).expect("linked");
    assert_eq!(new, old.next(Form::Extent));
    client.delete(&world, 2).expect("it is there");
    client.recycle(&world).expect("nothing fails");
    world.publish_all();
    client.recycle(&world).expect("nothing fails");
    let free = world.free_chunk_count();
    assert!(client.store.held().free_count > 0);
    let mut key = 10;
    while client.put(&world, key, &string(4, 60_000)).is_ok() {
        key += 1;
    }
    assert!(
        usize::from(key) - 10 > free - 6,
        "the spare extent's chunks were used, too"
    );
    account(&world);
}

/// Promise: a large block that nothing refers to after all is put back.
#[test]
fn what_was_written_ahead_in_vain_is_put_back() {
    for is_fragmented in [false, true] {
        let mut world = World::new(4);
        if is_fragmented {
            world.fragment();
        }
        let before = world.free_chunk_count();
        let client = world.client();
        let string = string(1, 300_000);
        let content = Content::new(Role::Value, b"k", &string).expect("short");
        let access = world.access(&client);
        let mut batch = Batch::new();
        let written = client
            .store
            .write_ahead(&access, &mut batch, MAIN_NODE, &content);
        let pointer = block_on(written, || 0).expect("there is room");
        assert_eq!(matches!(pointer.form(), Form::List(_)), is_fragmented);
        client.store.put_back(pointer);
        account(&world);
        client.give_back(&world).expect("nothing fails");
        assert_eq!(client.store.held().free_count, 0);
        assert_eq!(
            world.free_chunk_count(),
            before,
            "nobody had to publish for that"
        );
        account(&world);
    }
}
