//! Errors of listeners and connections, which tell whether a request may have been executed.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use farleaf_fabric::tcp::{Rights, SecretError};
use thiserror::Error;

use crate::cluster::{ClusterTag, shown};
use crate::greeting::WIRE_VERSION;

/// Error of a listener or a connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Other hosts can connect to the listener, and it has no secret.
    #[error(
        "{address} can be reached from other hosts, so who connects must prove to know a secret, \
         and none was given; give one (`farleaf secret new` makes one), or listen on loopback"
    )]
    NeedsSecret {
        /// Address of the listener.
        address: SocketAddr,
    },
    /// The system does not allow listening at this address.
    #[error("cannot listen at {address}: {source}; choose another address, or end who has it")]
    Bind {
        /// Address of the listener.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The secret for programs of this user cannot be stored.
    #[error(
        "cannot write the secret for this host's programs to {}: {source}; give a secret",
        path.display()
    )]
    LocalSecret {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The secret is a derived key, which does not open connections of this protocol.
    #[error(
        "the secret for {address} is a derived key, which gives the right to {rights} in memory \
         nodes and nothing here; give the secret itself"
    )]
    DerivedKey {
        /// Address of the listener or server.
        address: String,
        /// Rights that the key grants.
        rights: Rights,
    },
    /// No thread can be started.
    #[error("cannot start to serve at {address}: {source}")]
    Start {
        /// Address of the listener.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The server requires a secret, and none was given.
    #[error(
        "{address} wants a secret, and none was given; give the one that it was started with (only \
         a listener on loopback that has made its own is let in to without)"
    )]
    NoSecret {
        /// Address of the server.
        address: String,
    },
    /// The secret that a listener on this host has stored cannot be used.
    #[error("{address} has left no secret that can be taken: {source}")]
    SecretFile {
        /// Address of the server.
        address: String,
        /// Problem with the secret.
        source: SecretError,
    },
    /// No process listens at the address, or it cannot be reached.
    #[error("cannot connect to {address}: {source}; look whether it is running, and reachable")]
    Connect {
        /// Address of the server.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The server sent no valid greeting.
    #[error("{address} did not greet: {how}; look whether it is a server of Farleaf, and running")]
    Greeting {
        /// Address of the server.
        address: String,
        /// Cause of the failure.
        how: String,
    },
    /// The server speaks another version of the protocol.
    #[error(
        "{address} speaks version {theirs} of the wire protocol and this program version \
         {WIRE_VERSION}; run the same version on both sides{}",
        said.as_ref().map_or(String::new(), |it| format!(" (it said: {it})"))
    )]
    Version {
        /// Address of the server.
        address: String,
        /// Version of the server.
        theirs: u16,
        /// Reason that the server gave for closing the connection, if any.
        said: Option<String>,
    },
    /// The server rejects the client.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// Address of the server.
        address: String,
        /// Reason that the server gave.
        reason: String,
    },
    /// The server did not prove that it knows the secret.
    #[error(
        "{address} could not prove that it knows the secret, so nothing was asked of it; look who \
         listens there"
    )]
    NotProven {
        /// Address of the server.
        address: String,
    },
    /// The server belongs to another cluster than expected.
    #[error(
        "{address} is a server of {}, and {expected} was expected: either the directory that it had \
         before was lost or replaced, or this is the address of another one; put that directory \
         back and start the server again, or give the right address", shown(*found)
    )]
    OtherCluster {
        /// Address of the server.
        address: String,
        /// Expected cluster.
        expected: ClusterTag,
        /// Cluster of the server.
        found: Option<ClusterTag>,
    },
    /// The request is larger than the server accepts; the connection stays usable.
    #[error("a request to {address} has {size_bytes} bytes, and {size_bytes_max} are the most")]
    RequestTooLarge {
        /// Address of the server.
        address: String,
        /// Size of the request in bytes.
        size_bytes: usize,
        /// Largest size in bytes.
        size_bytes_max: usize,
    },
    /// The request was not sent completely, so it is not executed. The connection is no longer
    /// usable.
    #[error("the request did not reach {address}: {how}; connect again")]
    NotSent {
        /// Address of the server.
        address: String,
        /// Cause of the failure.
        how: String,
    },
    /// No reply came in time: the request may have been executed, or may still be. The connection
    /// is no longer usable, because this reply could be taken for that to the next request.
    #[error("{address} gave no answer within {timeout:?}; what was asked may be done or not")]
    TimedOut {
        /// Address of the server.
        address: String,
        /// Timeout of the reply.
        timeout: Duration,
    },
    /// The connection ended or broke before the reply: the request may have been executed, or may
    /// still be.
    #[error("{address} gave no answer: {how}; what was asked may be done or not")]
    Lost {
        /// Address of the server.
        address: String,
        /// Cause of the failure.
        how: String,
    },
    /// The server closed the connection and gave a reason; the request may have been executed.
    #[error("{address} has ended the connection: {reason}; what was asked may be done or not")]
    ClosedByServer {
        /// Address of the server.
        address: String,
        /// Reason that the server gave.
        reason: String,
    },
}

impl WireError {
    /// Returns whether the request certainly is not executed, so that it can be retried, also on
    /// another server.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::Lost { .. } | Self::ClosedByServer { .. } => false,
            Self::NeedsSecret { .. }
            | Self::Bind { .. }
            | Self::LocalSecret { .. }
            | Self::DerivedKey { .. }
            | Self::Start { .. }
            | Self::NoSecret { .. }
            | Self::SecretFile { .. }
            | Self::Connect { .. }
            | Self::Greeting { .. }
            | Self::Version { .. }
            | Self::Refused { .. }
            | Self::NotProven { .. }
            | Self::OtherCluster { .. }
            | Self::RequestTooLarge { .. }
            | Self::NotSent { .. } => true,
        }
    }
}
