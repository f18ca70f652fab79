//! Errors of operations on persistent tables.

use farleaf_cluster::ClusterError;
use thiserror::Error;

/// Error of an operation on a persistent table.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The coordinator failed, or its records are invalid.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The table was dropped.
    #[error("table '{name}' was dropped; nothing was done")]
    TableGone {
        /// Name of the table.
        name: String,
    },
    /// The handle belongs to an earlier table that had the same number.
    #[error(
        "table '{name}' was replaced: this handle belongs to an earlier table with the same \
         number; nothing was written; open the table again"
    )]
    OtherTable {
        /// Name of the table.
        name: String,
    },
    /// The table was created by an older version, and its cluster has not been adopted yet
    /// (`farleaf cluster adopt`).
    #[error(
        "table '{name}' was created by an older version; run `farleaf cluster adopt` once, on this \
         cluster's original coordinator"
    )]
    NotAdopted {
        /// Name of the table.
        name: String,
    },
    /// The key's region had no primary until the operation timed out. Nothing was done.
    #[error(
        "timed out after {waited_ms} ms: {last}; nothing was done; `farleaf cluster status` shows \
         whether the region's servers are up, and what it waits for"
    )]
    NotServed {
        /// Duration of the retries in milliseconds.
        waited_ms: u64,
        /// Result of the last attempt.
        last: String,
    },
    /// A write has no reply, or an invalid one: it may have taken effect, or may still.
    #[error("the write may or may not have taken effect: {how}")]
    OutcomeUnknown {
        /// Cause of the failure.
        how: String,
    },
    /// A server rejects the request: permanently, or because its disk is full.
    #[error("{how}; nothing was done")]
    Refused {
        /// Reason for the rejection.
        how: String,
    },
    /// A server failed to read data.
    #[error("read failed on {server}: {how}")]
    Failed {
        /// Number and address of the server.
        server: String,
        /// Cause of the failure.
        how: String,
    },
    /// A server sent an invalid reply.
    #[error("invalid reply from {server}: {how}; check that it runs the same version")]
    Malformed {
        /// Number and address of the server.
        server: String,
        /// Problem with the reply.
        how: String,
    },
    /// A key or a value is longer than the limit.
    #[error("the {what} has {size_bytes} bytes; the limit is {size_bytes_max}; nothing was done")]
    TooLong {
        /// Part of the record that is too long: key or value.
        what: &'static str,
        /// Size of the key or value in bytes.
        size_bytes: usize,
        /// Largest allowed size in bytes.
        size_bytes_max: usize,
    },
}

impl ClientError {
    /// Converts the error of a later part of an operation whose first parts have taken effect.
    pub(crate) fn behind(self, done_count: u64) -> Self {
        if done_count == 0 {
            return self;
        }
        Self::OutcomeUnknown {
            how: format!("{done_count} records were written before this error: {self}"),
        }
    }

    /// Returns whether the operation may have taken effect in spite of the error.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::OutcomeUnknown { .. })
    }
}
