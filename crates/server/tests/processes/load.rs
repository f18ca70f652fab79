//! Clients that work while servers die.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use farleaf_client::{ClientError, Cluster, Insertion, PersistentTable, Swap};

use crate::history::{Act, History, Operation, Value};

/// Clients at the same time, and keys that they share.
pub(crate) const CLIENT_COUNT: u64 = 4;
pub(crate) const KEY_COUNT: u64 = 24;
/// Between two operations of a client.
const PAUSE: Duration = Duration::from_micros(500);

/// What goes on between clients and whoever kills.
#[derive(Default)]
pub(crate) struct Course {
    pub(crate) is_over: AtomicBool,
    /// Operations that were acknowledged.
    pub(crate) done_count: AtomicU64,
    pub(crate) unknown_count: AtomicU64,
    next_value: AtomicU64,
}

/// Ends a course when it is dropped: also when the test panics, whose clients would go on for ever.
pub(crate) struct Over<'c>(pub(crate) &'c Course);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

fn bytes_of(value: Value) -> Vec<u8> {
    // Of many sizes, so that segments of the log end at many places.
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(8 + (value % 97 * 31) as usize, value as u8);
    bytes
}

fn value_of(bytes: &[u8]) -> Value {
    let value = Value::from_le_bytes(bytes[..8].try_into().expect("eight"));
    assert_eq!(bytes, bytes_of(value), "a value is as it was written");
    value
}

/// The key of a number: neighbours are in different regions.
pub(crate) fn key_of(number: u64) -> Vec<u8> {
    format!("{:02}-{number}", number * 37 % 100).into_bytes()
}

/// One client: random operations on shared keys, each noted, until the course is over.
pub(crate) fn work(
    cluster: &Cluster,
    table: &str,
    (history, course): (&History, &Course),
    seed: u64,
) {
    let table = cluster.open_table(table).expect("it was made");
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) % bound
    };
    while !course.is_over.load(Ordering::Acquire) {
        let number = next(KEY_COUNT);
        let value = course.next_value.fetch_add(1, Ordering::Relaxed);
        let begun_ns = history.now_ns();
        let (kind, act) = (next(10), value);
        let done = operate(&table, &key_of(number), (kind, act));
        let ended_ns = history.now_ns();
        match done {
            Ok(act) => {
                course.done_count.fetch_add(1, Ordering::Relaxed);
                let ended_ns = Some(ended_ns);
                history.note(
                    number,
                    Operation {
                        act,
                        begun_ns,
                        ended_ns,
                    },
                );
            }
            Err((Some(act), error)) => {
                assert!(error.is_outcome_unknown(), "{error}");
                course.unknown_count.fetch_add(1, Ordering::Relaxed);
                let ended_ns = None;
                history.note(
                    number,
                    Operation {
                        act,
                        begun_ns,
                        ended_ns,
                    },
                );
            }
            Err((None, error)) => panic!("a read failed: {error}"),
        }
        thread::sleep(PAUSE);
    }
}

/// What was done; or what may have been, and why that is not known.
fn operate(
    table: &PersistentTable,
    key: &[u8],
    (kind, value): (u64, Value),
) -> Result<Act, (Option<Act>, ClientError)> {
    let new = bytes_of(value);
    let write = Act::Write(Some(value));
    let unknown = |act| move |error| (Some(act), error);
    Ok(match kind {
        0..=3 => {
            let found = table.get(key).map_err(|error| (None, error))?;
            Act::Read(found.as_deref().map(value_of))
        }
        4..=6 => {
            table.put(key, &new).map_err(unknown(write))?;
            write
        }
        7 => {
            let deleted = Act::Write(None);
            table.delete(key).map_err(unknown(deleted))?;
            deleted
        }
        8 => {
            let maybe = Act::Swap(None, Some(value), true);
            match table.insert(key, &new).map_err(unknown(maybe))? {
                Insertion::Inserted => maybe,
                Insertion::AlreadyPresent(found) => Act::Read(Some(value_of(&found))),
            }
        }
        _ => {
            let found = table.get(key).map_err(|error| (None, error))?;
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
