//! Connections that have not logged in yet.
//!
//! - **Time.** A peer has [`GREETING_TIME_MAX`] for the whole greeting. The node buffers at most
//!   one frame of it.
//! - **Proof.** The node trusts nothing before it has checked the proof. It answers a wrong proof
//!   only after [`PENALTY_TIME`], whatever was wrong with it.
//! - **Replacement.** When [`HALF_OPEN_COUNT_MAX`] connections wait for their log-in, one more
//!   replaces the oldest connection of the address that has most of them. So a peer that floods the
//!   node excludes only itself. The same happens at fewer waiting connections if the limit of all
//!   connections is reached, or if no descriptor is left.
//! - **Warnings.** Warnings about such peers are limited to a number per second; the rest are only
//!   counted.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use farleaf_base::foreign_protocol::{ForeignProtocol, PortKind};

use crate::tcp::greeting::{ControlReply, ControlRequest, FRAME_SIZE_BYTES, Frame, Nonce, Purpose};
use farleaf_net::permit::Permit;
use farleaf_net::secret::Pass;
use farleaf_net::secret::{Proof, Rights, Secret, Side, fill_randomly};
use farleaf_net::stream::Stream;
use farleaf_net::warnings::Warnings;

/// Time limit of the whole greeting.
const GREETING_TIME_MAX: Duration = Duration::from_secs(5);
/// Delay of the answer to a wrong proof.
const PENALTY_TIME: Duration = Duration::from_secs(1);
/// Maximum number of connections without a log-in.
const HALF_OPEN_COUNT_MAX: usize = 256;
/// Most reads, and bytes of each, for the rest of a request of another protocol.
const DRAIN_READ_COUNT_MAX: u32 = 16;
const DRAIN_SIZE_BYTES: usize = 4096;

/// Receives messages of the fixed size, in pieces as they arrive.
#[derive(Debug)]
pub(super) struct MessageInbox {
    frame: Frame,
    filled_bytes: usize,
}

impl Default for MessageInbox {
    fn default() -> Self {
        Self {
            frame: [0; FRAME_SIZE_BYTES],
            filled_bytes: 0,
        }
    }
}

impl MessageInbox {
    /// Returns the next message if it is complete.
    ///
    /// # Errors
    /// The connection has ended; never `WouldBlock`.
    pub(super) fn receive(&mut self, stream: &mut Stream) -> io::Result<Option<Frame>> {
        match stream.receive(&mut self.frame[self.filled_bytes..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => self.filled_bytes += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        if self.filled_bytes < FRAME_SIZE_BYTES {
            return Ok(None);
        }
        self.filled_bytes = 0;
        Ok(Some(self.frame))
    }

    /// Recognizes another protocol in the complete message, or in the part that has arrived.
    fn foreign_protocol(&self, complete: Option<&Frame>) -> Option<ForeignProtocol> {
        let arrived = complete.map_or(&self.frame[..self.filled_bytes], |frame| &frame[..]);
        ForeignProtocol::detect(arrived)
    }
}

/// Answers a request of another protocol readably.
fn refuse_protocol(stream: &mut Stream, protocol: ForeignProtocol) -> io::Result<()> {
    let reply = protocol.reply(PortKind::MemoryNode);
    stream.send(reply.as_bytes())?;
    // Closing a socket with unread bytes resets the connection, and the client may lose the answer.
    let mut rest = [0; DRAIN_SIZE_BYTES];
    for _ in 0..DRAIN_READ_COUNT_MAX {
        if !matches!(stream.receive(&mut rest), Ok(1..)) {
            break;
        }
    }
    Ok(())
}

/// Sends a message of the fixed size, which the socket of a peer that reads always accepts.
///
/// # Errors
/// The peer does not read.
pub(super) fn send(stream: &mut Stream, reply: &ControlReply) -> io::Result<()> {
    let frame = reply.encode();
    if stream.send(&frame)? == frame.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// A connection that has not logged in yet.
#[derive(Debug)]
pub(super) struct PendingLogin {
    pub(super) stream: Stream,
    pub(super) peer: SocketAddr,
    stage: Stage,
    inbox: MessageInbox,
    /// End of the greeting's time, or of the penalty.
    pub(super) until: Instant,
    permit: Permit,
}

#[derive(Debug)]
enum Stage {
    AwaitsHello,
    AwaitsProof(Box<Hello>),
    /// The proof was wrong; the answer is delayed.
    Penalised,
}

/// Messages of the greeting so far, from which proofs are computed.
#[derive(Debug)]
struct Hello {
    purpose: Purpose,
    rights: Rights,
    pid: u32,
    pass: Pass,
    said_by_client: Frame,
    said_by_node: Frame,
}

/// A peer that has proven the secret, and to which the node must prove it.
#[derive(Debug)]
pub(super) struct AuthenticatedPeer {
    pub(super) stream: Stream,
    pub(super) peer: SocketAddr,
    pub(super) permit: Permit,
    pub(super) purpose: Purpose,
    pub(super) rights: Rights,
    pub(super) pid: u32,
    pub(super) pass: Pass,
    /// The node's own proof.
    pub(super) proof: Proof,
}

/// Next action for a connection.
enum LoginAction {
    Wait,
    HangUp,
    Admit(Proof),
}

impl PendingLogin {
    fn step(&mut self, secret: &Secret, warnings: &mut Warnings) -> io::Result<LoginAction> {
        let received = self.inbox.receive(&mut self.stream)?;
        if matches!(self.stage, Stage::AwaitsHello)
            && let Some(protocol) = self.inbox.foreign_protocol(received.as_ref())
        {
            if warnings.admits(self.peer, Instant::now()) {
                tracing::warn!(
                    peer = %self.peer,
                    "connection rejected: this node received a request of {protocol}"
                );
            }
            refuse_protocol(&mut self.stream, protocol)?;
            return Ok(LoginAction::HangUp);
        }
        let Some(frame) = received else {
            return Ok(LoginAction::Wait);
        };
        let request = match ControlRequest::decode(&frame) {
            Ok(request) => request,
            Err(malformed) => {
                let reason = format!("this node received {}", malformed.0);
                if warnings.admits(self.peer, Instant::now()) {
                    tracing::warn!(peer = %self.peer, "connection rejected: {reason}");
                }
                send(&mut self.stream, &ControlReply::Refused(reason))?;
                return Ok(LoginAction::HangUp);
            }
        };
        match (&self.stage, request) {
            (
                Stage::AwaitsHello,
                ControlRequest::Hello {
                    purpose,
                    rights,
                    pid,
                    pass,
                    ..
                },
            ) => {
                let mut nonce: Nonce = [0; 32];
                fill_randomly(&mut nonce)?;
                let challenge = ControlReply::Challenge(nonce);
                send(&mut self.stream, &challenge)?;
                self.stage = Stage::AwaitsProof(Box::new(Hello {
                    purpose,
                    rights,
                    pid,
                    pass,
                    said_by_client: frame,
                    said_by_node: challenge.encode(),
                }));
                Ok(LoginAction::Wait)
            }
            (Stage::AwaitsProof(hello), ControlRequest::Proof(proof)) => {
                let binding = self.stream.binding()?;
                let said: &[&[u8]] = &[&hello.said_by_client, &hello.said_by_node, &binding];
                let rights = hello.rights;
                if secret.is_proven(rights, Side::Client, said, &proof)
                    && let Some(proof) = secret.prove(rights, Side::Node, said)
                {
                    return Ok(LoginAction::Admit(proof));
                }
                let now = Instant::now();
                if warnings.admits(self.peer, now) {
                    tracing::warn!(peer = %self.peer, %rights, "log-in failed: wrong secret");
                }
                self.stage = Stage::Penalised;
                self.until = now + PENALTY_TIME;
                Ok(LoginAction::Wait)
            }
            _ => {
                let reason = "this node received a request before the handshake was complete";
                send(&mut self.stream, &ControlReply::Refused(reason.to_owned()))?;
                Ok(LoginAction::HangUp)
            }
        }
    }

    /// Returns true if the connection is still read from.
    pub(super) fn is_read(&self) -> bool {
        !matches!(self.stage, Stage::Penalised)
    }
}

/// The connections of a node that have not logged in.
#[derive(Debug)]
pub(super) struct Greeter {
    secret: Secret,
    pub(super) pending_logins: Vec<PendingLogin>,
    /// Limit of warnings about these peers.
    warnings: Warnings,
}

impl Greeter {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            secret,
            pending_logins: Vec::new(),
            warnings: Warnings::new("failed log-ins"),
        }
    }

    /// Adds a new connection.
    pub(super) fn add(&mut self, stream: Stream, peer: SocketAddr, permit: Permit) {
        if self.pending_logins.len() >= HALF_OPEN_COUNT_MAX {
            let _ = self.evict_oldest();
        }
        self.pending_logins.push(PendingLogin {
            stream,
            peer,
            stage: Stage::AwaitsHello,
            inbox: MessageInbox::default(),
            until: Instant::now() + GREETING_TIME_MAX,
            permit,
        });
    }

    /// Closes one of the connections to make space; returns false if there is none.
    pub(super) fn evict_oldest(&mut self) -> bool {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for pending_login in &self.pending_logins {
            *counts.entry(pending_login.peer.ip()).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let oldest = self
            .pending_logins
            .iter()
            .position(|pending_login| most.is_none_or(|(peer, _)| peer == pending_login.peer.ip()));
        if let Some(oldest) = oldest {
            let removed = self.pending_logins.remove(oldest);
            tracing::debug!(
                peer = %removed.peer,
                "connection closed: too many unauthenticated connections"
            );
        }
        oldest.is_some()
    }

    /// Processes connections that have sent something, by index; returns peers that have proven the
    /// secret.
    pub(super) fn on_input(&mut self, ready: &[bool]) -> Vec<AuthenticatedPeer> {
        let mut authenticated = Vec::new();
        let mut waiting = Vec::with_capacity(self.pending_logins.len());
        for (index, mut pending_login) in self.pending_logins.drain(..).enumerate() {
            let is_ready = ready.get(index).copied().unwrap_or(false) && pending_login.is_read();
            let step = if is_ready {
                pending_login.step(&self.secret, &mut self.warnings)
            } else {
                Ok(LoginAction::Wait)
            };
            match step {
                Ok(LoginAction::Wait) => waiting.push(pending_login),
                Ok(LoginAction::HangUp) => {}
                Ok(LoginAction::Admit(proof)) => {
                    authenticated.extend(pending_login.admitted(proof));
                }
                Err(error) => {
                    tracing::debug!(peer = %pending_login.peer, %error, "connection closed");
                }
            }
        }
        self.pending_logins = waiting;
        authenticated
    }

    /// Ends connections whose time is over, and logs the counted warnings that are due.
    pub(super) fn expire(&mut self, now: Instant) {
        self.warnings.log_withheld(now);
        self.pending_logins.retain_mut(|pending_login| {
            if pending_login.until > now {
                return true;
            }
            if pending_login.is_read() {
                let peer = &pending_login.peer;
                tracing::debug!(%peer, "connection closed: handshake timed out");
            } else {
                let reason = "wrong secret; use the secret that the node was started with, or a \
                              key that `farleaf secret derive` derived from it"
                    .to_owned();
                // If sending fails, the peer has disconnected.
                let _ = send(&mut pending_login.stream, &ControlReply::Refused(reason));
            }
            false
        });
    }
}

impl PendingLogin {
    fn admitted(self, proof: Proof) -> Option<AuthenticatedPeer> {
        let Stage::AwaitsProof(hello) = self.stage else {
            return None;
        };
        Some(AuthenticatedPeer {
            stream: self.stream,
            peer: self.peer,
            permit: self.permit,
            purpose: hello.purpose,
            rights: hello.rights,
            pid: hello.pid,
            pass: hello.pass,
            proof,
        })
    }
}
