//! Errors of listeners and connections, which tell whether a request may have been executed.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::secret::{Rights, SecretError, WEAK_SECRET};
use crate::stream::why_not_bound;
use thiserror::Error;

use crate::request::cluster::{ClusterTag, name_of};
use crate::request::details::WIRE_VERSION;

/// Error of a listener or a connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetError {
    /// Other hosts can connect to the listener, and it has no secret.
    #[error(
        "{address} can be reached from other hosts, so a secret is required; set one (`farleaf \
         secret new` creates one), or listen on a loopback address"
    )]
    NeedsSecret {
        /// Address of the listener.
        address: SocketAddr,
    },
    /// The system does not allow listening at this address.
    #[error("cannot listen at {address}: {}", why_not_bound(source))]
    Bind {
        /// Address of the listener.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The secret for programs of this user cannot be stored.
    #[error(
        "cannot write the secret for this host's programs to '{}': {source}; set a secret",
        path.display()
    )]
    LocalSecret {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Other hosts could connect, and the secret could be guessed.
    #[error("{address} {WEAK_SECRET}")]
    WeakSecret {
        /// Address to listen at.
        address: SocketAddr,
    },
    /// A listener was given a derived key as its secret.
    #[error(
        "the server at {address} needs the secret itself, and was given a derived key, which grants \
         '{rights}'; use the text that `farleaf secret new` printed"
    )]
    DerivedKey {
        /// Address to listen at.
        address: SocketAddr,
        /// Rights of the key.
        rights: Rights,
    },
    /// No thread can be started.
    #[error("cannot start the server at {address}: {source}")]
    Start {
        /// Address of the listener.
        address: SocketAddr,
        /// Error of the system.
        source: io::Error,
    },
    /// The server requires a secret, and none was given.
    #[error(
        "{address} requires a secret, and none was given; use the secret that the server was \
         started with (only a server on loopback that has created its own secret needs none)"
    )]
    NoSecret {
        /// Address of the server.
        address: String,
    },
    /// The secret that a listener on this host has stored cannot be used.
    #[error("cannot use the secret that {address} stored on this host: {source}")]
    SecretFile {
        /// Address of the server.
        address: String,
        /// Problem with the secret.
        source: SecretError,
    },
    /// No process listens at the address, or it cannot be reached.
    #[error(
        "cannot connect to {address}: {source}; check that the server is running and reachable"
    )]
    Connect {
        /// Address of the server.
        address: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A memory node of a pool listens at the address.
    #[error(
        "{address} is a memory node of a pool, not a server of a cluster; use --pool tcp:{address}"
    )]
    MemoryNode {
        /// Address of the memory node.
        address: String,
    },
    /// The connection cannot be encrypted.
    #[error("cannot encrypt the connection to {address}: {how}")]
    Tls {
        /// Address of the server.
        address: String,
        /// Cause of the failure.
        how: String,
    },
    /// The server sent no valid greeting.
    #[error("handshake with {address} failed: {how}; check that a Farleaf server is running there")]
    Greeting {
        /// Address of the server.
        address: String,
        /// Cause of the failure.
        how: String,
    },
    /// The server speaks another version of the protocol.
    #[error(
        "{address} uses version {theirs} of the wire protocol, and this program uses version \
         {WIRE_VERSION}; run the same version on both sides"
    )]
    Version {
        /// Address of the server.
        address: String,
        /// Version of the server.
        theirs: u16,
    },
    /// The server knows another secret than the client.
    #[error("{address} refused the connection: {reason}")]
    WrongSecret {
        /// Address of the server.
        address: String,
        /// Reason that the server gave.
        reason: String,
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
        "{address} did not prove that it has the secret, so no request was sent; check which \
         process listens there"
    )]
    NotProven {
        /// Address of the server.
        address: String,
    },
    /// The server belongs to another cluster than expected.
    #[error(
        "{address} belongs to {}, expected {expected}: the server's directory was lost or \
         replaced, or the address is wrong; restore the directory and restart the server, or use \
         the right address", name_of(*found)
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
    #[error(
        "a request of {size_bytes} bytes to {address} is too large: the limit is {size_bytes_max}"
    )]
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
    /// The server has no memory for the request, gave the reason and closed the connection. The
    /// request was not executed.
    #[error("{address} did not execute the request: {reason}")]
    Busy {
        /// Address of the server.
        address: String,
        /// Reason that the server gave.
        reason: String,
    },
    /// No reply came in time: the request may have been executed, or may still be. The connection
    /// is no longer usable, because this reply could be taken for that to the next request.
    #[error("no reply from {address} within {timeout:?}; the request may have been executed")]
    TimedOut {
        /// Address of the server.
        address: String,
        /// Timeout of the reply.
        timeout: Duration,
    },
    /// The connection ended or broke before the reply: the request may have been executed, or may
    /// still be.
    #[error("no reply from {address}: {how}; the request may have been executed")]
    Lost {
        /// Address of the server.
        address: String,
        /// Cause of the failure.
        how: String,
    },
    /// The server closed the connection and gave a reason; the request may have been executed.
    #[error("{address} closed the connection: {reason}; the request may have been executed")]
    ClosedByServer {
        /// Address of the server.
        address: String,
        /// Reason that the server gave.
        reason: String,
    },
}

impl NetError {
    /// Returns whether the request certainly is not executed, so that it can be retried, also on
    /// another server.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::Lost { .. } | Self::ClosedByServer { .. } => false,
            Self::NeedsSecret { .. }
            | Self::Bind { .. }
            | Self::LocalSecret { .. }
            | Self::WeakSecret { .. }
            | Self::DerivedKey { .. }
            | Self::Start { .. }
            | Self::NoSecret { .. }
            | Self::SecretFile { .. }
            | Self::Connect { .. }
            | Self::MemoryNode { .. }
            | Self::Tls { .. }
            | Self::Greeting { .. }
            | Self::Version { .. }
            | Self::WrongSecret { .. }
            | Self::Refused { .. }
            | Self::NotProven { .. }
            | Self::OtherCluster { .. }
            | Self::RequestTooLarge { .. }
            | Self::NotSent { .. }
            | Self::Busy { .. } => true,
        }
    }
}
