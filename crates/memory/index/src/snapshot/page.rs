//! Pages of a snapshot, which a session with a metadata budget reads one by one.
//!
//! A *model page* is [`PAGE_MODEL_COUNT`] adjacent models, each with its own checksum. A *head* per
//! model page says which keys and leaves begin in it:
//!
//! | head word | meaning |
//! |---|---|
//! | 0 | first key |
//! | 1 | address of the first leaf |
//! | 2 | number of the first leaf |
//! | 3 | checksum of words 0 to 2 with the generation and the page's number |
//!
//! A *residual page* is [`PAGE_LEAF_COUNT`] residuals, eight to a word, and a word with their
//! checksum, which also covers the generation and the page's number. The last page of each kind is
//! as short as possible.

use farleaf_base::{RemoteAddr, crc32c};

use crate::directory::Model;
use crate::snapshot::format::{MODEL_SIZE_WORDS, SnapshotHeader};

/// Number of models of one page: 2 KiB in far memory.
pub const PAGE_MODEL_COUNT: usize = 32;
/// Size of a head in words.
pub(super) const HEAD_SIZE_WORDS: usize = 4;
/// Size of a whole residual page in words, including its checksum: 512 bytes.
const RESIDUAL_PAGE_SIZE_WORDS: usize = 64;
const RESIDUALS_PER_WORD: usize = size_of::<u64>();
/// Number of leaves whose residuals are in one page.
pub const PAGE_LEAF_COUNT: usize = (RESIDUAL_PAGE_SIZE_WORDS - 1) * RESIDUALS_PER_WORD;

/// Head of a model page: where it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHead {
    /// First key of the page's first model.
    pub first_key: u64,
    /// Address of the first model's first leaf.
    pub base: RemoteAddr,
    /// Number of that leaf in the directory.
    pub first_leaf: u32,
}

impl PageHead {
    /// Returns the heads of all pages of these models, in order.
    pub fn of_models(models: &[Model]) -> Vec<Self> {
        let mut first_leaf = 0;
        let head = |page: &[Model]| {
            let head = Self {
                first_key: page[0].first_key,
                base: page[0].base,
                first_leaf,
            };
            first_leaf += page.iter().map(|model| model.leaf_count).sum::<u32>();
            head
        };
        models.chunks(PAGE_MODEL_COUNT).map(head).collect()
    }

    /// Returns the words of the head.
    pub fn encode(&self, generation: u16, page: u32) -> [u64; HEAD_SIZE_WORDS] {
        let mut words = [
            self.first_key,
            self.base.word(),
            self.first_leaf.into(),
            tag(generation, page),
        ];
        words[3] = crc32c(&words).into();
        words
    }

    /// Decodes a head.
    ///
    /// # Errors
    /// A description of the corruption.
    pub fn decode(words: &[u64], generation: u16, page: u32) -> Result<Self, String> {
        let head = Self {
            first_key: words[0],
            base: RemoteAddr::from_word(words[1]),
            first_leaf: words[2] as u32,
        };
        if words == head.encode(generation, page) {
            Ok(head)
        } else {
            Err(format!("the head of model page {page} is invalid"))
        }
    }
}

/// Returns the additional input of a checksum, which detects another page's words.
fn tag(generation: u16, page: u32) -> u64 {
    u64::from(page) << 32 | u64::from(generation)
}

/// Returns the words of all residual pages.
pub fn encode_residuals(residuals: &[i8], generation: u16) -> Vec<u64> {
    let word = |bytes: &[i8]| {
        let bytes = bytes.iter().rev();
        bytes.fold(0, |word, byte| word << 8 | u64::from(byte.cast_unsigned()))
    };
    let mut words = Vec::with_capacity(residual_size_words(residuals.len()));
    for (page, part) in (0..).zip(residuals.chunks(PAGE_LEAF_COUNT)) {
        let start = words.len();
        words.extend(part.chunks(RESIDUALS_PER_WORD).map(word));
        words.push(tag(generation, page));
        let checksum = crc32c(&words[start..]);
        *words.last_mut().expect("the tag is there") = checksum.into();
    }
    words
}

/// Decodes a residual page: the residuals of its leaves, and zeros that fill its last word.
///
/// # Errors
/// A description of the corruption.
pub fn decode_residual_page(
    words: &[u64],
    generation: u16,
    page: u32,
) -> Result<impl Iterator<Item = i8>, String> {
    let damaged = || format!("checksum mismatch in residual page {page}");
    let (checksum, residuals) = words.split_last().ok_or_else(damaged)?;
    let mut covered = [0; RESIDUAL_PAGE_SIZE_WORDS];
    let covered = covered.get_mut(..words.len()).ok_or_else(damaged)?;
    covered[..residuals.len()].copy_from_slice(residuals);
    covered[residuals.len()] = tag(generation, page);
    if *checksum != u64::from(crc32c(covered)) {
        return Err(damaged());
    }
    let bytes = residuals.iter().flat_map(|word| word.to_le_bytes());
    Ok(bytes.map(u8::cast_signed))
}

fn residual_size_words(leaf_count: usize) -> usize {
    leaf_count.div_ceil(RESIDUALS_PER_WORD) + leaf_count.div_ceil(PAGE_LEAF_COUNT)
}

/// Range of a snapshot, in words from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordRange {
    /// Offset of the first word.
    pub start: usize,
    /// Number of words.
    pub word_count: usize,
}

impl SnapshotHeader {
    /// Returns the number of model pages.
    pub fn model_page_count(&self) -> u32 {
        self.model_count.div_ceil(PAGE_MODEL_COUNT as u32)
    }

    /// Returns the number of residual pages.
    pub fn residual_page_count(&self) -> u32 {
        self.leaf_count.div_ceil(PAGE_LEAF_COUNT as u32)
    }

    /// Returns where the models of a page are, and those of the following pages: at most
    /// `page_count` pages.
    pub fn model_pages(&self, page: u32, page_count: u32) -> WordRange {
        let first = page as usize * PAGE_MODEL_COUNT;
        let wanted = page_count as usize * PAGE_MODEL_COUNT;
        let count = (self.model_count as usize - first).min(wanted);
        WordRange {
            start: self.models().start + first * MODEL_SIZE_WORDS,
            word_count: count * MODEL_SIZE_WORDS,
        }
    }

    /// Returns where the heads of all model pages are: after the models.
    pub fn heads(&self) -> WordRange {
        let models = self.models();
        WordRange {
            start: models.start + models.word_count,
            word_count: self.model_page_count() as usize * HEAD_SIZE_WORDS,
        }
    }

    /// Returns where all residual pages are: after the heads.
    pub fn residuals(&self) -> WordRange {
        let heads = self.heads();
        WordRange {
            start: heads.start + heads.word_count,
            word_count: residual_size_words(self.leaf_count as usize),
        }
    }

    /// Returns where a residual page is.
    pub fn residual_page(&self, page: u32) -> WordRange {
        let first = page as usize * PAGE_LEAF_COUNT;
        let count = (self.leaf_count as usize - first).min(PAGE_LEAF_COUNT);
        WordRange {
            start: self.residuals().start + page as usize * RESIDUAL_PAGE_SIZE_WORDS,
            word_count: residual_size_words(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::{NodeId, TableId};
    use proptest::prelude::*;

    fn header(model_count: u32, leaf_count: u32) -> SnapshotHeader {
        SnapshotHeader {
            table: TableId(5),
            generation: 2,
            model_count,
            leaf_count,
            record_count: 6000,
            shift: 5,
            leaf_table_checksum: None,
        }
    }

    /// The words of the format's version 2 never change.
    #[test]
    fn words_are_golden() {
        let head = PageHead {
            first_key: 77,
            base: RemoteAddr::new(NodeId(0), 4096),
            first_leaf: 9,
        };
        assert_eq!(head.encode(2, 3), [77, 4096, 9, 0x392D_8282]);
        let words = encode_residuals(&[1, -1, 2, -2, 3, -3, 4, -4, 5], 2);
        assert_eq!(words, [0xFC04_FD03_FE02_FF01, 5, 0xD9DE_B764]);
    }

    /// Pages are adjacent in the order of the header, whole ones and the last.
    #[test]
    fn pieces_lie_side_by_side() {
        for (model_count, leaf_count) in [(1, 1), (31, 504), (32, 505), (33, 4032), (97, 9999)] {
            let header = header(model_count, leaf_count);
            let mut next = header.models().start;
            let mut follow = |piece: WordRange| {
                assert_eq!(
                    piece.start, next,
                    "{model_count} models, {leaf_count} leaves"
                );
                assert!(piece.word_count > 0);
                next += piece.word_count;
            };
            (0..header.model_page_count()).for_each(|page| follow(header.model_pages(page, 1)));
            follow(header.heads());
            (0..header.residual_page_count()).for_each(|page| follow(header.residual_page(page)));
            let residuals = header.residuals();
            assert_eq!(next, residuals.start + residuals.word_count);
        }
    }

    proptest! {
        /// Residuals are decoded as encoded, page by page; corruption, and a page in another's
        /// place, are detected.
        #[test]
        fn pages_survive_the_way_and_damage_is_seen(
            residuals in proptest::collection::vec(any::<i8>(), 1..1600),
            flip in 1_u64.., at in any::<usize>(),
        ) {
            let header = header(1, residuals.len() as u32);
            let words = encode_residuals(&residuals, 2);
            prop_assert_eq!(words.len(), header.residuals().word_count);
            let mut read = Vec::new();
            for page in 0..header.residual_page_count() {
                let piece = header.residual_page(page);
                let start = piece.start - header.residuals().start;
                let words = &words[start..start + piece.word_count];
                let decode = |words: &[u64], generation, page| {
                    decode_residual_page(words, generation, page)
                        .map(Iterator::collect::<Vec<i8>>)
                };
                read.extend(decode(words, 2, page).expect("as it was written"));
                prop_assert!(decode(words, 3, page).is_err());
                prop_assert!(decode(words, 2, page + 1).is_err());
                prop_assert!(decode(&words[1..], 2, page).is_err());
                let mut damaged = words.to_vec();
                let at = at % damaged.len();
                damaged[at] ^= flip;
                prop_assert!(decode(&damaged, 2, page).is_err());
            }
            prop_assert_eq!(&read[..residuals.len()], &residuals[..]);
            prop_assert!(read.len() < residuals.len() + 8);
        }

        /// Decoding arbitrary words returns an error and does not panic.
        #[test]
        fn any_words_are_refused(words in proptest::collection::vec(any::<u64>(), 0..70)) {
            prop_assert!(decode_residual_page(&words, 1, 0).is_err());
            if words.len() >= HEAD_SIZE_WORDS {
                prop_assert!(PageHead::decode(&words[..HEAD_SIZE_WORDS], 1, 0).is_err());
            }
        }

        /// Heads are decoded as encoded; corruption, and a head in another's place, are detected.
        #[test]
        fn heads_survive_the_way_and_damage_is_seen(
            first_key in any::<u64>(), first_leaf in any::<u32>(), page in 0_u32..9,
            flip in 1_u64.., at in 0_usize..HEAD_SIZE_WORDS,
        ) {
            let base = RemoteAddr::new(NodeId(0), 99);
            let head = PageHead { first_key, base, first_leaf };
            let mut words = head.encode(2, page);
            prop_assert_eq!(PageHead::decode(&words, 2, page), Ok(head));
            prop_assert!(PageHead::decode(&words, 3, page).is_err());
            prop_assert!(PageHead::decode(&words, 2, page + 1).is_err());
            words[at] ^= flip;
            prop_assert!(PageHead::decode(&words, 2, page).is_err());
        }
    }
}
