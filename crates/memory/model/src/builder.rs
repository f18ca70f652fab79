//! Builder that cuts a stream of keys into segments.

use crate::region::Region;
use crate::segment::{Segment, evaluate, rounding_tolerance};

/// Streaming optimal piecewise linear regression.
///
/// Takes keys in ascending order and returns a segment when the next key cannot join it. So each
/// segment is as long as possible. Because a subset of points that fit a line fits that line too,
/// the number of segments is the smallest possible. Papers: O'Rourke 1981; Xie et al.,
/// `OptimalPLR`, VLDB J. 2014; as in PGM-index (the crate's documentation lists deviations).
///
/// Cost: amortized constant time per key; 8 bytes per pending key, and at most 32 for the hulls.
/// Buffers may be larger, and are kept from segment to segment.
///
/// ```
/// use farleaf_model::SegmentBuilder;
///
/// let mut builder = SegmentBuilder::new(1.0, 1000);
/// let mut segments = Vec::new();
/// for x in (0..100).map(|i| i * 10).chain((0..100).map(|i| 1_000_000 + i)) {
///     segments.extend(builder.push(x));
/// }
/// segments.extend(builder.finish());
/// assert_eq!(segments.len(), 2);
/// assert!((segments[0].predict(500) - 50.0).abs() <= 1.0);
/// ```
#[derive(Debug)]
pub struct SegmentBuilder {
    epsilon: f64,
    point_count_max: u32,
    region: Region,
    first_x: u64,
    /// x's of the pending segment, relative to `first_x`; the index is the position.
    xs_relative: Vec<u64>,
}

impl SegmentBuilder {
    /// Creates a builder of segments with an error of at most `epsilon` positions (e.g. 2.67),
    /// apart from [`rounding_tolerance`], and at most `point_count_max` points each. Epsilon is
    /// rounded down to a multiple of 2^-16.
    ///
    /// # Panics
    ///
    /// If epsilon is NaN or negative, or `point_count_max` is 0.
    pub fn new(epsilon: f64, point_count_max: u32) -> Self {
        assert!(point_count_max >= 1, "a segment has at least one point");
        Self {
            epsilon,
            point_count_max,
            region: Region::new(epsilon),
            first_x: 0,
            xs_relative: Vec::new(),
        }
    }

    /// Adds the next x. Returns the closed segment if x does not fit into it, or if it is full: x
    /// is then the first point of the next one.
    ///
    /// # Panics
    ///
    /// If x is less than the previous one.
    #[inline]
    pub fn push(&mut self, x: u64) -> Option<Segment> {
        let Some(&last_relative) = self.xs_relative.last() else {
            self.start(x);
            return None;
        };
        assert!(x >= self.first_x + last_relative, "x must not descend");
        let x_relative = x - self.first_x;
        let y = self.xs_relative.len() as u32;
        if y < self.point_count_max && self.region.admit(x_relative, y) {
            self.xs_relative.push(x_relative);
            return None;
        }
        let segment = self.close();
        self.start(x);
        Some(segment)
    }

    /// Closes the last segment; `None` if no point is pending. The builder is then ready for new
    /// input, which may begin at any x.
    pub fn finish(&mut self) -> Option<Segment> {
        if self.xs_relative.is_empty() {
            return None;
        }
        let segment = self.close();
        self.xs_relative.clear();
        Some(segment)
    }

    /// Drops all pending points. The builder is then ready for new input, which may begin at any x.
    pub(crate) fn abandon(&mut self) {
        self.xs_relative.clear();
    }

    /// Returns the number of points in the segment that is not closed yet.
    pub fn pending_count(&self) -> u32 {
        self.xs_relative.len() as u32
    }

    fn start(&mut self, x: u64) {
        self.first_x = x;
        self.xs_relative.clear();
        self.xs_relative.push(0);
        self.region.restart();
    }

    /// Converts the pending points to a segment and verifies the bound at each of them.
    fn close(&self) -> Segment {
        let line = self.region.line();
        let point_count = self.pending_count();
        let error_max = measure_error_max(line.slope, line.intercept, &self.xs_relative);
        assert!(
            line.slope >= 0.0 && line.slope.is_finite() && line.intercept.is_finite(),
            "no line for a segment: {line:?}"
        );
        assert!(
            error_max <= self.epsilon + rounding_tolerance(self.epsilon, point_count),
            "error {error_max} breaks the bound {} over {point_count} points from {}",
            self.epsilon,
            self.first_x,
        );
        Segment {
            first_x: self.first_x,
            slope: line.slope,
            intercept: line.intercept,
            point_count,
            error_max,
        }
    }
}

/// Returns the greatest distance between a prediction and its position.
fn measure_error_max(slope: f64, intercept: f64, xs_relative: &[u64]) -> f64 {
    xs_relative
        .iter()
        .zip(0_u32..)
        .fold(0.0, |error_max, (&x, position)| {
            let error = (evaluate(slope, intercept, x) - f64::from(position)).abs();
            if error > error_max { error } else { error_max }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stored error is measured correctly, on a line whose errors are known.
    #[test]
    fn error_is_measured_at_every_point() {
        // Predictions 0.25, 1.25, 2.25, 4.25 for positions 0, 1, 2, 3.
        let error = measure_error_max(0.5, 0.25, &[0, 2, 4, 8]);
        assert_eq!(error.to_bits(), 1.25_f64.to_bits());
    }

    /// One point is predicted without error, by a level line.
    #[test]
    fn single_point_is_exact() {
        for x in [0, 7, u64::MAX] {
            let mut builder = SegmentBuilder::new(2.67, 100);
            assert_eq!(builder.push(x), None);
            let segment = builder.finish().expect("a point is pending");
            let expected = Segment {
                first_x: x,
                slope: 0.0,
                intercept: 0.0,
                point_count: 1,
                error_max: 0.0,
            };
            assert_eq!(segment, expected);
        }
    }

    /// `pending_count` follows push and finish, and a finished builder accepts smaller keys again.
    #[test]
    fn finish_makes_ready_for_new_input() {
        let mut builder = SegmentBuilder::new(1.0, 3);
        assert_eq!(builder.finish(), None);
        assert_eq!(builder.pending_count(), 0);
        for x in [10, 11, 12] {
            assert_eq!(builder.push(x), None);
        }
        assert_eq!(builder.pending_count(), 3);
        assert_eq!(builder.push(13).map(|segment| segment.point_count), Some(3));
        assert_eq!(builder.pending_count(), 1);
        assert_eq!(builder.finish().map(|segment| segment.first_x), Some(13));
        assert_eq!(builder.push(0), None);
        assert_eq!(builder.finish().map(|segment| segment.first_x), Some(0));
    }

    /// Descending keys violate the caller's contract and panic.
    #[test]
    #[should_panic(expected = "x must not descend")]
    fn descending_keys_are_refused() {
        let mut builder = SegmentBuilder::new(1.0, 3);
        builder.push(10);
        builder.push(9);
    }

    /// NaN is rejected as epsilon.
    #[test]
    #[should_panic(expected = "epsilon must be a number")]
    fn epsilon_must_be_a_number() {
        SegmentBuilder::new(f64::NAN, 3);
    }
}
