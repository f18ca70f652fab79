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
    #[error("{0}; the record is left unchanged, and everything that depends on it is suspended")]
    Record(#[from] RecordError),
    /// The coordinator has no cluster.
    #[error(
        "the coordinator has no cluster; create one with `farleaf cluster init`, or correct the \
         address"
    )]
    NoCluster,
    /// The cluster was created by an older version, and has no 128-bit identifier.
    #[error(
        "{0} was created by an older version and has no 128-bit id, so its servers serve nothing \
         and delete nothing; run `farleaf cluster adopt` once, on this cluster's original \
         coordinator"
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
    #[error("{0} already has a 128-bit id; nothing was changed")]
    AdoptedAlready(ClusterId),
    /// An operator accepts the loss of a start that is not lost, as far as is known.
    #[error(
        "{0} is not known to be lost: no server refuses the coordinator's records because of it; \
         nothing was changed; `farleaf cluster status` shows which servers refuse the records, and \
         for which start"
    )]
    StartNotLost(StartNonce),
    /// A server refuses the coordinator's records as an older copy, so tables cannot be changed.
    #[error(
        "{server} refuses the coordinator's records as an older copy; nothing was changed; \
         `farleaf cluster status` shows the cause and the remedy"
    )]
    RecordsRefused {
        /// The first such server.
        server: ServerId,
    },
    /// Not enough numbers are left to skip those of lost records.
    #[error("no table or region numbers are left; nothing was changed")]
    NoNumbers,
    /// The coordinator already has a cluster.
    #[error("the coordinator already has {0}; nothing was changed")]
    ClusterExists(ClusterId),
    /// The coordinator has another cluster than the directory.
    #[error(
        "the directory belongs to {own}, but the coordinator has {found}; correct the address, or, \
         if that coordinator's directory was lost or replaced, restore it; no file was changed"
    )]
    OtherCluster {
        /// Cluster of the directory.
        own: ClusterId,
        /// Cluster of the coordinator.
        found: ClusterId,
    },
    /// Another server has the same number, and keeps its lease alive.
    #[error(
        "another {server} is registered at {address} and has kept its lease for {waited_s} s, but \
         each server needs its own number; stop one of the two, and give a new directory another \
         number (`--number`)"
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
    #[error("lease {lease:?} is longer than one day; choose a shorter one; nothing was started")]
    LeaseTooLong {
        /// Configured length.
        lease: Duration,
    },
    /// A table with this name exists.
    #[error("table '{0}' already exists")]
    TableExists(String),
    /// A server has a copy of a region whose number would be assigned again (CONTROL-23).
    #[error(
        "{server} has a copy of {region}, which is unknown to the coordinator: the coordinator's \
         data are older than that copy, or were truncated; nothing was changed; `farleaf cluster \
         status` shows what to do"
    )]
    UnknownCopy {
        /// The region of the copy.
        region: RegionId,
        /// The server.
        server: ServerId,
    },
    /// No table has this name.
    #[error("table '{0}' does not exist")]
    NoTable(String),
    /// No table has this number.
    #[error("{0} does not exist, or is being dropped")]
    NoTableNumbered(TableId),
    /// The server does not exist.
    #[error("{0} does not exist")]
    NoServer(ServerId),
    /// The requested table is invalid.
    #[error("{0}")]
    BadTable(String),
    /// The operating system provides no random number for a cluster's id.
    #[error("cannot generate a random id: {0}; retry")]
    NoRandomId(#[source] std::io::Error),
    /// Other processes changed the same records at each attempt.
    #[error("other processes keep changing the same records; nothing was done; retry")]
    Contended,
}
