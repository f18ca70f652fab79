//! One linear piece, and the bound of its rounding error.

/// Linear piece over points (`x_j`, j), j = 0..`point_count`, x non-decreasing.
///
/// Positions restart at 0 in each segment: its first point has position 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// x of the segment's first point; predictions are relative to it.
    pub first_x: u64,
    /// Positions per unit of x; finite and never negative.
    pub slope: f64,
    /// Predicted position at `first_x`; within epsilon of 0.
    pub intercept: f64,
    /// Number of points that the segment was fitted to; at least 1.
    pub point_count: u32,
    /// Greatest `|predict(x_j) - j|` over all the segment's points, measured, in positions.
    pub error_max: f64,
}

impl Segment {
    /// Predicts the position of `x`, in points from the segment's first.
    ///
    /// Monotone non-decreasing in x. Not clamped: x beyond the last point is extrapolated; x before
    /// the first is predicted like the first. For x between two points of this segment, of
    /// positions i and i + 1, the result lies in `[i - error_max, i + 1 + error_max]`.
    #[inline]
    pub fn predict(&self, x: u64) -> f64 {
        evaluate(self.slope, self.intercept, x.saturating_sub(self.first_x))
    }
}

/// Evaluates the line at an x relative to the segment's first. Only this function has this
/// arithmetic, so that verification and prediction agree. (A fused multiply-add would round
/// differently, and without the instruction it is slow.)
#[inline]
pub(crate) fn evaluate(slope: f64, intercept: f64, x_relative: u64) -> f64 {
    intercept + slope * (x_relative as f64)
}

/// Returns by how much [`Segment::error_max`] may exceed epsilon because floats round, in
/// positions: `(point_count + 2 epsilon) * 2^-49`.
///
/// The line is chosen by exact integer arithmetic. Rounding occurs when it becomes two floats, and
/// when they are evaluated. Let u = 2^-53, e = epsilon, n = `point_count`. A line that fits passes
/// within e of point 0 and of point n - 1. So its intercept is at most e in absolute value, and
/// slope * x is at most n + 2e for every x of the segment. Every step has a relative error of at
/// most u in a quantity of that size:
///
/// - each extreme slope: 2u (x difference to float, division; the y difference is exact);
/// - each extreme intercept: 3u (numerator, denominator, division);
/// - the mean of the two lines: u in each;
/// - the evaluation: 3u (x to float, product, sum), and u for the difference to the position.
///
/// Together at most 7u (n + 2e) + 4u e, which is less than 16u (n + 2e) = 2^-49 (n + 2e), with a
/// margin for second-order terms. This holds for all inputs, so a segment never has to be adjusted
/// or split for rounding; the builder asserts it on every segment that it closes.
#[must_use]
pub fn rounding_tolerance(epsilon: f64, point_count: u32) -> f64 {
    const TWO_POW_MINUS_49: f64 = 1.0 / (1_u64 << 49) as f64;
    // Segments have at most 2^32 points, so a larger epsilon never takes effect (see `region`).
    (f64::from(point_count) + 2.0 * epsilon.min(4_294_967_296.0)) * TWO_POW_MINUS_49
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys before the first are predicted like the first, and never wrap around.
    #[test]
    fn predict_saturates_below_first_x() {
        let segment = Segment {
            first_x: 100,
            slope: 0.5,
            intercept: 0.25,
            point_count: 3,
            error_max: 0.25,
        };
        assert_eq!(segment.predict(0).to_bits(), 0.25_f64.to_bits());
        assert_eq!(segment.predict(100).to_bits(), 0.25_f64.to_bits());
        assert_eq!(segment.predict(104).to_bits(), 2.25_f64.to_bits());
        assert!(segment.predict(u64::MAX).is_finite());
    }

    /// The tolerance is as small as documented.
    #[test]
    fn tolerance_is_tiny() {
        assert!(rounding_tolerance(64.0, 65_535) < 1.2e-10);
        assert!(rounding_tolerance(f64::MAX, u32::MAX) < 1e-4);
    }
}
