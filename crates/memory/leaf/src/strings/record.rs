//! Records: as a page stores them, and as they are given to it.

use crate::geometry::{KEY_HEAD_SIZE_BYTES, KEY_SIZE_BYTES_MAX, PageGeometry};
use crate::words::{Fingerprint, Reference, SlotWord};

/// Some slots of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotSet(pub u64);

impl SlotSet {
    /// The slots, ascending.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = usize> + use<> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let slot = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (slot < 64).then_some(slot)
        })
    }

    /// How many they are.
    #[inline]
    pub const fn slot_count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this slot is one of them. Panics beyond 64 slots.
    #[inline]
    pub const fn contains(self, slot: usize) -> bool {
        self.0 & 1 << slot != 0
    }

    /// These, and this one.
    #[inline]
    #[must_use]
    pub const fn with(self, slot: usize) -> Self {
        Self(self.0 | 1 << slot)
    }

    /// These, but not this one.
    #[inline]
    #[must_use]
    pub const fn without(self, slot: usize) -> Self {
        Self(self.0 & !(1 << slot))
    }

    /// One more than the highest; 0 if there are none.
    #[inline]
    pub const fn end(self) -> usize {
        64 - self.0.leading_zeros() as usize
    }

    /// The lowest that is not one of them; 64 if all are.
    #[inline]
    pub const fn lowest_missing(self) -> usize {
        (!self.0).trailing_zeros() as usize
    }
}

/// A suffix of a key or fence, as a page stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    /// All of it.
    Inline(&'a [u8]),
    /// Its first 32 bytes, and where the whole string is, prefix and all.
    Outside {
        /// The first 32 bytes of the suffix.
        head: &'a [u8],
        /// The whole string.
        reference: Reference,
    },
}

impl<'a> Stored<'a> {
    /// The whole string's reference, if it is outside.
    pub const fn reference(&self) -> Option<Reference> {
        match self {
            Self::Inline(_) => None,
            Self::Outside { reference, .. } => Some(*reference),
        }
    }

    /// As much of the suffix as lies in the page.
    pub const fn in_page(&self) -> &'a [u8] {
        match self {
            Self::Inline(bytes) | Self::Outside { head: bytes, .. } => bytes,
        }
    }
}

/// A fence, as a page stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredFence<'a> {
    /// Right before a string.
    Before(Stored<'a>),
    /// Right behind a string.
    Behind(Stored<'a>),
    /// Behind all keys.
    End,
}

impl StoredFence<'_> {
    /// The whole string's reference, if it is outside.
    pub const fn reference(&self) -> Option<Reference> {
        match self {
            Self::Before(stored) | Self::Behind(stored) => stored.reference(),
            Self::End => None,
        }
    }
}

/// A prefix, as a page stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredPrefix<'a> {
    /// All of it.
    Inline(&'a [u8]),
    /// Where it is, and the first 16 bytes of its SHA-256.
    Outside {
        /// The prefix.
        reference: Reference,
        /// The first 16 bytes of its SHA-256.
        digest: [u8; 16],
    },
}

/// A value: in the page, or outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// All of it.
    Inline(&'a [u8]),
    /// Where it is.
    Outside(Reference),
}

impl Value<'_> {
    /// The value's reference, if it is outside.
    pub const fn reference(&self) -> Option<Reference> {
        match self {
            Self::Inline(_) => None,
            Self::Outside(reference) => Some(*reference),
        }
    }
}

/// A key that is given to a page.
#[derive(Clone, Copy, Debug)]
pub enum NewKey<'a> {
    /// The whole key, whose suffix is to lie in the page.
    Inline(&'a [u8]),
    /// The whole key, and where it lies outside.
    Outside(&'a [u8], Reference),
}

impl<'a> NewKey<'a> {
    /// The whole key.
    pub const fn whole(&self) -> &'a [u8] {
        match self {
            Self::Inline(key) | Self::Outside(key, _) => key,
        }
    }
}

/// A record that is given to a page.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a> {
    /// Its key.
    pub key: NewKey<'a>,
    /// Its value, in the page if [`PageGeometry::is_value_inline`].
    pub value: Value<'a>,
}

impl NewRecord<'_> {
    /// Everything outside that it names.
    pub fn references(&self) -> impl Iterator<Item = Reference> + use<> {
        let references = [block_of(&self.key), self.value.reference()];
        references.into_iter().flatten()
    }
}

/// Inline bytes of a record as words, and what its slot will say.
#[derive(Clone, Debug)]
pub(crate) struct Encoded {
    /// The record's words.
    pub(crate) words: Vec<u64>,
    slot: SlotWord,
}

impl Encoded {
    /// A record of a page with a prefix of this size. Panics when the key is too short for the
    /// prefix or too long for any page, when its suffix is inline and must not be or is outside and
    /// must not be, or when the value is longer than any page has room for.
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

    /// The record whose slot this is, with the inline bytes of its key, and another value. Panics
    /// when the value is longer than any page has room for.
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

    /// What the slot says when the record lies there.
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

/// The inline bytes of a key's or fence's suffix. Panics when it has a block and must be inline, or
/// has none and must be outside.
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

/// Bytes as words, the last one filled up with zeros.
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

    /// All slots, none, and some.
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

    /// The last word is filled up with zeros.
    #[test]
    fn bytes_are_little_endian_words() {
        assert_eq!(words_of(b""), [0_u64; 0]);
        assert_eq!(
            words_of(&[1, 2, 3, 4, 5, 6, 7, 8, 9]),
            [0x0807_0605_0403_0201, 9]
        );
    }
}
