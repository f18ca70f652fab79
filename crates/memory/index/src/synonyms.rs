//! Leaves that splits made since the training, as far as one session has met them.

use core::ops::{Bound, Range};
use std::collections::BTreeMap;

use farleaf_base::RemoteAddr;

use crate::hint::Hint;

/// Synonym leaves that a session knows, by their lower fences.
#[derive(Debug, Default)]
pub struct Synonyms {
    /// One bit per trained leaf: whether the map has synonyms of it. Empty until there are some, so
    /// that a table that does not grow pays nothing.
    split: Vec<u64>,
    by_low: BTreeMap<u64, Synonym>,
}

/// Synonym leaf, and the trained leaf whose range contains its range. Named by address, because
/// numbers change with every training.
#[derive(Clone, Copy, Debug)]
struct Synonym {
    addr: RemoteAddr,
    trained: RemoteAddr,
}

/// Bytes of one entry of the map, including slack of nodes (B-tree nodes are two thirds full).
const ENTRY_SIZE_BYTES: u64 = 36;

/// Trained leaves that a newer training has replaced: their numbers and keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Numbers of the replaced leaves in the older directory.
    pub before: Range<u32>,
    /// Numbers of the new leaves in the newer directory; starts where `before` does.
    pub after: Range<u32>,
    /// Smallest key that the leaves cover.
    pub low: u64,
    /// Smallest key after the leaves; `None` if they extend to the last key.
    pub end: Option<u64>,
}

impl Synonyms {
    /// Adds a leaf with this lower fence in the range of a trained leaf, one of `leaf_count`.
    pub fn insert(&mut self, low: u64, addr: RemoteAddr, trained: Hint, leaf_count: u32) {
        if self.split.is_empty() {
            self.split = vec![0; (leaf_count as usize).div_ceil(64)];
        }
        self.split[trained.parent as usize / 64] |= 1 << (trained.parent % 64);
        let trained = trained.addr;
        self.by_low.insert(low, Synonym { addr, trained });
    }

    /// Returns the synonym of a trained leaf that has a key; `None` if no known synonym does.
    #[inline]
    pub fn find(&self, trained: Hint, key: u64) -> Option<Hint> {
        if !self.knows(trained.parent) {
            return None;
        }
        let (_, found) = self.by_low.range(..=key).next_back()?;
        let hint = Hint {
            addr: found.addr,
            parent: trained.parent,
        };
        (found.trained == trained.addr).then_some(hint)
    }

    /// Returns whether any synonym of the trained leaf is known.
    #[inline]
    pub fn knows(&self, parent: u32) -> bool {
        let word = self.split.get(parent as usize / 64).copied().unwrap_or(0);
        word >> (parent % 64) & 1 != 0
    }

    /// Adds the known synonyms of a trained leaf with lower fences above `from` to `found`, in
    /// order, until it has `limit` leaves.
    pub fn above(&self, trained: Hint, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
        if self.knows(trained.parent) {
            let above = self.by_low.range((Bound::Excluded(from), Bound::Unbounded));
            let own = above.take_while(|(_, leaf)| leaf.trained == trained.addr);
            let left = limit.saturating_sub(found.len());
            found.extend(own.take(left).map(|(_, leaf)| leaf.addr));
        }
    }

    /// Removes the synonyms of replaced leaves, and renumbers the others. The cost is proportional
    /// to what is removed, and a bit per leaf.
    pub fn replace(&mut self, replaced: &Replaced, leaf_count: u32) {
        if self.by_low.is_empty() {
            self.split.clear();
            return;
        }
        let end = replaced.end.map_or(Bound::Unbounded, Bound::Excluded);
        let gone = self
            .by_low
            .extract_if((Bound::Included(replaced.low), end), |_, _| true);
        gone.for_each(drop);
        let before = std::mem::take(&mut self.split);
        let mut split = vec![0; (leaf_count as usize).div_ceil(64)];
        let stays = replaced.before.start;
        copy_bits(&before, 0, &mut split, 0, stays);
        let (from, to) = (replaced.before.end, replaced.after.end);
        copy_bits(&before, from, &mut split, to, leaf_count - to);
        self.split = split;
    }

    /// Returns all known synonyms by lower fence: fence, address, and address of the trained leaf.
    pub fn iter(&self) -> impl Iterator<Item = (u64, RemoteAddr, RemoteAddr)> {
        let known = self.by_low.iter();
        known.map(|(low, leaf)| (*low, leaf.addr, leaf.trained))
    }

    /// Returns the number of known synonyms.
    pub fn len(&self) -> usize {
        self.by_low.len()
    }

    /// Returns whether no synonym is known.
    pub fn is_empty(&self) -> bool {
        self.by_low.is_empty()
    }

    /// Returns the bytes held.
    pub fn size_bytes(&self) -> u64 {
        size_of_val(&*self.split) as u64 + self.by_low.len() as u64 * ENTRY_SIZE_BYTES
    }
}

/// Copies `count` bits to `to`, where they must be zero.
fn copy_bits(from: &[u64], from_bit: u32, to: &mut [u64], to_bit: u32, count: u32) {
    let word_at = |bit: u32| {
        let (word, shift) = ((bit / 64) as usize, bit % 64);
        let low = from.get(word).copied().unwrap_or(0) >> shift;
        let high = from.get(word + 1).copied().unwrap_or(0);
        low | high
            .checked_shl(64 - shift)
            .filter(|_| shift > 0)
            .unwrap_or(0)
    };
    let mut done = 0;
    while done < count {
        let (word, shift) = ((to_bit + done) / 64, (to_bit + done) % 64);
        let part = (64 - shift).min(count - done);
        let mask = u64::MAX >> (64 - part);
        to[word as usize] |= (word_at(from_bit + done) & mask) << shift;
        done += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    fn leaf(block: u64, parent: u32) -> Hint {
        Hint {
            addr: RemoteAddr::new(NodeId(0), block),
            parent,
        }
    }

    /// Returns trained leaf `parent`, at block `1000 + parent`.
    fn trained(parent: u32) -> Hint {
        leaf(1000 + u64::from(parent), parent)
    }

    #[test]
    fn a_key_finds_the_nearest_synonym_of_its_own_parent_only() {
        let mut synonyms = Synonyms::default();
        assert_eq!(synonyms.find(trained(3), 5), None);
        for (low, block, parent) in [(50, 1, 3), (70, 2, 3), (120, 3, 4)] {
            synonyms.insert(low, leaf(block, 0).addr, trained(parent), 100);
        }
        assert_eq!(
            synonyms.find(trained(3), 49),
            None,
            "below the first synonym: the trained leaf"
        );
        assert_eq!(synonyms.find(trained(3), 50), Some(leaf(1, 3)));
        assert_eq!(synonyms.find(trained(3), 99), Some(leaf(2, 3)));
        assert_eq!(
            synonyms.find(trained(4), 110),
            None,
            "the nearest one belongs to another parent"
        );
        assert_eq!(synonyms.find(trained(4), u64::MAX), Some(leaf(3, 4)));
        assert_eq!(synonyms.find(trained(5), u64::MAX), None);
        let mut above = Vec::new();
        synonyms.above(trained(3), 50, 9, &mut above);
        assert_eq!(above, [leaf(2, 3).addr]);
        synonyms.above(trained(3), 0, 2, &mut above);
        assert_eq!(above.len(), 2, "no more than the limit");
    }

    /// Synonyms of leaves that stayed are found under the leaves' new numbers, and those of
    /// replaced leaves are removed, wherever their bits are.
    #[test]
    fn what_has_stayed_is_found_under_its_new_number() {
        for (from, to, grown) in [
            (10, 20, 0),
            (10, 20, 70),
            (0, 64, -60),
            (63, 65, 1),
            (5, 5, 0),
        ] {
            let mut synonyms = Synonyms::default();
            for parent in 0..200 {
                if parent % 3 == 0 {
                    let low = u64::from(parent) * 10 + 5;
                    synonyms.insert(low, leaf(u64::from(parent), 0).addr, trained(parent), 200);
                }
            }
            let end = (to as i32 + grown) as u32;
            let replaced = Replaced {
                before: from..to,
                after: from..end,
                low: u64::from(from) * 10,
                end: Some(u64::from(to) * 10),
            };
            synonyms.replace(&replaced, 200 + end - to);
            for parent in 0..200 {
                if (from..to).contains(&parent) {
                    continue;
                }
                let number = if parent < from {
                    parent
                } else {
                    parent + end - to
                };
                let now = Hint {
                    parent: number,
                    ..trained(parent)
                };
                let found = synonyms.find(now, u64::from(parent) * 10 + 9);
                let expected = (parent % 3 == 0).then_some(u64::from(parent));
                assert_eq!(found.map(|hint| hint.addr.block()), expected, "{parent}");
                assert_eq!(synonyms.knows(number), expected.is_some(), "{parent}");
            }
            assert!((from..end).all(|number| !synonyms.knows(number)));
            let stayed = (0..200).filter(|leaf| leaf % 3 == 0 && !(from..to).contains(leaf));
            assert_eq!(synonyms.len(), stayed.count());
        }
    }
}
