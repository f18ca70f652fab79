//! What can go wrong with a cluster.

use std::time::Duration;

use thiserror::Error;

use crate::coordinator::CoordinatorError;
use crate::ids::{ClusterId, RegionId, ServerId, StartNonce, TableId};
use crate::record::RecordError;

/// An operating failure of the control plane.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The coordinator, or the way to it.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// A record cannot be decoded.
    #[error("{0}; it is left as it is, and what depends on it stands still")]
    Record(#[from] RecordError),
    /// The coordinator knows no cluster.
    #[error("the coordinator knows no cluster: create one, or give the right address")]
    NoCluster,
    /// The cluster was created by an older version, and has no 128-bit identifier (ID1).
    #[error(
        "{0} was created by an older version and has no 128-bit id, so its servers serve nothing \
         and delete nothing: run `farleaf cluster adopt` once, at the coordinator that has always \
         been this cluster's"
    )]
    NotAdopted(ClusterId),
    /// The cluster of an older version has a 128-bit identifier by now, and the directory not yet.
    #[error("{formerly} was adopted as {cluster}")]
    AdoptedAs {
        /// What it was.
        formerly: ClusterId,
        /// What it is.
        cluster: ClusterId,
    },
    /// The cluster has a 128-bit identifier.
    #[error("{0} has a 128-bit id already; nothing was changed")]
    AdoptedAlready(ClusterId),
    /// An operator would accept the loss of a start that is not lost, as far as is known (ID5).
    #[error(
        "no server refuses the coordinator's records because of {0}, so nothing of that start is \
         known to be lost; nothing was changed. `farleaf cluster status` shows which servers refuse \
         the records, and names the start"
    )]
    StartNotLost(StartNonce),
    /// A server refuses the coordinator's records as an older copy (ID5), so no table changes.
    #[error(
        "{server} refuses the coordinator's records as an older copy, so nothing was changed: \
         `farleaf cluster status` says why, and what to do"
    )]
    RecordsRefused {
        /// The first one that does.
        server: ServerId,
    },
    /// There are no numbers left to skip those of records that were lost.
    #[error("the numbers of tables or regions have come to their end; nothing was changed")]
    NoNumbers,
    /// The coordinator has a cluster already.
    #[error("the coordinator has {0} already; nothing was changed")]
    ClusterExists(ClusterId),
    /// The coordinator has another cluster than the one that a directory belongs to.
    #[error(
        "the directory belongs to {own}, and the coordinator has {found}: give the right address, \
         or, if the directory of that coordinator was lost or replaced, put it back; no file was \
         changed"
    )]
    OtherCluster {
        /// Whose the directory is.
        own: ClusterId,
        /// What was found.
        found: ClusterId,
    },
    /// Another server has this number, too, and keeps its lease.
    #[error(
        "{server} is another server, too, which has registered at {address} and keeps its lease \
         ({waited_s} s were waited): each has a number of its own; stop one of the two, and give a \
         new directory another number (`--number`)"
    )]
    NumberTaken {
        /// Which number.
        server: ServerId,
        /// Where the other one says that it is reached.
        address: String,
        /// For how long its lease was seen to go on.
        waited_s: u64,
    },
    /// A server would register with a lease that nobody would read.
    #[error(
        "no lease is longer than a day, and {lease:?} is: give a shorter one; nothing was begun"
    )]
    LeaseTooLong {
        /// How long it was to be.
        lease: Duration,
    },
    /// A name is taken.
    #[error("there is a table {0} already")]
    TableExists(String),
    /// CP23: a server has a copy of a region that would be given its number again.
    #[error(
        "{server} has a copy of {region}, of which the coordinator has never heard: its data are \
         older than that copy, or were cut; `farleaf cluster status` says what to do; nothing was \
         changed"
    )]
    UnknownCopy {
        /// Of which region.
        region: RegionId,
        /// Which server.
        server: ServerId,
    },
    /// Nothing has this name.
    #[error("there is no table {0}")]
    NoTable(String),
    /// Nothing has this number.
    #[error("there is no {0}, or it is being dropped")]
    NoTableNumbered(TableId),
    /// A server is not there.
    #[error("there is no {0}")]
    NoServer(ServerId),
    /// A table cannot be as it was asked for.
    #[error("{0}")]
    BadTable(String),
    /// No random number can be had for a cluster's id.
    #[error("no id can be drawn: {0}; try again")]
    NoIdentity(#[source] std::io::Error),
    /// Others have written the same records again and again.
    #[error("others keep changing what is to be changed; nothing was done, try again")]
    Contended,
}
