//! Format of a snapshot, in words.
//!
//! ```text
//! header (2 blocks) | one block per model | page heads | residual pages
//!     | leaf table, one word per leaf, if there is one | synonym leaf tables
//! ```
//!
//! | header word | meaning | | model word | meaning |
//! |---|---|---|---|---|
//! | 0 | magic | | 0 | first key |
//! | 1 | table id (32), generation (16) | | 1 | slope, binary64 |
//! | 2 | models | | 2 | error (32), intercept (32), binary32 |
//! | 3 | trained leaves | | 3 | first leaf |
//! | 4 | records trained on | | 4 | synonym capacity (32), leaves (32) |
//! | 5 | shift of positions | | 5 | synonym leaf table |
//! | 6 | 0 | | 6 | 0 |
//! | 7 | 1 if there is a leaf table (32), its checksum (32) | | 7 | checksum of words 0 to 6 |
//! | 15 | checksum of words 0 to 14 | | | with the generation |
//!
//! Without a leaf table, the leaves of a model are adjacent, starting at its first one. With one,
//! word i has the address of the snapshot's leaf i, and a model's "first leaf" repeats its first
//! word.
//!
//! Page heads and residual pages are in `page.rs`. A synonym leaf table is two counters, then
//! entries. The first counter is the number of entries (`slot_use`), the second the number of the
//! model's leaves that deletes have made underfull. An entry is a leaf's address, with the number
//! of the parent in its model in the spare bits.

use farleaf_base::{RemoteAddr, TableId, crc32c};

use crate::directory::Model;
use crate::snapshot::page::WordRange;

/// Size of the header in words.
pub const HEADER_SIZE_WORDS: usize = 16;
/// Size of one model in words.
pub(super) const MODEL_SIZE_WORDS: usize = 8;
/// Magic word: "FLSNAP" and the format's version, which is 2 since there are pages and leaf tables.
const MAGIC: u64 = u64::from_le_bytes(*b"FLSNAP\x02\0");
/// Largest number of models and of leaves that a snapshot may claim; larger numbers mean
/// corruption.
const COUNT_MAX: u64 = u32::MAX as u64;
const SHIFT_MAX: u64 = 32;
/// Flag in the upper half of header word 7: there is a leaf table.
const HAS_LEAF_TABLE: u64 = 1 << 32;

/// Header of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotHeader {
    /// Table that the snapshot belongs to.
    pub table: TableId,
    /// Generation of the load that created it.
    pub generation: u16,
    /// Number of models.
    pub model_count: u32,
    /// Number of leaves of all models.
    pub leaf_count: u32,
    /// Number of records that the training saw.
    pub record_count: u64,
    /// Scale of positions: their unit is 2^-shift leaves.
    pub shift: u32,
    /// CRC-32C of the leaf table's words, if there is one.
    pub leaf_table_checksum: Option<u32>,
}

impl SnapshotHeader {
    /// Returns the words of the header.
    pub fn encode(&self) -> [u64; HEADER_SIZE_WORDS] {
        let mut words = [0; HEADER_SIZE_WORDS];
        words[0] = MAGIC;
        words[1] = u64::from(self.table.0) << 32 | u64::from(self.generation);
        words[2] = self.model_count.into();
        words[3] = self.leaf_count.into();
        words[4] = self.record_count;
        words[5] = self.shift.into();
        let leaf_table = self.leaf_table_checksum;
        words[7] = leaf_table.map_or(0, |checksum| HAS_LEAF_TABLE | u64::from(checksum));
        words[15] = crc32c(&words[..15]).into();
        words
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// A description of the corruption.
    pub fn decode(words: &[u64]) -> Result<Self, String> {
        if words[0] != MAGIC {
            return Err(format!("invalid magic number {:#018x}", words[0]));
        }
        if words[15] != u64::from(crc32c(&words[..15])) {
            return Err("checksum mismatch in its header".to_owned());
        }
        let in_range = (1..=COUNT_MAX).contains(&words[2])
            && (words[2]..=COUNT_MAX).contains(&words[3])
            && words[5] <= SHIFT_MAX;
        if !in_range {
            return Err("a number in its header is out of range".to_owned());
        }
        let leaf_table_checksum = match words[7] {
            0 => None,
            word if word >> 32 == HAS_LEAF_TABLE >> 32 => Some(word as u32),
            word => return Err(format!("invalid leaf table descriptor {word:#018x}")),
        };
        Ok(Self {
            table: TableId((words[1] >> 32) as u32),
            generation: words[1] as u16,
            model_count: words[2] as u32,
            leaf_count: words[3] as u32,
            record_count: words[4],
            shift: words[5] as u32,
            leaf_table_checksum,
        })
    }

    /// Returns where the models are: after the header.
    pub fn models(&self) -> WordRange {
        WordRange {
            start: HEADER_SIZE_WORDS,
            word_count: self.model_count as usize * MODEL_SIZE_WORDS,
        }
    }

    /// Returns where the leaf table is: after the residual pages. The piece is empty if there is
    /// none.
    pub(super) fn leaf_table(&self) -> WordRange {
        let residuals = self.residuals();
        let has_table = self.leaf_table_checksum.is_some();
        WordRange {
            start: residuals.start + residuals.word_count,
            word_count: usize::from(has_table) * self.leaf_count as usize,
        }
    }
}

/// Returns the words of one model.
pub fn encode_model(model: &Model, generation: u16) -> [u64; MODEL_SIZE_WORDS] {
    let mut words = [
        model.first_key,
        model.slope.to_bits(),
        u64::from(model.error_max.to_bits()) << 32 | u64::from(model.intercept.to_bits()),
        model.base.word(),
        u64::from(model.synonym_capacity) << 32 | u64::from(model.leaf_count),
        model.synonym_table.word(),
        0,
        0,
    ];
    words[7] = model_checksum(&words, generation);
    words
}

/// Decodes one model.
///
/// # Errors
/// A description of the corruption.
pub fn decode_model(words: &[u64], generation: u16) -> Result<Model, String> {
    if words[7] != model_checksum(words, generation) {
        return Err("checksum mismatch in a model".to_owned());
    }
    let model = Model {
        first_key: words[0],
        slope: f64::from_bits(words[1]),
        intercept: f32::from_bits(words[2] as u32),
        error_max: f32::from_bits((words[2] >> 32) as u32),
        base: RemoteAddr::from_word(words[3]),
        leaf_count: words[4] as u32,
        synonym_capacity: (words[4] >> 32) as u32,
        synonym_table: RemoteAddr::from_word(words[5]),
    };
    let sound = model.slope.is_finite()
        && model.slope >= 0.0
        && model.intercept.is_finite()
        && model.error_max >= 0.0
        && (1..=Model::LEAF_COUNT_MAX).contains(&model.leaf_count);
    if sound {
        Ok(model)
    } else {
        Err("a number in a model is out of range".to_owned())
    }
}

fn model_checksum(words: &[u64], generation: u16) -> u64 {
    let mut input = [0; MODEL_SIZE_WORDS];
    input[..7].copy_from_slice(&words[..7]);
    input[7] = generation.into();
    crc32c(&input).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;
    use proptest::prelude::*;

    fn header() -> SnapshotHeader {
        SnapshotHeader {
            table: TableId(5),
            generation: 2,
            model_count: 3,
            leaf_count: 1000,
            record_count: 6000,
            shift: 5,
            leaf_table_checksum: None,
        }
    }

    fn header_with_leaf_table() -> SnapshotHeader {
        SnapshotHeader {
            leaf_table_checksum: Some(0x1234),
            ..header()
        }
    }

    fn model() -> Model {
        Model {
            first_key: 77,
            slope: 0.5,
            intercept: -1.0,
            error_max: 2.5,
            base: RemoteAddr::new(NodeId(0), 4096),
            leaf_count: 300,
            synonym_table: RemoteAddr::new(NodeId(0), 99),
            synonym_capacity: 32,
        }
    }

    #[test]
    fn words_are_golden() {
        let words = header().encode();
        assert_eq!(
            words[..8],
            [0x0002_5041_4E53_4C46, 5 << 32 | 2, 3, 1000, 6000, 5, 0, 0]
        );
        assert_eq!(header_with_leaf_table().encode()[7], 1 << 32 | 0x1234);
        let words = encode_model(&model(), 2);
        assert_eq!(
            words[..7],
            [
                77,
                0x3FE0 << 48,
                0x4020_0000_BF80_0000,
                4096,
                0x20_0000_012C,
                99,
                0
            ]
        );
    }

    #[test]
    fn both_survive_the_way_and_are_bound_to_their_generation() {
        for header in [header(), header_with_leaf_table()] {
            assert_eq!(SnapshotHeader::decode(&header.encode()), Ok(header));
        }
        assert_eq!(decode_model(&encode_model(&model(), 2), 2), Ok(model()));
        assert!(decode_model(&encode_model(&model(), 2), 3).is_err());
    }

    /// A word that is neither "no leaf table" nor "leaf table" is rejected, even with a valid
    /// checksum.
    #[test]
    fn a_leaf_table_is_there_or_not() {
        for word in [1, 2 << 32, 1 << 33 | 7, u64::MAX] {
            let mut words = header().encode();
            words[7] = word;
            words[15] = crc32c(&words[..15]).into();
            assert!(SnapshotHeader::decode(&words).is_err(), "{word:#x}");
        }
    }

    #[test]
    fn impossible_models_with_good_checksums_are_refused() {
        for bad in [
            Model {
                slope: f64::NAN,
                ..model()
            },
            Model {
                slope: -1.0,
                ..model()
            },
            Model {
                intercept: f32::INFINITY,
                ..model()
            },
            Model {
                error_max: f32::NAN,
                ..model()
            },
            Model {
                leaf_count: 0,
                ..model()
            },
            Model {
                leaf_count: Model::LEAF_COUNT_MAX + 1,
                ..model()
            },
        ] {
            assert!(decode_model(&encode_model(&bad, 2), 2).is_err(), "{bad:?}");
        }
    }

    proptest! {
        /// Decoding arbitrary words does not panic, and detects corruption.
        #[test]
        fn any_words_are_refused_or_decoded(
            mut words in proptest::collection::vec(any::<u64>(), HEADER_SIZE_WORDS),
            flip in 1_u64.., at in 0_usize..7, header_at in 0_usize..15,
        ) {
            prop_assert!(SnapshotHeader::decode(&words).is_err());
            prop_assert!(decode_model(&words, 1).is_err());
            words[0] = MAGIC;
            words[15] = crc32c(&words[..15]).into();
            let _ = SnapshotHeader::decode(&words);
            let mut damaged = header().encode();
            damaged[header_at] ^= flip;
            prop_assert!(SnapshotHeader::decode(&damaged).is_err());
            let mut damaged = encode_model(&model(), 2);
            damaged[at] ^= flip;
            prop_assert!(decode_model(&damaged, 2).is_err());
        }
    }
}
