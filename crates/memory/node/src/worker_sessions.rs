//! Sessions of the node's threads that change leaves; the agent has its own session.

use std::sync::{Arc, Mutex, PoisonError};

use farleaf_base::{NodeId, OwnerWord};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::network::{NodeAccess, NodeDirectory};
use farleaf_fabric::tcp::TcpClient;
use farleaf_fabric::verbs::VerbsNode;

use crate::endpoint::NodeEndpoint;
use crate::members::PoolHome;
use crate::sessions::Sessions;
use crate::xstore::SessionFactory;

/// Factory for the sessions of worker threads.
#[derive(Clone, Debug)]
pub(crate) struct NodeSessionFactory {
    pub(crate) memory: Arc<MappedMemory>,
    pub(crate) device: Option<Arc<VerbsNode>>,
    pub(crate) home: Option<Arc<PoolHome>>,
    pub(crate) sessions: Arc<Mutex<Sessions<NodeEndpoint>>>,
}

impl NodeSessionFactory {
    fn close(&self, owner: OwnerWord) {
        let sessions = self.sessions.lock();
        let mut sessions = sessions.unwrap_or_else(PoisonError::into_inner);
        sessions.close(owner);
    }
}

/// Connections of the home's worker sessions to the guests.
#[derive(Debug)]
struct GuestConnections {
    home: Arc<PoolHome>,
    owner: OwnerWord,
    /// Clients of the guests. The guests keep what the sessions have opened through them as long as
    /// these exist.
    clients: Mutex<Vec<Arc<TcpClient>>>,
}

impl NodeDirectory for GuestConnections {
    fn find(&self, node: NodeId) -> NodeAccess {
        let way = self.home.connection_for(self.owner, node);
        if let NodeAccess::At(client) = &way {
            let clients = self.clients.lock();
            let mut clients = clients.unwrap_or_else(PoisonError::into_inner);
            clients.push(Arc::clone(client));
        }
        way
    }

    fn is_lost(&self, node: NodeId) -> bool {
        self.home.is_lost(node)
    }

    fn query_lost(&self, node: NodeId) -> bool {
        self.home.has_lost(node)
    }
}

impl SessionFactory for NodeSessionFactory {
    type Endpoint = NodeEndpoint;

    fn open_worker_session(&self) -> Result<(NodeEndpoint, OwnerWord), String> {
        let owner = {
            let sessions = self.sessions.lock();
            let mut sessions = sessions.unwrap_or_else(PoisonError::into_inner);
            sessions.open(std::process::id())?
        };
        let device = self.device.as_deref();
        let endpoint = match &self.home {
            None => NodeEndpoint::new(&self.memory, device),
            Some(home) => {
                let nodes: Arc<dyn NodeDirectory> = Arc::new(GuestConnections {
                    home: Arc::clone(home),
                    owner,
                    clients: Mutex::default(),
                });
                NodeEndpoint::in_pool(&self.memory, device, owner, nodes)
            }
        };
        endpoint.map(|endpoint| (endpoint, owner)).map_err(|error| {
            self.close(owner);
            format!("the memory node cannot reach its own memory: {error}")
        })
    }

    /// Fences a worker's session on all nodes of the pool.
    fn end_worker_session(&self, owner: OwnerWord) {
        match &self.home {
            Some(home) => home.fence_everywhere(owner, || self.close(owner)),
            None => self.close(owner),
        }
    }
}
