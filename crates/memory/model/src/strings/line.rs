//! Line over the coordinates of strings.

use core::cmp::Ordering;

use crate::segment::evaluate;
use crate::strings::alphabet::Alphabet;
use crate::strings::error::StringModelError;

/// Shift of the finest unit of positions: 2^-8 leaves.
pub(super) const SHIFT_MAX: u32 = 8;
/// Number added to positions as floats, so that truncation rounds down for negative ones, too.
/// Prediction errors are far less than this number of units.
const POSITION_BIAS: f64 = (1_u64 << 32) as f64;
/// Greatest intercept and error of a segment, in leaves: with [`SHIFT_MAX`] they stay below the
/// bias.
pub(super) const ERROR_MAX: f64 = (1_u64 << 16) as f64;
/// Greatest slope: its product with any distance is finite.
const SLOPE_MAX: f64 = (1_u64 << 32) as f64;
/// Bound of the rounding error of a range's ends, in leaves: positions are below 2^32, so their
/// last bit weighs 2^-21 leaves.
const RANGE_SLACK: f64 = 1.0 / (1_u64 << 20) as f64;

/// Stored parts of a segment. The first coordinate is not stored, because it follows from the
/// fence.
#[derive(Clone, Debug, PartialEq)]
pub struct LineSegmentParts {
    /// Lower fence of the first leaf.
    pub first_fence: Vec<u8>,
    /// Size in bytes of the common prefix of all fences of the segment.
    pub prefix_size: u16,
    /// Alphabet of the bytes behind the prefix.
    pub alphabet: Alphabet,
    /// Slope in leaves per unit of coordinate; finite and never negative.
    pub slope: f64,
    /// Predicted position of the first fence, in leaves.
    pub intercept: f32,
    /// Number of leaves; at least 1.
    pub leaf_count: u32,
    /// Bound of the greatest error of a prediction over the trained fences, in leaves; measured.
    pub error_max: f32,
}

/// Line over consecutive leaves, from strings to positions.
///
/// Positions restart at 0 in each segment: the leaf that begins at its first fence has position 0.
#[derive(Clone, Debug, PartialEq)]
pub struct LineSegment {
    parts: LineSegmentParts,
    line: StringLine,
}

impl LineSegment {
    /// Creates a segment of stored parts.
    ///
    /// # Errors
    ///
    /// [`StringModelError`], which names the invalid part.
    pub fn from_parts(parts: LineSegmentParts) -> Result<Self, StringModelError> {
        let (prefix_size, fence_size) = (usize::from(parts.prefix_size), parts.first_fence.len());
        if prefix_size > fence_size {
            return Err(StringModelError::Prefix {
                prefix_size,
                fence_size,
            });
        }
        let error_max = f64::from(parts.error_max);
        let intercept = f64::from(parts.intercept);
        for (name, value, is_right) in [
            (
                "slope",
                parts.slope,
                (0.0..=SLOPE_MAX).contains(&parts.slope),
            ),
            ("intercept", intercept, intercept.abs() <= ERROR_MAX),
            (
                "error",
                error_max,
                (0.0..=ERROR_MAX + 1.0).contains(&error_max),
            ),
            (
                "leaf count",
                f64::from(parts.leaf_count),
                parts.leaf_count >= 1,
            ),
        ] {
            if !is_right {
                return Err(StringModelError::Number { name, value });
            }
        }
        let line = StringLine {
            slope: parts.slope,
            first_coordinate: parts.alphabet.coordinate(&parts.first_fence[prefix_size..]),
            intercept: parts.intercept,
            alphabet: parts.alphabet,
        };
        Ok(Self { parts, line })
    }

    /// Returns the parts to store.
    pub fn parts(&self) -> &LineSegmentParts {
        &self.parts
    }

    /// Returns the common prefix of the segment's fences.
    pub fn prefix(&self) -> &[u8] {
        &self.parts.first_fence[..usize::from(self.parts.prefix_size)]
    }

    /// Returns the coordinate of the first fence, where the line begins.
    pub fn first_coordinate(&self) -> u64 {
        self.line.first_coordinate
    }

    /// Returns the coordinate of any key: the bytes behind the prefix as a number. Keys before all
    /// with the prefix have 0, keys behind have `u64::MAX`. Monotone.
    pub fn coordinate(&self, key: &[u8]) -> u64 {
        let prefix = self.prefix();
        let begin = &key[..key.len().min(prefix.len())];
        coordinate_behind(begin.cmp(prefix), prefix.len(), key, self.parts.alphabet)
    }

    /// Predicts the position of a key in units of 2^-`shift` leaves, rounded down. Monotone in the
    /// key, and the same on every machine, because residuals depend on it.
    ///
    /// # Panics
    ///
    /// If `shift` exceeds 8.
    pub fn position(&self, key: &[u8], shift: u32) -> i64 {
        assert!(
            shift <= SHIFT_MAX,
            "units of 2^-{shift} leaves are too fine"
        );
        self.line.position(self.coordinate(key), shift)
    }

    /// Returns the first and last leaf that may contain a key, present or absent, given the
    /// segment's error.
    pub fn predicted_range(&self, key: &[u8]) -> (u32, u32) {
        let coordinate = self.coordinate(key);
        self.line
            .range(coordinate, self.parts.leaf_count, self.parts.error_max)
    }

    pub(super) fn line(&self) -> StringLine {
        self.line
    }
}

/// Returns the coordinate of a key, given how its first `prefix_size` bytes (or all, if fewer)
/// compare with the prefix.
#[inline]
pub(super) fn coordinate_behind(
    order: Ordering,
    prefix_size: usize,
    key: &[u8],
    alphabet: Alphabet,
) -> u64 {
    match order {
        Ordering::Less => 0,
        Ordering::Equal => alphabet.coordinate(key.get(prefix_size..).unwrap_or_default()),
        Ordering::Greater => u64::MAX,
    }
}

/// Part of a segment that predictions need, without the prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StringLine {
    pub(super) slope: f64,
    pub(super) first_coordinate: u64,
    pub(super) intercept: f32,
    pub(super) alphabet: Alphabet,
}

impl StringLine {
    /// Returns the position of a coordinate in units of 2^-`shift` leaves.
    ///
    /// A multiplication by a positive number, an addition and a rounding are each monotone, so
    /// their sequence is. A fused multiply-add is not used because it may differ between machines.
    #[inline]
    pub(super) fn position(&self, coordinate: u64, shift: u32) -> i64 {
        let scale = (1_u64 << shift) as f64;
        let distance = coordinate.saturating_sub(self.first_coordinate) as f64;
        let start = f64::from(self.intercept) * scale + POSITION_BIAS;
        // `as` saturates, so that a key far beyond the last leaf stays beyond it.
        (self.slope * scale * distance + start) as i64 - POSITION_BIAS as i64
    }

    /// Returns the first and last of `leaf_count` leaves that may contain a coordinate.
    pub(super) fn range(&self, coordinate: u64, leaf_count: u32, error_max: f32) -> (u32, u32) {
        let distance = coordinate.saturating_sub(self.first_coordinate);
        let position = evaluate(self.slope, f64::from(self.intercept), distance);
        let error = f64::from(error_max) + RANGE_SLACK;
        let last = f64::from(leaf_count) - 1.0;
        // A key of leaf i lies between fences i and i + 1, each predicted within `error`.
        let from = (position - 1.0 - error).ceil().clamp(0.0, last);
        let to = (position + error).floor().clamp(from, last);
        (from as u32, to as u32)
    }

    /// Returns the greatest distance between a prediction and its position, for coordinates with
    /// the positions 0, 1 and so on.
    pub(super) fn measure_error_max(&self, coordinates: &[u64]) -> f64 {
        let intercept = f64::from(self.intercept);
        let errors = coordinates.iter().zip(0_u32..).map(|(coordinate, leaf)| {
            let distance = coordinate.saturating_sub(self.first_coordinate);
            (evaluate(self.slope, intercept, distance) - f64::from(leaf)).abs()
        });
        errors.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> LineSegmentParts {
        LineSegmentParts {
            first_fence: b"user1000".to_vec(),
            prefix_size: 4,
            alphabet: Alphabet::Decimal,
            slope: 1e-15,
            intercept: 0.5,
            leaf_count: 10,
            error_max: 1.0,
        }
    }

    fn refused(change: impl Fn(&mut LineSegmentParts)) -> StringModelError {
        let mut parts = parts();
        change(&mut parts);
        LineSegment::from_parts(parts).expect_err("a part cannot be right")
    }

    /// Parts that cannot be the result of a training are rejected; others are returned unchanged.
    #[test]
    fn parts_are_checked() {
        let segment = LineSegment::from_parts(parts()).expect("all is right");
        assert_eq!(segment.parts(), &parts());
        assert_eq!(segment.prefix(), b"user");
        assert!(matches!(
            refused(|parts| parts.prefix_size = 9),
            StringModelError::Prefix {
                prefix_size: 9,
                fence_size: 8
            }
        ));
        for (expected, change) in [
            (
                "slope",
                (|parts| parts.slope = -1.0) as fn(&mut LineSegmentParts),
            ),
            ("slope", |parts| parts.slope = f64::NAN),
            ("slope", |parts| parts.slope = f64::INFINITY),
            ("intercept", |parts| parts.intercept = f32::NEG_INFINITY),
            ("intercept", |parts| parts.intercept = -1e9),
            ("error", |parts| parts.error_max = f32::NAN),
            ("error", |parts| parts.error_max = -0.5),
            ("leaf count", |parts| parts.leaf_count = 0),
        ] {
            let error = refused(change);
            assert!(
                matches!(error, StringModelError::Number { name, .. } if name == expected),
                "{error}"
            );
        }
    }

    /// Keys without the prefix lie before or behind all that have it; those that end within it lie
    /// before.
    #[test]
    fn keys_without_the_prefix_lie_outside() {
        let segment = LineSegment::from_parts(parts()).expect("all is right");
        for before in [&b""[..], b"use", b"usa9", b"\x00\xff"] {
            assert_eq!(segment.coordinate(before), 0);
        }
        for behind in [&b"usf"[..], b"v", b"uses", b"\xff\xff\xff\xff\xff"] {
            assert_eq!(segment.coordinate(behind), u64::MAX);
        }
        assert_eq!(segment.coordinate(b"user"), 0);
        assert_eq!(segment.first_coordinate(), 1_000_000_000_000_000_000);
        assert_eq!(segment.position(b"user", 5), 16);
        assert_eq!(segment.position(b"user1000", 5), 16);
        assert_eq!(segment.position(b"user1001", 5), 48);
    }

    /// Extreme but valid lines neither overflow nor lose monotonicity.
    #[test]
    fn extreme_lines_do_not_overflow() {
        for (slope, intercept) in [(SLOPE_MAX, 65536.0), (0.0, -65536.0), (SLOPE_MAX, -65536.0)] {
            let mut parts = parts();
            (parts.slope, parts.intercept) = (slope, intercept);
            let segment = LineSegment::from_parts(parts).expect("just within");
            let positions = [&b""[..], b"user1001", b"v"].map(|key| segment.position(key, 8));
            assert!(positions.is_sorted());
            let (from, to) = segment.predicted_range(b"v");
            assert!(from <= to && to < 10);
        }
    }
}
