//! Generalized harmonic numbers `zeta(n) = sum of i^-theta for i in 1..=n`.
//!
//! YCSB adds the terms one by one, which takes 1.3 s for 10^8 records. Here only the first terms
//! are added; the rest comes from the Euler-Maclaurin formula, which is exact to the last bits of
//! an f64 there. Any n costs the same tens of microseconds, and a small increase of n tens of
//! nanoseconds.

/// Up to this number, terms are added one by one; beyond it the formula's error is below 1e-17.
const ADDED_TERMS_MAX: u64 = 1_000;

/// An increase by at most this many terms is added one by one: it is cheaper and as exact.
const GROWTH_TERMS_MAX: u64 = 16;

/// Returns `sum of i^-theta for i in 1..=count`, with a relative error below 1e-13. `theta` is in
/// (0, 1).
pub(super) fn zeta(count: u64, theta: f64) -> f64 {
    grow(0.0, 0, count, theta)
}

/// Returns zeta(`to`), given `sum` = zeta(`from`). `from <= to`.
pub(super) fn grow(sum: f64, from: u64, to: u64, theta: f64) -> f64 {
    assert!(from <= to, "zeta grows from {from} to {to}");
    let added_until = if to - from <= GROWTH_TERMS_MAX {
        to
    } else {
        to.min(ADDED_TERMS_MAX)
    };
    let mut sum = sum;
    // Small terms last, as YCSB adds them.
    for i in from + 1..=added_until {
        sum += (i as f64).powf(-theta);
    }
    let start = from.max(added_until);
    if start < to {
        sum + tail(to, theta) - tail(start, theta)
    } else {
        sum
    }
}

/// Returns the Euler-Maclaurin expansion of the sum up to `n`, less a constant that cancels in
/// differences.
fn tail(n: u64, theta: f64) -> f64 {
    let n = n as f64;
    let power = n.powf(-theta);
    n * power / (1.0 - theta) + power / 2.0 - theta * power / (12.0 * n)
        + theta * (theta + 1.0) * (theta + 2.0) * power / (720.0 * n * n * n)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THETA: f64 = 0.99;

    fn added_one_by_one(count: u64) -> f64 {
        (1..=count).map(|i| 1.0 / (i as f64).powf(THETA)).sum()
    }

    /// Promise: the shortcut yields the sum that YCSB adds up.
    #[test]
    fn equals_the_plain_sum() {
        for count in [0, 1, 2, 999, 1_000, 1_001, 1_017, 50_000, 1_000_000] {
            let difference = (zeta(count, THETA) - added_one_by_one(count)).abs();
            assert!(difference < 1e-11, "zeta({count}) is off by {difference:e}");
        }
    }

    /// Promise: the result for 10^10 items is YCSB's constant, which also proves that the constant
    /// belongs to 10^10 items.
    #[test]
    fn yields_the_constant_of_ycsb() {
        let difference = zeta(10_000_000_000, THETA) - super::super::scrambled::ZETA_OF_ITEM_COUNT;
        assert!(difference.abs() < 1e-8, "{difference:e}");
    }

    /// Promise: an increase in any steps ends at the same number.
    #[test]
    fn growth_in_steps_equals_one_step() {
        let mut sum = zeta(900, THETA);
        let mut count = 900;
        for step in (0..40).cycle().take(5_000) {
            sum = grow(sum, count, count + step, THETA);
            count += step;
        }
        assert!((sum - zeta(count, THETA)).abs() < 1e-11);
    }
}
