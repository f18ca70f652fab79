//! Body of a list: the places of the extents with the string's parts.
//!
//! | word | meaning |
//! |---|---|
//! | 3 | number of parts |
//! | 4.. | one word per part: place of its first chunk; spare bits: number of chunks |
//!
//! A part is a value block of its own (an extent, role *part*). All parts but the last are full.
//! The locator of a part is the list's fat pointer.

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr};
use farleaf_pool::PoolLayout;
use farleaf_pool::layout::CHUNK_SIZE_BLOCKS;

use crate::blobs::header::{HEADER_SIZE_WORDS, STRING_SIZE_BYTES_MAX};

/// Words of a chunk.
pub(crate) const CHUNK_SIZE_WORDS: u64 = CHUNK_SIZE_BLOCKS * BLOCK_SIZE_WORDS;
/// Words of a part besides the string: header and locator.
const PART_OVERHEAD_WORDS: u64 = HEADER_SIZE_WORDS as u64 + 1;
/// Largest number of parts, each of one chunk.
pub(crate) const PART_COUNT_MAX: usize =
    STRING_SIZE_BYTES_MAX.div_ceil(((CHUNK_SIZE_WORDS - PART_OVERHEAD_WORDS) * 8) as usize);

const _: () = assert!(PART_COUNT_MAX < u16::MAX as usize);

/// Adjacent chunks that contain a part of a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListPart {
    /// Start of the part.
    pub(crate) place: RemoteAddr,
    /// Number of chunks, at least 1.
    pub(crate) chunk_count: u16,
}

impl ListPart {
    /// Encodes the part.
    pub(crate) const fn word(self) -> u64 {
        self.place.with_spare(self.chunk_count).word()
    }

    /// Returns the number of bytes of the string that fit into this part.
    pub(crate) const fn capacity_bytes(self) -> usize {
        part_capacity_bytes(self.chunk_count as u64)
    }

    /// Returns whether the part consists of whole chunks of a known node.
    pub(crate) fn is_possible(self, layout: &PoolLayout) -> bool {
        let Some(chunk) = layout.chunk_of(self.place) else {
            return false;
        };
        let is_start = layout.chunk_start(chunk) == self.place;
        let memory = layout.memory(chunk.node());
        let end = chunk.number() + u64::from(self.chunk_count);
        is_start && memory.is_some_and(|memory| end <= memory.superblock.chunk_count)
    }
}

/// Returns the number of bytes of a string that fit into a part of this many chunks.
pub(crate) const fn part_capacity_bytes(chunk_count: u64) -> usize {
    ((chunk_count * CHUNK_SIZE_WORDS - PART_OVERHEAD_WORDS) * 8) as usize
}

/// Returns the number of chunks that a part of this many bytes needs.
pub(crate) const fn part_chunk_count(size_bytes: usize) -> u64 {
    ((size_bytes as u64).div_ceil(8) + PART_OVERHEAD_WORDS).div_ceil(CHUNK_SIZE_WORDS)
}

/// Encodes the words of a list's body.
pub(crate) fn encode(parts: &[ListPart]) -> Vec<u64> {
    let words = core::iter::once(parts.len() as u64);
    words.chain(parts.iter().map(|part| part.word())).collect()
}

/// Returns the number of words of the body that begins with this word; `None` if it is invalid.
pub(crate) fn body_word_count(first: u64) -> Option<usize> {
    let count = usize::try_from(first).ok()?;
    (1..=PART_COUNT_MAX).contains(&count).then_some(1 + count)
}

/// Decodes a body's words, if they are a list for a string of this size: only the last part is not
/// full.
pub(crate) fn decode(words: &[u64], string_size_bytes: usize) -> Option<Vec<ListPart>> {
    let (first, words) = words.split_first()?;
    if body_word_count(*first)? != words.len() + 1 {
        return None;
    }
    let parts = words.iter().map(|word| {
        let stored = RemoteAddr::from_word(*word);
        let chunk_count = stored.spare();
        let part = ListPart {
            place: stored.place(),
            chunk_count,
        };
        (chunk_count > 0 && !stored.is_null()).then_some(part)
    });
    let parts: Vec<ListPart> = parts.collect::<Option<_>>()?;
    let (last, full) = parts.split_last()?;
    let before: usize = full.iter().map(|part| part.capacity_bytes()).sum();
    let rest = string_size_bytes.checked_sub(before)?;
    (rest > 0 && rest <= last.capacity_bytes()).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;
    use proptest::prelude::*;

    fn part(block: u64, chunk_count: u16) -> ListPart {
        let place = RemoteAddr::new(NodeId(3), block);
        ListPart { place, chunk_count }
    }

    /// Promise: the words are these, and decode to the same parts; a wrong size is detected.
    #[test]
    fn lists_are_golden() {
        let parts = [part(1024, 2), part(0x12_3456_7800, 1)];
        let words = encode(&parts);
        assert_eq!(words, [2, 0x0300_0200_0000_0400, 0x0300_0112_3456_7800]);
        let (two, one) = (2 * 65536 - 32, 65536 - 32);
        for size_bytes in [two + 1, two + one] {
            assert_eq!(decode(&words, size_bytes), Some(parts.to_vec()));
        }
        for size_bytes in [0, two, two + one + 1] {
            assert_eq!(decode(&words, size_bytes), None);
        }
        assert_eq!(PART_COUNT_MAX, 1025);
        for chunk_count in [1, 2, 1024] {
            let most = part_capacity_bytes(chunk_count);
            assert_eq!(part_chunk_count(most), chunk_count);
            assert_eq!(part_chunk_count(most + 1), chunk_count + 1);
        }
    }

    proptest! {
        /// Promise: any words decode to a list or to nothing, and the string fits into a decoded
        /// list.
        #[test]
        fn any_words_are_read(
            count in 0_u64..6,
            words in proptest::collection::vec(any::<u64>(), 0..6),
            size_bytes in 0_usize..1 << 33,
        ) {
            let mut words = words;
            if let Some(first) = words.first_mut()
                && count > 0
            {
                *first = count;
            }
            if let Some(parts) = decode(&words, size_bytes) {
                prop_assert_eq!(encode(&parts), words);
                let capacities = parts.iter().map(|part| part.capacity_bytes());
                prop_assert!(capacities.sum::<usize>() >= size_bytes);
            }
        }
    }
}
