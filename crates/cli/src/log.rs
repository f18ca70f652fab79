//! The log on stderr.

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};

use tracing::Level;
use tracing_subscriber::EnvFilter;

/// Environment variable that overrides the log filter, in the syntax of `RUST_LOG`.
const FILTER_VARIABLE: &str = "FARLEAF_LOG";

/// Returns whether to use colors: on a terminal that supports them, unless the user has set
/// `NO_COLOR` (see no-color.org).
fn wants_colours(is_terminal: bool, no_color: Option<&OsStr>, terminal: Option<&OsStr>) -> bool {
    is_terminal
        && no_color.is_none_or(OsStr::is_empty)
        && terminal.is_none_or(|terminal| terminal != "dumb")
}

/// Starts logging at this level and above, with UTC timestamps.
pub(crate) fn start(level: Level) {
    let filter = EnvFilter::builder().with_default_directive(level.into());
    let value = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    let filter = filter.parse(&value).unwrap_or_else(|error| {
        say(format_args!(
            "warning: ignoring invalid {FILTER_VARIABLE}='{value}': {error}"
        ));
        EnvFilter::new(level.as_str())
    });
    let (no_color, terminal) = (std::env::var_os("NO_COLOR"), std::env::var_os("TERM"));
    let has_colours = wants_colours(
        stderr().is_terminal(),
        no_color.as_deref(),
        terminal.as_deref(),
    );
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(has_colours)
        .with_target(false)
        // Standard error may be closed; that must not end the thread that logs.
        .log_internal_errors(false)
        .init();
}

/// Writes a line to standard error. Unlike the standard macro, ignores a closed or full one.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: colours only on a terminal, none on one named `dumb`, none where `NO_COLOR` is set
    /// and not empty.
    #[test]
    fn colours_are_for_terminals_whose_users_want_them() {
        let wants = |is_terminal, no_color: Option<&str>, terminal: Option<&str>| {
            wants_colours(
                is_terminal,
                no_color.map(OsStr::new),
                terminal.map(OsStr::new),
            )
        };
        assert!(wants(true, None, Some("xterm")));
        assert!(wants(true, Some(""), Some("xterm")));
        assert!(wants(true, None, None));
        assert!(!wants(true, Some("1"), Some("xterm")));
        assert!(!wants(true, Some("0"), Some("xterm")), "any value counts");
        assert!(!wants(true, None, Some("dumb")));
        assert!(!wants(false, None, Some("xterm")));
    }
}
