//! The clients of a node: their control connections, their sessions, and how both end.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use farleaf_types::OwnerWord;

use crate::tcp::gate::{ClientState, Gate, Grant};
use crate::tcp::greeter::{Guest, MessageInbox, send};
use crate::tcp::greeting::{Purpose, Reply, Request, Ticket};
use crate::tcp::listener::TcpListenOptions;
use crate::tcp::nic::{DataConnection, SoftNic};
use crate::tcp::pass::{Pass, PassKey};
use crate::tcp::permit::Permit;
use crate::tcp::queues::QueueLine;
use crate::tcp::secret::{Rights, fill_randomly};
use crate::tcp::service::TcpService;
use crate::tcp::stream::Stream;
use crate::verbs::VerbsNode;
use crate::window::Doors;

/// Connections of a process that are none of its sessions'. One looks after the sessions; a call
/// that asks for statistics has one for as long as it lasts.
const OWN_CONNECTION_COUNT_MAX: usize = 64;

/// A session of a client.
#[derive(Debug)]
struct ClientSession {
    owner: OwnerWord,
    way: SessionWay,
}

/// How a session's verbs come.
#[derive(Debug)]
enum SessionWay {
    /// It has no connection yet.
    None,
    /// This is before its connection.
    Gate(Arc<Gate>),
    /// It has a queue pair, and this connection beside it.
    Queue(Box<QueueLine>),
    /// Its queue pair has ended; there is no other.
    Ended,
}

impl ClientSession {
    fn gate(&self) -> Option<&Arc<Gate>> {
        match &self.way {
            SessionWay::Gate(gate) => Some(gate),
            _ => None,
        }
    }

    fn line(&self) -> Option<&QueueLine> {
        match &self.way {
            SessionWay::Queue(line) => Some(line),
            _ => None,
        }
    }

    /// F6: returns when no verb comes this way any more.
    fn end(&mut self) {
        match std::mem::replace(&mut self.way, SessionWay::Ended) {
            SessionWay::Gate(gate) => gate.close(),
            SessionWay::Queue(line) => line.end(),
            SessionWay::None | SessionWay::Ended => {}
        }
    }
}

/// A process that has connected.
#[derive(Debug)]
struct Client {
    stream: Stream,
    inbox: MessageInbox,
    peer: SocketAddr,
    pid: u32,
    ticket: Ticket,
    state: Arc<ClientState>,
    sessions: Vec<ClientSession>,
    /// Before connections that are no session's.
    own_gates: Vec<Arc<Gate>>,
    _permit: Permit,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Clients {
    nic: SoftNic,
    /// What changes the region's words, where it is not this processor.
    verbs: Option<Arc<VerbsNode>>,
    region_size_bytes: u64,
    silence_max: Duration,
    session_count_max: usize,
    /// Of a pool's home: what the passes of sessions are made with.
    pass_key: Option<PassKey>,
    /// Where sessions have their doors, if they may have windows (F10).
    doors: Option<Arc<Doors>>,
    connected: Vec<Client>,
}

impl Clients {
    pub(super) fn new(nic: SoftNic, region_size_bytes: u64, options: &TcpListenOptions) -> Self {
        Self {
            nic,
            verbs: None,
            region_size_bytes,
            silence_max: options.silence_max,
            session_count_max: options.session_count_max,
            pass_key: None,
            doors: None,
            connected: Vec::new(),
        }
    }

    /// V3: from now on sessions get passes, if there is a key.
    pub(super) fn give_passes(&mut self, key: Option<PassKey>) {
        self.pass_key = key;
    }

    /// F10: from now on sessions have doors here.
    pub(super) fn offer_windows(&mut self, doors: Arc<Doors>) {
        self.doors = Some(doors);
    }

    /// From now on sessions may have queue pairs, and nobody changes words otherwise (F4).
    pub(super) fn offer_verbs(&mut self, verbs: Arc<VerbsNode>) {
        self.verbs = Some(verbs);
    }

    /// Of the control connections, and then of those beside queue pairs.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let control = self.connected.iter().map(|client| client.stream.as_fd());
        let sessions = self.connected.iter().flat_map(|client| &client.sessions);
        let lines = sessions.filter_map(ClientSession::line);
        control.chain(lines.map(QueueLine::descriptor))
    }

    /// Takes somebody in who has shown that he knows the secret.
    pub(super) fn welcome(&mut self, guest: Guest, service: &mut dyn TcpService) {
        let peer = guest.peer;
        let welcomed = match guest.purpose {
            Purpose::Control => self.welcome_client(guest, service),
            Purpose::Data { ticket, owner } => self.welcome_data(guest, (ticket, owner), service),
            Purpose::Queue { ticket, owner } => self.welcome_queue(guest, (ticket, owner), service),
        };
        if let Err(error) = welcomed {
            tracing::debug!(%peer, %error, "hung up");
        }
    }

    fn send_welcome(&self, guest: &mut Guest, ticket: Ticket) -> std::io::Result<()> {
        let welcome = Reply::Welcome {
            region_size_bytes: self.region_size_bytes,
            proof: guest.proof,
            ticket,
        };
        send(&mut guest.stream, &welcome)
    }

    fn welcome_client(
        &mut self,
        mut guest: Guest,
        service: &dyn TcpService,
    ) -> std::io::Result<()> {
        let mut ticket = Ticket([0; 16]);
        fill_randomly(&mut ticket.0)?;
        let (rights, pid, peer) = (guest.rights, guest.pid, guest.peer);
        // F4: where a card changes words, threads of this processor change none.
        let grant = match &self.verbs {
            Some(_) => Grant::nothing(),
            None => service.grant(rights),
        };
        self.send_welcome(&mut guest, ticket)?;
        tracing::info!(%peer, pid, %rights, "client connected");
        self.connected.push(Client {
            stream: guest.stream,
            inbox: MessageInbox::default(),
            peer,
            pid,
            ticket,
            state: Arc::new(ClientState::new(rights, grant)),
            sessions: Vec::new(),
            own_gates: Vec::new(),
            _permit: guest.permit,
        });
        Ok(())
    }

    fn welcome_data(
        &mut self,
        mut guest: Guest,
        (ticket, owner): (Ticket, Option<OwnerWord>),
        service: &mut dyn TcpService,
    ) -> std::io::Result<()> {
        let (serves_verbs, pass) = (self.verbs.is_some(), guest.pass);
        let has_holder = owner.is_some_and(|owner| self.has_other_holder(owner, ticket));
        let begun = self.client_of(&guest, ticket).and_then(|client| {
            if serves_verbs && owner.is_some() && guest.rights > Rights::Read {
                return Err(
                    "the memory of this node is changed by its RDMA device alone: open the \
                     pool as verbs:HOST:PORT, or with the right to read only"
                        .to_owned(),
                );
            }
            client.begin_data(owner, (pass, has_holder), service)
        });
        let (gate, client) = match begun {
            Ok(begun) => begun,
            Err(reason) => return send(&mut guest.stream, &Reply::Refused(reason)),
        };
        self.send_welcome(&mut guest, ticket)?;
        let doors = owner.zip(self.doors.clone());
        self.nic.serve(DataConnection {
            stream: guest.stream,
            gate,
            client,
            doors,
            _permit: guest.permit,
        });
        Ok(())
    }

    /// V3: a session has one connection here, whoever says that it is his.
    fn has_other_holder(&self, owner: OwnerWord, ticket: Ticket) -> bool {
        let mut others = self.connected.iter().filter(|other| other.ticket != ticket);
        others.any(|other| other.has(owner))
    }

    /// The client that a further connection belongs to. Only who has proven the secret gets here;
    /// the ticket tells clients apart.
    fn client_of(&mut self, guest: &Guest, ticket: Ticket) -> Result<&mut Client, String> {
        let mut clients = self.connected.iter_mut();
        match clients.find(|client| client.ticket == ticket) {
            None => Err("the client of this connection is not connected any more".to_owned()),
            Some(client) if client.state.rights != guest.rights => {
                Err("the client has connected with other rights".to_owned())
            }
            Some(client) => Ok(client),
        }
    }

    fn welcome_queue(
        &mut self,
        mut guest: Guest,
        (ticket, owner): (Ticket, OwnerWord),
        service: &mut dyn TcpService,
    ) -> std::io::Result<()> {
        let (serves_verbs, pass) = (self.verbs.is_some(), guest.pass);
        let has_holder = self.has_other_holder(owner, ticket);
        let begun = self.client_of(&guest, ticket).and_then(|client| {
            if !serves_verbs {
                return Err("this node serves no verbs: open the pool as tcp:HOST:PORT".to_owned());
            }
            client.admit(owner, (&pass, has_holder), service)?;
            client.unconnected(owner).map(|_| ())
        });
        if let Err(reason) = begun {
            return send(&mut guest.stream, &Reply::Refused(reason));
        }
        self.send_welcome(&mut guest, ticket)?;
        let session = self.client_of(&guest, ticket);
        if let Ok(session) = session.and_then(|client| client.unconnected(owner)) {
            let line = QueueLine::new(guest.stream, guest.permit);
            session.way = SessionWay::Queue(Box::new(line));
        }
        Ok(())
    }

    /// Answers on the connections beside queue pairs from which something has come, by their
    /// places; ends the pairs whose connection has ended.
    fn hear_lines(&mut self, ready: &[bool]) {
        let mut ready = ready.iter();
        for client in &mut self.connected {
            let rights = client.state.rights;
            for session in &mut client.sessions {
                let SessionWay::Queue(line) = &mut session.way else {
                    continue;
                };
                if !ready.next().copied().unwrap_or(false) {
                    continue;
                }
                client.state.hear();
                if let Err(error) = line.hear(self.verbs.as_ref(), rights) {
                    tracing::debug!(owner = %session.owner, %error, "a queue pair ended");
                    session.end();
                }
            }
        }
    }

    /// Answers those from whom something has come, by their places.
    pub(super) fn hear(&mut self, ready: &[bool], service: &mut dyn TcpService) {
        let lines_start = ready.len().min(self.connected.len());
        self.hear_lines(&ready[lines_start..]);
        let count = ready.len().min(self.connected.len());
        // From the last to the first, as a client that ends gives its place to the last.
        for index in (0..count).rev().filter(|index| ready[*index]) {
            let client = &mut self.connected[index];
            client.state.hear();
            let answered = match client.inbox.receive(&mut client.stream) {
                Ok(None) => continue,
                Ok(Some(frame)) => {
                    let reply = match Request::decode(&frame) {
                        Ok(request) => self.answer(index, &request, service),
                        Err(malformed) => {
                            Reply::Refused(format!("this node was sent {}", malformed.0))
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
                    tracing::info!(%peer, pid, sessions, "client gone");
                } else {
                    tracing::info!(%peer, pid, sessions, %error, "client gone");
                }
                self.end(client, service);
            }
        }
    }

    fn answer(&mut self, index: usize, request: &Request, service: &mut dyn TcpService) -> Reply {
        let client = &mut self.connected[index];
        match request {
            Request::Register => self.register(index, service),
            Request::Close(owner) => {
                if client.close(*owner, service) {
                    self.nic.sweep();
                    fenced_or(Reply::Closed, *owner, service)
                } else if service.is_being_fenced(*owner) {
                    Reply::UnderWay
                } else {
                    Reply::Refused(format!("{owner} is none of this client's sessions"))
                }
            }
            Request::Life(owner) => Reply::Life(service.process_of(*owner)),
            Request::Fence(_) | Request::Join(_) | Request::SetMember { .. }
                if client.state.rights < Rights::Admin =>
            {
                Reply::Refused("only who has the right to administer may do that".to_owned())
            }
            Request::Fence(owner) => self.fence(*owner, service),
            Request::Home => Reply::Home(service.home_address().unwrap_or_default()),
            Request::Join(join) => match service.join(join) {
                Ok(joined) => Reply::Joined(joined),
                Err(reason) => Reply::Refused(reason),
            },
            Request::SetMember { node, state } => match service.set_member(*node, *state) {
                Ok(member) => Reply::Member(member),
                Err(reason) => Reply::Refused(reason),
            },
            Request::Member(node) => Reply::Member(service.member(*node)),
            Request::Hello { .. } | Request::Proof(_) => {
                Reply::Refused("the greeting is over".to_owned())
            }
            Request::Queue(_) => {
                Reply::Refused("a queue pair has a connection of its own".to_owned())
            }
        }
    }

    fn register(&mut self, index: usize, service: &mut dyn TcpService) -> Reply {
        let client = &mut self.connected[index];
        let count_max = self.session_count_max;
        if client.sessions.len() >= count_max {
            return Reply::Refused(format!(
                "this client has {count_max} sessions, as many as one may have here (serve \
                 --sessions-per-client)"
            ));
        }
        match service.register(client.process_here()) {
            Ok(owner) => {
                client.state.add_own(service.own_words(owner));
                let way = SessionWay::None;
                client.sessions.push(ClientSession { owner, way });
                let pass = self.pass_key.as_ref().map(|key| key.pass(owner));
                let pass = pass.unwrap_or_default();
                Reply::Session { owner, pass }
            }
            Err(reason) => Reply::Refused(reason),
        }
    }

    /// F6, by an operator's wish.
    fn fence(&mut self, owner: OwnerWord, service: &mut dyn TcpService) -> Reply {
        // V3: whoever came in under this name, before anybody hears that there is nobody.
        let is_barred = service.bar(owner);
        let mut holder = None;
        for client in &mut self.connected {
            for owner in client.named_by(owner, is_barred) {
                client.close(owner, service);
                holder = Some((client.peer, client.pid));
            }
        }
        if let Some((peer, pid)) = holder {
            if service.home_address().is_some() {
                // V3: by the home, for whatever reason.
                tracing::debug!(%owner, %peer, pid, "fenced by the pool's home");
            } else {
                tracing::warn!(%owner, %peer, pid, "fenced on request");
            }
            self.nic.sweep();
            return fenced_or(Reply::Fenced, owner, service);
        }
        if service.is_being_fenced(owner) {
            return Reply::UnderWay;
        }
        if is_barred {
            return Reply::Fenced;
        }
        match service.process_of(owner) {
            None => Reply::Fenced,
            Some(pid) => Reply::Refused(format!(
                "{owner} is of process {pid} of the node's host, which executes its verbs by \
                 itself: it is fenced when that process ends"
            )),
        }
    }

    /// Ends the clients from which nothing has come for long.
    pub(super) fn end_silent(&mut self, service: &mut dyn TcpService) {
        let limit_ms = self.silence_max.as_millis() as u64;
        for index in (0..self.connected.len()).rev() {
            let silence_ms = self.connected[index].state.silence_ms();
            if silence_ms <= limit_ms {
                continue;
            }
            let client = self.connected.swap_remove(index);
            let (peer, pid) = (client.peer, client.pid);
            tracing::warn!(%peer, pid, silence_ms, "client silent for too long: given up");
            self.end(client, service);
        }
    }

    /// Ends all of them.
    pub(super) fn end_all(&mut self, service: &mut dyn TcpService) {
        for client in std::mem::take(&mut self.connected) {
            self.end(client, service);
        }
    }

    fn end(&self, mut client: Client, service: &mut dyn TcpService) {
        // All gates first: whatever is fenced, nothing of this client is executed any more.
        client.own_gates.iter().for_each(|gate| gate.close());
        client.sessions.iter_mut().for_each(ClientSession::end);
        for session in client.sessions.drain(..) {
            service.fence(session.owner);
        }
        client.stream.shut_down();
        self.nic.sweep();
    }
}

/// What is said when a session is fenced, unless other nodes have to be heard before it is.
fn fenced_or(done: Reply, owner: OwnerWord, service: &dyn TcpService) -> Reply {
    if service.is_being_fenced(owner) {
        Reply::UnderWay
    } else {
        done
    }
}

impl Client {
    /// A gate for a new connection of a session, or of the process as such.
    fn begin_data(
        &mut self,
        owner: Option<OwnerWord>,
        (pass, has_holder): (Pass, bool),
        service: &mut dyn TcpService,
    ) -> Result<(Arc<Gate>, Arc<ClientState>), String> {
        let gate = Arc::new(Gate::default());
        if let Some(owner) = owner {
            self.admit(owner, (&pass, has_holder), service)?;
            self.unconnected(owner)?.way = SessionWay::Gate(Arc::clone(&gate));
        } else {
            // Who holds the last one is not served any more.
            self.own_gates.retain(|gate| Arc::strong_count(gate) > 1);
            if self.own_gates.len() >= OWN_CONNECTION_COUNT_MAX {
                return Err("this client has as many connections as it may have".to_owned());
            }
            self.own_gates.push(Arc::clone(&gate));
        }
        Ok((gate, Arc::clone(&self.state)))
    }

    /// V3: a session that another node has registered, the pool's home, may come in here, once.
    fn admit(
        &mut self,
        owner: OwnerWord,
        (pass, has_holder): (&Pass, bool),
        service: &mut dyn TcpService,
    ) -> Result<(), String> {
        if self.has(owner) {
            return Ok(());
        }
        service.admit(owner, pass)?;
        if has_holder {
            return Err("the session is another client's".to_owned());
        }
        let way = SessionWay::None;
        self.sessions.push(ClientSession { owner, way });
        Ok(())
    }

    /// A session that has no connection yet.
    fn unconnected(&mut self, owner: OwnerWord) -> Result<&mut ClientSession, String> {
        let mut sessions = self.sessions.iter_mut();
        let session = sessions.find(|session| session.owner == owner);
        let session =
            session.ok_or_else(|| format!("{owner} is none of this client's sessions"))?;
        match session.way {
            SessionWay::None => Ok(session),
            _ => Err(format!("{owner} has its connection already")),
        }
    }

    /// Its process, if that is one of this host; 0 otherwise.
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

    /// Those of its sessions that are fenced with this one: where sessions are barred, what was
    /// before it under its number is, too.
    fn named_by(&self, fenced: OwnerWord, is_barred: bool) -> Vec<OwnerWord> {
        let is_older = |owner: OwnerWord| {
            let both = owner.holder().zip(fenced.holder());
            both.is_some_and(|(own, last)| own.0 == last.0 && own.1.number() <= last.1.number())
        };
        let owners = self.sessions.iter().map(|session| session.owner);
        let named = owners.filter(|owner| *owner == fenced || (is_barred && is_older(*owner)));
        named.collect()
    }

    /// F6: the session's verbs have an end, and it is fenced. False: it is not this client's.
    fn close(&mut self, owner: OwnerWord, service: &mut dyn TcpService) -> bool {
        let Some(index) = self
            .sessions
            .iter()
            .position(|session| session.owner == owner)
        else {
            return false;
        };
        self.sessions.swap_remove(index).end();
        // Its block is another's soon: no connection of this client may write to it then, nor be
        // about to.
        self.state.remove_own(&service.own_words(owner));
        let others = self.sessions.iter().filter_map(ClientSession::gate);
        self.own_gates
            .iter()
            .chain(others)
            .for_each(|gate| gate.wait());
        service.fence(owner);
        true
    }
}
