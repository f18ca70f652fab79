//! Faults, counted, and the first of them in words.

use std::fmt::Display;

use crate::verify::Verdict;

/// Faults that are described; the others are only counted.
pub(crate) const DESCRIPTION_COUNT_MAX: usize = 8;

/// What went wrong. While nothing does, counting costs a comparison and no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Operations that failed or yielded something wrong.
    pub(crate) errors: u64,
    /// Operations, or keys of the final check, that did not find what must be there.
    pub(crate) missing: u64,
    /// The first faults.
    pub(crate) descriptions: Vec<String>,
}

impl Tally {
    /// Counts what `verdict` says.
    #[inline]
    pub(crate) fn judge(&mut self, verdict: Verdict) {
        if !verdict.is_right() {
            self.count(verdict);
        }
    }

    #[cold]
    fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Right => return,
            Verdict::Missing { .. } => self.missing += 1,
            Verdict::Wrong(_) => self.errors += 1,
        }
        self.describe(&verdict);
    }

    /// Counts something wrong.
    #[cold]
    pub(crate) fn wrong(&mut self, description: impl Display) {
        self.errors += 1;
        self.describe(&description);
    }

    /// Describes a fault, if it is one of the first.
    pub(crate) fn describe(&mut self, fault: &dyn Display) {
        if self.descriptions.len() < DESCRIPTION_COUNT_MAX {
            self.descriptions.push(fault.to_string());
        }
    }

    /// Adds what another thread counted.
    pub(crate) fn merge(&mut self, other: Self) {
        self.errors += other.errors;
        self.missing += other.missing;
        let room = DESCRIPTION_COUNT_MAX - self.descriptions.len();
        self.descriptions
            .extend(other.descriptions.into_iter().take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: missing and wrong are counted apart and all of them, the first ones are described,
    /// and merging loses no count.
    #[test]
    fn all_are_counted_and_the_first_are_described() {
        let mut tally = Tally::default();
        for key in 0..6 {
            tally.judge(Verdict::Right);
            tally.judge(Verdict::Missing { key });
        }
        let mut other = tally.clone();
        other.wrong("broken");
        tally.merge(other);
        assert_eq!((tally.errors, tally.missing), (1, 12));
        assert_eq!(tally.descriptions.len(), DESCRIPTION_COUNT_MAX);
        assert_eq!(tally.descriptions[5], "key 5 is missing");
    }
}
