//! Format of a model in a snapshot, in words.
//!
//! | word | of a line | of a front-coded model |
//! |---|---|---|
//! | 0 | slope (f64) | bytes of its entries |
//! | 1 | intercept (f32, low half), error (f32) | 0 |
//! | 2 | pages (32), prefix size (16), alphabet (8), kind (8): 0 | the same, alphabet 0, kind 1 |
//! | 3 | size of its first fence (32), capacity for synonyms (32) | the same |
//! | 4 | address of its first page, null if the pages are listed | the same |
//! | 5 | address of its synonym leaf table | the same |

use farleaf_base::RemoteAddr;
use farleaf_model::strings::{
    Alphabet, FrontCodedSegment, FrontCodedSegmentParts, LineSegment, LineSegmentParts,
    StringSegment,
};

use crate::strings::directory::Run;

/// Words of a model.
pub(super) const MODEL_SIZE_WORDS: usize = 6;
const LINE: u64 = 0;
const FRONT_CODED: u64 = 1;

/// Encodes a model.
pub(super) fn encode_model(segment: &StringSegment, run: &Run) -> [u64; MODEL_SIZE_WORDS] {
    let halves = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let (shape, prefix_size, alphabet, kind) = match segment {
        StringSegment::Line(segment) => {
            let parts = segment.parts();
            let errors = halves(parts.intercept.to_bits(), parts.error_max.to_bits());
            let shape = [parts.slope.to_bits(), errors];
            (shape, parts.prefix_size, parts.alphabet.code(), LINE)
        }
        StringSegment::FrontCoded(segment) => {
            let shape = [segment.entries().len() as u64, 0];
            (shape, segment.prefix_size(), 0, FRONT_CODED)
        }
    };
    [
        shape[0],
        shape[1],
        u64::from(segment.leaf_count())
            | u64::from(prefix_size) << 32
            | u64::from(alphabet) << 48
            | kind << 56,
        halves(segment.first_fence().len() as u32, run.synonym_capacity),
        run.base.word(),
        run.synonym_table.word(),
    ]
}

/// Decodes models in order, each with its share of the data that follows all models.
pub(super) struct ModelReader<'a> {
    fences: &'a [u8],
    entries: &'a [u8],
    listed: &'a [u64],
}

impl<'a> ModelReader<'a> {
    /// Creates a reader of all first fences, entries, and addresses of listed pages.
    pub(super) fn new(fences: &'a [u8], entries: &'a [u8], listed: &'a [u64]) -> Self {
        Self {
            fences,
            entries,
            listed,
        }
    }

    /// Decodes the next model.
    ///
    /// # Errors
    /// Describes what is wrong with the words.
    pub(super) fn read(
        &mut self,
        words: &[u64; MODEL_SIZE_WORDS],
    ) -> Result<(StringSegment, Run), String> {
        let leaf_count = words[2] as u32;
        let first_fence = take(&mut self.fences, u64::from(words[3] as u32));
        let first_fence = first_fence.ok_or("its fences are truncated")?.to_vec();
        let segment = match words[2] >> 56 {
            LINE => line(words, first_fence)?.into(),
            FRONT_CODED => self.front_coded(words, first_fence)?.into(),
            kind => return Err(format!("unknown model kind {kind}")),
        };
        let base = RemoteAddr::from_word(words[4]);
        let listed_count = if base.is_null() { leaf_count } else { 0 };
        let listed = take(&mut self.listed, listed_count.into());
        let listed = listed.ok_or("its list of pages is truncated")?.iter();
        let run = Run {
            base,
            listed: listed.map(|word| RemoteAddr::from_word(*word)).collect(),
            page_count: leaf_count,
            synonym_table: RemoteAddr::from_word(words[5]),
            synonym_capacity: (words[3] >> 32) as u32,
        };
        Ok((segment, run))
    }

    /// Returns whether all data for models has been consumed.
    pub(super) fn is_over(&self) -> bool {
        self.fences.is_empty() && self.entries.is_empty() && self.listed.is_empty()
    }

    fn front_coded(
        &mut self,
        words: &[u64; MODEL_SIZE_WORDS],
        first_fence: Vec<u8>,
    ) -> Result<FrontCodedSegment, String> {
        let entries = take(&mut self.entries, words[0]);
        let entries = entries.ok_or("its front-coded fences are truncated")?;
        if words[1] != 0 || (words[2] >> 48) as u8 != 0 {
            return Err("a front-coded model has parameters of a line".to_owned());
        }
        let parts = FrontCodedSegmentParts {
            first_fence,
            prefix_size: (words[2] >> 32) as u16,
            leaf_count: words[2] as u32,
            entries: entries.into(),
        };
        FrontCodedSegment::from_parts(parts).map_err(|error| error.to_string())
    }
}

fn line(words: &[u64; MODEL_SIZE_WORDS], first_fence: Vec<u8>) -> Result<LineSegment, String> {
    let half = |word: u64| f32::from_bits(word as u32);
    let alphabet = Alphabet::from_code((words[2] >> 48) as u8);
    let parts = LineSegmentParts {
        first_fence,
        prefix_size: (words[2] >> 32) as u16,
        alphabet: alphabet.map_err(|error| error.to_string())?,
        slope: f64::from_bits(words[0]),
        intercept: half(words[1]),
        leaf_count: words[2] as u32,
        error_max: half(words[1] >> 32),
    };
    LineSegment::from_parts(parts).map_err(|error| error.to_string())
}

/// Takes `count` elements from the front; `None` if there are fewer.
fn take<'a, T>(from: &mut &'a [T], count: u64) -> Option<&'a [T]> {
    let (taken, rest) = from.split_at_checked(usize::try_from(count).ok()?)?;
    *from = rest;
    Some(taken)
}
