//! What can go wrong with an operation on a persistent table.

use farleaf_cluster::ClusterError;
use farleaf_wire::WireError;
use thiserror::Error;

/// An operation that did not come to an end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The coordinator, or its records.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The table was dropped.
    #[error("there is no table {name} any more; nothing was done")]
    TableGone {
        /// Which.
        name: String,
    },
    /// The handle is of another table than the one that is there now (ID4).
    #[error(
        "table {name} was replaced: this handle belongs to an earlier table with the same number. \
         Nothing was written; open the table again."
    )]
    OtherTable {
        /// Which.
        name: String,
    },
    /// The table was made by an older version, and its cluster is not adopted yet (ID4).
    #[error(
        "table {name} was created by an older version: run `farleaf cluster adopt` once, at the \
         coordinator that has always been this cluster's"
    )]
    NotAdopted {
        /// Which.
        name: String,
    },
    /// Nobody serves the key, and did not for as long as was waited.
    #[error(
        "nobody has served the key for {waited_ms} ms: {last}; nothing was done. `farleaf cluster \
         status` says whether its servers are up, and what it waits for"
    )]
    NotServed {
        /// For how long it was tried.
        waited_ms: u64,
        /// What was met last.
        last: String,
    },
    /// A write has no answer, or one that does not tell: it is there, or not, or will be yet.
    #[error("what was written may be there or not: {how}")]
    OutcomeUnknown {
        /// What was met.
        how: String,
    },
    /// A server refuses the request: it always will, or its disk is full.
    #[error("{how}; nothing was done")]
    Refused {
        /// Why.
        how: String,
    },
    /// A server could not read what it was asked for.
    #[error("{server} could not read: {how}")]
    Failed {
        /// Which, and where.
        server: String,
        /// Why.
        how: String,
    },
    /// What a server has answered is none of the protocol's answers.
    #[error("{server} gave no answer that can be: {how}; is it of the same version?")]
    Malformed {
        /// Which, and where.
        server: String,
        /// What it is.
        how: String,
    },
    /// A key or a value is longer than it can be.
    #[error("a {what} has {size_bytes} bytes, and can have {size_bytes_max}; nothing was done")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// How long it is.
        size_bytes: usize,
        /// How long it can be.
        size_bytes_max: usize,
    },
}

impl ClientError {
    /// The same, of a call that has several parts, when the first ones were done.
    pub(crate) fn behind(self, done_count: u64) -> Self {
        if done_count == 0 {
            return self;
        }
        Self::OutcomeUnknown {
            how: format!("{done_count} records were written, and then: {self}"),
        }
    }

    /// Whether what was asked for may have been done all the same.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, Self::OutcomeUnknown { .. })
    }
}

/// What a failure on the way to a server means: what is asked is a read, or a write.
pub(crate) fn unknown(server: &str, error: &WireError) -> ClientError {
    ClientError::OutcomeUnknown {
        how: format!("{server}: {error}"),
    }
}
