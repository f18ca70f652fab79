//! Boundaries between leaves, and their encoding as residual bytes.

use crate::strings::line::{LineSegment, StringLine};

/// Boundary before a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Boundary<'a> {
    /// Last key of the previous leaf, below the fence; `None` if unknown, or if there is none.
    pub last: Option<&'a [u8]>,
    /// Lower fence of the leaf.
    pub fence: &'a [u8],
    /// First key of the leaf, not below the fence; the fence if unknown.
    pub first: &'a [u8],
}

impl<'a> Boundary<'a> {
    /// Creates a boundary without known keys on either side.
    pub fn alone(fence: &'a [u8]) -> Self {
        Self {
            last: None,
            fence,
            first: fence,
        }
    }
}

/// Boundary in positions. A threshold in `last + 1..=first` separates the keys on both sides; if
/// that range is empty, no threshold does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    pub(super) last: i64,
    pub(super) fence: i64,
    pub(super) first: i64,
}

impl Interval {
    pub(super) fn of(segment: &LineSegment, boundary: Boundary<'_>, shift: u32) -> Self {
        let fence = segment.position(boundary.fence, shift);
        let position = |key| segment.position(key, shift);
        Self {
            last: boundary.last.map_or(fence - 1, position).min(fence),
            fence,
            first: position(boundary.first).max(fence),
        }
    }
}

/// Largest error that a residual can correct, in grid points: a threshold is at most one beyond the
/// predicted fence.
const RESIDUAL_ERROR_MAX: f64 = i8::MAX as f64 - 1.0;

/// Returns the finest unit of positions for residual bytes that can still hold errors of `epsilon`
/// leaves, as a shift. Beyond 126 leaves residuals saturate, and some predictions are wrong.
pub fn byte_shift(epsilon: f64) -> u32 {
    let shift = (RESIDUAL_ERROR_MAX / epsilon.max(0.5)).log2().floor();
    shift.clamp(0.0, 8.0) as u32
}

/// Returns the residuals of a segment's leaves: for leaf i the threshold on positions, in units of
/// 2^-`shift` leaves, from which on a key belongs to it or to a later leaf, minus i. The first
/// leaf's is unused.
///
/// A threshold is as near to the prediction of the fence as the keys on both sides allow. So these
/// keys are predicted right, and later keys as rarely wrong as possible. If both sides have the
/// same prediction, the left side's keys cost one more leaf.
///
/// # Panics
///
/// If `shift` exceeds 8, or there is not a boundary for each leaf, in order.
pub fn byte_residuals<'a>(
    segment: &LineSegment,
    boundaries: impl IntoIterator<Item = Boundary<'a>>,
    shift: u32,
) -> Vec<i8> {
    let mut residuals = Vec::with_capacity(segment.parts().leaf_count as usize);
    let mut threshold_before = i64::MIN;
    for (index, boundary) in boundaries.into_iter().enumerate() {
        if index == 0 {
            residuals.push(i8::MIN);
            continue;
        }
        let interval = Interval::of(segment, boundary, shift);
        let threshold = interval.fence.max(interval.last + 1).min(interval.first);
        let base = (index as i64) << shift;
        let threshold = (base + i64::from(residual(threshold, base))).max(threshold_before);
        residuals.push(residual(threshold, base));
        threshold_before = threshold;
    }
    let leaf_count = segment.parts().leaf_count as usize;
    assert_eq!(residuals.len(), leaf_count, "one boundary per leaf");
    residuals
}

/// Encodes a threshold in a byte. A threshold that the previous one holds back may be out of range:
/// then predictions of the leaf are wrong, which its fences show.
fn residual(threshold: i64, base: i64) -> i8 {
    (threshold - base).clamp(i8::MIN.into(), i8::MAX.into()) as i8
}

/// Finds the leaf of a coordinate by residuals, of which there must be at least one. Returns true
/// if it may also be the leaf before: if its position equals the leaf's threshold, which keys of
/// both sides may have.
#[inline]
pub(super) fn find_by_bytes(
    line: &StringLine,
    coordinate: u64,
    residuals: &[i8],
    shift: u32,
) -> (u32, bool) {
    let position = line.position(coordinate, shift);
    let last = residuals.len() as i64 - 1;
    let threshold = |leaf: i64| (leaf << shift) + i64::from(residuals[leaf as usize]);
    let pointed = (position >> shift).clamp(0, last);
    // The residual of the leaf that the line points to shows the error of the line near it.
    let corrected = position.saturating_sub(i64::from(residuals[pointed as usize]));
    let mut leaf = (corrected >> shift).clamp(0, last);
    while leaf > 0 && position < threshold(leaf) {
        leaf -= 1;
    }
    while leaf < last && position >= threshold(leaf + 1) {
        leaf += 1;
    }
    (leaf as u32, leaf > 0 && position == threshold(leaf))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strings::Alphabet;
    use crate::strings::line::LineSegmentParts;

    /// Segment of decimal numbers of 19 digits behind `k`, 1000 per leaf.
    fn segment(leaf_count: u32) -> LineSegment {
        let parts = LineSegmentParts {
            first_fence: b"k0000000000000000000".to_vec(),
            prefix_size: 1,
            alphabet: Alphabet::Decimal,
            slope: 1e-3,
            intercept: 0.0,
            leaf_count,
            error_max: 1.0,
        };
        LineSegment::from_parts(parts).expect("a segment")
    }

    fn key(number: u64) -> Vec<u8> {
        format!("k{number:019}").into_bytes()
    }

    /// Promise: the keys on both sides of a fence are predicted right, wherever in the gap the
    /// fence is, as long as the gap contains a grid point. Later keys are predicted wrong only
    /// between the fence and the nearest grid point.
    #[test]
    fn residuals_part_the_keys_on_both_sides() {
        let (shift, unit) = (5, 1000 / 32);
        let segment = segment(4);
        for fence_in_gap in [1, unit - 1, unit, 2 * unit, 90] {
            let keys: Vec<[Vec<u8>; 3]> = (0..4)
                .map(|leaf| {
                    let (last, first) = (leaf * 1000 + 40, leaf * 1000 + 130);
                    [last, last + fence_in_gap, first].map(key)
                })
                .collect();
            let boundaries = keys.iter().map(|[last, fence, first]| Boundary {
                last: Some(last),
                fence,
                first,
            });
            let residuals = byte_residuals(&segment, boundaries, shift);
            let find = |key: &[u8]| {
                find_by_bytes(&segment.line(), segment.coordinate(key), &residuals, shift).0
            };
            for ([last, fence, first], leaf) in keys.iter().zip(0_u32..).skip(1) {
                assert_eq!((find(last), find(first)), (leaf - 1, leaf));
                let threshold = (i64::from(leaf) << shift) + i64::from(residuals[leaf as usize]);
                assert!((segment.position(fence, shift) - threshold).abs() <= 1);
            }
        }
    }

    /// Promise: if no grid point lies in the gap, both leaves are returned for the keys on both
    /// sides.
    #[test]
    fn a_gap_that_is_too_narrow_names_both_sides() {
        let segment = segment(2);
        let (last, fence, first) = (key(1002), key(1003), key(1004));
        let boundary = Boundary {
            last: Some(&last),
            fence: &fence,
            first: &first,
        };
        let residuals = byte_residuals(&segment, [Boundary::alone(b"k"), boundary], 5);
        let find =
            |key: &[u8]| find_by_bytes(&segment.line(), segment.coordinate(key), &residuals, 5);
        assert_eq!(find(&first), (1, true));
        assert_eq!(find(&last), (1, true));
        assert_eq!(find(&key(990)), (0, false));
    }

    /// Any residuals lead to an existing leaf.
    #[test]
    fn any_residuals_end_the_search() {
        let line = segment(3).line();
        for residuals in [[i8::MIN; 3], [i8::MAX; 3], [127, -128, 127], [0, 127, -128]] {
            for coordinate in [0, 1, 1000, 2000, u64::MAX] {
                for shift in [0, 8] {
                    assert!(find_by_bytes(&line, coordinate, &residuals, shift).0 < 3);
                }
            }
        }
    }

    #[test]
    fn the_grid_is_as_fine_as_a_byte_allows() {
        assert_eq!(
            [2.67, 4.0, 1.33, 15.0, 1e9].map(byte_shift),
            [5, 4, 6, 3, 0]
        );
    }
}
