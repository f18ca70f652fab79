//! Random number generator, and its independent streams from one seed.
//!
//! The generator is fixed as xoshiro256++, so that a seed means the same numbers in every release.
//! Streams are cut from one sequence by its jump polynomials. Stream `i` starts `i * 2^128` numbers
//! after stream 0. Streams that belong to no thread start `2^192` numbers further on. No two
//! streams thus overlap in any run that ends.

use rand::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Generator of every random number in this crate: xoshiro256++ (Blackman and Vigna, 2019).
pub type Random = Xoshiro256PlusPlus;

/// Purpose of a stream that belongs to no thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Keys to load.
    LoadedKeys = 1,
    /// Keys to insert.
    InsertKeys = 2,
    /// Positions of clusters.
    Clusters = 3,
}

/// Returns stream `stream_index` of a run with `seed`: the same numbers in every run, and none of
/// another stream. Costs `stream_index` jumps of about a microsecond each.
pub fn numbered_stream(seed: u64, stream_index: usize) -> Random {
    let mut random = Random::seed_from_u64(seed);
    for _ in 0..stream_index {
        random.jump();
    }
    random
}

/// Returns the stream for `purpose` of a run with `seed`.
pub(crate) fn purpose_stream(seed: u64, purpose: Purpose) -> Random {
    let mut random = Random::seed_from_u64(seed);
    for _ in 0..purpose as u32 {
        random.long_jump();
    }
    random
}

/// Returns a uniform number in `[0, 1)` with 53 random bits, like Java's `nextDouble`, which YCSB
/// uses.
#[inline]
pub(crate) fn unit_interval(random: &mut impl Rng) -> f64 {
    const STEP: f64 = 1.0 / (1_u64 << 53) as f64;
    (random.next_u64() >> 11) as f64 * STEP
}

/// Returns a uniform number in `0..bound` by Lemire's multiplication (ACM TOMACS 2019), without its
/// rejection step. For the bounds used here (below 2^40) the bias is under 2^-24 of a share.
#[inline]
pub fn below(random: &mut impl Rng, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a seed always gives the same numbers (golden values of an independent
    /// implementation of xoshiro256++, `SplitMix64` seeding and its jump polynomial).
    #[test]
    fn a_seed_names_the_same_numbers_for_ever() {
        let mut first = numbered_stream(42, 0);
        let mut third = numbered_stream(42, 2);
        let drawn = [
            first.next_u64(),
            first.next_u64(),
            third.next_u64(),
            third.next_u64(),
        ];
        let golden = [
            15_021_278_609_987_233_951,
            5_881_210_131_331_364_753,
            13_626_344_447_376_589_899,
            6_866_272_446_064_134_760,
        ];
        assert_eq!(drawn, golden);
    }

    /// Promise: streams of different threads and purposes start at different places.
    #[test]
    fn no_two_streams_begin_alike() {
        let mut starts: Vec<u64> = (0..64).map(|t| numbered_stream(7, t).next_u64()).collect();
        for purpose in [Purpose::LoadedKeys, Purpose::InsertKeys, Purpose::Clusters] {
            starts.push(purpose_stream(7, purpose).next_u64());
        }
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), 67);
    }

    /// Promise: `below` reaches its whole range and no other value, each about equally often.
    #[test]
    fn below_is_uniform_in_its_range() {
        let mut random = numbered_stream(1, 0);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[below(&mut random, 10) as usize] += 1;
        }
        // Ten cells of mean 10,000 and standard deviation 95: 500 is beyond five of them.
        assert!(
            counts.iter().all(|count| count.abs_diff(10_000) < 500),
            "{counts:?}"
        );
    }
}
