//! Leaf codec: the only code that knows how records lie in a leaf and what its checksum covers.
//!
//! An *image* is a private copy of a leaf's words without its lock: state, low, high, link, keys,
//! values. Images are read from far memory, so no word is trusted before [`LeafImage::is_intact`]
//! returns true (LEAF-4).

mod probe;

use farleaf_base::{RemoteAddr, TableId, crc32c};

pub(crate) use probe::{LeafProbe, probe_size_words};

use crate::words::geometry::{IMAGE_SIZE_WORDS_MAX, LeafGeometry};

pub(crate) const STATE: usize = 0;
pub(super) const LOW: usize = 1;
const HIGH: usize = 2;
pub(crate) const LINK: usize = 3;
const KEYS: usize = 4;
/// Words of the checksum's input before the slots: address, table with version and bitmap, fences,
/// link.
const CHECKED_HEADER: usize = 5;

/// For each value of four bits, four words that are all ones where the bit is set. Computing these
/// masks would cost more than the rest of the checksum.
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

/// Where a key belongs relative to one intact leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPlacement {
    /// In this leaf.
    Here,
    /// To the right of this leaf: follow the link.
    Right,
    /// To the left of this leaf.
    Left,
}

/// Returns the number of records that a state word lists. Only a hint: the state alone shows
/// neither that the leaf is intact nor which records lie between its fences.
pub fn record_count_of(state: u64) -> usize {
    ((state >> 32) as u16).count_ones() as usize
}

/// Private copy of a leaf's words.
#[derive(Clone, Copy, Debug)]
pub struct LeafImage<'a> {
    geometry: LeafGeometry,
    words: &'a [u64],
}

impl<'a> LeafImage<'a> {
    /// Interprets `words` as an image.
    ///
    /// # Panics
    ///
    /// If there are fewer words than the geometry's image has.
    #[inline]
    pub fn new(geometry: LeafGeometry, words: &'a [u64]) -> Self {
        Self {
            geometry,
            words: &words[..geometry.image_size_words()],
        }
    }

    /// Returns whether the checksum matches that of a leaf of this table at this address. Otherwise
    /// no other content is meaningful.
    #[inline]
    pub fn is_intact(&self, addr: RemoteAddr, table: TableId) -> bool {
        let state = self.words[STATE];
        state as u32 == self.checksum(addr, table, state >> 32)
    }

    /// Returns whether no state was ever committed here. A committed state has a version and a
    /// checksum.
    #[inline]
    pub fn was_never_written(&self) -> bool {
        self.words[STATE] == 0
    }

    /// Computes the checksum. The lower half of `version_and_bitmap` has version (16 bits) and
    /// bitmap (16 bits).
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

    /// Returns the bitmap of the slots that hold records.
    #[inline]
    pub fn bitmap(&self) -> u16 {
        (self.words[STATE] >> 32) as u16
    }

    /// Returns the version, which increases with every change and wraps.
    pub fn version(&self) -> u16 {
        (self.words[STATE] >> 48) as u16
    }

    /// Returns the inclusive lower fence.
    #[inline]
    pub fn low(&self) -> u64 {
        self.words[LOW]
    }

    /// Returns the inclusive upper fence.
    #[inline]
    pub fn high(&self) -> u64 {
        self.words[HIGH]
    }

    /// Returns the right sibling, or, with the *retired* flag, the leaf that took over.
    #[inline]
    pub fn link(&self) -> RemoteAddr {
        RemoteAddr::from_word(self.words[LINK])
    }

    /// Returns whether the leaf that the link names has taken over this leaf's range.
    #[inline]
    pub fn is_retired(&self) -> bool {
        self.link().is_retired()
    }

    /// Returns where a key belongs.
    #[inline]
    pub fn placement(&self, key: u64) -> KeyPlacement {
        if key > self.high() {
            KeyPlacement::Right
        } else if key < self.low() {
            KeyPlacement::Left
        } else {
            KeyPlacement::Here
        }
    }

    /// Returns the key in a slot; meaningful only if the bitmap lists the slot.
    #[inline]
    pub fn key(&self, slot: usize) -> u64 {
        self.words[KEYS + slot]
    }

    /// Returns the value in a slot; meaningful only if the bitmap lists the slot.
    #[inline]
    pub fn value(&self, slot: usize) -> u64 {
        self.words[KEYS + self.geometry.slot_count() + slot]
    }

    /// Returns the slot that holds a key.
    #[inline]
    pub fn slot_of(&self, key: u64) -> Option<usize> {
        let keys = &self.words[KEYS..KEYS + self.geometry.slot_count()];
        let equal = keys.iter().enumerate().fold(0_u32, |equal, (slot, found)| {
            equal | u32::from(*found == key) << slot
        });
        let listed = equal & u32::from(self.bitmap());
        (listed != 0).then(|| listed.trailing_zeros() as usize)
    }

    /// Returns the value of a key.
    #[inline]
    pub fn get(&self, key: u64) -> Option<u64> {
        self.slot_of(key).map(|slot| self.value(slot))
    }

    /// Returns a slot that holds no record.
    #[inline]
    pub fn free_slot(&self) -> Option<usize> {
        let slot = (!self.bitmap()).trailing_zeros() as usize;
        (slot < self.geometry.slot_count()).then_some(slot)
    }

    /// Returns the number of records.
    pub fn record_count(&self) -> usize {
        self.bitmap().count_ones() as usize
    }

    /// Iterates over the slots that hold records, in no order of keys.
    #[inline]
    pub fn live_slots(&self) -> impl Iterator<Item = usize> + use<> {
        let bitmap = self.bitmap();
        (0..self.geometry.slot_count()).filter(move |slot| bitmap >> slot & 1 != 0)
    }

    /// Returns the smallest and the largest listed key; `None` if no key is listed.
    pub fn key_range(&self) -> Option<(u64, u64)> {
        let mut keys = self.live_slots().map(|slot| self.key(slot));
        let first = keys.next()?;
        Some(keys.fold((first, first), |(least, most), key| {
            (least.min(key), most.max(key))
        }))
    }

    /// Appends the records with keys of at least `from` to `records`, in ascending order.
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

    /// Returns the words of the image.
    pub fn words(&self) -> &'a [u64] {
        self.words
    }
}

/// Modifiable image that is later written to far memory.
#[derive(Clone, Copy, Debug)]
pub struct LeafBuffer {
    geometry: LeafGeometry,
    words: [u64; IMAGE_SIZE_WORDS_MAX],
}

impl LeafBuffer {
    /// Creates an empty leaf with these fences and link. It has no checksum before
    /// [`seal`](Self::seal).
    pub fn new(geometry: LeafGeometry, low: u64, high: u64, link: RemoteAddr) -> Self {
        let mut words = [0; IMAGE_SIZE_WORDS_MAX];
        words[LOW] = low;
        words[HIGH] = high;
        words[LINK] = link.word();
        Self { geometry, words }
    }

    /// Overwrites the buffer with an image of the same geometry.
    #[inline]
    pub fn assign(&mut self, image: LeafImage<'_>) {
        self.words[..image.words.len()].copy_from_slice(image.words);
    }

    /// Copies an image.
    pub fn copy_of(image: LeafImage<'_>) -> Self {
        let mut words = [0; IMAGE_SIZE_WORDS_MAX];
        words[..image.words.len()].copy_from_slice(image.words);
        Self {
            geometry: image.geometry,
            words,
        }
    }

    /// Returns the buffer as an image.
    #[inline]
    pub fn image(&self) -> LeafImage<'_> {
        LeafImage::new(self.geometry, &self.words)
    }

    /// Writes a record into a slot and lists the slot.
    pub fn set_record(&mut self, slot: usize, key: u64, value: u64) {
        self.words[KEYS + slot] = key;
        self.set_value(slot, value);
        self.set_bitmap(self.image().bitmap() | 1 << slot);
    }

    /// Changes the value in a slot.
    pub fn set_value(&mut self, slot: usize, value: u64) {
        self.words[KEYS + self.geometry.slot_count() + slot] = value;
    }

    /// Lists exactly these slots.
    pub fn set_bitmap(&mut self, bitmap: u16) {
        self.words[STATE] = self.words[STATE] & !(0xFFFF << 32) | u64::from(bitmap) << 32;
    }

    /// Sets the upper fence.
    pub fn set_high(&mut self, high: u64) {
        self.words[HIGH] = high;
    }

    /// Sets the link.
    pub fn set_link(&mut self, link: RemoteAddr) {
        self.words[LINK] = link.word();
    }

    /// Sets the next version, and the checksum that makes the image intact at `addr`. Returns the
    /// state word, whose WRITE commits the change (LEAF-1).
    pub fn seal(&mut self, addr: RemoteAddr, table: TableId) -> u64 {
        let image = self.image();
        let version = u64::from(image.version().wrapping_add(1));
        let version_and_bitmap = version << 16 | u64::from(image.bitmap());
        let checksum = image.checksum(addr, table, version_and_bitmap);
        self.words[STATE] = version_and_bitmap << 32 | u64::from(checksum);
        self.words[STATE]
    }

    /// Returns the words of the whole leaf, with a free lock before the image.
    pub fn leaf_words(&self) -> ([u64; IMAGE_SIZE_WORDS_MAX + 1], usize) {
        let mut words = [0; IMAGE_SIZE_WORDS_MAX + 1];
        words[1..].copy_from_slice(&self.words);
        (words, self.geometry.leaf_size_words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;
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
        use KeyPlacement::{Here, Left, Right};
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
        /// A torn READ, that is, a mix of two versions' words, is never accepted as a leaf that did
        /// not exist.
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

        /// Any memory contents can be checked without a panic.
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
