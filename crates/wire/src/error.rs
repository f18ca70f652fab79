//! What can go wrong, and whether a request may have been done then.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use farleaf_fabric::tcp::{Rights, SecretError};
use thiserror::Error;

use crate::cluster::{ClusterTag, shown};
use crate::greeting::WIRE_VERSION;

/// An operating failure of a listener or a connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Others than this host could connect, and there is no secret (W4).
    #[error(
        "{address} can be reached from other hosts, so who connects must prove to know a secret, \
         and none was given; give one (`farleaf secret new` makes one), or listen on loopback"
    )]
    NeedsSecret {
        /// Where it would listen.
        address: SocketAddr,
    },
    /// The system does not let us listen there.
    #[error("cannot listen at {address}: {source}; choose another address, or end who has it")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The secret for programs of this user cannot be left for them (W4).
    #[error(
        "cannot write the secret for this host's programs to {}: {source}; give a secret",
        path.display()
    )]
    LocalSecret {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A key that was derived from the secret (W1).
    #[error(
        "the secret for {address} is a derived key, which gives the right to {rights} in memory \
         nodes and nothing here; give the secret itself"
    )]
    DerivedKey {
        /// Of which listener or other side.
        address: String,
        /// What it gives.
        rights: Rights,
    },
    /// No thread can be started.
    #[error("cannot start to serve at {address}: {source}")]
    Start {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// The other side wants a secret, and there is none (W4).
    #[error(
        "{address} wants a secret, and none was given; give the one that it was started with (only \
         a listener on loopback that has made its own is let in to without)"
    )]
    NoSecret {
        /// Who.
        address: String,
    },
    /// What a listener on this host has left cannot be used (W4).
    #[error("{address} has left no secret that can be taken: {source}")]
    SecretFile {
        /// Who.
        address: String,
        /// What is wrong with it.
        source: SecretError,
    },
    /// Nobody listens there, or is not to be reached.
    #[error("cannot connect to {address}: {source}; look whether it is running, and reachable")]
    Connect {
        /// To whom.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// There was no greeting.
    #[error("{address} did not greet: {how}; look whether it is a server of Farleaf, and running")]
    Greeting {
        /// Who.
        address: String,
        /// What was met.
        how: String,
    },
    /// The other side is of another version (W3).
    #[error(
        "{address} speaks version {theirs} of the wire protocol and this program version \
         {WIRE_VERSION}; run the same version on both sides{}",
        said.as_ref().map_or(String::new(), |it| format!(" (it said: {it})"))
    )]
    Version {
        /// Who.
        address: String,
        /// Its version.
        theirs: u16,
        /// Why it has hung up, if it has.
        said: Option<String>,
    },
    /// The other side does not let us in.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// Who.
        address: String,
        /// What it said.
        reason: String,
    },
    /// The other side does not know the secret (W5).
    #[error(
        "{address} could not prove that it knows the secret, so nothing was asked of it; look who \
         listens there"
    )]
    NotProven {
        /// Who.
        address: String,
    },
    /// The other side belongs to another cluster than the one that is expected (W16).
    #[error(
        "{address} is a server of {}, and {expected} was expected: either the directory that it had \
         before was lost or replaced, or this is the address of another one; put that directory \
         back and start the server again, or give the right address", shown(*found)
    )]
    OtherCluster {
        /// Who.
        address: String,
        /// The one that was expected.
        expected: ClusterTag,
        /// The one that it belongs to.
        found: Option<ClusterTag>,
    },
    /// A request that the other side would not take; the connection goes on.
    #[error("a request to {address} has {size_bytes} bytes, and {size_bytes_max} are the most")]
    RequestTooLarge {
        /// To whom.
        address: String,
        /// Its size.
        size_bytes: usize,
        /// The size that there can be.
        size_bytes_max: usize,
    },
    /// A request did not leave whole, so it was not done (W9). The connection is of no more use.
    #[error("the request did not reach {address}: {how}; connect again")]
    NotSent {
        /// Whom.
        address: String,
        /// What was met.
        how: String,
    },
    /// No answer came in time: it was done, or is done yet, or never. The connection is of no more
    /// use, as the answer to this request could be taken for that to the next (W10).
    #[error("{address} gave no answer within {timeout:?}; what was asked may be done or not")]
    TimedOut {
        /// Who.
        address: String,
        /// How long it was waited for.
        timeout: Duration,
    },
    /// The connection ended, or broke, before the answer: it was done, or is done yet, or never.
    #[error("{address} gave no answer: {how}; what was asked may be done or not")]
    Lost {
        /// Who.
        address: String,
        /// What was met.
        how: String,
    },
    /// The other side has hung up and says why; the request that it is about may be done or not.
    #[error("{address} has ended the connection: {reason}; what was asked may be done or not")]
    HungUp {
        /// Who.
        address: String,
        /// What it said.
        reason: String,
    },
}

impl WireError {
    /// Whether the request surely was not and will not be done (W9), so that it may be sent
    /// elsewhere, or again.
    pub fn is_unsent(&self) -> bool {
        match self {
            Self::TimedOut { .. } | Self::Lost { .. } | Self::HungUp { .. } => false,
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
