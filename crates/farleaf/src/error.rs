//! What can go wrong, for users.

use std::{fmt, io};

use farleaf_byte_index::{ByteIndexError, ByteLoadError};
use farleaf_fabric::verbs::{VerbsConnectError, VerbsError};
use farleaf_fabric::{BatchError, ControlError};
use farleaf_index::{IndexError, LoadError};
use farleaf_leaf::LeafError;
use farleaf_message::CallError;
use farleaf_node::NodeError;
use farleaf_region::{RegionError, SuperblockError};
use farleaf_types::NodeId;
use thiserror::Error;

use crate::partition::PartitionError;

/// An operating failure. Whether a key was there is never an error.
///
/// It is one pointer, so that results are cheap to hand through; [`kind`](Error::kind) tells which
/// failure it is.
#[derive(Debug)]
pub struct Error(Box<ErrorKind>);

/// Which failure it is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The address of a pool is none.
    #[error(
        "'{address}' is no pool address: take 'shm:NAME', 'tcp:HOST:PORT', 'verbs:HOST:PORT' or 'mem:' ({why})"
    )]
    BadAddress {
        /// What was given.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// The memory node cannot be reached, or said no.
    #[error(transparent)]
    Control(ControlError),
    /// This host has no verbs, or not as was asked for.
    #[error(transparent)]
    Verbs(VerbsError),
    /// A memory node inside this process cannot start.
    #[error(transparent)]
    Node(NodeError),
    /// The pool's memory cannot be mapped.
    #[error("cannot map the memory of {pool}: {source}")]
    Map {
        /// Which pool.
        pool: String,
        /// Why not.
        source: io::Error,
    },
    /// What was mapped is no region that this program can use.
    #[error("{pool} cannot be used: {source}")]
    Superblock {
        /// Which pool.
        pool: String,
        /// Why not.
        source: SuperblockError,
    },
    /// The pool has no such table.
    #[error("there is no table '{name}' in {pool}; `farleaf table list` shows what there is")]
    TableNotFound {
        /// The name.
        name: String,
        /// The pool.
        pool: String,
    },
    /// The pool has a table of this name already.
    #[error("there is a table '{name}' already ({difference})")]
    TableExists {
        /// The name.
        name: String,
        /// How it differs from what was asked for, or that it does not.
        difference: String,
    },
    /// The table was dropped, by this program or another.
    #[error("the table '{name}' was dropped")]
    TableDropped {
        /// The name.
        name: String,
    },
    /// The table's keys and values are of another kind than was asked for.
    #[error(
        "the table '{name}' has keys and values of kind '{kind}', where '{wanted}' is asked for"
    )]
    TableOfOtherKind {
        /// The name.
        name: String,
        /// What it has.
        kind: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// A table in the catalog needs something that this version does not have.
    #[error("the table '{name}' has {what}, which this version of farleaf does not know")]
    TableUnknown {
        /// The name.
        name: String,
        /// What is not known.
        what: String,
    },
    /// An option is out of range.
    #[error("{option} is {given}; {allowed}")]
    BadOption {
        /// Which one.
        option: &'static str,
        /// What was given.
        given: String,
        /// What may be given.
        allowed: String,
    },
    /// A write of this session was cut off in the middle, so the session was stopped.
    #[error(
        "the session is closed: a write on it was cancelled or failed half way, and may hold a \
         lock; open another session, others recover what this one held"
    )]
    SessionBroken,
    /// The session cannot be closed while operations of it are under way (F6).
    #[error("operations of the session are under way; it can be closed when they have ended")]
    SessionBusy,
    /// The memory node does not know the session: it has restarted, with empty memory, or has
    /// fenced the session.
    #[error(
        "the memory node does not know this session any more: it has restarted, or taken this \
         process for dead; open the pool again"
    )]
    SessionUnknown,
    /// The pool has no room.
    #[error(transparent)]
    Full(RegionError),
    /// A bulk load failed; the table is as it was.
    #[error(transparent)]
    Load(LoadError),
    /// A bulk load into a table of byte strings failed; the table is as it was.
    #[error(transparent)]
    ByteLoad(ByteLoadError),
    /// An operation on a table of byte strings failed.
    #[error(transparent)]
    Bytes(ByteIndexError),
    /// What a table has of a key, or its value, is not what its type is encoded as.
    #[error("the {what} is not of the type that the table was opened with: {source}")]
    Decode {
        /// Key or value.
        what: &'static str,
        /// What is wrong with it.
        source: farleaf_key::DecodeError,
    },
    /// A key that is longer than keys can be, once it is encoded.
    #[error(transparent)]
    KeyTooLong(farleaf_key::KeyTooLong),
    /// A value that is longer than values can be, once it is encoded.
    #[error(transparent)]
    ValueTooLong(farleaf_key::ValueTooLong),
    /// The memory node has no room for the records that it holds by itself.
    #[error(
        "the memory node has no room for more records of tables with the search layer 'rpc': \
         together they may take as many bytes as the pool's first node has, 64 for each of words, \
         and 160 beside key and value for each of bytes, those of unfinished loads among them; \
         delete records, drop tables, or serve a larger pool"
    )]
    NodeFull,
    /// The pool has no room for a leaf that the memory node needs for a write.
    #[error(
        "the pool has no room for another leaf of table '{name}'; nothing has changed; drop a \
         table, or serve a larger pool"
    )]
    NoLeaf {
        /// The table's name.
        name: String,
    },
    /// The memory node has forgotten what a load had sent: the session began too many others
    /// meanwhile.
    #[error(
        "the memory node has given up a load into table '{name}' before it was whole: a session \
         has four at a time; nothing of it was loaded, load again when the others have ended"
    )]
    LoadGivenUp {
        /// The table's name.
        name: String,
    },
    /// The memory node has forgotten what an operation had sent or was about to read in parts.
    #[error(
        "the memory node has given up a value or a load of table '{name}' before all of it was \
         sent or read: a session has 128 at a time"
    )]
    ValueGivenUp {
        /// The table's name.
        name: String,
    },
    /// A write has been done, and the value that was there before, which it was to tell, is too
    /// long for one reply, and the rest of it could not be read.
    #[error(
        "the write to table '{name}' has been done, but what was there before is lost: {source}"
    )]
    PreviousLost {
        /// The table's name.
        name: String,
        /// Why it could not be read.
        source: Error,
    },
    /// The memory node has no room for the rings by which a session calls it.
    #[error(
        "the pool has no room for this session to call the memory node: it takes a chunk of \
         64 KiB on the first node; drop tables, and try again"
    )]
    NoRings,
    /// A call of the memory node has no answer.
    #[error(transparent)]
    Call(CallError),
    /// What the memory node answered is none.
    #[error("the memory node sent {0}; is it a farleaf of the same version?")]
    BadReply(&'static str),
    /// A table over several pools cannot be used, or one of its parts failed.
    #[error(transparent)]
    Partition(PartitionError),
    /// The region's protocols failed.
    #[error(transparent)]
    Region(RegionError),
    /// An operation failed.
    #[error(transparent)]
    Index(IndexError),
    /// A node of the pool is gone for good, and what was on it. Keys whose leaves are on other
    /// nodes, and the way to them, too, can be used as before; what was asked of this one has done
    /// nothing that anybody will see.
    #[error(
        "node {number} of the pool has been lost, and what was on it; what other nodes hold and \
         lead to can still be used (`farleaf nodes list` shows the pool's nodes)"
    )]
    NodeLost {
        /// Its number.
        number: u8,
    },
    /// The fabric failed; the outcome of a write is unknown.
    #[error(transparent)]
    Fabric(BatchError),
    /// A thread could not be started.
    #[error("cannot start the thread that keeps this process's sessions: {0}")]
    Thread(io::Error),
}

impl Error {
    /// Which failure it is.
    pub fn kind(&self) -> &ErrorKind {
        &self.0
    }

    /// Which failure it is in its pool: that of the part, if an operation on a table over several
    /// pools failed in one ([`PartitionError::Part`] and its like); else the same as
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

    /// Whether it says that parts of a table over several pools are missing, or are another's.
    pub(crate) fn is_no_whole_table(&self) -> bool {
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

    /// Whether the fabric failed, so that nobody knows what has taken effect (F5).
    pub(crate) fn is_of_fabric(&self) -> bool {
        matches!(&*self.0, ErrorKind::Fabric(_) | ErrorKind::NodeLost { .. })
    }

    /// Whether a place of the catalog will be free when a grace period is over (C3).
    pub(crate) fn awaits_room(&self) -> bool {
        matches!(&*self.0, ErrorKind::Full(RegionError::CatalogFull { dropped_count, .. })
            if *dropped_count > 0)
    }

    /// The same error, with the table named if it says that a table was dropped.
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

impl From<RegionError> for Error {
    #[cold]
    fn from(error: RegionError) -> Self {
        let kind = match error {
            RegionError::Full { .. } | RegionError::CatalogFull { .. } => ErrorKind::Full(error),
            RegionError::Fabric(error) => return error.into(),
            RegionError::Control(error) => ErrorKind::Control(error),
            other => ErrorKind::Region(other),
        };
        kind.into()
    }
}

impl From<IndexError> for Error {
    #[cold]
    fn from(error: IndexError) -> Self {
        let kind = match error {
            IndexError::Region(error) | IndexError::Leaf(LeafError::Region(error)) => {
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
