//! Runs a case under callgrind and reads its number of instructions.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Case;

/// First argument that puts the gate's executable into child mode, followed by the case's name and
/// the operation count.
pub const CHILD_FLAG: &str = "--run-case-as-child";

/// Reason why a case has no count.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    /// The valgrind program could not be started.
    #[error("cannot start valgrind: {0}")]
    Start(#[source] io::Error),
    /// Valgrind, or the child under it, ended with an error.
    #[error("valgrind failed on case '{case}' with {status}:\n{diagnostics}")]
    Failed {
        /// Case that was run.
        case: &'static str,
        /// Exit status in the system's words.
        status: String,
        /// Standard error of valgrind and the child.
        diagnostics: String,
    },
    /// The profile does not have callgrind's format.
    #[error("callgrind profile of case '{case}' has no valid '{missing}' line")]
    Unreadable {
        /// Case that was run.
        case: &'static str,
        /// Line that is missing.
        missing: &'static str,
    },
    /// No instruction was collected: no function has the case's name.
    #[error(
        "callgrind did not enter `{function}` of case '{case}'; check that the function exists and \
         is not inlined"
    )]
    NeverEntered {
        /// Case that was run.
        case: &'static str,
        /// Function that was expected.
        function: &'static str,
    },
}

/// Returns whether `valgrind` is a program on the path. Any other failure is an error of
/// [`count_instructions`], not a reason to skip.
pub fn is_installed() -> bool {
    let probe = Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    !matches!(probe, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Runs `executable` in child mode under callgrind. Returns the instructions executed in the case's
/// measured function, including callees, over all `operation_count` operations together.
pub fn count_instructions(
    executable: &Path,
    case: &Case,
    operation_count: u64,
) -> Result<u64, CountError> {
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        // Into the pipe: there is no file to remove if one of the processes fails.
        .arg("--callgrind-out-file=/dev/stdout")
        .arg(format!("--toggle-collect={}", case.toggle_pattern()))
        // Without it valgrind leaves named pipes for a debugger in the temporary directory.
        .arg("--vgdb=no")
        .arg("--quiet")
        .args([executable.as_os_str(), OsStr::new(CHILD_FLAG), OsStr::new(case.name)])
        .arg(operation_count.to_string())
        .stdin(Stdio::null())
        .output()
        .map_err(CountError::Start)?;
    if !output.status.success() {
        return Err(CountError::Failed {
            case: case.name,
            status: output.status.to_string(),
            diagnostics: String::from_utf8_lossy(&output.stderr).into_owned(),
        });
    }
    let profile = String::from_utf8_lossy(&output.stdout);
    match total_instructions(&profile) {
        Ok(0) => Err(CountError::NeverEntered {
            case: case.name,
            function: case.function,
        }),
        Ok(instruction_count) => Ok(instruction_count),
        Err(missing) => Err(CountError::Unreadable {
            case: case.name,
            missing,
        }),
    }
}

/// Returns the total of a callgrind profile, or the name of the missing line.
///
/// `events:` must list `Ir` (instructions read) first. A profile may contain several parts, one per
/// dump, each with its `summary:`; `totals:` covers the part that it ends. The parts are added up.
fn total_instructions(profile: &str) -> Result<u64, &'static str> {
    let values = |key: &'static str| {
        profile
            .lines()
            .filter_map(move |line| line.strip_prefix(key))
    };
    let first_word = |text: &str| text.split_whitespace().next().map(str::to_owned);
    if values("events:").next().and_then(first_word).as_deref() != Some("Ir") {
        return Err("events:");
    }
    let key = if values("totals:").next().is_some() {
        "totals:"
    } else {
        "summary:"
    };
    let mut total = None;
    for value in values(key) {
        let part: u64 = first_word(value)
            .and_then(|word| word.parse().ok())
            .ok_or(key)?;
        total = Some(total.unwrap_or(0) + part);
    }
    total.ok_or("totals:")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the total is read from `totals:`, or from `summary:` if an old callgrind writes
    /// only that, and parts add up.
    #[test]
    fn totals_are_read_from_either_line() {
        let both = "events: Ir\nfn=(1) f\n3 500\ntotals: 1234\nsummary: 99\n";
        assert_eq!(total_instructions(both), Ok(1234));
        assert_eq!(total_instructions("events: Ir\nsummary: 99\n"), Ok(99));
        assert_eq!(
            total_instructions("events: Ir\ntotals: 1\ntotals: 2\n"),
            Ok(3)
        );
    }

    /// Promise: a file that is not a profile of instructions gives the missing line and no number.
    #[test]
    fn a_profile_without_instructions_is_refused() {
        assert_eq!(total_instructions(""), Err("events:"));
        assert_eq!(
            total_instructions("events: Dr Ir\ntotals: 1 2\n"),
            Err("events:")
        );
        assert_eq!(total_instructions("events: Ir\n"), Err("totals:"));
        assert_eq!(
            total_instructions("events: Ir\ntotals: many\n"),
            Err("totals:")
        );
    }
}
