//! The words of a snapshot.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | `MAGIC` |
//! | 1 | table (32), generation (16), kind of residuals (8: 0 none, 1 bytes, 2 packed), their shift (8) |
//! | 2 | records that it was trained on |
//! | 3 | models (32), pages (32) |
//! | 4 | bytes of all first fences |
//! | 5 | CRC-32C of all other words |
//! | 6 | pages that are listed one by one |
//! | 7 | bytes of all entries of front-coded models |
//! | 8 | models that are lines (32), their pages (32) |
//! | 9.. | six words for each model (`model`) |
//! | .. | the first fences, one after the other, filled up to a word |
//! | .. | the entries of front-coded models, likewise |
//! | .. | the residuals of lines, likewise |
//! | .. | where the listed pages are, model after model |

use std::collections::BTreeSet;

use farleaf_index::hint::SYNONYM_TABLE_HEADER_SIZE_WORDS;
use farleaf_model::strings::{PackedBlock, Residuals, StringSegment};
use farleaf_page::{KEY_SIZE_BYTES_MAX, PageGeometry};
use farleaf_region::PoolLayout;
use farleaf_region::layout::ChunkIndex;
use farleaf_types::{BLOCK_SIZE_WORDS, RemoteAddr, TableId, crc32c};

use super::model::{MODEL_SIZE_WORDS, ModelReader, encode_model};
use crate::directory::{ByteDirectory, Run};

/// Words before the models.
pub const HEADER_SIZE_WORDS: usize = 9;
/// "FLBYTES" and the version of this format.
const MAGIC: u64 = u64::from_le_bytes(*b"FLBYTES\x02");
/// The longest fence: a key and a zero byte. An entry has, before what of it is left, a byte of
/// sizes and two bytes for each of two that are large.
const FENCE_SIZE_BYTES_MAX: u64 = KEY_SIZE_BYTES_MAX as u64 + 1;
const ENTRY_SIZE_BYTES_MAX: u64 = FENCE_SIZE_BYTES_MAX + 5;
pub(super) const CHECKSUM_WORD: usize = 5;

/// What a training found.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Whose it is.
    pub table: TableId,
    /// Which load made it.
    pub generation: u16,
    /// How many records it was trained on.
    pub record_count: u64,
    /// The models, in order.
    pub segments: Vec<StringSegment>,
    /// Where the pages of each are.
    pub runs: Vec<Run>,
    /// What corrects predictions.
    pub residuals: Residuals,
}

/// What the header of a snapshot says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) table: TableId,
    pub(super) generation: u16,
    record_count: u64,
    model_count: u32,
    page_count: u32,
    fence_size_bytes: u64,
    listed_count: u64,
    entries_size_bytes: u64,
    line_count: u32,
    line_page_count: u32,
    residual_kind: u8,
    shift: u8,
    checksum: u64,
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn decode(words: &[u64]) -> Result<Self, String> {
        if words.len() < HEADER_SIZE_WORDS {
            return Err("its header is cut off".to_owned());
        }
        let [version, ours] = [words[0], MAGIC].map(|word| word >> 56);
        if words[0] << 8 != MAGIC << 8 {
            return Err("it does not begin as one".to_owned());
        }
        if version != ours {
            return Err(format!("its format has version {version}, not {ours}"));
        }
        Ok(Self {
            table: TableId(words[1] as u32),
            generation: (words[1] >> 32) as u16,
            residual_kind: (words[1] >> 48) as u8,
            shift: (words[1] >> 56) as u8,
            record_count: words[2],
            model_count: words[3] as u32,
            page_count: (words[3] >> 32) as u32,
            fence_size_bytes: words[4],
            listed_count: words[6],
            entries_size_bytes: words[7],
            line_count: words[8] as u32,
            line_page_count: (words[8] >> 32) as u32,
            checksum: words[CHECKSUM_WORD],
        })
    }

    /// Words behind the header; `None` when no snapshot can be so large.
    pub(super) fn body_size_words(&self) -> Option<usize> {
        let (models, pages) = (u64::from(self.model_count), u64::from(self.page_count));
        let (lines, line_pages) = (u64::from(self.line_count), self.line_page_count.into());
        let is_possible = (1..=pages).contains(&models)
            && lines <= models
            && (lines..=pages).contains(&line_pages)
            && self.listed_count <= pages
            && self.fence_size_bytes <= models * FENCE_SIZE_BYTES_MAX
            && self.entries_size_bytes <= (pages - line_pages) * ENTRY_SIZE_BYTES_MAX;
        let residual_words = match self.residual_kind {
            0 => 0,
            1 => line_pages.div_ceil(8),
            // Each line begins with a block of its own.
            2 => 2 * (line_pages / PackedBlock::LEAF_COUNT as u64 + lines),
            _ => return None,
        };
        if !is_possible {
            return None;
        }
        let strings = [self.fence_size_bytes, self.entries_size_bytes];
        let string_words: u64 = strings
            .iter()
            .map(|size_bytes| size_bytes.div_ceil(8))
            .sum();
        let models = models * MODEL_SIZE_WORDS as u64;
        Some((models + string_words + residual_words + self.listed_count) as usize)
    }
}

impl Contents {
    /// All words but those of the synonym leaf tables.
    pub(super) fn encode(&self) -> Vec<u64> {
        let mut words = vec![0; HEADER_SIZE_WORDS];
        let (mut fences, mut entries) = (Vec::new(), Vec::new());
        for (segment, run) in self.segments.iter().zip(&self.runs) {
            fences.extend_from_slice(segment.first_fence());
            if let StringSegment::FrontCoded(segment) = segment {
                entries.extend_from_slice(segment.entries());
            }
            words.extend(encode_model(segment, run));
        }
        let header = self.header_of(fences.len() as u64, entries.len() as u64);
        words.extend(words_of(&fences));
        words.extend(words_of(&entries));
        match &self.residuals {
            Residuals::None => {}
            Residuals::Bytes { residuals, .. } => {
                let bytes: Vec<u8> = residuals.iter().map(|it| it.cast_unsigned()).collect();
                words.extend(words_of(&bytes));
            }
            Residuals::Packed { blocks } => {
                words.extend(blocks.iter().flat_map(|block| block.words()));
                let size_words = header.body_size_words().expect("it is possible");
                let listed_count = header.listed_count as usize;
                words.resize(HEADER_SIZE_WORDS + size_words - listed_count, 0);
            }
        }
        let listed = self.runs.iter().flat_map(|run| run.listed.iter());
        words.extend(listed.map(|page| page.word()));
        words[0] = MAGIC;
        words[1] = u64::from(header.table.0)
            | u64::from(header.generation) << 32
            | u64::from(header.residual_kind) << 48
            | u64::from(header.shift) << 56;
        words[2] = header.record_count;
        words[3] = u64::from(header.model_count) | u64::from(header.page_count) << 32;
        words[4] = header.fence_size_bytes;
        words[6] = header.listed_count;
        words[7] = header.entries_size_bytes;
        words[8] = u64::from(header.line_count) | u64::from(header.line_page_count) << 32;
        words[CHECKSUM_WORD] = checksum(&words);
        words
    }

    fn header_of(&self, fence_size_bytes: u64, entries_size_bytes: u64) -> Header {
        let (residual_kind, shift) = match &self.residuals {
            Residuals::None => (0, 0),
            Residuals::Bytes { shift, .. } => (1, *shift as u8),
            Residuals::Packed { .. } => (2, 0),
        };
        let lines = || {
            self.segments
                .iter()
                .filter(|segment| !segment.is_front_coded())
        };
        Header {
            table: self.table,
            generation: self.generation,
            record_count: self.record_count,
            model_count: self.runs.len() as u32,
            page_count: self.runs.iter().map(|run| run.page_count).sum(),
            fence_size_bytes,
            listed_count: self.runs.iter().map(|run| run.listed.len() as u64).sum(),
            entries_size_bytes,
            line_count: lines().count() as u32,
            line_page_count: lines().map(StringSegment::leaf_count).sum(),
            residual_kind,
            shift,
            checksum: 0,
        }
    }

    /// Reads a snapshot: header and body. All places that it names lie in chunks of the pool.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn decode(
        words: &[u64],
        (layout, geometry): (&PoolLayout, PageGeometry),
    ) -> Result<Self, String> {
        let header = Header::decode(words)?;
        let body_size_words = header.body_size_words();
        if body_size_words != Some(words.len() - HEADER_SIZE_WORDS) {
            return Err("its sizes cannot be right".to_owned());
        }
        if header.checksum != checksum(words) {
            return Err("its checksum does not match".to_owned());
        }
        let (models, rest) =
            words[HEADER_SIZE_WORDS..].split_at(header.model_count as usize * MODEL_SIZE_WORDS);
        let (fences, rest) = rest.split_at(header.fence_size_bytes.div_ceil(8) as usize);
        let (entries, rest) = rest.split_at(header.entries_size_bytes.div_ceil(8) as usize);
        let (residuals, listed) = rest.split_at(rest.len() - header.listed_count as usize);
        let (fences, entries) = (
            bytes_of(fences, header.fence_size_bytes as usize),
            bytes_of(entries, header.entries_size_bytes as usize),
        );
        let mut reader = ModelReader::new(&fences, &entries, listed);
        let (mut segments, mut runs) = (Vec::new(), Vec::new());
        for words in models.as_chunks::<MODEL_SIZE_WORDS>().0 {
            let (segment, run) = reader.read(words)?;
            check_run(&run, layout, geometry)?;
            segments.push(segment);
            runs.push(run);
        }
        let mut contents = Self {
            table: header.table,
            generation: header.generation,
            record_count: header.record_count,
            segments,
            runs,
            residuals: Residuals::None,
        };
        if !reader.is_over() || !contents.agrees_with(&header) {
            return Err("its models contradict its header".to_owned());
        }
        contents.residuals = decode_residuals(&header, residuals, &contents.segments);
        Ok(contents)
    }

    /// Whether a header counts models and pages right.
    fn agrees_with(&self, header: &Header) -> bool {
        let pages_of = |are_lines_only: bool| -> u64 {
            let segments = self.segments.iter();
            let counted = segments.filter(|it| !(are_lines_only && it.is_front_coded()));
            counted.map(|segment| u64::from(segment.leaf_count())).sum()
        };
        let lines = self.segments.iter().filter(|it| !it.is_front_coded());
        pages_of(false) == u64::from(header.page_count)
            && pages_of(true) == u64::from(header.line_page_count)
            && lines.count() == header.line_count as usize
    }

    /// The chunks that hold anything that it names, if it is the snapshot behind `root`: runs,
    /// synonym leaf tables, and itself.
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
        let own = (root.place(), blocks(self.encode().len()));
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

    /// The directory that it describes.
    ///
    /// # Errors
    /// What contradicts itself in it.
    pub fn into_directory(self, geometry: PageGeometry) -> Result<ByteDirectory, String> {
        let trained = (self.generation, self.record_count);
        let built =
            ByteDirectory::build(geometry, trained, &self.segments, self.residuals, self.runs);
        built.map_err(|error| error.to_string())
    }
}

/// Whether all that a run names lies in chunks of the pool.
fn check_run(run: &Run, layout: &PoolLayout, geometry: PageGeometry) -> Result<(), String> {
    let spans = |start: RemoteAddr, block_count: u64| {
        let last = start.block() + block_count.max(1) - 1;
        last < RemoteAddr::BLOCK_COUNT_MAX
            && start.spare() == 0
            && layout.chunk_of(start).is_some()
            && layout
                .chunk_of(RemoteAddr::new(start.node(), last))
                .is_some()
    };
    let blocks = table_size_words(run.synonym_capacity) as u64 / BLOCK_SIZE_WORDS;
    let pages = u64::from(run.page_count) * geometry.stride_blocks();
    let stride = geometry.stride_blocks();
    let is_run_inside = if run.is_listed() {
        run.listed.iter().all(|page| spans(*page, stride))
    } else {
        spans(run.base, pages)
    };
    let is_inside =
        is_run_inside && (run.synonym_table.is_null() || spans(run.synonym_table, blocks));
    if is_inside {
        return Ok(());
    }
    Err(format!("the model at {} leaves the pool", run.base))
}

fn decode_residuals(header: &Header, words: &[u64], segments: &[StringSegment]) -> Residuals {
    match header.residual_kind {
        1 => Residuals::Bytes {
            shift: header.shift.into(),
            residuals: bytes_of(words, header.line_page_count as usize)
                .into_iter()
                .map(u8::cast_signed)
                .collect(),
        },
        2 => {
            let none_yet = Residuals::Packed { blocks: Vec::new() };
            let counts = segments.iter().map(|segment| none_yet.count_of(segment));
            let (words, _) = words.as_chunks::<2>();
            let blocks = words.iter().take(counts.sum());
            Residuals::Packed {
                blocks: blocks
                    .map(|words| PackedBlock::from_words(*words))
                    .collect(),
            }
        }
        _ => Residuals::None,
    }
}

/// Words of a synonym leaf table with so much room: whole blocks.
pub(super) fn table_size_words(capacity: u32) -> usize {
    let words = SYNONYM_TABLE_HEADER_SIZE_WORDS as usize + capacity as usize;
    words.next_multiple_of(BLOCK_SIZE_WORDS as usize)
}

fn checksum(words: &[u64]) -> u64 {
    let mut checked = words.to_vec();
    checked[CHECKSUM_WORD] = 0;
    u64::from(crc32c(&checked))
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    })
}

fn bytes_of(words: &[u64], size_bytes: usize) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.take(size_bytes).collect()
}
