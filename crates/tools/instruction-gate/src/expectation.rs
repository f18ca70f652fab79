//! Expectations: `expected.toml` with the instructions per operation of each case.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::Deserialize;

/// Tolerance of a case that is blessed for the first time.
pub const DEFAULT_TOLERANCE_PERCENT: f64 = 2.0;

/// Expectation of one case.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Instructions of one operation.
    pub instructions_per_operation: f64,
    /// Greatest permitted deviation of the measured number, in either direction.
    pub tolerance_percent: f64,
}

/// Expectations by case name.
pub type Expectations = BTreeMap<String, Expectation>;

/// Errors of reading or writing the expectations.
#[derive(Debug, thiserror::Error)]
pub enum ExpectationError {
    /// The file could not be read or written.
    #[error("cannot read or write '{path}'")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The text is not a table of cases, or has invalid numbers.
    #[error("expected.toml: {0}")]
    Content(String),
}

/// Returns the path of this crate's expectations in the source tree from which it was built.
pub fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("expected.toml")
}

/// Reads the expectations; a missing file is an error, not an empty table.
pub fn read(path: &Path) -> Result<Expectations, ExpectationError> {
    let text = fs::read_to_string(path).map_err(|source| ExpectationError::File {
        path: path.to_owned(),
        source,
    })?;
    parse(&text)
}

/// Replaces the file by these expectations, in the order of their names.
pub fn write(path: &Path, expectations: &Expectations) -> Result<(), ExpectationError> {
    fs::write(path, render(expectations)).map_err(|source| ExpectationError::File {
        path: path.to_owned(),
        source,
    })
}

fn parse(text: &str) -> Result<Expectations, ExpectationError> {
    let expectations: Expectations =
        toml::from_str(text).map_err(|error| ExpectationError::Content(error.to_string()))?;
    for (name, expectation) in &expectations {
        let Expectation {
            instructions_per_operation,
            tolerance_percent,
        } = *expectation;
        // A NaN or an infinity would make a comparison that never fails.
        if !(instructions_per_operation.is_finite() && instructions_per_operation > 0.0) {
            return Err(ExpectationError::Content(format!(
                "{name}: instructions_per_operation must be a positive number"
            )));
        }
        if !(0.0..100.0).contains(&tolerance_percent) {
            return Err(ExpectationError::Content(format!(
                "{name}: tolerance_percent must be from 0 to below 100"
            )));
        }
    }
    Ok(expectations)
}

fn render(expectations: &Expectations) -> String {
    let mut text = String::from(
        "# Instructions per operation, as callgrind counts them in a build of profile `gate`.\n\
         # Written by `cargo run --profile gate --locked -p farleaf-instruction-gate -- --bless`.\n",
    );
    for (name, expectation) in expectations {
        let Expectation {
            instructions_per_operation,
            tolerance_percent,
        } = expectation;
        let _ = write!(
            text,
            "\n[{name}]\n\
             instructions_per_operation = {instructions_per_operation:.1}\n\
             tolerance_percent = {tolerance_percent:.1}\n"
        );
    }
    text
}

/// Returns the expectations after blessing: the measurements, with the tolerances that were set by
/// hand. Cases that no longer exist are dropped.
pub fn blessed<'a>(
    old: &Expectations,
    measured: impl IntoIterator<Item = (&'a str, f64)>,
) -> Expectations {
    let bless = |(name, instructions_per_operation): (&str, f64)| {
        let tolerance_percent = old
            .get(name)
            .map_or(DEFAULT_TOLERANCE_PERCENT, |old| old.tolerance_percent);
        (
            name.to_owned(),
            Expectation {
                instructions_per_operation,
                tolerance_percent,
            },
        )
    };
    measured.into_iter().map(bless).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expectation(instructions_per_operation: f64, tolerance_percent: f64) -> Expectation {
        Expectation {
            instructions_per_operation,
            tolerance_percent,
        }
    }

    /// Promise: the next run reads back what `--bless` writes.
    #[test]
    fn rendered_expectations_parse_to_the_same() {
        let expectations = Expectations::from([
            ("a".to_owned(), expectation(12.5, 2.0)),
            ("b_c".to_owned(), expectation(1000.0, 0.5)),
        ]);
        assert_eq!(parse(&render(&expectations)).unwrap(), expectations);
    }

    /// Promise: numbers with which the gate would pass everything are refused.
    #[test]
    fn senseless_numbers_are_refused() {
        for (count, tolerance) in [
            ("nan", "2.0"),
            ("0.0", "2.0"),
            ("5.0", "nan"),
            ("5.0", "100.0"),
        ] {
            let text = format!(
                "[a]\ninstructions_per_operation = {count}\ntolerance_percent = {tolerance}"
            );
            assert!(parse(&text).is_err(), "{text}");
        }
        let misspelt = "[a]\ninstructions_per_operation = 5.0\ntolerance_precent = 2.0";
        assert!(parse(misspelt).is_err());
    }

    /// Promise: blessing keeps a tolerance set by hand, gives a new case the default, and drops a
    /// removed case.
    #[test]
    fn blessing_keeps_tolerances_and_drops_gone_cases() {
        let old = Expectations::from([
            ("old".to_owned(), expectation(10.0, 7.0)),
            ("gone".to_owned(), expectation(10.0, 7.0)),
        ]);
        let new = blessed(&old, [("old", 11.0), ("new", 3.0)]);
        let wanted = Expectations::from([
            ("old".to_owned(), expectation(11.0, 7.0)),
            (
                "new".to_owned(),
                expectation(3.0, DEFAULT_TOLERANCE_PERCENT),
            ),
        ]);
        assert_eq!(new, wanted);
    }
}
