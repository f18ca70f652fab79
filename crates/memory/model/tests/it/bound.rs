//! Error bound: every prediction is within epsilon, for every shape, epsilon and limit.

use farleaf_model::{Segment, SegmentBuilder, rounding_tolerance};
use proptest::prelude::*;

use crate::keys;

pub(crate) const EPSILONS: [f64; 5] = [0.5, 1.0, 2.67, 8.0, 64.0];
const POINT_COUNTS_MAX: [u32; 4] = [1, 2, 100, 65_535];

pub(crate) fn build(xs: &[u64], epsilon: f64, point_count_max: u32) -> Vec<Segment> {
    let mut builder = SegmentBuilder::new(epsilon, point_count_max);
    let mut segments: Vec<_> = xs.iter().filter_map(|&x| builder.push(x)).collect();
    segments.extend(builder.finish());
    assert_eq!(builder.pending_count(), 0);
    segments
}

/// Checks that each segment represents the next `point_count` keys, and that all keys are covered.
/// Each key is predicted within `error_max`, some key by exactly that, and `error_max` respects the
/// bound.
fn check_bound(name: &str, xs: &[u64], epsilon: f64, point_count_max: u32) {
    let segments = build(xs, epsilon, point_count_max);
    let context = format!("{name}, epsilon {epsilon}, at most {point_count_max} points");
    let mut rest = xs;
    for segment in &segments {
        let points;
        (points, rest) = rest.split_at(segment.point_count as usize);
        assert!(
            (1..=point_count_max).contains(&segment.point_count),
            "{context}: {segment:?}"
        );
        assert_eq!(segment.first_x, points[0], "{context}");
        assert!(
            segment.slope >= 0.0 && segment.slope.is_finite(),
            "{context}: {segment:?}"
        );
        let errors = points.iter().enumerate();
        let errors = errors.map(|(position, &x)| (segment.predict(x) - position as f64).abs());
        let error_max = errors.fold(0.0, f64::max);
        assert_eq!(
            error_max.to_bits(),
            segment.error_max.to_bits(),
            "{context}: {segment:?}"
        );
        let bound = epsilon + rounding_tolerance(epsilon, segment.point_count);
        assert!(error_max <= bound, "{context}: {segment:?}");
        check_monotone(&context, segment, points);
    }
    assert!(rest.is_empty(), "{context}: {} keys uncovered", rest.len());
}

/// Checks that predictions between two keys lie between theirs, from the first key to the last.
fn check_monotone(context: &str, segment: &Segment, points: &[u64]) {
    let mut last = segment.predict(0);
    for (&left, &right) in points.iter().zip(&points[1..]) {
        let gap = right - left;
        let mut xs = [
            left,
            left + gap.min(1),
            left + gap / 3,
            right - gap.min(1),
            right,
        ];
        xs.sort_unstable();
        for x in xs {
            let predicted = segment.predict(x);
            assert!(predicted >= last, "{context}: {segment:?} falls at {x}");
            last = predicted;
        }
    }
    assert!(segment.predict(u64::MAX) >= last, "{context}: {segment:?}");
    assert!(
        segment.predict(u64::MAX).is_finite(),
        "{context}: {segment:?}"
    );
}

/// Checks bound, cover and monotonicity, for every shape, epsilon and limit.
#[test]
fn bound_holds_on_all_shapes() {
    for (name, xs) in keys::all_shapes(20_000) {
        for epsilon in EPSILONS {
            for point_count_max in POINT_COUNTS_MAX {
                check_bound(name, &xs, epsilon, point_count_max);
            }
        }
    }
}

/// A line without freedom, the hardest case for rounding: with epsilon 0 and exact strides, errors
/// come only from rounding, and are within the tolerance.
#[test]
fn rounding_stays_within_tolerance_on_exact_lines() {
    for stride in [
        1,
        3,
        7,
        1_000_003,
        (1 << 44) + 1,
        u64::MAX / 300_000,
        u64::MAX / 299_999 - 2,
    ] {
        for first_x in [0, 1, u64::MAX - 299_998 * stride] {
            let xs: Vec<u64> = (0..299_999).map(|index| first_x + index * stride).collect();
            let segments = build(&xs, 0.0, u32::MAX);
            assert_eq!(segments.len(), 1, "{first_x} {stride}");
            check_bound("exact line", &xs, 0.0, u32::MAX);
        }
    }
}

/// Segments use epsilon up to the last bit: the line has no freedom, epsilon no slack.
#[test]
fn bound_holds_without_slack() {
    for exponent in [3, 20, 40, 46] {
        let step = 1_u64 << exponent;
        // Pairs of equal keys with epsilon 1/2 leave only one line; so do zigzags.
        let pairs: Vec<u64> = (0..100_000).map(|index| index / 2 * step).collect();
        check_bound("pairs", &pairs, 0.5, u32::MAX);
        assert_eq!(build(&pairs, 0.5, u32::MAX).len(), 1);
        let triples: Vec<u64> = (0..99_999).map(|index| index / 3 * (step + 1)).collect();
        check_bound("triples", &triples, 1.0, u32::MAX);
        assert_eq!(build(&triples, 1.0, u32::MAX).len(), 1);
    }
}

/// Keys are distinguished even if their differences vanish when rounded to a float.
#[test]
fn keys_near_the_last_lose_nothing() {
    let xs: Vec<u64> = (0..10_000).map(|index| u64::MAX - 9_999 + index).collect();
    let segments = build(&xs, 0.5, u32::MAX);
    assert_eq!(segments.len(), 1);
    for (position, &x) in xs.iter().enumerate() {
        assert!((segments[0].predict(x) - position as f64).abs() <= 0.5);
    }
    assert!(
        segments[0].error_max < 1e-9,
        "a straight line is predicted as one"
    );
}

/// One, two and three keys have the obvious segments.
#[test]
fn few_keys_are_plain() {
    let single = build(&[42], 2.67, 100);
    assert_eq!(single.len(), 1);
    assert_eq!(single[0].predict(42).to_bits(), 0.0_f64.to_bits());
    assert_eq!(build(&[0, u64::MAX], 0.5, 100).len(), 1);
    assert_eq!(build(&[0, 1, u64::MAX], 0.5, 100).len(), 1);
    assert_eq!(build(&[0, 1, u64::MAX], 0.49, 100).len(), 2);
    assert_eq!(build(&[7, 7], 0.49, 100).len(), 2);
    assert_eq!(build(&[7, 7, 7], 0.5, 100).len(), 2);
}

fn sorted_keys() -> impl Strategy<Value = Vec<u64>> {
    // Gaps of any magnitude, including 0; the start leaves a margin at either end.
    let gap = (0_u32..56, any::<u64>()).prop_map(|(bits, gap)| gap & ((1 << bits) - 1));
    (any::<u64>(), prop::collection::vec(gap, 1..300)).prop_map(|(start, gaps)| {
        let span: u64 = gaps.iter().sum();
        let mut x = start.min(u64::MAX - span);
        let later = gaps.iter().map(|gap| {
            x += gap;
            x
        });
        later.collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Tests gaps of every magnitude, including none, and any limit.
    #[test]
    fn bound_holds_on_random_keys(
        xs in sorted_keys(),
        epsilon in prop_oneof![prop::sample::select(&EPSILONS[..]), 0.0..70.0],
        point_count_max in 1_u32..400,
    ) {
        check_bound("random", &xs, epsilon, point_count_max);
    }

    /// Tests keys of the whole domain.
    #[test]
    fn bound_holds_on_any_sorted_keys(
        mut xs in prop::collection::vec(any::<u64>(), 1..200),
        epsilon in 0.0..70.0,
    ) {
        xs.sort_unstable();
        check_bound("any", &xs, epsilon, u32::MAX);
    }
}
