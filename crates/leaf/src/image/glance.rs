//! An image that is checked and searched where it was read to, for looking up one key.
//!
//! [`LeafImage`](super::LeafImage) leaves the words as they are and copies what its checksum covers;
//! here the words are read to where the checksum wants them. That is a third less work, and a get
//! on memory that this processor reaches by itself is little else.

use farleaf_types::{RemoteAddr, TableId, crc32c};

use super::{CHECKED_HEADER, HIGH, KEYS, LINK, LOW, QUAD_MASKS};
use crate::access::Look;

/// Checksum input before the image's own words: the address. The state word that follows is read
/// there and replaced.
const BEFORE_IMAGE: usize = 1;
const _: () = assert!(BEFORE_IMAGE + KEYS == CHECKED_HEADER);

/// Words that a glance at a leaf of so many slots takes.
pub(crate) const fn glance_size_words(slot_count: usize) -> usize {
    CHECKED_HEADER + 2 * slot_count
}

/// The checksum's input of one leaf. `WORDS` is [`glance_size_words`]`(SLOTS)`.
#[derive(Debug)]
pub(crate) struct Glance<const SLOTS: usize, const WORDS: usize>([u64; WORDS]);

impl<const SLOTS: usize, const WORDS: usize> Glance<SLOTS, WORDS> {
    const SIZES_MATCH: () = assert!(WORDS == glance_size_words(SLOTS) && SLOTS.is_multiple_of(4));

    #[inline]
    pub(crate) fn new() -> Self {
        let () = Self::SIZES_MATCH;
        Self([0; WORDS])
    }

    /// Where the image is to be read to.
    #[inline]
    pub(crate) fn image_mut(&mut self) -> &mut [u64] {
        &mut self.0[BEFORE_IMAGE..]
    }

    /// D4: the value of a key if the image is intact and covers it, else what the image tells.
    #[inline]
    pub(crate) fn get(
        mut self,
        addr: RemoteAddr,
        table: TableId,
        key: u64,
    ) -> Result<Option<u64>, Look> {
        let state = self.0[BEFORE_IMAGE];
        let version_and_bitmap = state >> 32;
        self.0[0] = addr.place().word();
        self.0[1] = u64::from(table.0) << 32 | version_and_bitmap;
        self.clear_unlisted(version_and_bitmap);
        if state as u32 != crc32c(&self.0) {
            return Err(Look::Torn);
        }
        let image = &self.0[BEFORE_IMAGE..];
        let link = RemoteAddr::from_word(image[LINK]);
        if link.is_retired() {
            return Err(Look::Retired(link.place()));
        }
        if key > image[HIGH] {
            return Err(Look::Right(link.place()));
        }
        if key < image[LOW] {
            return Err(Look::Left);
        }
        let (keys, values) = image[KEYS..].split_at(SLOTS);
        let equal = keys.iter().enumerate().fold(0_u32, |equal, (slot, found)| {
            equal | u32::from(*found == key) << slot
        });
        let listed = equal & version_and_bitmap as u32 & 0xFFFF;
        Ok((listed != 0).then(|| values[listed.trailing_zeros() as usize % SLOTS]))
    }

    /// Slots that the bitmap does not list may hold anything and count as zero.
    #[inline]
    fn clear_unlisted(&mut self, bitmap: u64) {
        let (keys, values) = self.0[CHECKED_HEADER..].split_at_mut(SLOTS);
        for quad in 0..SLOTS / 4 {
            let masks = &QUAD_MASKS[(bitmap >> (quad * 4) & 0xF) as usize];
            for (lane, mask) in masks.iter().enumerate() {
                keys[quad * 4 + lane] &= mask;
                values[quad * 4 + lane] &= mask;
            }
        }
    }
}
