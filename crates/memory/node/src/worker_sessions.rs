//! Sessions of the node itself, beside its agent's: of threads that change leaves (Z1).

use std::sync::{Arc, Mutex, PoisonError};

use farleaf_fabric::mapped::MappedRegion;
use farleaf_fabric::network::{NodeDirectory, NodeWay};
use farleaf_fabric::tcp::TcpClient;
use farleaf_fabric::verbs::VerbsNode;
use farleaf_types::{NodeId, OwnerWord};

use crate::endpoint::NodeEndpoint;
use crate::members::PoolHome;
use crate::sessions::Sessions;
use crate::xstore::Employer;

/// What is needed to open one.
#[derive(Clone, Debug)]
pub(crate) struct NodeEmployer {
    pub(crate) region: Arc<MappedRegion>,
    pub(crate) device: Option<Arc<VerbsNode>>,
    pub(crate) home: Option<Arc<PoolHome>>,
    pub(crate) sessions: Arc<Mutex<Sessions<NodeEndpoint>>>,
}

impl NodeEmployer {
    fn close(&self, owner: OwnerWord) {
        let sessions = self.sessions.lock();
        let mut sessions = sessions.unwrap_or_else(PoisonError::into_inner);
        sessions.close(owner);
    }
}

/// How a session of the home reaches guests.
#[derive(Debug)]
struct WorkerNodes {
    home: Arc<PoolHome>,
    owner: OwnerWord,
    /// As long as these are kept, the guests keep what the session has opened by them.
    clients: Mutex<Vec<Arc<TcpClient>>>,
}

impl NodeDirectory for WorkerNodes {
    fn find(&self, node: NodeId) -> NodeWay {
        let way = self.home.way_for(self.owner, node);
        if let NodeWay::At(client) = &way {
            let clients = self.clients.lock();
            let mut clients = clients.unwrap_or_else(PoisonError::into_inner);
            clients.push(Arc::clone(client));
        }
        way
    }

    fn is_lost(&self, node: NodeId) -> bool {
        self.home.is_lost(node)
    }

    fn is_lost_now(&self, node: NodeId) -> bool {
        self.home.has_lost(node)
    }
}

impl Employer for NodeEmployer {
    type Endpoint = NodeEndpoint;

    fn hire(&self) -> Result<(NodeEndpoint, OwnerWord), String> {
        let owner = {
            let sessions = self.sessions.lock();
            let mut sessions = sessions.unwrap_or_else(PoisonError::into_inner);
            sessions.open(std::process::id())?
        };
        let device = self.device.as_deref();
        let endpoint = match &self.home {
            None => NodeEndpoint::new(&self.region, device),
            Some(home) => {
                let nodes: Arc<dyn NodeDirectory> = Arc::new(WorkerNodes {
                    home: Arc::clone(home),
                    owner,
                    clients: Mutex::default(),
                });
                NodeEndpoint::in_pool(&self.region, device, owner, nodes)
            }
        };
        endpoint.map(|endpoint| (endpoint, owner)).map_err(|error| {
            self.close(owner);
            format!("the memory node cannot reach its own memory: {error}")
        })
    }

    /// V3: on all nodes of the pool.
    fn dismiss(&self, owner: OwnerWord) {
        match &self.home {
            Some(home) => home.fence_everywhere(owner, || self.close(owner)),
            None => self.close(owner),
        }
    }
}
