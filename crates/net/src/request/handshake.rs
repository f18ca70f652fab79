//! Greeting: the sequence of messages, and the proofs.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::secret::{ProtocolKey, Secret, fill_randomly};
use farleaf_base::foreign_protocol::{ForeignProtocol, PortKind};

use rustix::net::RecvFlags;

use crate::request::channel::Channel;
use crate::request::cluster::{ClusterTag, Membership};
use crate::request::error::NetError;
use crate::request::greeting::{
    Greeting, GreetingError, MESSAGE_SIZE_BYTES, Message, Token, WIRE_VERSION,
};
use crate::request::socket::{is_timeout, set_read_time};
use crate::tls::TlsServer;

/// Name of this protocol, which separates its keys and files from those of others.
pub(crate) const PROTOCOL: &str = "wire";
/// Longest time for a greeting.
const GREETING_TIME_MAX: Duration = Duration::from_secs(5);
/// Delay before a wrong proof is answered.
const WRONG_PROOF_DELAY: Duration = Duration::from_secs(1);
/// Longest time, and most reads, for the rest of a request of another protocol.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);
const DRAIN_READ_COUNT_MAX: u32 = 64;
const DRAIN_SIZE_BYTES: usize = 1024;

/// First bytes of a TLS connection: a handshake record of version 3.
const TLS_HANDSHAKE: [u8; 2] = [22, 3];

const CLIENT: &[u8] = b"farleaf wire client";
const SERVER: &[u8] = b"farleaf wire server";
const OTHER: &[u8] = b"farleaf wire others";
const _: () = assert!(CLIENT.len() == SERVER.len() && OTHER.len() == SERVER.len());

/// Returns the key for proofs; an error if the secret is a derived key.
pub(crate) fn key_of(secret: &Secret, address: &str) -> Result<ProtocolKey, NetError> {
    let key = secret.protocol_key(PROTOCOL);
    key.ok_or_else(|| NetError::DerivedKey {
        address: address.to_owned(),
        rights: secret.rights(),
    })
}

/// Receives one message until a point in time. Ends at once if the first bytes are not those of a
/// message.
fn receive_message(
    channel: &mut Channel,
    until: Instant,
) -> io::Result<Result<Message, GreetingError>> {
    channel.set_end(Some(until));
    let mut message = [0; MESSAGE_SIZE_BYTES];
    let mut filled_bytes = 0;
    while filled_bytes < MESSAGE_SIZE_BYTES {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        channel.set_read_time(left)?;
        match channel.read(&mut message[filled_bytes..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled_bytes += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error),
        }
        if !channel.is_encrypted() && message[..filled_bytes].starts_with(&TLS_HANDSHAKE) {
            return Ok(Err(GreetingError::Encrypted));
        }
        if let Some(protocol) = ForeignProtocol::detect(&message[..filled_bytes]) {
            return Ok(Err(GreetingError::OtherProtocol(protocol)));
        }
        if filled_bytes >= 8
            && let Err(foreign @ (GreetingError::Foreign(_) | GreetingError::MemoryNode)) =
                Greeting::decode(&message)
        {
            return Ok(Err(foreign));
        }
    }
    Ok(Ok(message))
}

fn send_message(channel: &mut Channel, greeting: &Greeting) -> io::Result<Message> {
    let message = greeting.encode();
    channel.write_all(&message)?;
    Ok(message)
}

fn nonce() -> io::Result<Token> {
    let mut nonce = [0; 32];
    fill_randomly(&mut nonce)?;
    Ok(nonce)
}

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

/// Reason why a client was rejected.
#[derive(Debug)]
pub(crate) enum Rejection {
    /// The client was sent this refusal.
    Refused(String),
    /// The client does not know the secret.
    WrongSecret,
    /// The client knows the secret and expects another cluster.
    OtherCluster {
        expected: ClusterTag,
        own: Option<ClusterTag>,
    },
    /// The connection was replaced by another one meanwhile.
    Replaced,
    /// The client has disconnected, or took too long.
    Gone(io::Error),
}

impl From<io::Error> for Rejection {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

/// Sends a refusal to a client that may not read it.
pub(crate) fn refuse(channel: &mut Channel, reason: &str) {
    // An error means that the client has disconnected, which does not matter.
    let _ = send_message(channel, &Greeting::Refusal(reason.to_owned()));
}

/// Answers a request of another protocol readably, and ends the connection.
fn refuse_protocol(channel: &mut Channel, protocol: ForeignProtocol) {
    // An error means that the client has disconnected, which does not matter.
    let _ = channel.write_all(protocol.reply(PortKind::Cluster).as_bytes());
    drain(channel);
}

/// Ends the connection so that the client can receive what was sent to it last: closing a socket
/// with unread bytes would reset the connection.
pub(crate) fn drain(channel: &mut Channel) {
    let mut socket = channel.socket();
    let _ = socket.shutdown(Shutdown::Write);
    let until = Instant::now() + DRAIN_TIME_MAX;
    let mut buffer = [0; DRAIN_SIZE_BYTES];
    for _ in 0..DRAIN_READ_COUNT_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || set_read_time(socket, left).is_err() {
            return;
        }
        if !matches!(socket.read(&mut buffer), Ok(1..)) {
            return;
        }
    }
}

/// What a server's greetings need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission<'s> {
    pub(crate) key: &'s ProtocolKey,
    pub(crate) tls: Option<&'s TlsServer>,
    pub(crate) request_size_bytes_max: usize,
    pub(crate) membership: &'s Membership,
}

impl Admission<'_> {
    /// Runs the server's side. `keep` makes the connection's slot permanent before the welcome is
    /// sent: a welcomed connection is never replaced by another one.
    pub(crate) fn admit(
        &self,
        channel: &mut Channel,
        keep: impl FnOnce() -> bool,
    ) -> Result<(), Rejection> {
        let until = Instant::now() + GREETING_TIME_MAX;
        channel.set_write_time(GREETING_TIME_MAX)?;
        if let Some(tls) = self.tls {
            encrypt(channel, tls, until)?;
        }
        let (hello, greeting) = receive_greeting(channel, until)?;
        let Greeting::Hello { expected, .. } = greeting else {
            return Err(refused(channel, "expected a hello message".to_owned()));
        };
        let own = self.membership.cluster();
        let challenge = Greeting::Challenge {
            nonce: nonce()?,
            request_size_bytes_max: self.request_size_bytes_max as u32,
            cluster: own,
        };
        let challenge = send_message(channel, &challenge)?;
        let (_, greeting) = receive_greeting(channel, until)?;
        let Greeting::Proof(proof) = greeting else {
            return Err(refused(channel, "expected a proof message".to_owned()));
        };
        let binding = channel.binding()?;
        let proof_of = |label| self.key.prove(&[label, &hello, &challenge, &binding]);
        if !self
            .key
            .is_proven(&[CLIENT, &hello, &challenge, &binding], &proof)
        {
            return Err(Rejection::WrongSecret);
        }
        if let Some(expected) = expected
            && Some(expected) != own
        {
            self.membership.note_expected_by_peer(expected);
            send_message(channel, &Greeting::OtherCluster(proof_of(OTHER)))?;
            return Err(Rejection::OtherCluster { expected, own });
        }
        if !keep() {
            return Err(Rejection::Replaced);
        }
        send_message(channel, &Greeting::Welcome(proof_of(SERVER)))?;
        channel.set_end(None);
        Ok(())
    }
}

/// Turns encryption on. A client that does not use TLS gets a readable refusal.
fn encrypt(channel: &mut Channel, tls: &TlsServer, until: Instant) -> Result<(), Rejection> {
    channel.set_read_time(until.saturating_duration_since(Instant::now()))?;
    let mut first = [0; 1];
    let peeked = rustix::io::retry_on_intr(|| {
        rustix::net::recv(channel.socket(), &mut first, RecvFlags::PEEK)
    });
    let (count, _) = peeked.map_err(io::Error::from)?;
    if count == 1 && first[0] != TLS_HANDSHAKE[0] {
        receive_greeting(channel, until)?;
        let reason = "this server requires TLS; give the file with its authority's certificate \
            with --tls-ca";
        return Err(refused(channel, reason.to_owned()));
    }
    Ok(channel.encrypt(tls)?)
}

fn refused(channel: &mut Channel, reason: String) -> Rejection {
    refuse(channel, &reason);
    Rejection::Refused(reason)
}

/// Interprets a message that the server has received.
fn receive_greeting(
    channel: &mut Channel,
    until: Instant,
) -> Result<(Message, Greeting), Rejection> {
    let received = receive_message(channel, until)?;
    let decoded = received.and_then(|message| Ok((message, Greeting::decode(&message)?)));
    decoded.map_err(|error| {
        let reason = match error {
            GreetingError::OtherProtocol(protocol) => {
                refuse_protocol(channel, protocol);
                return Rejection::Refused(format!(
                    "this server uses Farleaf's wire protocol, but the client sent a request of \
                     {protocol}"
                ));
            }
            GreetingError::Foreign(begin) => {
                format!(
                    "this server uses Farleaf's wire protocol, but the first message begins with \
                     '{begin}'"
                )
            }
            GreetingError::MemoryNode => {
                "this is a server of a cluster, but the client expects a memory node of a pool"
                    .to_owned()
            }
            GreetingError::Version { theirs, .. } => format!(
                "this server speaks version {WIRE_VERSION} of the wire protocol, the client \
                 version {theirs}: run the same version on both sides"
            ),
            GreetingError::Encrypted => {
                "the client uses TLS (--tls-ca), and this server has no certificate (--tls-cert)"
                    .to_owned()
            }
            GreetingError::Malformed(what) => format!("this server received {what}"),
        };
        refused(channel, reason)
    })
}

/// Answers a wrong proof after a delay, unless the client disconnects or the server stops.
pub(crate) fn delay_refusal(channel: &mut Channel) {
    let until = Instant::now() + WRONG_PROOF_DELAY;
    channel.set_end(Some(until));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        // A client that sends more meanwhile is disconnected.
        let waited = channel
            .set_read_time(left)
            .and_then(|()| channel.read(&mut [0; 1]));
        match waited {
            Err(error) if is_timeout(&error) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
    refuse(
        channel,
        "wrong secret; use the secret that this server was started with",
    );
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use super::*;

    fn secret() -> Secret {
        Secret::from_text("the secret of these tests").expect("long enough")
    }

    /// Promise: a connection's slot is permanent before the client is welcomed, so that no
    /// unauthenticated connection replaces it while it sends requests (found by
    /// `one_too_many_is_told`). A connection that has lost its slot is not welcomed.
    #[test]
    fn a_place_is_kept_before_the_welcome() {
        for has_place in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("bound");
            let client = Arc::new(TcpStream::connect(address).expect("it listens"));
            let (server, _) = listener.accept().expect("it has connected");
            let key = key_of(&secret(), "here").expect("no derived key");
            std::thread::scope(|scope| {
                let admitted = scope.spawn(|| {
                    let mut server = Channel::plain(Arc::new(server));
                    let admission = Admission {
                        key: &key,
                        tls: None,
                        request_size_bytes_max: 10,
                        membership: &Membership::default(),
                    };
                    admission.admit(&mut server, || {
                        // Nothing reads from the socket here, so a message would still be in it.
                        client.set_nonblocking(true).expect("a socket");
                        let peeked = client.peek(&mut [0; 1]);
                        client.set_nonblocking(false).expect("a socket");
                        let error = peeked.expect_err("nothing has been sent");
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        has_place
                    })
                });
                let until = Instant::now() + GREETING_TIME_MAX;
                let hello = Greeting::Hello {
                    nonce: [1; 32],
                    expected: None,
                };
                let mut channel = Channel::plain(Arc::clone(&client));
                let hello = send_message(&mut channel, &hello).expect("connected");
                let received = receive_message(&mut channel, until).expect("connected");
                let challenge = received.expect("a message");
                let proof = key.prove(&[CLIENT, &hello, &challenge]);
                send_message(&mut channel, &Greeting::Proof(proof)).expect("connected");
                match admitted.join().expect("no panic") {
                    Ok(()) => assert!(has_place),
                    Err(Rejection::Replaced) => assert!(!has_place),
                    Err(other) => panic!("{other:?}"),
                }
                assert_eq!(receive_message(&mut channel, until).is_ok(), has_place);
            });
        }
    }

    /// Promise: over TLS a proof is valid only for its own connection: one that does not cover the
    /// connection's binding is refused, as that of a third party that relays a greeting would be.
    #[test]
    fn a_proof_is_bound_to_its_connection() {
        use crate::authority::create;
        use crate::tls::{CertificateFiles, TlsClient};
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let files = create(scratch.path(), &[]).expect("created");
        let own = CertificateFiles {
            certificate: &files.certificate,
            key: &files.key,
        };
        let tls = TlsServer::from_files(own, None).expect("they go together");
        let trusted = TlsClient::from_files(&files.authority, None).expect("an authority");
        for is_bound in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("bound");
            let client = TcpStream::connect(address).expect("it listens");
            let (server, _) = listener.accept().expect("it has connected");
            let key = key_of(&secret(), "here").expect("no derived key");
            std::thread::scope(|scope| {
                let admitted = scope.spawn(|| {
                    let mut server = Channel::plain(Arc::new(server));
                    let admission = Admission {
                        key: &key,
                        tls: Some(&tls),
                        request_size_bytes_max: 10,
                        membership: &Membership::default(),
                    };
                    admission.admit(&mut server, || true)
                });
                let until = Instant::now() + GREETING_TIME_MAX;
                let mut channel = Channel::plain(Arc::new(client));
                channel.encrypt_for(&trusted, "127.0.0.1").expect("a name");
                let hello = Greeting::Hello {
                    nonce: [1; 32],
                    expected: None,
                };
                let hello = send_message(&mut channel, &hello).expect("connected");
                let received = receive_message(&mut channel, until).expect("connected");
                let challenge = received.expect("a message");
                let binding = channel.binding().expect("the handshake is complete");
                assert!(binding.iter().any(|it| *it != 0));
                let covered = if is_bound { &binding[..] } else { &[] };
                let proof = key.prove(&[CLIENT, &hello, &challenge, covered]);
                send_message(&mut channel, &Greeting::Proof(proof)).expect("connected");
                match admitted.join().expect("no panic") {
                    Ok(()) => assert!(is_bound),
                    Err(Rejection::WrongSecret) => assert!(!is_bound),
                    Err(other) => panic!("{other:?}"),
                }
            });
        }
    }
}
