//! Tests of FABRIC-8: what is reported complete is visible to every verb posted later by any
//! session.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::Batch;
use crate::conformance::steps::{execute, read_word, rendezvous, write};
use crate::conformance::{Backend, Case, at, client};

const BARRIER: u64 = 0;

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    vec![
        Case::new(
            "FABRIC-8",
            "a client that hears of a completed WRITE sees it",
            announced_outside,
        ),
        Case::new(
            "FABRIC-8",
            "who sees a batch's WRITE sees the batches awaited before it",
            message,
        ),
        Case::new(
            "FABRIC-8",
            "of two that WRITE, then READ the other's word, one sees",
            dekker_write,
        ),
        Case::new(
            "FABRIC-8",
            "of two that FAA, then READ the other's word, one sees",
            dekker_add,
        ),
        Case::new(
            "FABRIC-8",
            "of two that CAS, then READ the other's word, one sees",
            dekker_swap,
        ),
    ]
}

/// Checks visibility if the completion is announced outside of the fabric, as in a reply to a
/// request.
fn announced_outside<B: Backend>(backend: &B) {
    let round_count = 20_000 / B::ROUND_DIVISOR;
    let completed = AtomicU64::new(0);
    let writer = client(async |endpoint| {
        for round in 1..=round_count {
            write(&*endpoint, 100, &[round]).await;
            completed.store(round, Ordering::Release);
        }
    });
    let reader = client(async |endpoint| {
        loop {
            let completed_round = completed.load(Ordering::Acquire);
            let seen = read_word(&*endpoint, 100).await;
            assert!(
                seen >= completed_round,
                "round {completed_round} was complete, but a later READ saw {seen}"
            );
            if completed_round == round_count {
                break;
            }
        }
    });
    backend.run(vec![writer, reader]);
}

fn message<B: Backend>(backend: &B) {
    const DATA: u64 = 100;
    const FLAG: u64 = 108;
    let round_count = 20_000 / B::ROUND_DIVISOR;
    let writer = client(async |endpoint| {
        for round in 1..=round_count {
            write(&*endpoint, DATA, &[round; 3]).await;
            write(&*endpoint, FLAG, &[round]).await;
        }
    });
    let reader = client(async |endpoint| {
        let endpoint: &B::Endpoint = &endpoint;
        loop {
            let flag = read_word(endpoint, FLAG).await;
            for place in DATA..DATA + 3 {
                let data = read_word(endpoint, place).await;
                assert!(data >= flag, "saw flag {flag}, and then data {data}");
            }
            if flag == round_count {
                break;
            }
        }
    });
    backend.run(vec![writer, reader]);
}

/// Runs the store buffering litmus test. Each of two clients changes its own word, awaits that, and
/// reads the other's. If both missed the other's change, both would be complete and neither
/// visible. The two meet every few rounds, so that they run side by side. A round's words count the
/// meetings: a word that is behind the meeting was not yet changed.
fn dekker<B: Backend>(backend: &B, post: fn(&mut Batch, u64, u64)) {
    const ROUND_COUNT: u64 = 6;
    const LINE_SIZE_WORDS: u64 = 8;
    /// Returns the word of a side in a round; both words are in separate cache lines.
    const fn place(round: u64, side: u64) -> u64 {
        LINE_SIZE_WORDS * (1 + 2 * round + side)
    }
    let meeting_count = 8_000 / B::ROUND_DIVISOR;
    let missed: [Vec<AtomicBool>; 2] = [0, 1].map(|_| {
        (0..meeting_count * ROUND_COUNT)
            .map(|_| AtomicBool::default())
            .collect()
    });
    let missed = &missed;
    let side = |own: u64| {
        client(async move |endpoint| {
            let endpoint: &B::Endpoint = &endpoint;
            let mut batch = Batch::new();
            for meeting in 0..meeting_count {
                rendezvous(endpoint, BARRIER, 2, meeting).await;
                for round in 0..ROUND_COUNT {
                    batch.clear();
                    post(&mut batch, place(round, own), meeting + 1);
                    execute(endpoint, &mut batch).await;
                    batch.clear();
                    let other = batch.read(at(place(round, 1 - own)), 1);
                    execute(endpoint, &mut batch).await;
                    let index = (meeting * ROUND_COUNT + round) as usize;
                    let behind = batch.words(other)[0] <= meeting;
                    missed[own as usize][index].store(behind, Ordering::Relaxed);
                }
            }
        })
    };
    backend.run(vec![side(0), side(1)]);
    for (index, (left, right)) in missed[0].iter().zip(&missed[1]).enumerate() {
        let both = left.load(Ordering::Relaxed) && right.load(Ordering::Relaxed);
        assert!(!both, "in round {index} neither saw the other");
    }
}

fn dekker_write<B: Backend>(backend: &B) {
    dekker(backend, |batch, place, value| {
        batch.write_word(at(place), value);
    });
}

fn dekker_add<B: Backend>(backend: &B) {
    dekker(backend, |batch, place, _| {
        batch.fetch_add(at(place), 1);
    });
}

fn dekker_swap<B: Backend>(backend: &B) {
    dekker(backend, |batch, place, value| {
        batch.compare_swap(at(place), value - 1, value);
    });
}
