//! Pages that splits created after the training, as far as one session has found them.

use core::ops::Bound;
use std::collections::BTreeMap;

use crate::partial::ALLOCATION_BYTES;
use farleaf_base::RemoteAddr;

/// Page that a split created.
#[derive(Clone, Debug)]
struct Synonym {
    /// Lower fence: the smallest key that the page can contain.
    low: Box<[u8]>,
    addr: RemoteAddr,
}

/// Synonym pages that a session knows, grouped by parent: the trained page whose range they were
/// split from.
#[derive(Debug, Default)]
pub struct Synonyms {
    by_parent: BTreeMap<u32, Vec<Synonym>>,
    count: usize,
    /// Capacity of all lists together, in entries.
    space_count: usize,
    string_size_bytes: u64,
    /// Parent whose synonyms were evicted last.
    hand: u32,
}

/// Bytes of an entry without its string.
const ENTRY_SIZE_BYTES: u64 = size_of::<Synonym>() as u64;
/// Bytes of a parent, with the allocation for its entries. A B-tree node has 11 slots, of which at
/// least 5 are used; a sixteenth of the nodes' memory is links.
const PARENT_SIZE_BYTES: u64 =
    (size_of::<u32>() + size_of::<Vec<Synonym>>()) as u64 * 12 / 5 + ALLOCATION_BYTES;

/// Returns the number of entries by which a full list grows.
fn growth_count(count: usize) -> usize {
    count.max(4)
}

/// Returns the bytes of an entry's string, which is an allocation of its own.
fn string_bytes(low: &[u8]) -> u64 {
    low.len() as u64 + ALLOCATION_BYTES
}

fn place_of(own: &[Synonym], low: &[u8]) -> Result<usize, usize> {
    own.binary_search_by(|it| (*it.low).cmp(low))
}

impl Synonyms {
    fn own(&self, parent: u32) -> &[Synonym] {
        self.by_parent.get(&parent).map_or(&[], |own| &**own)
    }

    /// Records a page with this lower fence that was split from the range of a trained page.
    pub fn insert(&mut self, low: &[u8], addr: RemoteAddr, parent: u32) {
        let own = self.by_parent.entry(parent).or_default();
        match place_of(own, low) {
            Ok(found) => own[found].addr = addr,
            Err(place) => {
                let space_before = own.capacity();
                if own.len() == space_before {
                    own.reserve_exact(growth_count(space_before));
                }
                self.space_count += own.capacity() - space_before;
                self.string_size_bytes += string_bytes(low);
                self.count += 1;
                let low = Box::from(low);
                own.insert(place, Synonym { low, addr });
            }
        }
    }

    /// Returns the known synonym of a trained page that covers a key; `None` if the trained page
    /// itself covers it, as far as known.
    #[inline]
    pub fn find(&self, parent: u32, key: &[u8]) -> Option<RemoteAddr> {
        if self.by_parent.is_empty() {
            return None;
        }
        let own = self.by_parent.get(&parent)?;
        let above = own.partition_point(|it| *it.low <= *key);
        Some(own[above.checked_sub(1)?].addr)
    }

    /// Returns all known synonyms of a trained page, in the order of their fences.
    pub fn of(&self, parent: u32) -> impl Iterator<Item = RemoteAddr> + '_ {
        self.own(parent).iter().map(|it| it.addr)
    }

    /// Returns the synonyms of a trained page that begin after a key, in the order of their fences.
    pub fn behind(&self, parent: u32, key: &[u8]) -> impl Iterator<Item = RemoteAddr> + '_ {
        let own = self.own(parent);
        let first = own.partition_point(|it| *it.low <= *key);
        own[first..].iter().map(|it| it.addr)
    }

    /// Returns the synonyms of a trained page that begin before a key, or all of them, in the order
    /// of their fences.
    pub fn before(
        &self,
        parent: u32,
        key: Option<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = RemoteAddr> + '_ {
        let own = self.own(parent);
        let end = key.map_or(own.len(), |key| own.partition_point(|it| *it.low < *key));
        own[..end].iter().map(|it| it.addr)
    }

    /// Iterates over all synonyms, ascending: the lower fence of each and its address.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], RemoteAddr)> + '_ {
        let all = self.by_parent.values().flatten();
        all.map(|it| (&*it.low, it.addr))
    }

    /// Returns the number of known synonyms.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Evicts every second synonym of one parent, so that the remaining ones still lead close to
    /// the others. Parents take turns. Returns the number of evicted synonyms; 0 if none are known.
    pub fn forget_some(&mut self) -> usize {
        let behind = (Bound::Excluded(self.hand), Bound::Unbounded);
        let next = self.by_parent.range(behind).next();
        let next = next.or_else(|| self.by_parent.first_key_value());
        let Some(parent) = next.map(|(parent, _)| *parent) else {
            return 0;
        };
        self.hand = parent;
        let own = self.by_parent.remove(&parent).unwrap_or_default();
        self.space_count -= own.capacity();
        let (count, mut remaining) = (own.len(), Vec::with_capacity(own.len() / 2));
        for (index, synonym) in own.into_iter().enumerate() {
            if index % 2 == 1 {
                remaining.push(synonym);
            } else {
                self.string_size_bytes -= string_bytes(&synonym.low);
            }
        }
        let forgotten = count - remaining.len();
        self.count -= forgotten;
        if !remaining.is_empty() {
            self.space_count += remaining.capacity();
            self.by_parent.insert(parent, remaining);
        }
        forgotten
    }

    /// Returns the additional bytes that recording a page with this lower fence takes; 0 if it is
    /// known.
    pub fn size_bytes_of(&self, low: &[u8], parent: u32) -> u64 {
        let Some(own) = self.by_parent.get(&parent) else {
            let entries = growth_count(0) as u64 * ENTRY_SIZE_BYTES;
            return PARENT_SIZE_BYTES + entries + string_bytes(low);
        };
        if place_of(own, low).is_ok() {
            return 0;
        }
        let is_full = own.len() == own.capacity();
        let growth_count = if is_full { growth_count(own.len()) } else { 0 };
        growth_count as u64 * ENTRY_SIZE_BYTES + string_bytes(low)
    }

    /// Returns the bytes held.
    pub fn size_bytes(&self) -> u64 {
        let parents = self.by_parent.len() as u64 * PARENT_SIZE_BYTES;
        self.string_size_bytes + self.space_count as u64 * ENTRY_SIZE_BYTES + parents
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    fn at(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    /// Promise: a key is in the last synonym of its parent that begins before it, if there is one.
    /// A synonym that is found again replaces the known one.
    #[test]
    fn keys_are_in_the_last_synonym_before_them() {
        let mut synonyms = Synonyms::default();
        assert_eq!(synonyms.find(7, b"x"), None);
        synonyms.insert(b"m", at(1), 7);
        synonyms.insert(b"d", at(2), 7);
        synonyms.insert(b"a", at(3), 8);
        for (key, expected) in [
            (&b"c"[..], None),
            (b"d", Some(at(2))),
            (b"lz", Some(at(2))),
            (b"m", Some(at(1))),
            (b"z", Some(at(1))),
        ] {
            assert_eq!(synonyms.find(7, key), expected, "{key:?}");
        }
        synonyms.insert(b"d", at(4), 7);
        assert_eq!(synonyms.find(7, b"e"), Some(at(4)));
        assert_eq!(synonyms.of(7).collect::<Vec<_>>(), [at(4), at(1)]);
        assert_eq!(synonyms.behind(7, b"d").collect::<Vec<_>>(), [at(1)]);
        assert_eq!(synonyms.behind(7, b"z").count(), 0);
        assert_eq!(synonyms.behind(6, b"").count(), 0);
        assert_eq!(synonyms.before(7, Some(b"m")).collect::<Vec<_>>(), [at(4)]);
        assert_eq!(synonyms.before(7, None).next_back(), Some(at(1)));
        assert_eq!(synonyms.before(6, None).count(), 0);
        let strings = 3 * (1 + ALLOCATION_BYTES);
        let entries = 2 * (4 * ENTRY_SIZE_BYTES + PARENT_SIZE_BYTES);
        assert_eq!(synonyms.count(), 3);
        assert_eq!(synonyms.size_bytes(), strings + entries);
    }

    /// Promise: the size predicted for a page is what recording it takes; 0 if it is known.
    #[test]
    fn bytes_are_foretold() {
        let mut synonyms = Synonyms::default();
        for number in 0..40_u32 {
            for (parent, low) in [(7, format!("k{number:03}")), (number, "a".to_owned())] {
                let before = synonyms.size_bytes();
                let foretold = synonyms.size_bytes_of(low.as_bytes(), parent);
                synonyms.insert(low.as_bytes(), at(1), parent);
                assert_eq!(synonyms.size_bytes() - before, foretold);
                assert_eq!(synonyms.size_bytes_of(low.as_bytes(), parent), 0);
            }
        }
        while synonyms.forget_some() > 0 {}
        assert_eq!(synonyms.size_bytes(), 0);
    }

    /// Promise: each eviction removes every second synonym of the next parent, until none is left.
    /// The counted bytes match the contents.
    #[test]
    fn every_second_one_is_forgotten() {
        let mut synonyms = Synonyms::default();
        for (low, parent) in [(&b"a"[..], 3), (b"b", 3), (b"bc", 3), (b"c", 5), (b"d", 9)] {
            synonyms.insert(low, at(1), parent);
        }
        assert_eq!(synonyms.forget_some(), 2);
        assert_eq!(synonyms.iter().count(), 3);
        assert_eq!(synonyms.find(3, b"a"), None);
        assert_eq!(synonyms.find(3, b"x"), Some(at(1)));
        assert_eq!((synonyms.forget_some(), synonyms.find(5, b"x")), (1, None));
        assert_eq!((synonyms.forget_some(), synonyms.find(9, b"x")), (1, None));
        let left = 1 + ALLOCATION_BYTES + ENTRY_SIZE_BYTES + PARENT_SIZE_BYTES;
        assert_eq!((synonyms.count(), synonyms.size_bytes()), (1, left));
        assert_eq!((synonyms.forget_some(), synonyms.forget_some()), (1, 0));
        assert_eq!((synonyms.count(), synonyms.size_bytes()), (0, 0));
    }
}
