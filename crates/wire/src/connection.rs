//! The side that asks.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use farleaf_fabric::tcp::{Secret, find_local_secret};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::cluster::{ClusterTag, Membership};
use crate::error::WireError;
use crate::frame::{FRAME_SIZE_BYTES_MAX, Kind};
use crate::handshake::{PROTOCOL, greet, key_of};
use crate::inbox::{Inbox, Limits, ReceiveError, Received};
use crate::outbox::send;
use crate::socket::{prepare, set_read_time, set_write_time};

/// How somebody is reached.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// What is proven to be known. Without one, that which a listener on loopback has left for
    /// programs of its user is taken (W4).
    pub secret: Option<Secret>,
    /// The cluster that is expected, if one is known: a server of another one is an error (W16).
    pub membership: Membership,
    /// How long connecting may take, and the greeting once more. A wrong secret is answered after a
    /// second (W8), so who gives less does not learn of it.
    pub connect_timeout: Duration,
    /// How long the begin of an answer is waited for, and how long it may take from then, with a
    /// second more for each MiB of it; the same for sending a request (W12).
    pub answer_timeout: Duration,
}

impl Default for ConnectOptions {
    /// No secret; 5 s to connect; 10 s for an answer.
    fn default() -> Self {
        Self {
            secret: None,
            membership: Membership::default(),
            connect_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
        }
    }
}

/// A connection that has been greeted. It is used by one thread at a time.
///
/// Once a call has failed, other than by [`WireError::RequestTooLarge`], it is of no more use, and
/// every further call fails (W10).
pub struct Connection {
    socket: TcpStream,
    address: String,
    inbox: Inbox,
    request_size_bytes_max: usize,
    cluster: Option<ClusterTag>,
    answer_timeout: Duration,
    /// What the socket has set.
    read_time: Duration,
    /// Requests whose answers have not been received.
    unanswered_count: usize,
    /// How it broke.
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
    /// Connects to `HOST:PORT` and greets: a round trip to connect and two more.
    ///
    /// # Errors
    /// The other side is not reached, does not greet, is of another version, does not let us in, or
    /// cannot prove that it knows the secret; there is no secret, or one that is no good here.
    pub fn connect(address: &str, options: &ConnectOptions) -> Result<Self, WireError> {
        let (socket, peer) = open(address, options.connect_timeout)?;
        let secret = match &options.secret {
            Some(secret) => secret.clone(),
            None => local_secret(address, peer)?,
        };
        let key = key_of(&secret, address)?;
        let failed = |source| WireError::Connect {
            address: address.to_owned(),
            source,
        };
        prepare(&socket).map_err(failed)?;
        let expected = options.membership.cluster();
        let admitted = greet(&socket, &key, (address, expected), options.connect_timeout)?;
        set_read_time(&socket, options.answer_timeout).map_err(failed)?;
        set_write_time(&socket, options.answer_timeout).map_err(failed)?;
        Ok(Self {
            socket,
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

    /// To whom it is, as it was given.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The cluster of the other side, which has proven to know the secret.
    pub fn cluster(&self) -> Option<ClusterTag> {
        self.cluster
    }

    /// How many bytes a request may have.
    pub fn request_size_bytes_max(&self) -> usize {
        self.request_size_bytes_max
    }

    /// Whether a request could be sent now, as far as is known here: nothing has failed, no answer
    /// is awaited, and the other side has not ended it. Costs one system call and no round trip.
    pub fn is_usable(&self) -> bool {
        if self.broken.is_some() || self.unanswered_count > 0 || !self.inbox.is_empty() {
            return false;
        }
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let seen = rustix::net::recv(&self.socket, &mut [0; 1], flags);
        matches!(seen, Err(Errno::AGAIN | Errno::INTR))
    }

    /// One round trip. The answer is lent until the next call.
    ///
    /// # Errors
    /// The request was not sent ([`is_unsent`](WireError::is_unsent)), or has no answer.
    ///
    /// # Panics
    /// A request that was sent before has no answer yet, and the connection is not broken.
    pub fn call(&mut self, request: &[u8]) -> Result<&[u8], WireError> {
        self.call_within(request, self.answer_timeout)
    }

    /// [`call`](Self::call) with another time limit for this answer.
    ///
    /// # Errors
    /// As of [`call`](Self::call).
    ///
    /// # Panics
    /// As [`call`](Self::call).
    pub fn call_within(&mut self, request: &[u8], timeout: Duration) -> Result<&[u8], WireError> {
        assert!(
            self.broken.is_some() || self.unanswered_count == 0,
            "the answers of earlier requests must be received first"
        );
        self.send(request)?;
        self.receive_within(timeout)
    }

    /// Sends a request whose answer is received later. Answers come in the order of requests.
    ///
    /// Whoever sends more than sockets have room for, and receives nothing, waits for the other
    /// side, which waits for him to receive: that ends after [`ConnectOptions::answer_timeout`],
    /// with an error.
    ///
    /// # Errors
    /// It was not sent ([`is_unsent`](WireError::is_unsent)); what was sent before may be done.
    pub fn send(&mut self, request: &[u8]) -> Result<(), WireError> {
        let address = || self.address.clone();
        if let Some(how) = &self.broken {
            let how = format!("the connection broke before: {how}");
            return Err(WireError::NotSent {
                address: address(),
                how,
            });
        }
        let (size_bytes, size_bytes_max) = (request.len(), self.request_size_bytes_max);
        if size_bytes > size_bytes_max {
            return Err(WireError::RequestTooLarge {
                address: address(),
                size_bytes,
                size_bytes_max,
            });
        }
        let time = self.answer_timeout;
        let sent = send(&mut &self.socket, Kind::Request, request, time);
        if let Err(error) = sent {
            let how = match error.kind() {
                io::ErrorKind::TimedOut => format!("it was not taken within {time:?}"),
                _ => error.to_string(),
            };
            let address = address();
            self.broken = Some(how.clone());
            return Err(WireError::NotSent { address, how });
        }
        self.unanswered_count += 1;
        Ok(())
    }

    /// The answer to the oldest request that has none, lent until the next call.
    ///
    /// # Errors
    /// There is none, or not in time.
    ///
    /// # Panics
    /// All requests have been answered.
    pub fn receive(&mut self) -> Result<&[u8], WireError> {
        self.receive_within(self.answer_timeout)
    }

    /// [`receive`](Self::receive) with another time limit for this answer.
    ///
    /// # Errors
    /// As of [`receive`](Self::receive).
    ///
    /// # Panics
    /// As [`receive`](Self::receive).
    pub fn receive_within(&mut self, timeout: Duration) -> Result<&[u8], WireError> {
        assert!(
            self.unanswered_count > 0,
            "there is a request that has no answer"
        );
        if let Some(how) = &self.broken {
            return Err(WireError::Lost {
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

    fn receive_answer(&mut self, timeout: Duration) -> Result<(), WireError> {
        let address = || self.address.clone();
        let lost = |how: String| WireError::Lost {
            address: address(),
            how,
        };
        if self.read_time != timeout {
            set_read_time(&self.socket, timeout).map_err(|error| lost(error.to_string()))?;
            self.read_time = timeout;
        }
        let limits = Limits {
            size_bytes_max: FRAME_SIZE_BYTES_MAX,
            time: timeout,
        };
        match self.inbox.receive(&mut &self.socket, limits) {
            Ok(Received::Frame(Kind::Answer)) => Ok(()),
            Ok(Received::Frame(Kind::Refusal)) => {
                let text = String::from_utf8_lossy(self.inbox.payload());
                Err(WireError::HungUp {
                    address: address(),
                    reason: text.chars().filter(|it| !it.is_control()).collect(),
                })
            }
            Ok(Received::Frame(Kind::Request)) => {
                Err(lost("the other side sent a request".to_owned()))
            }
            Ok(Received::Quiet) | Err(ReceiveError::TooSlow) => Err(WireError::TimedOut {
                address: address(),
                timeout,
            }),
            Ok(Received::End) => Err(lost("the other side has ended the connection".to_owned())),
            Err(error) => Err(lost(error.text())),
        }
    }
}

/// W4: what a listener on loopback has left for programs of its user.
fn local_secret(address: &str, peer: SocketAddr) -> Result<Secret, WireError> {
    let found = find_local_secret(PROTOCOL, peer.ip(), peer.port());
    let found = found.map_err(|source| WireError::SecretFile {
        address: address.to_owned(),
        source,
    })?;
    found.ok_or_else(|| WireError::NoSecret {
        address: address.to_owned(),
    })
}

/// Connects to the first of the addresses of `HOST:PORT` at which somebody listens.
fn open(address: &str, time: Duration) -> Result<(TcpStream, SocketAddr), WireError> {
    let failed = |source| WireError::Connect {
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
    let none = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    Err(failed(last.unwrap_or_else(none)))
}
