//! Key ranges of a table's parts.

use std::ops::RangeInclusive;

use super::PART_COUNT_MAX;
use crate::{Error, ErrorKind};

/// Bounds between the parts of a table: the first key of each part but the first, which begins at
/// 0. The last part ends at `u64::MAX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds(Vec<u64>);

fn bad(given: String, allowed: String) -> Error {
    ErrorKind::BadOption {
        option: "bound",
        given,
        allowed,
    }
    .into()
}

/// Checks that a table has between 2 and [`PART_COUNT_MAX`] parts.
pub(super) fn check_part_count(part_count: usize) -> Result<(), Error> {
    if (2..=PART_COUNT_MAX).contains(&part_count) {
        return Ok(());
    }
    Err(ErrorKind::BadOption {
        option: "number of pools",
        given: part_count.to_string(),
        allowed: format!("expected 2 to {PART_COUNT_MAX}, one per part of the table"),
    }
    .into())
}

impl Bounds {
    /// Creates bounds from the first key of each part but the first.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`]: there are no keys or too many, the first key is 0, or they do not
    /// ascend, so that a part would be empty.
    pub fn new(first_keys: Vec<u64>) -> Result<Self, Error> {
        check_part_count(first_keys.len() + 1)?;
        if first_keys[0] == 0 {
            let allowed = "expected 1 or more: a bound is the first key of a part but the first";
            return Err(bad("0".to_owned(), allowed.to_owned()));
        }
        let not_above = |pair: &[u64]| (pair[0] >= pair[1]).then_some((pair[0], pair[1]));
        if let Some((before, next)) = first_keys.windows(2).find_map(not_above) {
            let given = format!("{next} after {before}");
            return Err(bad(
                given,
                "bounds must be in ascending order, without duplicates".to_owned(),
            ));
        }
        Ok(Self(first_keys))
    }

    /// Creates bounds between parts of equally many possible keys (differing by at most one), which
    /// suits uniformly distributed keys.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`]: the number of parts is out of range.
    pub fn even(part_count: usize) -> Result<Self, Error> {
        check_part_count(part_count)?;
        let first_key = |part: usize| ((part as u128) << 64) / part_count as u128;
        Self::new((1..part_count).map(|part| first_key(part) as u64).collect())
    }

    /// Creates bounds between parts that each have equally many of the given keys (differing by at
    /// most one). The keys are those to be loaded or a sample of them, in any order; this sorts
    /// them.
    ///
    /// # Errors
    /// [`ErrorKind::BadOption`]: the number of parts is out of range, or larger than the number of
    /// keys.
    pub fn of_sample(mut keys: Vec<u64>, part_count: usize) -> Result<Self, Error> {
        check_part_count(part_count)?;
        keys.sort_unstable();
        keys.dedup();
        if keys.len() < part_count {
            return Err(ErrorKind::BadOption {
                option: "number of sample keys",
                given: keys.len().to_string(),
                allowed: format!("expected at least {part_count}, one per part; give the bounds"),
            }
            .into());
        }
        let first_key =
            |part: usize| keys[(part as u128 * keys.len() as u128 / part_count as u128) as usize];
        Self::new((1..part_count).map(first_key).collect())
    }

    /// Returns the number of parts.
    pub fn part_count(&self) -> usize {
        self.0.len() + 1
    }

    /// Returns the first key of each part but the first.
    pub fn first_keys(&self) -> &[u64] {
        &self.0
    }

    /// Returns the part, from 0, to which a key belongs.
    #[inline]
    pub fn part_of(&self, key: u64) -> usize {
        self.0.partition_point(|first_key| *first_key <= key)
    }

    /// Returns the key range of a part.
    ///
    /// # Panics
    /// If the part does not exist.
    pub fn range(&self, part: usize) -> RangeInclusive<u64> {
        assert!(part <= self.0.len(), "there is no part {part}");
        let low = part.checked_sub(1).map_or(0, |before| self.0[before]);
        let high = self.0.get(part).map_or(u64::MAX, |next| next - 1);
        low..=high
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the parts cover all keys without overlap, and each key is in the part whose range
    /// contains it.
    #[test]
    fn every_key_is_in_one_part() {
        let all = [
            Bounds::new(vec![1]),
            Bounds::new(vec![u64::MAX]),
            Bounds::new(vec![1_000, 1_001, 1 << 63]),
            Bounds::even(2),
            Bounds::even(3),
            Bounds::even(PART_COUNT_MAX),
            Bounds::of_sample(vec![9, 5, 5, 7, 3, 0], 5),
            Bounds::of_sample((0..1_000).rev().collect(), 7),
        ];
        for bounds in all.map(|bounds| bounds.expect("good")) {
            let mut next = Some(0);
            for part in 0..bounds.part_count() {
                let range = bounds.range(part);
                assert_eq!(Some(*range.start()), next, "{bounds:?}");
                assert!(!range.is_empty());
                for key in [*range.start(), *range.end()] {
                    assert_eq!(bounds.part_of(key), part, "{bounds:?} {key}");
                }
                next = range.end().checked_add(1);
            }
            assert_eq!(next, None);
        }
    }

    /// Promise: even bounds are even, and bounds of a sample divide it equally.
    #[test]
    fn shares_are_equal() {
        assert_eq!(Bounds::even(2).expect("good").first_keys(), [1 << 63]);
        let sample = Bounds::of_sample((0..10).map(|key| key * key).collect(), 3);
        assert_eq!(sample.expect("good").first_keys(), [9, 36]);
    }

    /// Promise: invalid bounds are rejected, and the error gives the reason.
    #[test]
    fn what_cannot_be_bounds_is_refused() {
        let refusal = |bounds: Result<Bounds, Error>| bounds.expect_err("refused").to_string();
        assert!(refusal(Bounds::new(vec![])).contains("number of pools is 1; expected 2 to"));
        assert!(refusal(Bounds::new(vec![0])).contains("bound is 0; "));
        assert!(refusal(Bounds::new(vec![5, 5])).contains("bound is 5 after 5; bounds must be"));
        assert!(refusal(Bounds::new(vec![5, 4])).contains("bound is 4 after 5"));
        assert!(refusal(Bounds::even(PART_COUNT_MAX + 1)).contains("number of pools is 257"));
        assert!(
            refusal(Bounds::of_sample(vec![1, 1, 1], 2)).contains("number of sample keys is 1; ")
        );
    }
}
