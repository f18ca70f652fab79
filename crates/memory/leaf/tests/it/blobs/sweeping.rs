//! The sweep of what the dead held (BV8).

use std::cell::RefCell;

use farleaf_block::sweep::{Answer, BlockSweepReport, BlockSweeper};
use farleaf_block::{BODY_WORD, FatPointer, Form, HOLDER_WORD, Role, SETTLED, Site};
use farleaf_executor::block_on;
use farleaf_region::allocation::ChunkAllocator;
use farleaf_types::{OwnerWord, RemoteAddr};

use crate::account::{account, check_whole};
use crate::world::{World, string};

fn holder(world: &World, pointer: FatPointer) -> u64 {
    world.word(pointer.place().word_at(HOLDER_WORD))
}

/// Promise: what is referred to is settled, and is not looked at again; what is not is taken over,
/// and free when all have passed. Who asks gets pointer, role and locator as they were written.
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
            [1] => Answer::Unreferred,
            _ => Answer::Referred,
        }
    });
    let asked = asked.into_inner();
    let expected = pointers.into_iter().zip([0, 1, 2]);
    let expected: Vec<_> = expected
        .map(|(pointer, key)| (pointer, vec![key]))
        .collect();
    assert_eq!(asked, expected);
    assert_eq!((report.settled_count, report.unknown_count), (2, 0));
    // The one, and 61 pieces that it had not written to.
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

/// Promise (BV3): a settled block that is unlinked is its unlinker's, whatever the sweep thought.
#[test]
fn a_settled_block_can_be_unlinked() {
    let mut world = World::new(3);
    let (other, dead) = (world.client(), world.client());
    dead.put(&world, 1, &string(1, 100)).expect("there is room");
    world.fence(dead.owner);
    let sweeper = BlockSweeper::new();
    // The page is asked for, and the block is unlinked before the holder is swapped.
    let pointer = world.linked(1).expect("linked");
    let report = world.sweep_with(&sweeper, |question| {
        if question.pointer != pointer {
            return Answer::Unreferred;
        }
        other.delete(&world, 1).expect("it is there");
        Answer::Referred
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

/// Promise (W6, W7): what nobody can tell stays as it is, and is asked for again.
#[test]
fn what_cannot_be_told_stays() {
    let mut world = World::new(3);
    let dead = world.client();
    dead.put(&world, 1, &string(1, 100)).expect("there is room");
    let pointer = world.linked(1).expect("linked");
    world.fence(dead.owner);
    let sweeper = BlockSweeper::new();
    for _ in 0..2 {
        let report = world.sweep_with(&sweeper, |_| Answer::Unknown);
        assert_eq!(report.unknown_count, 1);
        assert_eq!(holder(&world, pointer), dead.owner.word());
        world.publish_all();
    }
    assert_eq!(world.sweep_out().settled_count, 1);
    assert_eq!(account(&world).linked, 1);
}

/// Promise (W5): what a node's sweep had taken over, and has forgotten, is found by the next.
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

/// Promise (BV9): a part whose list has gone before it is nobody's, also while the words of that
/// list still lie in a piece that is free.
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
    // Somebody looks at the part's chunk just when it is to be free.
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
    block_on(allocator.let_go(chunk), || 0).expect("nothing fails");
    let site = Site::of(&world.layout, list).expect("possible");
    let chunks = world.chunks();
    let entry = chunks.iter().find(|(index, _)| *index == site.chunk);
    assert!(entry.is_some_and(|(_, entry)| entry.free.contains(site.piece)));

    world.fence(dead.owner);
    assert_eq!(world.sweep_out().freed_count, 1);
    account(&world);
}

/// Promise (S4): the sweep says for which number its blocks wait when a session has kept it from
/// being reached for so many sweeps in a row, and no longer once that has passed.
#[test]
fn who_is_waited_for_long_is_told() {
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
        let told = [sweep_count, sweep_count + 1].map(|it| sweeper.waits_long_for(it));
        assert!(told[0].is_some() && told[1].is_none(), "{told:?}");
    }
    world.publish(silent.owner);
    world.publish(world.node);
    assert_eq!(world.sweep(&sweeper).waiting_count, 0);
    assert_eq!(sweeper.waits_long_for(1), None);
}
