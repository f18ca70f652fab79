//! Records, as a page stores them and as callers provide them.

use farleaf_base::limits::KEY_SIZE_BYTES_MAX;

use crate::strings::geometry::{KEY_HEAD_SIZE_BYTES, PageGeometry};
use crate::strings::words::{Fingerprint, Reference, SlotWord};

/// Set of slots of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSet(pub u64);

impl SlotSet {
    /// Iterates over the slots in ascending order.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = usize> + use<> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let slot = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (slot < 64).then_some(slot)
        })
    }

    /// Returns the number of slots in the set.
    #[inline]
    pub const fn slot_count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the set contains this slot.
    ///
    /// # Panics
    ///
    /// If the slot is 64 or higher.
    #[inline]
    pub const fn contains(self, slot: usize) -> bool {
        self.0 & 1 << slot != 0
    }

    /// Returns the set with this slot added.
    #[inline]
    #[must_use]
    pub const fn with(self, slot: usize) -> Self {
        Self(self.0 | 1 << slot)
    }

    /// Returns the set with this slot removed.
    #[inline]
    #[must_use]
    pub const fn without(self, slot: usize) -> Self {
        Self(self.0 & !(1 << slot))
    }

    /// Returns one more than the highest slot; 0 if the set is empty.
    #[inline]
    pub const fn end(self) -> usize {
        64 - self.0.leading_zeros() as usize
    }

    /// Returns the lowest slot that is not in the set; 64 if all are.
    #[inline]
    pub const fn lowest_missing(self) -> usize {
        (!self.0).trailing_zeros() as usize
    }
}

/// Suffix of a key or fence, as a page stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    /// The whole suffix, inline.
    Inline(&'a [u8]),
    /// The first 32 bytes of the suffix, and the reference of the whole string, including the
    /// prefix.
    Outside {
        /// First 32 bytes of the suffix.
        head: &'a [u8],
        /// Reference of the whole string.
        reference: Reference,
    },
}

impl<'a> Stored<'a> {
    /// Returns the reference of the whole string, if it is outside.
    pub const fn reference(&self) -> Option<Reference> {
        match self {
            Self::Inline(_) => None,
            Self::Outside { reference, .. } => Some(*reference),
        }
    }

    /// Returns the part of the suffix that is in the page.
    pub const fn in_page(&self) -> &'a [u8] {
        match self {
            Self::Inline(bytes) | Self::Outside { head: bytes, .. } => bytes,
        }
    }
}

/// Fence, as a page stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredFence<'a> {
    /// Directly before a string.
    Before(Stored<'a>),
    /// Directly behind a string.
    Behind(Stored<'a>),
    /// Behind all keys.
    End,
}

impl StoredFence<'_> {
    /// Returns the reference of the whole string, if it is outside.
    pub const fn reference(&self) -> Option<Reference> {
        match self {
            Self::Before(stored) | Self::Behind(stored) => stored.reference(),
            Self::End => None,
        }
    }
}

/// Prefix, as a page stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredPrefix<'a> {
    /// The whole prefix, inline.
    Inline(&'a [u8]),
    /// The reference of the prefix, and the first 16 bytes of its SHA-256.
    Outside {
        /// Reference of the prefix.
        reference: Reference,
        /// First 16 bytes of the prefix's SHA-256.
        digest: [u8; 16],
    },
}

/// Value, inline or outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The whole value, inline.
    Inline(&'a [u8]),
    /// Reference of an outside value.
    Outside(Reference),
}

impl Value<'_> {
    /// Returns the value's reference, if it is outside.
    pub const fn reference(&self) -> Option<Reference> {
        match self {
            Self::Inline(_) => None,
            Self::Outside(reference) => Some(*reference),
        }
    }
}

/// Key that is given to a page.
#[derive(Clone, Copy, Debug)]
pub enum NewKey<'a> {
    /// Whole key whose suffix is to be inline.
    Inline(&'a [u8]),
    /// Whole key, and the reference of its outside string.
    Outside(&'a [u8], Reference),
}

impl<'a> NewKey<'a> {
    /// Returns the whole key.
    pub const fn whole(&self) -> &'a [u8] {
        match self {
            Self::Inline(key) | Self::Outside(key, _) => key,
        }
    }
}

/// Record that is given to a page.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// Key of the record.
    pub key: NewKey<'a>,
    /// Value of the record, inline if [`PageGeometry::is_value_inline`].
    pub value: Value<'a>,
}

impl NewRecord<'_> {
    /// Returns all references to outside strings of the record.
    pub fn references(&self) -> impl Iterator<Item = Reference> + use<> {
        let references = [block_of(&self.key), self.value.reference()];
        references.into_iter().flatten()
    }
}

/// Inline bytes of a record as words, and the contents of its slot word.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    /// Words of the record.
    pub(crate) words: Vec<u64>,
    slot: SlotWord,
}

impl Encoded {
    /// Encodes a record of a page whose prefix has this size.
    ///
    /// # Panics
    ///
    /// - The key is shorter than the prefix, or too long for any page.
    /// - The suffix is inline but must be outside, or vice versa.
    /// - The value does not fit into any page.
    pub(crate) fn new(
        geometry: PageGeometry,
        prefix_size_bytes: usize,
        record: &NewRecord<'_>,
    ) -> Self {
        let key = record.key.whole();
        assert!(
            (prefix_size_bytes..=KEY_SIZE_BYTES_MAX).contains(&key.len()),
            "a key has the page's prefix and up to 4,096 bytes"
        );
        let suffix = &key[prefix_size_bytes..];
        let mut bytes = Vec::with_capacity(suffix.len());
        put_suffix(geometry, &mut bytes, suffix, block_of(&record.key));
        Self::with_value(
            geometry,
            bytes,
            matches!(record.key, NewKey::Outside(..)),
            Fingerprint::of(key),
            record.value,
        )
    }

    /// Encodes the record of this slot, with the same inline key bytes and another value.
    ///
    /// # Panics
    ///
    /// If the value is longer than fits into any page.
    pub(crate) fn updated(
        geometry: PageGeometry,
        slot: SlotWord,
        key: &[u8],
        value: Value<'_>,
    ) -> Self {
        let key = key.to_vec();
        Self::with_value(geometry, key, slot.key_is_outside, slot.fingerprint, value)
    }

    fn with_value(
        geometry: PageGeometry,
        mut bytes: Vec<u8>,
        key_is_outside: bool,
        fingerprint: Fingerprint,
        value: Value<'_>,
    ) -> Self {
        let key_size_bytes = bytes.len();
        match value {
            Value::Inline(value) => {
                assert!(
                    value.len() <= geometry.value_size_bytes_max(),
                    "a value that no page has room for is outside"
                );
                bytes.extend_from_slice(value);
            }
            Value::Outside(reference) => bytes.extend_from_slice(&reference.to_bytes()),
        }
        Self {
            slot: SlotWord {
                offset_words: 0,
                key_size_bytes: key_size_bytes as u16,
                value_size_bytes: (bytes.len() - key_size_bytes) as u16,
                key_is_outside,
                value_is_outside: value.reference().is_some(),
                fingerprint,
            },
            words: words_of(&bytes),
        }
    }

    /// Returns the slot word for the record at this offset.
    pub(crate) fn slot_at(&self, offset_words: usize) -> SlotWord {
        SlotWord {
            offset_words: offset_words as u8,
            ..self.slot
        }
    }
}

const fn block_of(key: &NewKey<'_>) -> Option<Reference> {
    match key {
        NewKey::Inline(_) => None,
        NewKey::Outside(_, reference) => Some(*reference),
    }
}

/// Appends the inline bytes of a key's or fence's suffix.
///
/// # Panics
///
/// If the suffix has a block but must be inline, or has none but must be outside.
pub(crate) fn put_suffix(
    geometry: PageGeometry,
    bytes: &mut Vec<u8>,
    suffix: &[u8],
    block: Option<Reference>,
) {
    assert!(
        geometry.is_suffix_inline(suffix.len()) == block.is_none(),
        "a suffix is outside if, and only if, it is longer than an eighth of the page"
    );
    match block {
        None => bytes.extend_from_slice(suffix),
        Some(reference) => {
            bytes.extend_from_slice(&suffix[..KEY_HEAD_SIZE_BYTES]);
            bytes.extend_from_slice(&reference.to_bytes());
        }
    }
}

/// Converts bytes to words, zero-padding the last one.
pub(crate) fn words_of(bytes: &[u8]) -> Vec<u64> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    };
    bytes.chunks(8).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slot sets work for all slots, none, and some.
    #[test]
    fn slot_sets_know_their_slots() {
        assert_eq!(SlotSet(u64::MAX).iter().count(), 64);
        assert_eq!(SlotSet(u64::MAX).lowest_missing(), 64);
        assert_eq!(SlotSet(0).iter().next(), None);
        assert_eq!((SlotSet(0).end(), SlotSet(0).is_empty()), (0, true));
        let some = SlotSet(0).with(3).with(0).with(63).with(7).without(7);
        assert_eq!(some.iter().collect::<Vec<_>>(), [0, 3, 63]);
        assert_eq!(
            (some.end(), some.lowest_missing(), some.slot_count()),
            (64, 1, 3)
        );
        assert!(some.contains(3) && !some.contains(7));
    }

    /// The last word is zero-padded.
    #[test]
    fn bytes_are_little_endian_words() {
        assert_eq!(words_of(b""), [0_u64; 0]);
        assert_eq!(
            words_of(&[1, 2, 3, 4, 5, 6, 7, 8, 9]),
            [0x0807_0605_0403_0201, 9]
        );
    }
}
