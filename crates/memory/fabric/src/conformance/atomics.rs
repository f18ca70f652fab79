//! Tests of FABRIC-4: CAS and FAA of all clients of a node are atomic among each other.

use std::sync::Mutex;

use crate::conformance::steps::{compare_swap, fetch_add, read, read_word, write};
use crate::conformance::{Backend, Case, client};

const CLIENT_COUNT: u64 = 4;
const ROUND_COUNT: u64 = 3_000;

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    vec![
        Case::new(
            "FABRIC-4",
            "FAA wraps, CAS swaps only what it expects, both tell what was",
            alone,
        ),
        Case::new(
            "FABRIC-4",
            "FAAs sum exactly, and no two bring the same number",
            sums,
        ),
        Case::new(
            "FABRIC-4",
            "of all CASs that expect the same word, one succeeds",
            exclusive,
        ),
        Case::new(
            "FABRIC-4",
            "CASs and FAAs on one word lose nothing",
            cas_against_faa,
        ),
        Case::new(
            "FABRIC-4",
            "what is done between a lock's CAS and its release is alone",
            lock,
        ),
    ]
}

fn alone<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let endpoint: &B::Endpoint = &endpoint;
        write(endpoint, 5, &[u64::MAX - 1, 77]).await;
        assert_eq!(fetch_add(endpoint, 5, 3).await, u64::MAX - 1);
        assert_eq!(fetch_add(endpoint, 5, u64::MAX).await, 1);
        assert_eq!(compare_swap(endpoint, 5, 1, 2).await, Err(0));
        assert_eq!(compare_swap(endpoint, 5, 0, u64::MAX).await, Ok(()));
        assert_eq!(compare_swap(endpoint, 5, u64::MAX, u64::MAX).await, Ok(()));
        assert_eq!(
            read(endpoint, 4, 3).await,
            [0, u64::MAX, 77],
            "no carry into neighbors"
        );
    })]);
}

fn sums<B: Backend>(backend: &B) {
    let round_count = ROUND_COUNT / B::ROUND_DIVISOR;
    let taken = Mutex::new(Vec::new());
    let taken_by_all = &taken;
    let adder = |_| {
        client(async move |endpoint| {
            let mut mine = Vec::new();
            for _ in 0..round_count {
                mine.push(fetch_add(&*endpoint, 40, 1).await);
            }
            assert!(mine.is_sorted(), "a counter that only grows went back");
            taken_by_all
                .lock()
                .expect("no client panicked")
                .extend(mine);
        })
    };
    backend.run((0..CLIENT_COUNT).map(adder).collect());
    let mut taken = taken.into_inner().expect("no client panicked");
    taken.sort_unstable();
    assert!(
        taken.into_iter().eq(0..CLIENT_COUNT * round_count),
        "a number is missing or doubled"
    );
}

fn exclusive<B: Backend>(backend: &B) {
    let round_count = ROUND_COUNT / B::ROUND_DIVISOR;
    let won = Mutex::new(Vec::new());
    let won_by_all = &won;
    let swapper = |number: u64| {
        client(async move |endpoint| {
            let mut mine = Vec::new();
            let mut current = 0;
            while current >> 8 < round_count {
                let next = (((current >> 8) + 1) << 8) | number;
                match compare_swap(&*endpoint, 40, current, next).await {
                    Ok(()) => {
                        mine.push(current >> 8);
                        current = next;
                    }
                    Err(other) => {
                        assert!(
                            other >> 8 > current >> 8,
                            "a CAS failed on what it expected"
                        );
                        current = other;
                    }
                }
            }
            won_by_all.lock().expect("no client panicked").extend(mine);
        })
    };
    backend.run((1..=CLIENT_COUNT).map(swapper).collect());
    let mut won = won.into_inner().expect("no client panicked");
    won.sort_unstable();
    assert!(
        won.into_iter().eq(0..round_count),
        "a round had no winner, or two"
    );
}

fn cas_against_faa<B: Backend>(backend: &B) {
    let round_count = ROUND_COUNT / B::ROUND_DIVISOR;
    let adder = || {
        client(async |endpoint| {
            for _ in 0..round_count {
                fetch_add(&*endpoint, 40, 1).await;
            }
        })
    };
    let swapper = || {
        client(async |endpoint| {
            let mut current = 0;
            for _ in 0..round_count {
                while let Err(other) =
                    compare_swap(&*endpoint, 40, current, current.wrapping_add(1 << 32)).await
                {
                    current = other;
                }
            }
        })
    };
    backend.run(vec![adder(), swapper(), adder(), swapper()]);
    backend.run(vec![client(async |endpoint| {
        let word = read_word(&*endpoint, 40).await;
        assert_eq!(
            (word >> 32, word & 0xFFFF_FFFF),
            (2 * round_count, 2 * round_count)
        );
    })]);
}

/// Promise: the write to a leaf is atomic: CAS on the lock, READ, WRITE, and a WRITE that frees the
/// lock.
fn lock<B: Backend>(backend: &B) {
    const LOCK: u64 = 40;
    const BALANCE: u64 = 48;
    let turn_count = 500 / B::ROUND_DIVISOR;
    let holder = |number: u64| {
        client(async move |endpoint| {
            let endpoint: &B::Endpoint = &endpoint;
            for _ in 0..turn_count {
                while compare_swap(endpoint, LOCK, 0, number).await.is_err() {
                    std::thread::yield_now();
                }
                let balance = read_word(endpoint, BALANCE).await;
                write(endpoint, BALANCE, &[balance + 1]).await;
                assert_eq!(
                    read_word(endpoint, LOCK).await,
                    number,
                    "the lock was taken away"
                );
                write(endpoint, LOCK, &[0]).await;
            }
        })
    };
    backend.run((1..=CLIENT_COUNT).map(holder).collect());
    backend.run(vec![client(async |endpoint| {
        assert_eq!(
            read_word(&*endpoint, BALANCE).await,
            CLIENT_COUNT * turn_count
        );
    })]);
}
