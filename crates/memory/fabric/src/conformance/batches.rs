//! Tests of FABRIC-1: a batch is posted once and costs one round trip, whatever its verbs are.

use crate::conformance::steps::{execute, read};
use crate::conformance::{Backend, Case, at, client};
use crate::{Batch, Cost, Endpoint};

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    vec![
        Case::new(
            "FABRIC-1",
            "verbs of all kinds in one batch are one round trip",
            one_round_trip,
        ),
        Case::new(
            "FABRIC-1",
            "a verb takes any number of words",
            any_number_of_words,
        ),
        Case::new(
            "FABRIC-1",
            "a verb of no words succeeds and touches nothing",
            no_words,
        ),
        Case::new(
            "FABRIC-1",
            "an empty batch is not posted and costs nothing",
            empty_batch,
        ),
        Case::new(
            "FABRIC-1",
            "a batch can be used again after clear, and executed twice",
            used_again,
        ),
    ]
}

fn one_round_trip<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        for index in 0..50 {
            batch.write(at(index * 4), &[index, index, index]);
            batch.read(at(index * 4), 4);
            batch.fetch_add(at(1000 + index), 1);
            batch.compare_swap(at(2000 + index), 0, 1);
        }
        execute(&*endpoint, &mut batch).await;
        assert_eq!(batch.cost().round_trips, 1);
        assert_eq!(batch.cost().verbs, 200);
    })]);
}

fn any_number_of_words<B: Backend>(backend: &B) {
    let memory_word_count = backend.memory_word_count();
    backend.run(vec![client(async |endpoint| {
        let endpoint: &B::Endpoint = &endpoint;
        assert_eq!(
            endpoint.memory_word_count(at(0).node()),
            Some(memory_word_count)
        );
        let sizes = [1, 2, 3, 7, 8, 9, 20, 63, 64, 65, 511, 1000, 8191];
        let mut batch = Batch::new();
        for size in sizes {
            let words: Vec<u64> = (0..size).map(|word| size << 32 | (word + 1)).collect();
            batch.clear();
            batch.write(at(5), &words);
            execute(endpoint, &mut batch).await;
            let image = read(endpoint, 4, size as usize + 2).await;
            assert_eq!(
                image[0], 0,
                "{size} words must not begin before their place"
            );
            assert_eq!(image[1..=size as usize], words);
            assert_eq!(
                image[size as usize + 1],
                0,
                "{size} words must not go past their end"
            );
        }
        let whole = read(endpoint, 0, memory_word_count as usize).await;
        assert_eq!(whole.iter().filter(|word| **word != 0).count(), 8191);
    })]);
}

fn no_words<B: Backend>(backend: &B) {
    let end = backend.memory_word_count();
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        let nothing = batch.read(at(3), 0);
        batch.write(at(3), &[]);
        // The end of the memory is a valid address for no words, like the end of a slice.
        batch.write(at(end), &[]);
        let word = batch.read(at(3), 1);
        execute(&*endpoint, &mut batch).await;
        assert!(batch.words(nothing).is_empty());
        assert_eq!(batch.words(word), [0]);
        let cost = batch.cost();
        assert_eq!((cost.verbs, cost.bytes_read, cost.bytes_written), (4, 8, 0));
    })]);
}

fn empty_batch<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        execute(&*endpoint, &mut batch).await;
        assert_eq!(batch.take_cost(), Cost::default());
    })]);
}

fn used_again<B: Backend>(backend: &B) {
    backend.run(vec![client(async |endpoint| {
        let mut batch = Batch::new();
        for round in 0..10_u64 {
            batch.clear();
            let before = batch.fetch_add(at(9), 1);
            let image = batch.read(at(9), 2);
            execute(&*endpoint, &mut batch).await;
            assert_eq!(batch.previous(before), 2 * round);
            assert_eq!(batch.words(image), [2 * round + 1, 0]);
            execute(&*endpoint, &mut batch).await;
            assert_eq!(batch.previous(before), 2 * round + 1);
            assert_eq!(batch.words(image), [2 * round + 2, 0]);
        }
        assert_eq!(batch.cost().round_trips, 20);
    })]);
}
