//! Format of a snapshot, in words.
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

use std::collections::BTreeSet;

use crate::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
use farleaf_base::limits::KEY_SIZE_BYTES_MAX;
use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, TableId, WORD_SIZE_BYTES, crc32c};
use farleaf_leaf::strings::PageGeometry;
use farleaf_model::strings::{Residuals, StringSegment};
use farleaf_pool::PoolLayout;
use farleaf_pool::layout::{CHUNK_SIZE_BYTES, ChunkIndex};

use super::heads::{HEAD_SIZE_WORDS, Heads, encode_heads};
use super::model::MODEL_SIZE_WORDS;
use super::part::{PART_HEADER_SIZE_WORDS, Part, encode_part, halves, spans_of};
use crate::strings::directory::{ByteDirectory, Run};

/// Words before the part table.
pub const HEADER_SIZE_WORDS: usize = 7;
/// "FLBYTES" and the version of this format.
const MAGIC: u64 = u64::from_le_bytes(*b"FLBYTES\x03");
/// Size of the longest fence: a key and a zero byte.
const FENCE_SIZE_BYTES_MAX: u64 = KEY_SIZE_BYTES_MAX as u64 + 1;
pub(super) const CHECKSUM_WORD: usize = 5;
/// Maximum size of all parts: heads count words in 32 bits.
const PARTS_SIZE_WORDS_MAX: u64 = u32::MAX as u64;
/// Minimum size of a part.
const PART_SIZE_WORDS_LEAST: u64 = (PART_HEADER_SIZE_WORDS + MODEL_SIZE_WORDS) as u64;

/// Result of a training.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Table that the snapshot belongs to.
    pub table: TableId,
    /// Generation of the load that created it.
    pub generation: u16,
    /// Number of records that the models were trained on.
    pub record_count: u64,
    /// Models, in order.
    pub segments: Vec<StringSegment>,
    /// Pages of each model.
    pub runs: Vec<Run>,
    /// Corrections of the predictions.
    pub residuals: Residuals,
}

/// Properties that all parts of a snapshot share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotShape {
    pub(super) table: TableId,
    pub(crate) generation: u16,
    pub(super) residual_kind: u8,
    shift: u8,
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

impl Contents {
    pub(super) fn shape(&self) -> SnapshotShape {
        let (residual_kind, shift) = match &self.residuals {
            Residuals::None => (0, 0),
            Residuals::Bytes { shift, .. } => (1, *shift as u8),
            Residuals::Packed { .. } => (2, 0),
        };
        SnapshotShape {
            table: self.table,
            generation: self.generation,
            residual_kind,
            shift,
        }
    }

    /// Encodes the snapshot without its synonym leaf tables.
    pub(super) fn encode(&self, geometry: PageGeometry) -> Vec<u64> {
        let spans = spans_of(self);
        let parts = spans.iter().map(|span| encode_part(self, span, geometry));
        let parts: Vec<Vec<u64>> = parts.collect();
        let (table, fence_size_bytes) = encode_heads(self, &spans, &parts, geometry);
        let page_count = self.runs.iter().map(|run| run.page_count).sum();
        let parts_size_words: usize = parts.iter().map(Vec::len).sum();
        let mut words = vec![
            MAGIC,
            self.shape().word(),
            self.record_count,
            halves(self.runs.len() as u32, page_count),
            halves(parts.len() as u32, fence_size_bytes),
            0,
            parts_size_words as u64,
        ];
        words.extend(table);
        words[CHECKSUM_WORD] = checksum(&words);
        words.extend(parts.concat());
        words
    }

    /// Decodes a snapshot: header, part table and parts. All addresses in it are checked to lie in
    /// chunks of the pool.
    ///
    /// # Errors
    /// Describes what is wrong with the words.
    pub(super) fn decode(
        words: &[u64],
        layout: &PoolLayout,
        geometry: PageGeometry,
    ) -> Result<Self, String> {
        let header = Header::decode(words)?;
        if words.len() as u64 != header.size_words() {
            return Err("its sizes are invalid".to_owned());
        }
        let (header_and_table, parts) = words.split_at(HEADER_SIZE_WORDS + header.table_size_words);
        let heads = Heads::decode(&header, header_and_table, layout, geometry)?;
        let mut whole = None::<Part>;
        for number in 0..heads.count() {
            let words = &parts[heads.words_of(number)];
            let part = heads.decode_part(number, words, layout, geometry)?;
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.append(part, geometry)?,
            }
        }
        let whole = whole.expect("there is one part at least");
        if whole.runs.len() != header.model_count as usize {
            return Err("its models contradict its header".to_owned());
        }
        Ok(Self {
            table: header.shape.table,
            generation: header.shape.generation,
            record_count: header.record_count,
            segments: whole.segments,
            runs: whole.runs,
            residuals: whole.residuals,
        })
    }

    /// Returns the chunks that the snapshot behind `root` names: those of runs, synonym leaf
    /// tables, and the snapshot itself.
    pub fn named_chunks(
        &self,
        layout: &PoolLayout,
        geometry: PageGeometry,
        root: RemoteAddr,
    ) -> BTreeSet<ChunkIndex> {
        let blocks = |words: usize| (words as u64).div_ceil(BLOCK_SIZE_WORDS);
        let stride = geometry.stride_blocks();
        let runs = self.runs.iter().filter(|run| !run.is_listed());
        let runs = runs.map(|run| (run.base, u64::from(run.page_count) * stride));
        let listed = self.runs.iter().flat_map(|run| run.listed.iter());
        let listed = listed.map(|page| (*page, stride));
        let placed = self.runs.iter().filter(|run| !run.synonym_table.is_null());
        let tables = placed.map(|run| {
            let words = table_size_words(run.synonym_capacity);
            (run.synonym_table, blocks(words))
        });
        let own = (root.place(), blocks(self.encode(geometry).len()));
        let pieces = runs.chain(listed).chain(tables).chain([own]);
        pieces
            .flat_map(|(start, block_count)| {
                let last = start.offset_blocks(block_count.max(1) - 1);
                let chunks = layout.chunk_of(start).zip(layout.chunk_of(last));
                let chunks = chunks.into_iter();
                chunks.flat_map(|(from, to)| (from.0..=to.0).map(ChunkIndex))
            })
            .collect()
    }

    /// Returns the chunks that a snapshot takes if it lists `listed_page_count` pages of the same
    /// kind individually, with synonym leaf tables for all models.
    pub fn chunk_count_listed(&self, geometry: PageGeometry, listed_page_count: u64) -> u64 {
        let unlisted = self.runs.iter().filter(|run| !run.is_listed());
        let unlisted: usize = unlisted.map(|run| run.page_count as usize).sum();
        let tables = self.runs.iter();
        let tables = tables.map(|run| table_size_words(run.synonym_capacity));
        let size_words = self.encode(geometry).len() + unlisted + tables.sum::<usize>();
        let page_counts = self.runs.iter().map(|run| u64::from(run.page_count));
        let page_count = page_counts.sum::<u64>().max(1);
        let size_words = u128::from(listed_page_count) * size_words as u128;
        let size_words = size_words.div_ceil(page_count.into());
        let size_bytes = u64::try_from(size_words).unwrap_or(u64::MAX / WORD_SIZE_BYTES);
        let size_bytes = size_bytes.saturating_mul(WORD_SIZE_BYTES);
        size_bytes.div_ceil(CHUNK_SIZE_BYTES)
    }

    /// Builds the directory that the snapshot describes.
    ///
    /// # Errors
    /// Describes the contradiction in the snapshot.
    pub fn into_directory(self, geometry: PageGeometry) -> Result<ByteDirectory, String> {
        let built = ByteDirectory::build(
            geometry,
            self.generation,
            self.record_count,
            &self.segments,
            self.residuals,
            self.runs,
        );
        built.map_err(|error| error.to_string())
    }
}

/// Returns the words of a synonym leaf table of this capacity: whole blocks.
pub(super) fn table_size_words(capacity: u32) -> usize {
    let words = SYNONYM_TABLE_HEADER_SIZE_WORDS as usize + capacity as usize;
    words.next_multiple_of(BLOCK_SIZE_WORDS as usize)
}

/// Returns the checksum of the header and the part table.
pub(super) fn checksum(words: &[u64]) -> u64 {
    let mut checked = words.to_vec();
    checked[CHECKSUM_WORD] = 0;
    u64::from(crc32c(&checked))
}
