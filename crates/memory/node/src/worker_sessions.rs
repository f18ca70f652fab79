//! Sessions of the node's threads that change leaves; the agent has its own session.

use std::sync::{Arc, Mutex};

use farleaf_base::locks::lock;
use farleaf_base::{NodeId, OwnerWord};
use farleaf_fabric::mapped::MappedMemory;
use farleaf_fabric::network::{NodeAccess, NodeDirectory};
use farleaf_fabric::tcp::TcpClient;
use farleaf_fabric::verbs::VerbsNode;

use crate::endpoint::NodeEndpoint;
use crate::members::PoolMainNode;
use crate::sessions::Sessions;
use crate::xstore::SessionFactory;

/// Factory for the sessions of worker threads.
#[derive(Clone, Debug)]
pub(crate) struct NodeSessionFactory {
    pub(crate) memory: Arc<MappedMemory>,
    pub(crate) device: Option<Arc<VerbsNode>>,
    pub(crate) main_node: Option<Arc<PoolMainNode>>,
    pub(crate) sessions: Arc<Mutex<Sessions<NodeEndpoint>>>,
}

impl NodeSessionFactory {
    fn close(&self, owner: OwnerWord) {
        let mut sessions = lock(&self.sessions);
        sessions.close(owner);
    }
}

/// Connections of the main node's worker sessions to the data nodes.
#[derive(Debug)]
struct DataNodeConnections {
    main_node: Arc<PoolMainNode>,
    owner: OwnerWord,
    /// Clients of the data nodes. The data nodes keep what the sessions have opened through them as
    /// long as these exist.
    clients: Mutex<Vec<Arc<TcpClient>>>,
}

impl NodeDirectory for DataNodeConnections {
    fn find(&self, node: NodeId) -> NodeAccess {
        let access = self.main_node.connection_for(self.owner, node);
        if let NodeAccess::At(client) = &access {
            let mut clients = lock(&self.clients);
            clients.push(Arc::clone(client));
        }
        access
    }

    fn is_lost(&self, node: NodeId) -> bool {
        self.main_node.is_lost(node)
    }

    fn query_lost(&self, node: NodeId) -> bool {
        self.main_node.has_lost(node)
    }
}

impl SessionFactory for NodeSessionFactory {
    type Endpoint = NodeEndpoint;

    fn open_worker_session(&self) -> Result<(NodeEndpoint, OwnerWord), String> {
        let owner = {
            let mut sessions = lock(&self.sessions);
            sessions.open(std::process::id())?
        };
        let device = self.device.as_deref();
        let endpoint = match &self.main_node {
            None => NodeEndpoint::new(&self.memory, device),
            Some(main_node) => {
                let nodes: Arc<dyn NodeDirectory> = Arc::new(DataNodeConnections {
                    main_node: Arc::clone(main_node),
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
        match &self.main_node {
            Some(main_node) => main_node.fence_everywhere(owner, || self.close(owner)),
            None => self.close(owner),
        }
    }
}
