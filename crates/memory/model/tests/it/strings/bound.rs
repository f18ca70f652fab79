//! Error bound: every trained fence is within epsilon, without ties, and no leaf is left out.

use farleaf_model::rounding_tolerance;
use farleaf_model::strings::{Alphabet, LineSegment, LineSegmentBuilder};
use proptest::prelude::*;

use crate::strings::samples::{Sample, all_shapes, segments_of, strings};

/// Checks that the segments represent all leaves in order, and that their fences have the prefix
/// and strictly ascending coordinates. Fences are predicted within `error_max`, which respects the
/// bound. Stored parts make the same segment.
fn check(name: &str, fences: &[Vec<u8>], epsilon: f64, leaf_count_max: u32) -> Vec<LineSegment> {
    let segments = segments_of(fences, epsilon, leaf_count_max);
    let context = format!("{name}, epsilon {epsilon}, at most {leaf_count_max} leaves");
    let mut rest = fences;
    for segment in &segments {
        let parts = segment.parts();
        let leaves;
        (leaves, rest) = rest.split_at(parts.leaf_count as usize);
        assert!(
            (1..=leaf_count_max).contains(&parts.leaf_count),
            "{context}"
        );
        assert_eq!(parts.first_fence, leaves[0], "{context}");
        let is_prefix = leaves
            .iter()
            .all(|fence| fence.starts_with(segment.prefix()));
        assert!(is_prefix, "{context}: {segment:?}");
        let coordinates: Vec<u64> = leaves
            .iter()
            .map(|fence| segment.coordinate(fence))
            .collect();
        assert!(
            coordinates.is_sorted_by(|left, right| left < right),
            "{context}"
        );
        assert_eq!(coordinates[0], segment.first_coordinate(), "{context}");
        let bound = epsilon + rounding_tolerance(epsilon, parts.leaf_count) + epsilon * 1e-6;
        assert!(
            f64::from(parts.error_max) <= bound + 1e-30,
            "{context}: {segment:?}"
        );
        for (leaf, fence) in (0_u32..).zip(leaves) {
            let units = segment.position(fence, 8) - (i64::from(leaf) << 8);
            let error = f64::from(parts.error_max) * 256.0;
            assert!(
                (units as f64) <= error && (units + 1) as f64 >= -error,
                "{context}"
            );
            let (from, to) = segment.predicted_range(fence);
            assert!(
                (from..=to).contains(&leaf),
                "{context}: {leaf} not in {from} to {to}"
            );
        }
        assert_eq!(LineSegment::from_parts(parts.clone()).as_ref(), Ok(segment));
    }
    assert!(
        rest.is_empty(),
        "{context}: {} leaves uncovered",
        rest.len()
    );
    segments
}

/// Keys of every shape respect the bound, for every epsilon and limit.
#[test]
fn bound_holds_on_all_shapes() {
    for (name, keys) in all_shapes(2000) {
        for record_count in [1, 6] {
            let sample = Sample::new(&keys, record_count);
            for epsilon in [0.0, 0.5, 2.67, 30.0] {
                for leaf_count_max in [1, 2, 100, 4096] {
                    check(name, &sample.fences, epsilon, leaf_count_max);
                }
            }
        }
    }
}

proptest! {
    /// Random strings respect the bound, including runs of extreme bytes and prefixes of each
    /// other.
    #[test]
    fn bound_holds_on_random_strings(fences in strings(80), epsilon in 0.0..8.0) {
        check("random", &fences, epsilon, 64);
    }
}

/// Evenly spaced decimal numbers are one line however many digits change; hexadecimal and binary
/// numbers are, too, each in its own alphabet but not in another.
#[test]
fn even_numbers_are_one_line_in_their_own_alphabet() {
    let numbers = || (0..3000_u64).map(|index| index * 7);
    let shapes: [(Alphabet, Vec<Vec<u8>>); 4] = [
        (
            Alphabet::Decimal,
            numbers()
                .map(|n| format!("user:{n:07}").into_bytes())
                .collect(),
        ),
        (
            Alphabet::HexLower,
            numbers()
                .map(|n| format!("{n:032x}").into_bytes())
                .collect(),
        ),
        (
            Alphabet::HexUpper,
            numbers()
                .map(|n| format!("{n:08X}-X").into_bytes())
                .collect(),
        ),
        (
            Alphabet::Binary,
            numbers().map(|n| n.to_be_bytes().to_vec()).collect(),
        ),
    ];
    for (alphabet, fences) in &shapes {
        let segments = check("even", fences, 0.5, 4096);
        assert_eq!(segments.len(), 1, "{alphabet:?}");
        assert_eq!(segments[0].parts().alphabet, *alphabet);
        for other in Alphabet::ALL.iter().filter(|other| *other != alphabet) {
            let mut builder = LineSegmentBuilder::with_alphabets(0.5, 4096, &[*other]);
            let closed = fences
                .iter()
                .filter_map(|fence| builder.push(fence))
                .count();
            assert!(
                closed > 4,
                "{alphabet:?} read as {other:?}: {} segments",
                closed + 1
            );
        }
    }
}

/// A finished builder accepts smaller fences again.
#[test]
fn finish_makes_ready_for_new_input() {
    let mut builder = LineSegmentBuilder::new(1.0, 3);
    assert_eq!(builder.finish(), None);
    for fence in [&b"b"[..], b"c", b"d"] {
        assert_eq!(builder.push(fence), None);
    }
    assert_eq!(builder.pending_count(), 3);
    let closed = builder.push(b"e").expect("three is the most");
    assert_eq!(closed.parts().leaf_count, 3);
    assert_eq!(
        builder
            .finish()
            .map(|last| last.parts().first_fence.clone()),
        Some(b"e".to_vec())
    );
    assert_eq!(builder.push(b""), None);
    assert_eq!(
        builder.finish().map(|first| first.parts().leaf_count),
        Some(1)
    );
}

/// Fences that do not ascend violate the caller's contract and panic.
#[test]
#[should_panic(expected = "not greater than the one before")]
fn equal_fences_are_refused() {
    let mut builder = LineSegmentBuilder::new(1.0, 3);
    builder.push(b"a");
    builder.push(b"a");
}
