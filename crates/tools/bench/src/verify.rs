//! Checks of every result, under concurrency, without a second copy of the store.
//!
//! Values describe themselves: 22 bits of a hash of the key, 10 bits for who wrote it (0: the
//! loader), 32 bits for the how-manyeth write of that writer it was. So
//!
//! - any reader tells that a value belongs to its key; a value of another key passes once in 4
//!   million ([`check_read`]);
//! - a thread tells, of keys that it wrote itself, that what it reads is not older than its last
//!   finished write, whoever else writes them ([`OwnWrites`]): exact where only this thread
//!   writes, and no false alarm where others do;
//! - a scan is held against the loaded keys and the inserts acknowledged before it began
//!   ([`ScanChecker`]).
//!
//! No workload deletes: a loaded key, and an acknowledged insert, is never rightly missing.

mod own_writes;
mod scan;

use std::fmt;

pub use own_writes::{OwnWrites, PendingWrite, ReadExpectation};
pub use scan::{ScanChecker, ScanStart};

const SEQUENCE_BITS: u32 = 32;
const WRITER_BITS: u32 = 10;
const TAG_SHIFT: u32 = SEQUENCE_BITS + WRITER_BITS;

/// Who writes: a thread of the run, or the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriterId(u16);

impl WriterId {
    /// Whoever loads the store.
    pub const LOADER: Self = Self(0);

    /// How many threads can be told apart.
    pub const THREAD_COUNT_MAX: usize = (1 << WRITER_BITS) - 1;

    /// The writer that is thread `thread_index`, counted from 0; `None` from
    /// [`THREAD_COUNT_MAX`](Self::THREAD_COUNT_MAX) on.
    pub fn thread(thread_index: usize) -> Option<Self> {
        (thread_index < Self::THREAD_COUNT_MAX).then_some(Self(thread_index as u16 + 1))
    }
}

/// A value that says to which key it belongs, who wrote it, and as which of his writes.
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

    /// The value, if it belongs to `key`.
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

/// 22 bits in which every bit of the key counts (finalizer of `MurmurHash3`).
#[inline]
fn tag(key: u64) -> u32 {
    // The constant keeps key 0 from having tag 0, which a store that answers zeros would get right.
    let mut hash = key ^ 0x9E37_79B9_7F4A_7C15;
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    ((hash ^ (hash >> 33)) >> TAG_SHIFT) as u32
}

/// Whether a value was written for `key`, as far as its tag tells.
pub(crate) fn is_value_of(key: u64, value: u64) -> bool {
    Value::of(key, value).is_ok()
}

/// The value that a writer gives `key` with one of his writes.
pub(crate) fn written_value(key: u64, writer: WriterId, sequence: u32) -> u64 {
    Value::new(key, writer, sequence).pack()
}

/// The value that the loader gives `key`.
pub fn loaded_value(key: u64) -> u64 {
    Value::new(key, WriterId::LOADER, 0).pack()
}

/// How a result compares with what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// As it must be.
    Right,
    /// This key must be there, and is not.
    Missing {
        /// The key.
        key: u64,
    },
    /// Something is there that must not be.
    Wrong(Fault),
}

impl Verdict {
    /// Whether all is as it must be.
    pub const fn is_right(&self) -> bool {
        matches!(self, Self::Right)
    }
}

/// What is wrong with a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The value was written for another key, or by nobody.
    ForeignValue {
        /// The key asked for.
        key: u64,
        /// What came with it.
        value: u64,
    },
    /// The value is older than this thread's last finished write to the key.
    StaleValue {
        /// The key asked for.
        key: u64,
        /// What came with it.
        value: u64,
        /// The lowest sequence number that this thread may still read from itself.
        sequence_min: u32,
    },
    /// The value bears the name of this thread, which has not written it yet.
    UnwrittenValue {
        /// The key asked for.
        key: u64,
        /// What came with it.
        value: u64,
    },
    /// A scan has more entries than asked for.
    TooManyEntries {
        /// How many were asked for.
        limit: usize,
        /// How many came.
        count: usize,
    },
    /// A scan has a key below its start.
    BelowStart {
        /// Where the scan starts.
        start: u64,
        /// The key.
        key: u64,
    },
    /// A scan has a key that is not above the one before it: out of order or twice.
    NotAscending {
        /// The key before.
        previous: u64,
        /// The key.
        key: u64,
    },
    /// A scan has a key that nobody loaded or began to insert.
    UnknownKey {
        /// The key.
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

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignValue { key, value } => {
                write!(
                    formatter,
                    "value {value:#018x} does not belong to key {key}"
                )
            }
            Self::StaleValue {
                key,
                value,
                sequence_min,
            } => write!(
                formatter,
                "value {value:#018x} of key {key} is older than this thread's write {sequence_min}"
            ),
            Self::UnwrittenValue { key, value } => {
                write!(
                    formatter,
                    "value {value:#018x} of key {key} was never written"
                )
            }
            Self::TooManyEntries { limit, count } => {
                write!(formatter, "scan of {limit} returned {count} entries")
            }
            Self::BelowStart { start, key } => {
                write!(formatter, "scan from {start} returned key {key}")
            }
            Self::NotAscending { previous, key } => {
                write!(formatter, "scan returned key {key} after key {previous}")
            }
            Self::UnknownKey { key } => {
                write!(formatter, "scan returned key {key}, which nobody inserted")
            }
        }
    }
}

/// Checks a read of a key that must exist: there is a value, and it belongs to the key. 2 ns.
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

    /// Promise: a value gives back all that was packed, and fits its key only.
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

    /// Promise: of neighbouring keys, the likeliest to be mixed up, hardly any value passes for
    /// the next key's.
    #[test]
    fn neighbours_are_told_apart() {
        let confused = (0..1_000_000_u64)
            .filter(|key| check_read(key + 1, Some(loaded_value(*key))).is_right())
            .count();
        assert!(confused <= 4, "{confused}");
    }

    /// Promise: nothing read is "missing", and the raw values a faulty store would return (zero,
    /// all ones, the key itself) are wrong.
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

    /// Promise: 1,023 threads can be told apart, and the next one is refused.
    #[test]
    fn threads_beyond_the_last_name_are_refused() {
        assert_eq!(WriterId::thread(0), Some(WriterId(1)));
        assert_eq!(WriterId::thread(1_022), Some(WriterId(1_023)));
        assert_eq!(WriterId::thread(1_023), None);
    }
}
