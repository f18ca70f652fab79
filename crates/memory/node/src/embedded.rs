//! A node inside the process that uses it, on memory of that process alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use farleaf_fabric::mapped::MappedRegion;
use farleaf_fabric::network::NodeDirectory;
use farleaf_fabric::verbs::VerbsNode;
use farleaf_fabric::{Control, ControlError, SessionLife};
use farleaf_fabric::{Doors, Endpoint, SessionService};
use farleaf_region::PoolLayout;
use farleaf_types::OwnerWord;

use crate::calls::{CallOptions, CallThreads, Desk, Receptionist, TableServer};
use crate::endpoint::NodeEndpoint;
use crate::hiring::NodeEmployer;
use crate::members::{HomeOptions, PoolHome};
use crate::retrain::RetrainPolicy;
use crate::sessions::{AgentEvent, Sessions, format_region};
use crate::sweep::Keeper;
use crate::{NodeError, agent};

/// What a node does beside serving its memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeOptions {
    /// Which tables it retrains, and when; `None`: it retrains none.
    pub retraining: Option<RetrainPolicy>,
    /// How it answers calls.
    pub calls: CallOptions,
}

impl From<Option<RetrainPolicy>> for NodeOptions {
    /// Calls are answered as if nothing was said of them.
    fn from(retraining: Option<RetrainPolicy>) -> Self {
        Self {
            retraining,
            ..Self::default()
        }
    }
}

/// The core of every node: sessions and agent over one region.
#[derive(Debug)]
pub(crate) struct NodeCore {
    pub(crate) sessions: Arc<Mutex<Sessions<NodeEndpoint>>>,
    pub(crate) layout: PoolLayout,
    events: Sender<AgentEvent>,
    /// Tells the agent in the middle of a sweep, where it hears no events.
    stop: Arc<AtomicBool>,
    agent: Option<JoinHandle<()>>,
    /// Ends after the agent.
    _calls: CallThreads,
    /// Into the windows of sessions that come over a network (F10).
    pub(crate) doors: Arc<Doors>,
    /// The other nodes, where this one is the home of a pool that may have several.
    pub(crate) home: Option<Arc<PoolHome>>,
}

impl NodeCore {
    /// Makes a region of fresh memory and starts its agent. With a device, words are changed by it
    /// alone (F4).
    pub(crate) fn start(
        region: &Arc<MappedRegion>,
        device: Option<&Arc<VerbsNode>>,
        options: NodeOptions,
        home: Option<HomeOptions>,
    ) -> Result<Self, NodeError> {
        let retraining = options.retraining;
        let region_layout = format_region(region)?;
        let layout = PoolLayout::from(region_layout);
        let (events, heard) = channel();
        let own_device = device.map(Arc::as_ref);
        let own = NodeEndpoint::new(region, own_device)?;
        let mut sessions = Sessions::new(own, region_layout, events.clone());
        let refused = |reason: String| NodeError::Thread(std::io::Error::other(reason));
        let owner = sessions.open(std::process::id()).map_err(refused)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (own, told) = (NodeEndpoint::new(region, own_device)?, Arc::clone(&stop));
        let (home, endpoint) = match home {
            None => (None, own),
            Some(options) => {
                let home =
                    PoolHome::new(layout.clone(), own, (options, retraining.is_some()), owner)?;
                let nodes: Arc<dyn NodeDirectory> = Arc::clone(&home) as _;
                let endpoint = NodeEndpoint::in_pool(region, own_device, owner, nodes)?;
                (Some(home), endpoint)
            }
        };
        let renewing = home.clone().map(|home| Renewing {
            region: Arc::clone(region),
            device: device.map(Arc::clone),
            owner,
            home,
        });
        let renew = move |broken: &NodeEndpoint| renewing.as_ref()?.renew(broken);
        let keeper = Keeper {
            blocks: crate::sweep::BlockSweepers::default(),
            endpoint,
            layout: layout.clone(),
            owner,
        };
        let (desk, server) = (
            Arc::<Desk>::default(),
            Arc::new(TableServer::new(region.word_count() * 8)),
        );
        let receptionist = Receptionist::new(Arc::clone(&desk), Arc::clone(&server));
        let sessions = Arc::new(Mutex::new(sessions));
        let employer = NodeEmployer {
            region: Arc::clone(region),
            device: device.map(Arc::clone),
            home: home.clone(),
            sessions: Arc::clone(&sessions),
        };
        let doors = Arc::<Doors>::default();
        let served = (desk, server, Arc::clone(&doors));
        let calls = CallThreads::start(region, &layout, served, &employer, options.calls);
        let calls = calls.map_err(NodeError::Thread)?;
        let tasks = (retraining, Some(receptionist));
        let agent = agent::start(keeper, renew, heard, told, tasks);
        let agent = agent.map_err(NodeError::Thread)?;
        Ok(Self {
            sessions,
            layout,
            events,
            stop,
            agent: Some(agent),
            _calls: calls,
            doors,
            home,
        })
    }
}

/// V6: what is needed to open an endpoint anew whose way to a guest is broken.
struct Renewing {
    region: Arc<MappedRegion>,
    device: Option<Arc<VerbsNode>>,
    owner: OwnerWord,
    home: Arc<PoolHome>,
}

impl Renewing {
    fn renew(&self, endpoint: &NodeEndpoint) -> Option<NodeEndpoint> {
        let is_open = |node| endpoint.region_word_count(node).is_some();
        if !self.home.is_way_broken(is_open) {
            return None;
        }
        let nodes: Arc<dyn NodeDirectory> = Arc::clone(&self.home) as _;
        let device = self.device.as_deref();
        match NodeEndpoint::in_pool(&self.region, device, self.owner, nodes) {
            Ok(endpoint) => Some(endpoint),
            Err(error) => {
                tracing::error!(%error, "the node's agent cannot reach a node of its pool anew");
                None
            }
        }
    }
}

impl Drop for NodeCore {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // An agent that has ended already does not hear it.
        let _ = self.events.send(AgentEvent::Stop);
        if let Some(agent) = self.agent.take()
            && agent.join().is_err()
        {
            tracing::error!("the memory node's agent panicked");
        }
    }
}

/// A memory node on memory of this process: the `mem` backend's.
#[derive(Debug)]
pub struct MemNode {
    region: Arc<MappedRegion>,
    core: NodeCore,
}

impl MemNode {
    /// Maps `size_bytes` and starts; tables are retrained if there is a policy for it.
    ///
    /// # Errors
    /// The size is too small, or the system has not so much.
    pub fn start(size_bytes: u64, options: impl Into<NodeOptions>) -> Result<Self, NodeError> {
        let region = MappedRegion::anonymous(size_bytes)
            .map_err(|source| NodeError::Memory { size_bytes, source })?;
        let region = Arc::new(region);
        Ok(Self {
            core: NodeCore::start(&region, None, options.into(), None)?,
            region,
        })
    }

    /// The memory.
    pub fn region(&self) -> &Arc<MappedRegion> {
        &self.region
    }

    /// Where things are in it.
    pub fn layout(&self) -> PoolLayout {
        self.core.layout.clone()
    }
}

impl Control for MemNode {
    fn register_session(&self) -> Result<OwnerWord, ControlError> {
        let mut sessions = self
            .core
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let registered = sessions.register(std::process::id());
        registered.map_err(|reason| ControlError::Refused {
            pool: "mem:".to_owned(),
            reason,
        })
    }

    fn close_session(&self, owner: OwnerWord) -> Result<(), ControlError> {
        let mut sessions = self
            .core
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        sessions.close(owner);
        Ok(())
    }

    fn session_life(&self, owner: OwnerWord) -> Result<SessionLife, ControlError> {
        let sessions = self
            .core
            .sessions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        sessions.life(owner).map_err(|error| ControlError::Refused {
            pool: "mem:".to_owned(),
            reason: error.to_string(),
        })
    }
}
