//! The leaf codec: the one place that knows how records lie in a leaf and what its checksum covers.
//!
//! An *image* is a private copy of a leaf's words without its lock: state, low, high, link, keys,
//! values. Images are read from far memory, so nothing in them is believed before
//! [`LeafImage::is_intact`] says so (D4).

mod glance;

use farleaf_types::{RemoteAddr, TableId, crc32c};

pub(crate) use glance::{Glance, glance_size_words};

use crate::geometry::{IMAGE_SIZE_WORDS_MAX, LeafGeometry};

pub(crate) const STATE: usize = 0;
const LOW: usize = 1;
const HIGH: usize = 2;
pub(crate) const LINK: usize = 3;
const KEYS: usize = 4;
/// Words of the checksum's input before the slots: address, table with version and bitmap, fences,
/// link.
const CHECKED_HEADER: usize = 5;

/// For each value of four bits, four words of ones where the bit is set. Computing them costs more
/// than all the rest of the checksum.
const QUAD_MASKS: [[u64; 4]; 16] = {
    let mut masks = [[0; 4]; 16];
    let mut index = 0;
    while index < 64 {
        if index / 4 >> (index % 4) & 1 != 0 {
            masks[index / 4][index % 4] = u64::MAX;
        }
        index += 1;
    }
    masks
};

/// Where a key belongs, as seen from one intact leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// In this leaf.
    Here,
    /// To the right of it: follow the link.
    Right,
    /// To the left of it.
    Left,
}

/// How many records a leaf lists that has this state. A hint: the state alone tells neither that
/// the leaf is intact, nor which of its records lie between its fences.
pub fn record_count_of(state: u64) -> usize {
    ((state >> 32) as u16).count_ones() as usize
}

/// A private copy of a leaf's words.
#[derive(Clone, Copy, Debug)]
pub struct LeafImage<'a> {
    geometry: LeafGeometry,
    words: &'a [u64],
}

impl<'a> LeafImage<'a> {
    /// Looks at `words` as an image. Panics when they are fewer than the geometry's image has.
    #[inline]
    pub fn new(geometry: LeafGeometry, words: &'a [u64]) -> Self {
        Self {
            geometry,
            words: &words[..geometry.image_size_words()],
        }
    }

    /// Whether the checksum matches what a leaf of this table at this address would have: only then
    /// the rest means anything.
    #[inline]
    pub fn is_intact(&self, addr: RemoteAddr, table: TableId) -> bool {
        let state = self.words[STATE];
        state as u32 == self.checksum(addr, table, state >> 32)
    }

    /// Whether no state was ever committed here: one that was has a version, and a checksum of
    /// that.
    #[inline]
    pub fn was_never_written(&self) -> bool {
        self.words[STATE] == 0
    }

    /// Version (16 bits) and bitmap (16 bits) stand in `version_and_bitmap`'s lower half.
    #[inline]
    fn checksum(&self, addr: RemoteAddr, table: TableId, version_and_bitmap: u64) -> u32 {
        match self.geometry.slot_count() {
            8 => self.checksum_of::<8>(addr, table, version_and_bitmap),
            12 => self.checksum_of::<12>(addr, table, version_and_bitmap),
            _ => self.checksum_of::<16>(addr, table, version_and_bitmap),
        }
    }

    #[inline]
    fn checksum_of<const SLOTS: usize>(
        &self,
        addr: RemoteAddr,
        table: TableId,
        version_and_bitmap: u64,
    ) -> u32 {
        let mut input = [0; CHECKED_HEADER + IMAGE_SIZE_WORDS_MAX - KEYS];
        input[0] = addr.place().word();
        input[1] = u64::from(table.0) << 32 | version_and_bitmap;
        input[2..CHECKED_HEADER].copy_from_slice(&self.words[LOW..KEYS]);
        // Slots that the bitmap does not list may hold anything and count as zero.
        let (keys, values) = self.words[KEYS..KEYS + 2 * SLOTS].split_at(SLOTS);
        let checked = &mut input[CHECKED_HEADER..CHECKED_HEADER + 2 * SLOTS];
        let (checked_keys, checked_values) = checked.split_at_mut(SLOTS);
        for quad in 0..SLOTS / 4 {
            let masks = &QUAD_MASKS[(version_and_bitmap >> (quad * 4) & 0xF) as usize];
            for (lane, mask) in masks.iter().enumerate() {
                let slot = quad * 4 + lane;
                checked_keys[slot] = keys[slot] & mask;
                checked_values[slot] = values[slot] & mask;
            }
        }
        crc32c(&input[..CHECKED_HEADER + 2 * SLOTS])
    }

    /// Bitmap of the slots that hold records.
    #[inline]
    pub fn bitmap(&self) -> u16 {
        (self.words[STATE] >> 32) as u16
    }

    /// Grows with every change, and wraps.
    pub fn version(&self) -> u16 {
        (self.words[STATE] >> 48) as u16
    }

    /// Inclusive lower fence.
    #[inline]
    pub fn low(&self) -> u64 {
        self.words[LOW]
    }

    /// Inclusive upper fence.
    #[inline]
    pub fn high(&self) -> u64 {
        self.words[HIGH]
    }

    /// The right sibling, or with the *retired* flag the leaf that took over.
    #[inline]
    pub fn link(&self) -> RemoteAddr {
        RemoteAddr::from_word(self.words[LINK])
    }

    /// Whether the leaf's range has been taken over by the leaf that its link names.
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.link().is_retired()
    }

    /// Where a key belongs.
    #[inline]
    pub fn placement(&self, key: u64) -> Placement {
        if key > self.high() {
            Placement::Right
        } else if key < self.low() {
            Placement::Left
        } else {
            Placement::Here
        }
    }

    /// Key in a slot; means something only if the bitmap lists it.
    #[inline]
    pub fn key(&self, slot: usize) -> u64 {
        self.words[KEYS + slot]
    }

    /// Value in a slot; means something only if the bitmap lists it.
    #[inline]
    pub fn value(&self, slot: usize) -> u64 {
        self.words[KEYS + self.geometry.slot_count() + slot]
    }

    /// The slot that holds a key.
    #[inline]
    pub fn slot_of(&self, key: u64) -> Option<usize> {
        let keys = &self.words[KEYS..KEYS + self.geometry.slot_count()];
        let equal = keys.iter().enumerate().fold(0_u32, |equal, (slot, found)| {
            equal | u32::from(*found == key) << slot
        });
        let listed = equal & u32::from(self.bitmap());
        (listed != 0).then(|| listed.trailing_zeros() as usize)
    }

    /// The value of a key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        self.slot_of(key).map(|slot| self.value(slot))
    }

    /// A slot that holds no record.
    #[inline]
    pub fn free_slot(&self) -> Option<usize> {
        let slot = (!self.bitmap()).trailing_zeros() as usize;
        (slot < self.geometry.slot_count()).then_some(slot)
    }

    /// How many records there are.
    pub fn record_count(&self) -> usize {
        self.bitmap().count_ones() as usize
    }

    /// The slots that hold records, in no order of keys.
    #[inline]
    pub fn live_slots(&self) -> impl Iterator<Item = usize> + use<> {
        let bitmap = self.bitmap();
        (0..self.geometry.slot_count()).filter(move |slot| bitmap >> slot & 1 != 0)
    }

    /// The smallest and the largest key that it lists; `None` if it lists none.
    pub fn key_range(&self) -> Option<(u64, u64)> {
        let mut keys = self.live_slots().map(|slot| self.key(slot));
        let first = keys.next()?;
        Some(keys.fold((first, first), |(least, most), key| {
            (least.min(key), most.max(key))
        }))
    }

    /// Adds the records with keys of at least `from` to `records`, ascending.
    pub fn append_sorted(&self, from: u64, records: &mut Vec<(u64, u64)>) {
        let start = records.len();
        let all = self
            .live_slots()
            .map(|slot| (self.key(slot), self.value(slot)));
        records.extend(all.filter(|(key, _)| *key >= from));
        let added = &mut records[start..];
        if !added.is_sorted() {
            added.sort_unstable();
        }
    }

    /// The words.
    pub fn words(&self) -> &'a [u64] {
        self.words
    }
}

/// An image that is being made or changed, before it is written to far memory.
#[derive(Clone, Copy, Debug)]
pub struct LeafBuffer {
    geometry: LeafGeometry,
    words: [u64; IMAGE_SIZE_WORDS_MAX],
}

impl LeafBuffer {
    /// An empty leaf with these fences and link. It has no checksum before [`seal`](Self::seal).
    pub fn new(geometry: LeafGeometry, low: u64, high: u64, link: RemoteAddr) -> Self {
        let mut words = [0; IMAGE_SIZE_WORDS_MAX];
        words[LOW] = low;
        words[HIGH] = high;
        words[LINK] = link.word();
        Self { geometry, words }
    }

    /// Becomes a copy of an image of the same geometry.
    #[inline]
    pub fn assign(&mut self, image: LeafImage<'_>) {
        self.words[..image.words.len()].copy_from_slice(image.words);
    }

    /// A copy of an image.
    pub fn copy_of(image: LeafImage<'_>) -> Self {
        let mut words = [0; IMAGE_SIZE_WORDS_MAX];
        words[..image.words.len()].copy_from_slice(image.words);
        Self {
            geometry: image.geometry,
            words,
        }
    }

    /// Looks at it as an image.
    #[inline]
    pub fn image(&self) -> LeafImage<'_> {
        LeafImage::new(self.geometry, &self.words)
    }

    /// Puts a record into a slot and lists it.
    pub fn set_record(&mut self, slot: usize, key: u64, value: u64) {
        self.words[KEYS + slot] = key;
        self.set_value(slot, value);
        self.set_bitmap(self.image().bitmap() | 1 << slot);
    }

    /// Changes the value in a slot.
    pub fn set_value(&mut self, slot: usize, value: u64) {
        self.words[KEYS + self.geometry.slot_count() + slot] = value;
    }

    /// Lists these slots and no others.
    pub fn set_bitmap(&mut self, bitmap: u16) {
        self.words[STATE] = self.words[STATE] & !(0xFFFF << 32) | u64::from(bitmap) << 32;
    }

    /// Changes the upper fence.
    pub fn set_high(&mut self, high: u64) {
        self.words[HIGH] = high;
    }

    /// Changes the link.
    pub fn set_link(&mut self, link: RemoteAddr) {
        self.words[LINK] = link.word();
    }

    /// Gives it the next version and the checksum that makes it intact at `addr`; returns the state
    /// word, whose WRITE commits the change (D1).
    pub fn seal(&mut self, addr: RemoteAddr, table: TableId) -> u64 {
        let image = self.image();
        let version = u64::from(image.version().wrapping_add(1));
        let version_and_bitmap = version << 16 | u64::from(image.bitmap());
        let checksum = image.checksum(addr, table, version_and_bitmap);
        self.words[STATE] = version_and_bitmap << 32 | u64::from(checksum);
        self.words[STATE]
    }

    /// The words of the whole leaf, with a free lock before the image.
    pub fn leaf_words(&self) -> ([u64; IMAGE_SIZE_WORDS_MAX + 1], usize) {
        let mut words = [0; IMAGE_SIZE_WORDS_MAX + 1];
        words[1..].copy_from_slice(&self.words);
        (words, self.geometry.leaf_size_words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_types::NodeId;
    use proptest::prelude::*;

    const TABLE: TableId = TableId(3);

    fn at(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    fn sample(slots: u64) -> LeafBuffer {
        let geometry = LeafGeometry::new(slots).expect("allowed");
        let mut leaf = LeafBuffer::new(geometry, 10, 99, at(0x55));
        leaf.set_record(0, 40, 400);
        leaf.set_record(2, 20, 200);
        leaf.set_record(slots as usize - 1, u64::MAX, 0);
        leaf.seal(at(0x44), TABLE);
        leaf
    }

    #[test]
    fn leaf_words_are_golden() {
        let (words, size) = sample(8).leaf_words();
        assert_eq!(size, 21);
        assert_eq!(words[1] >> 32, 0x0001_0085, "version 1, slots 0, 2 and 7");
        assert_eq!(words[0], 0);
        assert_eq!(words[2..6], [10, 99, 0x55, 40]);
        assert_eq!(
            (words[7], words[12], words[13], words[15]),
            (20, u64::MAX, 400, 200)
        );
        let input: Vec<u64> = [0x44, 3 << 32 | 0x0001_0085]
            .into_iter()
            .chain(words[2..21].iter().copied())
            .collect();
        assert_eq!(
            words[1] as u32,
            crc32c(&input),
            "the checksum covers address, table and slots"
        );
    }

    #[test]
    fn records_are_found_by_key_and_sorted_for_scans() {
        for slots in [8, 12, 16] {
            let leaf = sample(slots);
            let image = leaf.image();
            assert!(image.is_intact(at(0x44), TABLE));
            assert_eq!(image.get(20), Some(200));
            assert_eq!(image.get(u64::MAX), Some(0));
            assert_eq!(image.get(0), None, "an unlisted slot holds key 0 by chance");
            assert_eq!((image.free_slot(), image.record_count()), (Some(1), 3));
            let mut records = vec![(1, 1)];
            image.append_sorted(21, &mut records);
            assert_eq!(records, [(1, 1), (40, 400), (u64::MAX, 0)]);
        }
    }

    #[test]
    fn a_full_leaf_has_no_free_slot() {
        for slots in [8, 12, 16] {
            let mut leaf = sample(slots);
            (0..slots as usize).for_each(|slot| leaf.set_record(slot, slot as u64, 0));
            assert_eq!(leaf.image().free_slot(), None);
        }
    }

    #[test]
    fn placement_uses_inclusive_fences() {
        use Placement::{Here, Left, Right};
        let leaf = sample(8);
        let placements = [9, 10, 99, 100].map(|key| leaf.image().placement(key));
        assert_eq!(placements, [Left, Here, Here, Right]);
    }

    #[test]
    fn an_image_is_bound_to_its_address_and_table() {
        let leaf = sample(8);
        assert!(!leaf.image().is_intact(at(0x45), TABLE));
        assert!(!leaf.image().is_intact(at(0x44), TableId(4)));
        assert!(
            leaf.image().is_intact(at(0x44).retired(), TABLE),
            "flags are not the place"
        );
    }

    #[test]
    fn memory_that_was_never_a_leaf_is_not_intact() {
        for slots in [8, 12, 16] {
            let geometry = LeafGeometry::new(slots).expect("allowed");
            for fill in [0, u64::MAX] {
                let words = [fill; IMAGE_SIZE_WORDS_MAX];
                assert!(!LeafImage::new(geometry, &words).is_intact(at(0x44), TABLE));
            }
        }
    }

    proptest! {
        /// A torn READ, any mix of two versions' words, is never taken for a leaf that was not.
        #[test]
        fn any_changed_word_that_counts_is_seen(
            slots in prop::sample::select(vec![8_u64, 12, 16]),
            word in 0_usize..IMAGE_SIZE_WORDS_MAX,
            flip in 1_u64..,
        ) {
            let leaf = sample(slots);
            let mut words = leaf.image().words().to_vec();
            prop_assume!(word < words.len());
            words[word] ^= flip;
            let slot = word.wrapping_sub(KEYS) % slots as usize;
            let counts = word < KEYS || leaf.image().bitmap() >> slot & 1 != 0;
            let image = LeafImage::new(LeafGeometry::new(slots).expect("allowed"), &words);
            prop_assert_eq!(image.is_intact(at(0x44), TABLE), !counts);
        }

        /// Whatever lies in memory, looking at it answers and does not panic.
        #[test]
        fn any_words_can_be_looked_at(
            slots in prop::sample::select(vec![8_u64, 12, 16]),
            words in prop::collection::vec(any::<u64>(), IMAGE_SIZE_WORDS_MAX),
            key: u64,
        ) {
            let image = LeafImage::new(LeafGeometry::new(slots).expect("allowed"), &words);
            prop_assert!(!image.is_intact(at(0x44), TABLE));
            let _ = (image.get(key), image.free_slot(), image.placement(key), image.is_retired());
            let mut records = Vec::new();
            image.append_sorted(key, &mut records);
            prop_assert!(records.is_sorted());
        }
    }
}
