//! The client's side: a process's connection to a memory node, and the data connections that it
//! opens for sessions.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_types::{NodeId, OwnerWord};

use crate::control::{Control, ControlError, SessionLife};
use crate::network::{Home, NodeDirectory, Others};
use crate::tcp::TcpEndpoint;
use crate::tcp::connection::TcpConnection;
use crate::tcp::greeting::{
    FRAME_SIZE_BYTES, Frame, JoinRequest, Joined, MemberReply, Nonce, Purpose, Reply, Request,
    Ticket,
};
use crate::tcp::lifeline::Lifeline;
use crate::tcp::local_secret::{PROTOCOL, find_local_secret};
use crate::tcp::pass::Pass;
use crate::tcp::secret::{Rights, Secret, Side, fill_randomly};
use crate::tcp::stream::Stream;
use crate::tcp::tls::{TlsClient, TlsLayer};
use crate::verbs::{NodeQueue, QueueParameters, VerbsOptions};

/// Between two questions whether a session is fenced: most are soon.
const LIFE_REST_MIN: Duration = Duration::from_micros(100);
const LIFE_REST_MAX: Duration = Duration::from_millis(20);

/// How a node is connected to.
#[derive(Clone, Debug)]
pub struct TcpConnectOptions {
    /// The pool's secret, or a key derived from it. Without one, a node of this host is asked
    /// whether it has left one for this user's programs.
    pub secret: Option<Secret>,
    /// What sessions may do; all that the secret gives if `None`.
    pub rights: Option<Rights>,
    /// The authorities whose certificates are taken; with them, the connection is encrypted.
    pub tls: Option<TlsClient>,
    /// A node that does not answer for so long is lost. Not 0.
    pub answer_time_max: Duration,
    /// Of `verbs` pools: what is used of this host's RDMA devices.
    pub verbs: VerbsOptions,
}

impl Default for TcpConnectOptions {
    /// No secret; all rights; no TLS; 10 s; devices as they are found.
    fn default() -> Self {
        Self {
            secret: None,
            rights: None,
            tls: None,
            answer_time_max: Duration::from_secs(10),
            verbs: VerbsOptions::default(),
        }
    }
}

/// A process's connection to the memory node at an address.
#[derive(Debug)]
pub struct TcpClient {
    pool: String,
    address: SocketAddr,
    /// The name that a certificate must have.
    host: String,
    tls: Option<TlsClient>,
    secret: Secret,
    rights: Rights,
    ticket: Ticket,
    region_size_bytes: u64,
    answer_time_max: Duration,
    /// Of the sessions that the pool's home has registered, by their words.
    passes: Arc<Mutex<HashMap<u64, Pass>>>,
    /// Its socket: who ends the connection waits for no call.
    socket: TcpStream,
    /// How a call failed half way, once one has: the late answer to it would be taken for the
    /// answer to the next one.
    stream: Mutex<Result<Stream, io::ErrorKind>>,
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
            None => find_local_secret(PROTOCOL, peer.ip(), peer.port()).map_err(|error| {
                unreachable(io::Error::new(io::ErrorKind::PermissionDenied, error))
            })?,
        };
        let refused = |reason: &str| ControlError::Refused {
            pool: pool.clone(),
            reason: reason.to_owned(),
        };
        let secret = secret.ok_or_else(|| {
            refused("it wants a secret, and none was given (--secret-file or FARLEAF_SECRET)")
        })?;
        let rights = options.rights.unwrap_or(secret.rights());
        let mut client = Self {
            socket: socket.try_clone().map_err(unreachable)?,
            pool: pool.clone(),
            address: peer,
            host: host_of(address).to_owned(),
            tls: options.tls.clone(),
            secret,
            rights,
            ticket: Ticket([0; 16]),
            region_size_bytes: 0,
            answer_time_max: options.answer_time_max,
            passes: Arc::default(),
            stream: Mutex::new(Err(io::ErrorKind::NotConnected)),
        };
        let mut stream = client.stream(socket)?;
        let welcome = client.greet(&mut stream, Purpose::Control)?;
        client.ticket = welcome.ticket;
        client.region_size_bytes = welcome.region_size_bytes;
        client.stream = Mutex::new(Ok(stream));
        Ok(client)
    }

    /// This client of one of a pool's other nodes, which lets in the sessions that `home` has
    /// registered, by their passes.
    #[must_use]
    pub fn with_sessions_of(mut self, home: &Self) -> Self {
        self.passes = Arc::clone(&home.passes);
        self
    }

    /// This client of one of a pool's other nodes, which lets a session in by its pass: of the home
    /// itself, which has the key of all passes.
    #[must_use]
    pub fn with_pass(self, owner: OwnerWord, pass: Pass) -> Self {
        self.passes().insert(owner.word(), pass);
        self
    }

    fn passes(&self) -> MutexGuard<'_, HashMap<u64, Pass>> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The secret that it has proven to know: the one it was given, or has found.
    pub fn secret(&self) -> &Secret {
        &self.secret
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
        Ok(TcpEndpoint::to_one(self.connection(owner)?))
    }

    /// [`endpoint`](Self::endpoint) to this node, the pool's home, and to the others as they are
    /// needed.
    ///
    /// # Errors
    /// As for [`endpoint`](Self::endpoint).
    pub fn pool_endpoint(
        &self,
        owner: Option<OwnerWord>,
        nodes: Arc<dyn NodeDirectory>,
    ) -> Result<TcpEndpoint, ControlError> {
        let home = Home::Connected(self.connection(owner)?);
        let others = Others {
            directory: nodes,
            owner,
            means: (),
        };
        Ok(TcpEndpoint::to_pool(home, others))
    }

    /// A data connection.
    pub(super) fn connection(
        &self,
        owner: Option<OwnerWord>,
    ) -> Result<TcpConnection, ControlError> {
        let unreachable = |source| self.unanswered(source);
        let socket = connect_to(self.address, self.answer_time_max).map_err(unreachable)?;
        let ticket = self.ticket;
        let mut stream = self.stream(socket)?;
        let welcome = self.greet(&mut stream, Purpose::Data { ticket, owner })?;
        let region_word_count = welcome.region_size_bytes / 8;
        Ok(TcpConnection::new(
            stream,
            region_word_count,
            self.answer_time_max,
        ))
    }

    /// Where the pool's home node is, if this is another one.
    ///
    /// # Errors
    /// The node cannot be reached.
    pub fn home_address(&self) -> Result<Option<String>, ControlError> {
        match self.call(&Request::Home)? {
            Reply::Home(address) => Ok((!address.is_empty()).then_some(address)),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// Asks the pool's home to take a node in, which may be under way for a while.
    ///
    /// # Errors
    /// The home cannot be reached, or does not want it.
    pub fn join(&self, request: &JoinRequest) -> Result<Joined, ControlError> {
        match self.call(&Request::Join(request.clone()))? {
            Reply::Joined(joined) => Ok(joined),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// Asks the pool's home to set what is to become of a node; returns what is.
    ///
    /// # Errors
    /// The home cannot be reached, or does not want that.
    pub fn set_member(&self, node: NodeId, state: u64) -> Result<MemberReply, ControlError> {
        match self.call(&Request::SetMember { node, state })? {
            Reply::Member(member) => Ok(member),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// What is to become of a node, by the word of the pool's home.
    ///
    /// # Errors
    /// The home cannot be reached.
    pub fn member(&self, node: NodeId) -> Result<MemberReply, ControlError> {
        match self.call(&Request::Member(node))? {
            Reply::Member(member) => Ok(member),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// Ends the connection, and with that all that waits for an answer, at once.
    pub fn hang_up(&self) {
        // One that is over already has no other end.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Ok(mut place) = self.stream.try_lock() {
            *place = Err(io::ErrorKind::ConnectionAborted);
        }
    }

    /// How long a node may take for an answer before it counts as lost.
    pub fn answer_time_max(&self) -> Duration {
        self.answer_time_max
    }

    /// Exchanges the two ends of a session's queue pair. The connection stays open, and is the
    /// node's way to say that it is over.
    pub(crate) fn open_queue(
        &self,
        owner: OwnerWord,
        own: QueueParameters,
    ) -> Result<(Lifeline, NodeQueue), ControlError> {
        let unreachable = |source| self.unanswered(source);
        let socket = connect_to(self.address, self.answer_time_max).map_err(unreachable)?;
        let ticket = self.ticket;
        let mut stream = self.stream(socket)?;
        self.greet(&mut stream, Purpose::Queue { ticket, owner })?;
        let answer = self.ask(&mut stream, &Request::Queue(own).encode())?;
        match self.decode(&answer)? {
            Reply::Queue(node) => Ok((Lifeline::new(stream), node)),
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn stream(&self, socket: TcpStream) -> Result<Stream, ControlError> {
        let layer = |tls| TlsLayer::of_client(tls, &self.host);
        let tls = self.tls.as_ref().map(layer).transpose();
        let stream = tls.and_then(|tls| Stream::new(socket, tls));
        stream.map_err(|source| self.unanswered(source))
    }

    fn greet(&self, stream: &mut Stream, purpose: Purpose) -> Result<Welcome, ControlError> {
        let mut nonce: Nonce = [0; 32];
        fill_randomly(&mut nonce).map_err(|source| self.unanswered(source))?;
        let owner = match purpose {
            Purpose::Control => None,
            Purpose::Data { owner, .. } => owner,
            Purpose::Queue { owner, .. } => Some(owner),
        };
        let pass = owner.and_then(|owner| self.passes().get(&owner.word()).copied());
        let hello = Request::Hello {
            purpose,
            rights: self.rights,
            pid: std::process::id(),
            nonce,
            pass: pass.unwrap_or_default(),
        };
        let hello = hello.encode();
        let challenge = exchange(stream, &hello, self.answer_time_max)
            .map_err(|source| self.unanswered(self.with_hint(source)))?;
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
        let welcome = self.ask(stream, &Request::Proof(proof).encode())?;
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

    /// Of a node that hangs up before it has said anything.
    fn with_hint(&self, source: io::Error) -> io::Error {
        if !is_hang_up(&source) && source.kind() != io::ErrorKind::UnexpectedEof {
            return source;
        }
        let hint = match self.tls {
            Some(_) => "one without TLS (--tls-cert) does so to a client with it (--tls-ca)",
            None => "one with TLS (--tls-cert) does so to a client without it (--tls-ca)",
        };
        io::Error::new(source.kind(), format!("{source} on the first word; {hint}"))
    }

    fn ask(&self, stream: &mut Stream, request: &Frame) -> Result<Frame, ControlError> {
        exchange(stream, request, self.answer_time_max).map_err(|source| self.unanswered(source))
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
        // The stream is out of its place during the exchange, so a thread that panicked in one
        // left none behind, and a poisoned lock needs no other care.
        let mut place = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = mem::replace(&mut *place, Err(io::ErrorKind::NotConnected));
        let mut stream = stream.map_err(|kind| {
            *place = Err(kind);
            io::Error::new(kind, "an earlier call was not answered")
        })?;
        match exchange(&mut stream, request, self.answer_time_max) {
            Ok(reply) => {
                *place = Ok(stream);
                Ok(reply)
            }
            Err(error) => {
                *place = Err(error.kind());
                Err(error)
            }
        }
    }

    /// F6: a session that other nodes still have to be told of. The node answers each question at
    /// once, so what those take, be it longer than this side waits for an answer, breaks nothing.
    fn wait_until_fenced(
        &self,
        owner: OwnerWord,
        unresponsive: &mut dyn FnMut(SessionLife),
    ) -> Result<(), ControlError> {
        let mut rest = LIFE_REST_MIN;
        let mut told = Instant::now();
        loop {
            let life = self.session_life(owner)?;
            if life == SessionLife::Fenced {
                return Ok(());
            }
            if told.elapsed() >= Duration::from_secs(1) {
                told = Instant::now();
                unresponsive(life);
            }
            thread::sleep(rest);
            rest = (rest * 2).min(LIFE_REST_MAX);
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
            Reply::Session { owner, pass } => {
                self.passes().insert(owner.word(), pass);
                Ok(owner)
            }
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        // No connection for it is opened any more.
        self.passes().remove(&owner.word());
        match self.call(&Request::Close(owner))? {
            Reply::Closed => Ok(()),
            Reply::UnderWay => self.wait_until_fenced(owner, &mut |_| ()),
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

    /// Closes the control connection, whose end is the end of all sessions.
    fn give_up(&self) {
        self.hang_up();
    }

    /// The node closes the session's connection and fences it at once. A session of a process of
    /// the node's own host, which is not connected by `tcp`, is refused.
    fn fence_session(
        &self,
        owner: OwnerWord,
        unresponsive: &mut dyn FnMut(SessionLife),
    ) -> Result<(), ControlError> {
        match self.call(&Request::Fence(owner))? {
            Reply::Fenced => Ok(()),
            Reply::UnderWay => self.wait_until_fenced(owner, unresponsive),
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
    TcpStream::connect_timeout(&peer, time_max)
}

/// HOST of HOST:PORT, without the brackets of an IPv6 address.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

fn exchange(stream: &mut Stream, request: &Frame, time_max: Duration) -> io::Result<Frame> {
    let until = Instant::now() + time_max;
    let mut sent = 0;
    while sent < request.len() {
        match stream.send(&request[sent..]) {
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.wait(until)?,
            // A node that turned this client away hung up, but may have said why before.
            Err(error) if is_hang_up(&error) => break,
            Err(error) => return Err(error),
        }
    }
    let mut frame = [0; FRAME_SIZE_BYTES];
    let mut filled = 0;
    while filled < frame.len() {
        match stream.receive(&mut frame[filled..]) {
            Ok(0) => {
                let kind = io::ErrorKind::ConnectionReset;
                return Err(io::Error::new(kind, "the node hung up"));
            }
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.wait(until)?,
            Err(error) => return Err(error),
        }
    }
    Ok(frame)
}

fn is_hang_up(error: &io::Error) -> bool {
    let kind = error.kind();
    matches!(
        kind,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}
