//! Encoding of replies.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | 0, a [`Failure`] or 7 (8), whether there is a value (8), shape (16), count (32) |
//! | 1.. | the value; values, each after whether there is one; records; or a number |
//!
//! With 7, a node is lost, and its number is in place of the count.
//!
//! The count of a "looked up" reply is the number of words after the value: the leaf, the kind of
//! newer models (32 bits: 0 none, 1 a head, 2 a sub-model) with the sub-model's number (32), then
//! the models.

use farleaf_base::{NodeId, RemoteAddr};
use thiserror::Error;

use super::words::{BadWords, Words, put};
use crate::xstore::ModelHead;
use crate::xstore::record::RECORD_SIZE_WORDS;

const HAS_VALUE: u64 = 1 << 8;

/// Reply of the memory node to a request on a word table.
#[derive(Clone, Debug, PartialEq)]
pub enum WordReply {
    /// Value of a key: of a get, or before a write.
    Found(Option<u64>),
    /// Values of several keys.
    Several(Vec<Option<u64>>),
    /// Records, ascending; fewer than requested only at the end of the table.
    Records(Vec<(u64, u64)>),
    /// Number of records.
    Count(u64),
    /// Value of a key that the client's models did not lead to.
    LookUpReply(Box<LookUpReply>),
    /// Nothing has changed, for this reason.
    Failed(Failure),
    /// The request needs this node of the pool, which is lost. A change may or may not have taken
    /// effect.
    NodeLost(NodeId),
}

/// Result for a client whose models did not lead to a key.
#[derive(Clone, Debug, PartialEq)]
pub struct LookUpReply {
    /// Value of the key.
    pub found: Option<u64>,
    /// Leaf that covers the key; null if unknown.
    pub leaf: RemoteAddr,
    /// Models that are newer than the client's.
    pub news: ModelNews,
}

/// Models that are newer than a client's.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ModelNews {
    /// No newer models.
    #[default]
    None,
    /// All models are newer.
    Head(ModelHead),
    /// This sub-model is newer.
    SubModel {
        /// Number of the sub-model.
        number: u32,
        /// Words of its record.
        record: [u64; RECORD_SIZE_WORDS],
        /// Words of its translation table.
        table: Vec<u64>,
    },
}

/// Reason why nothing has changed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Failure {
    /// The table was dropped.
    #[error("the table was dropped")]
    Dropped,
    /// The load is into a table that has records.
    #[error("the table has records")]
    NotEmpty,
    /// The node has no space for more records.
    #[error("the memory node is out of space for more records in its own memory")]
    Full,
    /// The records of the load do not ascend, or some are missing.
    #[error("the records do not ascend, or some are missing")]
    Unsound,
    /// The pool has no space for another leaf.
    #[error("the pool is out of space for another leaf")]
    PoolFull,
    /// The records of the table are in leaves, not in the node's own memory.
    #[error("the table's records are not in the memory node's own memory")]
    OfLeaves,
    /// The request is about byte strings and the table has words, or the reverse.
    #[error("the table has keys and values of another kind")]
    OfOtherKind,
}

impl Failure {
    pub(super) const ALL: [Self; 7] = [
        Self::Dropped,
        Self::NotEmpty,
        Self::Full,
        Self::Unsound,
        Self::OfLeaves,
        Self::PoolFull,
        Self::OfOtherKind,
    ];

    /// Decodes the failure of a reply that has only this word.
    pub(super) fn decode(head: u64, rest: Words<'_>) -> Result<Self, BadWords> {
        rest.end()?;
        let failure = Self::ALL.into_iter().find(|it| it.number() == head);
        failure.ok_or(BadWords("unknown failure code"))
    }

    pub(super) fn number(self) -> u64 {
        match self {
            Self::Dropped => 1,
            Self::NotEmpty => 2,
            Self::Full => 3,
            Self::Unsound => 4,
            Self::OfLeaves => 5,
            Self::PoolFull => 6,
            // 7 is taken by `NODE_LOST`.
            Self::OfOtherKind => 8,
        }
    }
}

/// Code of a lost node, in place of a [`Failure`]; the node's number is in place of the count.
const NODE_LOST: u64 = 7;

/// Shapes of replies.
const FOUND: u64 = 0;
const SEVERAL: u64 = 1;
const RECORDS: u64 = 2;
const COUNT: u64 = 3;
const LOOKED: u64 = 4;

/// Kinds of newer models.
const NO_NEWS: u64 = 0;
const HEAD: u64 = 1;
const SUB_MODEL: u64 = 2;

impl LookUpReply {
    fn put(&self, bytes: &mut Vec<u8>) {
        let mut words = vec![self.leaf.word()];
        match &self.news {
            ModelNews::None => words.push(NO_NEWS),
            ModelNews::Head(head) => {
                words.push(HEAD);
                words.extend(head.encode());
            }
            ModelNews::SubModel {
                number,
                record,
                table,
            } => {
                words.push(SUB_MODEL | u64::from(*number) << 32);
                words.extend(record);
                words.extend(table);
            }
        }
        let has_value = self.found.map_or(0, |_| HAS_VALUE);
        put(
            bytes,
            [LOOKED << 16 | (words.len() as u64) << 32 | has_value],
        );
        put(bytes, self.found);
        put(bytes, words);
    }

    fn read(mut words: Words<'_>, has_value: bool, count: usize) -> Result<Self, BadWords> {
        let found = has_value.then(|| words.next()).transpose()?;
        if words.clone().rest().len() != count {
            return Err(BadWords("its size does not match its count"));
        }
        let leaf = RemoteAddr::from_word(words.next()?);
        let kind = words.next()?;
        let number = (kind >> 32) as u32;
        let news = match kind & 0xFFFF_FFFF {
            NO_NEWS if number == 0 => {
                words.end()?;
                ModelNews::None
            }
            HEAD if number == 0 => {
                let head = ModelHead::decode(&words.array()?);
                words.end()?;
                ModelNews::Head(head.ok_or(BadWords("invalid model head"))?)
            }
            SUB_MODEL => ModelNews::SubModel {
                number,
                record: words.array()?,
                table: words.rest().collect(),
            },
            _ => return Err(BadWords("unknown reply format")),
        };
        Ok(Self { found, leaf, news })
    }
}

impl WordReply {
    /// Encodes the reply into `bytes`, after clearing it.
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
            Self::LookUpReply(reply) => reply.put(bytes),
            Self::Failed(failure) => put(bytes, [failure.number()]),
            Self::NodeLost(node) => put(bytes, [NODE_LOST | u64::from(node.0) << 32]),
        }
    }

    /// Returns the largest size in bytes of a reply with `count` values or records.
    pub const fn size_bytes(count: usize) -> usize {
        8 + 16 * count
    }

    /// Decodes a reply that the node sent.
    ///
    /// # Errors
    /// The bytes are not a valid reply.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadWords> {
        let mut words = Words::new(bytes)?;
        let head = words.next()?;
        if head & 0xFFFF_FFFF == NODE_LOST {
            words.end()?;
            let node = u8::try_from(head >> 32);
            let node = node.map_err(|_| BadWords("invalid node number"))?;
            return Ok(Self::NodeLost(NodeId(node)));
        }
        if head & 0xFF != 0 {
            return Failure::decode(head, words).map(Self::Failed);
        }
        let (shape, count) = (head >> 16 & 0xFFFF, (head >> 32) as usize);
        let has_value = head & HAS_VALUE != 0;
        if head & 0xFE00 != 0 || has_value && shape != FOUND && shape != LOOKED {
            return Err(BadWords("unknown reply format"));
        }
        let has_pairs = |words: &Words<'_>| {
            let there = words.clone().rest().len();
            if there == count.saturating_mul(2) {
                Ok(())
            } else {
                Err(BadWords("its size does not match its count"))
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
                    return Err(BadWords("unknown reply format"));
                }
                let values = pairs.map(|(is_there, value)| (is_there == 1).then_some(value));
                Ok(Self::Several(values.collect()))
            }
            RECORDS => {
                has_pairs(&words)?;
                Ok(Self::Records(pairs(words).collect()))
            }
            LOOKED => {
                let reply = LookUpReply::read(words, has_value, count)?;
                Ok(Self::LookUpReply(Box::new(reply)))
            }
            COUNT if count == 1 => {
                let count = words.next()?;
                words.end()?;
                Ok(Self::Count(count))
            }
            _ => Err(BadWords("unknown reply format")),
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

    fn reply() -> impl Strategy<Value = LookUpReply> {
        let head = any::<(u32, u32, u32)>().prop_map(|(generation, low, count)| {
            ModelNews::Head(ModelHead {
                generation: generation.max(1),
                sub_model_count: count.max(1),
                line_count: low.clamp(1, count.max(1)),
                records: RemoteAddr::from_word(count.into()),
                leaf_count: u64::from(low) + 1,
                record_count: count.into(),
            })
        });
        let sub_model = any::<(u32, [u64; RECORD_SIZE_WORDS], Vec<u64>)>();
        let sub_model = sub_model.prop_map(|(number, record, table)| ModelNews::SubModel {
            number,
            record,
            table,
        });
        let news = prop_oneof![Just(ModelNews::None), head, sub_model];
        (any::<Option<u64>>(), any::<u32>(), news).prop_map(|(found, leaf, news)| LookUpReply {
            found,
            leaf: RemoteAddr::from_word(leaf.into()),
            news,
        })
    }

    fn replies() -> impl Strategy<Value = WordReply> {
        let pairs = || proptest::collection::vec(any::<(u64, u64)>(), 0..40);
        prop_oneof![
            any::<Option<u64>>().prop_map(WordReply::Found),
            proptest::collection::vec(any::<Option<u64>>(), 0..40).prop_map(WordReply::Several),
            pairs().prop_map(WordReply::Records),
            any::<u64>().prop_map(WordReply::Count),
            reply().prop_map(|reply| WordReply::LookUpReply(Box::new(reply))),
            (0..Failure::ALL.len()).prop_map(|index| WordReply::Failed(Failure::ALL[index])),
            any::<u8>().prop_map(|node| WordReply::NodeLost(NodeId(node))),
        ]
    }

    /// Format: a later version that changes it must have another number.
    #[test]
    fn bytes_are_golden() {
        let mut bytes = Vec::new();
        WordReply::Several(vec![None, Some(7)]).encode(&mut bytes);
        let words = [0x0000_0002_0001_0000_u64, 0, 0, 1, 7];
        assert_eq!(bytes, words.map(u64::to_le_bytes).concat());
        assert_eq!(bytes.len(), WordReply::size_bytes(2));
        WordReply::NodeLost(NodeId(3)).encode(&mut bytes);
        assert_eq!(bytes, 0x0000_0003_0000_0007_u64.to_le_bytes());
    }

    proptest! {
        /// Checks that every reply is decoded as encoded, and that truncated or longer ones are
        /// rejected.
        #[test]
        fn replies_come_back(reply in replies()) {
            let mut bytes = Vec::new();
            reply.encode(&mut bytes);
            prop_assert_eq!(WordReply::decode(&bytes), Ok(reply));
            prop_assert!(WordReply::decode(&bytes[..bytes.len() - 8]).is_err());
            bytes.extend([0; 8]);
            prop_assert!(WordReply::decode(&bytes).is_err());
        }

        /// Checks that decoding any bytes returns a reply or an error, and that a decoded reply is
        /// encoded to the same bytes.
        #[test]
        fn any_bytes_can_be_read(
            head in 0..10_u64,
            shape in 0..6_u64,
            count in 0..4_u64,
            rest: Vec<u64>,
        ) {
            let words = core::iter::once(head | shape << 16 | count << 32).chain(rest);
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            if let Ok(reply) = WordReply::decode(&bytes) {
                let mut written = Vec::new();
                reply.encode(&mut written);
                prop_assert_eq!(WordReply::decode(&written), Ok(reply));
            }
        }
    }
}
