//! The client's side: a process's control connection to a memory node, and the data connections
//! that it opens for sessions.

use std::collections::HashMap;
use std::io;
use std::mem;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_base::foreign_protocol::PortKind;
use farleaf_base::locks::lock;
use farleaf_base::{NodeId, OwnerWord};

use crate::control::{Control, ControlError, SessionLife};
use crate::network::{MainNode, NodeDirectory, OtherNodes};
use crate::tcp::PROTOCOL;
use crate::tcp::TcpEndpoint;
use crate::tcp::connection::TcpConnection;
use crate::tcp::exchange::{Limited, during_handshake, exchange};
use crate::tcp::hello::{HelloDetails, POOL, Purpose, TCP_VERSION, Ticket, WelcomeDetails};
use crate::tcp::messages::{ControlReply, ControlRequest, Frame, JoinRequest, Joined, MemberReply};
use crate::tcp::queue_monitor::QueueMonitor;
use crate::verbs::{NodeQueue, QueueParameters, VerbsOptions};
use farleaf_net::greeting::{GreetFailure, GreetingError, greet, port_of};
use farleaf_net::secret::Pass;
use farleaf_net::secret::find_local_secret;
use farleaf_net::secret::{Rights, Secret};
use farleaf_net::stream::Stream;
use farleaf_net::tls::{TlsClient, TlsLayer, host_of, how_tls_failed};

/// First pause between two queries whether a session is fenced. Most sessions are fenced soon.
const LIFE_REST_MIN: Duration = Duration::from_micros(100);
const LIFE_REST_MAX: Duration = Duration::from_millis(20);

/// Options of a connection to a node.
#[derive(Clone, Debug)]
pub struct TcpConnectOptions {
    /// The pool's secret, or a key derived from it. If `None`, the client uses the secret that a
    /// node of this host left for programs of this user.
    pub secret: Option<Secret>,
    /// Rights of the sessions; `None` requests all that the secret grants.
    pub rights: Option<Rights>,
    /// Trusted certificate authorities; if given, connections are encrypted.
    pub tls: Option<TlsClient>,
    /// Time after which a node that does not reply is lost. Not 0.
    pub answer_time_max: Duration,
    /// Selection of this host's RDMA devices, for `verbs` pools.
    pub verbs: VerbsOptions,
}

impl Default for TcpConnectOptions {
    /// Returns options without secret and TLS, with all rights, a time of 10 s, and default
    /// devices.
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

/// Connection of a process to the memory node at an address.
#[derive(Debug)]
pub struct TcpClient {
    pool: String,
    address: SocketAddr,
    /// Host name that the certificate must have.
    host: String,
    tls: Option<TlsClient>,
    secret: Secret,
    rights: Rights,
    ticket: Ticket,
    memory_size_bytes: u64,
    answer_time_max: Duration,
    /// Passes of the sessions registered by the pool's main node, by owner word.
    passes: Arc<Mutex<HashMap<u64, Pass>>>,
    /// Socket of the connection, so that it can be shut down while a call is in progress.
    socket: TcpStream,
    /// The stream, or the error kind of a call that failed halfway: its late reply would be taken
    /// for the reply to the next call.
    stream: Mutex<Result<Stream, io::ErrorKind>>,
}

/// Reason why a connection was not authenticated.
enum NotGreeted {
    Greeting(GreetFailure),
    Other(ControlError),
}

impl TcpClient {
    /// Connects to the node at `HOST:PORT`.
    ///
    /// # Errors
    /// No node listens there, its version or secret differs, or it cannot prove the secret.
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
        let Some(secret) = secret else {
            return Err(if is_of_cluster(socket, options.answer_time_max) {
                ControlError::OfCluster { pool }
            } else {
                refused("it requires a secret; set one with --secret-file or FARLEAF_SECRET")
            });
        };
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
            memory_size_bytes: 0,
            answer_time_max: options.answer_time_max,
            passes: Arc::default(),
            stream: Mutex::new(Err(io::ErrorKind::NotConnected)),
        };
        let (stream, welcome) = client.greeted(socket, Purpose::Control)?;
        client.socket = stream.try_clone_socket().map_err(unreachable)?;
        client.ticket = welcome.ticket;
        client.memory_size_bytes = welcome.memory_size_bytes;
        client.stream = Mutex::new(Ok(stream));
        Ok(client)
    }

    /// Returns this client of a further node of a pool, for the sessions that `main_node` has
    /// registered, which the node admits by their passes.
    #[must_use]
    pub fn with_sessions_of(mut self, main_node: &Self) -> Self {
        self.passes = Arc::clone(&main_node.passes);
        self
    }

    /// Returns this client of a further node of a pool, for one session with a pass. For the main
    /// node itself, which has the key of all passes.
    #[must_use]
    pub fn with_pass(self, owner: OwnerWord, pass: Pass) -> Self {
        lock(&self.passes).insert(owner.word(), pass);
        self
    }

    /// Returns the secret that the client has proven: the configured or the local one.
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Returns the rights of the client's sessions.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Returns the size of the node's memory in bytes.
    pub fn memory_size_bytes(&self) -> u64 {
        self.memory_size_bytes
    }

    /// Opens a data connection: the only one of a session, or one of the process itself.
    ///
    /// # Errors
    /// The node cannot be reached, or does not know the session any more.
    pub fn endpoint(&self, owner: Option<OwnerWord>) -> Result<TcpEndpoint, ControlError> {
        Ok(TcpEndpoint::to_one(self.connection(owner)?))
    }

    /// Opens an [`endpoint`](Self::endpoint) to this node, the pool's main node, which connects to
    /// other nodes when they are needed.
    ///
    /// # Errors
    /// As for [`endpoint`](Self::endpoint).
    pub fn pool_endpoint(
        &self,
        owner: Option<OwnerWord>,
        nodes: Arc<dyn NodeDirectory>,
    ) -> Result<TcpEndpoint, ControlError> {
        let main_node = MainNode::Connected(self.connection(owner)?);
        let others = OtherNodes {
            directory: nodes,
            owner,
            resources: (),
        };
        Ok(TcpEndpoint::to_pool(main_node, others))
    }

    /// Opens a data connection.
    pub(super) fn connection(
        &self,
        owner: Option<OwnerWord>,
    ) -> Result<TcpConnection, ControlError> {
        let unreachable = |source| self.unanswered(source);
        let socket = connect_to(self.address, self.answer_time_max).map_err(unreachable)?;
        let ticket = self.ticket;
        let (stream, welcome) = self.greeted(socket, Purpose::Data { ticket, owner })?;
        let memory_word_count = welcome.memory_size_bytes / 8;
        Ok(TcpConnection::new(
            stream,
            memory_word_count,
            self.answer_time_max,
        ))
    }

    /// Returns the address of the pool's main node, if this is another node.
    ///
    /// # Errors
    /// The node cannot be reached.
    pub fn main_node_address(&self) -> Result<Option<String>, ControlError> {
        match self.call(&ControlRequest::MainNode)? {
            ControlReply::MainNode(address) => Ok((!address.is_empty()).then_some(address)),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// Asks the pool's main node to admit a node. Admission may take a while.
    ///
    /// # Errors
    /// The main node cannot be reached, or refuses.
    pub fn join(&self, request: &JoinRequest) -> Result<Joined, ControlError> {
        match self.call(&ControlRequest::Join(request.clone()))? {
            ControlReply::Joined(joined) => Ok(joined),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// Asks the pool's main node to set the target state of a node; returns the resulting state.
    ///
    /// # Errors
    /// The main node cannot be reached, or refuses.
    pub fn set_member(&self, node: NodeId, state: u64) -> Result<MemberReply, ControlError> {
        match self.call(&ControlRequest::SetMember { node, state })? {
            ControlReply::Member(member) => Ok(member),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// Asks the pool's main node for the state of a node.
    ///
    /// # Errors
    /// The main node cannot be reached.
    pub fn member(&self, node: NodeId) -> Result<MemberReply, ControlError> {
        match self.call(&ControlRequest::Member(node))? {
            ControlReply::Member(member) => Ok(member),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// Ends the connection at once; pending calls fail.
    pub fn hang_up(&self) {
        // The connection may have ended already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if let Ok(mut place) = self.stream.try_lock() {
            *place = Err(io::ErrorKind::ConnectionAborted);
        }
    }

    /// Returns the time that a node may take for a reply before it counts as lost.
    pub fn answer_time_max(&self) -> Duration {
        self.answer_time_max
    }

    /// Exchanges the two ends of a session's queue pair. The connection stays open; the node closes
    /// it to announce that the pair has ended.
    pub(crate) fn open_queue(
        &self,
        owner: OwnerWord,
        own: QueueParameters,
    ) -> Result<(QueueMonitor, NodeQueue), ControlError> {
        let unreachable = |source| self.unanswered(source);
        let socket = connect_to(self.address, self.answer_time_max).map_err(unreachable)?;
        let ticket = self.ticket;
        let (mut stream, _) = self.greeted(socket, Purpose::Queue { ticket, owner })?;
        let answer = self.ask(&mut stream, &ControlRequest::Queue(own).encode())?;
        match self.decode(&answer)? {
            ControlReply::Queue(node) => Ok((QueueMonitor::new(stream), node)),
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn stream(&self, socket: TcpStream) -> Result<Stream, ControlError> {
        let layer = |tls| TlsLayer::of_client(tls, &self.host);
        let tls = self.tls.as_ref().map(layer).transpose();
        let tls = tls.map_err(|error| ControlError::Tls {
            pool: self.pool.clone(),
            how: how_tls_failed(&error),
        })?;
        Stream::new(socket, tls).map_err(|source| self.unanswered(source))
    }

    /// Authenticates on a new connection.
    fn greeted(
        &self,
        socket: TcpStream,
        purpose: Purpose,
    ) -> Result<(Stream, WelcomeDetails), ControlError> {
        let mut opened = Some(socket);
        let greet = |secret: &Secret| {
            let socket = match opened.take() {
                Some(socket) => socket,
                None => connect_to(self.address, self.answer_time_max)
                    .map_err(|source| NotGreeted::Other(self.unanswered(source)))?,
            };
            let mut stream = self.stream(socket).map_err(NotGreeted::Other)?;
            let welcome = self.greet(&mut stream, purpose, secret);
            let welcome = welcome.map_err(NotGreeted::Greeting)?;
            Ok((stream, welcome))
        };
        let is_wrong_secret = |failure: &NotGreeted| {
            matches!(failure, NotGreeted::Greeting(GreetFailure::WrongSecret(_)))
        };
        let greeted = self.secret.prove_any(greet, is_wrong_secret);
        greeted.map_err(|failure| match failure {
            NotGreeted::Greeting(failure) => self.not_greeted(failure),
            NotGreeted::Other(error) => error,
        })
    }

    fn greet(
        &self,
        stream: &mut Stream,
        purpose: Purpose,
        secret: &Secret,
    ) -> Result<WelcomeDetails, GreetFailure> {
        let owner = match purpose {
            Purpose::Control => None,
            Purpose::Data { owner, .. } => owner,
            Purpose::Queue { owner, .. } => Some(owner),
        };
        let pass = owner.and_then(|owner| lock(&self.passes).get(&owner.word()).copied());
        let hello = HelloDetails {
            purpose,
            pid: std::process::id(),
            pass: pass.unwrap_or_default(),
        };
        let time = self.secret.greeting_time(self.answer_time_max);
        let mut limited = Limited::new(stream, time);
        let accepted = greet(&mut limited, POOL, secret, self.rights, hello.encode())?;
        Ok(WelcomeDetails::decode(&accepted.welcome))
    }

    /// Converts the reason why a greeting failed.
    fn not_greeted(&self, failure: GreetFailure) -> ControlError {
        let pool = || self.pool.clone();
        let refused = |reason| ControlError::Refused {
            pool: pool(),
            reason,
        };
        match failure {
            GreetFailure::Broken(source) if source.kind() == io::ErrorKind::InvalidData => {
                let how = how_tls_failed(&source);
                ControlError::Tls { pool: pool(), how }
            }
            GreetFailure::Broken(source) => self.unanswered(during_handshake(source)),
            GreetFailure::Refused(reason) | GreetFailure::WrongSecret(reason) => refused(reason),
            GreetFailure::Invalid(GreetingError::OtherPort(_)) => {
                ControlError::OfCluster { pool: pool() }
            }
            GreetFailure::Invalid(GreetingError::Version { theirs }) => self.malformed(&format!(
                "a message of protocol version {theirs}, expected version {TCP_VERSION}"
            )),
            GreetFailure::Invalid(GreetingError::Foreign(begin)) => self.malformed(&format!(
                "a message that is not in Farleaf's protocol (it begins with '{begin}')"
            )),
            GreetFailure::Invalid(GreetingError::Malformed(what)) => self.malformed(what),
            GreetFailure::Invalid(GreetingError::Encrypted) => {
                self.malformed("a TLS record to a client without TLS")
            }
            GreetFailure::Invalid(GreetingError::OtherProtocol(protocol)) => {
                self.malformed(&format!("a request of {protocol}"))
            }
            GreetFailure::OutOfOrder => self.malformed("a message of the handshake out of order"),
            GreetFailure::NotProven => self.malformed("a proof of a different secret"),
            GreetFailure::TooWeak => refused(format!(
                "permission denied: the given key grants '{}', and '{}' was requested",
                self.secret.rights(),
                self.rights
            )),
        }
    }

    fn ask(&self, stream: &mut Stream, request: &Frame) -> Result<Frame, ControlError> {
        exchange(stream, request, self.answer_time_max).map_err(|source| self.unanswered(source))
    }

    fn decode(&self, frame: &Frame) -> Result<ControlReply, ControlError> {
        match ControlReply::decode(frame).map_err(|malformed| self.malformed(&malformed.0))? {
            ControlReply::Refused(reason) => Err(ControlError::Refused {
                pool: self.pool.clone(),
                reason,
            }),
            reply => Ok(reply),
        }
    }

    fn call(&self, request: &ControlRequest) -> Result<ControlReply, ControlError> {
        let frame = self
            .exchange_once(&request.encode())
            .map_err(|source| self.unanswered(source))?;
        self.decode(&frame)
    }

    fn exchange_once(&self, request: &Frame) -> io::Result<Frame> {
        // The stream is taken out during the exchange. If a thread panics in an exchange, the next
        // call finds no stream, so a poisoned lock needs no other handling.
        let mut place = lock(&self.stream);
        let stream = mem::replace(&mut *place, Err(io::ErrorKind::NotConnected));
        let mut stream = stream.map_err(|kind| {
            *place = Err(kind);
            io::Error::new(kind, "an earlier request got no reply")
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

    /// Waits until other nodes have fenced the session (FABRIC-6). The main node answers each query
    /// at once, so the connection survives even if those nodes take longer than the time limit for
    /// a reply.
    fn wait_until_fenced(
        &self,
        owner: OwnerWord,
        unresponsive: &mut dyn FnMut(SessionLife),
    ) -> Result<(), ControlError> {
        let mut rest = LIFE_REST_MIN;
        let mut last_notice = Instant::now();
        loop {
            let life = self.session_life(owner)?;
            if life == SessionLife::Fenced {
                return Ok(());
            }
            if last_notice.elapsed() >= Duration::from_secs(1) {
                last_notice = Instant::now();
                unresponsive(life);
            }
            thread::sleep(rest);
            rest = (rest * 2).min(LIFE_REST_MAX);
        }
    }

    /// Converts an I/O error of a call. `WouldBlock`: the time limit has passed.
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

    fn unexpected(&self, reply: &ControlReply) -> ControlError {
        self.malformed(&format!("an unexpected reply ({reply:?})"))
    }
}

impl Control for TcpClient {
    fn register_session(&self) -> Result<OwnerWord, ControlError> {
        match self.call(&ControlRequest::Register)? {
            ControlReply::Session { owner, pass } => {
                lock(&self.passes).insert(owner.word(), pass);
                Ok(owner)
            }
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        // From here on no connection is opened for the session.
        lock(&self.passes).remove(&owner.word());
        match self.call(&ControlRequest::Close(owner))? {
            ControlReply::Closed => Ok(()),
            ControlReply::UnderWay => self.wait_until_fenced(owner, &mut |_| ()),
            reply => Err(self.unexpected(&reply)),
        }
    }

    fn session_life(&self, owner: OwnerWord) -> Result<SessionLife, ControlError> {
        match self.call(&ControlRequest::Life(owner))? {
            ControlReply::Life(Some(pid)) => Ok(SessionLife::Alive { pid }),
            ControlReply::Life(None) => Ok(SessionLife::Fenced),
            reply => Err(self.unexpected(&reply)),
        }
    }

    /// Closes the control connection, which ends all sessions.
    fn give_up(&self) {
        self.hang_up();
    }

    /// Asks the node to close the session's connection and fence it at once. The node refuses for a
    /// session of its own host that is not connected by `tcp`.
    fn fence_session(
        &self,
        owner: OwnerWord,
        unresponsive: &mut dyn FnMut(SessionLife),
    ) -> Result<(), ControlError> {
        match self.call(&ControlRequest::Fence(owner))? {
            ControlReply::Fenced => Ok(()),
            ControlReply::UnderWay => self.wait_until_fenced(owner, unresponsive),
            reply => Err(self.unexpected(&reply)),
        }
    }
}

/// Connects to the first address of a name that answers.
fn open_socket(address: &str, time_max: Duration) -> io::Result<(TcpStream, SocketAddr)> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name resolves to no address");
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

/// Returns whether the peer is a server of a cluster. Finds it out without a secret.
fn is_of_cluster(socket: TcpStream, time_max: Duration) -> bool {
    let stream = Stream::new(socket, None);
    stream.is_ok_and(|mut stream| {
        let mut limited = Limited::new(&mut stream, time_max);
        port_of(&mut limited, POOL) == Some(PortKind::Cluster)
    })
}
