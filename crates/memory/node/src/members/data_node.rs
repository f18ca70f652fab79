//! The guest's side of membership: a node that is not the pool's home.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_base::{NodeId, OwnerWord, SessionId};
use farleaf_fabric::mapped::{MappedMemory, PageKind};
use farleaf_fabric::tcp::{
    JoinRequest, Pass, PassKey, TcpClient, TcpConnectOptions, TcpListenOptions,
};
use farleaf_fabric::verbs::{VerbsNode, VerbsOptions};
use farleaf_fabric::{ControlError, StopSignal};
use farleaf_pool::members::MemberState;

use crate::NodeError;
use crate::network::{NetworkListener, PoolRole};
use crate::sessions::format_memory;

/// Interval between two requests to the home.
const ASK_TICK: Duration = Duration::from_millis(500);
/// Interval between requests while the guest joins.
const JOIN_TICK: Duration = Duration::from_millis(50);
/// Time until a home that is unreachable, or refuses the guest, is retried.
const HOME_TICK: Duration = Duration::from_secs(1);
/// Maximum time of a join: a home that is running admits a node much faster.
const JOIN_TIME_MAX: Duration = Duration::from_secs(30);
/// Sessions are fenced on request of the home, not because they are silent here.
const SILENCE_MAX: Duration = Duration::from_secs(u32::MAX as u64);

/// Options of a guest.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// Name of its memory in the operating system.
    pub name: String,
    /// Size of its memory in bytes.
    pub size_bytes: u64,
    /// Options of its listener.
    pub listen: TcpListenOptions,
    /// Address (`HOST:PORT`) at which the home and clients reach the guest. Port 0 stands for the
    /// port of its listener.
    pub address: String,
    /// Requested number in the pool; 0: any. The guest gets another number if a memory has had this
    /// one before.
    pub wanted: NodeId,
    /// Address of the home.
    pub home_address: String,
    /// Options for its connections to the home.
    pub connect: TcpConnectOptions,
    /// RDMA device that serves its memory, if any; required if the home has one.
    pub verbs: Option<VerbsOptions>,
}

/// Reason why a guest's service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestEnd {
    /// The guest was stopped.
    Stopped,
    /// The pool has declared the guest lost, or the home belongs to another pool now. The guest may
    /// be restarted with empty memory.
    Lost,
}

/// Admission of sessions at a guest.
#[derive(Debug)]
pub(crate) struct GuestState {
    pub(crate) home_address: String,
    /// Key that signs the passes of the pool's sessions; known once the home has answered.
    pass_key: Mutex<Option<PassKey>>,
    /// Last barred incarnation of each session number; earlier ones are barred too.
    barred: Mutex<BTreeMap<SessionId, u64>>,
}

impl GuestState {
    /// Admits a session with a valid pass, unless it is barred.
    pub(crate) fn admit(&self, owner: OwnerWord, pass: &Pass) -> Result<(), String> {
        let key = self.pass_key.lock();
        let key = key.unwrap_or_else(PoisonError::into_inner).clone();
        if !key.is_some_and(|key| key.is_pass(owner, pass)) {
            return Err(format!(
                "{owner} has no valid pass from the pool's home node, {}",
                self.home_address
            ));
        }
        let barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((session, incarnation)) = owner.holder() else {
            return Err("the request names no session".to_owned());
        };
        match barred.get(&session) {
            Some(last) if *last >= incarnation.number() => Err(format!("{owner} has been fenced")),
            _ => Ok(()),
        }
    }

    /// Bars a session permanently.
    pub(crate) fn bar(&self, owner: OwnerWord) {
        if let Some((session, incarnation)) = owner.holder() {
            let mut barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
            let last = barred.entry(session).or_default();
            *last = incarnation.number().max(*last);
        }
    }
}

/// Running guest of a pool; stopped when dropped.
#[derive(Debug)]
pub struct GuestNode {
    /// Network listener. Closes all connections before the memory is released.
    network_listener: NetworkListener,
    size_bytes: u64,
    pages: PageKind,
    stop: StopSignal,
    joined: Mutex<Receiver<NodeId>>,
    /// Channel whose end stops the membership thread.
    stopping: Option<Sender<()>>,
    thread: Option<JoinHandle<GuestEnd>>,
    /// RDMA node. Releases the memory after all its clients have ended.
    verbs: Option<Arc<VerbsNode>>,
}

impl GuestNode {
    /// Allocates the memory, listens, and asks the home to join the pool until it succeeds.
    ///
    /// # Errors
    /// The size is too small, the host does not have enough memory, the address cannot be used, or
    /// no device fits the options.
    pub fn start(options: &GuestOptions) -> Result<Self, NodeError> {
        let size_bytes = options.size_bytes;
        farleaf_pool::Superblock::new(size_bytes, 0)?;
        let memory_error = |source| NodeError::Memory { size_bytes, source };
        let created = MappedMemory::create_shared(&options.name, size_bytes);
        let (memory, size_bytes, pages) = created.map_err(memory_error)?;
        let memory = MappedMemory::map_shared(&memory, size_bytes).map_err(memory_error)?;
        let memory = Arc::new(memory);
        let layout = format_memory(&memory)?;
        let verbs = options.verbs.as_ref();
        let verbs = verbs.map(|options| VerbsNode::start(&memory, options));
        let verbs = verbs.transpose()?.map(Arc::new);
        let guest = Arc::new(GuestState {
            home_address: options.home_address.clone(),
            pass_key: Mutex::default(),
            barred: Mutex::default(),
        });
        let stop = StopSignal::new().map_err(NodeError::Thread)?;
        let listen = TcpListenOptions {
            silence_max: SILENCE_MAX,
            ..options.listen.clone()
        };
        let network_listener = NetworkListener::open(
            &memory,
            PoolRole::Guest(Arc::clone(&guest)),
            layout,
            &listen,
            (verbs.clone(), None),
            stop.clone(),
        )?;
        let request = JoinRequest {
            memory_id: layout.superblock.memory_id,
            size_bytes,
            wanted: options.wanted,
            address: with_port(&options.address, network_listener.address),
            serves_verbs: verbs.is_some(),
        };
        let (stopping, stopped) = channel();
        let (joining, joined) = channel();
        let (home, connect) = (options.home_address.clone(), options.connect.clone());
        let signal = stop.clone();
        let thread = std::thread::Builder::new().name("farleaf-guest".to_owned());
        let thread = thread
            .spawn(move || {
                let told = (&stopped, &joining);
                let end = maintain_membership((&home, &connect), &request, &guest, told);
                // The pool has declared this node lost: stop the listener.
                signal.stop();
                end
            })
            .map_err(NodeError::Thread)?;
        Ok(Self {
            network_listener,
            size_bytes,
            pages,
            stop,
            joined: Mutex::new(joined),
            stopping: Some(stopping),
            thread: Some(thread),
            verbs,
        })
    }

    /// Waits until the guest has joined the pool; returns its number.
    ///
    /// # Errors
    /// The join took too long; the log has the reason.
    pub fn wait_until_joined(&self) -> Result<NodeId, NodeError> {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        joined.recv_timeout(JOIN_TIME_MAX).map_err(|_| {
            let what = "timed out: the pool's home node has not admitted this node";
            NodeError::Thread(std::io::Error::new(std::io::ErrorKind::TimedOut, what))
        })
    }

    /// Returns the address of the listener.
    pub fn network_address(&self) -> SocketAddr {
        self.network_listener.address
    }

    /// Returns device, port, address and packet size of the RDMA device that serves the memory, if
    /// any.
    pub fn verbs(&self) -> Option<String> {
        self.verbs.as_ref().map(|verbs| verbs.describe())
    }

    /// Returns the size of the memory in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the kind of the memory's pages.
    pub fn page_kind(&self) -> PageKind {
        self.pages
    }

    /// Returns a signal that stops the guest from any thread.
    pub fn stop_signal(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Waits until the guest was stopped or declared lost.
    pub fn wait(mut self) -> GuestEnd {
        if let Err(error) = self.network_listener.wait() {
            tracing::error!(%error, "the memory node did not stop cleanly");
        }
        self.join()
    }

    fn join(&mut self) -> GuestEnd {
        self.stopping.take();
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(end)) => end,
            None => GuestEnd::Stopped,
            Some(Err(_)) => {
                tracing::error!("the thread that polls the pool's home node panicked");
                GuestEnd::Lost
            }
        }
    }
}

impl Drop for GuestNode {
    fn drop(&mut self) {
        self.stop.stop();
        self.join();
    }
}

/// Replaces port 0 in an address by the port in use.
fn with_port(address: &str, taken: SocketAddr) -> String {
    match address.rsplit_once(':') {
        Some((host, "0")) => format!("{host}:{}", taken.port()),
        _ => address.to_owned(),
    }
}

/// Waits; returns false if the guest was stopped in the meantime.
fn rest(stopped: &Receiver<()>, time: Duration) -> bool {
    matches!(stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}

/// Joins the pool and stays in contact with the home, until the guest is stopped or declared lost.
fn maintain_membership(
    (home, connect): (&str, &TcpConnectOptions),
    request: &JoinRequest,
    guest: &GuestState,
    (stopped, joining): (&Receiver<()>, &Sender<NodeId>),
) -> GuestEnd {
    // The pool, and the number in it, once the guest has joined.
    let mut place: Option<(u64, NodeId)> = None;
    let mut is_logged = false;
    loop {
        let ended = TcpClient::connect(home, connect).and_then(|client| {
            join_and_poll((&client, guest), request, &mut place, (stopped, joining))
        });
        match ended {
            Ok(end) => return end,
            Err(error) => {
                if !is_logged {
                    tracing::warn!(home, %error, "cannot reach or join the pool's home; retrying");
                }
                is_logged = true;
            }
        }
        if !rest(stopped, HOME_TICK) {
            return GuestEnd::Stopped;
        }
    }
}

/// Joins and stays in contact with a home that answers.
fn join_and_poll(
    (home, guest): (&TcpClient, &GuestState),
    request: &JoinRequest,
    place: &mut Option<(u64, NodeId)>,
    (stopped, joining): (&Receiver<()>, &Sender<NodeId>),
) -> Result<GuestEnd, ControlError> {
    loop {
        if let Some(place) = *place {
            return watch(home, place, stopped);
        }
        let joined = home.join(request)?;
        // The key is set before the second request, after which sessions may connect.
        let key = home.secret().pass_key(joined.pool_id);
        *guest
            .pass_key
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = key;
        if let Some(node) = joined.node {
            tracing::info!(node = node.0, "this node has joined the pool");
            *place = Some((joined.pool_id, node));
            // The caller that started the guest may not wait for it.
            let _ = joining.send(node);
        } else if !rest(stopped, JOIN_TICK) {
            return Ok(GuestEnd::Stopped);
        }
    }
}

/// Polls the home for the guest's state.
fn watch(
    home: &TcpClient,
    (pool_id, node): (u64, NodeId),
    stopped: &Receiver<()>,
) -> Result<GuestEnd, ControlError> {
    let mut is_logged = false;
    loop {
        let member = home.member(node)?;
        let state = MemberState::from_word(member.state);
        match state.filter(|_| member.pool_id == pool_id) {
            Some(MemberState::Active | MemberState::Draining) => {}
            Some(MemberState::Left) => {
                if !is_logged {
                    tracing::info!(
                        node = node.0,
                        "this node has been drained: it has no data of the pool and can be stopped"
                    );
                }
                is_logged = true;
            }
            Some(MemberState::Lost) | None => {
                tracing::error!(
                    node = node.0,
                    "the pool has declared this node lost, or its home node belongs to another \
                     pool now; the data on this node are lost"
                );
                return Ok(GuestEnd::Lost);
            }
        }
        if !rest(stopped, ASK_TICK) {
            return Ok(GuestEnd::Stopped);
        }
    }
}
