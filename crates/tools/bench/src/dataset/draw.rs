//! Draws random keys of a data set.

use rand::Rng;
use rand_distr::{Distribution, StandardNormal};

use super::Dataset;
use crate::distribution::{Purpose, Random, below, purpose_stream};

/// Standard deviation of `normal`: 2^60.
const NORMAL_DEVIATION: f64 = (1_u64 << 60) as f64;

/// Scale of `lognormal`: 2^44. e^(2z) exceeds 2^20 only for z > 6.93, twice in 10^12 draws.
const LOGNORMAL_SCALE: f64 = (1_u64 << 44) as f64;

/// A cluster has four times as many positions as keys.
const CLUSTER_PLACES_PER_KEY: u64 = 4;

/// Source of independent keys of one distribution.
pub(super) enum Draw {
    Uniform,
    Normal,
    Lognormal,
    Clustered(Clusters),
}

/// Positions of the clusters.
pub(super) struct Clusters {
    bases: Vec<u64>,
    places: u64,
}

impl Draw {
    /// Creates the source for `dataset` when `record_count` keys are loaded and up to
    /// `insert_count` more are drawn; `None` for data sets that are not drawn.
    ///
    /// More inserts than fit into the clusters of the loaded keys add clusters; the first ones are
    /// the same for every insert count.
    pub(super) fn new(
        dataset: &Dataset,
        record_count: usize,
        insert_count: usize,
        seed: u64,
    ) -> Option<Self> {
        match dataset {
            Dataset::Uniform => Some(Self::Uniform),
            Dataset::Normal => Some(Self::Normal),
            Dataset::Lognormal => Some(Self::Lognormal),
            Dataset::Clustered => Some(Self::Clustered(Clusters::new(
                record_count,
                insert_count,
                seed,
            ))),
            Dataset::Sequential | Dataset::Keys(_) => None,
        }
    }

    /// Draws a key. Costs 1 to 15 ns.
    #[inline]
    pub(super) fn key(&self, random: &mut Random) -> u64 {
        match self {
            Self::Uniform => random.next_u64(),
            Self::Normal => normal(random),
            Self::Lognormal => lognormal(random),
            Self::Clustered(clusters) => clusters.key(random),
        }
    }
}

fn normal(random: &mut Random) -> u64 {
    loop {
        let z: f64 = StandardNormal.sample(random);
        // Exclusive, so that the jitter below cannot leave the domain.
        if z.abs() < 7.999 {
            // An f64 near 2^60 is a multiple of 2^8. The bits below are drawn: otherwise all keys
            // would be round numbers, and code that rounds keys to f64 would pass the tests.
            let jitter = random.next_u64() & 0xFF;
            let offset = (z * NORMAL_DEVIATION) as i64;
            return (1_u64 << 63)
                .wrapping_add_signed(offset)
                .wrapping_add(jitter);
        }
    }
}

#[expect(clippy::cast_sign_loss, reason = "an exponential is positive")]
fn lognormal(random: &mut Random) -> u64 {
    loop {
        let z: f64 = StandardNormal.sample(random);
        let key = (2.0 * z).exp() * LOGNORMAL_SCALE;
        if key < u64::MAX as f64 {
            return key as u64;
        }
    }
}

impl Clusters {
    fn new(record_count: usize, insert_count: usize, seed: u64) -> Self {
        // 1,024 keys per cluster, but at least some sixty clusters when there are few keys.
        let keys_per_cluster = (record_count / 64).clamp(16, 1_024);
        let places = keys_per_cluster as u64 * CLUSTER_PLACES_PER_KEY;
        let cluster_count = (record_count + insert_count)
            .div_ceil(keys_per_cluster)
            .max(1);
        let mut random = purpose_stream(seed, Purpose::Clusters);
        let mut bases: Vec<u64> = (0..cluster_count)
            .map(|_| random.next_u64().min(u64::MAX - places))
            .collect();
        // The region where code that rounds keys to f64 fails must not be left to chance.
        bases[0] |= 1 << 62;
        bases[0] = bases[0].min(u64::MAX - places);
        Self { bases, places }
    }

    fn key(&self, random: &mut Random) -> u64 {
        let base = self.bases[below(random, self.bases.len() as u64) as usize];
        base + below(random, self.places)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(dataset: &Dataset, count: usize) -> Vec<u64> {
        let draw = Draw::new(dataset, count, 0, 1).expect("a drawn data set");
        let mut random = purpose_stream(1, Purpose::LoadedKeys);
        let mut keys: Vec<u64> = (0..count).map(|_| draw.key(&mut random)).collect();
        keys.sort_unstable();
        keys
    }

    /// Returns the share of `keys` below `key`.
    fn share_below(keys: &[u64], key: u64) -> f64 {
        keys.partition_point(|k| *k < key) as f64 / keys.len() as f64
    }

    /// Promise: uniform keys fill the whole domain evenly.
    #[test]
    fn uniform_keys_fill_the_domain() {
        let keys = keys(&Dataset::Uniform, 100_000);
        for eighth in 1..8 {
            let got = share_below(&keys, eighth << 61);
            assert!((got - eighth as f64 / 8.0).abs() < 0.01, "{eighth}: {got}");
        }
    }

    /// Promise: normal keys have mean 2^63 and standard deviation 2^60 (quantiles of the normal
    /// distribution, 1 %), and their low bits are not zero.
    #[test]
    fn normal_keys_have_their_mean_and_deviation() {
        let keys = keys(&Dataset::Normal, 100_000);
        for (deviations, want) in [(-2_i64, 0.0228), (-1, 0.1587), (0, 0.5), (1, 0.8413)] {
            let got = share_below(&keys, (1_u64 << 63).wrapping_add_signed(deviations << 60));
            assert!((got - want).abs() < 0.01, "{deviations}: {got}");
        }
        let odd = keys.iter().filter(|key| **key % 2 == 1).count();
        assert!((45_000..55_000).contains(&odd), "{odd}");
    }

    /// Promise: lognormal keys have their median at 2^44 and their one-sigma points at e^2 from it.
    #[test]
    #[expect(clippy::cast_sign_loss, reason = "an exponential is positive")]
    fn lognormal_keys_have_their_median_and_spread() {
        let keys = keys(&Dataset::Lognormal, 100_000);
        for (z, want) in [(-1.0_f64, 0.1587), (0.0, 0.5), (1.0, 0.8413)] {
            let got = share_below(&keys, ((2.0 * z).exp() * LOGNORMAL_SCALE) as u64);
            assert!((got - want).abs() < 0.01, "{z}: {got}");
        }
        assert!(*keys.last().expect("keys") > 1 << 54);
    }

    /// Promise: clustered keys are dense inside clusters, far apart between them, and some lie
    /// above 2^62, for few keys as for many.
    #[test]
    fn clusters_are_dense_far_apart_and_reach_high() {
        for count in [1, 40, 5_000, 200_000] {
            let mut keys = keys(&Dataset::Clustered, count);
            keys.dedup();
            let gaps: Vec<u64> = keys.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let near = gaps.iter().filter(|gap| **gap < 256).count();
            let far = gaps.iter().filter(|gap| **gap > 1 << 32).count();
            let cluster_count = count.div_ceil((count / 64).clamp(16, 1_024));
            assert!(
                far < cluster_count && near + cluster_count * 2 >= gaps.len(),
                "{count} keys"
            );
            if count >= 5_000 {
                assert!(
                    far * 10 >= cluster_count * 9,
                    "{far} gaps, {cluster_count} clusters"
                );
                assert!(*keys.last().expect("keys") > 1 << 62);
            }
        }
    }
}
