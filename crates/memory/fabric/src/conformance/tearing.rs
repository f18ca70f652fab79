//! Tests of FABRIC-3: the word is the only unit of atomicity.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::Batch;
use crate::conformance::steps::execute;
use crate::conformance::{Backend, Case, at, client};

const FIRST: u64 = 61;
const WORD_COUNT: u64 = 21;
const WRITER_COUNT: u64 = 2;
const ROUND_COUNT: u64 = 60_000;

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    vec![Case::new(
        "FABRIC-3",
        "every word of a READ is one that was written there, whole",
        never_torn,
    )]
}

/// Returns the word that a writer stores at a place in a round. The lower half is the complement of
/// the upper half, so that a mix of two words is detected.
fn word(writer: u64, place: u64, round: u64) -> u64 {
    let half = (writer << 24) | (place << 16) | round;
    (half << 32) | (!half & 0xFFFF_FFFF)
}

fn check(word: u64, place: u64) {
    if word == 0 {
        return;
    }
    let half = word >> 32;
    assert_eq!(half, !word & 0xFFFF_FFFF, "the word {word:#018x} is torn");
    assert_eq!(
        (half >> 16) & 0xFF,
        place,
        "{word:#018x} was written to another place"
    );
    assert!(
        (1..=WRITER_COUNT).contains(&(half >> 24)),
        "nobody wrote {word:#018x}"
    );
    assert!(
        (1..=ROUND_COUNT).contains(&(half & 0xFFFF)),
        "nobody wrote {word:#018x} yet"
    );
}

fn never_torn<B: Backend>(backend: &B) {
    let writing = AtomicU64::new(WRITER_COUNT);
    let writing = &writing;
    let writers = (1..=WRITER_COUNT).map(|writer| {
        client(async move |endpoint| {
            let mut batch = Batch::new();
            for round in 1..=ROUND_COUNT / B::ROUND_DIVISOR {
                let words: Vec<_> = (0..WORD_COUNT)
                    .map(|place| word(writer, place, round))
                    .collect();
                batch.clear();
                batch.write(at(FIRST), &words);
                execute(&*endpoint, &mut batch).await;
            }
            writing.fetch_sub(1, Ordering::Release);
        })
    });
    let reader = client(async move |endpoint| {
        let mut batch = Batch::new();
        loop {
            let last = writing.load(Ordering::Acquire) == 0;
            batch.clear();
            let image = batch.read(at(FIRST), WORD_COUNT as usize);
            execute(&*endpoint, &mut batch).await;
            (0..)
                .zip(batch.words(image))
                .for_each(|(place, word)| check(*word, place));
            if last {
                assert!(!batch.words(image).contains(&0), "a word was never written");
                break;
            }
        }
    });
    backend.run(writers.chain([reader]).collect());
}
