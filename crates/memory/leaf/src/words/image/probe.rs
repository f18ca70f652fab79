//! An image that is checked and searched where it was read to, for looking up one key.
//!
//! [`LeafImage`](super::LeafImage) leaves the words as they are and copies what its checksum
//! covers; here the words are read to where the checksum wants them. That is a third less work, and
//! a get on memory that this processor reaches by itself is little else.

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::LeafGeometry;
    use crate::image::{LeafBuffer, LeafImage, Placement};
    use farleaf_types::NodeId;
    use proptest::prelude::*;
    use proptest::sample::Index;

    const TABLE: TableId = TableId(3);

    fn at(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    /// What a glance at these words says.
    fn glance(words: &[u64], addr: RemoteAddr, key: u64) -> Result<Option<u64>, Look> {
        fn of<const SLOTS: usize, const WORDS: usize>(
            words: &[u64],
            addr: RemoteAddr,
            key: u64,
        ) -> Result<Option<u64>, Look> {
            let mut glance = Glance::<SLOTS, WORDS>::new();
            glance.image_mut().copy_from_slice(words);
            glance.get(addr, TABLE, key)
        }
        match words.len() - KEYS {
            16 => of::<8, { glance_size_words(8) }>(words, addr, key),
            24 => of::<12, { glance_size_words(12) }>(words, addr, key),
            32 => of::<16, { glance_size_words(16) }>(words, addr, key),
            other => panic!("no leaf has {other} words of records"),
        }
    }

    /// What the codec says of them, question by question.
    fn codec(image: LeafImage<'_>, addr: RemoteAddr, key: u64) -> Result<Option<u64>, Look> {
        if !image.is_intact(addr, TABLE) {
            return Err(Look::Torn);
        }
        if image.is_retired() {
            return Err(Look::Retired(image.link().place()));
        }
        match image.placement(key) {
            Placement::Here => Ok(image.get(key)),
            Placement::Right => Err(Look::Right(image.link().place())),
            Placement::Left => Err(Look::Left),
        }
    }

    /// A sealed leaf: fences, link, all slots filled, some of them listed.
    #[derive(Clone, Debug)]
    struct Sample {
        geometry: LeafGeometry,
        leaf: LeafBuffer,
        addr: RemoteAddr,
    }

    fn samples() -> impl Strategy<Value = Sample> {
        let slots = prop::sample::select(vec![8_u64, 12, 16]);
        let fences = (any::<u64>(), any::<u64>());
        // Some keys of a small range, so that slots repeat them, as slots that are not listed may.
        let record = (prop_oneof![any::<u64>(), 0..20_u64], any::<u64>());
        let records = prop::collection::vec(record, 16);
        let link = (0..1_u64 << 40, any::<bool>());
        (slots, fences, records, any::<u16>(), link, 1..1_u64 << 39).prop_map(
            |(slots, (one, other), records, bitmap, (link, is_retired), addr)| {
                let geometry = LeafGeometry::new(slots).expect("allowed");
                let link = if is_retired {
                    at(link).retired()
                } else {
                    at(link)
                };
                let mut leaf = LeafBuffer::new(geometry, one.min(other), one.max(other), link);
                for (slot, (key, value)) in records.into_iter().take(slots as usize).enumerate() {
                    leaf.set_record(slot, key, value);
                }
                leaf.set_bitmap(bitmap & ((1_u32 << slots) - 1) as u16);
                leaf.seal(at(addr), TABLE);
                Sample {
                    geometry,
                    leaf,
                    addr: at(addr),
                }
            },
        )
    }

    impl Sample {
        /// Keys that an answer may hinge on: the fences, beside them, what is in the slots.
        fn keys(&self) -> Vec<u64> {
            let image = self.leaf.image();
            let fences = [image.low(), image.high()];
            let beside = fences.map(|fence| [fence.wrapping_sub(1), fence, fence.wrapping_add(1)]);
            let slots = (0..self.geometry.slot_count()).map(|slot| image.key(slot));
            beside.into_iter().flatten().chain(slots).collect()
        }
    }

    proptest! {
        /// Of an intact leaf, retired or not, a glance says what the codec says, for every key that
        /// may make a difference and any other: the value, absent, left, right, or who took over.
        #[test]
        fn an_intact_leaf_is_told_as_the_codec_tells_it(sample in samples(), other: u64) {
            let image = sample.leaf.image();
            prop_assert!(image.is_intact(sample.addr, TABLE));
            for key in sample.keys().into_iter().chain([other, 0, u64::MAX]) {
                let told = glance(image.words(), sample.addr, key);
                prop_assert_eq!(told, codec(image, sample.addr, key));
                prop_assert_ne!(told, Err(Look::Torn));
            }
        }

        /// Of words that changed under way, or of another leaf's, a glance says "torn" whenever the
        /// codec does, and only then.
        #[test]
        fn a_torn_leaf_is_told_as_the_codec_tells_it(
            sample in samples(),
            word: Index,
            flip in 1_u64..,
            is_elsewhere: bool,
        ) {
            let mut words = sample.leaf.image().words().to_vec();
            let word = word.index(words.len());
            words[word] ^= flip;
            let addr = if is_elsewhere { at(sample.addr.word() + 1) } else { sample.addr };
            let image = LeafImage::new(sample.geometry, &words);
            for key in sample.keys() {
                prop_assert_eq!(glance(&words, addr, key), codec(image, addr, key));
            }
        }

        /// Memory that holds anything at all is looked at without a panic.
        #[test]
        fn any_words_are_told_as_the_codec_tells_them(
            slots in prop::sample::select(vec![8_u64, 12, 16]),
            words in prop::collection::vec(any::<u64>(), 36),
            key: u64,
        ) {
            let geometry = LeafGeometry::new(slots).expect("allowed");
            let words = &words[..geometry.image_size_words()];
            let image = LeafImage::new(geometry, words);
            prop_assert_eq!(glance(words, at(7), key), codec(image, at(7), key));
        }
    }

    /// A key in a slot that the bitmap does not list is absent, key 0 too, which such slots count
    /// as.
    #[test]
    fn slots_that_are_not_listed_hold_nothing() {
        for slots in [8, 12, 16] {
            let geometry = LeafGeometry::new(slots).expect("allowed");
            let mut leaf = LeafBuffer::new(geometry, 0, u64::MAX, RemoteAddr::NULL);
            (0..slots as usize).for_each(|slot| leaf.set_record(slot, 5, slot as u64));
            leaf.set_bitmap(1 << (slots - 1));
            leaf.seal(at(4), TABLE);
            let words = leaf.image().words();
            assert_eq!(glance(words, at(4), 5), Ok(Some(slots - 1)));
            assert_eq!(glance(words, at(4), 0), Ok(None));
            leaf.set_bitmap(0);
            leaf.seal(at(4), TABLE);
            assert_eq!(glance(leaf.image().words(), at(4), 5), Ok(None));
        }
    }
}
