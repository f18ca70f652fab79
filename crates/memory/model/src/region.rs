//! Lines that fit the points so far: O'Rourke's region, represented by two extreme lines and two
//! hulls.
//!
//! A point (x, y) puts a *ceiling* at y + epsilon and a *floor* at y - epsilon over x; a line fits
//! if it stays between them at every point. Two lines bound the fitting lines. A floor on its left
//! and a ceiling on its right hold the *steepest*; a ceiling on its left and a floor on its right
//! hold the *flattest*. A new point, right of all others, fits some line exactly if its floor is
//! not above the steepest line and its ceiling not below the flattest. If its ceiling is below the
//! steepest line, that line turns down, until it touches the floors' hull; the flattest line
//! symmetrically turns up. Points that turn neither line can never matter again and are dropped.
//!
//! # Arithmetic
//!
//! All decisions use exact integers. x is relative to the segment's first x: 0..2^64. y is in fixed
//! point with 16 fractional bits: positions are below 2^32, so y is below 2^48, and epsilon is at
//! most 2^48. Hence floors and ceilings lie within -2^48..=2^49, their differences within 2^50, and
//! each term of a cross product (y difference by x difference) within 2^114. So the comparison of
//! two terms fits `i128` with a margin, as does an intercept's numerator, y * (x difference) - (y
//! difference) * x, which stays within 2^115.

/// Number of fractional bits of y and of epsilon.
const FRACTION_BITS: u32 = 16;
/// One position in fixed point.
const ONE: i64 = 1 << FRACTION_BITS;
/// Largest epsilon, in positions. Positions stay below it, so the level line y = 0 fits everything.
const EPSILON_MAX: f64 = 4_294_967_296.0;

/// Floor or ceiling: x relative to the segment's first, y in fixed point.
#[derive(Clone, Copy, Debug)]
struct Corner {
    x: u64,
    y: i64,
}

impl Corner {
    /// Compares the slope from `self` to `near` with that to `far`, both at or right of `self`:
    /// positive if the line to `far` is steeper. Exact; 0 if `self` and one of them coincide.
    #[inline]
    fn turn(self, near: Self, far: Self) -> i128 {
        rise(self, far) * run(self, near) - rise(self, near) * run(self, far)
    }
}

#[inline]
fn rise(left: Corner, right: Corner) -> i128 {
    i128::from(right.y - left.y)
}

#[inline]
fn run(left: Corner, right: Corner) -> i128 {
    i128::from(right.x - left.x)
}

/// Straight line through two corners, `left.x < right.x`.
#[derive(Clone, Copy, Debug)]
struct Extreme {
    left: Corner,
    right: Corner,
}

impl Extreme {
    /// Returns a positive number if `corner`, not left of `self.right`, lies above the line, a
    /// negative one if below.
    #[inline]
    fn side(&self, corner: Corner) -> i128 {
        self.left.turn(self.right, corner)
    }

    fn to_line(self) -> FittedLine {
        let width = run(self.left, self.right);
        let height = rise(self.left, self.right);
        let offset = i128::from(self.left.y) * width - height * i128::from(self.left.x);
        let scale = width as f64 * ONE as f64;
        FittedLine {
            slope: height as f64 / scale,
            intercept: offset as f64 / scale,
        }
    }
}

/// Straight line in floats: y = intercept + slope * x, y in positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FittedLine {
    pub(crate) slope: f64,
    pub(crate) intercept: f64,
}

/// Convex chain of corners, of which those before `start` cannot hold any line any more.
#[derive(Debug, Default)]
struct Chain {
    corners: Vec<Corner>,
    start: usize,
}

impl Chain {
    fn reset(&mut self, first: Corner) {
        self.corners.clear();
        self.corners.push(first);
        self.start = 0;
    }

    /// Moves `start` to the corner that holds the line through `corner`: the one with the smallest
    /// slope to it (`SIGN` 1, floors) or the largest (`SIGN` -1, ceilings). Slopes along a chain
    /// have one extreme, so the walk ends at the first corner that is worse than its predecessor.
    #[inline]
    fn seek_tangent<const SIGN: i128>(&mut self, corner: Corner) -> Corner {
        let mut best = self.corners[self.start];
        while let Some(&next) = self.corners.get(self.start + 1) {
            // A corner over the same x (equal keys) cannot hold a line through this one.
            if next.x == corner.x {
                break;
            }
            let change =
                rise(next, corner) * run(best, corner) - rise(best, corner) * run(next, corner);
            if change * SIGN > 0 {
                break;
            }
            best = next;
            self.start += 1;
        }
        best
    }

    /// Appends `corner` and drops superfluous corners: those not above (`SIGN` 1, floors) or not
    /// below (`SIGN` -1, ceilings) the line over them, including an equal x's lower floor.
    #[inline]
    fn append<const SIGN: i128>(&mut self, corner: Corner) {
        while let [.., before, last] = self.corners[self.start..] {
            if before.turn(last, corner) * SIGN < 0 {
                break;
            }
            self.corners.pop();
        }
        self.corners.push(corner);
    }
}

const FLOORS: i128 = 1;
const CEILINGS: i128 = -1;

/// Region of fitting lines.
#[derive(Debug)]
pub(crate) struct Region {
    epsilon_fixed: i64,
    floors: Chain,
    ceilings: Chain,
    /// Extreme lines, steepest and flattest; absent while all points share one x.
    extremes: Option<(Extreme, Extreme)>,
}

impl Region {
    /// Creates an empty region. Epsilon is in positions, at least 0, and rounded down to a multiple
    /// of 2^-16.
    pub(crate) fn new(epsilon: f64) -> Self {
        assert!(
            epsilon >= 0.0,
            "epsilon must be a number and at least 0, not {epsilon}"
        );
        let epsilon_fixed = (epsilon.min(EPSILON_MAX) * ONE as f64) as i64;
        Self {
            epsilon_fixed,
            floors: Chain::default(),
            ceilings: Chain::default(),
            extremes: None,
        }
    }

    /// Drops all points and takes (0, 0) as the first.
    pub(crate) fn restart(&mut self) {
        self.floors.reset(Corner {
            x: 0,
            y: -self.epsilon_fixed,
        });
        self.ceilings.reset(Corner {
            x: 0,
            y: self.epsilon_fixed,
        });
        self.extremes = None;
    }

    /// Adds the point (x, y) if a line fits it and all points before it; returns whether it did.
    /// Otherwise the region is unchanged. x must not be less than before, y must be greater.
    #[inline]
    pub(crate) fn admit(&mut self, x: u64, y: u32) -> bool {
        let y = i64::from(y) << FRACTION_BITS;
        let floor = Corner {
            x,
            y: y - self.epsilon_fixed,
        };
        let ceiling = Corner {
            x,
            y: y + self.epsilon_fixed,
        };
        let Some((steepest, flattest)) = &mut self.extremes else {
            return self.admit_early(floor, ceiling);
        };
        if steepest.side(floor) > 0 || flattest.side(ceiling) < 0 {
            return false;
        }
        // An equal x's later ceiling is above its earlier one, so it changes nothing here.
        if steepest.side(ceiling) < 0 {
            steepest.left = self.floors.seek_tangent::<FLOORS>(ceiling);
            steepest.right = ceiling;
            self.ceilings.append::<CEILINGS>(ceiling);
        }
        if flattest.side(floor) > 0 {
            flattest.left = self.ceilings.seek_tangent::<CEILINGS>(floor);
            flattest.right = floor;
            self.floors.append::<FLOORS>(floor);
        }
        true
    }

    /// Adds a point while all points before it are at x = 0.
    fn admit_early(&mut self, floor: Corner, ceiling: Corner) -> bool {
        let ceiling_first = self.ceilings.corners[0];
        let floor_first = self.floors.corners[0];
        if floor.x == 0 {
            if floor.y > ceiling_first.y {
                return false;
            }
            self.floors.reset(floor);
            return true;
        }
        let steepest = Extreme {
            left: floor_first,
            right: ceiling,
        };
        let flattest = Extreme {
            left: ceiling_first,
            right: floor,
        };
        self.extremes = Some((steepest, flattest));
        self.ceilings.corners.push(ceiling);
        self.floors.corners.push(floor);
        true
    }

    /// Returns the mean of the steepest and the flattest line, in slope and in intercept, which
    /// fits because both do.
    ///
    /// The mean rises even if the flattest line falls. With d the difference of two points'
    /// positions and r that of their x's, the steepest slope is the minimum of (2 epsilon + d) / r
    /// over all pairs of points, and the flattest one's negative the minimum of (2 epsilon - d) /
    /// r. At the pair that bounds the steepest, their mean is at least d / r. This is more than
    /// 2^-34 of the steepest slope, so rounding does not make it negative.
    pub(crate) fn line(&self) -> FittedLine {
        let Some((steepest, flattest)) = self.extremes else {
            let sum = self.floors.corners[0].y + self.ceilings.corners[0].y;
            return FittedLine {
                slope: 0.0,
                intercept: sum as f64 / (2.0 * ONE as f64),
            };
        };
        let (steepest, flattest) = (steepest.to_line(), flattest.to_line());
        FittedLine {
            slope: 0.5 * (steepest.slope + flattest.slope),
            intercept: 0.5 * (steepest.intercept + flattest.intercept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted_count(epsilon: f64, xs: &[u64]) -> usize {
        let mut region = Region::new(epsilon);
        region.restart();
        1 + (1..xs.len())
            .take_while(|&y| region.admit(xs[y], y as u32))
            .count()
    }

    /// Equal keys fit as long as their positions span at most twice epsilon, exactly.
    #[test]
    fn equal_keys_fit_twice_epsilon() {
        assert_eq!(admitted_count(0.5, &[0; 9]), 2);
        assert_eq!(admitted_count(0.49, &[0; 9]), 1);
        assert_eq!(admitted_count(1.0, &[0; 9]), 3);
        assert_eq!(admitted_count(2.67, &[0; 9]), 6);
        assert_eq!(admitted_count(1.0, &[0, 10, 20, 20, 20, 20]), 5);
    }

    /// Epsilon 0 admits exactly collinear points, even across the whole range of x.
    #[test]
    fn epsilon_zero_is_collinear() {
        let third = u64::MAX / 3;
        assert_eq!(admitted_count(0.0, &[0, third, 2 * third, u64::MAX]), 4);
        assert_eq!(admitted_count(0.0, &[0, third, 2 * third, u64::MAX - 1]), 3);
        assert_eq!(admitted_count(0.0, &[0, third, 2 * third + 1, u64::MAX]), 2);
    }

    /// The largest values that the module's comment allows do not overflow (this test is built with
    /// overflow checks), and any epsilon above 2^32 means no bound.
    #[test]
    fn largest_values_do_not_overflow() {
        let mut region = Region::new(f64::INFINITY);
        region.restart();
        assert!(region.admit(1, 1));
        assert!(region.admit(u64::MAX - 1, u32::MAX - 1));
        assert!(region.admit(u64::MAX, u32::MAX));
        let line = region.line();
        assert!(line.slope >= 0.0 && line.slope.is_finite() && line.intercept.is_finite());
        let mut region = Region::new(0.0);
        region.restart();
        assert!(region.admit(u64::MAX - 1, 1));
        assert!(!region.admit(u64::MAX, u32::MAX));
    }

    /// The line rises even if the flattest line falls almost as steeply as the steepest rises.
    #[test]
    fn mean_rises_though_flattest_falls() {
        for epsilon in [1.0, 100.0, 4e9] {
            let mut region = Region::new(epsilon);
            region.restart();
            for (x, y) in [(1, 1), (2, 2), (1 << 40, 3), (1 << 63, 4), (u64::MAX, 5)] {
                if !region.admit(x, y) {
                    break;
                }
                let line = region.line();
                let (_, flattest) = region.extremes.expect("there are two x's");
                assert!(y > 1 || flattest.to_line().slope < 0.0, "{flattest:?}");
                assert!(line.slope > 0.0, "{line:?}");
                assert!(line.intercept.abs() <= epsilon, "{line:?}");
            }
        }
    }
}
