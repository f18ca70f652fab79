//! A node inside the process that uses it, with memory private to that process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use farleaf_base::OwnerWord;
use farleaf_base::locks::lock;
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::network::NodeDirectory;
use farleaf_fabric::verbs::VerbsNode;
use farleaf_fabric::{Control, ControlError, SessionLife};
use farleaf_fabric::{Endpoint, SessionService, WindowRegistry};
use farleaf_pool::PoolLayout;

use crate::calls::{CallOptions, CallThreads, RingAssigner, RingRegistry, TableServer};
use crate::endpoint::NodeEndpoint;
use crate::members::{MainNodeOptions, PoolMainNode};
use crate::retrain::RetrainPolicy;
use crate::sessions::{AgentEvent, Sessions, format_memory};
use crate::sweep::MemoryMaintainer;
use crate::worker_sessions::NodeSessionFactory;
use crate::{NodeError, agent};

/// Tasks of a node beyond serving its memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeOptions {
    /// Policy that selects tables to retrain, and when; `None` disables retraining.
    pub retraining: Option<RetrainPolicy>,
    /// Options for executing calls.
    pub calls: CallOptions,
}

impl From<Option<RetrainPolicy>> for NodeOptions {
    /// Uses the default options for calls.
    fn from(retraining: Option<RetrainPolicy>) -> Self {
        Self {
            retraining,
            ..Self::default()
        }
    }
}

/// Core of every node: sessions and agent of one node's memory.
#[derive(Debug)]
pub(crate) struct NodeCore {
    pub(crate) sessions: Arc<Mutex<Sessions<NodeEndpoint>>>,
    pub(crate) layout: PoolLayout,
    events: Sender<AgentEvent>,
    /// Flag that stops the agent during a sweep, when it receives no events.
    stop: Arc<AtomicBool>,
    agent: Option<JoinHandle<()>>,
    /// Threads that execute calls; they end after the agent.
    _calls: CallThreads,
    /// Windows of sessions that are connected over a network (FABRIC-10).
    pub(crate) windows: Arc<WindowRegistry>,
    /// Membership of the pool, if this node is the main node of a pool that may have several nodes.
    pub(crate) main_node: Option<Arc<PoolMainNode>>,
}

impl NodeCore {
    /// Formats fresh memory and starts the agent. If there is a device, only it changes words
    /// (FABRIC-4).
    pub(crate) fn start(
        memory: &Arc<MappedMemory>,
        device: Option<&Arc<VerbsNode>>,
        options: NodeOptions,
        main_node: Option<MainNodeOptions>,
    ) -> Result<Self, NodeError> {
        let retraining = options.retraining;
        let region_layout = format_memory(memory)?;
        let layout = PoolLayout::from(region_layout);
        let (events, heard) = channel();
        let own_device = device.map(Arc::as_ref);
        let own = NodeEndpoint::new(memory, own_device)?;
        let mut sessions = Sessions::new(own, region_layout, events.clone());
        let refused = |reason: String| NodeError::Thread(std::io::Error::other(reason));
        let owner = sessions.open(std::process::id()).map_err(refused)?;
        let stop = Arc::new(AtomicBool::new(false));
        let own = NodeEndpoint::new(memory, own_device)?;
        let (main_node, endpoint) = match main_node {
            None => (None, own),
            Some(options) => {
                let main_node =
                    PoolMainNode::new(layout.clone(), own, options, retraining.is_some(), owner)?;
                let nodes: Arc<dyn NodeDirectory> = Arc::clone(&main_node) as _;
                let endpoint = NodeEndpoint::in_pool(memory, own_device, owner, nodes)?;
                (Some(main_node), endpoint)
            }
        };
        let renewing = main_node.clone().map(|main_node| EndpointRenewal {
            memory: Arc::clone(memory),
            device: device.map(Arc::clone),
            owner,
            main_node,
        });
        let renew = move |broken: &NodeEndpoint| renewing.as_ref()?.renew(broken);
        let maintainer = MemoryMaintainer {
            blocks: crate::sweep::BlockSweepers::default(),
            endpoint,
            layout: layout.clone(),
            owner,
        };
        let (ring_registry, server) = (
            Arc::<RingRegistry>::default(),
            Arc::new(TableServer::new(memory.word_count() * 8)),
        );
        let ring_assigner = RingAssigner::new(Arc::clone(&ring_registry), Arc::clone(&server));
        let sessions = Arc::new(Mutex::new(sessions));
        let session_factory = NodeSessionFactory {
            memory: Arc::clone(memory),
            device: device.map(Arc::clone),
            main_node: main_node.clone(),
            sessions: Arc::clone(&sessions),
        };
        let windows = Arc::<WindowRegistry>::default();
        let calls = CallThreads::start(
            memory,
            &layout,
            ring_registry,
            server,
            Arc::clone(&windows),
            &session_factory,
            options.calls,
        );
        let calls = calls.map_err(NodeError::Thread)?;
        let (assigner, agent_stop) = (Some(ring_assigner), Arc::clone(&stop));
        let agent = agent::start(maintainer, renew, heard, agent_stop, retraining, assigner);
        let agent = agent.map_err(NodeError::Thread)?;
        Ok(Self {
            sessions,
            layout,
            events,
            stop,
            agent: Some(agent),
            _calls: calls,
            windows,
            main_node,
        })
    }
}

/// Data for reopening an endpoint whose connection to a data node is broken.
struct EndpointRenewal {
    memory: Arc<MappedMemory>,
    device: Option<Arc<VerbsNode>>,
    owner: OwnerWord,
    main_node: Arc<PoolMainNode>,
}

impl EndpointRenewal {
    fn renew(&self, endpoint: &NodeEndpoint) -> Option<NodeEndpoint> {
        let is_open = |node| endpoint.memory_word_count(node).is_some();
        if !self.main_node.is_agent_connection_broken(is_open) {
            return None;
        }
        let nodes: Arc<dyn NodeDirectory> = Arc::clone(&self.main_node) as _;
        let device = self.device.as_deref();
        match NodeEndpoint::in_pool(&self.memory, device, self.owner, nodes) {
            Ok(endpoint) => Some(endpoint),
            Err(error) => {
                tracing::error!(%error, "the agent cannot reconnect to a node of its pool");
                None
            }
        }
    }
}

impl Drop for NodeCore {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // An agent that has already ended does not receive it.
        let _ = self.events.send(AgentEvent::Stop);
        if let Some(agent) = self.agent.take()
            && agent.join().is_err()
        {
            tracing::error!("the memory node's agent panicked");
        }
    }
}

/// Memory node on memory of this process, for the `mem` backend.
#[derive(Debug)]
pub struct MemNode {
    memory: Arc<MappedMemory>,
    core: NodeCore,
}

impl MemNode {
    /// Maps `size_bytes` and starts the node. Retrains tables if there is a policy.
    ///
    /// # Errors
    /// The size is too small, or the system does not have enough memory.
    pub fn start(size_bytes: u64, options: impl Into<NodeOptions>) -> Result<Self, NodeError> {
        let memory = MappedMemory::anonymous(size_bytes)
            .map_err(|source| NodeError::Memory { size_bytes, source })?;
        let memory = Arc::new(memory);
        Ok(Self {
            core: NodeCore::start(&memory, None, options.into(), None)?,
            memory,
        })
    }

    /// Returns the node's memory.
    pub fn memory(&self) -> &Arc<MappedMemory> {
        &self.memory
    }

    /// Returns the layout of the memory.
    pub fn layout(&self) -> PoolLayout {
        self.core.layout.clone()
    }
}

impl Control for MemNode {
    fn register_session(&self) -> Result<OwnerWord, ControlError> {
        let mut sessions = lock(&self.core.sessions);
        let registered = sessions.register(std::process::id());
        registered.map_err(|reason| ControlError::Refused {
            pool: "mem:".to_owned(),
            reason,
        })
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        let mut sessions = lock(&self.core.sessions);
        sessions.close(owner);
        Ok(())
    }

    fn session_life(&self, owner: OwnerWord) -> Result<SessionLife, ControlError> {
        let sessions = lock(&self.core.sessions);
        sessions.life(owner).map_err(|error| ControlError::Refused {
            pool: "mem:".to_owned(),
            reason: error.to_string(),
        })
    }
}
