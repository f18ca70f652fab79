//! What keeps a table from being watched.

use std::io;

/// What keeps a run from being made or finished. Wrong answers of the store are none of these: they
/// are counted in the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimelineError {
    /// An option is out of range.
    #[error("--{option} is {given}: it must be {allowed}")]
    BadOption {
        /// Its name on the command line.
        option: &'static str,
        /// What was given.
        given: String,
        /// What may be given.
        allowed: String,
    },
    /// The host has not enough memory.
    #[error(
        "{key_count} keys need {needed_bytes} bytes, and the host has {available_bytes} available: \
         take fewer, or a smaller --size"
    )]
    TooLarge {
        /// Keys that are ever there.
        key_count: u64,
        /// What pool and keys need.
        needed_bytes: u64,
        /// What there is.
        available_bytes: u64,
    },
    /// The store failed outside of the operations that are counted.
    #[error("the store failed while {activity}: {source}")]
    Store {
        /// While doing what.
        activity: &'static str,
        /// How it failed.
        source: Box<farleaf::Error>,
    },
    /// A thread could not be started.
    #[error("cannot start {thread_count} threads ({source}): take fewer --threads")]
    Thread {
        /// How many were asked for.
        thread_count: usize,
        /// What the system said.
        source: io::Error,
    },
}

impl TimelineError {
    /// An option that is out of range.
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

    /// For `map_err`: the store failed while doing `activity`.
    pub(super) fn store(activity: &'static str) -> impl FnOnce(farleaf::Error) -> Self {
        move |source| Self::Store {
            activity,
            source: Box::new(source),
        }
    }
}
