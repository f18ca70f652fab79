//! Counts of faults, with descriptions of the first ones.

use std::fmt::Display;

use crate::verify::Verdict;

/// Number of faults that are described; the others are only counted.
pub(crate) const DESCRIPTION_COUNT_MAX: usize = 8;

/// Faults of a run. As long as there are none, counting costs a comparison and no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultCounts {
    /// Operations that failed or returned a wrong answer.
    pub(crate) errors: u64,
    /// Operations, or keys of the final check, that did not find an existing record.
    pub(crate) missing: u64,
    /// Puts that the store refused, of a table that changes.
    pub(crate) refused: u64,
    /// Descriptions of the first faults.
    pub(crate) descriptions: Vec<String>,
}

impl FaultCounts {
    /// Counts the result of a check.
    #[inline]
    pub(crate) fn count_verdict(&mut self, verdict: Verdict) {
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

    /// Counts a wrong answer.
    #[cold]
    pub(crate) fn wrong(&mut self, description: impl Display) {
        self.errors += 1;
        self.describe(&description);
    }

    /// Counts the value of a key if it is not the expected one.
    #[inline]
    pub(crate) fn count_value(
        &mut self,
        key: u64,
        found: Option<u64>,
        expected: u64,
        may_be_absent: bool,
    ) {
        match found {
            Some(found) if found != expected => self.wrong_value(key, found),
            None if !may_be_absent => self.count_verdict(Verdict::Missing { key }),
            _ => {}
        }
    }

    /// Counts a wrong value of a key.
    #[cold]
    pub(crate) fn wrong_value(&mut self, key: u64, found: u64) {
        self.wrong(format_args!("key {key} has the wrong value {found:#018x}"));
    }

    /// Counts a failed operation on a key.
    #[cold]
    pub(crate) fn failed(&mut self, what: impl Display, key: u64, error: &dyn Display) {
        self.wrong(format_args!("{what} of key {key} failed: {error}"));
    }

    /// Counts a put that the store refused.
    #[cold]
    pub(crate) fn refused(&mut self, key: u64, error: &dyn Display) {
        self.refused += 1;
        self.describe(&format_args!("put of key {key} was rejected: {error}"));
    }

    /// Describes a fault, if it is one of the first.
    fn describe(&mut self, fault: &dyn Display) {
        if self.descriptions.len() < DESCRIPTION_COUNT_MAX {
            self.descriptions.push(fault.to_string());
        }
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: Self) {
        self.errors += other.errors;
        self.missing += other.missing;
        self.refused += other.refused;
        let free_count = DESCRIPTION_COUNT_MAX - self.descriptions.len();
        self.descriptions
            .extend(other.descriptions.into_iter().take(free_count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: missing and wrong answers are counted separately and completely, the first ones are
    /// described, and merging loses no count.
    #[test]
    fn all_are_counted_and_the_first_are_described() {
        let mut fault_counts = FaultCounts::default();
        for key in 0..6 {
            fault_counts.count_verdict(Verdict::Right);
            fault_counts.count_verdict(Verdict::Missing { key });
        }
        let mut other = fault_counts.clone();
        other.wrong("broken");
        fault_counts.merge(other);
        assert_eq!((fault_counts.errors, fault_counts.missing), (1, 12));
        assert_eq!(fault_counts.descriptions.len(), DESCRIPTION_COUNT_MAX);
        assert_eq!(fault_counts.descriptions[5], "key 5 is missing");
    }
}
