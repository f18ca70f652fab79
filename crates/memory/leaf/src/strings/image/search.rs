//! Searches of an image: whether a key belongs there, which slot has it, and the order of the
//! records. If the page alone does not suffice, the result names what must be read.

use core::cmp::Ordering;

use sha2::{Digest, Sha256};

use super::PageImage;
use crate::strings::geometry::SLOT_COUNT_MAX;
use crate::strings::outside::{Outside, Unread};
use crate::strings::record::{SlotSet, Stored, StoredFence, StoredPrefix};
use crate::strings::words::{DIGEST_SIZE_BYTES, Fingerprint, Reference};

/// Where a key belongs relative to one intact page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPlacement {
    /// In this page.
    Here,
    /// To the right of this page: follow the link.
    Right,
    /// To the left of this page.
    Left,
    /// Depends on an outside string: read it, and repeat the call.
    Unsure(Reference),
}

/// Result of a search for a key that the page covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// This slot has the record.
    Record(usize),
    /// The page has no record with the key.
    Absent,
    /// One of these slots has the record, or none. Each has an outside key with the same size,
    /// checksum and head. Nearly always it is a single slot that has the record.
    Unsure(SlotSet),
}

/// Slots of a page in key order.
#[derive(Clone, Copy, Debug)]
pub struct SlotOrder {
    slots: [u8; SLOT_COUNT_MAX],
    count: usize,
}

impl SlotOrder {
    /// Iterates over the slots in ascending key order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        let listed = &self.slots[..self.count];
        listed.iter().map(|slot| usize::from(*slot))
    }
}

/// Relation of a key to a page's prefix.
enum Suffix<'a> {
    /// The key begins with the prefix; holds the rest.
    Of(&'a [u8]),
    /// The key does not begin with the prefix.
    Elsewhere(KeyPlacement),
}

/// Returns the first bytes of a prefix's SHA-256, which identify an outside prefix in a page.
pub(crate) fn digest_of(prefix: &[u8]) -> [u8; DIGEST_SIZE_BYTES] {
    let hash = Sha256::digest(prefix);
    core::array::from_fn(|index| hash[index])
}

/// Compares a key's suffix with a stored one; `None` if the stored head is too short to decide.
fn compare(suffix: &[u8], stored: Stored<'_>) -> Option<Ordering> {
    match stored {
        Stored::Inline(bytes) => Some(suffix.cmp(bytes)),
        // The whole stored suffix is longer than its head.
        Stored::Outside { head, .. } => {
            let compared = suffix.len().min(head.len());
            match suffix[..compared].cmp(&head[..compared]) {
                Ordering::Equal if suffix.len() > head.len() => None,
                Ordering::Equal => Some(Ordering::Less),
                other => Some(other),
            }
        }
    }
}

/// Returns whether a key that begins with the prefix lies before a fence.
fn is_before(
    key: &[u8],
    suffix: &[u8],
    fence: StoredFence<'_>,
    outside: &Outside,
) -> Result<bool, Unread> {
    let (stored, equal_is_before) = match fence {
        StoredFence::Before(stored) => (stored, false),
        StoredFence::Behind(stored) => (stored, true),
        StoredFence::End => return Ok(true),
    };
    let order = match (compare(suffix, stored), stored) {
        (Some(order), _) => order,
        (None, Stored::Outside { reference, .. }) => key.cmp(outside.get(reference)?),
        (None, Stored::Inline(_)) => unreachable!("a suffix in the page compares"),
    };
    Ok(order.is_lt() || equal_is_before && order.is_eq())
}

impl<'a> PageImage<'a> {
    /// Returns where a key belongs. Hashes the key's beginning if the prefix is outside.
    pub fn placement(&self, key: &[u8], outside: &Outside) -> KeyPlacement {
        let suffix = match self.suffix_of(key, outside) {
            Suffix::Of(suffix) => suffix,
            Suffix::Elsewhere(placement) => return placement,
        };
        match is_before(key, suffix, self.high(), outside) {
            Ok(true) => {}
            Ok(false) => return KeyPlacement::Right,
            Err(Unread(reference)) => return KeyPlacement::Unsure(reference),
        }
        match is_before(key, suffix, self.low(), outside) {
            Ok(true) => KeyPlacement::Left,
            Ok(false) => KeyPlacement::Here,
            Err(Unread(reference)) => KeyPlacement::Unsure(reference),
        }
    }

    fn suffix_of<'k>(&self, key: &'k [u8], outside: &Outside) -> Suffix<'k> {
        let size_bytes = self.prefix_size_bytes();
        let prefix = match self.prefix() {
            StoredPrefix::Inline(prefix) => prefix,
            StoredPrefix::Outside { reference, digest } => {
                if key.len() >= size_bytes && digest_of(&key[..size_bytes]) == digest {
                    return Suffix::Of(&key[size_bytes..]);
                }
                match outside.get(reference) {
                    Ok(prefix) => prefix,
                    Err(Unread(reference)) => {
                        return Suffix::Elsewhere(KeyPlacement::Unsure(reference));
                    }
                }
            }
        };
        // All keys that the page can cover begin with the prefix, and so do its fences.
        match key.strip_prefix(prefix) {
            Some(suffix) => Suffix::Of(suffix),
            None if key < prefix => Suffix::Elsewhere(KeyPlacement::Left),
            None => Suffix::Elsewhere(KeyPlacement::Right),
        }
    }

    /// Returns whether the record in a slot lies below the upper fence.
    ///
    /// # Errors
    /// [`Unread`], if that depends on an outside string that was not read.
    pub(crate) fn is_below_high(&self, slot: usize, outside: &Outside) -> Result<bool, Unread> {
        match (self.key(slot), self.high()) {
            (_, StoredFence::End) => Ok(true),
            (Stored::Inline(suffix), high) if high.reference().is_none() => {
                is_before(&[], suffix, high, outside)
            }
            // Compare with the part of the fence in the page, which may be enough: the key is
            // longer than its head.
            (
                Stored::Outside { head, reference },
                StoredFence::Before(Stored::Inline(bytes))
                | StoredFence::Behind(Stored::Inline(bytes)),
            ) => {
                let compared = head.len().min(bytes.len());
                match head[..compared].cmp(&bytes[..compared]) {
                    Ordering::Equal if bytes.len() <= head.len() => Ok(false),
                    Ordering::Equal => Ok(self
                        .whole_fence(self.high(), outside)?
                        .is_behind(outside.get(reference)?)),
                    order => Ok(order.is_lt()),
                }
            }
            (_, high) => {
                let key = self.whole_key(slot, outside)?;
                Ok(self.whole_fence(high, outside)?.is_behind(&key))
            }
        }
    }

    /// Returns the slot of a key that the page covers ([`KeyPlacement::Here`]). Outside keys that
    /// were read are compared; others are returned as [`Found::Unsure`].
    pub fn find(&self, key: &[u8], outside: &Outside) -> Found {
        let Some(suffix) = key.get(self.prefix_size_bytes()..) else {
            return Found::Absent;
        };
        let fingerprint = Fingerprint::of(key);
        let mut unsure = SlotSet::default();
        for slot in self.slots().iter() {
            let word = self.slot_word(slot);
            if word.fingerprint != fingerprint {
                continue;
            }
            match self.key(slot) {
                Stored::Inline(bytes) if bytes == suffix => return Found::Record(slot),
                Stored::Outside { head, reference }
                    if suffix.starts_with(head) && reference.names(key) =>
                {
                    match outside.get(reference) {
                        Ok(whole) if whole == key => return Found::Record(slot),
                        Ok(_) => {}
                        Err(_) => unsure = unsure.with(slot),
                    }
                }
                _ => {}
            }
        }
        if unsure.is_empty() {
            Found::Absent
        } else {
            Found::Unsure(unsure)
        }
    }

    /// Returns the listed slots in key order, without allocating. Returns `None` if prefix, fences
    /// or any key are outside.
    pub fn slots_in_order(&self) -> Option<SlotOrder> {
        if !self.is_self_contained() {
            return None;
        }
        let mut order = SlotOrder {
            slots: [0; SLOT_COUNT_MAX],
            count: 0,
        };
        let suffix = |slot: &u8| self.key(usize::from(*slot)).in_page();
        for slot in self.slots().iter() {
            if self.slot_word(slot).key_is_outside {
                return None;
            }
            order.slots[order.count] = slot as u8;
            order.count += 1;
        }
        let listed = &mut order.slots[..order.count];
        // Already sorted if a load wrote them, or if keys came in order.
        if !listed.is_sorted_by_key(suffix) {
            listed.sort_unstable_by(|one, other| suffix(one).cmp(suffix(other)));
        }
        Some(order)
    }

    /// Returns the listed slots in key order.
    ///
    /// # Errors
    /// [`Unread`], if a key is outside and was not read.
    pub fn sorted_slots(&self, outside: &Outside) -> Result<Vec<usize>, Unread> {
        let mut sorted = Vec::with_capacity(self.record_count());
        for slot in self.slots().iter() {
            sorted.push((self.whole_suffix(slot, outside)?, slot));
        }
        sorted.sort_unstable();
        Ok(sorted.into_iter().map(|(_, slot)| slot).collect())
    }

    /// Returns the whole suffix of the key in a slot.
    ///
    /// # Errors
    /// [`Unread`], if the key is outside and was not read.
    pub fn whole_suffix<'b>(&self, slot: usize, outside: &'b Outside) -> Result<&'b [u8], Unread>
    where
        'a: 'b,
    {
        match self.key(slot) {
            Stored::Inline(suffix) => Ok(suffix),
            Stored::Outside { reference, .. } => {
                let key = outside.get(reference)?;
                Ok(key.get(self.prefix_size_bytes()..).unwrap_or_default())
            }
        }
    }
}
