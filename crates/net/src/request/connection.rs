//! Client side of a connection.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::secret::{Secret, find_local_secret};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::request::channel::Channel;
use crate::request::cluster::{ClusterTag, Membership};
use crate::request::details::PROTOCOL;
use crate::request::error::NetError;
use crate::request::frame::{FRAME_SIZE_BYTES_MAX, Kind};
use crate::request::greet::{greet, is_memory_node};
use crate::request::inbox::{Inbox, Limits, ReceiveError, Received};
use crate::request::outbox::send;
use crate::request::socket::prepare;
use crate::tls::{TlsClient, host_of, how_tls_failed};

/// Time for the reason of a connection's end to be read; it has arrived before the end.
const REASON_TIME: Duration = Duration::from_millis(10);

/// Options of a connection.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Secret to prove. Without one, the client uses the secret that a listener on loopback has
    /// stored for its user's programs.
    pub secret: Option<Secret>,
    /// Authorities that the server's certificate must lead to. If given, the connection is
    /// encrypted, and the certificate must be valid for the host in the address.
    pub tls: Option<TlsClient>,
    /// Expected cluster, if known: a server of another one is an error.
    pub membership: Membership,
    /// Timeout for connecting, and again for the greeting. A server answers a wrong secret only
    /// after a second, so with a shorter timeout the client does not learn of it.
    pub connect_timeout: Duration,
    /// Time until a reply must begin, and from then on until it is complete, plus a second per MiB
    /// of it. The same limits apply to sending a request.
    pub answer_timeout: Duration,
}

impl Default for ConnectOptions {
    /// Returns options without a secret, with 5 s for connecting and 10 s for a reply.
    fn default() -> Self {
        Self {
            secret: None,
            tls: None,
            membership: Membership::default(),
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
        }
    }
}

/// Authenticated connection, used by one thread at a time.
///
/// After a call has failed, other than by [`NetError::RequestTooLarge`], every further call fails.
pub struct Connection {
    channel: Channel,
    address: String,
    inbox: Inbox,
    request_size_bytes_max: usize,
    cluster: Option<ClusterTag>,
    answer_timeout: Duration,
    /// Read timeout that is set on the socket.
    read_time: Duration,
    /// Requests whose replies have not been received.
    unanswered_count: usize,
    /// Cause of the failure, if the connection is broken.
    broken: Option<String>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Connection")
            .field("address", &self.address)
            .field("unanswered_count", &self.unanswered_count)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects to `HOST:PORT` and authenticates. Costs one round trip to connect, two to
    /// authenticate, and with TLS one more.
    ///
    /// # Errors
    /// The server cannot be reached, does not send a greeting, has another version, rejects the
    /// client, or cannot prove that it knows the secret; or there is no secret, or an unsuitable
    /// one.
    pub fn connect(address: &str, options: &ConnectOptions) -> Result<Self, NetError> {
        let (channel, peer) = open_channel(address, options)?;
        let Some(secret) = &options.secret else {
            let mut channel = channel;
            return match local_secret(address, peer) {
                Err(NetError::NoSecret { address })
                    if is_memory_node(&mut channel, options.connect_timeout) =>
                {
                    Err(NetError::MemoryNode { address })
                }
                secret => Self::greet(channel, address, options, &secret?),
            };
        };
        let options = ConnectOptions {
            connect_timeout: secret.greeting_time(options.connect_timeout),
            ..options.clone()
        };
        let mut opened = Some(channel);
        let greet = |secret: &Secret| {
            let channel = match opened.take() {
                Some(channel) => channel,
                None => open_channel(address, &options)?.0,
            };
            Self::greet(channel, address, &options, secret)
        };
        secret.prove_any(greet, |error| matches!(error, NetError::WrongSecret { .. }))
    }

    /// Authenticates with a secret.
    fn greet(
        mut channel: Channel,
        address: &str,
        options: &ConnectOptions,
        secret: &Secret,
    ) -> Result<Self, NetError> {
        let failed = |source| NetError::Connect {
            address: address.to_owned(),
            source,
        };
        let expected = options.membership.cluster();
        if let Some(tls) = &options.tls {
            let encrypted = channel.encrypt_for(tls, host_of(address));
            encrypted.map_err(|error| NetError::Tls {
                address: address.to_owned(),
                how: how_tls_failed(&error),
            })?;
        }
        let time = options.connect_timeout;
        let admitted = greet(&mut channel, secret, address, expected, time)?;
        channel
            .set_read_time(options.answer_timeout)
            .map_err(failed)?;
        channel
            .set_write_time(options.answer_timeout)
            .map_err(failed)?;
        Ok(Self {
            channel,
            address: address.to_owned(),
            inbox: Inbox::new(),
            request_size_bytes_max: admitted.request_size_bytes_max.min(FRAME_SIZE_BYTES_MAX),
            cluster: admitted.cluster,
            answer_timeout: options.answer_timeout,
            read_time: options.answer_timeout,
            unanswered_count: 0,
            broken: None,
        })
    }

    /// Returns the server's address, as passed to [`connect`](Self::connect).
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the server's cluster; the server has proven that it knows the secret.
    pub fn cluster(&self) -> Option<ClusterTag> {
        self.cluster
    }

    /// Returns the largest size of a request in bytes.
    pub fn request_size_bytes_max(&self) -> usize {
        self.request_size_bytes_max
    }

    /// Returns whether a request can be sent now, as far as this side knows: nothing has failed, no
    /// reply is pending, and the server has not closed the connection. Costs one system call and no
    /// round trip.
    pub fn is_usable(&self) -> bool {
        if self.broken.is_some() || self.unanswered_count > 0 || !self.inbox.is_empty() {
            return false;
        }
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let peeked = rustix::net::recv(self.channel.socket(), &mut [0; 1], flags);
        matches!(peeked, Err(Errno::AGAIN | Errno::INTR))
    }

    /// Sends a request and returns its reply, which is borrowed until the next call. Costs one
    /// round trip.
    ///
    /// # Errors
    /// The request was not sent ([`is_unsent`](NetError::is_unsent)), or has no reply.
    ///
    /// # Panics
    /// If an earlier request has no reply yet and the connection is not broken.
    pub fn call(&mut self, request: &[u8]) -> Result<&[u8], NetError> {
        self.call_within(request, self.answer_timeout)
    }

    /// Sends a request like [`call`](Self::call), with another timeout for this reply.
    ///
    /// # Errors
    /// The same as those of [`call`](Self::call).
    ///
    /// # Panics
    /// In the same cases as [`call`](Self::call).
    pub fn call_within(&mut self, request: &[u8], timeout: Duration) -> Result<&[u8], NetError> {
        assert!(
            self.broken.is_some() || self.unanswered_count == 0,
            "the replies to earlier requests must be received first"
        );
        self.send(request)?;
        self.receive_within(timeout)
    }

    /// Sends a request whose reply is received later. Replies come in the order of requests.
    ///
    /// A client that fills the sockets' buffers without receiving replies blocks the server, which
    /// blocks the client. This ends with an error after [`ConnectOptions::answer_timeout`].
    ///
    /// # Errors
    /// The request was not sent ([`is_unsent`](NetError::is_unsent)); earlier requests may be
    /// executed.
    pub fn send(&mut self, request: &[u8]) -> Result<(), NetError> {
        let address = || self.address.clone();
        if let Some(how) = &self.broken {
            let how = format!("the connection failed earlier: {how}");
            return Err(NetError::NotSent {
                address: address(),
                how,
            });
        }
        let (size_bytes, size_bytes_max) = (request.len(), self.request_size_bytes_max);
        if size_bytes > size_bytes_max {
            return Err(NetError::RequestTooLarge {
                address: address(),
                size_bytes,
                size_bytes_max,
            });
        }
        let time = self.answer_timeout;
        let sent = send(&mut self.channel, Kind::Request, request, time);
        if let Err(error) = sent {
            let how = match error.kind() {
                io::ErrorKind::TimedOut => format!("timed out after {time:?}"),
                _ => (self.refusal()).unwrap_or_else(|| error.to_string()),
            };
            let address = self.address.clone();
            self.broken = Some(how.clone());
            return Err(NetError::NotSent { address, how });
        }
        self.unanswered_count += 1;
        Ok(())
    }

    /// Returns the reason that the server has given for closing the connection, if any.
    fn refusal(&mut self) -> Option<String> {
        self.channel.set_read_time(REASON_TIME).ok()?;
        let limits = Limits {
            size_bytes_max: FRAME_SIZE_BYTES_MAX,
            time: REASON_TIME,
        };
        loop {
            match self.inbox.receive(&mut self.channel, limits).ok()? {
                Received::Frame(Kind::Answer) => {}
                Received::Frame(Kind::Refusal | Kind::Busy) => {
                    let reason = reason_in(self.inbox.payload());
                    return Some(format!("the server closed the connection: {reason}"));
                }
                _ => return None,
            }
        }
    }

    /// Returns the reply to the oldest unanswered request, borrowed until the next call.
    ///
    /// # Errors
    /// There is no reply, or not in time.
    ///
    /// # Panics
    /// If all requests have been answered.
    pub fn receive(&mut self) -> Result<&[u8], NetError> {
        self.receive_within(self.answer_timeout)
    }

    /// Receives a reply like [`receive`](Self::receive), with another timeout for it.
    ///
    /// # Errors
    /// The same as those of [`receive`](Self::receive).
    ///
    /// # Panics
    /// In the same cases as [`receive`](Self::receive).
    pub fn receive_within(&mut self, timeout: Duration) -> Result<&[u8], NetError> {
        assert!(
            self.unanswered_count > 0,
            "there must be a request without a reply"
        );
        if let Some(how) = &self.broken {
            return Err(NetError::Lost {
                address: self.address.clone(),
                how: how.clone(),
            });
        }
        if let Err(error) = self.receive_answer(timeout) {
            self.broken = Some(error.to_string());
            return Err(error);
        }
        self.unanswered_count -= 1;
        Ok(self.inbox.payload())
    }

    fn receive_answer(&mut self, timeout: Duration) -> Result<(), NetError> {
        let address = || self.address.clone();
        let lost = |how: String| NetError::Lost {
            address: address(),
            how,
        };
        if self.read_time != timeout {
            self.channel
                .set_read_time(timeout)
                .map_err(|error| lost(error.to_string()))?;
            self.read_time = timeout;
        }
        let limits = Limits {
            size_bytes_max: FRAME_SIZE_BYTES_MAX,
            time: timeout,
        };
        match self.inbox.receive(&mut self.channel, limits) {
            Ok(Received::Frame(Kind::Answer)) => Ok(()),
            Ok(Received::Frame(Kind::Refusal)) => Err(NetError::ClosedByServer {
                address: address(),
                reason: reason_in(self.inbox.payload()),
            }),
            Ok(Received::Frame(Kind::Busy)) => Err(NetError::Busy {
                address: address(),
                reason: reason_in(self.inbox.payload()),
            }),
            Ok(Received::Frame(Kind::Request)) => Err(lost(
                "the peer sent a request instead of a reply".to_owned(),
            )),
            Ok(Received::Quiet) | Err(ReceiveError::TooSlow) => Err(NetError::TimedOut {
                address: address(),
                timeout,
            }),
            Ok(Received::End) => Err(lost("the peer closed the connection".to_owned())),
            Err(error) => Err(lost(error.text())),
        }
    }
}

/// Connects, without a greeting.
fn open_channel(
    address: &str,
    options: &ConnectOptions,
) -> Result<(Channel, SocketAddr), NetError> {
    let (socket, peer) = open(address, options.connect_timeout)?;
    prepare(&socket).map_err(|source| NetError::Connect {
        address: address.to_owned(),
        source,
    })?;
    Ok((Channel::plain(Arc::new(socket)), peer))
}

/// Returns the text of a refusal.
fn reason_in(payload: &[u8]) -> String {
    let text = String::from_utf8_lossy(payload);
    text.chars().filter(|it| !it.is_control()).collect()
}

/// Reads the secret that a listener on loopback has stored for its user's programs.
fn local_secret(address: &str, peer: SocketAddr) -> Result<Secret, NetError> {
    let secret = find_local_secret(PROTOCOL, peer.ip(), peer.port());
    let secret = secret.map_err(|source| NetError::SecretFile {
        address: address.to_owned(),
        source,
    })?;
    secret.ok_or_else(|| NetError::NoSecret {
        address: address.to_owned(),
    })
}

/// Connects to the first of the addresses of `HOST:PORT` that accepts a connection.
fn open(address: &str, time: Duration) -> Result<(TcpStream, SocketAddr), NetError> {
    let failed = |source| NetError::Connect {
        address: address.to_owned(),
        source,
    };
    let until = Instant::now() + time;
    let mut last = None;
    for candidate in address.to_socket_addrs().map_err(failed)? {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            last.get_or_insert_with(|| io::ErrorKind::TimedOut.into());
            break;
        }
        match TcpStream::connect_timeout(&candidate, left) {
            Ok(socket) => return Ok((socket, candidate)),
            Err(error) => last = Some(error),
        }
    }
    let none = || io::Error::new(io::ErrorKind::NotFound, "the name resolves to no address");
    Err(failed(last.unwrap_or_else(none)))
}
