//! Clients that work while something fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{ClientError, Insertion, PersistentTable, Swap};

use crate::check::check;
use crate::history::{Act, History, Operation, Value};

/// Clients at the same time, as a rule, and keys that they share.
pub const CLIENT_COUNT: usize = 4;
/// Keys that clients share: few, so that they meet.
pub const KEY_COUNT: u64 = 24;
/// Between two operations of a client.
const PAUSE: Duration = Duration::from_micros(500);
/// Between two looks whether something has come about.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Where tables of a trial are cut into regions: [`key_of`] gives keys in all three.
pub fn split_keys() -> Vec<Vec<u8>> {
    vec![b"33".to_vec(), b"66".to_vec()]
}

/// A key of each region, which no client of a course uses.
pub const PROBES: [&[u8]; 3] = [b"00-probe", b"50-probe", b"90-probe"];

/// What an operation may meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Course {
    /// Reads are answered, however late; a write may have an unknown outcome.
    #[default]
    Served,
    /// A server may say that it could not do what was asked, and nobody may serve for longer than
    /// clients wait.
    Troubled,
}

/// Numbers that look random, and are the same for a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Those of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// One from 0 to below this.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) % bound
    }
}

/// Clients at work, and what they saw.
#[derive(Debug, Default)]
pub struct Trial {
    /// What they saw.
    pub history: History,
    course: Course,
    is_over: AtomicBool,
    done_count: AtomicU64,
    unknown_count: AtomicU64,
    refused_count: AtomicU64,
    next_value: AtomicU64,
}

/// What is written as a value.
pub fn bytes_of(value: Value) -> Vec<u8> {
    // Of many sizes, so that segments of the log end at many places.
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(8 + (value % 97 * 31) as usize, value as u8);
    bytes
}

/// The value that was written as this.
///
/// # Panics
/// It is no value that a client wrote.
pub fn value_of(bytes: &[u8]) -> Value {
    let value = Value::from_le_bytes(bytes[..8].try_into().expect("eight"));
    assert_eq!(bytes, bytes_of(value), "a value is as it was written");
    value
}

/// The key of a number: neighbours are in different regions.
pub fn key_of(number: u64) -> Vec<u8> {
    format!("{:02}-{number}", number * 37 % 100).into_bytes()
}

impl Trial {
    /// One of this course.
    pub fn new(course: Course) -> Self {
        Self {
            course,
            ..Self::default()
        }
    }

    /// Operations that were acknowledged.
    pub fn done_count(&self) -> u64 {
        self.done_count.load(Ordering::Relaxed)
    }

    /// Writes of which nobody knows whether they took place.
    pub fn unknown_count(&self) -> u64 {
        self.unknown_count.load(Ordering::Relaxed)
    }

    /// Operations of which it is known that nothing was done.
    pub fn refused_count(&self) -> u64 {
        self.refused_count.load(Ordering::Relaxed)
    }

    /// A value that nobody has written.
    pub fn draw_value(&self) -> Value {
        self.next_value.fetch_add(1, Ordering::Relaxed)
    }

    /// Has one client work at each of these tables, which may be the same one, while `body` does
    /// what it likes; when that ends, so do they.
    pub fn run<T>(&self, tables: &[PersistentTable], body: impl FnOnce() -> T) -> T {
        self.run_each(tables, |_| {}, body)
    }

    /// The same, where each client's thread begins with something of its own.
    pub fn run_each<T>(
        &self,
        tables: &[PersistentTable],
        begin: impl Fn(usize) + Sync,
        body: impl FnOnce() -> T,
    ) -> T {
        let begin = &begin;
        thread::scope(|scope| {
            for (index, table) in tables.iter().enumerate() {
                scope.spawn(move || {
                    begin(index);
                    self.work(table, index as u64 + 1);
                });
            }
            let over = Over(&self.is_over);
            let answer = body();
            drop(over);
            answer
        })
    }

    /// Waits until so many operations more are done.
    pub fn wait_done(&self, more_count: u64) {
        let (since, before) = (Instant::now(), self.done_count());
        while self.done_count() < before + more_count {
            let done_count = self.done_count() - before;
            let is_over = self.is_over.load(Ordering::Acquire);
            assert!(!is_over, "a client has ended");
            assert!(since.elapsed() < Duration::from_mins(1), "{done_count}");
            thread::sleep(LOOK_PAUSE);
        }
    }

    /// One client: random operations on shared keys, each noted, until the trial is over.
    fn work(&self, table: &PersistentTable, seed: u64) {
        // One that panics ends the trial of the others.
        let over = Over(&self.is_over);
        let mut random = Random::new(seed);
        while !self.is_over.load(Ordering::Acquire) {
            let number = random.below(KEY_COUNT);
            let value = self.draw_value();
            let begun_ns = self.history.now_ns();
            let done = operate(table, &key_of(number), (random.below(10), value));
            let ended_ns = self.history.now_ns();
            let (act, ended_ns) = match done {
                Ok(act) => {
                    self.done_count.fetch_add(1, Ordering::Relaxed);
                    (act, Some(ended_ns))
                }
                Err((Some(act), error)) if error.is_outcome_unknown() => {
                    self.unknown_count.fetch_add(1, Ordering::Relaxed);
                    (act, None)
                }
                Err((_, error)) => {
                    self.refused(&error);
                    continue;
                }
            };
            let operation = Operation {
                act,
                begun_ns,
                ended_ns,
            };
            self.history.note(number, operation);
            thread::sleep(PAUSE);
        }
        drop(over);
    }

    /// Nothing was done.
    fn refused(&self, error: &ClientError) {
        let is_expected = matches!(
            error,
            ClientError::NotServed { .. }
                | ClientError::Refused { .. }
                | ClientError::Failed { .. }
                | ClientError::Cluster(_)
        );
        assert!(is_expected, "{error}");
        assert!(self.course == Course::Troubled, "it is not done: {error}");
        self.refused_count.fetch_add(1, Ordering::Relaxed);
        thread::sleep(LOOK_PAUSE);
    }

    /// All keys, read at the end, belong to the history; and that is linearizable.
    pub fn judge(self, table: &PersistentTable) {
        for number in 0..KEY_COUNT {
            let begun_ns = self.history.now_ns();
            let found = table.get(&key_of(number)).expect("it is served");
            let operation = Operation {
                act: Act::Read(found.as_deref().map(value_of)),
                begun_ns,
                ended_ns: Some(self.history.now_ns()),
            };
            self.history.note(number, operation);
        }
        for (key, operations) in self.history.into_keys() {
            if let Err(how) = check(&operations) {
                panic!("key {key} is not linearizable: {how}");
            }
        }
    }
}

/// Ends a trial, also when it is dropped by a panic.
struct Over<'t>(&'t AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How long it takes until each region takes a write again.
pub fn wait_served(table: &PersistentTable) -> Duration {
    let since = Instant::now();
    for key in PROBES {
        while let Err(error) = table.put(key, b"probe") {
            let is_expected =
                error.is_outcome_unknown() || matches!(error, ClientError::NotServed { .. });
            assert!(is_expected, "{error}");
        }
    }
    since.elapsed()
}

/// What was done; or what may have been, and why that is not known.
fn operate(
    table: &PersistentTable,
    key: &[u8],
    (kind, value): (u64, Value),
) -> Result<Act, (Option<Act>, Box<ClientError>)> {
    let new = bytes_of(value);
    let write = Act::Write(Some(value));
    let unknown = |act| move |error| (Some(act), Box::new(error));
    Ok(match kind {
        0..=3 => {
            let found = table.get(key).map_err(|error| (None, Box::new(error)))?;
            Act::Read(found.as_deref().map(value_of))
        }
        4..=6 => {
            table.put(key, &new).map_err(unknown(write))?;
            write
        }
        7 => {
            let deleted = table.delete(key);
            Act::Remove(deleted.map_err(unknown(Act::Write(None)))?)
        }
        8 => {
            let maybe = Act::Swap(None, Some(value), true);
            match table.insert(key, &new).map_err(unknown(maybe))? {
                Insertion::Inserted => maybe,
                Insertion::AlreadyPresent(found) => Act::Read(Some(value_of(&found))),
            }
        }
        _ => {
            let found = table.get(key).map_err(|error| (None, Box::new(error)))?;
            let expected = found.as_deref().map(value_of);
            let maybe = Act::Swap(expected, Some(value), true);
            let swapped = table.compare_and_swap(key, found.as_deref(), Some(&new));
            match swapped.map_err(unknown(maybe))? {
                Swap::Swapped => maybe,
                Swap::Differs(other) => Act::Read(other.as_deref().map(value_of)),
            }
        }
    })
}
