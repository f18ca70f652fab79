//! Client side of a greeting, with a blocking socket.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use farleaf_base::foreign_protocol::PortKind;

use crate::greeting::{Accepted, GreetFailure, GreetingError, Transport, port_of};
use crate::request::channel::Channel;
use crate::request::cluster::ClusterTag;
use crate::request::details::{ChallengeDetails, WIRE, decode_welcome, encode_hello};
use crate::request::error::NetError;
use crate::secret::Secret;
use crate::tls::how_tls_failed;

/// Result of a successful greeting for a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerInfo {
    /// Largest size of a request in bytes.
    pub(crate) request_size_bytes_max: usize,
    /// Cluster of the server.
    pub(crate) cluster: Option<ClusterTag>,
}

/// Channel with a time limit.
struct Limited<'c> {
    channel: &'c mut Channel,
    until: Instant,
}

impl<'c> Limited<'c> {
    fn new(channel: &'c mut Channel, time: Duration) -> io::Result<Self> {
        channel.set_write_time(time)?;
        let until = Instant::now() + time;
        Ok(Self { channel, until })
    }
}

impl Transport for Limited<'_> {
    fn send_all(&mut self, from: &[u8]) -> io::Result<()> {
        self.channel.write_all(from)
    }

    fn receive_some(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.channel.read_until(to, self.until)
    }

    fn binding(&self) -> io::Result<Vec<u8>> {
        self.channel.binding()
    }

    fn is_encrypted(&self) -> bool {
        self.channel.is_encrypted()
    }
}

/// Runs the client's side within a timeout. A server of another cluster than expected is an error.
pub(crate) fn greet(
    channel: &mut Channel,
    secret: &Secret,
    address: &str,
    expected: Option<ClusterTag>,
    time: Duration,
) -> Result<ServerInfo, NetError> {
    let is_encrypted = channel.is_encrypted();
    let limited = Limited::new(channel, time).map_err(GreetFailure::from);
    let greeted = limited.and_then(|mut channel| {
        let details = encode_hello(expected);
        crate::greeting::greet(&mut channel, WIRE, secret, secret.rights(), details)
    });
    let accepted = greeted.map_err(|failure| match failure {
        GreetFailure::Broken(error) => broken(&error, address, time, is_encrypted),
        GreetFailure::Refused(reason) => NetError::Refused {
            address: address.to_owned(),
            reason,
        },
        GreetFailure::WrongSecret(reason) => NetError::WrongSecret {
            address: address.to_owned(),
            reason,
        },
        GreetFailure::Invalid(error) => invalid(error, address),
        GreetFailure::OutOfOrder => failed(address, "it sent a message out of order".to_owned()),
        GreetFailure::NotProven => NetError::NotProven {
            address: address.to_owned(),
        },
        GreetFailure::TooWeak => unreachable!("a key grants its own rights"),
    })?;
    channel.set_end(None);
    interpret(&accepted, address, expected)
}

/// Interprets what a server with the same secret has said.
fn interpret(
    accepted: &Accepted,
    address: &str,
    expected: Option<ClusterTag>,
) -> Result<ServerInfo, NetError> {
    let challenge = ChallengeDetails::decode(&accepted.challenge);
    let is_admitted = decode_welcome(&accepted.welcome);
    match expected {
        Some(expected) if !is_admitted || challenge.cluster != Some(expected) => {
            Err(NetError::OtherCluster {
                address: address.to_owned(),
                expected,
                found: challenge.cluster,
            })
        }
        None if !is_admitted => Err(failed(
            address,
            "it belongs to another cluster than expected, but none was expected".to_owned(),
        )),
        _ => Ok(ServerInfo {
            request_size_bytes_max: challenge.request_size_bytes_max as usize,
            cluster: challenge.cluster,
        }),
    }
}

/// Returns whether the peer is a memory node of a pool. Finds it out without a secret.
pub(crate) fn is_memory_node(channel: &mut Channel, time: Duration) -> bool {
    let limited = Limited::new(channel, time);
    limited.is_ok_and(|mut it| port_of(&mut it, WIRE) == Some(PortKind::MemoryNode))
}

fn broken(error: &io::Error, address: &str, time: Duration, is_encrypted: bool) -> NetError {
    let how = match error.kind() {
        io::ErrorKind::TimedOut => format!("no message within {time:?}"),
        io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        io::ErrorKind::InvalidData if is_encrypted => {
            return NetError::Tls {
                address: address.to_owned(),
                how: how_tls_failed(error),
            };
        }
        _ => error.to_string(),
    };
    failed(address, how)
}

fn failed(address: &str, how: String) -> NetError {
    let address = address.to_owned();
    NetError::Greeting { address, how }
}

/// Returns the error for a message that is none of this protocol.
fn invalid(error: GreetingError, address: &str) -> NetError {
    let owned = || address.to_owned();
    match error {
        GreetingError::Foreign(begin) => failed(
            address,
            format!("its reply is not in Farleaf's wire protocol (it begins with '{begin}')"),
        ),
        GreetingError::OtherPort(_) => NetError::MemoryNode { address: owned() },
        GreetingError::Encrypted => failed(address, "it uses TLS".to_owned()),
        GreetingError::OtherProtocol(protocol) => {
            failed(address, format!("it sent a request of {protocol}"))
        }
        GreetingError::Malformed(what) => failed(address, format!("it sent {what}")),
        GreetingError::Version { theirs } => NetError::Version {
            address: owned(),
            theirs,
        },
    }
}
