//! Layout of a snapshot and its header, in words.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | `MAGIC` |
//! | 1 | table (32), generation (16), residuals: kind (8: 0 none, 1 bytes, 2 packed), shift (8) |
//! | 2 | number of records that the models were trained on |
//! | 3 | models (32), pages (32) |
//! | 4 | parts (32), bytes of their first fences (32) |
//! | 5 | CRC-32C of the header's other words and the part table (32) |
//! | 6 | words of all parts |
//! | 7.. | the part table: three words for each part (`heads`), then their first fences |
//! | .. | the parts, one after the other (`part`) |

use farleaf_base::limits::KEY_SIZE_BYTES_MAX;
use farleaf_base::{TableId, crc32c};
use farleaf_model::strings::Residuals;

use super::model::MODEL_SIZE_WORDS;

/// Words before the part table.
pub const HEADER_SIZE_WORDS: usize = 7;
/// "FLBYTES" and the version of this format.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"FLBYTES\x03");
/// Size of the longest fence: a key and a zero byte.
const FENCE_SIZE_BYTES_MAX: u64 = KEY_SIZE_BYTES_MAX as u64 + 1;
/// Position of the checksum in the header.
pub(super) const CHECKSUM_WORD: usize = 5;
/// Maximum size of all parts: heads count words in 32 bits.
const PARTS_SIZE_WORDS_MAX: u64 = u32::MAX as u64;
/// Minimum size of a part.
const PART_SIZE_WORDS_LEAST: u64 = (PART_HEADER_SIZE_WORDS + MODEL_SIZE_WORDS) as u64;
/// Words of a part in the part table, without its first fence.
pub(super) const HEAD_SIZE_WORDS: usize = 3;
/// Words of a part before its models.
pub(super) const PART_HEADER_SIZE_WORDS: usize = 8;

/// Properties that all parts of a snapshot share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotShape {
    pub(super) table: TableId,
    pub(crate) generation: u16,
    pub(super) residual_kind: u8,
    pub(super) shift: u8,
}

impl SnapshotShape {
    fn of_word(word: u64) -> Result<Self, String> {
        let shape = Self {
            table: TableId(word as u32),
            generation: (word >> 32) as u16,
            residual_kind: (word >> 48) as u8,
            shift: (word >> 56) as u8,
        };
        if shape.residual_kind > 2 {
            return Err(format!("unknown residual kind {}", shape.residual_kind));
        }
        Ok(shape)
    }

    /// Returns word 1 of the header.
    pub(super) fn word(self) -> u64 {
        u64::from(self.table.0)
            | u64::from(self.generation) << 32
            | u64::from(self.residual_kind) << 48
            | u64::from(self.shift) << 56
    }

    /// Returns an empty list of residuals of this kind.
    pub(super) fn none_yet(self) -> Residuals {
        match self.residual_kind {
            0 => Residuals::None,
            1 => Residuals::Bytes {
                shift: self.shift.into(),
                residuals: Vec::new(),
            },
            _ => Residuals::Packed { blocks: Vec::new() },
        }
    }
}

/// Header of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) shape: SnapshotShape,
    pub(crate) record_count: u64,
    pub(crate) model_count: u32,
    pub(crate) page_count: u32,
    pub(super) part_count: u32,
    pub(super) fence_size_bytes: u32,
    pub(super) table_size_words: usize,
    pub(super) parts_size_words: u64,
    checksum: u64,
}

impl Header {
    /// Decodes a header.
    ///
    /// # Errors
    /// Describes what is wrong with the words.
    pub(super) fn decode(words: &[u64]) -> Result<Self, String> {
        if words.len() < HEADER_SIZE_WORDS {
            return Err("its header is truncated".to_owned());
        }
        let [version, ours] = [words[0], MAGIC].map(|word| word >> 56);
        if words[0] << 8 != MAGIC << 8 {
            return Err("it has an invalid magic number".to_owned());
        }
        if version != ours {
            return Err(format!("it has format version {version}, expected {ours}"));
        }
        let mut header = Self {
            shape: SnapshotShape::of_word(words[1])?,
            record_count: words[2],
            model_count: words[3] as u32,
            page_count: (words[3] >> 32) as u32,
            part_count: words[4] as u32,
            fence_size_bytes: (words[4] >> 32) as u32,
            checksum: words[CHECKSUM_WORD],
            table_size_words: 0,
            parts_size_words: words[6],
        };
        let table_size_words = header.checked_table_size_words();
        header.table_size_words = table_size_words.ok_or("its sizes are invalid")?;
        Ok(header)
    }

    /// Returns the words of the part table; `None` if neither it nor the parts after it can be so
    /// large.
    fn checked_table_size_words(&self) -> Option<usize> {
        let parts = u64::from(self.part_count);
        let is_possible = (1..=u64::from(self.model_count)).contains(&parts)
            && self.model_count <= self.page_count
            && parts * PART_SIZE_WORDS_LEAST <= self.parts_size_words
            && self.parts_size_words <= PARTS_SIZE_WORDS_MAX
            && u64::from(self.fence_size_bytes) <= parts * FENCE_SIZE_BYTES_MAX;
        let fences = self.fence_size_bytes.div_ceil(8) as usize;
        is_possible.then_some(parts as usize * HEAD_SIZE_WORDS + fences)
    }

    /// Returns the words of the snapshot: header, part table and parts.
    pub(super) fn size_words(&self) -> u64 {
        (HEADER_SIZE_WORDS + self.table_size_words) as u64 + self.parts_size_words
    }

    /// Returns whether the checksum matches the header's other words and the part table.
    pub(super) fn is_sealed(&self, header_and_table: &[u64]) -> bool {
        self.checksum == checksum(header_and_table)
    }
}

/// Returns the checksum of the header and the part table.
pub(super) fn checksum(words: &[u64]) -> u64 {
    let mut checked = words.to_vec();
    checked[CHECKSUM_WORD] = 0;
    u64::from(crc32c(&checked))
}
