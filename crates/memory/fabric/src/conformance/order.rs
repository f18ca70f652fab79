//! Tests of FABRIC-2: the order in which the verbs of a batch take effect.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::Batch;
use crate::conformance::steps::{execute, read_word};
use crate::conformance::{Backend, Case, at, client};

/// Number of rounds of a writer whose progress a reader observes.
const ROUND_COUNT: u64 = 20_000;

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    vec![
        Case::new(
            "FABRIC-2",
            "a READ sees every earlier verb of its batch",
            read_sees_earlier,
        ),
        Case::new(
            "FABRIC-2",
            "WRITE, CAS and FAA on one word take effect in posting order",
            one_word,
        ),
        Case::new(
            "FABRIC-2",
            "a fenced verb takes effect after earlier READs and atomics",
            fenced,
        ),
        Case::new(
            "FABRIC-2",
            "nobody sees a WRITE without the WRITEs posted before it",
            write_write,
        ),
        Case::new(
            "FABRIC-2",
            "nobody sees a fenced verb without the verbs posted before it",
            mixed,
        ),
    ]
}

fn read_sees_earlier<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        batch.write(at(10), &[1, 2, 3]);
        let after_write = batch.read(at(9), 5);
        batch.compare_swap(at(20), 0, 7);
        let after_swap = batch.read(at(20), 1);
        batch.fetch_add(at(30), 5);
        let after_add = batch.read(at(30), 1);
        batch.write_word(at(11), 9);
        let after_second_write = batch.read(at(10), 3);
        execute(&*endpoint, &mut batch).await;
        assert_eq!(batch.words(after_write)[0], 0);
        assert_eq!(batch.words(after_write)[1], 1);
        // A later WRITE may overtake the READ, so this word is the old or the new one.
        assert!([2, 9].contains(&batch.words(after_write)[2]));
        assert_eq!(batch.words(after_write)[3..], [3, 0]);
        assert_eq!(batch.words(after_swap), [7]);
        assert_eq!(batch.words(after_add), [5]);
        assert_eq!(batch.words(after_second_write), [1, 9, 3]);
    })]);
}

fn one_word<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        batch.write_word(at(8), 10);
        let add = batch.fetch_add(at(8), 5);
        batch.fence();
        let swap = batch.compare_swap(at(8), 15, 20);
        batch.fence();
        let no_swap = batch.compare_swap(at(8), 15, 30);
        batch.fence();
        batch.write(at(8), &[40, 41]);
        batch.write_word(at(8), 50);
        let last = batch.read(at(8), 2);
        execute(&*endpoint, &mut batch).await;
        assert_eq!(batch.previous(add), 10);
        assert_eq!(batch.previous(swap), 15);
        assert_eq!(batch.previous(no_swap), 20);
        assert_eq!(batch.words(last), [50, 41]);
    })]);
}

fn fenced<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        for round in 0..1000_u64 {
            batch.clear();
            let image = batch.read(at(64), 16);
            batch.fence();
            batch.write(at(64), &[round + 1; 16]);
            let swap = batch.compare_swap(at(80), round, round + 1);
            batch.fence();
            batch.write_word(at(80), round + 1);
            execute(&*endpoint, &mut batch).await;
            assert_eq!(
                batch.words(image),
                [round; 16],
                "a fenced WRITE overtook a READ"
            );
            assert_eq!(batch.previous(swap), round, "a fenced WRITE overtook a CAS");
        }
    })]);
}

/// Checks the order of writes: a writer posts verbs on `first`, then on `second`, in one batch. A
/// reader that sees round n of the second word, and then reads the first, must see at least round n
/// there.
fn watch<B: Backend>(backend: &B, first: u64, second: u64, post: fn(&mut Batch, [u64; 2], u64)) {
    let ended = AtomicBool::new(false);
    let round_count = ROUND_COUNT / B::ROUND_DIVISOR;
    let writer = client(async |endpoint| {
        let mut batch = Batch::new();
        for round in 1..=round_count {
            batch.clear();
            post(&mut batch, [first, second], round);
            execute(&*endpoint, &mut batch).await;
        }
        ended.store(true, Ordering::Release);
    });
    let reader = client(async |endpoint| {
        let endpoint: &B::Endpoint = &endpoint;
        loop {
            let last = ended.load(Ordering::Acquire);
            let seen = read_word(endpoint, second).await;
            let before_it = read_word(endpoint, first).await;
            assert!(
                before_it >= seen,
                "saw round {seen}, but not what was posted before it"
            );
            if last {
                assert_eq!((before_it, seen), (round_count, round_count));
                break;
            }
        }
    });
    backend.run(vec![writer, reader]);
}

fn write_write<B: Backend>(backend: &B) {
    let post = |batch: &mut Batch, [first, second]: [u64; 2], round| {
        batch.write_word(at(first), round);
        batch.write_word(at(second), round);
    };
    // Against and along the order of addresses, within a cache line and far apart.
    watch(backend, 500, 8, post);
    watch(backend, 1001, 1000, post);
    watch(backend, 2000, 2001, post);
}

fn mixed<B: Backend>(backend: &B) {
    watch(backend, 500, 8, |batch, [first, second], round| {
        batch.compare_swap(at(first), round - 1, round);
        batch.fence();
        batch.write_word(at(second), round);
    });
    watch(backend, 1500, 1008, |batch, [first, second], round| {
        batch.write_word(at(first), round);
        batch.fetch_add(at(second), 1);
    });
    watch(backend, 2500, 2008, |batch, [first, second], round| {
        batch.write_word(at(first), round);
        batch.compare_swap(at(second), round - 1, round);
    });
}
