//! Oracle that decides which points fit a line by simpler means than the crate's: all pairs,
//! exactly.

/// One position in the crate's fixed point: epsilon is rounded down to a multiple of 2^-16.
const ONE: i128 = 1 << 16;

fn fixed(epsilon: f64) -> i128 {
    (epsilon * ONE as f64) as i128
}

/// Fraction with a positive denominator.
#[derive(Clone, Copy)]
struct Fraction {
    numerator: i128,
    denominator: i128,
}

impl Fraction {
    fn is_less_than(self, other: Self) -> bool {
        self.numerator * other.denominator < other.numerator * self.denominator
    }
}

/// Returns whether any line, rising or falling, stays within epsilon of the points (`xs[j]`, j).
///
/// For a slope s an intercept exists if no floor minus s * x is above any ceiling minus s * x. Each
/// pair of points thus bounds s from one side, or must overlap if their x's are equal.
pub(crate) fn fits_line(xs: &[u64], epsilon: f64) -> bool {
    let epsilon = fixed(epsilon);
    let mut slope_min: Option<Fraction> = None;
    let mut slope_max: Option<Fraction> = None;
    for (left, &left_x) in xs.iter().enumerate() {
        for (distance, &right_x) in xs[left..].iter().enumerate() {
            let rise = distance as i128 * ONE;
            let denominator = i128::from(right_x - left_x);
            if denominator == 0 {
                if rise > 2 * epsilon {
                    return false;
                }
                continue;
            }
            let low = Fraction {
                numerator: rise - 2 * epsilon,
                denominator,
            };
            let high = Fraction {
                numerator: rise + 2 * epsilon,
                denominator,
            };
            if slope_min.is_none_or(|slope| slope.is_less_than(low)) {
                slope_min = Some(low);
            }
            if slope_max.is_none_or(|slope| high.is_less_than(slope)) {
                slope_max = Some(high);
            }
        }
    }
    match (slope_min, slope_max) {
        (Some(slope_min), Some(slope_max)) => !slope_max.is_less_than(slope_min),
        _ => true,
    }
}

/// Returns the smallest number of segments over all cuts, by dynamic programming, which does not
/// assume that the longest first segment is the best.
pub(crate) fn segment_count_min(xs: &[u64], epsilon: f64, point_count_max: usize) -> usize {
    let mut counts = vec![0_usize];
    for end in 1..=xs.len() {
        let starts = end.saturating_sub(point_count_max)..end;
        let fitting = starts.filter(|&start| fits_line(&xs[start..end], epsilon));
        counts.push(
            1 + fitting
                .map(|start| counts[start])
                .min()
                .expect("one point fits"),
        );
    }
    counts[xs.len()]
}

/// Returns the number of segments of the greedy cone: lines exactly through each segment's first
/// point.
pub(crate) fn segment_count_cone(xs: &[u64], epsilon: f64, point_count_max: usize) -> usize {
    let epsilon = fixed(epsilon);
    let mut segment_count = 0;
    let mut first = 0;
    while first < xs.len() {
        segment_count += 1;
        let mut slope_min = Fraction {
            numerator: 0,
            denominator: 1,
        };
        let mut slope_max: Option<Fraction> = None;
        let mut point_count = 1;
        while point_count < point_count_max && first + point_count < xs.len() {
            let denominator = i128::from(xs[first + point_count] - xs[first]);
            let rise = point_count as i128 * ONE;
            if denominator == 0 {
                if rise > epsilon {
                    break;
                }
            } else {
                let low = Fraction {
                    numerator: rise - epsilon,
                    denominator,
                };
                let high = Fraction {
                    numerator: rise + epsilon,
                    denominator,
                };
                slope_min = if slope_min.is_less_than(low) {
                    low
                } else {
                    slope_min
                };
                slope_max = slope_max
                    .filter(|slope| slope.is_less_than(high))
                    .or(Some(high));
                if slope_max.is_some_and(|slope| slope.is_less_than(slope_min)) {
                    break;
                }
            }
            point_count += 1;
        }
        first += point_count;
    }
    segment_count
}

/// Tests the oracle on obvious cases.
#[test]
fn oracle_knows_plain_cases() {
    assert!(fits_line(&[0, 10, 20], 0.0));
    assert!(!fits_line(&[0, 10, 21], 0.0));
    assert!(fits_line(&[7, 7, 7], 1.0));
    assert!(!fits_line(&[7, 7, 7, 7], 1.0));
    assert!(fits_line(&[0, 1, u64::MAX], 0.5));
    assert!(!fits_line(&[0, 1, u64::MAX], 0.49));
    assert_eq!(segment_count_min(&[0, 1, 2, 100, 200, 300], 0.0, 9), 2);
    assert_eq!(segment_count_min(&[0, 1, 2, 3, 4, 5], 0.0, 2), 3);
    assert_eq!(segment_count_cone(&[0, 1, 2, 100, 200, 300], 0.0, 9), 2);
}
