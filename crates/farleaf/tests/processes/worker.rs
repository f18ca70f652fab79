//! Worker process: mixed operations on one table, each checked against what the worker knows.
//!
//! The keys of all classes alternate, so that every leaf has keys of all workers. Each class has
//! only one writer, which therefore knows every value in it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use farleaf::{Insertion, Session, Swap, Table, Update};

use crate::BoundedRandom;
use crate::children::stop_flag;
use crate::journal::{Intent, Journal};
use crate::node::open_pool;

/// Table that all workers use.
pub(crate) const TABLE: &str = "mixed";
/// Keys of a class among which half of the operations choose, so that they split the same leaves.
const WINDOW_COUNT: u64 = 2048;
/// Operations after which the window moves.
const WINDOW_OPERATION_COUNT: u64 = 4096;

/// Distribution of a run's keys to classes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyDistribution {
    pub(crate) class_count: u64,
    pub(crate) keys_per_class: u64,
}

impl KeyDistribution {
    /// Returns all keys in order, each as its class and its index within the class.
    pub(crate) fn all(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.keys_per_class)
            .flat_map(move |index| (0..self.class_count).map(move |class| (class, index)))
    }

    fn key_count(self) -> u64 {
        self.class_count * self.keys_per_class
    }

    /// Returns a key. Keys are spread over the whole domain, including both ends.
    pub(crate) fn key(self, class: u64, index: u64) -> u64 {
        let ordinal = index * self.class_count + class;
        if ordinal + 1 == self.key_count() {
            return u64::MAX;
        }
        ordinal * (u64::MAX / self.key_count())
    }

    /// Returns the index of a key, if it belongs to this class.
    fn index_of(self, class: u64, key: u64) -> Option<u64> {
        let ordinal = match key {
            u64::MAX => self.key_count() - 1,
            key => key / (u64::MAX / self.key_count()),
        };
        (ordinal % self.class_count == class).then_some(ordinal / self.class_count)
    }
}

/// Parameters of a worker's process.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pub(crate) pool: String,
    pub(crate) deal: KeyDistribution,
    pub(crate) first_class: u64,
    pub(crate) thread_count: u64,
    pub(crate) seed: u64,
    pub(crate) directory: PathBuf,
}

impl Orders {
    pub(crate) fn text(&self) -> String {
        format!(
            "{} {} {} {} {} {} {}",
            self.pool,
            self.deal.class_count,
            self.deal.keys_per_class,
            self.first_class,
            self.thread_count,
            self.seed,
            self.directory.display()
        )
    }

    fn parse(words: &[&str]) -> Self {
        let number = |index: usize| words[index].parse().expect("a number");
        Self {
            pool: words[0].to_owned(),
            deal: KeyDistribution {
                class_count: number(1),
                keys_per_class: number(2),
            },
            first_class: number(3),
            thread_count: number(4),
            seed: number(5),
            directory: PathBuf::from(words[6]),
        }
    }
}

/// Runs [`ChildRole::Worker`](crate::children::ChildRole::Worker): one session and one class per
/// thread.
pub(crate) fn play(arguments: &[&str]) {
    let orders = Orders::parse(arguments);
    let stopped = stop_flag();
    let pool = open_pool(&orders.pool);
    std::thread::scope(|scope| {
        for thread in 0..orders.thread_count {
            let (pool, orders) = (&pool, &orders);
            scope.spawn(move || {
                let class = orders.first_class + thread;
                let session = pool.session().expect("a session");
                let mut worker = Worker::new(&session, orders, &orders.directory, class);
                worker.resolve();
                worker.work(stopped);
            });
        }
    });
}

struct Worker {
    table: Table,
    journal: Journal,
    dice: BoundedRandom,
    deal: KeyDistribution,
    class: u64,
    /// Values ascend, also from a worker to its successor, and have their class in the last byte.
    last_value: u64,
    window: u64,
    records: Vec<(u64, u64)>,
}

fn known(value: u64) -> Option<u64> {
    (value != 0).then_some(value)
}

impl Worker {
    fn new(session: &Session, orders: &Orders, directory: &Path, class: u64) -> Self {
        let journal = Journal::open(directory, class);
        let highest = journal.values.iter().copied().max().unwrap_or(0);
        Self {
            table: session.open_table(TABLE).expect("the scene made it"),
            last_value: highest.max(journal.intent.new).max(class + 1),
            journal,
            dice: BoundedRandom::new(orders.seed ^ class << 32),
            deal: orders.deal,
            class,
            window: 0,
            records: Vec::new(),
        }
    }

    /// Determines whether the killed predecessor's last write took effect, which must not change
    /// later.
    fn resolve(&mut self) {
        let Some(intent) = self.journal.in_doubt() else {
            return;
        };
        let found = self.timed(|worker| worker.table.get(worker.key(intent.index)));
        let found = found.expect("a get").unwrap_or(0);
        assert!(
            found == intent.old || found == intent.new,
            "class {}: {found} is in the table after {intent:?}",
            self.class
        );
        self.journal.intend(Intent::default());
        self.journal.acknowledge(intent.index, found);
    }

    fn work(&mut self, stopped: &AtomicBool) {
        while !stopped.load(Ordering::Relaxed) {
            let done = self.journal.tally.operation_count;
            if done.is_multiple_of(WINDOW_OPERATION_COUNT) {
                self.window = self.dice.below(self.deal.keys_per_class);
            }
            self.journal.tally.operation_count += 1;
            let index = if self.dice.below(2) == 0 {
                self.dice.below(self.deal.keys_per_class)
            } else {
                (self.window + self.dice.below(WINDOW_COUNT)) % self.deal.keys_per_class
            };
            match self.dice.below(100) {
                0..25 => self.put(index),
                25..45 => self.insert(index),
                45..55 => self.update(index),
                55..67 => self.delete(index),
                67..77 => self.compare_and_swap(index),
                77..96 => self.get(index),
                96..98 => self.multi_get(index),
                _ => self.scan(index),
            }
        }
        // Records the totals.
        self.journal.intend(Intent::default());
    }

    fn key(&self, index: u64) -> u64 {
        self.deal.key(self.class, index)
    }

    fn timed<R>(&mut self, operation: impl FnOnce(&mut Self) -> R) -> R {
        let start = Instant::now();
        let result = operation(self);
        let took_ns = start.elapsed().as_nanos() as u64;
        let tally = &mut self.journal.tally;
        tally.stall_ns_max = tally.stall_ns_max.max(took_ns);
        result
    }

    /// Executes a write between the two records in the journal. `new` is the key's value
    /// afterwards.
    fn write<R>(
        &mut self,
        index: u64,
        new: u64,
        operation: impl FnOnce(&Table, u64, u64) -> Result<R, farleaf::Error>,
    ) -> R {
        let old = self.journal.values[index as usize];
        self.journal.tally.write_count += 1;
        self.journal.intend(Intent { index, old, new });
        let key = self.key(index);
        let result = self.timed(|worker| operation(&worker.table, key, new));
        let result = result.unwrap_or_else(|error| panic!("class {}: {error}", self.class));
        self.journal.acknowledge(index, new);
        result
    }

    fn next_value(&mut self) -> u64 {
        self.last_value += 1 << 8;
        self.last_value
    }

    fn put(&mut self, index: u64) {
        let old = known(self.journal.values[index as usize]);
        let new = self.next_value();
        let previous = self.write(index, new, Table::put);
        assert_eq!(previous, old, "put, class {}, index {index}", self.class);
    }

    fn insert(&mut self, index: u64) {
        let old = self.journal.values[index as usize];
        let value = self.next_value();
        let new = if old == 0 { value } else { old };
        let done = self.write(index, new, |table, key, _| table.insert(key, value));
        let expected = known(old).map_or(Insertion::Inserted, Insertion::AlreadyPresent);
        assert_eq!(
            done, expected,
            "insert, class {}, index {index}",
            self.class
        );
    }

    fn update(&mut self, index: u64) {
        let old = self.journal.values[index as usize];
        let value = self.next_value();
        let new = if old == 0 { 0 } else { value };
        let done = self.write(index, new, |table, key, _| table.update(key, value));
        let expected = known(old).map_or(Update::Absent, Update::Updated);
        assert_eq!(
            done, expected,
            "update, class {}, index {index}",
            self.class
        );
    }

    fn delete(&mut self, index: u64) {
        let old = known(self.journal.values[index as usize]);
        let previous = self.write(index, 0, |table, key, _| table.delete(key));
        assert_eq!(previous, old, "delete, class {}, index {index}", self.class);
    }

    /// Compares with the present value, or in vain with another one, and writes a value or deletes
    /// the key.
    fn compare_and_swap(&mut self, index: u64) {
        let old = self.journal.values[index as usize];
        let value = self.next_value();
        let target = if self.dice.below(4) == 0 { 0 } else { value };
        let is_vain = self.dice.below(4) == 0;
        let (expected, new) = if is_vain {
            (Some(u64::MAX), old)
        } else {
            (known(old), target)
        };
        let done = self.write(index, new, |table, key, _| {
            table.compare_and_swap(key, expected, known(target))
        });
        let outcome = if is_vain {
            Swap::Differs(known(old))
        } else {
            Swap::Swapped
        };
        assert_eq!(done, outcome, "swap, class {}, index {index}", self.class);
    }

    fn get(&mut self, index: u64) {
        let found = self.timed(|worker| worker.table.get(worker.key(index)));
        let expected = known(self.journal.values[index as usize]);
        assert_eq!(
            found.expect("a get"),
            expected,
            "get, class {}, index {index}",
            self.class
        );
    }

    fn multi_get(&mut self, index: u64) {
        let count = self.deal.keys_per_class;
        let indexes: Vec<u64> = (0..32).map(|step| (index + step * 17) % count).collect();
        let keys: Vec<u64> = indexes.iter().map(|index| self.key(*index)).collect();
        let found = self.timed(|worker| worker.table.multi_get(&keys));
        for (index, found) in indexes.iter().zip(found.expect("a multi_get")) {
            let expected = known(self.journal.values[*index as usize]);
            assert_eq!(
                found, expected,
                "multi_get, class {}, index {index}",
                self.class
            );
        }
    }

    /// Promise (LEAF-9): a scan returns keys in order, none twice, and of the worker's own class,
    /// which no other process changes, exactly those that are present.
    fn scan(&mut self, index: u64) {
        let mut records = std::mem::take(&mut self.records);
        let scanned = self.timed(|worker| {
            let from = worker.key(index);
            worker.table.scan_into(from, 64, &mut records)
        });
        scanned.expect("a scan");
        assert!(records.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let last = records.last().map_or(u64::MAX, |record| record.0);
        let last = if records.len() < 64 { u64::MAX } else { last };
        let own = |key| self.deal.index_of(self.class, key);
        let found = records
            .iter()
            .filter_map(|(key, value)| Some((own(*key)?, *value)));
        let values = self.journal.values.iter().enumerate();
        let expected = values
            .skip(index as usize)
            .map(|(index, value)| (index as u64, *value))
            .filter(|(_, value)| *value != 0)
            .take_while(|(index, _)| self.deal.key(self.class, *index) <= last);
        assert!(
            found.eq(expected),
            "scan, class {}, from {index}",
            self.class
        );
        self.records = records;
    }
}
