//! Connections that have not shown yet whose they are.
//!
//! - **H1.** A stranger has [`GREETING_TIME_MAX`] for the whole greeting, and may keep the node
//!   waiting with at most one frame's bytes.
//! - **H2.** The node believes nothing before the proof has been checked, and answers a wrong one
//!   only after [`PENALTY_TIME`], whatever was wrong with it.
//! - **H3.** With [`HALF_OPEN_COUNT_MAX`] strangers waiting, one more takes the place of the oldest
//!   of the peer that has most of them: who knocks without end shuts out himself. So it is with
//!   fewer strangers, when there are as many connections as there may be, or no descriptor is left.
//! - **H4.** What strangers do is written to the log so many times a second, and counted beyond
//!   that.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::tcp::greeting::{FRAME_SIZE_BYTES, Frame, Nonce, Purpose, Reply, Request};
use crate::tcp::pass::Pass;
use crate::tcp::permit::Permit;
use crate::tcp::secret::{Proof, Rights, Secret, Side, fill_randomly};
use crate::tcp::stream::Stream;
use crate::tcp::warnings::Warnings;

/// H1.
const GREETING_TIME_MAX: Duration = Duration::from_secs(5);
/// H2.
const PENALTY_TIME: Duration = Duration::from_secs(1);
/// H3.
const HALF_OPEN_COUNT_MAX: usize = 256;

/// Receives messages of the fixed size, in pieces as they come.
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
    /// The next message, if it is whole.
    ///
    /// # Errors
    /// The connection is gone; never `WouldBlock`.
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
}

/// Sends a message of the fixed size, for which a peer that listens always has room.
///
/// # Errors
/// The peer does not listen.
pub(super) fn send(stream: &mut Stream, reply: &Reply) -> io::Result<()> {
    let frame = reply.encode();
    if stream.send(&frame)? == frame.len() {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// Somebody who has connected.
#[derive(Debug)]
pub(super) struct Stranger {
    pub(super) stream: Stream,
    pub(super) peer: SocketAddr,
    stage: Stage,
    inbox: MessageInbox,
    /// H1, or the end of the penalty.
    pub(super) until: Instant,
    permit: Permit,
}

#[derive(Debug)]
enum Stage {
    AwaitsHello,
    AwaitsProof(Box<Hello>),
    /// H2.
    Penalised,
}

/// What was said so far, which proofs are made of.
#[derive(Debug)]
struct Hello {
    purpose: Purpose,
    rights: Rights,
    pid: u32,
    pass: Pass,
    said_by_client: Frame,
    said_by_node: Frame,
}

/// Somebody who has shown that he knows the secret, and must be told the same.
#[derive(Debug)]
pub(super) struct Guest {
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

/// What is to be done with a stranger.
enum Step {
    Wait,
    HangUp,
    Admit(Proof),
}

impl Stranger {
    fn step(&mut self, secret: &Secret, warnings: &mut Warnings) -> io::Result<Step> {
        let Some(frame) = self.inbox.receive(&mut self.stream)? else {
            return Ok(Step::Wait);
        };
        let request = match Request::decode(&frame) {
            Ok(request) => request,
            Err(malformed) => {
                let reason = format!("this node was sent {}", malformed.0);
                if warnings.admits(self.peer, Instant::now()) {
                    tracing::warn!(peer = %self.peer, "turned away: {reason}");
                }
                send(&mut self.stream, &Reply::Refused(reason))?;
                return Ok(Step::HangUp);
            }
        };
        match (&self.stage, request) {
            (
                Stage::AwaitsHello,
                Request::Hello {
                    purpose,
                    rights,
                    pid,
                    pass,
                    ..
                },
            ) => {
                let mut nonce: Nonce = [0; 32];
                fill_randomly(&mut nonce)?;
                let challenge = Reply::Challenge(nonce);
                send(&mut self.stream, &challenge)?;
                self.stage = Stage::AwaitsProof(Box::new(Hello {
                    purpose,
                    rights,
                    pid,
                    pass,
                    said_by_client: frame,
                    said_by_node: challenge.encode(),
                }));
                Ok(Step::Wait)
            }
            (Stage::AwaitsProof(hello), Request::Proof(proof)) => {
                let said: &[&[u8]] = &[&hello.said_by_client, &hello.said_by_node];
                let rights = hello.rights;
                if secret.is_proven(rights, Side::Client, said, &proof)
                    && let Some(proof) = secret.prove(rights, Side::Node, said)
                {
                    return Ok(Step::Admit(proof));
                }
                let now = Instant::now();
                if warnings.admits(self.peer, now) {
                    tracing::warn!(peer = %self.peer, %rights, "log-in failed: wrong secret");
                }
                self.stage = Stage::Penalised;
                self.until = now + PENALTY_TIME;
                Ok(Step::Wait)
            }
            _ => {
                let reason = "this node was sent a request before the greeting was over";
                send(&mut self.stream, &Reply::Refused(reason.to_owned()))?;
                Ok(Step::HangUp)
            }
        }
    }

    /// Whether it is listened to.
    pub(super) fn is_heard(&self) -> bool {
        !matches!(self.stage, Stage::Penalised)
    }
}

/// The strangers of a node.
#[derive(Debug)]
pub(super) struct Greeter {
    secret: Secret,
    pub(super) strangers: Vec<Stranger>,
    /// H4.
    warnings: Warnings,
}

impl Greeter {
    pub(super) fn new(secret: Secret) -> Self {
        Self {
            secret,
            strangers: Vec::new(),
            warnings: Warnings::new("log-ins that failed"),
        }
    }

    /// Begins with somebody new.
    pub(super) fn add(&mut self, stream: Stream, peer: SocketAddr, permit: Permit) {
        if self.strangers.len() >= HALF_OPEN_COUNT_MAX {
            let _ = self.make_room();
        }
        self.strangers.push(Stranger {
            stream,
            peer,
            stage: Stage::AwaitsHello,
            inbox: MessageInbox::default(),
            until: Instant::now() + GREETING_TIME_MAX,
            permit,
        });
    }

    /// H3: hangs up on one of the strangers; false: there is none.
    pub(super) fn make_room(&mut self) -> bool {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for stranger in &self.strangers {
            *counts.entry(stranger.peer.ip()).or_default() += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let oldest = self
            .strangers
            .iter()
            .position(|stranger| most.is_none_or(|(peer, _)| peer == stranger.peer.ip()));
        if let Some(oldest) = oldest {
            let gone = self.strangers.remove(oldest);
            tracing::debug!(peer = %gone.peer, "hung up on: too many have not logged in");
        }
        oldest.is_some()
    }

    /// Goes on with those from whom something has come, by their places; returns who has shown that
    /// he knows the secret.
    pub(super) fn hear(&mut self, ready: &[bool]) -> Vec<Guest> {
        let mut guests = Vec::new();
        let mut waiting = Vec::with_capacity(self.strangers.len());
        for (index, mut stranger) in self.strangers.drain(..).enumerate() {
            let is_ready = ready.get(index).copied().unwrap_or(false) && stranger.is_heard();
            let step = if is_ready {
                stranger.step(&self.secret, &mut self.warnings)
            } else {
                Ok(Step::Wait)
            };
            match step {
                Ok(Step::Wait) => waiting.push(stranger),
                Ok(Step::HangUp) => {}
                Ok(Step::Admit(proof)) => guests.extend(stranger.admitted(proof)),
                Err(error) => tracing::debug!(peer = %stranger.peer, %error, "hung up"),
            }
        }
        self.strangers = waiting;
        guests
    }

    /// H1, H2: ends what has lasted too long. H4: tells what is due.
    pub(super) fn expire(&mut self, now: Instant) {
        self.warnings.tell(now);
        self.strangers.retain_mut(|stranger| {
            if stranger.until > now {
                return true;
            }
            if stranger.is_heard() {
                tracing::debug!(peer = %stranger.peer, "hung up on: the greeting took too long");
            } else {
                let reason = "wrong secret; give the one that it was started with, or a key that \
                              `farleaf secret derive` made from that one"
                    .to_owned();
                // Who does not listen to it has hung up.
                let _ = send(&mut stranger.stream, &Reply::Refused(reason));
            }
            false
        });
    }
}

impl Stranger {
    fn admitted(self, proof: Proof) -> Option<Guest> {
        let Stage::AwaitsProof(hello) = self.stage else {
            return None;
        };
        Some(Guest {
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
