//! Clients that work during failures.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_base::random::Random;
use farleaf_client::{ClientError, Insertion, PersistentTable, Swap};

use crate::check::check;
use crate::history::{Act, History, Operation, Value};

/// Default number of concurrent clients.
pub const CLIENT_COUNT: usize = 4;
/// Keys that the clients share: few, so that operations conflict.
pub const KEY_COUNT: u64 = 24;
/// Pause between two operations of a client.
const PAUSE: Duration = Duration::from_micros(500);
/// Pause between two checks of a condition.
const POLL_PAUSE: Duration = Duration::from_millis(5);

/// Returns the split keys of trial tables; [`key_of`] returns keys of all three regions.
pub fn split_keys() -> Vec<Vec<u8>> {
    vec![b"33".to_vec(), b"66".to_vec()]
}

/// One key in each region, which no client of a trial uses.
pub const PROBES: [&[u8]; 3] = [b"00-probe", b"50-probe", b"90-probe"];

/// Errors that operations may return during a trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllowedErrors {
    /// Reads succeed, however late; a write may have an unknown outcome.
    #[default]
    Served,
    /// Servers may return errors, and regions may be without a primary for longer than clients
    /// wait.
    Troubled,
}

/// Working clients and their history.
#[derive(Debug, Default)]
pub struct Trial {
    /// History of the clients' operations.
    pub history: History,
    course: AllowedErrors,
    is_over: AtomicBool,
    done_count: AtomicU64,
    unknown_count: AtomicU64,
    refused_count: AtomicU64,
    next_value: AtomicU64,
}

/// Returns the bytes that represent a value.
pub fn bytes_of(value: Value) -> Vec<u8> {
    // The sizes vary, so that segments of the log end at many positions.
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(8 + (value % 97 * 31) as usize, value as u8);
    bytes
}

/// Returns the value that these bytes represent.
///
/// # Panics
/// If no client wrote these bytes.
pub fn value_of(bytes: &[u8]) -> Value {
    let value = Value::from_le_bytes(bytes[..8].try_into().expect("eight"));
    assert_eq!(bytes, bytes_of(value), "a value is as it was written");
    value
}

/// Returns the key of a number; adjacent numbers are in different regions.
pub fn key_of(number: u64) -> Vec<u8> {
    format!("{:02}-{number}", number * 37 % 100).into_bytes()
}

impl Trial {
    /// Creates a trial.
    pub fn new(course: AllowedErrors) -> Self {
        Self {
            course,
            ..Self::default()
        }
    }

    /// Returns the number of acknowledged operations.
    pub fn done_count(&self) -> u64 {
        self.done_count.load(Ordering::Relaxed)
    }

    /// Returns the number of writes with an unknown outcome.
    pub fn unknown_count(&self) -> u64 {
        self.unknown_count.load(Ordering::Relaxed)
    }

    /// Returns the number of operations that certainly had no effect.
    pub fn refused_count(&self) -> u64 {
        self.refused_count.load(Ordering::Relaxed)
    }

    /// Returns a value that has not been written yet.
    pub fn draw_value(&self) -> Value {
        self.next_value.fetch_add(1, Ordering::Relaxed)
    }

    /// Runs one client on each of these tables, which may be the same one, while `body` runs, and
    /// stops them when it returns.
    pub fn run<T>(&self, tables: &[PersistentTable], body: impl FnOnce() -> T) -> T {
        self.run_each(tables, |_| {}, body)
    }

    /// Runs clients like [`run`](Self::run), each of which calls a function first in its thread.
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
            let over = EndGuard(&self.is_over);
            let answer = body();
            drop(over);
            answer
        })
    }

    /// Waits until this many more operations are done.
    pub fn wait_done(&self, more_count: u64) {
        let (since, before) = (Instant::now(), self.done_count());
        while self.done_count() < before + more_count {
            let done_count = self.done_count() - before;
            let is_over = self.is_over.load(Ordering::Acquire);
            assert!(!is_over, "a client has ended");
            assert!(since.elapsed() < Duration::from_mins(1), "{done_count}");
            thread::sleep(POLL_PAUSE);
        }
    }

    /// Runs one client: random operations on shared keys, each recorded, until the trial ends.
    fn work(&self, table: &PersistentTable, seed: u64) {
        // A client that panics ends the trial of the others.
        let over = EndGuard(&self.is_over);
        let mut random = Random::new(seed);
        while !self.is_over.load(Ordering::Acquire) {
            let number = random.below(KEY_COUNT);
            let value = self.draw_value();
            let started_ns = self.history.now_ns();
            let done = operate(table, &key_of(number), random.below(10), value);
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
                    self.count_without_effect(&error);
                    continue;
                }
            };
            let operation = Operation {
                act,
                started_ns,
                ended_ns,
            };
            self.history.note(number, operation);
            thread::sleep(PAUSE);
        }
        drop(over);
    }

    /// Counts an operation that had no effect.
    fn count_without_effect(&self, error: &ClientError) {
        let is_expected = matches!(
            error,
            ClientError::NotServed { .. }
                | ClientError::Refused { .. }
                | ClientError::Failed { .. }
                | ClientError::Cluster(_)
        );
        assert!(is_expected, "{error}");
        assert!(
            self.course == AllowedErrors::Troubled,
            "operation failed: {error}"
        );
        self.refused_count.fetch_add(1, Ordering::Relaxed);
        thread::sleep(POLL_PAUSE);
    }

    /// Reads all keys, adds the reads to the history, and checks that it is linearizable.
    pub fn check_history(self, table: &PersistentTable) {
        for number in 0..KEY_COUNT {
            let started_ns = self.history.now_ns();
            let found = table.get(&key_of(number)).expect("it is served");
            let operation = Operation {
                act: Act::Read(found.as_deref().map(value_of)),
                started_ns,
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

/// Guard that ends a trial, also if a panic drops it.
struct EndGuard<'t>(&'t AtomicBool);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Waits until each region accepts a write again, and returns the time that it took.
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

/// Executes a random operation. Returns it with its result, or what it may have done and why that
/// is unknown.
fn operate(
    table: &PersistentTable,
    key: &[u8],
    kind: u64,
    value: Value,
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
