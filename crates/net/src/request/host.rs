//! Server side of one connection: a greeting, and then requests, one after the other.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::greeting::Penalties;
use crate::secret::Secret;
use crate::warnings::Warnings;

use crate::request::admit::{Admission, Rejection, delay_refusal, drain};
use crate::request::budget::{MemoryBudget, MemoryRefusal};
use crate::request::channel::Channel;
use crate::request::cluster::{Membership, name_of};
use crate::request::connection_table::ConnectionSlot;
use crate::request::frame::{FRAME_SIZE_BYTES_MAX, Kind};
use crate::request::inbox::{Inbox, Limits, ReceiveError, Received};
use crate::request::outbox::send;
use crate::request::server::{Caller, Service};
use crate::request::socket::prepare;
use crate::tls::TlsServer;

/// Largest reply in bytes that is not counted, and whose memory is used again.
const SMALL_REPLY_SIZE_BYTES_MAX: usize = 64 << 10;

/// Settings and state that all connections of a server share.
#[derive(Debug)]
pub(crate) struct ServerContext {
    pub(crate) secret: Secret,
    /// Certificate, if connections are encrypted.
    pub(crate) tls: Option<TlsServer>,
    pub(crate) membership: Membership,
    pub(crate) request_size_bytes_max: usize,
    /// Longest time for a frame that has begun, in either direction.
    pub(crate) frame_time: Duration,
    /// Memory for requests and replies.
    pub(crate) budget: Arc<MemoryBudget>,
    /// Limiter of warnings about failed greetings.
    pub(crate) warnings: Mutex<Warnings>,
    /// Limit of wrong proofs per address.
    pub(crate) penalties: Mutex<Penalties>,
}

impl ServerContext {
    fn warns(&self, peer: SocketAddr) -> bool {
        let warnings = self.warnings.lock();
        let mut warnings = warnings.unwrap_or_else(PoisonError::into_inner);
        warnings.admits(peer, Instant::now())
    }

    /// Runs the greeting, and answers requests until the connection ends.
    pub(crate) fn serve(
        &self,
        socket: &Arc<TcpStream>,
        peer: SocketAddr,
        slot: &ConnectionSlot,
        service: &dyn Service,
    ) {
        let mut channel = Channel::plain(Arc::clone(socket));
        let admission = Admission {
            secret: &self.secret,
            tls: self.tls.as_ref(),
            request_size_bytes_max: self.request_size_bytes_max,
            membership: &self.membership,
            penalties: &self.penalties,
        };
        let greeted = prepare(socket).map_err(Rejection::from);
        let greeted =
            greeted.and_then(|()| admission.admit(&mut channel, peer.ip(), || slot.keep()));
        let proven = match greeted {
            Ok(proven) => proven,
            Err(Rejection::Replaced) => {
                let reason = "too many unauthenticated connections";
                return tracing::debug!(%peer, "connection closed: {reason}");
            }
            Err(Rejection::Refused(reason)) => {
                if self.warns(peer) {
                    tracing::warn!(%peer, "connection rejected: {reason}");
                }
                return;
            }
            Err(Rejection::WrongSecret) => {
                if self.warns(peer) {
                    tracing::warn!(%peer, "log-in failed: wrong secret");
                }
                return delay_refusal(&mut channel);
            }
            Err(Rejection::OtherCluster {
                expected,
                own: None,
            }) => {
                // When a cluster of an older version is adopted, its other servers may learn of
                // that earlier.
                if self.warns(peer) {
                    tracing::info!(
                        %peer,
                        "connection rejected: it expects {expected}; this server has no cluster id"
                    );
                }
                return;
            }
            Err(Rejection::OtherCluster { expected, own }) => {
                if self.warns(peer) {
                    tracing::error!(
                        %peer,
                        "rejected a connection that expects {expected}: this server belongs to {}. \
                         Either this server's directory was lost or replaced, or the peer uses a \
                         wrong address.",
                        name_of(own)
                    );
                }
                return;
            }
            Err(Rejection::Gone(error)) => {
                if error.kind() == io::ErrorKind::InvalidData {
                    if self.warns(peer) {
                        tracing::warn!(%peer, "connection rejected: TLS failed: {error}");
                    }
                    // The client has been sent the reason.
                    return drain(&mut channel);
                }
                return tracing::debug!(%peer, %error, "connection closed during the handshake");
            }
        };
        let caller = Caller {
            peer,
            rights: proven.key.rights(),
            scope: proven.key.scope(),
            key: proven.key.key_id(),
        };
        if let Err(how) = self.answer_all(&mut channel, &caller, service) {
            tracing::debug!(%peer, "connection closed: {how}");
        }
    }

    /// Answers requests. An error is the reason for the end, unless the client ended the
    /// connection.
    fn answer_all(
        &self,
        channel: &mut Channel,
        caller: &Caller,
        service: &dyn Service,
    ) -> Result<(), String> {
        let peer = caller.peer;
        let limits = Limits {
            size_bytes_max: self.request_size_bytes_max,
            time: self.frame_time,
        };
        let in_time = channel.set_read_time(limits.time);
        in_time
            .and_then(|()| channel.set_write_time(limits.time))
            .map_err(|error| error.to_string())?;
        // Half of it, so that the refusal arrives before a client with the same limit gives up.
        let memory_time = limits.time / 2;
        let client = peer.ip().to_canonical();
        let mut inbox = Inbox::limited(&self.budget, client, memory_time);
        let mut reply = Vec::new();
        loop {
            let reason = match inbox.receive(channel, limits) {
                Ok(Received::Frame(Kind::Request)) => {
                    // A large request has waited before it was read.
                    if self.budget.is_exceeded()
                        && !inbox.is_large()
                        && service.may_wait(inbox.payload())
                    {
                        let size_bytes = inbox.payload().len();
                        let waited =
                            self.budget
                                .wait_within_limits(client, size_bytes, memory_time);
                        if let Err(refusal) = waited {
                            return Err(self.refuse(channel, peer, &refusal));
                        }
                    }
                    reply.clear();
                    service.answer(caller, inbox.payload(), &mut reply);
                    inbox.release_frame();
                    let size_bytes = reply.len();
                    if size_bytes <= FRAME_SIZE_BYTES_MAX {
                        self.send_reply(channel, client, &mut reply)?;
                        continue;
                    }
                    format!(
                        "a reply of {size_bytes} bytes exceeds the limit of {FRAME_SIZE_BYTES_MAX}"
                    )
                }
                Ok(Received::Frame(_)) => "the peer sent a frame that is not a request".to_owned(),
                Ok(Received::Quiet) => continue,
                Ok(Received::End) => return Ok(()),
                Err(ReceiveError::Refused(refusal)) => {
                    return Err(self.refuse(channel, peer, &refusal));
                }
                Err(error) => error.text(),
            };
            // An error means that the client has disconnected, which does not matter.
            let _ = send(channel, Kind::Refusal, reason.as_bytes(), limits.time);
            return Err(reason);
        }
    }

    /// Sends the reason why a request gets no memory, and returns it.
    fn refuse(&self, channel: &mut Channel, peer: SocketAddr, refusal: &MemoryRefusal) -> String {
        let reason = refusal.to_string();
        if *refusal != MemoryRefusal::Stopping && self.warns(peer) {
            tracing::warn!(%peer, "connection closed: {reason}");
        }
        // An error means that the client has disconnected, which does not matter.
        let _ = send(channel, Kind::Busy, reason.as_bytes(), self.frame_time);
        reason
    }

    /// Sends a reply, whose memory counts as used until then, and is freed if it is large.
    fn send_reply(
        &self,
        channel: &mut Channel,
        client: IpAddr,
        reply: &mut Vec<u8>,
    ) -> Result<(), String> {
        let size_bytes = reply.len();
        let is_large = size_bytes > SMALL_REPLY_SIZE_BYTES_MAX;
        let _counted = is_large.then(|| self.budget.count_reply(client, size_bytes));
        let sent = send(channel, Kind::Answer, reply, self.frame_time);
        if reply.capacity() > SMALL_REPLY_SIZE_BYTES_MAX {
            *reply = Vec::new();
        }
        sent.map_err(|error| error.to_string())
    }
}
