//! Minimality: no other cut has fewer segments.

use proptest::prelude::*;
use rand_xoshiro::rand_core::Rng;

use crate::bound::{EPSILONS, build};
use crate::keys;
use crate::oracle::{fits_line, segment_count_cone, segment_count_min};

/// Every segment ends exactly where the oracle finds that no line fits any more.
#[test]
fn segments_are_maximal_on_all_shapes() {
    for (name, xs) in keys::all_shapes(600) {
        for epsilon in EPSILONS {
            let mut first = 0;
            for segment in build(&xs, epsilon, 100) {
                let end = first + segment.point_count as usize;
                assert!(
                    fits_line(&xs[first..end], epsilon),
                    "{name}, {epsilon}: {segment:?}"
                );
                let is_full = segment.point_count == 100 || end == xs.len();
                assert!(
                    is_full || !fits_line(&xs[first..=end], epsilon),
                    "{name}, epsilon {epsilon}: {segment:?} is too short"
                );
                first = end;
            }
        }
    }
}

/// There are never more segments than with the greedy cone, and far fewer for random keys.
#[test]
fn never_more_than_greedy_cone() {
    for (name, xs) in keys::all_shapes(20_000) {
        for epsilon in EPSILONS {
            for point_count_max in [1, 2, 100, 65_535] {
                let optimal = build(&xs, epsilon, point_count_max).len();
                let cone = segment_count_cone(&xs, epsilon, point_count_max as usize);
                assert!(
                    optimal <= cone,
                    "{name}, epsilon {epsilon}: {optimal} > {cone}"
                );
                if name == "uniform" && epsilon < 10.0 && point_count_max == 65_535 {
                    assert!(
                        optimal * 5 < cone * 4,
                        "{name}, {epsilon}: {optimal}, cone {cone}"
                    );
                }
            }
        }
    }
}

/// Thousands of small inputs with equal keys and ties match the best of all cuts.
#[test]
fn count_is_minimal_on_small_inputs() {
    let mut prng = keys::prng(11);
    for round in 0..4000_u64 {
        let count = 1 + prng.next_u64() % 24;
        let range = [4, 30, 1000, u64::MAX][(round % 4) as usize];
        let mut xs: Vec<u64> = (0..count).map(|_| prng.next_u64() % range).collect();
        xs.sort_unstable();
        let epsilon = [0.0, 0.5, 1.0, 1.25, 2.67][(prng.next_u64() % 5) as usize];
        let point_count_max = 1 + prng.next_u64() % 24;
        let expected = segment_count_min(&xs, epsilon, point_count_max as usize);
        let segment_count = build(&xs, epsilon, point_count_max as u32).len();
        assert_eq!(
            segment_count, expected,
            "{xs:?}, {epsilon}, {point_count_max}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Random keys match the best of all cuts, with shrinking.
    #[test]
    fn count_is_minimal_on_random_keys(
        mut xs in prop::collection::vec(prop_oneof![0_u64..60, any::<u64>()], 1..22),
        epsilon in 0.0..4.0,
    ) {
        xs.sort_unstable();
        prop_assert_eq!(build(&xs, epsilon, 100).len(), segment_count_min(&xs, epsilon, 100));
    }
}
