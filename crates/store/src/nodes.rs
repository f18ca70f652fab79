//! The nodes of a pool on the network: how a process finds them, and what an operator sees.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farleaf_executor::block_on;
use farleaf_fabric::tcp::{NodeDirectory, NodeWay, TcpClient, TcpConnectOptions};
use farleaf_fabric::{ControlError, Endpoint};
use farleaf_region::PoolLayout;
use farleaf_region::members::MemberState;
use farleaf_types::NodeId;

/// Time between two questions how a node stands.
const ASK_TICK: Duration = Duration::from_millis(20);

/// The ways of a process to the nodes of its pool.
#[derive(Debug)]
pub(crate) struct PoolNodes {
    home: Arc<TcpClient>,
    layout: PoolLayout,
    options: TcpConnectOptions,
    clients: Mutex<BTreeMap<NodeId, Arc<TcpClient>>>,
}

impl PoolNodes {
    pub(crate) fn new(
        home: Arc<TcpClient>,
        layout: PoolLayout,
        options: TcpConnectOptions,
    ) -> Self {
        Self {
            home,
            layout,
            options,
            clients: Mutex::default(),
        }
    }

    /// Reads the member table, over a connection of its own: an endpoint asks, in the middle of a
    /// batch.
    fn refresh(&self) -> Result<(), String> {
        let endpoint = self
            .home
            .endpoint(None)
            .map_err(|error| error.to_string())?;
        let refreshed = self.layout.members().refresh(&endpoint, &self.layout);
        let refreshed = block_on(refreshed, endpoint.completions());
        refreshed.map(|_| ()).map_err(|error| error.to_string())
    }

    fn connect(&self, node: NodeId, address: &str) -> Result<Arc<TcpClient>, ControlError> {
        let known = || self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = known().get(&node) {
            return Ok(Arc::clone(client));
        }
        // Without the lock: one that does not answer must not keep others from their nodes. Who
        // comes second takes what is there.
        let client = Arc::new(TcpClient::connect(address, &self.options)?);
        Ok(Arc::clone(known().entry(node).or_insert(client)))
    }
}

impl NodeDirectory for PoolNodes {
    fn find(&self, node: NodeId) -> NodeWay {
        let members = self.layout.members();
        if members.get(node).is_none()
            && let Err(reason) = self.refresh()
        {
            return NodeWay::Unreachable(reason);
        }
        let Some(member) = members.get(node) else {
            return NodeWay::None;
        };
        if self.is_lost(node) {
            return NodeWay::Lost;
        }
        match self.connect(node, &member.address) {
            Ok(client) => NodeWay::At(client),
            Err(_) if self.is_lost_now(node) => NodeWay::Lost,
            Err(error) => NodeWay::Unreachable(error.to_string()),
        }
    }

    fn is_lost(&self, node: NodeId) -> bool {
        self.layout.members().state(node) == Some(MemberState::Lost)
    }

    fn is_lost_now(&self, node: NodeId) -> bool {
        // The home asks its nodes more often than this side gives up.
        let until = Instant::now() + self.home.answer_time_max();
        let lost = MemberState::Lost as u64;
        while !self.is_lost(node) && Instant::now() < until {
            match self.home.member(node) {
                Ok(member) if member.state == lost => {
                    if let Some(member) = self.layout.members().get(node) {
                        let members = self.layout.members();
                        members.learn(member.clone(), MemberState::Lost);
                    }
                    return true;
                }
                // It was stopped when nothing was on it any more.
                Ok(member) if member.state == MemberState::Left as u64 => return false,
                Ok(_) => std::thread::sleep(ASK_TICK),
                // Who cannot ask does not know.
                Err(_) => return false,
            }
        }
        self.is_lost(node)
    }
}

/// A node of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its number, which no other node of the pool ever has.
    pub number: u8,
    /// Where it is reached; empty in a pool of one node.
    pub address: String,
    /// What is to become of it.
    pub state: MemberState,
    /// Bytes that tables can have there.
    pub size_bytes: u64,
    /// Bytes that they have; 0 on a node that cannot be reached.
    pub used_bytes: u64,
}
