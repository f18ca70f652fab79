//! Exit statuses of commands, and reports of errors.

use std::process::ExitCode;

use farleaf::ErrorKind;

use crate::log::say;
use crate::output::StdoutClosed;

/// Exit status that shells report for a program that SIGINT ended.
pub(crate) const INTERRUPTED_STATUS: u8 = 130;

/// Outcome of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Everything was done as requested.
    Done,
    /// A requested key is absent, a benchmark found wrong results, or a cluster is degraded: status
    /// 1.
    Lacking,
    /// Nothing was found to compare with: status 3.
    Unjudged,
    /// A planted bug was not found: status 4.
    Unfound,
    /// Ctrl-C interrupted the command after it had printed its results so far: status 130, as if
    /// the signal had ended it.
    Interrupted,
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Done => Self::SUCCESS,
            Ending::Lacking => Self::FAILURE,
            Ending::Unjudged => Self::from(3),
            Ending::Unfound => Self::from(4),
            Ending::Interrupted => Self::from(INTERRUPTED_STATUS),
        }
    }
}

/// Arguments that are invalid whatever the pool holds: status 2, like those that the parser
/// rejects.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadArgument(pub(crate) String);

/// Prints the error on stderr and returns the exit status. A closed stdout, as with `head`, is not
/// an error.
pub(crate) fn tell(error: &anyhow::Error) -> ExitCode {
    if error
        .chain()
        .any(<dyn std::error::Error>::is::<StdoutClosed>)
    {
        return ExitCode::SUCCESS;
    }
    say(format_args!("error: {}", sentence(error)));
    ExitCode::from(if error.chain().any(is_argument_s_fault) {
        2
    } else {
        1
    })
}

fn is_argument_s_fault(error: &(dyn std::error::Error + 'static)) -> bool {
    let of_store = error.downcast_ref().map(farleaf::Error::kind);
    error.is::<BadArgument>()
        || matches!(
            of_store,
            Some(ErrorKind::BadAddress { .. } | ErrorKind::BadOption { .. })
        )
}

/// Returns the error and its causes in one line. Some errors quote their cause: such a cause is not
/// repeated.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;

    /// Promise: every cause is reported exactly once.
    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot reach it: {source}; is it there?")]
        struct Quoting {
            source: io::Error,
        }
        let quoting = Quoting {
            source: io::Error::other("no such thing"),
        };
        let error = Err::<(), _>(quoting)
            .context("cannot get key 7")
            .expect_err("an error");
        let text = sentence(&error);
        assert_eq!(
            text,
            "cannot get key 7: cannot reach it: no such thing; is it there?"
        );
        let error = Err::<(), _>(io::Error::other("inner"))
            .context("outer")
            .expect_err("an error");
        assert_eq!(sentence(&error), "outer: inner");
    }
}
