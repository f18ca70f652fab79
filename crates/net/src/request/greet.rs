//! Client side of a greeting.

use std::io;
use std::time::{Duration, Instant};

use crate::request::channel::Channel;
use crate::request::cluster::ClusterTag;
use crate::request::error::NetError;
use crate::request::greeting::{Greeting, GreetingError, Message};
use crate::request::handshake::{CLIENT, OTHER, SERVER, nonce, receive_message, send_message};
use crate::secret::ProtocolKey;

/// Result of a successful greeting for a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerInfo {
    /// Largest size of a request in bytes.
    pub(crate) request_size_bytes_max: usize,
    /// Cluster of the server.
    pub(crate) cluster: Option<ClusterTag>,
}

/// Runs the client's side within a timeout. A server of another cluster than expected is an error.
pub(crate) fn greet(
    channel: &mut Channel,
    key: &ProtocolKey,
    address: &str,
    expected: Option<ClusterTag>,
    time: Duration,
) -> Result<ServerInfo, NetError> {
    let until = Instant::now() + time;
    let is_encrypted = channel.is_encrypted();
    let broken = |error: io::Error| {
        let address = address.to_owned();
        let how = match error.kind() {
            io::ErrorKind::TimedOut => format!("no message within {time:?}"),
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            io::ErrorKind::InvalidData if is_encrypted => {
                let how = how_tls_failed(&error);
                return NetError::Tls { address, how };
            }
            _ => error.to_string(),
        };
        NetError::Greeting { address, how }
    };
    channel.set_write_time(time).map_err(broken)?;
    let hello = Greeting::Hello {
        nonce: nonce().map_err(broken)?,
        expected,
    };
    // Reads even if writing failed: a server that rejects the client at once sends a reason without
    // reading the hello.
    let sent = send_message(channel, &hello);
    let received = receive_message(channel, until).map_err(broken)?;
    let (challenge, greeting) = interpret_message(received, address)?;
    let Greeting::Challenge {
        request_size_bytes_max,
        cluster,
        ..
    } = greeting
    else {
        return Err(out_of_order(address));
    };
    let hello = sent.map_err(broken)?;
    let binding = channel.binding().map_err(broken)?;
    let proof = key.prove(&[CLIENT, &hello, &challenge, &binding]);
    send_message(channel, &Greeting::Proof(proof)).map_err(broken)?;
    let received = receive_message(channel, until).map_err(broken)?;
    let (label, proof) = match interpret_message(received, address)?.1 {
        Greeting::Welcome(proof) => (SERVER, proof),
        Greeting::OtherCluster(proof) => (OTHER, proof),
        _ => return Err(out_of_order(address)),
    };
    let address = address.to_owned();
    channel.set_end(None);
    if !key.is_proven(&[label, &hello, &challenge, &binding], &proof) {
        return Err(NetError::NotProven { address });
    }
    match expected {
        Some(expected) if label == OTHER || cluster != Some(expected) => {
            Err(NetError::OtherCluster {
                address,
                expected,
                found: cluster,
            })
        }
        None if label == OTHER => Err(out_of_order(&address)),
        _ => Ok(ServerInfo {
            request_size_bytes_max: request_size_bytes_max as usize,
            cluster,
        }),
    }
}

/// Returns whether the peer is a memory node of a pool. Finds it out without a secret, by its reply
/// to a hello.
pub(crate) fn is_memory_node(channel: &mut Channel, time: Duration) -> bool {
    let until = Instant::now() + time;
    let mut ask = || {
        channel.set_write_time(time)?;
        let hello = Greeting::Hello {
            nonce: nonce()?,
            expected: None,
        };
        send_message(channel, &hello)?;
        receive_message(channel, until)
    };
    let decoded = |received: Result<Message, _>| received.and_then(|it| Greeting::decode(&it));
    matches!(ask().map(decoded), Ok(Err(GreetingError::MemoryNode)))
}

/// Describes an error of the TLS library for a client.
fn how_tls_failed(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|it| it.downcast_ref());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => "its reply is not encrypted: it has no \
            certificate (--tls-cert), or has rejected the connection"
            .to_owned(),
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("its certificate is not valid for this address and --tls-ca: {why}")
        }
        Some(rustls::Error::AlertReceived(alert)) => {
            format!("it ended the TLS handshake ({alert:?}); it may require a certificate")
        }
        _ => error.to_string(),
    }
}

fn failed(address: &str, how: String) -> NetError {
    let address = address.to_owned();
    NetError::Greeting { address, how }
}

fn out_of_order(address: &str) -> NetError {
    failed(address, "it sent a message out of order".to_owned())
}

/// Interprets a message that the client has received.
fn interpret_message(
    received: Result<Message, GreetingError>,
    address: &str,
) -> Result<(Message, Greeting), NetError> {
    let address = address.to_owned();
    let decoded = received.and_then(|message| Ok((message, Greeting::decode(&message)?)));
    match decoded {
        Ok((_, Greeting::Refusal(reason))) => Err(NetError::Refused { address, reason }),
        Ok(interpret_message) => Ok(interpret_message),
        Err(GreetingError::Foreign(begin)) => Err(failed(
            &address,
            format!("its reply is not in Farleaf's wire protocol (it begins with '{begin}')"),
        )),
        Err(GreetingError::MemoryNode) => Err(NetError::MemoryNode { address }),
        Err(GreetingError::Encrypted) => Err(failed(&address, "it uses TLS".to_owned())),
        Err(GreetingError::OtherProtocol(protocol)) => {
            Err(failed(&address, format!("it sent a request of {protocol}")))
        }
        Err(GreetingError::Malformed(what)) => Err(failed(&address, format!("it sent {what}"))),
        Err(GreetingError::Version { theirs, reason }) => Err(NetError::Version {
            address,
            theirs,
            // Omitted: servers of all versions send this text, and this program's error says the
            // same.
            reason: reason.filter(|it| !it.starts_with("this server speaks version ")),
        }),
    }
}
