//! A map with CLOCK (second chance) eviction.

use core::cell::Cell;
use core::ops::{Bound, RangeBounds};
use std::collections::BTreeMap;

/// A value that a [`Clock`] can contain.
pub trait CachedValue {
    /// Returns the bytes that the value takes outside of the map's entry.
    fn content_bytes(&self) -> u64;
}

#[derive(Debug)]
struct ClockEntry<V> {
    value: V,
    /// Set when the entry was used since the hand passed.
    was_touched: Cell<bool>,
}

/// Map from keys to values with CLOCK eviction. The hand passes the keys in order, and spares each
/// entry that was used since it last passed, once.
#[derive(Debug)]
pub struct Clock<K, V> {
    entries: BTreeMap<K, ClockEntry<V>>,
    content_bytes: u64,
    /// Key that the hand passed last.
    hand: Option<K>,
}

impl<K: Ord + Copy, V: CachedValue> Clock<K, V> {
    /// Bytes of one entry of the map. Nodes of a B-tree have 11 places, of which at least 5 are
    /// taken; a sixteenth of a node is links.
    pub const ENTRY_BYTES: u64 = (size_of::<K>() + size_of::<ClockEntry<V>>()) as u64 * 12 / 5;

    /// Returns the bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.entries.len() as u64 * Self::ENTRY_BYTES + self.content_bytes
    }

    /// Returns the bytes that a value takes in the map.
    pub fn bytes_of(value: &V) -> u64 {
        Self::ENTRY_BYTES + value.content_bytes()
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the value of `key` and marks it as used.
    pub fn get(&self, key: K) -> Option<&V> {
        let entry = self.entries.get(&key)?;
        entry.was_touched.set(true);
        Some(&entry.value)
    }

    /// Returns the value of the largest key that is not above `key`, and marks it as used.
    pub fn at_or_below(&self, key: K) -> Option<&V> {
        let (_, entry) = self.entries.range(..=key).next_back()?;
        entry.was_touched.set(true);
        Some(&entry.value)
    }

    /// Returns the values of a range in key order, without marking them as used.
    pub fn range(&self, keys: impl RangeBounds<K>) -> impl Iterator<Item = &V> {
        self.entries.range(keys).map(|(_, entry)| &entry.value)
    }

    /// Adds or replaces a value and marks it as used.
    pub fn insert(&mut self, key: K, value: V) {
        self.content_bytes += value.content_bytes();
        let entry = ClockEntry {
            value,
            was_touched: Cell::new(true),
        };
        if let Some(old) = self.entries.insert(key, entry) {
            self.content_bytes -= old.value.content_bytes();
        }
    }

    /// Returns the largest key in the map that is not above `key`.
    pub fn key_at_or_below(&self, key: K) -> Option<K> {
        Some(*self.entries.range(..=key).next_back()?.0)
    }

    /// Removes the value of `key`, if present.
    pub fn remove(&mut self, key: K) {
        if let Some(old) = self.entries.remove(&key) {
            self.content_bytes -= old.value.content_bytes();
        }
    }

    /// Evicts the next value that was not used since the hand last passed. Returns false if the map
    /// is empty.
    pub fn evict(&mut self) -> bool {
        // In the second round no entry is marked as used any more.
        for _ in 0..=self.entries.len() {
            let above = self.hand.map_or(Bound::Unbounded, Bound::Excluded);
            let mut ahead = self.entries.range((above, Bound::Unbounded));
            let next = ahead.next().or_else(|| self.entries.iter().next());
            let Some((key, entry)) = next else {
                return false;
            };
            let key = *key;
            self.hand = Some(key);
            if !entry.was_touched.replace(false) {
                let evicted = self.entries.remove(&key);
                self.content_bytes -= evicted.map_or(0, |entry| entry.value.content_bytes());
                return true;
            }
        }
        unreachable!("the hand has untouched everything")
    }
}

impl<K, V> Default for Clock<K, V> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            content_bytes: 0,
            hand: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl CachedValue for u64 {
        fn content_bytes(&self) -> u64 {
            *self
        }
    }

    fn keys(clock: &Clock<u32, u64>) -> Vec<u32> {
        clock.entries.keys().copied().collect()
    }

    /// An entry used between two rounds of the hand stays, an unused one is evicted, and the hand
    /// continues where it stopped.
    #[test]
    fn what_was_touched_gets_a_second_chance() {
        let mut clock = Clock::<u32, u64>::default();
        for key in 1..=4 {
            clock.insert(key, 10);
        }
        assert!(
            clock.evict(),
            "all are touched: the first one goes on the second round"
        );
        assert_eq!(keys(&clock), [2, 3, 4]);
        assert_eq!(clock.get(2), Some(&10));
        assert!(clock.evict());
        assert_eq!(keys(&clock), [2, 4], "2 was touched");
        assert_eq!(clock.at_or_below(9), Some(&10));
        assert!(clock.evict());
        assert_eq!(
            keys(&clock),
            [4],
            "4 was touched, and 2 had its second chance"
        );
        assert!(clock.evict());
        assert!(!clock.evict(), "there is nothing left");
        assert_eq!(clock.bytes(), 0);
    }

    /// The byte count includes only present values, after replacements and evictions.
    #[test]
    fn bytes_are_of_what_is_held() {
        let mut clock = Clock::<u32, u64>::default();
        clock.insert(1, 500);
        clock.insert(1, 70);
        clock.insert(2, 5);
        assert_eq!(clock.bytes(), 75 + 2 * Clock::<u32, u64>::ENTRY_BYTES);
        while clock.evict() {}
        assert_eq!((clock.bytes(), clock.count()), (0, 0));
    }

    /// The nearest key to the left is found, and ranges are in key order.
    #[test]
    fn keys_are_found_by_order() {
        let mut clock = Clock::<u32, u64>::default();
        for key in [10, 20, 30] {
            clock.insert(key, u64::from(key));
        }
        assert_eq!(clock.at_or_below(9), None);
        assert_eq!(clock.at_or_below(29), Some(&20));
        assert_eq!(clock.range(11..).collect::<Vec<_>>(), [&20, &30]);
    }
}
