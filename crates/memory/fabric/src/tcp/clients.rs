//! The clients of a node: their control connections, their sessions, and the end of both.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use farleaf_base::OwnerWord;

use crate::tcp::gate::{ClientState, Gate, Grant};
use crate::tcp::greeter::AuthenticatedPeer;
use crate::tcp::hello::{Purpose, Ticket, WelcomeDetails};
use crate::tcp::inbox::{MessageInbox, send, send_frame};
use crate::tcp::listener::TcpListenOptions;
use crate::tcp::messages::{ControlReply, ControlRequest};
use crate::tcp::nic::{DataConnection, SoftNic};
use crate::tcp::queues::QueueControl;
use crate::tcp::service::TcpService;
use crate::verbs::VerbsNode;
use crate::window::WindowRegistry;
use farleaf_net::permit::Permit;
use farleaf_net::secret::{Pass, PassKey};
use farleaf_net::secret::{Rights, fill_randomly};
use farleaf_net::stream::Stream;

/// Maximum number of a process's data connections that belong to no session. One keeps the sessions
/// alive; each call for statistics has one while it runs.
const OWN_CONNECTION_COUNT_MAX: usize = 64;

/// A session of a client.
#[derive(Debug)]
struct ClientSession {
    owner: OwnerWord,
    link: SessionLink,
}

/// Connection over which a session's verbs arrive.
#[derive(Debug)]
enum SessionLink {
    /// No connection yet.
    None,
    /// A data connection behind this gate.
    Gate(Arc<Gate>),
    /// A queue pair, with this connection beside it.
    Queue(Box<QueueControl>),
    /// A queue pair that has ended; the session gets no other.
    Ended,
}

impl ClientSession {
    fn gate(&self) -> Option<&Arc<Gate>> {
        match &self.link {
            SessionLink::Gate(gate) => Some(gate),
            _ => None,
        }
    }

    fn queue_control(&self) -> Option<&QueueControl> {
        match &self.link {
            SessionLink::Queue(control) => Some(control),
            _ => None,
        }
    }

    /// Ends the connection; returns when no verb arrives over it any more (FABRIC-6).
    fn end(&mut self) {
        match std::mem::replace(&mut self.link, SessionLink::Ended) {
            SessionLink::Gate(gate) => gate.close(),
            SessionLink::Queue(control) => control.end(),
            SessionLink::None | SessionLink::Ended => {}
        }
    }
}

/// A process that has connected.
#[derive(Debug)]
struct ConnectedClient {
    stream: Stream,
    inbox: MessageInbox,
    peer: SocketAddr,
    pid: u32,
    ticket: Ticket,
    state: Arc<ClientState>,
    sessions: Vec<ClientSession>,
    /// Gates of connections that belong to no session.
    own_gates: Vec<Arc<Gate>>,
    _permit: Permit,
}

/// All clients of the node.
#[derive(Debug)]
pub(super) struct Clients {
    nic: SoftNic,
    /// The RDMA side of the node, if the card and not this processor changes words.
    verbs: Option<Arc<VerbsNode>>,
    memory_size_bytes: u64,
    silence_max: Duration,
    session_count_max: usize,
    /// Key for the passes of sessions; only a pool's main node has it.
    pass_key: Option<PassKey>,
    /// Registry of the sessions' windows, if they may have any (FABRIC-10).
    windows: Option<Arc<WindowRegistry>>,
    connected: Vec<ConnectedClient>,
}

impl Clients {
    pub(super) fn new(nic: SoftNic, memory_size_bytes: u64, options: &TcpListenOptions) -> Self {
        Self {
            nic,
            verbs: None,
            memory_size_bytes,
            silence_max: options.silence_max,
            session_count_max: options.session_count_max,
            pass_key: None,
            windows: None,
            connected: Vec::new(),
        }
    }

    /// Sets the key; from now on sessions get passes if there is one.
    pub(super) fn give_passes(&mut self, key: Option<PassKey>) {
        self.pass_key = key;
    }

    /// Enables windows for new sessions (FABRIC-10).
    pub(super) fn offer_windows(&mut self, windows: Arc<WindowRegistry>) {
        self.windows = Some(windows);
    }

    /// Enables queue pairs. From now on only the card changes words (FABRIC-4).
    pub(super) fn offer_verbs(&mut self, verbs: Arc<VerbsNode>) {
        self.verbs = Some(verbs);
    }

    /// Returns the descriptors of the control connections, then those of the connections beside
    /// queue pairs.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let control = self.connected.iter().map(|client| client.stream.as_fd());
        let sessions = self.connected.iter().flat_map(|client| &client.sessions);
        let lines = sessions.filter_map(ClientSession::queue_control);
        control.chain(lines.map(QueueControl::descriptor))
    }

    /// Admits a peer that has proven the secret.
    pub(super) fn welcome(
        &mut self,
        authenticated: AuthenticatedPeer,
        service: &mut dyn TcpService,
    ) {
        let peer = authenticated.peer;
        let welcomed = match authenticated.hello.purpose {
            Purpose::Control => self.welcome_client(authenticated, service),
            Purpose::Data { ticket, owner } => {
                self.welcome_data(authenticated, ticket, owner, service)
            }
            Purpose::Queue { ticket, owner } => {
                self.welcome_queue(authenticated, ticket, owner, service)
            }
        };
        if let Err(error) = welcomed {
            tracing::debug!(%peer, %error, "connection closed");
        }
    }

    fn send_welcome(
        &self,
        authenticated: &mut AuthenticatedPeer,
        ticket: Ticket,
    ) -> std::io::Result<()> {
        let welcome = WelcomeDetails {
            memory_size_bytes: self.memory_size_bytes,
            ticket,
        };
        let welcome = authenticated.proven.welcome(welcome.encode());
        send_frame(&mut authenticated.stream, &welcome)
    }

    fn welcome_client(
        &mut self,
        mut authenticated: AuthenticatedPeer,
        service: &dyn TcpService,
    ) -> std::io::Result<()> {
        let mut ticket = Ticket([0; 16]);
        fill_randomly(&mut ticket.0)?;
        let (rights, pid) = (authenticated.proven.key.rights(), authenticated.hello.pid);
        let peer = authenticated.peer;
        // FABRIC-4: if a card changes words, threads of this processor change none.
        let grant = match &self.verbs {
            Some(_) => Grant::nothing(),
            None => service.grant(rights),
        };
        self.send_welcome(&mut authenticated, ticket)?;
        tracing::info!(%peer, pid, %rights, "client connected");
        self.connected.push(ConnectedClient {
            stream: authenticated.stream,
            inbox: MessageInbox::default(),
            peer,
            pid,
            ticket,
            state: Arc::new(ClientState::new(rights, grant)),
            sessions: Vec::new(),
            own_gates: Vec::new(),
            _permit: authenticated.permit,
        });
        Ok(())
    }

    fn welcome_data(
        &mut self,
        mut authenticated: AuthenticatedPeer,
        ticket: Ticket,
        owner: Option<OwnerWord>,
        service: &mut dyn TcpService,
    ) -> std::io::Result<()> {
        let (serves_verbs, pass) = (self.verbs.is_some(), authenticated.hello.pass);
        let has_holder = owner.is_some_and(|owner| self.has_other_holder(owner, ticket));
        let opened = self.client_of(&authenticated, ticket).and_then(|client| {
            if serves_verbs && owner.is_some() && authenticated.proven.key.rights() > Rights::Read {
                return Err(
                    "the memory of this node is changed only by its RDMA device; open the pool as \
                     verbs:HOST:PORT, or with the right 'read'"
                        .to_owned(),
                );
            }
            client.begin_data(owner, pass, has_holder, service)
        });
        let (gate, client) = match opened {
            Ok(opened) => opened,
            Err(reason) => return authenticated.refuse(&reason),
        };
        self.send_welcome(&mut authenticated, ticket)?;
        let windows = owner.zip(self.windows.clone());
        self.nic.serve(DataConnection {
            stream: authenticated.stream,
            gate,
            client,
            windows,
            _permit: authenticated.permit,
        });
        Ok(())
    }

    /// Returns true if another client has this session: a session has only one connection here.
    fn has_other_holder(&self, owner: OwnerWord, ticket: Ticket) -> bool {
        let mut others = self.connected.iter().filter(|other| other.ticket != ticket);
        others.any(|other| other.has(owner))
    }

    /// Returns the client of a further connection. The peer has proven the secret; the ticket
    /// distinguishes clients.
    fn client_of(
        &mut self,
        authenticated: &AuthenticatedPeer,
        ticket: Ticket,
    ) -> Result<&mut ConnectedClient, String> {
        let mut clients = self.connected.iter_mut();
        match clients.find(|client| client.ticket == ticket) {
            None => Err("the client of this connection is no longer connected".to_owned()),
            Some(client) if client.state.rights != authenticated.proven.key.rights() => {
                Err("the client connected with different rights".to_owned())
            }
            Some(client) => Ok(client),
        }
    }

    fn welcome_queue(
        &mut self,
        mut authenticated: AuthenticatedPeer,
        ticket: Ticket,
        owner: OwnerWord,
        service: &mut dyn TcpService,
    ) -> std::io::Result<()> {
        let (serves_verbs, pass) = (self.verbs.is_some(), authenticated.hello.pass);
        let has_holder = self.has_other_holder(owner, ticket);
        let opened = self.client_of(&authenticated, ticket).and_then(|client| {
            if !serves_verbs {
                return Err("this node serves no verbs; open the pool as tcp:HOST:PORT".to_owned());
            }
            client.admit(owner, &pass, has_holder, service)?;
            client.unconnected(owner).map(|_| ())
        });
        if let Err(reason) = opened {
            return authenticated.refuse(&reason);
        }
        self.send_welcome(&mut authenticated, ticket)?;
        let session = self.client_of(&authenticated, ticket);
        if let Ok(session) = session.and_then(|client| client.unconnected(owner)) {
            let control = QueueControl::new(authenticated.stream, authenticated.permit);
            session.link = SessionLink::Queue(Box::new(control));
        }
        Ok(())
    }

    /// Serves the connections beside queue pairs that have data, by index, and ends the pairs whose
    /// connection has ended.
    fn on_queue_input(&mut self, ready: &[bool]) {
        let mut ready = ready.iter();
        for client in &mut self.connected {
            let rights = client.state.rights;
            for session in &mut client.sessions {
                let SessionLink::Queue(control) = &mut session.link else {
                    continue;
                };
                if !ready.next().copied().unwrap_or(false) {
                    continue;
                }
                client.state.on_input();
                if let Err(error) = control.on_input(self.verbs.as_ref(), rights) {
                    tracing::debug!(owner = %session.owner, %error, "queue pair ended");
                    session.end();
                }
            }
        }
    }

    /// Serves the clients that have sent something, by index.
    pub(super) fn on_input(&mut self, ready: &[bool], service: &mut dyn TcpService) {
        let lines_start = ready.len().min(self.connected.len());
        self.on_queue_input(&ready[lines_start..]);
        let count = ready.len().min(self.connected.len());
        // Last to first, because a client that ends is replaced by the last one.
        for index in (0..count).rev().filter(|index| ready[*index]) {
            let client = &mut self.connected[index];
            client.state.on_input();
            let answered = match client.inbox.receive(&mut client.stream) {
                Ok(None) => continue,
                Ok(Some(frame)) => {
                    let reply = match ControlRequest::decode(&frame) {
                        Ok(request) => self.answer(index, &request, service),
                        Err(malformed) => {
                            ControlReply::Refused(format!("this node received {}", malformed.0))
                        }
                    };
                    send(&mut self.connected[index].stream, &reply)
                }
                Err(error) => Err(error),
            };
            if let Err(error) = answered {
                let client = self.connected.swap_remove(index);
                let (peer, pid) = (client.peer, client.pid);
                let sessions = client.sessions.len();
                if error.kind() == std::io::ErrorKind::UnexpectedEof {
                    tracing::info!(%peer, pid, sessions, "client disconnected");
                } else {
                    tracing::info!(%peer, pid, sessions, %error, "client disconnected");
                }
                self.end(client, service);
            }
        }
    }

    fn answer(
        &mut self,
        index: usize,
        request: &ControlRequest,
        service: &mut dyn TcpService,
    ) -> ControlReply {
        let client = &mut self.connected[index];
        match request {
            ControlRequest::Register => self.register(index, service),
            ControlRequest::Close(owner) => {
                if client.close(*owner, service) {
                    self.nic.sweep();
                    fenced_or(ControlReply::Closed, *owner, service)
                } else if service.is_being_fenced(*owner) {
                    ControlReply::UnderWay
                } else {
                    ControlReply::Refused(format!("{owner} is not a session of this client"))
                }
            }
            ControlRequest::Life(owner) => ControlReply::Life(service.process_of(*owner)),
            ControlRequest::Fence(_)
            | ControlRequest::Join(_)
            | ControlRequest::SetMember { .. }
                if client.state.rights < Rights::Admin =>
            {
                ControlReply::Refused("permission denied: the right 'admin' is required".to_owned())
            }
            ControlRequest::Fence(owner) => self.fence(*owner, service),
            ControlRequest::MainNode => {
                ControlReply::MainNode(service.main_node_address().unwrap_or_default())
            }
            ControlRequest::Join(join) => {
                let joined = service.join(join);
                joined.map_or_else(ControlReply::Refused, ControlReply::Joined)
            }
            ControlRequest::SetMember { node, state } => {
                let member = service.set_member(*node, *state);
                member.map_or_else(ControlReply::Refused, ControlReply::Member)
            }
            ControlRequest::Member(node) => ControlReply::Member(service.member(*node)),
            ControlRequest::Queue(_) => {
                ControlReply::Refused("a queue pair requires a separate connection".to_owned())
            }
        }
    }

    fn register(&mut self, index: usize, service: &mut dyn TcpService) -> ControlReply {
        let client = &mut self.connected[index];
        let count_max = self.session_count_max;
        if client.sessions.len() >= count_max {
            return ControlReply::Refused(format!(
                "the limit of {count_max} sessions per client is reached (`farleaf serve \
                 --sessions-per-client`)"
            ));
        }
        match service.register(client.process_here()) {
            Ok(owner) => {
                client.state.add_own(service.own_words(owner));
                let link = SessionLink::None;
                client.sessions.push(ClientSession { owner, link });
                let pass = self.pass_key.as_ref().map(|key| key.pass(owner));
                let pass = pass.unwrap_or_default();
                ControlReply::Session { owner, pass }
            }
            Err(reason) => ControlReply::Refused(reason),
        }
    }

    /// Fences a session on an operator's request (FABRIC-6).
    fn fence(&mut self, owner: OwnerWord, service: &mut dyn TcpService) -> ControlReply {
        // Bar the session first: nothing may admit it after the reply that it has no holder.
        let is_barred = service.bar(owner);
        let mut holder = None;
        for client in &mut self.connected {
            for owner in client.named_by(owner, is_barred) {
                client.close(owner, service);
                holder = Some((client.peer, client.pid));
            }
        }
        if let Some((peer, pid)) = holder {
            if service.main_node_address().is_some() {
                // Requested by the pool's main node, for any reason.
                tracing::debug!(%owner, %peer, pid, "fenced by the pool's main node");
            } else {
                tracing::warn!(%owner, %peer, pid, "fenced on request");
            }
            self.nic.sweep();
            return fenced_or(ControlReply::Fenced, owner, service);
        }
        if service.is_being_fenced(owner) {
            return ControlReply::UnderWay;
        }
        if is_barred {
            return ControlReply::Fenced;
        }
        match service.process_of(owner) {
            None => ControlReply::Fenced,
            Some(pid) => ControlReply::Refused(format!(
                "{owner} belongs to process {pid} on the node's host, which executes its own \
                 verbs; it is fenced when that process ends"
            )),
        }
    }

    /// Ends the clients that have been silent for too long.
    pub(super) fn end_silent(&mut self, service: &mut dyn TcpService) {
        let limit_ms = self.silence_max.as_millis() as u64;
        for index in (0..self.connected.len()).rev() {
            let silence_ms = self.connected[index].state.silence_ms();
            if silence_ms <= limit_ms {
                continue;
            }
            let client = self.connected.swap_remove(index);
            let (peer, pid) = (client.peer, client.pid);
            tracing::warn!(%peer, pid, silence_ms, "client timed out");
            self.end(client, service);
        }
    }

    /// Ends all clients.
    pub(super) fn end_all(&mut self, service: &mut dyn TcpService) {
        for client in std::mem::take(&mut self.connected) {
            self.end(client, service);
        }
    }

    fn end(&self, mut client: ConnectedClient, service: &mut dyn TcpService) {
        // Close all gates before any session is fenced, so that no verb of this client is executed
        // later.
        client.own_gates.iter().for_each(|gate| gate.close());
        client.sessions.iter_mut().for_each(ClientSession::end);
        for session in client.sessions.drain(..) {
            service.fence(session.owner);
        }
        client.stream.shut_down();
        self.nic.sweep();
    }
}

/// Returns the reply to a request to fence a session: `done`, unless other nodes must confirm
/// first.
fn fenced_or(done: ControlReply, owner: OwnerWord, service: &dyn TcpService) -> ControlReply {
    if service.is_being_fenced(owner) {
        ControlReply::UnderWay
    } else {
        done
    }
}

impl ConnectedClient {
    /// Returns a gate for a new connection of a session, or of the process itself.
    fn begin_data(
        &mut self,
        owner: Option<OwnerWord>,
        pass: Pass,
        has_holder: bool,
        service: &mut dyn TcpService,
    ) -> Result<(Arc<Gate>, Arc<ClientState>), String> {
        let gate = Arc::new(Gate::default());
        if let Some(owner) = owner {
            self.admit(owner, &pass, has_holder, service)?;
            self.unconnected(owner)?.link = SessionLink::Gate(Arc::clone(&gate));
        } else {
            // A gate without another reference has no connection any more.
            self.own_gates.retain(|gate| Arc::strong_count(gate) > 1);
            if self.own_gates.len() >= OWN_CONNECTION_COUNT_MAX {
                return Err("the limit on connections of this client is reached".to_owned());
            }
            self.own_gates.push(Arc::clone(&gate));
        }
        Ok((gate, Arc::clone(&self.state)))
    }

    /// Admits, once, a session that the pool's main node has registered, by its pass.
    fn admit(
        &mut self,
        owner: OwnerWord,
        pass: &Pass,
        has_holder: bool,
        service: &mut dyn TcpService,
    ) -> Result<(), String> {
        if self.has(owner) {
            return Ok(());
        }
        service.admit(owner, pass)?;
        if has_holder {
            return Err("the session belongs to another client".to_owned());
        }
        let link = SessionLink::None;
        self.sessions.push(ClientSession { owner, link });
        Ok(())
    }

    /// Returns a session that has no connection yet.
    fn unconnected(&mut self, owner: OwnerWord) -> Result<&mut ClientSession, String> {
        let mut sessions = self.sessions.iter_mut();
        let session = sessions.find(|session| session.owner == owner);
        let session = session.ok_or_else(|| format!("{owner} is not a session of this client"))?;
        match session.link {
            SessionLink::None => Ok(session),
            _ => Err(format!("{owner} already has a connection")),
        }
    }

    /// Returns the client's process number if it is on this host, otherwise 0.
    fn process_here(&self) -> u32 {
        if self.peer.ip().is_loopback() {
            self.pid
        } else {
            0
        }
    }

    fn has(&self, owner: OwnerWord) -> bool {
        self.sessions.iter().any(|session| session.owner == owner)
    }

    /// Returns the client's sessions that are fenced with this one. If sessions are barred, earlier
    /// incarnations of the same number are included.
    fn named_by(&self, fenced: OwnerWord, is_barred: bool) -> Vec<OwnerWord> {
        let is_older = |owner: OwnerWord| {
            let both = owner.holder().zip(fenced.holder());
            both.is_some_and(|(own, last)| own.0 == last.0 && own.1.number() <= last.1.number())
        };
        let owners = self.sessions.iter().map(|session| session.owner);
        let named = owners.filter(|owner| *owner == fenced || (is_barred && is_older(*owner)));
        named.collect()
    }

    /// Ends the session's verbs and fences it (FABRIC-6). Returns false if the session is not this
    /// client's.
    fn close(&mut self, owner: OwnerWord, service: &mut dyn TcpService) -> bool {
        let mut sessions = self.sessions.iter();
        let Some(index) = sessions.position(|session| session.owner == owner) else {
            return false;
        };
        self.sessions.swap_remove(index).end();
        // No connection of this client may write to the block once another session has it.
        self.state.remove_own(&service.own_words(owner));
        let others = self.sessions.iter().filter_map(ClientSession::gate);
        let gates = self.own_gates.iter().chain(others);
        gates.for_each(|gate| gate.wait());
        service.fence(owner);
        true
    }
}
