//! What is asked for: drawn before the clock starts, the same for all.

use farleaf_bench::distribution::{Random, numbered_stream};
use rand::Rng;

/// The value that a key is loaded with.
#[inline]
pub fn first_value(key: u64) -> u64 {
    value_of(key, 0)
}

/// The value that round after round gives a key: a few instructions, and no two rounds alike.
#[inline]
pub fn value_of(key: u64, version: u64) -> u64 {
    key.rotate_left(17) ^ version.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// One thread's requests of one round: keys that are there, each as likely as any other.
#[derive(Clone, Debug)]
pub struct Requests {
    keys: Vec<u64>,
    ranks: Vec<u32>,
    warm_up_count: usize,
}

impl Requests {
    /// Draws `count` requests for timing, and a tenth as many for warming up.
    ///
    /// `stream_index` says which of the seed's random streams: another one for every round and
    /// thread, so that no round finds in the caches what the one before asked for.
    ///
    /// # Panics
    /// There are no keys, or 2^32 or more.
    pub fn draw(keys: &[u64], count: usize, seed: u64, stream_index: usize) -> Self {
        assert!(
            !keys.is_empty() && u32::try_from(keys.len()).is_ok(),
            "requests are for 1 to 2^32 - 1 records"
        );
        let warm_up_count = count.div_ceil(10);
        let mut random = numbered_stream(seed, stream_index);
        let draw_rank = |_| below(&mut random, keys.len());
        let ranks: Vec<u32> = (0..warm_up_count + count).map(draw_rank).collect();
        Self {
            keys: ranks.iter().map(|rank| keys[*rank as usize]).collect(),
            ranks,
            warm_up_count,
        }
    }

    /// The keys asked for before the clock starts.
    pub fn warm_up_keys(&self) -> &[u64] {
        &self.keys[..self.warm_up_count]
    }

    /// The keys asked for while it runs.
    pub fn timed_keys(&self) -> &[u64] {
        &self.keys[self.warm_up_count..]
    }

    /// The same requests as [`timed_keys`](Self::timed_keys), as places in the order of all keys.
    pub fn timed_ranks(&self) -> &[u32] {
        &self.ranks[self.warm_up_count..]
    }
}

/// A number below `bound`, by Lemire's multiplication.
fn below(random: &mut Random, bound: usize) -> u32 {
    ((u128::from(random.next_u64()) * bound as u128) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: requests are for keys that are there, ranks name the same keys, and the stream, not
    /// the call, decides them.
    #[test]
    fn requests_name_keys_that_are_there() {
        let keys: Vec<u64> = (0..1000).map(|rank| rank * 7).collect();
        let requests = Requests::draw(&keys, 500, 3, 2);
        assert_eq!(requests.timed_keys().len(), 500);
        assert_eq!(requests.warm_up_keys().len(), 50);
        let of_ranks = requests
            .timed_ranks()
            .iter()
            .map(|rank| keys[*rank as usize]);
        assert!(of_ranks.eq(requests.timed_keys().iter().copied()));
        let again = Requests::draw(&keys, 500, 3, 2);
        let other = Requests::draw(&keys, 500, 3, 4);
        assert_eq!(again.timed_keys(), requests.timed_keys());
        assert_ne!(other.timed_keys(), requests.timed_keys());
    }

    /// Promise: every round's value differs from the one before, so a lost put shows.
    #[test]
    fn rounds_give_keys_other_values() {
        for key in [0, 1, u64::MAX] {
            let values: Vec<u64> = (0..20).map(|version| value_of(key, version)).collect();
            assert!(values.windows(2).all(|pair| pair[0] != pair[1]));
            assert_eq!(values[0], first_value(key));
        }
    }
}
