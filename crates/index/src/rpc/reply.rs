//! Replies as bytes.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | 0 or a [`Failure`] (8), whether there is a value (8), shape (16), how many (32) |
//! | 1.. | the value; values, each behind whether there is one; records; or a number |

use thiserror::Error;

use super::words::{BadWords, Words, put};

const HAS_VALUE: u64 = 1 << 8;

/// What the node has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// What was found of a key: of a get, or before a write.
    Found(Option<u64>),
    /// The same of several.
    Several(Vec<Option<u64>>),
    /// Records, ascending; fewer than were asked for only at the end.
    Records(Vec<(u64, u64)>),
    /// A number of records.
    Count(u64),
    /// Nothing has changed, and why.
    Failed(Failure),
}

/// Why nothing has changed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Failure {
    /// There is no such table any more.
    #[error("the table was dropped")]
    Dropped,
    /// A load into a table that has records.
    #[error("the table has records")]
    NotEmpty,
    /// The node has no room for more records.
    #[error("the memory node has no room for more records in its own memory")]
    Full,
    /// A load whose records do not ascend, or of which a part is missing.
    #[error("the records do not ascend, or some are missing")]
    Unsound,
    /// A table whose records are not the node's.
    #[error("the table's records are not in the memory node's own memory")]
    OfLeaves,
}

impl Failure {
    const ALL: [Self; 5] = [
        Self::Dropped,
        Self::NotEmpty,
        Self::Full,
        Self::Unsound,
        Self::OfLeaves,
    ];

    fn number(self) -> u64 {
        match self {
            Self::Dropped => 1,
            Self::NotEmpty => 2,
            Self::Full => 3,
            Self::Unsound => 4,
            Self::OfLeaves => 5,
        }
    }
}

/// What shape of reply a request has.
const FOUND: u64 = 0;
const SEVERAL: u64 = 1;
const RECORDS: u64 = 2;
const COUNT: u64 = 3;

impl Reply {
    /// The bytes, into a vector that is cleared.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        let head = |shape: u64, count: usize| shape << 16 | (count as u64) << 32;
        match self {
            Self::Found(Some(value)) => put(bytes, [head(FOUND, 1) | HAS_VALUE, *value]),
            Self::Found(None) => put(bytes, [head(FOUND, 0)]),
            Self::Several(values) => {
                put(bytes, [head(SEVERAL, values.len())]);
                let words = |value: &Option<u64>| [u64::from(value.is_some()), value.unwrap_or(0)];
                put(bytes, values.iter().flat_map(words));
            }
            Self::Records(records) => {
                put(bytes, [head(RECORDS, records.len())]);
                put(
                    bytes,
                    records.iter().flat_map(|(key, value)| [*key, *value]),
                );
            }
            Self::Count(count) => put(bytes, [head(COUNT, 1), *count]),
            Self::Failed(failure) => put(bytes, [failure.number()]),
        }
    }

    /// Bytes of a reply with so many values, or records.
    pub const fn size_bytes(count: usize) -> usize {
        8 + 16 * count
    }

    /// What the node sent.
    ///
    /// # Errors
    /// It is no reply.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadWords> {
        let mut words = Words::new(bytes)?;
        let head = words.next()?;
        if head & 0xFF != 0 {
            let failure = Failure::ALL.into_iter().find(|it| it.number() == head);
            words.end()?;
            return failure
                .map(Self::Failed)
                .ok_or(BadWords("a reply with an unknown failure"));
        }
        let (shape, count) = (head >> 16 & 0xFFFF, (head >> 32) as usize);
        let has_value = head & HAS_VALUE != 0;
        if head & 0xFE00 != 0 || has_value && shape != FOUND {
            return Err(BadWords("a reply of an unknown form"));
        }
        let has_pairs = |words: &Words<'_>| {
            let there = words.clone().rest().len();
            if there == count.saturating_mul(2) {
                Ok(())
            } else {
                Err(BadWords("a reply that does not hold what it says"))
            }
        };
        match shape {
            FOUND if count == usize::from(has_value) => {
                let value = has_value.then(|| words.next()).transpose()?;
                words.end()?;
                Ok(Self::Found(value))
            }
            SEVERAL => {
                has_pairs(&words)?;
                let pairs = pairs(words);
                if pairs.clone().any(|(is_there, _)| is_there > 1) {
                    return Err(BadWords("a reply of an unknown form"));
                }
                let values = pairs.map(|(is_there, value)| (is_there == 1).then_some(value));
                Ok(Self::Several(values.collect()))
            }
            RECORDS => {
                has_pairs(&words)?;
                Ok(Self::Records(pairs(words).collect()))
            }
            COUNT if count == 1 => {
                let count = words.next()?;
                words.end()?;
                Ok(Self::Count(count))
            }
            _ => Err(BadWords("a reply of an unknown form")),
        }
    }
}

fn pairs(words: Words<'_>) -> impl Iterator<Item = (u64, u64)> + Clone + '_ {
    let firsts = words.clone().rest().step_by(2);
    firsts.zip(words.rest().skip(1).step_by(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn replies() -> impl Strategy<Value = Reply> {
        let pairs = || proptest::collection::vec(any::<(u64, u64)>(), 0..40);
        prop_oneof![
            any::<Option<u64>>().prop_map(Reply::Found),
            proptest::collection::vec(any::<Option<u64>>(), 0..40).prop_map(Reply::Several),
            pairs().prop_map(Reply::Records),
            any::<u64>().prop_map(Reply::Count),
            (0..Failure::ALL.len()).prop_map(|index| Reply::Failed(Failure::ALL[index])),
        ]
    }

    /// The format: a later version that changes it must say so.
    #[test]
    fn bytes_are_golden() {
        let mut bytes = Vec::new();
        Reply::Several(vec![None, Some(7)]).encode(&mut bytes);
        let words = [0x0000_0002_0001_0000_u64, 0, 0, 1, 7];
        assert_eq!(bytes, words.map(u64::to_le_bytes).concat());
        assert_eq!(bytes.len(), Reply::size_bytes(2));
    }

    proptest! {
        /// Promise: every reply comes back as it was, and none that is cut or longer is taken.
        #[test]
        fn replies_come_back(reply in replies()) {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
            prop_assert!(Reply::decode(&bytes[..bytes.len() - 8]).is_err());
            bytes.extend([0; 8]);
            prop_assert!(Reply::decode(&bytes).is_err());
        }

        /// Promise: any bytes are a reply or an error, and a reply is written as it was read.
        #[test]
        fn any_bytes_can_be_read(
            head in 0..6_u64,
            shape in 0..5_u64,
            count in 0..4_u64,
            rest: Vec<u64>,
        ) {
            let words = core::iter::once(head | shape << 16 | count << 32).chain(rest);
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            if let Ok(reply) = Reply::decode(&bytes) {
                let mut written = Vec::new();
                reply.encode(&mut written);
                prop_assert_eq!(Reply::decode(&written), Ok(reply));
            }
        }
    }
}
