//! Tests of random batches of one client against a model that executes them on a vector.
//!
//! If FABRIC-2 leaves an order open (a WRITE, CAS or FAA after a READ, CAS or FAA), the verb is
//! posted with `fence`, so there is one correct result.

use std::borrow::Cow;
use std::sync::Mutex;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

use crate::conformance::{Backend, Case, at, client};
use crate::{AtomicSlot, Batch, Cost, Endpoint, ReadSlot};

/// Number of places for verbs at the start of the memory and, as negative places, at its end.
const PLACE_COUNT: i64 = 24;
const BATCH_COUNT_MAX: usize = 12;
const CASE_COUNT: u32 = 200;

pub(super) fn cases<B: Backend>() -> Vec<Case<B>> {
    let promise = "random batches bring, leave and cost what a model says";
    vec![Case::new(
        "FABRIC-1, FABRIC-2, FABRIC-5, FABRIC-9",
        promise,
        random_batches,
    )]
}

#[derive(Clone, Debug)]
enum Step {
    Read {
        place: i64,
        word_count: usize,
    },
    Write {
        place: i64,
        words: Vec<u64>,
    },
    CompareSwap {
        place: i64,
        expected: u64,
        desired: u64,
    },
    FetchAdd {
        place: i64,
        delta: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    // Few values, so that a CAS often finds the value that it expects.
    let value = || prop_oneof![4 => 0..4_u64, 1 => any::<u64>()];
    let place = -PLACE_COUNT..PLACE_COUNT;
    prop_oneof![
        (place.clone(), 0..12_usize)
            .prop_map(|(place, word_count)| Step::Read { place, word_count }),
        (place.clone(), proptest::collection::vec(value(), 0..12))
            .prop_map(|(place, words)| Step::Write { place, words }),
        (place.clone(), value(), value()).prop_map(|(place, expected, desired)| {
            Step::CompareSwap {
                place,
                expected,
                desired,
            }
        }),
        (place, value()).prop_map(|(place, delta)| Step::FetchAdd { place, delta }),
    ]
}

/// The memory as FABRIC-1 and FABRIC-2 describe it.
struct Model {
    words: Vec<u64>,
}

/// Position of a verb's result in the batch.
enum Slot {
    Words(ReadSlot),
    Previous(AtomicSlot),
    Nothing,
}

impl Slot {
    fn words<'a>(&self, batch: &'a Batch) -> Cow<'a, [u64]> {
        match self {
            Self::Words(slot) => batch.words(*slot).into(),
            Self::Previous(slot) => vec![batch.previous(*slot)].into(),
            Self::Nothing => Cow::default(),
        }
    }
}

impl Model {
    /// Returns the index of a place; places near the end reach beyond it when words are added.
    fn index(&self, place: i64) -> u64 {
        let base = if place < 0 {
            self.words.len() as u64
        } else {
            0
        };
        base.wrapping_add_signed(place)
    }

    fn post(&self, step: &Step, batch: &mut Batch) -> Slot {
        match step {
            Step::Read { place, word_count } => {
                Slot::Words(batch.read(at(self.index(*place)), *word_count))
            }
            Step::Write { place, words } => {
                batch.write(at(self.index(*place)), words);
                Slot::Nothing
            }
            Step::CompareSwap {
                place,
                expected,
                desired,
            } => {
                let index = self.index(*place);
                Slot::Previous(batch.compare_swap(at(index), *expected, *desired))
            }
            Step::FetchAdd { place, delta } => {
                Slot::Previous(batch.fetch_add(at(self.index(*place)), *delta))
            }
        }
    }

    /// Returns the result of the step; `None` if it must be refused.
    fn execute(&mut self, step: &Step, cost: &mut Cost) -> Option<Vec<u64>> {
        let (place, word_count) = match step {
            Step::Read { place, word_count } => (*place, *word_count),
            Step::Write { place, words } => (*place, words.len()),
            Step::CompareSwap { place, .. } | Step::FetchAdd { place, .. } => (*place, 1),
        };
        let start = self.index(place) as usize;
        let target = self.words.get_mut(start..start + word_count)?;
        let before = target.to_vec();
        match step {
            Step::Read { .. } => {
                cost.bytes_read += 8 * word_count as u64;
                return Some(before);
            }
            Step::Write { words, .. } => {
                target.copy_from_slice(words);
                cost.bytes_written += 8 * word_count as u64;
                return Some(Vec::new());
            }
            Step::CompareSwap {
                expected, desired, ..
            } if target[0] == *expected => {
                target[0] = *desired;
            }
            Step::CompareSwap { .. } => {}
            Step::FetchAdd { delta, .. } => target[0] = target[0].wrapping_add(*delta),
        }
        cost.atomics += 1;
        Some(before)
    }
}

/// Executes the steps as one batch and compares everything observable.
async fn run_batch<E: Endpoint>(endpoint: &E, model: &mut Model, steps: &[Step]) -> TestCaseResult {
    let mut batch = Batch::new();
    let mut brought = Vec::new();
    let mut refused_at = None;
    let mut fence_due = false;
    let verbs = steps.len() as u64;
    let trips = u64::from(verbs > 0);
    let mut cost = Cost {
        round_trips: trips,
        doorbells: trips,
        verbs,
        ..Cost::default()
    };
    for (index, step) in steps.iter().enumerate() {
        if fence_due && !matches!(step, Step::Read { .. }) {
            batch.fence();
        }
        fence_due |= !matches!(step, Step::Write { .. });
        let slot = model.post(step, &mut batch);
        if refused_at.is_none() {
            match model.execute(step, &mut cost) {
                Some(words) => brought.push((slot, words)),
                None => refused_at = Some(index),
            }
        }
    }
    let outcome = endpoint.execute(&mut batch).await;
    let executed = outcome
        .as_ref()
        .err()
        .map(crate::BatchError::executed_verb_count);
    prop_assert_eq!(executed, refused_at, "{:?}", outcome);
    for (slot, words) in brought {
        prop_assert_eq!(slot.words(&batch), words);
    }
    // The cost of a refused batch depends on where the backend checks it.
    if refused_at.is_none() {
        prop_assert_eq!(batch.take_cost(), cost);
    }
    Ok(())
}

/// Compares the memory's words with the model's.
async fn compare<E: Endpoint>(endpoint: &E, model: &Model) -> TestCaseResult {
    let mut batch = Batch::new();
    let whole = batch.read(at(0), model.words.len());
    let read = endpoint.execute(&mut batch).await;
    prop_assert!(read.is_ok(), "{:?}", read);
    prop_assert!(
        batch.words(whole) == model.words,
        "the memory is not as the model has it"
    );
    Ok(())
}

fn random_batches<B: Backend>(backend: &B) {
    let config = Config {
        cases: CASE_COUNT / B::ROUND_DIVISOR as u32,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let batches =
        proptest::collection::vec(proptest::collection::vec(step(), 0..10), 1..BATCH_COUNT_MAX);
    let result = runner.run(&batches, |batches| {
        let outcome = Mutex::new(Ok(()));
        backend.run(vec![client(async |endpoint| {
            *outcome.lock().expect("one client") = run_batches(&*endpoint, &batches).await;
        })]);
        outcome.into_inner().expect("one client")
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Executes batches, starting with the memory that the previous run left.
async fn run_batches<E: Endpoint>(endpoint: &E, batches: &[Vec<Step>]) -> TestCaseResult {
    let word_count = endpoint.memory_word_count(at(0).node());
    let mut batch = Batch::new();
    let whole = batch.read(at(0), word_count.expect("node 0 has a region") as usize);
    let read = endpoint.execute(&mut batch).await;
    prop_assert!(read.is_ok(), "{:?}", read);
    let mut model = Model {
        words: batch.words(whole).to_vec(),
    };
    for steps in batches {
        run_batch(endpoint, &mut model, steps).await?;
    }
    compare(endpoint, &model).await
}
