//! The log on stderr.

use std::fmt::Display;
use std::io::{IsTerminal, Write, stderr};

use tracing::Level;
use tracing_subscriber::EnvFilter;

/// Overrides what is logged, in the syntax of `RUST_LOG`.
const FILTER_VARIABLE: &str = "FARLEAF_LOG";

/// Starts logging everything of at least this level, with time stamps in UTC.
pub(crate) fn start(level: Level) {
    let filter = EnvFilter::builder().with_default_directive(level.into());
    let said = std::env::var(FILTER_VARIABLE).unwrap_or_default();
    let filter = filter.parse(&said).unwrap_or_else(|error| {
        say(format_args!(
            "warning: {FILTER_VARIABLE}='{said}' is not used: {error}"
        ));
        EnvFilter::new(level.as_str())
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal())
        .with_target(false)
        // Nobody may be listening; that must not end the thread that has something to say.
        .log_internal_errors(false)
        .init();
}

/// Writes a line to standard error if that can be done: a closed or full one is no reason to fail,
/// which is what the standard macro does then.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}
