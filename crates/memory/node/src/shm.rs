//! A node for other processes: those of its host use the `shm` backend; if it has a network
//! listener, those of other hosts use `tcp`. With an RDMA device all of them use `verbs`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use farleaf_fabric::StopSignal;
use farleaf_fabric::mapped::{MappedMemory, PageKind};
use farleaf_fabric::shm::{PoolName, ShmListener};
use farleaf_fabric::tcp::TcpListenOptions;
use farleaf_fabric::verbs::{VerbsNode, VerbsOptions};

use crate::NodeError;
use crate::embedded::{NodeCore, NodeOptions};
use crate::members::{FencingThread, MainNodeOptions, MemberThreads};
use crate::network::{NetworkListener, PoolRole};
use crate::sessions::SharedSessions;

/// Memory node that other processes reach by its name.
#[derive(Debug)]
pub struct ShmNode {
    name: PoolName,
    size_bytes: u64,
    pages: PageKind,
    stop: StopSignal,
    memory: Arc<MappedMemory>,
    /// Network listener. Closed before the core ends, whose last sweep covers the sessions that are
    /// fenced then.
    network_listener: Option<NetworkListener>,
    members: Option<MemberThreads>,
    listener: Option<JoinHandle<std::io::Result<()>>>,
    core: NodeCore,
    /// RDMA node. Releases the memory after all its clients have ended.
    verbs: Option<Arc<VerbsNode>>,
}

/// Error for processes that try to map memory that only an RDMA device changes.
const NOT_BY_SHM: &str = "the memory of this node is changed only by its RDMA device, whose \
    atomics do not work together with those of the processor; open the pool as verbs:HOST:PORT";
/// Error for processes of the host that try to map one of several nodes.
const NOT_ALONE: &str = "this is one of several nodes of a pool, which are reached over the \
    network; open the pool as tcp:HOST:PORT of any of them";

impl ShmNode {
    /// Claims the name, allocates the memory, and serves from its own threads until it is dropped.
    /// Retrains tables if there is a policy.
    ///
    /// # Errors
    /// The name is invalid or taken, the size is too small, or the host does not have enough
    /// memory.
    pub fn start(
        name: &str,
        size_bytes: u64,
        node: impl Into<NodeOptions>,
    ) -> Result<Self, NodeError> {
        Self::start_on(name, size_bytes, node.into(), None, None)
    }

    /// Does the same as [`start`](Self::start), with an RDMA device that serves the memory. Only
    /// the device changes words then (FABRIC-4): processes of this host find the name taken and are
    /// referred to verbs, which [`listen`](Self::listen) permits.
    ///
    /// # Errors
    /// Fails like [`start`](Self::start), or if no device fits the options, or if the device cannot
    /// register so much memory.
    pub fn start_with_verbs(
        name: &str,
        size_bytes: u64,
        node: impl Into<NodeOptions>,
        options: &VerbsOptions,
    ) -> Result<Self, NodeError> {
        Self::start_on(name, size_bytes, node.into(), Some(options), None)
    }

    /// Does the same as [`start`](Self::start), as the main node of a pool that may have several
    /// nodes. All clients are connected over the network, by tcp or verbs: see
    /// [`listen`](Self::listen).
    ///
    /// # Errors
    /// Fails like [`start`](Self::start).
    pub fn start_main_node(
        name: &str,
        size_bytes: u64,
        node: impl Into<NodeOptions>,
        main_node: MainNodeOptions,
    ) -> Result<Self, NodeError> {
        let verbs = main_node.verbs.clone();
        Self::start_on(
            name,
            size_bytes,
            node.into(),
            verbs.as_ref(),
            Some(main_node),
        )
    }

    fn start_on(
        name: &str,
        size_bytes: u64,
        options: NodeOptions,
        verbs: Option<&VerbsOptions>,
        main_node: Option<MainNodeOptions>,
    ) -> Result<Self, NodeError> {
        let name = PoolName::new(name)?;
        farleaf_pool::Superblock::new(size_bytes, 0)?;
        let memory_error = |source| NodeError::Memory { size_bytes, source };
        let created = MappedMemory::create_shared(name.as_str(), size_bytes);
        let (descriptor, size_bytes, pages) = created.map_err(memory_error)?;
        let memory = MappedMemory::map_shared(&descriptor, size_bytes).map_err(memory_error)?;
        let mut listener = ShmListener::bind(&name, descriptor, size_bytes)?;
        let memory = Arc::new(memory);
        let verbs = verbs.map(|options| VerbsNode::start(&memory, options));
        let verbs = verbs.transpose()?.map(Arc::new);
        if verbs.is_some() {
            listener.refuse_all(NOT_BY_SHM);
        } else if main_node.is_some() {
            listener.refuse_all(NOT_ALONE);
        }
        let core = NodeCore::start(&memory, verbs.as_ref(), options, main_node)?;
        let stop = StopSignal::new().map_err(NodeError::Thread)?;
        let mut service = SharedSessions(Arc::clone(&core.sessions));
        let heard = stop.clone();
        let thread = std::thread::Builder::new().name("farleaf-listener".to_owned());
        let listener = thread
            .spawn(move || listener.run(&mut service, &heard))
            .map_err(NodeError::Thread)?;
        Ok(Self {
            name,
            size_bytes,
            pages,
            stop,
            memory,
            network_listener: None,
            members: None,
            listener: Some(listener),
            core,
            verbs,
        })
    }

    /// Accepts clients of other hosts by `tcp`, as long as the node serves.
    ///
    /// # Errors
    /// The address is in use, or is not one of this host, or it is reachable from other hosts and
    /// there is no secret.
    pub fn listen(&mut self, options: &TcpListenOptions) -> Result<SocketAddr, NodeError> {
        let sessions = SharedSessions(Arc::clone(&self.core.sessions));
        let role = match &self.core.main_node {
            None => PoolRole::Alone(sessions),
            Some(main_node) => {
                let fencing = FencingThread::start(Arc::clone(main_node), sessions.clone());
                let fencing = fencing.map_err(NodeError::Thread)?;
                PoolRole::MainNode {
                    sessions,
                    main_node: Arc::clone(main_node),
                    fencing,
                }
            }
        };
        let (layout, stop) = (*self.core.layout.main_node(), self.stop.clone());
        let verbs = self.verbs.clone();
        let network_listener = NetworkListener::open(
            &self.memory,
            role,
            layout,
            options,
            verbs,
            Some(Arc::clone(&self.core.windows)),
            stop,
        )?;
        if let Some(main_node) = &self.core.main_node {
            let threads = MemberThreads::start(main_node).map_err(NodeError::Thread)?;
            self.members = Some(threads);
        }
        Ok(self.network_listener.insert(network_listener).address)
    }

    /// Returns the address of the network listener, if there is one.
    pub fn network_address(&self) -> Option<SocketAddr> {
        self.network_listener
            .as_ref()
            .map(|network_listener| network_listener.address)
    }

    /// Returns device, port, address and packet size of the RDMA device that serves the memory, if
    /// any.
    pub fn verbs(&self) -> Option<String> {
        self.verbs.as_ref().map(|verbs| verbs.describe())
    }

    /// Returns the name of the node.
    pub fn name(&self) -> &PoolName {
        &self.name
    }

    /// Returns the size of the memory in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns the kind of the memory's pages.
    pub fn page_kind(&self) -> PageKind {
        self.pages
    }

    /// Returns a signal that stops the node from any thread.
    pub fn stop_signal(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Waits until the node has stopped. Clients that have mapped the memory keep it as long as
    /// they live, but no session can register any more, and dead sessions are not detected.
    ///
    /// # Errors
    /// The system can no longer wait for clients.
    pub fn wait(mut self) -> Result<(), NodeError> {
        self.join()?;
        match &mut self.network_listener {
            Some(network_listener) => network_listener.wait(),
            None => Ok(()),
        }
    }

    fn join(&mut self) -> Result<(), NodeError> {
        match self.listener.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(error))) => Err(NodeError::Thread(error)),
            Some(Err(_)) => Err(NodeError::Thread(std::io::Error::other("it panicked"))),
        }
    }
}

impl Drop for ShmNode {
    fn drop(&mut self) {
        self.stop.stop();
        if let Err(error) = self.join() {
            tracing::error!(%error, "the memory node did not stop cleanly");
        }
    }
}
