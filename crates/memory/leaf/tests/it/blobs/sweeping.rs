//! Sweep of the blocks of dead sessions.

use std::cell::RefCell;

use farleaf_base::{OwnerWord, RemoteAddr};
use farleaf_executor::block_on;
use farleaf_leaf::blobs::sweep::{BlockSweepReport, BlockSweeper, ReferenceAnswer};
use farleaf_leaf::blobs::{BODY_WORD, FatPointer, Form, HOLDER_WORD, Role, SETTLED, Site};
use farleaf_pool::allocation::ChunkAllocator;

use crate::blobs::account::{account, check_whole};
use crate::blobs::world::{World, string};

fn holder(world: &World, pointer: FatPointer) -> u64 {
    world.word(pointer.place().word_at(HOLDER_WORD))
}

/// Promise: referenced blocks are settled and not checked again; others are taken over, and freed
/// when all sessions have passed. Questions carry pointer, role and locator as written.
#[test]
fn linked_is_settled_and_unlinked_is_freed() {
    let mut world = World::new(3);
    let reader = world.client();
    let dead = world.client();
    for key in 0..3 {
        dead.put(&world, key, &string(key.into(), 100))
            .expect("there is room");
    }
    let pointers = [0, 1, 2].map(|key| world.linked(key).expect("linked"));
    dead.delete(&world, 1).expect("it is there");
    let sweeper = BlockSweeper::new();
    assert_eq!(
        world.sweep(&sweeper),
        BlockSweepReport::default(),
        "the living keep what they hold"
    );
    world.fence(dead.owner);

    let asked = RefCell::new(Vec::new());
    let report = world.sweep_with(&sweeper, |question| {
        assert_eq!(question.role, Role::Value);
        asked
            .borrow_mut()
            .push((question.pointer, question.locator.to_vec()));
        match question.locator {
            [1] => ReferenceAnswer::Unreferred,
            _ => ReferenceAnswer::Referred,
        }
    });
    let asked = asked.into_inner();
    let expected = pointers.into_iter().zip([0, 1, 2]);
    let expected: Vec<_> = expected
        .map(|(pointer, key)| (pointer, vec![key]))
        .collect();
    assert_eq!(asked, expected);
    assert_eq!((report.settled_count, report.unknown_count), (2, 0));
    // The one block, and 61 pieces that were never written.
    assert_eq!((report.taken_count, report.waiting_count), (62, 62));
    assert_eq!(holder(&world, pointers[0]), SETTLED);
    assert_eq!(holder(&world, pointers[1]), world.node.word());

    let report = world.sweep_with(&sweeper, |question| panic!("asked again: {question:?}"));
    assert_eq!(
        (report.freed_count, report.waiting_count),
        (0, 62),
        "the reader has not passed"
    );
    check_whole(&world, pointers[1]);
    world.publish(reader.owner);
    let report = world.sweep_with(&sweeper, |question| panic!("asked again: {question:?}"));
    assert_eq!((report.freed_count, report.waiting_count), (62, 0));
    let account = account(&world);
    assert_eq!(
        (account.linked, account.held, account.free_pieces),
        (2, 0, 339)
    );
}

/// Promise: a settled block that is unlinked belongs to its unlinker, whatever the sweep found
/// before.
#[test]
fn a_settled_block_can_be_unlinked() {
    let mut world = World::new(3);
    let (other, dead) = (world.client(), world.client());
    dead.put(&world, 1, &string(1, 100)).expect("there is room");
    world.fence(dead.owner);
    let sweeper = BlockSweeper::new();
    // The block is unlinked after the question and before the holder is swapped.
    let pointer = world.linked(1).expect("linked");
    let report = world.sweep_with(&sweeper, |question| {
        if question.pointer != pointer {
            return ReferenceAnswer::Unreferred;
        }
        other.delete(&world, 1).expect("it is there");
        ReferenceAnswer::Referred
    });
    assert_eq!((report.settled_count, report.taken_count), (0, 63));
    assert_eq!(holder(&world, pointer), other.owner.word());
    other.recycle(&world).expect("nothing fails");
    world.publish_all();
    world.sweep_out();
    other.give_back(&world).expect("nothing fails");
    world.sweep(&sweeper);
    world.sweep(&sweeper);
    assert_eq!(account(&world).held, 0);
}

/// Promise: a block with an unknown answer stays unchanged and is checked again.
#[test]
fn what_cannot_be_told_stays() {
    let mut world = World::new(3);
    let dead = world.client();
    dead.put(&world, 1, &string(1, 100)).expect("there is room");
    let pointer = world.linked(1).expect("linked");
    world.fence(dead.owner);
    let sweeper = BlockSweeper::new();
    for _ in 0..2 {
        let report = world.sweep_with(&sweeper, |_| ReferenceAnswer::Unknown);
        assert_eq!(report.unknown_count, 1);
        assert_eq!(holder(&world, pointer), dead.owner.word());
        world.publish_all();
    }
    assert_eq!(world.sweep_out().settled_count, 1);
    assert_eq!(account(&world).linked, 1);
}

/// Promise: blocks that a node's sweep had taken over and forgotten are found by the next one.
#[test]
fn what_a_sweep_forgot_is_found_again() {
    let mut world = World::new(3);
    let dead = world.client();
    dead.put(&world, 1, &string(1, 100)).expect("there is room");
    dead.put(&world, 2, &string(1, 200_000))
        .expect("there is room");
    dead.delete(&world, 2).expect("it is there");
    world.fence(dead.owner);
    assert_eq!(world.sweep(&BlockSweeper::new()).taken_count, 64);
    let swept = world.sweep_out();
    assert_eq!((swept.taken_count, swept.freed_count), (64, 64));
    let account = account(&world);
    assert_eq!((account.linked, account.held), (1, 0));
}

/// Promise: a part whose list was freed before it is free, even while the list's words are still in
/// a free piece.
#[test]
fn a_part_that_outlives_its_list_is_freed() {
    let mut world = World::new(4);
    world.fragment();
    let (other, dead) = (world.client(), world.client());
    for (key, client) in [(1, &other), (2, &dead)] {
        let string = string(key.into(), 300_000);
        client.put(&world, key, &string).expect("there is room");
    }
    let list = world.linked(2).expect("linked");
    assert!(matches!(list.form(), Form::List(_)), "{list}");
    let part = RemoteAddr::from_word(world.word(list.place().word_at(BODY_WORD + 1)));
    let chunk = world.layout.chunk_of(part.place()).expect("in a chunk");
    // Another session leases the part's chunk when it is to be freed.
    let endpoint = world.endpoint();
    let allocator = ChunkAllocator::new(&endpoint, &world.layout, world.node);
    let taken = block_on(allocator.take_over(chunk, OwnerWord::FREE), || 0);
    assert!(taken.expect("nothing fails").is_some());
    dead.delete(&world, 2).expect("it is there");
    dead.recycle(&world).expect("nothing fails");
    world.publish_all();
    dead.give_back(&world).expect("nothing fails");
    assert_eq!(
        (dead.store.held().free_count, dead.store.held().limbo_count),
        (0, 1)
    );
    block_on(allocator.release_chunk(chunk), || 0).expect("nothing fails");
    let site = Site::of(&world.layout, list).expect("possible");
    let chunks = world.chunks();
    let entry = chunks.iter().find(|(index, _)| *index == site.chunk);
    assert!(entry.is_some_and(|(_, entry)| entry.free.contains(site.piece)));

    world.fence(dead.owner);
    assert_eq!(world.sweep_out().freed_count, 1);
    account(&world);
}

/// Promise: the sweep reports the number that its blocks wait for, if a session has delayed it for
/// that many successive sweeps. It stops reporting once the number has passed.
#[test]
fn long_waits_are_reported() {
    let mut world = World::new(3);
    let silent = world.client();
    let dead = world.client();
    dead.put(&world, 0, &string(0, 100)).expect("there is room");
    dead.delete(&world, 0).expect("it is there");
    world.fence(dead.owner);
    let sweeper = BlockSweeper::new();
    for sweep_count in 1..=4 {
        let report = world.sweep(&sweeper);
        assert!(report.waiting_count > 0);
        let reports = [sweep_count, sweep_count + 1].map(|it| sweeper.waits_long_for(it));
        assert!(reports[0].is_some() && reports[1].is_none(), "{reports:?}");
    }
    world.publish(silent.owner);
    world.publish(world.node);
    assert_eq!(world.sweep(&sweeper).waiting_count, 0);
    assert_eq!(sweeper.waits_long_for(1), None);
}
