//! Server side of a greeting.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use farleaf_base::foreign_protocol::{ForeignProtocol, PortKind};
use rustix::net::RecvFlags;

use crate::request::channel::Channel;
use crate::request::cluster::{ClusterTag, Membership};
use crate::request::greeting::{Greeting, GreetingError, Message, WIRE_VERSION};
use crate::request::handshake::{
    CLIENT, OTHER, SERVER, TLS_HANDSHAKE, nonce, receive_message, send_message,
};
use crate::request::socket::{is_timeout, set_read_time};
use crate::secret::ProtocolKey;
use crate::tls::TlsServer;

/// Longest time for a greeting.
const GREETING_TIME_MAX: Duration = Duration::from_secs(5);
/// Delay before a wrong proof is answered.
const WRONG_PROOF_DELAY: Duration = Duration::from_secs(1);
/// Longest time, and most reads, for the rest of a request of another protocol.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(1);
const DRAIN_READ_COUNT_MAX: u32 = 64;
const DRAIN_SIZE_BYTES: usize = 1024;

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
    use crate::authority::create;
    use crate::request::handshake::key_of;
    use crate::secret::Secret;
    use crate::tls::{CertificateFiles, TlsClient};

    fn key() -> ProtocolKey {
        let secret = Secret::from_text("the secret of these tests").expect("long enough");
        key_of(&secret, "here").expect("no derived key")
    }

    /// Returns both ends of a connection.
    fn connected() -> (Arc<TcpStream>, Channel) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let client = Arc::new(TcpStream::connect(address).expect("it listens"));
        let (server, _) = listener.accept().expect("it has connected");
        (client, Channel::plain(Arc::new(server)))
    }

    /// Sends a hello and a proof that covers the connection's binding, or does not.
    fn prove(channel: &mut Channel, covers_binding: bool) {
        let until = Instant::now() + GREETING_TIME_MAX;
        let hello = Greeting::Hello {
            nonce: [1; 32],
            expected: None,
        };
        let hello = send_message(channel, &hello).expect("connected");
        let received = receive_message(channel, until).expect("connected");
        let challenge = received.expect("a message");
        let binding = channel.binding().expect("the handshake is complete");
        assert_eq!(channel.is_encrypted(), binding.iter().any(|it| *it != 0));
        let covered = if covers_binding { &binding[..] } else { &[] };
        let proof = key().prove(&[CLIENT, &hello, &challenge, covered]);
        send_message(channel, &Greeting::Proof(proof)).expect("connected");
    }

    /// Runs the server's side on its end of a connection.
    fn admit(
        mut channel: Channel,
        tls: Option<&TlsServer>,
        keep: impl FnOnce() -> bool,
    ) -> Result<(), Rejection> {
        let admission = Admission {
            key: &key(),
            tls,
            request_size_bytes_max: 10,
            membership: &Membership::default(),
        };
        admission.admit(&mut channel, keep)
    }

    /// Promise: a connection's slot is permanent before the client is welcomed, so that no
    /// unauthenticated connection replaces it while it sends requests (found by
    /// `one_too_many_is_told`). A connection that has lost its slot is not welcomed.
    #[test]
    fn a_place_is_kept_before_the_welcome() {
        for has_place in [true, false] {
            let (client, server) = connected();
            std::thread::scope(|scope| {
                let admitted = scope.spawn(|| {
                    admit(server, None, || {
                        // Nothing reads from the socket here, so a message would still be in it.
                        client.set_nonblocking(true).expect("a socket");
                        let peeked = client.peek(&mut [0; 1]);
                        client.set_nonblocking(false).expect("a socket");
                        let error = peeked.expect_err("nothing has been sent");
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        has_place
                    })
                });
                let mut channel = Channel::plain(Arc::clone(&client));
                prove(&mut channel, true);
                match admitted.join().expect("no panic") {
                    Ok(()) => assert!(has_place),
                    Err(Rejection::Replaced) => assert!(!has_place),
                    Err(other) => panic!("{other:?}"),
                }
                let until = Instant::now() + GREETING_TIME_MAX;
                assert_eq!(receive_message(&mut channel, until).is_ok(), has_place);
            });
        }
    }

    /// Promise: over TLS a proof is valid only for its own connection: one that does not cover the
    /// connection's binding is refused, as that of a third party that relays a greeting would be.
    #[test]
    fn a_proof_is_bound_to_its_connection() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let files = create(scratch.path(), &[]).expect("created");
        let own = CertificateFiles {
            certificate: &files.certificate,
            key: &files.key,
        };
        let tls = TlsServer::from_files(own, None).expect("they go together");
        let trusted = TlsClient::from_files(&files.authority, None).expect("an authority");
        for is_bound in [true, false] {
            let (client, server) = connected();
            std::thread::scope(|scope| {
                let admitted = scope.spawn(|| admit(server, Some(&tls), || true));
                let mut channel = Channel::plain(client);
                channel.encrypt_for(&trusted, "127.0.0.1").expect("a name");
                prove(&mut channel, is_bound);
                match admitted.join().expect("no panic") {
                    Ok(()) => assert!(is_bound),
                    Err(Rejection::WrongSecret) => assert!(!is_bound),
                    Err(other) => panic!("{other:?}"),
                }
            });
        }
    }
}
