//! Errors of the control plane.

use std::time::Duration;

use thiserror::Error;

use crate::coordinator::CoordinatorError;
use crate::ids::{ClusterId, RegionId, ServerId, StartNonce, TableId};
use crate::record::RecordError;

/// Error of the control plane.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The coordinator, or the connection to it, failed.
    #[error(transparent)]
    Coordinator(#[from] CoordinatorError),
    /// A record cannot be decoded.
    #[error("{0}; it is left as it is, and what depends on it stands still")]
    Record(#[from] RecordError),
    /// The coordinator has no cluster.
    #[error("the coordinator knows no cluster: create one, or give the right address")]
    NoCluster,
    /// The cluster was created by an older version, and has no 128-bit identifier.
    #[error(
        "{0} was created by an older version and has no 128-bit id, so its servers serve nothing \
         and delete nothing: run `farleaf cluster adopt` once, at the coordinator that has always \
         been this cluster's"
    )]
    NotAdopted(ClusterId),
    /// The cluster was adopted and has a 128-bit identifier, but the directory still has the legacy
    /// one.
    #[error("{formerly} was adopted as {cluster}")]
    AdoptedAs {
        /// Legacy identifier.
        formerly: ClusterId,
        /// Current identifier.
        cluster: ClusterId,
    },
    /// The cluster already has a 128-bit identifier.
    #[error("{0} has a 128-bit id already; nothing was changed")]
    AdoptedAlready(ClusterId),
    /// An operator accepts the loss of a start that is not lost, as far as is known.
    #[error(
        "no server refuses the coordinator's records because of {0}, so nothing of that start is \
         known to be lost; nothing was changed. `farleaf cluster status` shows which servers refuse \
         the records, and names the start"
    )]
    StartNotLost(StartNonce),
    /// A server refuses the coordinator's records as an older copy, so tables cannot be changed.
    #[error(
        "{server} refuses the coordinator's records as an older copy, so nothing was changed: \
         `farleaf cluster status` says why, and what to do"
    )]
    RecordsRefused {
        /// The first such server.
        server: ServerId,
    },
    /// Not enough numbers are left to skip those of lost records.
    #[error("the numbers of tables or regions have come to their end; nothing was changed")]
    NoNumbers,
    /// The coordinator already has a cluster.
    #[error("the coordinator has {0} already; nothing was changed")]
    ClusterExists(ClusterId),
    /// The coordinator has another cluster than the directory.
    #[error(
        "the directory belongs to {own}, and the coordinator has {found}: give the right address, \
         or, if the directory of that coordinator was lost or replaced, put it back; no file was \
         changed"
    )]
    OtherCluster {
        /// Cluster of the directory.
        own: ClusterId,
        /// Cluster of the coordinator.
        found: ClusterId,
    },
    /// Another server has the same number, and keeps its lease alive.
    #[error(
        "{server} is another server, too, which has registered at {address} and keeps its lease \
         ({waited_s} s were waited): each has a number of its own; stop one of the two, and give a \
         new directory another number (`--number`)"
    )]
    NumberTaken {
        /// The number.
        server: ServerId,
        /// Address of the other server.
        address: String,
        /// Time for which the other server's lease was seen to continue, in seconds.
        waited_s: u64,
    },
    /// The configured lease is longer than readers accept.
    #[error(
        "no lease is longer than a day, and {lease:?} is: give a shorter one; nothing was begun"
    )]
    LeaseTooLong {
        /// Configured length.
        lease: Duration,
    },
    /// A table with this name exists.
    #[error("there is a table {0} already")]
    TableExists(String),
    /// A server has a copy of a region whose number would be assigned again (CONTROL-23).
    #[error(
        "{server} has a copy of {region}, of which the coordinator has never heard: its data are \
         older than that copy, or were cut; `farleaf cluster status` says what to do; nothing was \
         changed"
    )]
    UnknownCopy {
        /// The region of the copy.
        region: RegionId,
        /// The server.
        server: ServerId,
    },
    /// No table has this name.
    #[error("there is no table {0}")]
    NoTable(String),
    /// No table has this number.
    #[error("there is no {0}, or it is being dropped")]
    NoTableNumbered(TableId),
    /// The server does not exist.
    #[error("there is no {0}")]
    NoServer(ServerId),
    /// The requested table is invalid.
    #[error("{0}")]
    BadTable(String),
    /// The operating system provides no random number for a cluster's id.
    #[error("no id can be drawn: {0}; try again")]
    NoRandomId(#[source] std::io::Error),
    /// Other processes changed the same records at each attempt.
    #[error("others keep changing what is to be changed; nothing was done, try again")]
    Contended,
}
