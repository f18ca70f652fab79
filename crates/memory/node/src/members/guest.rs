//! A guest's side (V1, V3, V4): a node that is not the pool's home.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_fabric::mapped::{MappedRegion, PageKind};
use farleaf_fabric::tcp::{
    JoinRequest, Pass, PassKey, TcpClient, TcpConnectOptions, TcpListenOptions,
};
use farleaf_fabric::verbs::{VerbsNode, VerbsOptions};
use farleaf_fabric::{ControlError, StopSignal};
use farleaf_region::members::MemberState;
use farleaf_types::{NodeId, OwnerWord, SessionId};

use crate::NodeError;
use crate::network::{NetworkDoor, Role};
use crate::sessions::format_region;

/// Time between two questions to the home.
const ASK_TICK: Duration = Duration::from_millis(500);
/// The same while it is being taken in.
const JOIN_TICK: Duration = Duration::from_millis(50);
/// Time until a home that cannot be reached, or does not want it, is tried again.
const HOME_TICK: Duration = Duration::from_secs(1);
/// A home that is there has taken a node in long before.
const JOIN_TIME_MAX: Duration = Duration::from_secs(30);
/// Sessions are fenced by the home's word, not for their silence here.
const SILENCE_MAX: Duration = Duration::from_secs(u32::MAX as u64);

/// What a guest serves, and for whom.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// What its memory is called where the system shows it.
    pub name: String,
    /// Size of its memory in bytes.
    pub size_bytes: u64,
    /// Where it listens.
    pub listen: TcpListenOptions,
    /// Where it is reached by the home and by clients: `HOST:PORT`. With port 0, that of the
    /// address that it listens at.
    pub address: String,
    /// The number in the pool that it would like to have; it gets another one if a region has had
    /// that before. 0: any.
    pub wanted: NodeId,
    /// Where the home is.
    pub home_address: String,
    /// How it connects to that.
    pub connect: TcpConnectOptions,
    /// The RDMA device that serves its memory, if one is to, as at the home.
    pub verbs: Option<VerbsOptions>,
}

/// How a guest's service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestEnd {
    /// It was stopped.
    Stopped,
    /// V4: its pool has given it up, or is another one now. It may be started again, empty.
    Lost,
}

/// V3: which sessions are not let in any more.
#[derive(Debug)]
pub(crate) struct GuestState {
    pub(crate) home_address: String,
    /// What the passes of the pool's sessions are made with, once a home has answered.
    pass_key: Mutex<Option<PassKey>>,
    /// The last incarnation of each number that is barred; what was before it is, too.
    barred: Mutex<BTreeMap<SessionId, u64>>,
}

impl GuestState {
    /// V3.
    pub(crate) fn admit(&self, owner: OwnerWord, pass: &Pass) -> Result<(), String> {
        let key = self.pass_key.lock();
        let key = key.unwrap_or_else(PoisonError::into_inner).clone();
        if !key.is_some_and(|key| key.is_pass(owner, pass)) {
            return Err(format!(
                "{owner} came without the pass that the pool's home, {}, gave to its owner",
                self.home_address
            ));
        }
        let barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((session, incarnation)) = owner.holder() else {
            return Err("nobody's session".to_owned());
        };
        match barred.get(&session) {
            Some(last) if *last >= incarnation.number() => Err(format!("{owner} has been fenced")),
            _ => Ok(()),
        }
    }

    /// V3.
    pub(crate) fn bar(&self, owner: OwnerWord) {
        if let Some((session, incarnation)) = owner.holder() {
            let mut barred = self.barred.lock().unwrap_or_else(PoisonError::into_inner);
            let last = barred.entry(session).or_default();
            *last = incarnation.number().max(*last);
        }
    }
}

/// A node of a pool whose home is elsewhere, at work; stopped when dropped.
#[derive(Debug)]
pub struct GuestNode {
    /// Hung up on everybody before the memory goes.
    door: NetworkDoor,
    size_bytes: u64,
    pages: PageKind,
    stop: StopSignal,
    joined: Mutex<Receiver<NodeId>>,
    /// Dropped, it stops the thread below.
    stopping: Option<Sender<()>>,
    thread: Option<JoinHandle<GuestEnd>>,
    /// Forgets the region after everybody who reaches it so has ended.
    verbs: Option<Arc<VerbsNode>>,
}

impl GuestNode {
    /// Gets the memory, listens, and asks the home to be taken in, for as long as it takes.
    ///
    /// # Errors
    /// The size is too small, the host has not so much memory, it cannot listen there, or there is
    /// no device that fits the options.
    pub fn start(options: &GuestOptions) -> Result<Self, NodeError> {
        let size_bytes = options.size_bytes;
        farleaf_region::Superblock::new(size_bytes, 0)?;
        let memory_error = |source| NodeError::Memory { size_bytes, source };
        let created = MappedRegion::create_shared(&options.name, size_bytes);
        let (memory, size_bytes, pages) = created.map_err(memory_error)?;
        let region = MappedRegion::map_shared(&memory, size_bytes).map_err(memory_error)?;
        let region = Arc::new(region);
        let layout = format_region(&region)?;
        let verbs = options.verbs.as_ref();
        let verbs = verbs.map(|options| VerbsNode::start(&region, options));
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
        let door = NetworkDoor::open(
            &region,
            Role::Guest(Arc::clone(&guest)),
            layout,
            &listen,
            (verbs.clone(), None),
            stop.clone(),
        )?;
        let request = JoinRequest {
            region_id: layout.superblock.region_id,
            size_bytes,
            wanted: options.wanted,
            address: with_port(&options.address, door.address),
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
                let end = keep_in_touch((&home, &connect), &request, &guest, told);
                // V4.
                signal.stop();
                end
            })
            .map_err(NodeError::Thread)?;
        Ok(Self {
            door,
            size_bytes,
            pages,
            stop,
            joined: Mutex::new(joined),
            stopping: Some(stopping),
            thread: Some(thread),
            verbs,
        })
    }

    /// Waits until its pool has taken it in; returns its number.
    ///
    /// # Errors
    /// That took too long; the log says why.
    pub fn wait_until_joined(&self) -> Result<NodeId, NodeError> {
        let joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        joined.recv_timeout(JOIN_TIME_MAX).map_err(|_| {
            let what = "the pool's home has not taken the node in";
            NodeError::Thread(std::io::Error::new(std::io::ErrorKind::TimedOut, what))
        })
    }

    /// Where it listens.
    pub fn network_address(&self) -> SocketAddr {
        self.door.address
    }

    /// What serves its memory, if that is an RDMA device: device, port, address, packet size.
    pub fn verbs(&self) -> Option<String> {
        self.verbs.as_ref().map(|verbs| verbs.describe())
    }

    /// Size of its region in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// What its memory is made of.
    pub fn page_kind(&self) -> PageKind {
        self.pages
    }

    /// Stops it from any thread.
    pub fn stop_signal(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Waits until it has been stopped, or has been given up (V4).
    pub fn wait(mut self) -> GuestEnd {
        if let Err(error) = self.door.wait() {
            tracing::error!(%error, "the node could not go on");
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
                tracing::error!("the thread that keeps in touch with the pool's home panicked");
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

/// HOST:0 becomes HOST with the port that was taken.
fn with_port(address: &str, taken: SocketAddr) -> String {
    match address.rsplit_once(':') {
        Some((host, "0")) => format!("{host}:{}", taken.port()),
        _ => address.to_owned(),
    }
}

/// Waits; false: it was stopped meanwhile.
fn rest(stopped: &Receiver<()>, time: Duration) -> bool {
    matches!(stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}

/// V1 and V4, until it is stopped or given up.
fn keep_in_touch(
    (home, connect): (&str, &TcpConnectOptions),
    request: &JoinRequest,
    guest: &GuestState,
    (stopped, joining): (&Receiver<()>, &Sender<NodeId>),
) -> GuestEnd {
    // The pool, and the number in it, once it has been taken in.
    let mut place: Option<(u64, NodeId)> = None;
    let mut is_told = false;
    loop {
        let ended = TcpClient::connect(home, connect)
            .and_then(|client| stay((&client, guest), request, &mut place, (stopped, joining)));
        match ended {
            Ok(end) => return end,
            Err(error) => {
                if !is_told {
                    tracing::warn!(home, %error, "not taken in by the pool's home; trying again");
                }
                is_told = true;
            }
        }
        if !rest(stopped, HOME_TICK) {
            return GuestEnd::Stopped;
        }
    }
}

/// The same with a home that answers.
fn stay(
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
        // V1: before it is asked again, and anybody can come.
        let key = home.secret().pass_key(joined.pool_id);
        *guest
            .pass_key
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = key;
        if let Some(node) = joined.node {
            tracing::info!(node = node.0, "this node belongs to its pool now");
            *place = Some((joined.pool_id, node));
            // Who started it need not wait for it.
            let _ = joining.send(node);
        } else if !rest(stopped, JOIN_TICK) {
            return Ok(GuestEnd::Stopped);
        }
    }
}

/// V4.
fn watch(
    home: &TcpClient,
    (pool_id, node): (u64, NodeId),
    stopped: &Receiver<()>,
) -> Result<GuestEnd, ControlError> {
    let mut is_told = false;
    loop {
        let member = home.member(node)?;
        let state = MemberState::from_word(member.state);
        match state.filter(|_| member.pool_id == pool_id) {
            Some(MemberState::Active | MemberState::Draining) => {}
            Some(MemberState::Left) => {
                if !is_told {
                    tracing::info!(
                        node = node.0,
                        "this node has been drained: nothing of the pool is on it, and it can be \
                         stopped"
                    );
                }
                is_told = true;
            }
            Some(MemberState::Lost) | None => {
                tracing::error!(
                    node = node.0,
                    "the pool has given this node up, or is another one now: what is here is lost"
                );
                return Ok(GuestEnd::Lost);
            }
        }
        if !rest(stopped, ASK_TICK) {
            return Ok(GuestEnd::Stopped);
        }
    }
}
