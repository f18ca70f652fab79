//! Nodes of a pool on the network: how a process connects to them, and their states as an operator
//! sees them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_base::NodeId;
use farleaf_executor::block_on;
use farleaf_fabric::network::{NodeAccess, NodeDirectory};
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions};
use farleaf_fabric::{ControlError, Endpoint};
use farleaf_node::check_memory;
use farleaf_pool::PoolLayout;
use farleaf_pool::members::{Member, MemberState};

/// Time between two queries of a node's state.
const QUERY_PERIOD: Duration = Duration::from_millis(20);
/// Number of replies to the main node, after a connection to a node broke, that prove that the node
/// is alive.
const ANSWERED_COUNT_ALIVE: u64 = 2;
/// Longest wait for the nodes' replies to the main node when nodes are listed. The main node probes
/// each node ten times a second, so a live one replies in time even on a busy host.
const LISTING_TIME_MAX: Duration = Duration::from_secs(2);

/// Clients that are logged in, by node.
type Clients = BTreeMap<NodeId, Arc<TcpClient>>;

/// Connections of a process to the nodes of its pool.
#[derive(Debug)]
pub(crate) struct PoolNodes {
    main_node: Arc<TcpClient>,
    layout: PoolLayout,
    options: TcpConnectOptions,
    clients: Mutex<Clients>,
    /// Set when this process has lost the pool's main node.
    is_given_up: AtomicBool,
}

impl PoolNodes {
    pub(crate) fn new(
        main_node: Arc<TcpClient>,
        layout: PoolLayout,
        options: TcpConnectOptions,
    ) -> Self {
        Self {
            main_node,
            layout,
            options,
            clients: Mutex::default(),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// Reads the member table over a separate connection, because endpoints call this in the middle
    /// of a batch.
    fn refresh(&self) -> Result<(), String> {
        let endpoint = self
            .main_node
            .endpoint(None)
            .map_err(|error| error.to_string())?;
        let refreshed = self.layout.members().refresh(&endpoint, &self.layout);
        let refreshed = block_on(refreshed, endpoint.completions());
        refreshed.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Makes all further requests fail at once. Without the main node nothing tracks the pool's
    /// membership, so clients of the other nodes get an error.
    pub(crate) fn give_up(&self) {
        let known = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_given_up.store(true, Ordering::Release);
        known.values().for_each(|client| client.hang_up());
    }

    fn connect(&self, member: &Member) -> Result<Arc<TcpClient>, ControlError> {
        let node = member.layout.node;
        if let Some(client) = self.known(member)?.get(&node) {
            return Ok(Arc::clone(client));
        }
        // Connects without the lock, so that a node that does not reply does not block connections
        // to others. If two threads connect, the second one uses the first one's client.
        let client = TcpClient::connect(&member.address, &self.options)?;
        check_memory(&client, member)?;
        let client = Arc::new(client.with_sessions_of(&self.main_node));
        Ok(Arc::clone(
            self.known(member)?.entry(node).or_insert(client),
        ))
    }

    /// Locks the clients that are logged in, unless this process has given up meanwhile.
    fn known(&self, wanted: &Member) -> Result<MutexGuard<'_, Clients>, ControlError> {
        let known = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_given_up.load(Ordering::Acquire) {
            return Err(self.lost_main_node(wanted));
        }
        Ok(known)
    }

    fn lost_main_node(&self, member: &Member) -> ControlError {
        let main_node = self.layout.members().main_node_address();
        ControlError::Refused {
            pool: format!("tcp:{}", member.address),
            reason: format!(
                "this process has lost its connection to the pool's main node, {main_node}; open \
                 the pool again"
            ),
        }
    }

    /// Removes a failed client, so that the next use logs in again, unless another thread has done
    /// so already.
    fn forget(&self, node: NodeId, failed: &Arc<TcpClient>) {
        let mut known = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if known.get(&node).is_some_and(|it| Arc::ptr_eq(it, failed)) {
            known.remove(&node);
        }
    }
}

impl NodeDirectory for PoolNodes {
    fn find(&self, node: NodeId) -> NodeAccess {
        let members = self.layout.members();
        if members.get(node).is_none()
            && let Err(reason) = self.refresh()
        {
            return NodeAccess::Unreachable(reason);
        }
        let Some(member) = members.get(node) else {
            return NodeAccess::None;
        };
        if self.is_lost(node) {
            return NodeAccess::Lost;
        }
        match self.connect(member) {
            Ok(client) => NodeAccess::At(client),
            Err(_) if self.query_lost(node) => NodeAccess::Lost,
            Err(error) => NodeAccess::Unreachable(error.to_string()),
        }
    }

    fn renew(&self, node: NodeId, failed: &Arc<TcpClient>) -> Option<NodeAccess> {
        // All sessions' connections to the node end with the control connection. It is therefore
        // closed only if it is useless: a live node answers this query at once.
        let requested = failed.main_node_address();
        let is_over = matches!(
            requested,
            Err(ControlError::Unreachable { .. } | ControlError::Silent { .. })
        );
        is_over.then(|| {
            self.forget(node, failed);
            self.find(node)
        })
    }

    fn is_lost(&self, node: NodeId) -> bool {
        self.layout.members().state(node) == Some(MemberState::Lost)
    }

    fn query_lost(&self, node: NodeId) -> bool {
        let lost = MemberState::Lost as u64;
        let mut answered_count = None;
        // The loop ends: the main node declares a node lost if it does not reply, however long that
        // takes, and the main node replies to this process at once.
        while !self.is_lost(node) {
            match self.main_node.member(node) {
                Ok(member) if member.state == lost => {
                    if let Some(member) = self.layout.members().get(node) {
                        let members = self.layout.members();
                        members.learn(member.clone(), MemberState::Lost);
                    }
                    return true;
                }
                Ok(member) => {
                    let state = MemberState::from_word(member.state);
                    if !state.is_some_and(MemberState::is_reachable) {
                        // The node was stopped after it had drained.
                        return false;
                    }
                    // One reply may predate the break of the connection. A node that replies again
                    // is alive, and only the connection to it is broken.
                    let before = *answered_count.get_or_insert(member.answered_count);
                    if member.answered_count >= before + ANSWERED_COUNT_ALIVE {
                        return false;
                    }
                    std::thread::sleep(QUERY_PERIOD);
                }
                // Without a reply from the main node the node's state is unknown.
                Err(_) => return false,
            }
        }
        true
    }
}

/// Returns those of these nodes that reply to the main node during this call.
pub(crate) fn answering(
    main_node: &TcpClient,
    nodes: &[NodeId],
) -> Result<Vec<NodeId>, ControlError> {
    let until = Instant::now() + LISTING_TIME_MAX;
    let counts = |node: &NodeId| main_node.member(*node).map(|member| member.answered_count);
    let before: Vec<u64> = nodes.iter().map(counts).collect::<Result<_, _>>()?;
    loop {
        let mut answering = Vec::new();
        for (node, before) in nodes.iter().zip(&before) {
            // The main node counts as alive: it has just replied to this process.
            if *node == NodeId(0) || counts(node)? >= before + ANSWERED_COUNT_ALIVE {
                answering.push(*node);
            }
        }
        if answering.len() == nodes.len() || Instant::now() > until {
            return Ok(answering);
        }
        std::thread::sleep(QUERY_PERIOD);
    }
}

/// State of one node of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Number of the node, never reused in the pool.
    pub number: u8,
    /// Address of the node; empty in a pool of one node.
    pub address: String,
    /// Membership state of the node.
    pub state: MemberState,
    /// Bytes that tables can use on the node.
    pub size_bytes: u64,
    /// Bytes that tables use on the node; `None` if the node is lost, has left, or cannot be
    /// reached now.
    pub used_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use farleaf_node::{DataNode, DataNodeOptions, MainNodeOptions, ShmNode, TcpListenOptions};
    use farleaf_pool::{NodeLayout, Superblock};

    use super::*;

    const SIZE_BYTES: u64 = 8 << 20;

    fn listen() -> TcpListenOptions {
        TcpListenOptions::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// Promise: if a node is lost and another pool's node is served at its address, a process that
    /// does not know of the loss yet does not use that node.
    #[test]
    fn another_pool_at_a_node_s_address_is_not_that_node() {
        let options = TcpConnectOptions::default();
        let main_node = MainNodeOptions {
            address: "127.0.0.1:0".to_owned(),
            connect: options.clone(),
            lost_after: Duration::from_secs(10),
            verbs: None,
        };
        let name = format!("nodes-{}", std::process::id());
        let mut main_node =
            ShmNode::start_main_node(&name, SIZE_BYTES, None, main_node).expect("a main node");
        let main_node_address = main_node.listen(&listen()).expect("a port").to_string();
        let data_node = DataNode::start(&DataNodeOptions {
            name: "nodes-data-node".to_owned(),
            size_bytes: SIZE_BYTES,
            listen: listen(),
            address: "127.0.0.1:0".to_owned(),
            wanted: NodeId(0),
            main_node_address: main_node_address.clone(),
            connect: options.clone(),
            verbs: None,
        });
        let data_node = data_node.expect("a data node");
        let number = data_node.wait_until_joined().expect("joined");
        let client =
            Arc::new(TcpClient::connect(&main_node_address, &options).expect("the main node"));
        let endpoint = client.endpoint(None).expect("an endpoint");
        let read = Superblock::read(&endpoint, client.memory_size_bytes());
        let superblock = block_on(read, endpoint.completions()).expect("a READ");
        let superblock = superblock.expect("a superblock");
        let of_main_node = NodeLayout {
            node: NodeId(0),
            superblock,
        };
        let nodes = || {
            let layout = PoolLayout::from(of_main_node);
            PoolNodes::new(Arc::clone(&client), layout, options.clone())
        };
        let known = nodes();
        assert!(matches!(known.find(number), NodeAccess::At(_)));
        let mut gone = known.layout.members().get(number).expect("known").clone();
        gone.layout.superblock.memory_id ^= 1;
        let late = nodes();
        late.layout.members().learn(gone, MemberState::Active);
        match late.find(number) {
            NodeAccess::Unreachable(why) => assert!(why.contains("another node"), "{why}"),
            endpoint => panic!("{endpoint:?}"),
        }
    }
}
