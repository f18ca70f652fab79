//! Image that is checked and searched in the buffer it was read into, to look up one key.
//!
//! [`LeafImage`](super::LeafImage) leaves the words unchanged and copies the checksum's input. Here
//! the words are read to their places in the checksum's input. That saves a third of the work,
//! which dominates a get on memory that this processor accesses directly.

use farleaf_base::{RemoteAddr, TableId, crc32c};

use super::{CHECKED_HEADER, HIGH, KEYS, LINK, LOW, QUAD_MASKS};
use crate::words::access::LeafCheck;

/// Words of checksum input before the image: the address. The state word that follows is read into
/// its place and then replaced.
const BEFORE_IMAGE: usize = 1;
const _: () = assert!(BEFORE_IMAGE + KEYS == CHECKED_HEADER);

/// Returns the number of words of a glance at a leaf of `slot_count` slots.
pub(crate) const fn probe_size_words(slot_count: usize) -> usize {
    CHECKED_HEADER + 2 * slot_count
}

/// Checksum input of one leaf. `WORDS` is [`probe_size_words`]`(SLOTS)`.
#[derive(Debug)]
pub(crate) struct LeafProbe<const SLOTS: usize, const WORDS: usize>([u64; WORDS]);

impl<const SLOTS: usize, const WORDS: usize> LeafProbe<SLOTS, WORDS> {
    const SIZES_MATCH: () = assert!(WORDS == probe_size_words(SLOTS) && SLOTS.is_multiple_of(4));

    #[inline]
    pub(crate) fn new() -> Self {
        let () = Self::SIZES_MATCH;
        Self([0; WORDS])
    }

    /// Returns the words that the image is to be read into.
    #[inline]
    pub(crate) fn image_mut(&mut self) -> &mut [u64] {
        &mut self.0[BEFORE_IMAGE..]
    }

    /// Returns the value of a key if the image is intact and covers it; otherwise what the image
    /// shows instead (LEAF-4).
    #[inline]
    pub(crate) fn get(
        mut self,
        addr: RemoteAddr,
        table: TableId,
        key: u64,
    ) -> Result<Option<u64>, LeafCheck> {
        let state = self.0[BEFORE_IMAGE];
        let version_and_bitmap = state >> 32;
        self.0[0] = addr.place().word();
        self.0[1] = u64::from(table.0) << 32 | version_and_bitmap;
        self.clear_unlisted(version_and_bitmap);
        if state as u32 != crc32c(&self.0) {
            return Err(LeafCheck::Torn);
        }
        let image = &self.0[BEFORE_IMAGE..];
        let link = RemoteAddr::from_word(image[LINK]);
        if link.is_retired() {
            return Err(LeafCheck::Retired(link.place()));
        }
        if key > image[HIGH] {
            return Err(LeafCheck::Right(link.place()));
        }
        if key < image[LOW] {
            return Err(LeafCheck::Left);
        }
        let (keys, values) = image[KEYS..].split_at(SLOTS);
        let equal = keys.iter().enumerate().fold(0_u32, |equal, (slot, found)| {
            equal | u32::from(*found == key) << slot
        });
        let listed = equal & version_and_bitmap as u32 & 0xFFFF;
        Ok((listed != 0).then(|| values[listed.trailing_zeros() as usize % SLOTS]))
    }

    /// Clears the slots that the bitmap does not list, because they may hold anything and count as
    /// zero.
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
    use crate::words::geometry::LeafGeometry;
    use crate::words::image::{KeyPlacement, LeafBuffer, LeafImage};
    use farleaf_base::NodeId;
    use proptest::prelude::*;
    use proptest::sample::Index;

    const TABLE: TableId = TableId(3);

    fn at(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    /// Returns the result of a glance at these words.
    fn probe(words: &[u64], addr: RemoteAddr, key: u64) -> Result<Option<u64>, LeafCheck> {
        fn of<const SLOTS: usize, const WORDS: usize>(
            words: &[u64],
            addr: RemoteAddr,
            key: u64,
        ) -> Result<Option<u64>, LeafCheck> {
            let mut probe = LeafProbe::<SLOTS, WORDS>::new();
            probe.image_mut().copy_from_slice(words);
            probe.get(addr, TABLE, key)
        }
        match words.len() - KEYS {
            16 => of::<8, { probe_size_words(8) }>(words, addr, key),
            24 => of::<12, { probe_size_words(12) }>(words, addr, key),
            32 => of::<16, { probe_size_words(16) }>(words, addr, key),
            other => panic!("no leaf has {other} words of records"),
        }
    }

    /// Returns the same result from the codec's separate functions.
    fn codec(image: LeafImage<'_>, addr: RemoteAddr, key: u64) -> Result<Option<u64>, LeafCheck> {
        if !image.is_intact(addr, TABLE) {
            return Err(LeafCheck::Torn);
        }
        if image.is_retired() {
            return Err(LeafCheck::Retired(image.link().place()));
        }
        match image.placement(key) {
            KeyPlacement::Here => Ok(image.get(key)),
            KeyPlacement::Right => Err(LeafCheck::Right(image.link().place())),
            KeyPlacement::Left => Err(LeafCheck::Left),
        }
    }

    /// Sealed leaf: fences, link, all slots filled, some of them listed.
    #[derive(Clone, Debug)]
    struct Sample {
        geometry: LeafGeometry,
        leaf: LeafBuffer,
        addr: RemoteAddr,
    }

    fn samples() -> impl Strategy<Value = Sample> {
        let slots = prop::sample::select(vec![8_u64, 12, 16]);
        let fences = (any::<u64>(), any::<u64>());
        // Some keys of a small range, so that slots repeat them, as unlisted slots may.
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
        /// Returns keys at which results may change: the fences, their neighbors, and the slots'
        /// keys.
        fn keys(&self) -> Vec<u64> {
            let image = self.leaf.image();
            let fences = [image.low(), image.high()];
            let beside = fences.map(|fence| [fence.wrapping_sub(1), fence, fence.wrapping_add(1)]);
            let slots = (0..self.geometry.slot_count()).map(|slot| image.key(slot));
            beside.into_iter().flatten().chain(slots).collect()
        }
    }

    proptest! {
        /// For an intact leaf, retired or not, a glance and the codec agree for every relevant and
        /// any other key: value, absent, left, right, or successor.
        #[test]
        fn an_intact_leaf_is_told_as_the_codec_tells_it(sample in samples(), other: u64) {
            let image = sample.leaf.image();
            prop_assert!(image.is_intact(sample.addr, TABLE));
            for key in sample.keys().into_iter().chain([other, 0, u64::MAX]) {
                let probed = probe(image.words(), sample.addr, key);
                prop_assert_eq!(probed, codec(image, sample.addr, key));
                prop_assert_ne!(probed, Err(LeafCheck::Torn));
            }
        }

        /// For words that changed during the read, or of another leaf, a glance returns "torn"
        /// exactly if the codec does.
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
                prop_assert_eq!(probe(&words, addr, key), codec(image, addr, key));
            }
        }

        /// A glance at arbitrary memory contents does not panic.
        #[test]
        fn any_words_are_told_as_the_codec_tells_them(
            slots in prop::sample::select(vec![8_u64, 12, 16]),
            words in prop::collection::vec(any::<u64>(), 36),
            key: u64,
        ) {
            let geometry = LeafGeometry::new(slots).expect("allowed");
            let words = &words[..geometry.image_size_words()];
            let image = LeafImage::new(geometry, words);
            prop_assert_eq!(probe(words, at(7), key), codec(image, at(7), key));
        }
    }

    /// A key in an unlisted slot is absent, including key 0, as which unlisted slots count.
    #[test]
    fn slots_that_are_not_listed_hold_nothing() {
        for slots in [8, 12, 16] {
            let geometry = LeafGeometry::new(slots).expect("allowed");
            let mut leaf = LeafBuffer::new(geometry, 0, u64::MAX, RemoteAddr::NULL);
            (0..slots as usize).for_each(|slot| leaf.set_record(slot, 5, slot as u64));
            leaf.set_bitmap(1 << (slots - 1));
            leaf.seal(at(4), TABLE);
            let words = leaf.image().words();
            assert_eq!(probe(words, at(4), 5), Ok(Some(slots - 1)));
            assert_eq!(probe(words, at(4), 0), Ok(None));
            leaf.set_bitmap(0);
            leaf.seal(at(4), TABLE);
            assert_eq!(probe(leaf.image().words(), at(4), 5), Ok(None));
        }
    }
}
