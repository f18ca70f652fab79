//! The data node's side of membership: a node that is not the pool's main node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_base::locks::lock;
use farleaf_base::{NodeId, OwnerWord, SessionId};
use farleaf_fabric::mapped::{MappedMemory, PageKind};
use farleaf_fabric::tcp::{JoinRequest, TcpClient, TcpConnectOptions, TcpListenOptions};
use farleaf_fabric::verbs::{VerbsNode, VerbsOptions};
use farleaf_fabric::{ControlError, StopSignal};
use farleaf_net::secret::{Pass, PassKey};
use farleaf_pool::members::MemberState;

use crate::NodeError;
use crate::network::{NetworkListener, PoolRole};
use crate::sessions::format_memory;

/// Interval between two requests to the main node.
const ASK_TICK: Duration = Duration::from_millis(500);
/// Interval between requests while the data node joins.
const JOIN_TICK: Duration = Duration::from_millis(50);
/// Time until a main node that is unreachable, or refuses the data node, is retried.
const MAIN_NODE_TICK: Duration = Duration::from_secs(1);
/// Maximum time of a join: a main node that is running admits a node much faster.
const JOIN_TIME_MAX: Duration = Duration::from_secs(30);
/// Sessions are fenced on request of the main node, not because they are silent here.
const SILENCE_MAX: Duration = Duration::from_secs(u32::MAX as u64);

/// Options of a data node.
#[derive(Clone, Debug)]
pub struct DataNodeOptions {
    /// Name of the node's memory in the operating system.
    pub name: String,
    /// Size of the node's memory in bytes.
    pub size_bytes: u64,
    /// Options of the node's listener.
    pub listen: TcpListenOptions,
    /// Address (`HOST:PORT`) at which the main node and clients reach the data node. Port 0 stands
    /// for the port of its listener.
    pub address: String,
    /// Requested number in the pool; 0: any. The data node gets another number if a memory has had
    /// this one before.
    pub wanted: NodeId,
    /// Address of the main node.
    pub main_node_address: String,
    /// Options for the node's connections to the main node.
    pub connect: TcpConnectOptions,
    /// RDMA device that serves its memory, if any; required if the main node has one.
    pub verbs: Option<VerbsOptions>,
}

/// Reason why a data node's service ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataNodeEnd {
    /// The data node was stopped.
    Stopped,
    /// The pool has declared the data node lost, or the main node belongs to another pool now. The
    /// data node may be restarted with empty memory.
    Lost,
}

/// Admission of sessions at a data node.
#[derive(Debug)]
pub(crate) struct DataNodeState {
    pub(crate) main_node_address: String,
    /// Key that signs the passes of the pool's sessions; known once the main node has answered.
    pass_key: Mutex<Option<PassKey>>,
    /// Last barred incarnation of each session number; earlier ones are barred too.
    barred: Mutex<BTreeMap<SessionId, u64>>,
}

impl DataNodeState {
    /// Admits a session with a valid pass, unless it is barred.
    pub(crate) fn admit(&self, owner: OwnerWord, pass: &Pass) -> Result<(), String> {
        let key = lock(&self.pass_key).clone();
        if !key.is_some_and(|key| key.is_pass(owner, pass)) {
            return Err(format!(
                "{owner} has no valid pass from the pool's main node, {}",
                self.main_node_address
            ));
        }
        let barred = lock(&self.barred);
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
            let mut barred = lock(&self.barred);
            let last = barred.entry(session).or_default();
            *last = incarnation.number().max(*last);
        }
    }
}

/// Running data node of a pool; stopped when dropped.
#[derive(Debug)]
pub struct DataNode {
    /// Network listener. Closes all connections before the memory is released.
    network_listener: NetworkListener,
    size_bytes: u64,
    pages: PageKind,
    stop: StopSignal,
    joined: Mutex<Receiver<NodeId>>,
    /// Channel whose end stops the membership thread.
    stopping: Option<Sender<()>>,
    thread: Option<JoinHandle<DataNodeEnd>>,
    /// RDMA node. Releases the memory after all its clients have ended.
    verbs: Option<Arc<VerbsNode>>,
}

impl DataNode {
    /// Allocates the memory, listens, and asks the main node to join the pool until it succeeds.
    ///
    /// # Errors
    /// The size is too small, the host does not have enough memory, the address cannot be used, or
    /// no device fits the options.
    pub fn start(options: &DataNodeOptions) -> Result<Self, NodeError> {
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
        let data_node = Arc::new(DataNodeState {
            main_node_address: options.main_node_address.clone(),
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
            PoolRole::DataNode(Arc::clone(&data_node)),
            layout,
            &listen,
            verbs.clone(),
            None,
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
        let (main_node, connect) = (options.main_node_address.clone(), options.connect.clone());
        let signal = stop.clone();
        let thread = std::thread::Builder::new().name("farleaf-data-node".to_owned());
        let thread = thread
            .spawn(move || {
                let end = maintain_membership(
                    &main_node, &connect, &request, &data_node, &stopped, &joining,
                );
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

    /// Waits until the data node has joined the pool; returns its number.
    ///
    /// # Errors
    /// The join took too long; the log has the reason.
    pub fn wait_until_joined(&self) -> Result<NodeId, NodeError> {
        let joined = lock(&self.joined);
        joined.recv_timeout(JOIN_TIME_MAX).map_err(|_| {
            let what = "timed out: the pool's main node has not admitted this node";
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

    /// Returns a signal that stops the data node from any thread.
    pub fn stop_signal(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Waits until the data node was stopped or declared lost.
    pub fn wait(mut self) -> DataNodeEnd {
        if let Err(error) = self.network_listener.wait() {
            tracing::error!(%error, "the memory node did not stop cleanly");
        }
        self.join()
    }

    fn join(&mut self) -> DataNodeEnd {
        self.stopping.take();
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(end)) => end,
            None => DataNodeEnd::Stopped,
            Some(Err(_)) => {
                tracing::error!("the thread that polls the pool's main node panicked");
                DataNodeEnd::Lost
            }
        }
    }
}

impl Drop for DataNode {
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

/// Waits; returns false if the data node was stopped in the meantime.
fn rest(stopped: &Receiver<()>, time: Duration) -> bool {
    matches!(stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}

/// Joins the pool and stays in contact with the main node, until the data node is stopped or
/// declared lost.
fn maintain_membership(
    main_node: &str,
    connect: &TcpConnectOptions,
    request: &JoinRequest,
    data_node: &DataNodeState,
    stopped: &Receiver<()>,
    joining: &Sender<NodeId>,
) -> DataNodeEnd {
    // The pool, and the number in it, once the data node has joined.
    let mut place: Option<(u64, NodeId)> = None;
    let mut is_logged = false;
    loop {
        let ended = TcpClient::connect(main_node, connect).and_then(|client| {
            join_and_poll(&client, data_node, request, &mut place, stopped, joining)
        });
        match ended {
            Ok(end) => return end,
            Err(error) => {
                if !is_logged {
                    let what = "cannot reach or join the pool's main node; retrying";
                    tracing::warn!(main_node, %error, "{what}");
                }
                is_logged = true;
            }
        }
        if !rest(stopped, MAIN_NODE_TICK) {
            return DataNodeEnd::Stopped;
        }
    }
}

/// Joins and stays in contact with a main node that answers.
fn join_and_poll(
    main_node: &TcpClient,
    data_node: &DataNodeState,
    request: &JoinRequest,
    place: &mut Option<(u64, NodeId)>,
    stopped: &Receiver<()>,
    joining: &Sender<NodeId>,
) -> Result<DataNodeEnd, ControlError> {
    loop {
        if let Some((pool_id, node)) = *place {
            return watch(main_node, pool_id, node, stopped);
        }
        let joined = main_node.join(request)?;
        // The key is set before the second request, after which sessions may connect.
        let key = main_node.secret().pass_key(joined.pool_id);
        *lock(&data_node.pass_key) = key;
        if let Some(node) = joined.node {
            tracing::info!(node = node.0, "this node has joined the pool");
            *place = Some((joined.pool_id, node));
            // The caller that started the data node may not wait for it.
            let _ = joining.send(node);
        } else if !rest(stopped, JOIN_TICK) {
            return Ok(DataNodeEnd::Stopped);
        }
    }
}

/// Polls the main node for the data node's state.
fn watch(
    main_node: &TcpClient,
    pool_id: u64,
    node: NodeId,
    stopped: &Receiver<()>,
) -> Result<DataNodeEnd, ControlError> {
    let mut is_logged = false;
    loop {
        let member = main_node.member(node)?;
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
                    "the pool has declared this node lost, or its main node belongs to another \
                     pool now; the data on this node are lost"
                );
                return Ok(DataNodeEnd::Lost);
            }
        }
        if !rest(stopped, ASK_TICK) {
            return Ok(DataNodeEnd::Stopped);
        }
    }
}
