//! The client's side: a process's connection to a memory node, and the data connections that it
//! opens for sessions.

use std::io::{self, Read, Write};
use std::mem;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farleaf_types::OwnerWord;

use crate::control::{Control, ControlError, SessionLife};
use crate::tcp::connection::Connection;
use crate::tcp::endpoint::TcpEndpoint;
use crate::tcp::greeting::{FRAME_SIZE_BYTES, Frame, Nonce, Purpose, Reply, Request, Ticket};
use crate::tcp::local_secret::find_local_secret;
use crate::tcp::secret::{Rights, Secret, Side, fill_randomly};
use crate::tcp::stream::Stream;

/// How a node is connected to.
#[derive(Clone, Debug)]
pub struct TcpConnectOptions {
    /// The pool's secret, or a key derived from it. Without one, a node of this host is asked whether
    /// it has left one for this user's programs.
    pub secret: Option<Secret>,
    /// What sessions may do; all that the secret gives if `None`.
    pub rights: Option<Rights>,
    /// A node that does not answer for so long is lost. Not 0.
    pub answer_time_max: Duration,
}

impl Default for TcpConnectOptions {
    /// No secret; all rights; 10 s.
    fn default() -> Self {
        Self {
            secret: None,
            rights: None,
            answer_time_max: Duration::from_secs(10),
        }
    }
}

/// A process's connection to the memory node at an address.
#[derive(Debug)]
pub struct TcpClient {
    pool: String,
    address: SocketAddr,
    secret: Secret,
    rights: Rights,
    ticket: Ticket,
    region_size_bytes: u64,
    answer_time_max: Duration,
    /// How a call failed half way, once one has: the late answer to it would be taken for the
    /// answer to the next one.
    socket: Mutex<Result<TcpStream, io::ErrorKind>>,
}

/// What the node says to who has proven to know the secret.
struct Welcome {
    region_size_bytes: u64,
    ticket: Ticket,
}

impl TcpClient {
    /// Connects to the node at `HOST:PORT`.
    ///
    /// # Errors
    /// No node listens there, it is of another version, it wants another secret, or knows less than
    /// it should.
    pub fn connect(address: &str, options: &TcpConnectOptions) -> Result<Self, ControlError> {
        let pool = format!("tcp:{address}");
        let unreachable = |source| ControlError::Unreachable {
            pool: pool.clone(),
            source,
        };
        let (socket, peer) = open_socket(address, options.answer_time_max).map_err(unreachable)?;
        let secret = match &options.secret {
            Some(secret) => Some(secret.clone()),
            None => find_local_secret(peer.ip(), peer.port()).map_err(|error| {
                unreachable(io::Error::new(io::ErrorKind::PermissionDenied, error))
            })?,
        };
        let refused = |reason: &str| ControlError::Refused {
            pool: pool.clone(),
            reason: reason.to_owned(),
        };
        let secret = secret.ok_or_else(|| {
            refused("it wants a secret, and none was given (--secret-file or FARLEAF_SECRET_FILE)")
        })?;
        let rights = options.rights.unwrap_or(secret.rights());
        let mut client = Self {
            pool: pool.clone(),
            address: peer,
            secret,
            rights,
            ticket: Ticket([0; 16]),
            region_size_bytes: 0,
            answer_time_max: options.answer_time_max,
            socket: Mutex::new(Err(io::ErrorKind::NotConnected)),
        };
        let welcome = client.greet(&socket, Purpose::Control)?;
        client.ticket = welcome.ticket;
        client.region_size_bytes = welcome.region_size_bytes;
        client.socket = Mutex::new(Ok(socket));
        Ok(client)
    }

    /// What its sessions may do.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Size of the node's region, in bytes.
    pub fn region_size_bytes(&self) -> u64 {
        self.region_size_bytes
    }

    /// Opens a data connection: of a session, whose only one it is, or of the process as such.
    ///
    /// # Errors
    /// The node cannot be reached, or does not know the session any more.
    pub fn endpoint(&self, owner: Option<OwnerWord>) -> Result<TcpEndpoint, ControlError> {
        let unreachable = |source| self.unanswered(source);
        let socket = connect_to(self.address, self.answer_time_max).map_err(unreachable)?;
        let ticket = self.ticket;
        let welcome = self.greet(&socket, Purpose::Data { ticket, owner })?;
        let stream = Stream::new(socket).map_err(unreachable)?;
        let region_word_count = welcome.region_size_bytes / 8;
        let connection = Connection::new(stream, region_word_count, self.answer_time_max);
        Ok(TcpEndpoint::new([connection]))
    }

    fn greet(&self, socket: &TcpStream, purpose: Purpose) -> Result<Welcome, ControlError> {
        let mut nonce: Nonce = [0; 32];
        fill_randomly(&mut nonce).map_err(|source| self.unanswered(source))?;
        let hello = Request::Hello {
            purpose,
            rights: self.rights,
            pid: std::process::id(),
            nonce,
        };
        let hello = hello.encode();
        let challenge = self.ask(socket, &hello)?;
        match self.decode(&challenge)? {
            Reply::Challenge(_) => {}
            reply => return Err(self.unexpected(&reply)),
        }
        let said: &[&[u8]] = &[&hello, &challenge];
        let proof = self.secret.prove(self.rights, Side::Client, said);
        let proof = proof.ok_or_else(|| ControlError::Refused {
            pool: self.pool.clone(),
            reason: format!(
                "the key that was given is one to {}, and not to {}",
                self.secret.rights(),
                self.rights
            ),
        })?;
        let welcome = self.ask(socket, &Request::Proof(proof).encode())?;
        match self.decode(&welcome)? {
            Reply::Welcome {
                region_size_bytes,
                proof,
                ticket,
            } => {
                if !self.secret.is_proven(self.rights, Side::Node, said, &proof) {
                    return Err(self.malformed("a proof of another secret"));
                }
                Ok(Welcome {
                    region_size_bytes,
                    ticket,
                })
            }
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn ask(&self, socket: &TcpStream, request: &Frame) -> Result<Frame, ControlError> {
        exchange(socket, request).map_err(|source| self.unanswered(source))
    }

    fn decode(&self, frame: &Frame) -> Result<Reply, ControlError> {
        match Reply::decode(frame).map_err(|malformed| self.malformed(&malformed.0))? {
            Reply::Refused(reason) => Err(ControlError::Refused {
                pool: self.pool.clone(),
                reason,
            }),
            reply => Ok(reply),
        }
    }

    fn call(&self, request: &Request) -> Result<Reply, ControlError> {
        let frame = self
            .exchange_once(&request.encode())
            .map_err(|source| self.unanswered(source))?;
        self.decode(&frame)
    }

    fn exchange_once(&self, request: &Frame) -> io::Result<Frame> {
        // The socket is out of its place during the exchange, so a thread that panicked in one
        // left none behind, and a poisoned lock needs no other care.
        let mut place = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = mem::replace(&mut *place, Err(io::ErrorKind::NotConnected));
        let socket = socket.map_err(|kind| {
            *place = Err(kind);
            io::Error::new(kind, "an earlier call was not answered")
        })?;
        match exchange(&socket, request) {
            Ok(reply) => {
                *place = Ok(socket);
                Ok(reply)
            }
            Err(error) => {
                *place = Err(error.kind());
                Err(error)
            }
        }
    }

    /// A socket whose time limit has passed would block.
    fn unanswered(&self, source: io::Error) -> ControlError {
        let pool = self.pool.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ControlError::Silent { pool },
            _ => ControlError::Unreachable { pool, source },
        }
    }

    fn malformed(&self, what: &str) -> ControlError {
        ControlError::Malformed {
            pool: self.pool.clone(),
            what: what.to_owned(),
        }
    }

    fn unexpected(&self, reply: &Reply) -> ControlError {
        self.malformed(&format!("an answer to another question ({reply:?})"))
    }
}

impl Control for TcpClient {
    fn register_session(&self) -> Result<OwnerWord, ControlError> {
        match self.call(&Request::Register)? {
            Reply::Session(owner) => Ok(owner),
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        match self.call(&Request::Close(owner))? {
            Reply::Closed => Ok(()),
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn session_life(&self, owner: OwnerWord) -> Result<SessionLife, ControlError> {
        match self.call(&Request::Life(owner))? {
            Reply::Life(Some(pid)) => Ok(SessionLife::Alive { pid }),
            Reply::Life(None) => Ok(SessionLife::Fenced),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// The node closes the session's connection and fences it at once. A session of a process of
    /// the node's own host, which is not connected by `tcp`, is refused.
    fn fence_session(
        &self,
        owner: OwnerWord,
        _unresponsive: &mut dyn FnMut(SessionLife),
    ) -> Result<(), ControlError> {
        match self.call(&Request::Fence(owner))? {
            Reply::Fenced => Ok(()),
            reply => Err(self.unexpected(&reply)),
        }
    }
}

/// Connects to the first address behind a name that answers.
fn open_socket(address: &str, time_max: Duration) -> io::Result<(TcpStream, SocketAddr)> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for peer in address.to_socket_addrs()? {
        match connect_to(peer, time_max) {
            Ok(socket) => return Ok((socket, peer)),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn connect_to(peer: SocketAddr, time_max: Duration) -> io::Result<TcpStream> {
    let socket = TcpStream::connect_timeout(&peer, time_max)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(time_max))?;
    socket.set_write_timeout(Some(time_max))?;
    Ok(socket)
}

fn exchange(mut socket: &TcpStream, request: &Frame) -> io::Result<Frame> {
    // A node that turned this client away hung up, but may have said why before.
    match socket.write_all(request) {
        Err(error) if !is_hang_up(&error) => return Err(error),
        _ => {}
    }
    let mut frame = [0; FRAME_SIZE_BYTES];
    socket.read_exact(&mut frame).map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            io::Error::new(io::ErrorKind::ConnectionReset, "the node hung up")
        } else {
            error
        }
    })?;
    Ok(frame)
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}
