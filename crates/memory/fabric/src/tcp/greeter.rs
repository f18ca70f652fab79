//! Connections that have not logged in yet.
//!
//! - **Time.** A peer has [`GREETING_TIME_MAX`] for the whole greeting. The node buffers at most
//!   one message of it.
//! - **Proof.** The node trusts nothing before it has checked the proof. It answers a wrong proof
//!   only after [`WRONG_PROOF_DELAY`], whatever was wrong with it, and checks the next proofs from
//!   the same address one after the other ([`Penalties`]).
//! - **Replacement.** When [`UNAUTHENTICATED_COUNT_MAX`] connections wait for their log-in, one
//!   more replaces the [oldest of the busiest address](oldest_of_busiest). The same happens at
//!   fewer waiting connections if the limit of all connections is reached, or if no descriptor is
//!   left.
//! - **Warnings.** Warnings about such peers are limited to a number per second; the rest are only
//!   counted.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use farleaf_net::greeting::{
    Arrival, DETAILS_SIZE_BYTES, GREETING_TIME_MAX, Greeting, GreetingError, Penalties, Proven,
    ServerGreeting, ServerStep, TLS_REQUIRED, TOO_MANY_WRONG_PROOFS, UNAUTHENTICATED_COUNT_MAX,
    WRONG_PROOF_DELAY, oldest_of_busiest, refusal, starts_tls,
};
use farleaf_net::permit::Permit;
use farleaf_net::secret::{Proof, Secret};
use farleaf_net::stream::Stream;
use farleaf_net::tls::TlsLayer;
use farleaf_net::warnings::Warnings;

use crate::tcp::hello::{HelloDetails, POOL};
use crate::tcp::inbox::{receive_some, send_frame};

/// Most reads, and bytes of each, for the rest of a request of another protocol.
const DRAIN_READ_COUNT_MAX: u32 = 16;
const DRAIN_SIZE_BYTES: usize = 4096;

/// Sends the last bytes to a peer. Closing a socket with unread bytes would reset the connection,
/// and the peer might lose the answer, so this reads what has arrived.
fn send_last(stream: &mut Stream, answer: &[u8]) -> io::Result<()> {
    stream.send(answer)?;
    let mut rest = [0; DRAIN_SIZE_BYTES];
    for _ in 0..DRAIN_READ_COUNT_MAX {
        if !matches!(stream.receive(&mut rest), Ok(1..)) {
            break;
        }
    }
    Ok(())
}

/// A connection that has not logged in yet.
#[derive(Debug)]
pub(super) struct PendingLogin {
    pub(super) stream: Stream,
    pub(super) peer: SocketAddr,
    /// Encryption, until the first byte shows that the client uses it.
    tls: Option<TlsLayer>,
    stage: Stage,
    arrival: Arrival,
    greeting: ServerGreeting,
    /// End of the greeting's time, time of the proof's check, or end of the penalty.
    pub(super) until: Instant,
    permit: Permit,
}

#[derive(Debug)]
enum Stage {
    /// The client has to send something.
    Greets,
    /// The proof is checked later.
    Waits(Proof),
    /// The proof was wrong; the answer is delayed.
    Penalised,
}

/// A peer that has proven the secret, and to which the node must prove it.
#[derive(Debug)]
pub(super) struct AuthenticatedPeer {
    pub(super) stream: Stream,
    pub(super) peer: SocketAddr,
    pub(super) permit: Permit,
    pub(super) hello: HelloDetails,
    pub(super) proven: Proven,
}

impl AuthenticatedPeer {
    /// Refuses the peer.
    ///
    /// # Errors
    /// The peer does not read.
    pub(super) fn refuse(&mut self, reason: &str) -> io::Result<()> {
        send_frame(&mut self.stream, &refusal(POOL, reason))
    }
}

/// Next action for a connection.
enum LoginAction {
    Wait,
    HangUp,
    Admit(Box<Proven>),
}

/// What the greetings of a node share.
#[derive(Debug)]
struct Gatekeeper {
    secret: Secret,
    penalties: Penalties,
    /// Limit of warnings about these peers.
    warnings: Warnings,
}

impl Gatekeeper {
    fn warns(&mut self, peer: SocketAddr) -> bool {
        self.warnings.admits(peer, Instant::now())
    }

    /// Sends a refusal.
    fn refuse(&mut self, login: &mut PendingLogin, reason: &str) -> io::Result<LoginAction> {
        let peer = login.peer;
        if self.warns(peer) {
            tracing::warn!(%peer, "connection rejected: {reason}");
        }
        send_last(&mut login.stream, &refusal(POOL, reason))?;
        Ok(LoginAction::HangUp)
    }

    /// Refuses a client for an invalid message.
    fn refuse_for(
        &mut self,
        login: &mut PendingLogin,
        error: &GreetingError,
    ) -> io::Result<LoginAction> {
        let reason = error.reason(POOL);
        if let GreetingError::OtherProtocol(protocol) = error {
            if self.warns(login.peer) {
                tracing::warn!(peer = %login.peer, "connection rejected: {reason}");
            }
            send_last(&mut login.stream, protocol.reply(POOL.port).as_bytes())?;
            return Ok(LoginAction::HangUp);
        }
        self.refuse(login, &reason)
    }

    /// Takes what has arrived on a connection.
    fn step(&mut self, login: &mut PendingLogin) -> io::Result<LoginAction> {
        if let Some(tls) = login.tls.take() {
            match login.stream.peek()? {
                Some(first) if starts_tls(first) => login.stream.encrypt(tls),
                Some(_) => return self.refuse_plain(login),
                None => {
                    login.tls = Some(tls);
                    return Ok(LoginAction::Wait);
                }
            }
        }
        let Some(count) = receive_some(&mut login.stream, login.arrival.space())? else {
            return Ok(LoginAction::Wait);
        };
        let is_encrypted = login.stream.is_encrypted();
        let message = match login.arrival.add_first(count, POOL, is_encrypted) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(LoginAction::Wait),
            Err(error) => return self.refuse_for(login, &error),
        };
        match login
            .greeting
            .receive(&message, || [0; DETAILS_SIZE_BYTES])?
        {
            Ok(ServerStep::Challenge(challenge)) => {
                send_frame(&mut login.stream, &challenge)?;
                Ok(LoginAction::Wait)
            }
            Ok(ServerStep::Check(proof)) => self.schedule(login, &proof),
            Err(error) => self.refuse_for(login, &error),
        }
    }

    /// Refuses a client that does not use TLS.
    fn refuse_plain(&mut self, login: &mut PendingLogin) -> io::Result<LoginAction> {
        let count = receive_some(&mut login.stream, login.arrival.space())?;
        match login.arrival.add_first(count.unwrap_or(0), POOL, false) {
            Err(error @ GreetingError::OtherProtocol(_)) => self.refuse_for(login, &error),
            _ => self.refuse(login, TLS_REQUIRED),
        }
    }

    /// Checks a proof, now or later.
    fn schedule(&mut self, login: &mut PendingLogin, proof: &Proof) -> io::Result<LoginAction> {
        let now = Instant::now();
        match self.penalties.schedule(login.peer.ip(), now) {
            Some(check_at) if check_at <= now => self.check(login, proof),
            Some(check_at) => {
                login.stage = Stage::Waits(*proof);
                login.until = check_at;
                Ok(LoginAction::Wait)
            }
            None => self.refuse(login, TOO_MANY_WRONG_PROOFS),
        }
    }

    fn check(&mut self, login: &mut PendingLogin, proof: &Proof) -> io::Result<LoginAction> {
        let binding = login.stream.binding()?;
        let (now, peer) = (Instant::now(), login.peer);
        if let Some(proven) = login.greeting.check(&self.secret, proof, &binding) {
            self.penalties.on_right_proof(peer.ip(), now);
            return Ok(LoginAction::Admit(Box::new(proven)));
        }
        self.penalties.on_wrong_proof(peer.ip(), now);
        if self.warns(peer)
            && let Some(rights) = login.greeting.rights()
        {
            tracing::warn!(%peer, %rights, "log-in failed: wrong secret");
        }
        login.stage = Stage::Penalised;
        login.until = now + WRONG_PROOF_DELAY;
        Ok(LoginAction::Wait)
    }

    /// Ends a stage whose time is over.
    fn on_time(&mut self, login: &mut PendingLogin) -> io::Result<LoginAction> {
        match login.stage {
            Stage::Waits(proof) => self.check(login, &proof),
            Stage::Greets => {
                let peer = &login.peer;
                tracing::debug!(%peer, "connection closed: handshake timed out");
                Ok(LoginAction::HangUp)
            }
            Stage::Penalised => {
                let reason = "wrong secret; use the secret that the node was started with, or a \
                              key that `farleaf secret derive` derived from it";
                let answer = Greeting::WrongSecret(reason.to_owned()).encode(POOL);
                send_frame(&mut login.stream, &answer)?;
                Ok(LoginAction::HangUp)
            }
        }
    }

    /// Performs the result of a step: returns the connection if it waits, or else the peer if it is
    /// admitted.
    fn finish(
        &mut self,
        mut login: PendingLogin,
        step: io::Result<LoginAction>,
        authenticated: &mut Vec<AuthenticatedPeer>,
    ) -> Option<PendingLogin> {
        let step = match step {
            Ok(LoginAction::Admit(proven)) if !proven.key.scope().is_everything() => {
                let reason = "this key is limited to a part of a persistent table; use the pool's \
                              secret, or a key derived from it without limits";
                self.refuse(&mut login, reason)
            }
            Ok(LoginAction::Admit(proven)) => match HelloDetails::decode(&proven.details) {
                Ok(hello) => {
                    authenticated.push(login.admitted(hello, *proven));
                    return None;
                }
                Err(error) => self.refuse_for(&mut login, &error),
            },
            step => step,
        };
        match step {
            Ok(LoginAction::Wait) => return Some(login),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                if self.warns(login.peer) {
                    tracing::warn!(peer = %login.peer, "connection rejected: TLS failed: {error}");
                }
            }
            Err(error) => tracing::debug!(peer = %login.peer, %error, "connection closed"),
        }
        None
    }
}

impl PendingLogin {
    /// Returns true if the connection is still read from.
    pub(super) fn is_read(&self) -> bool {
        matches!(self.stage, Stage::Greets)
    }

    fn admitted(self, hello: HelloDetails, proven: Proven) -> AuthenticatedPeer {
        AuthenticatedPeer {
            stream: self.stream,
            peer: self.peer,
            permit: self.permit,
            hello,
            proven,
        }
    }
}

/// The connections of a node that have not logged in.
#[derive(Debug)]
pub(super) struct Greeter {
    gatekeeper: Gatekeeper,
    pub(super) pending_logins: Vec<PendingLogin>,
}

impl Greeter {
    pub(super) fn new(secret: Secret) -> Self {
        let gatekeeper = Gatekeeper {
            secret,
            penalties: Penalties::default(),
            warnings: Warnings::new("failed log-ins"),
        };
        Self {
            gatekeeper,
            pending_logins: Vec::new(),
        }
    }

    /// Adds a new connection, which must use `tls` if it is given.
    pub(super) fn add(
        &mut self,
        stream: Stream,
        tls: Option<TlsLayer>,
        peer: SocketAddr,
        permit: Permit,
    ) {
        if self.pending_logins.len() >= UNAUTHENTICATED_COUNT_MAX {
            let _ = self.evict_oldest();
        }
        self.pending_logins.push(PendingLogin {
            stream,
            peer,
            tls,
            stage: Stage::Greets,
            arrival: Arrival::default(),
            greeting: ServerGreeting::new(POOL),
            until: Instant::now() + GREETING_TIME_MAX,
            permit,
        });
    }

    /// Closes one of the connections to make space; returns false if there is none.
    pub(super) fn evict_oldest(&mut self) -> bool {
        let oldest = oldest_of_busiest(self.pending_logins.iter().map(|it| it.peer.ip()));
        if let Some(oldest) = oldest {
            let removed = self.pending_logins.remove(oldest);
            tracing::debug!(
                peer = %removed.peer,
                "connection closed: too many unauthenticated connections"
            );
        }
        oldest.is_some()
    }

    /// Processes connections that have sent something, by index, and those whose time is over;
    /// returns peers that have proven the secret. Logs the counted warnings that are due.
    pub(super) fn serve(&mut self, ready: &[bool], now: Instant) -> Vec<AuthenticatedPeer> {
        let gatekeeper = &mut self.gatekeeper;
        gatekeeper.warnings.log_withheld(now);
        let mut authenticated = Vec::new();
        let mut waiting = Vec::with_capacity(self.pending_logins.len());
        for (index, mut login) in self.pending_logins.drain(..).enumerate() {
            let is_ready = ready.get(index).copied().unwrap_or(false) && login.is_read();
            let step = if is_ready {
                gatekeeper.step(&mut login)
            } else if login.until <= now {
                gatekeeper.on_time(&mut login)
            } else {
                Ok(LoginAction::Wait)
            };
            waiting.extend(gatekeeper.finish(login, step, &mut authenticated));
        }
        self.pending_logins = waiting;
        authenticated
    }
}
