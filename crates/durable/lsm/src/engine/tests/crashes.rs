//! Guarantees of an engine when power fails.

use std::sync::Arc;

use super::{Engine, Model, any_options, assert_is, key_of, maintain_all, open, value_of};
use crate::engine::Durability;
use crate::storage::{CrashStorage, Fault, FaultyStorage, Operation, PowerLoss, Storage};
use crate::tree::{mix, random_numbers};

pub(super) const KEY_COUNT: u64 = 60;

/// Writes in order, and how many of them must be present.
#[derive(Default)]
pub(super) struct History {
    /// Contents at opening; `None` if opening failed.
    pub(super) start: Option<Model>,
    pub(super) writes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(super) acknowledged_count: usize,
}

/// Returns an engine's contents, by a scan and by gets of all keys, which must agree.
pub(super) fn found(engine: &Engine, context: &str) -> Model {
    let mut model = Model::new();
    for number in 0..KEY_COUNT {
        let key = key_of(number, KEY_COUNT);
        let value = engine.get(&key);
        if let Some(value) = value.unwrap_or_else(|error| panic!("{context}: {error}")) {
            model.insert(key, value);
        }
    }
    assert_is(&engine.snapshot(), &model, context);
    model
}

/// Writes, flushes and merges until the end or a power failure.
fn live(storage: &Arc<dyn Storage>, seed: u64, context: &str) -> History {
    let mut history = History::default();
    let Ok(engine) = Engine::open(Arc::clone(storage), any_options(mix(seed))) else {
        return history;
    };
    // A failure without consequences may have been the one that turned the power off.
    if storage.list().is_err() {
        return history;
    }
    history.start = Some(found(&engine, context));
    for number in random_numbers(seed).take(220) {
        let key = key_of(number >> 20, KEY_COUNT);
        let is_synced = (number >> 60).is_multiple_of(4);
        let durability = if is_synced {
            Durability::Sync
        } else {
            Durability::Memory
        };
        let done = match number % 32 {
            0..=19 => {
                let size_bytes = match number >> 8 & 31 {
                    0 | 1 => 700_000,
                    2..=4 => 9_000,
                    small => small as usize * 4,
                };
                let value = value_of(number, size_bytes);
                history.writes.push((key.clone(), Some(value.clone())));
                engine.put(&key, &value, durability)
            }
            20..=24 => {
                history.writes.push((key.clone(), None));
                engine.delete(&key, durability)
            }
            25..=29 => {
                // If the engine has stopped, the next write fails.
                let _ = engine.maintain();
                continue;
            }
            30 => {
                engine.freeze();
                continue;
            }
            _ => engine.sync(),
        };
        if done.is_err() {
            return history;
        }
        if is_synced || number % 32 == 31 {
            history.acknowledged_count = history.writes.len();
        }
    }
    history
}

/// Returns true if a model is one of the states of a history, from the last acknowledged write on.
pub(super) fn is_of(model: &Model, history: &History) -> bool {
    let mut state = history.start.clone().unwrap_or_default();
    let writes = history.writes.iter().enumerate();
    let mut is_one = history.acknowledged_count == 0 && *model == state;
    for (index, (key, value)) in writes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
        is_one |= index + 1 >= history.acknowledged_count && *model == state;
    }
    is_one
}

/// Promise: wherever power fails or the process ends, and whatever survives, everything
/// acknowledged is present. The contents are those after some later write. The same holds after
/// further failures, and after everything was merged.
#[test]
fn an_engine_survives_losses_of_power() {
    let (mut late_count, mut lost_count) = (0, 0);
    for seed in 0..60 {
        let mut storage = CrashStorage::new(seed);
        let mut before = History::default();
        let mut numbers = random_numbers(!seed);
        for generation in 0..4 {
            let number = numbers.next().expect("endless");
            // A process that ends leaves written data, synced or not, and the next one reads it.
            let ends_with_power = generation == 2 || generation < 2 && number >> 32 & 3 != 0;
            let cut = if ends_with_power {
                number % 260 + 1
            } else {
                u64::MAX
            };
            let context = format!("seed {seed}, generation {generation}, cut {cut}");
            storage.cut_power_at(cut);
            let shared: Arc<dyn Storage> = Arc::new(storage.clone());
            let history = live(&shared, seed * 10 + generation, &context);
            if let Some(start) = &history.start {
                assert!(is_of(start, &before), "{context}");
                before = history;
            }
            assert!(
                ends_with_power || before.start.is_some(),
                "{context}: it opens"
            );
            let unsure = before.writes.len() - before.acknowledged_count;
            late_count += usize::from(unsure > 0);
            lost_count += unsure;
            if ends_with_power {
                storage = storage.lose_power(PowerLoss::Any);
            }
        }
        let context = format!("seed {seed}, at the end");
        let engine = open(&storage).expect("it is whole");
        let model = found(&engine, &context);
        assert!(is_of(&model, &before), "{context}");
        engine.merge_all().expect("no fault is set");
        maintain_all(&engine);
        assert_is(&engine.snapshot(), &model, &context);
    }
    assert!(
        late_count > 20 && lost_count > 100,
        "{late_count}, {lost_count}"
    );
}

/// Operations whose failure must not make a reader see wrong data.
const CHANGES: &[Operation] = &[
    Operation::Create,
    Operation::Rename,
    Operation::Remove,
    Operation::SyncNames,
    Operation::Write,
    Operation::Sync,
    Operation::SetSize,
    Operation::Discard,
];

/// Promise: whichever change of a file fails, once or from then on, everything acknowledged is
/// present after reopening. The contents are those after some later write, also if power fails
/// then.
#[test]
fn an_engine_survives_failures() {
    let mut failed_count = 0;
    for seed in 0..30 {
        let mut storage = CrashStorage::new(seed);
        let mut before = History::default();
        let mut numbers = random_numbers(seed + 1_000);
        for generation in 0..4 {
            let number = numbers.next().expect("endless");
            let context = format!("seed {seed}, generation {generation}");
            let faulty = FaultyStorage::new(Arc::new(storage.clone()));
            let fault = faulty.set(Fault::Fail {
                operations: CHANGES,
                file: None,
                nth: number % 200 + 1,
                times: if number >> 32 & 1 == 0 { 1 } else { u64::MAX },
            });
            let shared: Arc<dyn Storage> = Arc::new(faulty.clone());
            let history = live(&shared, seed * 10 + generation, &context);
            failed_count += usize::from(faulty.hit_count(fault) > 0);
            if let Some(start) = &history.start {
                assert!(is_of(start, &before), "{context}");
                before = history;
            }
            if number >> 33 & 1 == 0 {
                storage = storage.lose_power(PowerLoss::Any);
            }
        }
        let engine = open(&storage).expect("it is whole");
        let model = found(&engine, &format!("seed {seed}, at the end"));
        assert!(is_of(&model, &before), "seed {seed}, at the end");
    }
    assert!(failed_count > 60, "{failed_count}");
}
