//! A node for other processes: of its host by the `shm` backend, and if it has a door to the
//! network of others by `tcp`, or by `verbs` alone.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use farleaf_fabric::mapped::{MappedRegion, PageKind};
use farleaf_fabric::shm::{PoolName, ShmListener};
use farleaf_fabric::tcp::TcpListenOptions;
use farleaf_fabric::verbs::{VerbsNode, VerbsOptions};
use farleaf_fabric::{SessionService, StopSignal};
use farleaf_types::OwnerWord;

use crate::NodeError;
use crate::embedded::{NodeCore, NodeOptions};
use crate::endpoint::NodeEndpoint;
use crate::members::{FencingThread, HomeOptions, MemberThreads};
use crate::network::{NetworkDoor, Role};
use crate::sessions::Sessions;

/// A memory node that other processes reach by its name.
#[derive(Debug)]
pub struct ShmNode {
    name: PoolName,
    size_bytes: u64,
    pages: PageKind,
    stop: StopSignal,
    region: Arc<MappedRegion>,
    /// Closed before the core ends, which sweeps after the sessions that are fenced then.
    door: Option<NetworkDoor>,
    members: Option<MemberThreads>,
    listener: Option<JoinHandle<std::io::Result<()>>>,
    core: NodeCore,
    /// Forgets the region after everybody who reaches it so has ended.
    verbs: Option<Arc<VerbsNode>>,
}

/// What those are told who would map memory that is another's to change.
const NOT_BY_SHM: &str = "the memory of this node is changed by its RDMA device alone, whose \
    atomics a processor's would break: open the pool as verbs:HOST:PORT";
/// What processes of the host are told that look for one of several nodes.
const NOT_ALONE: &str = "this is one of several nodes of a pool, which are reached over the \
    network: open the pool by tcp:HOST:PORT of any of them";

impl ShmNode {
    /// Takes the name, gets the memory, and serves from threads of its own until it is dropped.
    /// Tables are retrained if there is a policy for it.
    ///
    /// # Errors
    /// The name is bad or taken, the size too small, or the host has not so much memory.
    pub fn start(
        name: &str,
        size_bytes: u64,
        node: impl Into<NodeOptions>,
    ) -> Result<Self, NodeError> {
        Self::start_on(name, size_bytes, node.into(), (None, None))
    }

    /// [`start`](Self::start), with an RDMA device that serves the memory. Nobody else changes
    /// words of it then (F4): processes of this host find the name taken and are told to use verbs,
    /// which [`listen`](Self::listen) lets clients do.
    ///
    /// # Errors
    /// As for [`start`](Self::start); there is no device that fits the options, or it cannot
    /// register so much memory.
    pub fn start_with_verbs(
        name: &str,
        size_bytes: u64,
        node: impl Into<NodeOptions>,
        options: &VerbsOptions,
    ) -> Result<Self, NodeError> {
        Self::start_on(name, size_bytes, node.into(), (Some(options), None))
    }

    /// [`start`](Self::start) as the home of a pool that may have several nodes (U1). Its clients
    /// come over the network, all of them, by tcp or by verbs: [`listen`](Self::listen).
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_home(
        name: &str,
        size_bytes: u64,
        node: impl Into<NodeOptions>,
        home: HomeOptions,
    ) -> Result<Self, NodeError> {
        let verbs = home.verbs.clone();
        Self::start_on(name, size_bytes, node.into(), (verbs.as_ref(), Some(home)))
    }

    fn start_on(
        name: &str,
        size_bytes: u64,
        options: NodeOptions,
        (verbs, home): (Option<&VerbsOptions>, Option<HomeOptions>),
    ) -> Result<Self, NodeError> {
        let name = PoolName::new(name)?;
        farleaf_region::Superblock::new(size_bytes, 0)?;
        let memory_error = |source| NodeError::Memory { size_bytes, source };
        let created = MappedRegion::create_shared(name.as_str(), size_bytes);
        let (memory, size_bytes, pages) = created.map_err(memory_error)?;
        let region = MappedRegion::map_shared(&memory, size_bytes).map_err(memory_error)?;
        let mut listener = ShmListener::bind(&name, memory, size_bytes)?;
        let region = Arc::new(region);
        let verbs = verbs.map(|options| VerbsNode::start(&region, options));
        let verbs = verbs.transpose()?.map(Arc::new);
        if verbs.is_some() {
            listener.turn_away_all(NOT_BY_SHM);
        } else if home.is_some() {
            listener.turn_away_all(NOT_ALONE);
        }
        let core = NodeCore::start(&region, verbs.as_ref(), options, home)?;
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
            region,
            door: None,
            members: None,
            listener: Some(listener),
            core,
            verbs,
        })
    }

    /// Lets clients of other hosts in, too, by `tcp`; as long as the node serves.
    ///
    /// # Errors
    /// The address is taken, or is none of this host's, or can be reached from others and there is
    /// no secret.
    pub fn listen(&mut self, options: &TcpListenOptions) -> Result<SocketAddr, NodeError> {
        let sessions = SharedSessions(Arc::clone(&self.core.sessions));
        let role = match &self.core.home {
            None => Role::Alone(sessions),
            Some(home) => {
                let fencing = FencingThread::start(Arc::clone(home), sessions.clone());
                let fencing = fencing.map_err(NodeError::Thread)?;
                Role::Home {
                    sessions,
                    home: Arc::clone(home),
                    fencing,
                }
            }
        };
        let (layout, stop) = (*self.core.layout.home(), self.stop.clone());
        let verbs = self.verbs.clone();
        let ways = (verbs, Some(Arc::clone(&self.core.doors)));
        let door = NetworkDoor::open(&self.region, role, layout, options, ways, stop)?;
        if let Some(home) = &self.core.home {
            let threads = MemberThreads::start(home).map_err(NodeError::Thread)?;
            self.members = Some(threads);
        }
        Ok(self.door.insert(door).address)
    }

    /// Where it listens for other hosts, if it does.
    pub fn network_address(&self) -> Option<SocketAddr> {
        self.door.as_ref().map(|door| door.address)
    }

    /// What serves its memory, if that is an RDMA device: device, port, address, packet size.
    pub fn verbs(&self) -> Option<String> {
        self.verbs.as_ref().map(|verbs| verbs.describe())
    }

    /// Its name.
    pub fn name(&self) -> &PoolName {
        &self.name
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

    /// Waits until it has been stopped. Clients that have mapped the memory keep it as long as they
    /// live, but nobody can register, and the dead are not noticed any more.
    ///
    /// # Errors
    /// The system could not wait for clients any more.
    pub fn wait(mut self) -> Result<(), NodeError> {
        self.join()?;
        match &mut self.door {
            Some(door) => door.wait(),
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

/// The sessions, as several listeners share them.
#[derive(Clone, Debug)]
pub(crate) struct SharedSessions(Arc<Mutex<Sessions<NodeEndpoint>>>);

impl SharedSessions {
    fn with<R>(&self, work: impl FnOnce(&mut Sessions<NodeEndpoint>) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl SessionService for SharedSessions {
    fn register(&mut self, pid: u32) -> Result<OwnerWord, String> {
        self.with(|sessions| sessions.register(pid))
    }

    fn fence(&mut self, owner: OwnerWord) {
        self.with(|sessions| sessions.fence(owner));
    }

    fn process_of(&mut self, owner: OwnerWord) -> Option<u32> {
        self.with(|sessions| sessions.process_of(owner))
    }
}
