//! Distribution "latest": the newest records are the most popular.
//!
//! Source: YCSB's `SkewedLatestGenerator`: a zipfian distance back from the newest record.

use rand::Rng;

use super::zipfian::Zipfian;

/// Draws record indexes, the newest most often. Costs about 20 ns per draw, and some tens more if
/// records were added since the last one.
#[derive(Clone, Debug)]
pub struct Latest {
    distances: Zipfian,
}

impl Latest {
    /// Creates a distribution over the records up to `newest`, the index of the newest one.
    pub fn new(newest: u64) -> Self {
        Self {
            distances: Zipfian::new(newest),
        }
    }

    /// Draws an index in `0..=newest`. `newest` must not be smaller than in an earlier draw.
    ///
    /// As in YCSB distances are drawn below `newest`, so that record 0 is drawn only when it is
    /// the only one or a power rounds up.
    #[inline]
    pub fn sample(&mut self, random: &mut impl Rng, newest: u64) -> u64 {
        self.distances.grow_to(newest);
        newest.saturating_sub(self.distances.sample(random))
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::numbered_stream;
    use super::*;

    /// Promise: the newest record has the largest share, also after more records.
    #[test]
    fn the_newest_record_is_the_most_popular() {
        let mut latest = Latest::new(999);
        let mut random = numbered_stream(8, 0);
        for newest in [999, 1_000, 1_500, 50_000] {
            let mut counts = vec![0_u32; newest as usize + 1];
            for _ in 0..200_000 {
                counts[latest.sample(&mut random, newest) as usize] += 1;
            }
            let most = counts
                .iter()
                .enumerate()
                .max_by_key(|(_, count)| **count)
                .unwrap();
            assert_eq!(most.0 as u64, newest);
            let share = f64::from(*most.1) / 2e5;
            let want = 1.0 / super::super::zeta::zeta(newest, super::super::ZIPFIAN_CONSTANT);
            assert!(
                (share / want - 1.0).abs() < 0.03,
                "{newest}: {share} against {want}"
            );
        }
    }

    /// Promise: a single record is always drawn.
    #[test]
    fn a_single_record_is_always_drawn() {
        let mut latest = Latest::new(0);
        let mut random = numbered_stream(9, 0);
        assert!((0..1_000).all(|_| latest.sample(&mut random, 0) == 0));
    }

    /// Promise: a seed always yields the same indexes, also while records are added.
    #[test]
    fn a_seed_yields_the_same_indexes_for_ever() {
        let mut latest = Latest::new(999_999);
        let mut random = numbered_stream(42, 0);
        let drawn: Vec<u64> = (0..8)
            .map(|added| latest.sample(&mut random, 999_999 + added * 100))
            .collect();
        let golden = [
            922_960, 1_000_041, 197_320, 984_664, 942_804, 997_402, 1_000_596, 996_739,
        ];
        assert_eq!(drawn, golden);
    }
}
