//! Format of a part of a snapshot: some adjacent models, with all data that they need.
//!
//! | word | meaning |
//! |---|---|
//! | 0 | pages (32), models (32) |
//! | 1 | numbers of its first page (32) and of its first model (32) |
//! | 2 | bytes of all first fences (32), of all entries of front-coded models (32) |
//! | 3 | models that are lines (32), their pages (32) |
//! | 4 | pages that are listed one by one (32), words of the part (32) |
//! | 5 | CRC-32C of word 1 of the snapshot's header, and of all other words of the part |
//! | 6 | the last page of the previous part, or null |
//! | 7 | the first page of the next part, or null |
//! | 8.. | six words for each model (`model`) |
//! | .. | the first fences, one after the other, padded to a word |
//! | .. | the entries of front-coded models, likewise |
//! | .. | the residuals of lines, likewise |
//! | .. | the addresses of the listed pages, model after model |

use core::ops::Range;

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, crc32c};
use farleaf_leaf::strings::PageGeometry;
use farleaf_model::strings::{PackedBlock, Residuals, StringSegment};
use farleaf_pool::PoolLayout;

use super::contents::{Contents, table_size_words};
use super::header::{PART_HEADER_SIZE_WORDS, SnapshotShape};
use super::model::{MODEL_SIZE_WORDS, ModelReader, encode_model};
use crate::strings::directory::{Run, can_be_page};

pub(super) const PART_CHECKSUM_WORD: usize = 5;
/// Lower limit of a part's target size. A part with at least one model is closed before it exceeds
/// a 32nd of all words; this constant and the next one bound that target. A head takes about 5
/// words of a session's budget, so the heads of smaller parts would cost more than the parts save.
/// Larger parts would fetch data that is not needed.
const PART_SIZE_WORDS_MIN: usize = 32;
const PART_SIZE_WORDS_MAX: usize = 256;
const PART_COUNT: usize = 32;

/// Adjacent models of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) first_page: u32,
    pub(crate) first_model: u32,
    /// Number of pages in the part.
    pub(crate) page_count: u32,
    /// Page before the part's first page, and page after its last one, as trained; null if there is
    /// none.
    pub(crate) before: RemoteAddr,
    pub(crate) after: RemoteAddr,
    pub(crate) segments: Vec<StringSegment>,
    pub(crate) runs: Vec<Run>,
    pub(crate) residuals: Residuals,
}

/// Range of a snapshot's models and residuals that a part contains.
#[derive(Clone, Debug)]
pub(super) struct Span {
    pub(super) models: Range<usize>,
    residuals: Range<usize>,
    pub(super) first_page: u32,
}

/// Returns the approximate words of a model in a part.
fn model_size_words(segment: &StringSegment, run: &Run, residuals: &Residuals) -> usize {
    let entries = match segment {
        StringSegment::Line(_) => 0,
        StringSegment::FrontCoded(segment) => segment.entries().len(),
    };
    let residual_size_bytes = match residuals {
        Residuals::Packed { .. } => size_of::<PackedBlock>(),
        Residuals::Bytes { .. } | Residuals::None => 1,
    };
    let bytes =
        segment.first_fence().len() + entries + residuals.count_of(segment) * residual_size_bytes;
    MODEL_SIZE_WORDS + bytes.div_ceil(8) + run.listed.len()
}

/// Divides a snapshot into parts.
pub(super) fn spans_of(contents: &Contents) -> Vec<Span> {
    let models = || contents.segments.iter().zip(&contents.runs);
    let size_of = |(segment, run)| model_size_words(segment, run, &contents.residuals);
    let all_words: usize = models().map(size_of).sum();
    let part_size_words = all_words / PART_COUNT;
    let part_size_words = part_size_words.clamp(PART_SIZE_WORDS_MIN, PART_SIZE_WORDS_MAX);
    let mut spans: Vec<Span> = Vec::new();
    let (mut size_words, mut page, mut residual) = (0, 0, 0);
    for (model, (segment, run)) in models().enumerate() {
        let own_words = size_of((segment, run));
        let residual_end = residual + contents.residuals.count_of(segment);
        size_words += own_words;
        match spans.last_mut() {
            Some(open) if size_words <= part_size_words => {
                (open.models.end, open.residuals.end) = (model + 1, residual_end);
            }
            _ => {
                size_words = PART_HEADER_SIZE_WORDS + own_words;
                spans.push(Span {
                    models: model..model + 1,
                    residuals: residual..residual_end,
                    first_page: page,
                });
            }
        }
        (page, residual) = (page + run.page_count, residual_end);
    }
    spans
}

/// Encodes a part.
pub(super) fn encode_part(contents: &Contents, span: &Span, geometry: PageGeometry) -> Vec<u64> {
    let (segments, runs) = (
        &contents.segments[span.models.clone()],
        &contents.runs[span.models.clone()],
    );
    let mut words = vec![0; PART_HEADER_SIZE_WORDS];
    let (mut fences, mut entries) = (Vec::new(), Vec::new());
    for (segment, run) in segments.iter().zip(runs) {
        fences.extend_from_slice(segment.first_fence());
        if let StringSegment::FrontCoded(segment) = segment {
            entries.extend_from_slice(segment.entries());
        }
        words.extend(encode_model(segment, run));
    }
    words.extend(words_of(&fences));
    words.extend(words_of(&entries));
    match &contents.residuals {
        Residuals::None => {}
        Residuals::Bytes { residuals, .. } => {
            let own = residuals[span.residuals.clone()].iter();
            let bytes: Vec<u8> = own.map(|it| it.cast_unsigned()).collect();
            words.extend(words_of(&bytes));
        }
        Residuals::Packed { blocks } => {
            let own = blocks[span.residuals.clone()].iter();
            words.extend(own.flat_map(|block| block.words()));
        }
    }
    let listed = runs.iter().flat_map(|run| run.listed.iter());
    words.extend(listed.map(|page| page.word()));
    let lines = || segments.iter().filter(|segment| !segment.is_front_coded());
    let page_count: u32 = runs.iter().map(|run| run.page_count).sum();
    let listed_count: usize = runs.iter().map(|run| run.listed.len()).sum();
    let line_pages: u32 = lines().map(StringSegment::leaf_count).sum();
    words[0] = halves(page_count, segments.len() as u32);
    words[1] = halves(span.first_page, span.models.start as u32);
    words[2] = halves(fences.len() as u32, entries.len() as u32);
    words[3] = halves(lines().count() as u32, line_pages);
    words[4] = halves(listed_count as u32, words.len() as u32);
    let all = &contents.runs;
    let before = span.models.start.checked_sub(1).map(|model| &all[model]);
    let before = before.map(|run| run.page(run.page_count - 1, geometry));
    let after = all.get(span.models.end).map(|run| run.page(0, geometry));
    let word_of = |page: Option<RemoteAddr>| page.unwrap_or(RemoteAddr::NULL).word();
    (words[6], words[7]) = (word_of(before), word_of(after));
    words[PART_CHECKSUM_WORD] = part_checksum(contents.shape().word(), &words);
    words
}

pub(super) fn part_checksum(shape_word: u64, words: &[u64]) -> u64 {
    let mut checked = vec![shape_word];
    checked.extend_from_slice(words);
    checked[1 + PART_CHECKSUM_WORD] = 0;
    u64::from(crc32c(&checked))
}

impl Part {
    /// Decodes one or more adjacent parts as one part. All addresses in them are checked to lie in
    /// chunks of the pool.
    ///
    /// # Errors
    /// Describes what is wrong with the words.
    pub(super) fn decode(
        words: &[u64],
        shape: SnapshotShape,
        layout: &PoolLayout,
        geometry: PageGeometry,
    ) -> Result<Self, String> {
        let (mut whole, mut rest) = (None::<Self>, words);
        loop {
            let size_words = rest.get(4).map_or(0, |word| (word >> 32) as usize);
            if size_words < PART_HEADER_SIZE_WORDS || size_words > rest.len() {
                return Err("a part is truncated".to_owned());
            }
            let (own, behind) = rest.split_at(size_words);
            let part = Self::decode_one(own, shape, layout, geometry)?;
            match &mut whole {
                None => whole = Some(part),
                Some(whole) => whole.append(part, geometry)?,
            }
            rest = behind;
            if rest.is_empty() {
                return Ok(whole.expect("there is one at least"));
            }
        }
    }

    fn decode_one(
        words: &[u64],
        shape: SnapshotShape,
        layout: &PoolLayout,
        geometry: PageGeometry,
    ) -> Result<Self, String> {
        if words[PART_CHECKSUM_WORD] != part_checksum(shape.word(), words) {
            return Err("checksum mismatch in a part".to_owned());
        }
        let header = PartHeader::of(words);
        let (models, rest) = header.split(words, shape).ok_or("its sizes are invalid")?;
        let [fences, entries, residuals, listed] = rest;
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
        if !reader.is_over() || !header.agrees_with(&segments) {
            return Err("its models contradict its header".to_owned());
        }
        let residuals = decode_residuals(&header, shape, residuals, &segments)?;
        let (before, after) = (words[6], words[7]);
        let [before, after] = [before, after].map(RemoteAddr::from_word);
        for page in [before, after] {
            let is_one = page.spare() == 0 && can_be_page(layout, geometry, page);
            if !page.is_null() && !is_one {
                return Err(format!("page {page} beside a part is outside the pool"));
            }
        }
        let (first_page, first_model) = (words[1] as u32, (words[1] >> 32) as u32);
        let end = first_page.checked_add(header.page_count);
        let end = end.and(first_model.checked_add(header.model_count));
        end.ok_or("it has too many pages or models")?;
        Ok(Self {
            first_page,
            first_model,
            page_count: header.page_count,
            before,
            after,
            segments,
            runs,
            residuals,
        })
    }

    /// Returns the address of the part's first page.
    pub(crate) fn first_addr(&self, geometry: PageGeometry) -> RemoteAddr {
        self.runs[0].page(0, geometry)
    }

    /// Appends the next part.
    pub(super) fn append(&mut self, next: Self, geometry: PageGeometry) -> Result<(), String> {
        let last = self.runs.last().expect("a part has models");
        let last = last.page(last.page_count - 1, geometry);
        let model_count = self.runs.len() as u32;
        let is_next = next.first_page == self.first_page + self.page_count
            && next.first_model == self.first_model + model_count
            && next.before == last
            && self.after == next.first_addr(geometry);
        if !is_next {
            return Err("its parts contradict each other".to_owned());
        }
        self.page_count += next.page_count;
        let residual_count = next.residual_count();
        self.residuals
            .extend_from(&next.residuals, 0..residual_count);
        self.segments.extend(next.segments);
        self.runs.extend(next.runs);
        self.after = next.after;
        Ok(())
    }

    fn residual_count(&self) -> usize {
        let counts = self.segments.iter().map(|it| self.residuals.count_of(it));
        counts.sum()
    }
}

/// Sizes in the header of a part.
struct PartHeader {
    page_count: u32,
    model_count: u32,
    fence_size_bytes: u32,
    entries_size_bytes: u32,
    line_count: u32,
    line_page_count: u32,
    listed_count: u32,
}

impl PartHeader {
    fn of(words: &[u64]) -> Self {
        let (low, high) = (
            |at: usize| words[at] as u32,
            |at: usize| (words[at] >> 32) as u32,
        );
        Self {
            page_count: low(0),
            model_count: high(0),
            fence_size_bytes: low(2),
            entries_size_bytes: high(2),
            line_count: low(3),
            line_page_count: high(3),
            listed_count: low(4),
        }
    }

    /// Splits the words into those of models, and those of fences, entries, residuals and listed
    /// pages. `None` if the sizes do not match the number of words.
    fn split<'a>(
        &self,
        words: &'a [u64],
        shape: SnapshotShape,
    ) -> Option<(&'a [u64], [&'a [u64]; 4])> {
        if self.model_count == 0 || self.line_count > self.model_count {
            return None;
        }
        let models = self.model_count as usize * MODEL_SIZE_WORDS;
        let (models, rest) = words[PART_HEADER_SIZE_WORDS..].split_at_checked(models)?;
        let size_words = |bytes: u32| bytes.div_ceil(8) as usize;
        let (fences, rest) = rest.split_at_checked(size_words(self.fence_size_bytes))?;
        let (entries, rest) = rest.split_at_checked(size_words(self.entries_size_bytes))?;
        let listed_at = rest.len().checked_sub(self.listed_count as usize)?;
        let (residuals, listed) = rest.split_at(listed_at);
        let pages = self.line_page_count as usize;
        let are_as_many = match shape.residual_kind {
            0 => residuals.is_empty(),
            1 => residuals.len() == pages.div_ceil(8),
            // The residuals of each line begin in a block of their own.
            _ => {
                let lines = self.line_count as usize;
                residuals.len() <= 2 * (pages / PackedBlock::LEAF_COUNT + lines)
            }
        };
        are_as_many.then_some((models, [fences, entries, residuals, listed]))
    }

    /// Returns whether the counts of pages and lines match the models.
    fn agrees_with(&self, segments: &[StringSegment]) -> bool {
        let pages_of = |are_lines_only: bool| -> u64 {
            let counted = segments
                .iter()
                .filter(|it| !(are_lines_only && it.is_front_coded()));
            counted.map(|segment| u64::from(segment.leaf_count())).sum()
        };
        let lines = segments.iter().filter(|it| !it.is_front_coded());
        pages_of(false) == u64::from(self.page_count)
            && pages_of(true) == u64::from(self.line_page_count)
            && lines.count() == self.line_count as usize
    }
}

fn decode_residuals(
    header: &PartHeader,
    shape: SnapshotShape,
    words: &[u64],
    segments: &[StringSegment],
) -> Result<Residuals, String> {
    Ok(match shape.none_yet() {
        Residuals::Bytes { shift, .. } => Residuals::Bytes {
            shift,
            residuals: bytes_of(words, header.line_page_count as usize)
                .into_iter()
                .map(u8::cast_signed)
                .collect(),
        },
        none_yet @ Residuals::Packed { .. } => {
            let counts = segments.iter().map(|segment| none_yet.count_of(segment));
            if words.len() != 2 * counts.sum::<usize>() {
                return Err("the number of its residuals does not match its pages".to_owned());
            }
            let blocks = words.as_chunks::<2>().0.iter();
            Residuals::Packed {
                blocks: blocks
                    .map(|words| PackedBlock::from_words(*words))
                    .collect(),
            }
        }
        Residuals::None => Residuals::None,
    })
}

/// Checks that all addresses of a run lie in chunks of the pool.
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
    Err(format!("the model at {} is outside the pool", run.base))
}

pub(super) const fn halves(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

pub(super) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_le_bytes(word)
    })
}

pub(super) fn bytes_of(words: &[u64], size_bytes: usize) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    bytes.take(size_bytes).collect()
}
