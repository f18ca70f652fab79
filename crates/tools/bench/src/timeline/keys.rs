//! Keys by index and indexes by key: both are computed, so that millions of keys need no memory.

use super::{Change, KeyOrder};

/// Mean distance of ascending keys, as a power of two; the position of each within its slot is
/// random.
const SPACING_BITS: u32 = 20;
/// Keys of a cluster, as a power of two: 1,024 in a row.
const CLUSTER_BITS: u32 = 10;
/// Clusters that fill up at a time, as a power of two: 64.
const OPEN_BITS: u32 = 6;
/// Positions of clusters, as a power of two.
const PLACE_BITS: u32 = u64::BITS - CLUSTER_BITS;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;

/// Multipliers of `SplitMix64`'s finalizer (Steele, Lea, Flood, OOPSLA 2014), and their inverses
/// modulo 2^64.
const FACTORS: [u64; 2] = [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB];
const INVERSES: [u64; 2] = [0x96DE_1B17_3F11_9089, 0x3196_42B2_D24D_8EC3];
const _: () = assert!(FACTORS[0].wrapping_mul(INVERSES[0]) == 1);
const _: () = assert!(FACTORS[1].wrapping_mul(INVERSES[1]) == 1);

/// Maps each index below `count` to a distinct key, and back. Takes a few nanoseconds and no
/// memory.
#[derive(Clone, Copy, Debug)]
pub struct KeyPlan {
    order: KeyOrder,
    count: u64,
    offset: u64,
}

impl KeyPlan {
    /// Creates the keys of a change; the same seed gives the same keys.
    pub fn new(change: Change, seed: u64) -> Self {
        Self {
            order: change.order(),
            count: change.key_count(),
            offset: mix(seed ^ 0x9E37_79B9_7F4A_7C15),
        }
    }

    /// Returns the key of an index.
    #[inline]
    pub fn key(&self, index: u64) -> u64 {
        debug_assert!(index < self.count, "index {index} of {}", self.count);
        match self.order {
            KeyOrder::Uniform => mix(index.wrapping_add(self.offset)),
            KeyOrder::Ascending => self.spaced(index),
            KeyOrder::Descending => u64::MAX - self.spaced(index),
            KeyOrder::Clustered => self.clustered(index),
        }
    }

    /// Returns the index of a key; `None` if it is not one of them.
    pub fn index_of(&self, key: u64) -> Option<u64> {
        let spaced_index = |key: u64| {
            let index = (key >> SPACING_BITS).checked_sub(1)?;
            (index < self.count && self.spaced(index) == key).then_some(index)
        };
        let index = match self.order {
            KeyOrder::Uniform => unmix(key).wrapping_sub(self.offset),
            KeyOrder::Ascending => spaced_index(key)?,
            KeyOrder::Descending => spaced_index(u64::MAX - key)?,
            KeyOrder::Clustered => self.clustered_index(key),
        };
        (index < self.count).then_some(index)
    }

    /// Returns the keys of the indexes below `count`, ascending. 8 bytes of memory for each, unless
    /// indexes and keys ascend together.
    pub(super) fn sorted(&self, count: u64) -> Box<dyn Iterator<Item = u64> + '_> {
        match self.order {
            KeyOrder::Ascending => Box::new((0..count).map(|index| self.key(index))),
            KeyOrder::Descending => Box::new((0..count).rev().map(|index| self.key(index))),
            KeyOrder::Uniform | KeyOrder::Clustered => {
                let mut keys: Vec<u64> = (0..count).map(|index| self.key(index)).collect();
                keys.sort_unstable();
                Box::new(keys.into_iter())
            }
        }
    }

    fn spaced(&self, index: u64) -> u64 {
        let place = mix(index.wrapping_add(self.offset)) >> (u64::BITS - SPACING_BITS);
        ((index + 1) << SPACING_BITS) | place
    }

    /// Returns a clustered key: neighbors in time are in different clusters, and far apart in the
    /// same one.
    fn clustered(&self, index: u64) -> u64 {
        let open = index & ((1 << OPEN_BITS) - 1);
        let turn = index >> OPEN_BITS;
        let cluster = ((turn >> CLUSTER_BITS) << OPEN_BITS) | open;
        let place = mix_place(cluster.wrapping_add(self.offset) & PLACE_MASK);
        (place << CLUSTER_BITS) | reversed(turn)
    }

    fn clustered_index(&self, key: u64) -> u64 {
        let cluster = unmix_place(key >> CLUSTER_BITS).wrapping_sub(self.offset) & PLACE_MASK;
        let open = cluster & ((1 << OPEN_BITS) - 1);
        let turn = ((cluster >> OPEN_BITS) << CLUSTER_BITS) | reversed(key);
        (turn << OPEN_BITS) | open
    }
}

/// Returns the value of a key, which depends on every bit of the key; values are distinct.
#[inline]
pub(super) fn value_of(key: u64) -> u64 {
    mix(key ^ 0xD1B5_4A32_D192_ED03)
}

/// Returns the lowest bits of a number in reverse order: its own inverse.
fn reversed(number: u64) -> u64 {
    (number & ((1 << CLUSTER_BITS) - 1)).reverse_bits() >> PLACE_BITS
}

/// Applies `SplitMix64`'s finalizer, which is a bijection.
#[inline]
fn mix(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(FACTORS[0]);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(FACTORS[1]);
    mixed ^ (mixed >> 31)
}

/// Inverts [`mix`].
fn unmix(mixed: u64) -> u64 {
    let mut number = mixed ^ (mixed >> 31) ^ (mixed >> 62);
    number = number.wrapping_mul(INVERSES[1]);
    number = (number ^ (number >> 27) ^ (number >> 54)).wrapping_mul(INVERSES[0]);
    number ^ (number >> 30) ^ (number >> 60)
}

/// Applies [`mix`] to positions: shifting by half of their bits is its own inverse.
fn mix_place(place: u64) -> u64 {
    let fold = |place: u64| place ^ (place >> (PLACE_BITS / 2));
    let mut mixed = fold(place);
    for factor in FACTORS {
        mixed = fold(mixed.wrapping_mul(factor) & PLACE_MASK);
    }
    mixed
}

/// Inverts [`mix_place`].
fn unmix_place(mixed: u64) -> u64 {
    let fold = |place: u64| place ^ (place >> (PLACE_BITS / 2));
    let mut place = fold(mixed);
    for inverse in INVERSES.into_iter().rev() {
        place = fold(place.wrapping_mul(inverse) & PLACE_MASK);
    }
    place
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const COUNT: u64 = 200_000;

    fn plan(order: KeyOrder, seed: u64) -> KeyPlan {
        let (from, to) = (0, COUNT);
        KeyPlan::new(Change::Growth { order, from, to }, seed)
    }

    /// Promise: every key maps back to its only index, and other keys to none.
    #[test]
    fn keys_tell_their_indexes() {
        for order in KeyOrder::ALL {
            for seed in [0, 1, u64::MAX] {
                let plan = plan(order, seed);
                let mut keys = BTreeSet::new();
                for index in 0..COUNT {
                    let key = plan.key(index);
                    assert_eq!(plan.index_of(key), Some(index), "{order:?} {seed}");
                    keys.insert(key);
                }
                assert_eq!(keys.len() as u64, COUNT);
                let sorted: Vec<u64> = plan.sorted(COUNT).collect();
                assert!(sorted.into_iter().eq(keys.iter().copied()));
                for index in 0..100_000_u64 {
                    let other = mix(index ^ 0x5555);
                    assert_eq!(plan.index_of(other).is_some(), keys.contains(&other));
                }
            }
        }
    }

    /// Promise: keys come in the order that the name states.
    #[test]
    fn orders_are_what_they_are_called() {
        let keys = |order| -> Vec<u64> {
            let plan = plan(order, 7);
            (0..COUNT).map(|index| plan.key(index)).collect()
        };
        assert!(keys(KeyOrder::Ascending).is_sorted());
        assert!(keys(KeyOrder::Descending).is_sorted_by(|left, right| left > right));
        let uniform = keys(KeyOrder::Uniform);
        let low = uniform.iter().filter(|key| **key < u64::MAX / 4).count() as f64;
        assert!((low / COUNT as f64 - 0.25).abs() < 0.01, "{low}");
        let mut clustered = keys(KeyOrder::Clustered);
        let full = clustered.len() >> (CLUSTER_BITS + OPEN_BITS) << (CLUSTER_BITS + OPEN_BITS);
        clustered.truncate(full);
        clustered.sort_unstable();
        let neighbours = clustered.windows(2).filter(|pair| pair[1] - pair[0] == 1);
        let gap_count = full - 1 - neighbours.count();
        assert_eq!(gap_count, full / (1 << CLUSTER_BITS) - 1, "whole clusters");
    }
}
