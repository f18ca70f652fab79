//! Server side of a greeting, with a blocking socket.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_base::foreign_protocol::ForeignProtocol;
use rustix::net::RecvFlags;

use crate::greeting::{
    Arrival, GREETING_TIME_MAX, Greeting, GreetingError, Message, Penalties, Proven,
    ServerGreeting, ServerStep, TLS_REQUIRED, TOO_MANY_WRONG_PROOFS, WRONG_PROOF_DELAY, refusal,
    starts_tls,
};
use crate::request::channel::Channel;
use crate::request::cluster::{ClusterTag, Membership};
use crate::request::details::{ChallengeDetails, WIRE, decode_hello, encode_welcome};
use crate::request::socket::set_read_time;
use crate::secret::{Proof, Secret};
use crate::tls::TlsServer;

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
    let _ = channel.write_all(&refusal(WIRE, reason));
}

/// Answers a request of another protocol readably, and ends the connection.
fn refuse_protocol(channel: &mut Channel, protocol: ForeignProtocol) {
    // An error means that the client has disconnected, which does not matter.
    let _ = channel.write_all(protocol.reply(WIRE.port).as_bytes());
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
    pub(crate) secret: &'s Secret,
    pub(crate) tls: Option<&'s TlsServer>,
    pub(crate) request_size_bytes_max: usize,
    pub(crate) membership: &'s Membership,
    pub(crate) penalties: &'s Mutex<Penalties>,
}

impl Admission<'_> {
    /// Runs the server's side. `keep` makes the connection's slot permanent before the welcome is
    /// sent: a welcomed connection is never replaced by another one.
    pub(crate) fn admit(
        &self,
        channel: &mut Channel,
        peer: IpAddr,
        keep: impl FnOnce() -> bool,
    ) -> Result<Proven, Rejection> {
        let until = Instant::now() + GREETING_TIME_MAX;
        channel.set_write_time(GREETING_TIME_MAX)?;
        channel.set_end(Some(until));
        if let Some(tls) = self.tls {
            encrypt(channel, tls, until)?;
        }
        let own = self.membership.cluster();
        let mut greeting = ServerGreeting::new(WIRE);
        let proof = self.converse(channel, &mut greeting, own, until)?;
        let proven = self.check(channel, peer, &greeting, &proof)?;
        if let Some(expected) = decode_hello(&proven.details)
            && Some(expected) != own
        {
            self.membership.note_expected_by_peer(expected);
            channel.write_all(&proven.welcome(encode_welcome(false)))?;
            return Err(Rejection::OtherCluster { expected, own });
        }
        if !keep() {
            return Err(Rejection::Replaced);
        }
        channel.write_all(&proven.welcome(encode_welcome(true)))?;
        channel.set_end(None);
        Ok(proven)
    }

    /// Exchanges messages until the client has sent its proof.
    fn converse(
        &self,
        channel: &mut Channel,
        greeting: &mut ServerGreeting,
        cluster: Option<ClusterTag>,
        until: Instant,
    ) -> Result<Proof, Rejection> {
        let challenge = ChallengeDetails {
            cluster,
            request_size_bytes_max: self.request_size_bytes_max as u32,
        };
        loop {
            let message = receive(channel, until)?;
            let step = greeting.receive(&message, || challenge.encode())?;
            match step.map_err(|error| refused_for(channel, &error))? {
                ServerStep::Challenge(challenge) => channel.write_all(&*challenge)?,
                ServerStep::Check(proof) => return Ok(proof),
            }
        }
    }

    /// Checks a proof, at once or after those that the same address has sent before.
    fn check(
        &self,
        channel: &mut Channel,
        peer: IpAddr,
        greeting: &ServerGreeting,
        proof: &Proof,
    ) -> Result<Proven, Rejection> {
        let binding = channel.binding()?;
        let check = |mut penalties: MutexGuard<'_, Penalties>| {
            let proven = greeting.check(self.secret, proof, &binding);
            let now = Instant::now();
            match &proven {
                Some(_) => penalties.on_right_proof(peer, now),
                None => penalties.on_wrong_proof(peer, now),
            }
            proven.ok_or(Rejection::WrongSecret)
        };
        let now = Instant::now();
        // Held during the check, so that proofs that arrive at the same time do not all count as
        // the first one.
        let mut penalties = self.penalties();
        match penalties.schedule(peer, now) {
            Some(check_at) if check_at <= now => return check(penalties),
            Some(check_at) => {
                drop(penalties);
                if !wait_quietly(channel, check_at) {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
            }
            None => {
                drop(penalties);
                return Err(refused(channel, TOO_MANY_WRONG_PROOFS.to_owned()));
            }
        }
        check(self.penalties())
    }

    fn penalties(&self) -> MutexGuard<'_, Penalties> {
        self.penalties
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
    if count == 1 && !starts_tls(first[0]) {
        receive(channel, until)?;
        return Err(refused(channel, TLS_REQUIRED.to_owned()));
    }
    Ok(channel.encrypt(tls)?)
}

fn refused(channel: &mut Channel, reason: String) -> Rejection {
    refuse(channel, &reason);
    Rejection::Refused(reason)
}

fn refused_for(channel: &mut Channel, error: &GreetingError) -> Rejection {
    let reason = error.reason(WIRE);
    if let GreetingError::OtherProtocol(protocol) = error {
        refuse_protocol(channel, *protocol);
        return Rejection::Refused(reason);
    }
    refused(channel, reason)
}

/// Receives one message until a point in time.
fn receive(channel: &mut Channel, until: Instant) -> Result<Message, Rejection> {
    let mut arrival = Arrival::default();
    loop {
        let count = channel.read_until(arrival.space(), until)?;
        if count == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let added = arrival.add_first(count, WIRE, channel.is_encrypted());
        if let Some(message) = added.map_err(|error| refused_for(channel, &error))? {
            return Ok(message);
        }
    }
}

/// Answers a wrong proof after a delay, unless the client disconnects or the server stops.
pub(crate) fn delay_refusal(channel: &mut Channel) {
    if wait_quietly(channel, Instant::now() + WRONG_PROOF_DELAY) {
        let reason = "wrong secret; use the secret that this server was started with";
        // An error means that the client has disconnected, which does not matter.
        let _ = channel.write_all(&Greeting::WrongSecret(reason.to_owned()).encode(WIRE));
    }
}

/// Waits until a point in time. Returns false if the client disconnects or sends anything
/// meanwhile.
fn wait_quietly(channel: &mut Channel, until: Instant) -> bool {
    match channel.read_until(&mut [0; 1], until) {
        Err(error) => error.kind() == io::ErrorKind::TimedOut,
        Ok(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    use super::*;
    use crate::authority::create;
    use crate::greeting::DETAILS_SIZE_BYTES;
    use crate::secret::{Rights, Scope, Side};
    use crate::tls::{CertificateFiles, TlsClient};

    fn secret() -> Secret {
        Secret::from_text("the secret of these tests").expect("long enough")
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
        let rights = Rights::Admin;
        let hello = Greeting::Hello {
            rights,
            scope: Scope::default(),
            nonce: [1; 32],
            details: [0; DETAILS_SIZE_BYTES],
        };
        let hello = hello.encode(WIRE);
        channel.write_all(&hello).expect("connected");
        let challenge = receive(channel, until).expect("a message");
        let binding = channel.binding().expect("the handshake is complete");
        assert_eq!(channel.is_encrypted(), binding.iter().any(|it| *it != 0));
        let covered = if covers_binding { &binding[..] } else { &[] };
        let said: &[&[u8]] = &[&hello, &challenge, covered];
        let proof = secret().prove(rights, Side::Client, said);
        let proof = Greeting::Proof(proof.expect("it grants all rights"));
        channel.write_all(&proof.encode(WIRE)).expect("connected");
    }

    /// Runs the server's side on its end of a connection.
    fn admit(
        mut channel: Channel,
        tls: Option<&TlsServer>,
        keep: impl FnOnce() -> bool,
    ) -> Result<Proven, Rejection> {
        let admission = Admission {
            secret: &secret(),
            tls,
            request_size_bytes_max: 10,
            membership: &Membership::default(),
            penalties: &Mutex::default(),
        };
        admission.admit(&mut channel, IpAddr::from([127, 0, 0, 1]), keep)
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
                    Ok(_) => assert!(has_place),
                    Err(Rejection::Replaced) => assert!(!has_place),
                    Err(other) => panic!("{other:?}"),
                }
                let until = Instant::now() + GREETING_TIME_MAX;
                assert_eq!(receive(&mut channel, until).is_ok(), has_place);
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
                    Ok(_) => assert!(is_bound),
                    Err(Rejection::WrongSecret) => assert!(!is_bound),
                    Err(other) => panic!("{other:?}"),
                }
            });
        }
    }
}
