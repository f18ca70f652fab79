//! The node's network listener, for the `tcp` backend.

use core::ops::Range;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use farleaf_base::{BLOCK_SIZE_WORDS, NodeId, OwnerWord, WordAddr};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::tcp::{
    Grant, JoinRequest, Joined, MemberReply, TcpListenOptions, TcpListener, TcpService,
};
use farleaf_fabric::verbs::VerbsNode;
use farleaf_fabric::{SessionService, StopSignal, WindowRegistry};
use farleaf_net::secret::{Pass, Rights};
use farleaf_pool::NodeLayout;
use farleaf_pool::catalog::{TABLE_COUNT_MAX, root_addr};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::session::{heartbeat_addr, ring_request_addr};

use crate::NodeError;
use crate::members::{DataNodeState, FencingThread, PoolMainNode};
use crate::sessions::SharedSessions;

/// Running network listener; stopped when dropped.
#[derive(Debug)]
pub(crate) struct NetworkListener {
    pub(crate) address: SocketAddr,
    stop: StopSignal,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl NetworkListener {
    /// Starts a listener, which serves from its own threads until it is dropped or `stop` is
    /// signaled.
    pub(crate) fn open(
        memory: &Arc<MappedMemory>,
        role: PoolRole,
        layout: NodeLayout,
        options: &TcpListenOptions,
        verbs: Option<Arc<VerbsNode>>,
        windows: Option<Arc<WindowRegistry>>,
        stop: StopSignal,
    ) -> Result<Self, NodeError> {
        let mut listener = TcpListener::bind(memory, options)?;
        if let Some(verbs) = verbs {
            listener.offer_verbs(verbs);
        }
        if let Some(windows) = windows {
            listener.offer_windows(windows);
        }
        if let PoolRole::MainNode { main_node, .. } = &role {
            main_node.give_pass_key(listener.pass_key(main_node.pool_id()));
        }
        let address = listener.address();
        let heard = stop.clone();
        // Clients reach such a node only through this listener. If it ends, the process ends and is
        // restarted.
        let end = StopNodeOnDrop((!matches!(role, PoolRole::Alone(_))).then(|| stop.clone()));
        let mut service = NetworkService { role, layout };
        let thread = std::thread::Builder::new().name("farleaf-tcp".to_owned());
        let thread = thread
            .spawn(move || {
                let _end = end;
                let served = listener.run(&mut service, &heard);
                if let Err(error) = &served {
                    tracing::error!(%error, "the network listener failed");
                }
                served
            })
            .map_err(NodeError::Thread)?;
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }
}

impl NetworkListener {
    /// Waits until the listener has stopped.
    ///
    /// # Errors
    /// The listener failed.
    pub(crate) fn wait(&mut self) -> Result<(), NodeError> {
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(NodeError::Thread(error)),
            Some(Err(_)) => Err(NodeError::Thread(std::io::Error::other(
                "the network listener panicked",
            ))),
        }
    }
}

/// Guard that stops a node when it is dropped, also by a panic.
struct StopNodeOnDrop(Option<StopSignal>);

impl Drop for StopNodeOnDrop {
    fn drop(&mut self) {
        if let Some(stop) = &self.0 {
            stop.stop();
        }
    }
}

impl Drop for NetworkListener {
    fn drop(&mut self) {
        self.stop.stop();
        if let Err(error) = self.wait() {
            tracing::error!(%error, "the network listener did not stop cleanly");
        }
    }
}

/// Role of a node in its pool.
pub(crate) enum PoolRole {
    /// The only node.
    Alone(SharedSessions),
    /// The main node of a pool of several nodes.
    MainNode {
        sessions: SharedSessions,
        main_node: Arc<PoolMainNode>,
        fencing: FencingThread,
    },
    /// A data node of a pool.
    DataNode(Arc<DataNodeState>),
}

/// Service of the listener: sessions, and the words that clients may change (FABRIC-7).
struct NetworkService {
    role: PoolRole,
    layout: NodeLayout,
}

impl SessionService for NetworkService {
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String> {
        match &mut self.role {
            PoolRole::Alone(sessions) | PoolRole::MainNode { sessions, .. } => {
                sessions.register(pid)
            }
            PoolRole::DataNode(data_node) => Err(format!(
                "sessions are registered at the pool's main node, {}",
                data_node.main_node_address
            )),
        }
    }

    fn fence(&mut self, owner: OwnerWord) {
        match &mut self.role {
            PoolRole::Alone(sessions) => sessions.fence(owner),
            // A session of the main node may have verbs in flight at data nodes, which must bar it
            // first.
            PoolRole::MainNode {
                sessions,
                main_node,
                fencing,
            } => {
                if !main_node.fence_if_alone(|| sessions.fence(owner)) {
                    fencing.begin(owner);
                }
            }
            // The end of a client's connection does not fence its session; the main node does that.
            PoolRole::DataNode(_) => {}
        }
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        match &mut self.role {
            PoolRole::Alone(sessions) | PoolRole::MainNode { sessions, .. } => {
                sessions.process_of(owner)
            }
            // Only the main node knows whether a session is fenced on all nodes.
            PoolRole::DataNode(_) => Some(0),
        }
    }
}

/// Returns the range of word indexes from one word up to another.
fn words(from: WordAddr, to: WordAddr) -> Range<u64> {
    from.index()..to.index()
}

impl TcpService for NetworkService {
    /// Returns the words that a client with these rights may change. No client may change the
    /// superblock, the node's own counters, or the life of a session. Writers may change chunks,
    /// their entries, roots and the retraining queue. Creating or dropping a table takes the
    /// catalog's lock, which needs administrator rights.
    fn grant(&self, rights: Rights) -> Grant {
        let layout = &self.layout;
        let hot = |at: WordAddr| words(at, at.offset(BLOCK_SIZE_WORDS));
        let mut open = vec![
            hot(layout.alloc_num()),
            hot(layout.sequence()),
            hot(layout.table_num()),
            hot(layout.queue_tail()),
            hot(layout.ring_request_count()),
            words(layout.queue_entries(), layout.sessions()),
        ];
        // Roots of an entry are open to writers; the whole entry only to those who may take the
        // catalog's lock.
        for entry in 0..TABLE_COUNT_MAX {
            open.push(words(
                root_addr(layout, entry),
                layout.catalog_entry(entry + 1),
            ));
        }
        match rights {
            Rights::Read => return Grant::nothing(),
            Rights::Write => {}
            Rights::Admin => open.extend([
                hot(layout.catalog_lock()),
                words(
                    layout.catalog_entry(0),
                    layout.catalog_entry(TABLE_COUNT_MAX),
                ),
            ]),
        }
        Grant {
            open_from: layout.chunk_entry(ChunkIndex(0)).index(),
            open,
        }
    }

    fn own_words(&self, owner: OwnerWord) -> Range<u64> {
        let Some((session, _)) = owner.holder() else {
            return 0..0;
        };
        let layout = &self.layout;
        let (first, last) = (
            heartbeat_addr(layout, session),
            ring_request_addr(layout, session),
        );
        words(first, last.offset(1))
    }

    fn main_node_address(&self) -> Option<String> {
        match &self.role {
            PoolRole::DataNode(data_node) => Some(data_node.main_node_address.clone()),
            PoolRole::Alone(_) | PoolRole::MainNode { .. } => None,
        }
    }

    fn pool_id(&self) -> u64 {
        match &self.role {
            PoolRole::MainNode { main_node, .. } => main_node.pool_id(),
            PoolRole::Alone(_) | PoolRole::DataNode(_) => 0,
        }
    }

    fn is_being_fenced(&self, owner: OwnerWord) -> bool {
        match &self.role {
            PoolRole::MainNode { fencing, .. } => fencing.is_under_way(owner),
            PoolRole::Alone(_) | PoolRole::DataNode(_) => false,
        }
    }

    fn admit(&mut self, owner: OwnerWord, pass: &Pass) -> Result<(), String> {
        match &self.role {
            PoolRole::DataNode(data_node) => data_node.admit(owner, pass),
            _ => Err(format!("{owner} does not belong to this client")),
        }
    }

    fn bar(&mut self, owner: OwnerWord) -> bool {
        if let PoolRole::DataNode(data_node) = &self.role {
            data_node.bar(owner);
        }
        matches!(self.role, PoolRole::DataNode(_))
    }

    fn join(&mut self, request: &JoinRequest) -> Result<Joined, String> {
        self.main_node()?.join(request)
    }

    fn set_member(&mut self, node: NodeId, state: u64) -> Result<MemberReply, String> {
        let main_node = self.main_node()?;
        main_node.set_state(node, state)?;
        Ok(main_node.member(node))
    }

    fn member(&mut self, node: NodeId) -> MemberReply {
        match &self.role {
            PoolRole::MainNode { main_node, .. } => main_node.member(node),
            _ => MemberReply {
                state: 0,
                pool_id: 0,
                answered_count: 0,
            },
        }
    }
}

impl NetworkService {
    fn main_node(&self) -> Result<&PoolMainNode, String> {
        match &self.role {
            PoolRole::MainNode { main_node, .. } => Ok(main_node),
            PoolRole::DataNode(data_node) => Err(format!(
                "only the pool's main node, {}, accepts this request",
                data_node.main_node_address
            )),
            PoolRole::Alone(_) => {
                Err("the pool has only this node, which is served without --pool".to_owned())
            }
        }
    }
}
