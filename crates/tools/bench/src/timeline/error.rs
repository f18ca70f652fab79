//! Errors that prevent a run.

use std::io;

/// Error that prevents a run or ends it. Wrong answers of the store are not among them: the report
/// counts these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimelineError {
    /// An option is out of range.
    #[error("--{option} is {given}: it must be {allowed}")]
    BadOption {
        /// Name of the option on the command line.
        option: &'static str,
        /// Value that was given.
        given: String,
        /// Permitted values.
        allowed: String,
    },
    /// The host has not enough memory.
    #[error(
        "not enough memory: {key_count} keys need {needed_bytes} bytes, and the host has \
         {available_bytes} bytes available; use fewer keys or a smaller --size"
    )]
    TooLarge {
        /// Number of keys that ever exist.
        key_count: u64,
        /// Bytes that pool and keys need.
        needed_bytes: u64,
        /// Bytes that are available.
        available_bytes: u64,
    },
    /// The store failed outside of the counted operations.
    #[error("the store failed while {activity}: {source}")]
    Store {
        /// Activity that failed.
        activity: &'static str,
        /// Cause of the failure.
        source: Box<farleaf::Error>,
    },
    /// A thread could not be started.
    #[error("cannot start {thread_count} threads: {source}; use fewer --threads")]
    Thread {
        /// Number of threads that were requested.
        thread_count: usize,
        /// Error of the system.
        source: io::Error,
    },
}

impl TimelineError {
    /// Returns the error of an out-of-range option.
    pub(super) fn bad(
        option: &'static str,
        given: impl ToString + Copy,
        allowed: impl Into<String>,
    ) -> Self {
        Self::BadOption {
            option,
            given: given.to_string(),
            allowed: allowed.into(),
        }
    }

    /// Returns a converter for `map_err`: the store failed during `activity`.
    pub(super) fn store(activity: &'static str) -> impl FnOnce(farleaf::Error) -> Self {
        move |source| Self::Store {
            activity,
            source: Box::new(source),
        }
    }
}
