//! Checks of every result under concurrency, without a second copy of the store.
//!
//! Values identify themselves: 22 bits of a hash of the key, 10 bits for the writer (0: the
//! loader), and 32 bits for the number of that writer's write. Therefore:
//!
//! - Any reader recognizes whether a value belongs to its key. A value of another key passes once
//!   in 4 million ([`check_read`]).
//! - For keys that a thread has written itself, it recognizes a value older than its last finished
//!   write, also if others write these keys ([`OwnWrites`]). The check is exact where only this
//!   thread writes, and has no false alarms elsewhere.
//! - A scan is compared with the loaded keys and the inserts acknowledged before it began
//!   ([`ScanChecker`]).
//!
//! No workload deletes: a loaded key or an acknowledged insert must never be missing.

mod own_writes;
mod scan;

use std::fmt;

pub use own_writes::{OwnWrites, PendingWrite, ReadExpectation};
pub use scan::{ScanChecker, ScanStart};

const SEQUENCE_BITS: u32 = 32;
const WRITER_BITS: u32 = 10;
const TAG_SHIFT: u32 = SEQUENCE_BITS + WRITER_BITS;

/// Writer of a value: a thread of the run, or the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterId(u16);

impl WriterId {
    /// Loader of the store.
    pub const LOADER: Self = Self(0);

    /// Maximal number of threads that can be distinguished.
    pub const THREAD_COUNT_MAX: usize = (1 << WRITER_BITS) - 1;

    /// Returns the writer of thread `thread_index`, counted from 0; `None` from
    /// [`THREAD_COUNT_MAX`](Self::THREAD_COUNT_MAX) on.
    pub fn thread(thread_index: usize) -> Option<Self> {
        (thread_index < Self::THREAD_COUNT_MAX).then_some(Self(thread_index as u16 + 1))
    }
}

/// Value that identifies its key, its writer, and the number of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value {
    tag: u32,
    writer: WriterId,
    sequence: u32,
}

impl Value {
    fn new(key: u64, writer: WriterId, sequence: u32) -> Self {
        Self {
            tag: tag(key),
            writer,
            sequence,
        }
    }

    fn pack(self) -> u64 {
        u64::from(self.tag) << TAG_SHIFT
            | u64::from(self.writer.0) << SEQUENCE_BITS
            | u64::from(self.sequence)
    }

    /// Decodes a value, if it belongs to `key`.
    #[inline]
    fn of(key: u64, value: u64) -> Result<Self, Fault> {
        let found_tag = (value >> TAG_SHIFT) as u32;
        if found_tag != tag(key) {
            return Err(Fault::ForeignValue { key, value });
        }
        let writer = WriterId((value >> SEQUENCE_BITS) as u16 & ((1 << WRITER_BITS) - 1));
        Ok(Self {
            tag: found_tag,
            writer,
            sequence: value as u32,
        })
    }
}

/// Returns 22 bits that depend on every bit of the key (finalizer of `MurmurHash3`).
#[inline]
fn tag(key: u64) -> u32 {
    // The constant keeps key 0 from having tag 0, with which a store that returns zeros would pass.
    let mut hash = key ^ 0x9E37_79B9_7F4A_7C15;
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    ((hash ^ (hash >> 33)) >> TAG_SHIFT) as u32
}

/// Returns whether a value was written for `key`, as far as its tag shows.
pub(crate) fn is_value_of(key: u64, value: u64) -> bool {
    Value::of(key, value).is_ok()
}

/// Returns the value of `key` in a given write of a writer.
pub(crate) fn written_value(key: u64, writer: WriterId, sequence: u32) -> u64 {
    Value::new(key, writer, sequence).pack()
}

/// Returns the value with which the loader loads `key`.
pub fn loaded_value(key: u64) -> u64 {
    Value::new(key, WriterId::LOADER, 0).pack()
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// The answer is correct.
    Right,
    /// An existing key was not found.
    Missing {
        /// Key that was not found.
        key: u64,
    },
    /// The answer is wrong.
    Wrong(Fault),
}

impl Verdict {
    /// Returns whether the answer is correct.
    pub const fn is_right(&self) -> bool {
        matches!(self, Self::Right)
    }
}

/// Description of a wrong answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The value was written for another key, or never.
    #[error("value {value:#018x} does not belong to key {key}")]
    ForeignValue {
        /// Requested key.
        key: u64,
        /// Value in the answer.
        value: u64,
    },
    /// The value is older than this thread's last finished write to the key.
    #[error("value {value:#018x} of key {key} is older than this thread's write {sequence_min}")]
    StaleValue {
        /// Requested key.
        key: u64,
        /// Value in the answer.
        value: u64,
        /// Lowest sequence number that this thread may still read from itself.
        sequence_min: u32,
    },
    /// The value names this thread as writer, but this thread has not written it yet.
    #[error("value {value:#018x} of key {key} was never written")]
    UnwrittenValue {
        /// Requested key.
        key: u64,
        /// Value in the answer.
        value: u64,
    },
    /// A scan has more entries than requested.
    #[error("scan of {limit} returned {count} entries")]
    TooManyEntries {
        /// Requested number of entries.
        limit: usize,
        /// Number of entries in the answer.
        count: usize,
    },
    /// A scan has a key below its start.
    #[error("scan from {start} returned key {key}")]
    BelowStart {
        /// Start of the scan.
        start: u64,
        /// Key below the start.
        key: u64,
    },
    /// A scan has a key that is not above the previous one: out of order or twice.
    #[error("scan returned key {key} after key {previous}")]
    NotAscending {
        /// Previous key.
        previous: u64,
        /// Key after it.
        key: u64,
    },
    /// A scan has a key that was neither loaded nor being inserted.
    #[error("scan returned key {key}, which was never inserted")]
    UnknownKey {
        /// Unknown key.
        key: u64,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right => formatter.write_str("right"),
            Self::Missing { key } => write!(formatter, "key {key} is missing"),
            Self::Wrong(fault) => fault.fmt(formatter),
        }
    }
}

/// Checks a read of a key that must exist: there is a value, and it belongs to the key. Costs 2 ns.
#[inline]
pub fn check_read(key: u64, value: Option<u64>) -> Verdict {
    match value.map(|value| Value::of(key, value)) {
        None => Verdict::Missing { key },
        Some(Ok(_)) => Verdict::Right,
        Some(Err(fault)) => Verdict::Wrong(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [u64; 6] = [0, 1, 2, 1 << 32, u64::MAX - 1, u64::MAX];

    /// Promise: a value decodes to all that was encoded, and fits its key only.
    #[test]
    fn a_value_belongs_to_its_key_only() {
        for key in KEYS {
            for writer in [WriterId::LOADER, WriterId(1), WriterId(1_023)] {
                for sequence in [0, 1, u32::MAX] {
                    let value = Value::new(key, writer, sequence);
                    assert_eq!(Value::of(key, value.pack()), Ok(value));
                    for other in KEYS.into_iter().filter(|other| *other != key) {
                        let fault = Fault::ForeignValue {
                            key: other,
                            value: value.pack(),
                        };
                        assert_eq!(check_read(other, Some(value.pack())), Verdict::Wrong(fault));
                    }
                }
            }
        }
    }

    /// Promise: of neighboring keys, which are most easily confused, hardly any value passes for
    /// the next key's.
    #[test]
    fn neighbours_are_told_apart() {
        let confused = (0..1_000_000_u64)
            .filter(|key| check_read(key + 1, Some(loaded_value(*key))).is_right())
            .count();
        assert!(confused <= 4, "{confused}");
    }

    /// Promise: a read of nothing is "missing", and typical values of a faulty store (zero, all
    /// ones, the key itself) are wrong.
    #[test]
    fn nothing_is_missing_and_raw_words_are_wrong() {
        let key = 123_456_789;
        assert_eq!(check_read(key, None), Verdict::Missing { key });
        assert_eq!(check_read(key, Some(loaded_value(key))), Verdict::Right);
        for value in [0, u64::MAX, key] {
            assert_eq!(
                check_read(key, Some(value)),
                Verdict::Wrong(Fault::ForeignValue { key, value })
            );
        }
    }

    /// Promise: 1,023 threads can be distinguished, and the next one is refused.
    #[test]
    fn threads_beyond_the_last_name_are_refused() {
        assert_eq!(WriterId::thread(0), Some(WriterId(1)));
        assert_eq!(WriterId::thread(1_022), Some(WriterId(1_023)));
        assert_eq!(WriterId::thread(1_023), None);
    }
}
