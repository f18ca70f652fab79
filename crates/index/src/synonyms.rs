//! Leaves that splits made since the training, as far as one session has met them.

use core::ops::Bound;
use std::collections::BTreeMap;

use farleaf_types::RemoteAddr;

use crate::hint::Hint;

/// A session's knowledge of synonym leaves, by their lower fences.
#[derive(Debug, Default)]
pub struct Synonyms {
    /// One bit per trained leaf: whether the map holds synonyms of it. Empty until there are some,
    /// so that a table that does not grow pays nothing.
    split: Vec<u64>,
    by_low: BTreeMap<u64, Hint>,
}

/// What one entry of the map takes, nodes' slack included (B-tree nodes are two thirds full).
const ENTRY_SIZE_BYTES: u64 = 36;

impl Synonyms {
    /// Notes a leaf with this lower fence that is part of the range of trained leaf `leaf.parent`,
    /// one of `leaf_count`.
    pub fn insert(&mut self, low: u64, leaf: Hint, leaf_count: u32) {
        if self.split.is_empty() {
            self.split = vec![0; (leaf_count as usize).div_ceil(64)];
        }
        self.split[leaf.parent as usize / 64] |= 1 << (leaf.parent % 64);
        self.by_low.insert(low, leaf);
    }

    /// The synonym of `parent` that a key is in; `None` when it is in the trained leaf itself, as
    /// far as is known.
    #[inline]
    pub fn find(&self, parent: u32, key: u64) -> Option<Hint> {
        if !self.knows(parent) {
            return None;
        }
        let (_, found) = self.by_low.range(..=key).next_back()?;
        (found.parent == parent).then_some(*found)
    }

    /// Whether any synonym of the trained leaf is known.
    #[inline]
    pub fn knows(&self, parent: u32) -> bool {
        let word = self.split.get(parent as usize / 64).copied().unwrap_or(0);
        word >> (parent % 64) & 1 != 0
    }

    /// Adds the known synonyms of `parent` with lower fences above `from`, in order, until there
    /// are
    /// `limit`.
    pub fn above(&self, parent: u32, from: u64, limit: usize, found: &mut Vec<RemoteAddr>) {
        if self.knows(parent) {
            let above = self.by_low.range((Bound::Excluded(from), Bound::Unbounded));
            let own = above.take_while(|(_, leaf)| leaf.parent == parent);
            let left = limit.saturating_sub(found.len());
            found.extend(own.take(left).map(|(_, leaf)| leaf.addr));
        }
    }

    /// All that are known, by lower fence.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Hint)> {
        self.by_low.iter().map(|(low, leaf)| (*low, *leaf))
    }

    /// How many are known.
    pub fn len(&self) -> usize {
        self.by_low.len()
    }

    /// True when none is known.
    pub fn is_empty(&self) -> bool {
        self.by_low.is_empty()
    }

    /// Bytes held.
    pub fn size_bytes(&self) -> u64 {
        size_of_val(&*self.split) as u64 + self.by_low.len() as u64 * ENTRY_SIZE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_types::NodeId;

    fn leaf(block: u64, parent: u32) -> Hint {
        Hint {
            addr: RemoteAddr::new(NodeId(0), block),
            parent,
        }
    }

    #[test]
    fn a_key_finds_the_nearest_synonym_of_its_own_parent_only() {
        let mut synonyms = Synonyms::default();
        assert_eq!(synonyms.find(3, 5), None);
        synonyms.insert(50, leaf(1, 3), 100);
        synonyms.insert(70, leaf(2, 3), 100);
        synonyms.insert(120, leaf(3, 4), 100);
        assert_eq!(
            synonyms.find(3, 49),
            None,
            "below the first synonym: the trained leaf"
        );
        assert_eq!(synonyms.find(3, 50), Some(leaf(1, 3)));
        assert_eq!(synonyms.find(3, 99), Some(leaf(2, 3)));
        assert_eq!(
            synonyms.find(4, 110),
            None,
            "the nearest one belongs to another parent"
        );
        assert_eq!(synonyms.find(4, u64::MAX), Some(leaf(3, 4)));
        assert_eq!(synonyms.find(5, u64::MAX), None);
        let mut above = Vec::new();
        synonyms.above(3, 50, 9, &mut above);
        assert_eq!(above, [leaf(2, 3).addr]);
        synonyms.above(3, 0, 2, &mut above);
        assert_eq!(above.len(), 2, "no more than the limit");
    }
}
