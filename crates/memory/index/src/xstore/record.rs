//! Format of models in far memory and in replies.
//!
//! A generation's models are adjacent, in blocks: first the top model's lines, two per block, then
//! the records of the sub-models, by number. A block of lines:
//!
//! | word | meaning |
//! |---|---|
//! | 0 | CRC-32C (32) over place, table id, the generation and words 1 to 7; generation (32) |
//! | 1 to 3 | a line: its first key, slope and intercept, as the bits of an `f64` |
//! | 4 to 6 | the next one, or zeros |
//! | 7 | the first sub-model of each (32 each) |
//!
//! A record:
//!
//! | word | meaning |
//! |---|---|
//! | 0 | CRC-32C (32) over place, table id, the version and words 1 to 7; version (32) |
//! | 1 | the first key that it was fitted to |
//! | 2, 3 | slope and intercept, as the bits of an `f64` |
//! | 4 | leaves that it covers (32), generation (32) |
//! | 5 | largest errors below and above a leaf's number, as bits of `f32` |
//! | 6 | address of its translation table |
//! | 7 | 0 |
//!
//! An entry of a translation table is a word: the leaf's address, and in its 16 spare bits, where
//! the leaf begins according to the model ([`SubModel::residual`]).

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, TableId, crc32c};
use farleaf_model::recursive::{SUB_MODEL_SIZE_WORDS, SubModel, TopLine, TopModel};

/// Size of a sub-model's record in words: a block.
pub const RECORD_SIZE_WORDS: usize = 8;
/// Size of a head in words.
pub const HEAD_SIZE_WORDS: usize = 5;
/// Number of lines of a top model in a block.
const LINES_PER_BLOCK: usize = 2;
/// First input of the checksum of a block of lines, so that it is never taken for a record.
const LINES_MARK: u64 = 0x4C49_4E45_5300_0000;

const _: () = assert!(RECORD_SIZE_WORDS as u64 == BLOCK_SIZE_WORDS);

/// Version of a sub-model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelVersion {
    /// Generation of the top model, from 1; 0 if there is none.
    pub generation: u32,
    /// Number of the sub-model.
    pub number: u32,
    /// Version of the sub-model, from 1; 0 if there is none.
    pub version: u32,
}

/// Position in a sub-model's translation table where a client expects a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePosition {
    /// Version of the sub-model.
    pub of: ModelVersion,
    /// Position in the table.
    pub index: u32,
}

/// Address and size of a generation's models, as a client needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelHead {
    /// Generation, higher than in all previous heads.
    pub generation: u32,
    /// Number of sub-models.
    pub sub_model_count: u32,
    /// Number of lines of the top model, at most that of sub-models.
    pub line_count: u32,
    /// Address of the models, lines first.
    pub records: RemoteAddr,
    /// Number of leaves at the time of the training.
    pub leaf_count: u64,
    /// Number of records at the time of the training.
    pub record_count: u64,
}

/// Generation of models as a client holds it before it reads sub-models.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// Address and size of the models.
    pub head: ModelHead,
    /// Top model, which sends keys to sub-models.
    pub top: TopModel,
}

/// Sub-model, as clients read it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubModelRecord {
    /// Version, higher than in all previous records of its number and generation.
    pub version: u32,
    /// Generation of the top model that sends keys to it.
    pub generation: u32,
    /// Model that predicts positions.
    pub model: SubModel,
    /// Address of the translation table.
    pub table: RemoteAddr,
}

impl ModelHead {
    /// Returns the address of a sub-model's record.
    pub fn record(&self, number: u32) -> RemoteAddr {
        let lines_block_count = (self.lines_size_words() / RECORD_SIZE_WORDS) as u64;
        self.records
            .offset_blocks(lines_block_count + u64::from(number))
    }

    /// Returns the size of the lines in words, whole blocks.
    pub fn lines_size_words(&self) -> usize {
        (self.line_count as usize).div_ceil(LINES_PER_BLOCK) * RECORD_SIZE_WORDS
    }

    /// Returns the number of blocks of all models.
    pub fn block_count(&self) -> u64 {
        (self.lines_size_words() / RECORD_SIZE_WORDS) as u64 + u64::from(self.sub_model_count)
    }

    /// Returns the words of the top model's lines, which are first in the models' place.
    pub fn encode_lines(&self, top: &TopModel, table: TableId) -> Vec<u64> {
        let pairs = top.lines().chunks(LINES_PER_BLOCK).zip(0..);
        let blocks = pairs.map(|(pair, index)| {
            let mut words = [0; RECORD_SIZE_WORDS];
            for (line, of_pair) in pair.iter().zip(0..) {
                let [first_x, slope, intercept, number] = line.words();
                let from = 1 + 3 * of_pair;
                words[from..from + 3].copy_from_slice(&[first_x, slope, intercept]);
                words[7] |= number << (32 * of_pair);
            }
            words[0] = u64::from(self.generation) << 32;
            words[0] |= u64::from(self.lines_checksum(&words, index, table));
            words
        });
        blocks.flatten().collect()
    }

    /// Adds the lines in some blocks, the first of which has number `first_block`, to those of the
    /// previous blocks. `None` if they are not of this generation of the table, or too many.
    pub fn take_lines(
        &self,
        first_block: u64,
        words: &[u64],
        table: TableId,
        lines: &mut Vec<TopLine>,
    ) -> Option<()> {
        let (blocks, _) = words.as_chunks::<RECORD_SIZE_WORDS>();
        for (block, index) in blocks.iter().zip(first_block..) {
            let is_same = (block[0] >> 32) as u32 == self.generation;
            let is_whole = block[0] as u32 == self.lines_checksum(block, index, table);
            (is_same && is_whole).then_some(())?;
            let left = (self.line_count as usize).checked_sub(lines.len())?;
            for of_pair in 0..left.min(LINES_PER_BLOCK) {
                let from = 1 + 3 * of_pair;
                let number = block[7] >> (32 * of_pair) & u64::from(u32::MAX);
                let line = [block[from], block[from + 1], block[from + 2], number];
                lines.push(TopLine::from_words(&line)?);
            }
        }
        Some(())
    }

    /// Returns the top model made of all its lines; `None` if lines are missing or invalid.
    pub fn top_of(&self, lines: Vec<TopLine>) -> Option<TopModel> {
        let is_all = lines.len() == self.line_count as usize;
        let top = TopModel::from_lines(lines, self.sub_model_count);
        top.filter(|_| is_all)
    }

    fn lines_checksum(&self, words: &[u64; RECORD_SIZE_WORDS], index: u64, table: TableId) -> u32 {
        let place = self.records.offset_blocks(index);
        let mut covered = [LINES_MARK; RECORD_SIZE_WORDS + 3];
        covered[1] = place.place().word();
        covered[2] = u64::from(table.0);
        covered[3] = words[0] >> 32;
        covered[4..].copy_from_slice(&words[1..]);
        crc32c(&covered)
    }

    /// Returns the words of the head in a reply.
    pub fn encode(&self) -> [u64; HEAD_SIZE_WORDS] {
        let line_count = u64::from(self.line_count);
        [
            self.generation.into(),
            u64::from(self.sub_model_count) | line_count << 32,
            self.records.word(),
            self.leaf_count,
            self.record_count,
        ]
    }

    /// Decodes a head; `None` if the words are invalid.
    pub fn decode(words: &[u64; HEAD_SIZE_WORDS]) -> Option<Self> {
        let [generation, counts, records, leaf_count, record_count] = *words;
        let head = Self {
            generation: u32::try_from(generation).ok()?,
            sub_model_count: counts as u32,
            line_count: (counts >> 32) as u32,
            records: RemoteAddr::from_word(records),
            leaf_count,
            record_count,
        };
        let is_one = head.generation > 0
            && head.leaf_count > 0
            && head.line_count > 0
            && head.line_count <= head.sub_model_count;
        is_one.then_some(head)
    }
}

impl SubModelRecord {
    /// Returns the words of the record at an address.
    pub fn encode(&self, place: RemoteAddr, table: TableId) -> [u64; RECORD_SIZE_WORDS] {
        let [first_x, slope, intercept, count, errors] = self.model.words();
        let count = count | u64::from(self.generation) << 32;
        let table_word = self.table.word();
        let mut words = [0, first_x, slope, intercept, count, errors, table_word, 0];
        words[0] = u64::from(self.version) << 32;
        words[0] |= u64::from(checksum(&words, place, table));
        words
    }

    /// Decodes the record at an address; `None` if it is torn, or not of the table.
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
    use farleaf_base::NodeId;
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

    /// Format: a later version that changes it must have another number.
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

    /// Checks that a record is decoded as encoded, and rejected at another place, for another
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

    fn generation() -> Generation {
        // Clusters far from each other, so that one line does not suffice.
        let clusters = [1_u64 << 20, 1 << 30, 1 << 50, 1 << 51, 1 << 62].into_iter();
        let lows = clusters.flat_map(|from| (0..1000).map(move |step| from + step * 30));
        let lows: Vec<u64> = core::iter::once(0).chain(lows).collect();
        let top = TopModel::fit(&lows, 64);
        let head = ModelHead {
            generation: 7,
            sub_model_count: top.sub_model_count(),
            line_count: top.lines().len() as u32,
            records: PLACE,
            leaf_count: 5001,
            record_count: 30_000,
        };
        Generation { head, top }
    }

    /// Format: a later version that changes it must have another number.
    #[test]
    fn heads_and_lines_are_golden() {
        let lines = [[5, 1.0_f64.to_bits(), 0, 0], [9, 0, 0, 3], [70, 0, 0, 4]];
        let lines = lines.iter().map(TopLine::from_words);
        let lines: Option<Vec<_>> = lines.collect();
        let top = TopModel::from_lines(lines.expect("lines"), 6).expect("a top model");
        let head = ModelHead {
            sub_model_count: 6,
            line_count: 3,
            ..generation().head
        };
        assert_eq!(head.encode(), [7, 6 | 3 << 32, PLACE.word(), 5001, 30_000]);
        let words = head.encode_lines(&top, TableId(9));
        assert_eq!(words.len(), head.lines_size_words());
        assert_eq!([words[0] >> 32, words[8] >> 32], [7, 7]);
        assert_eq!(words[1..8], [5, 1.0_f64.to_bits(), 0, 9, 0, 0, 3 << 32]);
        assert_eq!(words[9..16], [70, 0, 0, 0, 0, 0, 4]);
        assert_eq!(
            [words[0] as u32, words[8] as u32],
            [2_378_056_425, 3_614_022_770]
        );
        assert_eq!(head.record(2), PLACE.offset_blocks(4));
        assert_eq!(head.block_count(), 8);
    }

    /// Checks that a top model is decoded as encoded. It is rejected from another place, for
    /// another table or generation, in part, or with any word changed. It is not taken for records.
    #[test]
    fn lines_are_of_their_place() {
        let Generation { head, top } = generation();
        let words = head.encode_lines(&top, TableId(9));
        assert!(head.line_count > 2, "there is more than one block");
        assert_eq!(decode_lines(&head, &words, TableId(9)), Some(top));
        assert_eq!(decode_lines(&head, &words, TableId(8)), None);
        assert_eq!(decode_lines(&head, &words[8..], TableId(9)), None);
        let mut twice = words.clone();
        twice.extend_from_slice(&words);
        assert_eq!(decode_lines(&head, &twice, TableId(9)), None);
        for wrong in [
            ModelHead {
                generation: 6,
                ..head
            },
            ModelHead {
                records: PLACE.offset_blocks(1),
                ..head
            },
            ModelHead {
                line_count: head.line_count + 2,
                ..head
            },
            ModelHead {
                sub_model_count: 2,
                ..head
            },
        ] {
            assert_eq!(decode_lines(&wrong, &words, TableId(9)), None, "{wrong:?}");
        }
        for index in 0..words.len() {
            let mut words = words.clone();
            words[index] ^= 1 << 40;
            assert_eq!(
                decode_lines(&head, &words, TableId(9)),
                None,
                "word {index}"
            );
        }
        for (block, index) in words.as_chunks().0.iter().zip(0..) {
            let place = PLACE.offset_blocks(index);
            assert_eq!(SubModelRecord::decode(block, place, TableId(9)), None);
        }
    }

    fn decode_lines(head: &ModelHead, words: &[u64], table: TableId) -> Option<TopModel> {
        let mut lines = Vec::new();
        // The lines come in two transfers.
        let (first, second) = words.split_at(RECORD_SIZE_WORDS.min(words.len()));
        head.take_lines(0, first, table, &mut lines)?;
        head.take_lines(1, second, table, &mut lines)?;
        head.top_of(lines)
    }

    proptest! {
        /// Checks that any words are a valid or invalid head, and that a decoded head is encoded to
        /// the same words.
        #[test]
        fn any_words_can_be_a_head(mut words: [u64; HEAD_SIZE_WORDS], small: bool) {
            if small {
                words[0] &= 0xFFFF;
                words[1] &= 0x00FF_FFFF_FFFF;
            }
            if let Some(head) = ModelHead::decode(&words) {
                prop_assert_eq!(head.encode(), words);
            }
        }
    }
}
