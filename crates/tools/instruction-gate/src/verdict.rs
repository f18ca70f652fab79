//! Verdict: compares measurements with expectations, and formats the result.

use std::fmt;

use crate::expectation::{Expectation, Expectations};

/// Result of a case compared with its expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Within the tolerance.
    Ok,
    /// More instructions than the tolerance permits: a regression.
    Above,
    /// Fewer instructions than the tolerance permits: an improvement that must be recorded.
    /// Otherwise the next regression up to the old number would not be noticed.
    Below,
    /// The case has no expectation yet.
    Unexpected,
}

impl Outcome {
    /// Compares a measured number of instructions per operation with its expectation; a deviation
    /// equal to the tolerance passes.
    pub fn of(expected: Option<&Expectation>, measured: f64) -> Outcome {
        let Some(expected) = expected else {
            return Outcome::Unexpected;
        };
        let change = change_percent(expected, measured);
        if change > expected.tolerance_percent {
            Outcome::Above
        } else if change < -expected.tolerance_percent {
            Outcome::Below
        } else {
            Outcome::Ok
        }
    }

    fn remark(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Above => "ABOVE the tolerance: more instructions",
            Outcome::Below => "BELOW the tolerance: fewer instructions; record them with --bless",
            Outcome::Unexpected => "no expectation; record one with --bless",
        }
    }
}

fn change_percent(expected: &Expectation, measured: f64) -> f64 {
    (measured / expected.instructions_per_operation - 1.0) * 100.0
}

/// Line of the table.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    case: String,
    expected: Option<Expectation>,
    measured: f64,
}

/// Measured cases with their expectations; its `Display` is the printed table.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    rows: Vec<Row>,
    unmeasured: Vec<String>,
}

impl Comparison {
    /// Compares each measured case (name, instructions per operation) with its expectation.
    pub fn new<'a>(
        expectations: &Expectations,
        measured: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Comparison {
        let rows: Vec<Row> = measured
            .into_iter()
            .map(|(case, measured)| Row {
                case: case.to_owned(),
                expected: expectations.get(case).copied(),
                measured,
            })
            .collect();
        let is_unmeasured = |name: &&String| rows.iter().all(|row| row.case != **name);
        let unmeasured = expectations.keys().filter(is_unmeasured).cloned().collect();
        Comparison { rows, unmeasured }
    }

    /// Returns whether every case is within its tolerance and every expectation has its case.
    pub fn passes(&self) -> bool {
        let within = |row: &Row| Outcome::of(row.expected.as_ref(), row.measured) == Outcome::Ok;
        self.unmeasured.is_empty() && self.rows.iter().all(within)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case_width = self
            .rows
            .iter()
            .map(|row| row.case.len())
            .max()
            .unwrap_or(0)
            .max(4);
        writeln!(formatter, "instructions per operation")?;
        writeln!(
            formatter,
            "{:case_width$}  {:>10}  {:>10}  {:>8}  verdict",
            "case", "expected", "measured", "change"
        )?;
        for row in &self.rows {
            let outcome = Outcome::of(row.expected.as_ref(), row.measured);
            let (expected, change) = match &row.expected {
                Some(expected) => (
                    format!("{:.1}", expected.instructions_per_operation),
                    format!("{:+.2} %", change_percent(expected, row.measured)),
                ),
                None => ("-".to_owned(), "-".to_owned()),
            };
            writeln!(
                formatter,
                "{:case_width$}  {expected:>10}  {:>10.1}  {change:>8}  {}",
                row.case,
                row.measured,
                outcome.remark()
            )?;
        }
        for case in &self.unmeasured {
            writeln!(
                formatter,
                "{case}: unknown case in expected.toml; remove it with --bless"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Expectation = Expectation {
        instructions_per_operation: 100.0,
        tolerance_percent: 2.0,
    };

    /// Promise: the gate checks both directions, and a deviation equal to the tolerance passes.
    #[test]
    fn outcome_follows_the_tolerance_in_both_directions() {
        let outcome = |measured| Outcome::of(Some(&EXPECTED), measured);
        assert_eq!(outcome(102.1), Outcome::Above);
        assert_eq!(outcome(101.9), Outcome::Ok);
        assert_eq!(outcome(100.0), Outcome::Ok);
        assert_eq!(outcome(98.1), Outcome::Ok);
        assert_eq!(outcome(97.9), Outcome::Below);
        assert_eq!(Outcome::of(None, 100.0), Outcome::Unexpected);
    }

    /// Promise: one case out of tolerance, one without expectation or one expectation without case
    /// fails the whole comparison, and the table names it.
    #[test]
    fn a_comparison_passes_only_when_everything_matches() {
        let expectations = Expectations::from([("get".to_owned(), EXPECTED)]);
        assert!(Comparison::new(&expectations, [("get", 100.0)]).passes());
        for (measured, remark) in [
            (vec![("get", 110.0)], "ABOVE"),
            (vec![("get", 90.0)], "BELOW"),
            (vec![("get", 100.0), ("put", 1.0)], "no expectation"),
            (vec![], "unknown case"),
        ] {
            let comparison = Comparison::new(&expectations, measured);
            assert!(!comparison.passes(), "{comparison}");
            assert!(comparison.to_string().contains(remark), "{comparison}");
        }
    }
}
