//! Models as they lie in far memory, and as replies bring them.
//!
//! A sub-model's record is one block; those of a generation lie side by side, by number.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | CRC-32C (32) over place, table id, the version and words 1 to 7; version (32) |
//! | 1 | the first key that it was fitted to |
//! | 2, 3 | slope and intercept, as the bits of an `f64` |
//! | 4 | leaves that it covers (32), generation (32) |
//! | 5 | by how much a prediction can be less than a leaf's number, and greater, as bits of `f32` |
//! | 6 | where its translation table is |
//! | 7 | 0 |
//!
//! An entry of a translation table is a word: where the leaf is, and in the 16 bits that addresses
//! leave, where it begins as the model predicts it ([`SubModel::residual`]).

use farleaf_model::recursive::{SUB_MODEL_SIZE_WORDS, SubModel, TOP_MODEL_SIZE_WORDS, TopModel};
use farleaf_types::{RemoteAddr, TableId, crc32c};

/// Words of a sub-model's record: a block.
pub const RECORD_SIZE_WORDS: usize = 8;
/// Words of a head.
pub const HEAD_SIZE_WORDS: usize = TOP_MODEL_SIZE_WORDS + 4;

/// Which state of a sub-model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelVersion {
    /// Of the top model, from 1; 0: none.
    pub generation: u32,
    /// The sub-model's number.
    pub number: u32,
    /// Of the sub-model, from 1; 0: none.
    pub version: u32,
}

/// Where a client expects a key: a position in a sub-model's translation table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of which state of which sub-model.
    pub of: ModelVersion,
    /// The position.
    pub index: u32,
}

/// What a client needs to find the sub-models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelHead {
    /// Greater than that of all heads before.
    pub generation: u32,
    /// Sends keys to sub-models.
    pub top: TopModel,
    /// The first one's record.
    pub records: RemoteAddr,
    /// How many leaves there were.
    pub leaf_count: u64,
    /// And how many records.
    pub record_count: u64,
}

/// A sub-model, as clients read it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubModelRecord {
    /// Greater than that of all before with its number, of its generation.
    pub version: u32,
    /// Of the top model that sends keys to it.
    pub generation: u32,
    /// Predicts positions.
    pub model: SubModel,
    /// Where they lead.
    pub table: RemoteAddr,
}

impl ModelHead {
    /// The record of a sub-model.
    pub fn record(&self, number: u32) -> RemoteAddr {
        self.records.offset_blocks(number.into())
    }

    /// As words of a reply.
    pub fn encode(&self) -> [u64; HEAD_SIZE_WORDS] {
        let [first_x, slope, intercept, count] = self.top.words();
        let generation = self.generation.into();
        let records = self.records.word();
        [
            generation,
            first_x,
            slope,
            intercept,
            count,
            records,
            self.leaf_count,
            self.record_count,
        ]
    }

    /// The head that was written so; `None`: none was.
    pub fn decode(words: &[u64; HEAD_SIZE_WORDS]) -> Option<Self> {
        let [generation, first_x, slope, intercept, count, records, ..] = *words;
        let generation = u32::try_from(generation).ok()?;
        (generation > 0 && words[6] > 0).then_some(())?;
        Some(Self {
            generation,
            top: TopModel::from_words(&[first_x, slope, intercept, count])?,
            records: RemoteAddr::from_word(records),
            leaf_count: words[6],
            record_count: words[7],
        })
    }
}

impl SubModelRecord {
    /// As a block at a place.
    pub fn encode(&self, place: RemoteAddr, table: TableId) -> [u64; RECORD_SIZE_WORDS] {
        let [first_x, slope, intercept, count, errors] = self.model.words();
        let count = count | u64::from(self.generation) << 32;
        let table_word = self.table.word();
        let mut words = [0, first_x, slope, intercept, count, errors, table_word, 0];
        words[0] = u64::from(self.version) << 32;
        words[0] |= u64::from(checksum(&words, place, table));
        words
    }

    /// The sub-model at a place; `None`: it is torn, or there is none of the table.
    pub fn decode(
        words: &[u64; RECORD_SIZE_WORDS],
        place: RemoteAddr,
        table: TableId,
    ) -> Option<Self> {
        if words[0] as u32 != checksum(words, place, table) {
            return None;
        }
        let mut model = [0; SUB_MODEL_SIZE_WORDS];
        model.copy_from_slice(&words[1..=SUB_MODEL_SIZE_WORDS]);
        let generation = (words[4] >> 32) as u32;
        model[3] &= u64::from(u32::MAX);
        Some(Self {
            version: (words[0] >> 32) as u32,
            generation,
            model: SubModel::from_words(&model)?,
            table: RemoteAddr::from_word(words[6]),
        })
    }
}

fn checksum(words: &[u64; RECORD_SIZE_WORDS], place: RemoteAddr, table: TableId) -> u32 {
    let [_, rest @ ..] = *words;
    let mut covered = [0; RECORD_SIZE_WORDS + 2];
    covered[0] = place.place().word();
    covered[1] = u64::from(table.0);
    covered[2] = words[0] >> 32;
    covered[3..].copy_from_slice(&rest);
    crc32c(&covered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_types::NodeId;
    use proptest::prelude::*;

    fn model() -> SubModel {
        let (slope, intercept) = (0.5_f64.to_bits(), 0.25_f64.to_bits());
        let [behind, ahead] = [1.5_f32, 2.5].map(|error| u64::from(error.to_bits()));
        let words = [5, slope, intercept, 3, behind | ahead << 32];
        SubModel::from_words(&words).expect("a model")
    }

    fn record() -> SubModelRecord {
        SubModelRecord {
            version: 3,
            generation: 2,
            model: model(),
            table: RemoteAddr::new(NodeId(0), 77),
        }
    }

    const PLACE: RemoteAddr = RemoteAddr::new(NodeId(1), 500);

    /// The format: a later version that changes it must say so.
    #[test]
    fn records_are_golden() {
        let words = record().encode(PLACE, TableId(9));
        assert_eq!(words[0] >> 32, 3);
        assert_eq!(words[1], 5);
        assert_eq!(words[4], 3 | 2 << 32);
        assert_eq!(words[6], 77);
        assert_eq!(words[7], 0);
        assert_eq!(words[0] as u32, 0xBC95_E745);
    }

    /// Promise (Y5): a record is read as it was written, and not as one of another place, another
    /// table, or with any word changed.
    #[test]
    fn records_are_of_their_place() {
        let words = record().encode(PLACE, TableId(9));
        assert_eq!(
            SubModelRecord::decode(&words, PLACE, TableId(9)),
            Some(record())
        );
        let other = PLACE.offset_blocks(1);
        assert_eq!(SubModelRecord::decode(&words, other, TableId(9)), None);
        assert_eq!(SubModelRecord::decode(&words, PLACE, TableId(8)), None);
        for index in 0..RECORD_SIZE_WORDS {
            let mut words = words;
            words[index] ^= 1 << 40;
            let read = SubModelRecord::decode(&words, PLACE, TableId(9));
            assert_eq!(read, None, "word {index}");
        }
    }

    proptest! {
        /// Promise: any words are a head or none, and a head is written as it was read.
        #[test]
        fn any_words_can_be_a_head(mut words: [u64; HEAD_SIZE_WORDS], small: bool) {
            if small {
                words[0] &= 0xFFFF;
                words[4] &= 0xFFFF;
                words[2] = 1.0_f64.to_bits();
                words[3] = 0;
            }
            if let Some(head) = ModelHead::decode(&words) {
                prop_assert_eq!(head.encode(), words);
            }
        }
    }
}
