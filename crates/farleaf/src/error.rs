//! Errors of the library's public interface.

use std::{fmt, io};

use farleaf_base::NodeId;
use farleaf_fabric::message::CallError;
use farleaf_fabric::verbs::{VerbsConnectError, VerbsError};
use farleaf_fabric::{BatchError, ControlError};
use farleaf_index::strings::{ByteIndexError, ByteLoadError};
use farleaf_index::{IndexError, LoadError};
use farleaf_leaf::words::LeafError;
use farleaf_node::NodeError;
use farleaf_pool::{PoolError, SuperblockError};
use thiserror::Error;

use crate::partition::PartitionError;

/// Error of an operation. An absent key is never an error.
///
/// One pointer in size, so that passing results is cheap; [`kind`](Error::kind) returns the cause.
#[derive(Debug)]
pub struct Error(Box<ErrorKind>);

/// Cause of an [`struct@Error`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address of a pool is invalid.
    #[error(
        "cannot use pool address '{address}': {why}; valid forms are 'shm:NAME', 'tcp:HOST:PORT', \
         'verbs:HOST:PORT' and 'mem:'"
    )]
    BadAddress {
        /// Rejected address.
        address: String,
        /// Reason for the rejection.
        why: String,
    },
    /// The memory node cannot be reached, or rejected the request.
    #[error(transparent)]
    Control(ControlError),
    /// Verbs are not available on this host, or not with the requested options.
    #[error(transparent)]
    Verbs(VerbsError),
    /// A memory node inside this process cannot start.
    #[error(transparent)]
    Node(NodeError),
    /// The pool's memory cannot be mapped.
    #[error("cannot map the memory of {pool}: {source}")]
    Map {
        /// Name of the pool.
        pool: String,
        /// Cause of the failure.
        source: io::Error,
    },
    /// The mapped memory is invalid or unsupported.
    #[error("{pool} cannot be used: {source}")]
    Superblock {
        /// Name of the pool.
        pool: String,
        /// Cause of the failure.
        source: SuperblockError,
    },
    /// The pool has no table of this name.
    #[error("table '{name}' does not exist in {pool}; `farleaf table list` lists the tables")]
    TableNotFound {
        /// Name of the table.
        name: String,
        /// Address of the pool.
        pool: String,
    },
    /// The pool already has a table of this name.
    #[error("table '{name}' already exists ({difference})")]
    TableExists {
        /// Name of the table.
        name: String,
        /// Difference between its options and the requested ones, or that there is none.
        difference: String,
    },
    /// The table was dropped, by this program or another.
    #[error("table '{name}' was dropped")]
    TableDropped {
        /// Name of the table.
        name: String,
    },
    /// The table's keys and values are of another kind than requested.
    #[error("table '{name}' has keys and values of kind '{kind}', but '{wanted}' was requested")]
    TableOfOtherKind {
        /// Name of the table.
        name: String,
        /// Kind of the table.
        kind: &'static str,
        /// Requested kind.
        wanted: &'static str,
    },
    /// A table in the catalog uses a feature that this version does not support.
    #[error("table '{name}' is not supported by this version of Farleaf: {what}")]
    TableUnknown {
        /// Name of the table.
        name: String,
        /// Unsupported feature.
        what: String,
    },
    /// An option is out of range.
    #[error("{option} is {given}; {allowed}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// Rejected value.
        given: String,
        /// Allowed values.
        allowed: String,
    },
    /// A write of this session was cancelled or failed halfway, so the session was closed.
    #[error(
        "the session is closed: a write on it was cancelled or failed midway, and may still hold a \
         lock, which other sessions recover; open another session"
    )]
    SessionBroken,
    /// The session cannot be closed while it has unfinished operations (FABRIC-6).
    #[error("the session has unfinished operations; close it after they have ended")]
    SessionBusy,
    /// The memory node does not know the session: it restarted with empty memory, or fenced the
    /// session.
    #[error(
        "unknown session: the memory node was restarted, or fenced the session because this \
         process appeared dead; open the pool again"
    )]
    SessionUnknown,
    /// The pool is out of memory.
    #[error(transparent)]
    Full(PoolError),
    /// A bulk load failed; the table is unchanged.
    #[error(transparent)]
    Load(LoadError),
    /// A bulk load into a table of byte strings failed; the table is unchanged.
    #[error(transparent)]
    ByteLoad(ByteLoadError),
    /// An operation on a table of byte strings failed.
    #[error(transparent)]
    Bytes(ByteIndexError),
    /// Stored bytes are not a valid encoding of the table's key or value type.
    #[error(
        "the {what} is not a valid encoding of the type that the table was opened with: {source}"
    )]
    Decode {
        /// Part of the record that failed: key or value.
        what: &'static str,
        /// Cause of the failure.
        source: farleaf_key::DecodeError,
    },
    /// The encoded key is longer than the limit.
    #[error(transparent)]
    KeyTooLong(farleaf_key::KeyTooLong),
    /// The encoded value is longer than the limit.
    #[error(transparent)]
    ValueTooLong(farleaf_key::ValueTooLong),
    /// The memory node is out of memory for the records that it stores itself.
    #[error(
        "the memory node is out of memory for records of tables with search layer 'rpc', which can \
         take as many bytes as the pool's first node has (64 bytes per record of words, 160 bytes \
         plus key and value per record of bytes, including unfinished loads); delete records, drop \
         tables, or serve a larger pool"
    )]
    NodeFull,
    /// The pool is out of memory for a leaf that the memory node needs for a write.
    #[error(
        "the pool is out of space for another leaf of table '{name}'; nothing has changed; drop a \
         table, or serve a larger pool"
    )]
    PoolFullForLeaf {
        /// Name of the table.
        name: String,
    },
    /// The memory node discarded the data of a load because the session began too many others
    /// meanwhile.
    #[error(
        "the memory node discarded an incomplete load into table '{name}': a session can have four \
         loads at a time; nothing was loaded; retry after the other loads have ended"
    )]
    LoadDiscarded {
        /// Name of the table.
        name: String,
    },
    /// The memory node discarded the data that an operation had sent, or was about to read, in
    /// parts.
    #[error(
        "the memory node discarded a value or a load of table '{name}' before it was sent or read \
         completely: a session can have 128 of them at a time; run fewer operations at a time"
    )]
    ValueDiscarded {
        /// Name of the table.
        name: String,
    },
    /// A write took effect, but its previous value, too long for one reply, could not be read
    /// completely.
    #[error(
        "the write to table '{name}' took effect, but the previous value could not be read: \
         {source}"
    )]
    PreviousLost {
        /// Name of the table.
        name: String,
        /// Cause of the failed read.
        source: Error,
    },
    /// The memory node is out of memory for the rings by which a session calls it.
    #[error(
        "the pool is out of space for this session's calls to the memory node, which need a chunk \
         of 64 KiB on the first node; drop tables, then retry"
    )]
    NoRings,
    /// A call to the memory node failed.
    #[error(transparent)]
    Call(CallError),
    /// The memory node sent an invalid reply.
    #[error("invalid reply from the memory node: {0}; check that it runs the same version")]
    BadReply(&'static str),
    /// A table over several pools cannot be used, or one of its parts failed.
    #[error(transparent)]
    Partition(PartitionError),
    /// A protocol on the pool's memory failed.
    #[error(transparent)]
    Pool(PoolError),
    /// An operation failed.
    #[error(transparent)]
    Index(IndexError),
    /// A node of the pool is permanently lost, with its data. Keys whose leaves and search path are
    /// on other nodes remain usable. The failed operation has had no visible effect.
    #[error(
        "node {number} of the pool is lost, with the data on it; keys whose leaves and search path \
         are on other nodes remain usable; `farleaf nodes list` shows the pool's nodes"
    )]
    NodeLost {
        /// Number of the node.
        number: u8,
    },
    /// The fabric failed; the outcome of a write is unknown.
    #[error(transparent)]
    Fabric(BatchError),
    /// A thread could not be started.
    #[error("cannot start the thread that maintains this process's sessions: {0}")]
    Thread(io::Error),
}

impl Error {
    /// Returns the cause of the error.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// Returns the cause within the pool. If an operation on a table over several pools failed in
    /// one part ([`PartitionError::Part`] and similar), this is the part's cause; else the same as
    /// [`kind`](Self::kind).
    pub fn kind_in_pool(&self) -> &ErrorKind {
        match self.kind() {
            ErrorKind::Partition(
                PartitionError::Part { source, .. }
                | PartitionError::PartlyLoaded { source, .. }
                | PartitionError::Pool { source, .. },
            ) => source.kind_in_pool(),
            other => other,
        }
    }

    /// Returns whether parts of a table over several pools are missing or belong to another table.
    pub(crate) fn is_incomplete_table(&self) -> bool {
        use PartitionError::{HalfThere, NotPart, OtherCount, OtherPlace, OtherTable};
        match self.kind() {
            ErrorKind::Partition(error) => matches!(
                error,
                HalfThere { .. }
                    | NotPart { .. }
                    | OtherCount { .. }
                    | OtherPlace { .. }
                    | OtherTable { .. }
            ),
            other => matches!(other, ErrorKind::TableNotFound { .. }),
        }
    }

    /// Returns whether the fabric failed, so that the outcome is unknown (FABRIC-5).
    pub(crate) fn is_fabric_error(&self) -> bool {
        matches!(&*self.0, ErrorKind::Fabric(_) | ErrorKind::NodeLost { .. })
    }

    /// Returns whether a catalog entry becomes free when a grace period ends.
    pub(crate) fn awaits_free_entry(&self) -> bool {
        matches!(&*self.0, ErrorKind::Full(PoolError::CatalogFull { dropped_count, .. })
            if *dropped_count > 0)
    }

    /// Adds the table's name to an error that reports a dropped table.
    pub(crate) fn of_table(self, name: &str) -> Self {
        match *self.0 {
            ErrorKind::Index(IndexError::Leaf(LeafError::TableDropped { .. })) => {
                ErrorKind::TableDropped {
                    name: name.to_owned(),
                }
                .into()
            }
            _ => self,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl From<ErrorKind> for Error {
    #[cold]
    fn from(kind: ErrorKind) -> Self {
        Self(Box::new(kind))
    }
}

impl From<PoolError> for Error {
    #[cold]
    fn from(error: PoolError) -> Self {
        let kind = match error {
            PoolError::Full { .. } | PoolError::CatalogFull { .. } => ErrorKind::Full(error),
            PoolError::Fabric(error) => return error.into(),
            PoolError::Control(error) => ErrorKind::Control(error),
            other => ErrorKind::Pool(other),
        };
        kind.into()
    }
}

impl From<IndexError> for Error {
    #[cold]
    fn from(error: IndexError) -> Self {
        let kind = match error {
            IndexError::Pool(error) | IndexError::Leaf(LeafError::Pool(error)) => {
                return (*error).into();
            }
            IndexError::Fabric(error) | IndexError::Leaf(LeafError::Fabric(error)) => {
                return error.into();
            }
            IndexError::Leaf(LeafError::SessionBroken) => ErrorKind::SessionBroken,
            other => ErrorKind::Index(other),
        };
        kind.into()
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Index(error) => error.into(),
            other => ErrorKind::Load(other).into(),
        }
    }
}

impl From<VerbsConnectError> for Error {
    #[cold]
    fn from(error: VerbsConnectError) -> Self {
        let kind = match error {
            VerbsConnectError::Verbs(error) => ErrorKind::Verbs(error),
            VerbsConnectError::Control(error) => ErrorKind::Control(error),
        };
        kind.into()
    }
}

macro_rules! from_source {
    ($($source:ty => $kind:ident),*) => {
        $(impl From<$source> for Error {
            #[cold]
            fn from(error: $source) -> Self {
                ErrorKind::$kind(error).into()
            }
        })*
    };
}

from_source!(
    ControlError => Control,
    NodeError => Node,
    PartitionError => Partition,
    farleaf_key::KeyTooLong => KeyTooLong,
    farleaf_key::ValueTooLong => ValueTooLong
);

impl From<ByteIndexError> for Error {
    #[cold]
    fn from(error: ByteIndexError) -> Self {
        match error {
            ByteIndexError::Index(error) => error.into(),
            other => ErrorKind::Bytes(other).into(),
        }
    }
}

impl From<ByteLoadError> for Error {
    fn from(error: ByteLoadError) -> Self {
        match error {
            ByteLoadError::Index(error) => error.into(),
            other => ErrorKind::ByteLoad(other).into(),
        }
    }
}

impl From<BatchError> for Error {
    #[cold]
    fn from(error: BatchError) -> Self {
        match error.lost_node() {
            Some(NodeId(number)) => ErrorKind::NodeLost { number },
            None => ErrorKind::Fabric(error),
        }
        .into()
    }
}
