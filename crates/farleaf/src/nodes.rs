//! The nodes of a pool on the network: how a process finds them, and what an operator sees.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farleaf_executor::block_on;
use farleaf_fabric::network::{NodeDirectory, NodeWay};
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions};
use farleaf_fabric::{ControlError, Endpoint};
use farleaf_node::check_region;
use farleaf_region::PoolLayout;
use farleaf_region::members::{Member, MemberState};
use farleaf_types::NodeId;

/// Time between two questions how a node stands.
const ASK_TICK: Duration = Duration::from_millis(20);
/// Answers that the home gets after a way broke, by which it is known that the node goes on.
const ANSWERED_COUNT_ALIVE: u64 = 2;
/// A node that answers the home, which asks ten times a second, does so in less, on a busy host,
/// too.
const LISTING_TIME_MAX: Duration = Duration::from_secs(2);

/// Logged in to, by node.
type Clients = BTreeMap<NodeId, Arc<TcpClient>>;

/// The ways of a process to the nodes of its pool.
#[derive(Debug)]
pub(crate) struct PoolNodes {
    home: Arc<TcpClient>,
    layout: PoolLayout,
    options: TcpConnectOptions,
    clients: Mutex<Clients>,
    /// This process has lost the pool's home.
    is_given_up: AtomicBool,
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
            is_given_up: AtomicBool::new(false),
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

    /// Without the home nobody follows the pool: whoever works on the other nodes is told so, at
    /// once.
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
        // Without the lock: one that does not answer must not keep others from their nodes. Who
        // comes second takes what is there.
        let client = TcpClient::connect(&member.address, &self.options)?;
        check_region(&client, member)?;
        let client = Arc::new(client.with_sessions_of(&self.home));
        Ok(Arc::clone(
            self.known(member)?.entry(node).or_insert(client),
        ))
    }

    /// What is logged in to, unless this process has given up meanwhile.
    fn known(&self, wanted: &Member) -> Result<MutexGuard<'_, Clients>, ControlError> {
        let known = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_given_up.load(Ordering::Acquire) {
            return Err(self.lost_home(wanted));
        }
        Ok(known)
    }

    fn lost_home(&self, member: &Member) -> ControlError {
        let home = self.layout.members().home_address();
        ControlError::Refused {
            pool: format!("tcp:{}", member.address),
            reason: format!("this process has lost the pool's home, {home}; open the pool again"),
        }
    }

    /// From now on a node is logged in to anew, unless another thread has done so.
    fn forget(&self, node: NodeId, failed: &Arc<TcpClient>) {
        let mut known = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if known.get(&node).is_some_and(|it| Arc::ptr_eq(it, failed)) {
            known.remove(&node);
        }
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
        match self.connect(member) {
            Ok(client) => NodeWay::At(client),
            Err(_) if self.is_lost_now(node) => NodeWay::Lost,
            Err(error) => NodeWay::Unreachable(error.to_string()),
        }
    }

    fn renew(&self, node: NodeId, failed: &Arc<TcpClient>) -> Option<NodeWay> {
        // All sessions' connections to the node end with the control connection, so that is given
        // up only when it is of no use: a node that is there answers this question at once.
        let asked = failed.home_address();
        let is_over = matches!(
            asked,
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

    fn is_lost_now(&self, node: NodeId) -> bool {
        let lost = MemberState::Lost as u64;
        let mut answered_count = None;
        // Ends: the home loses a node that does not answer it, however long it waits for that; and
        // it answers this side at once.
        while !self.is_lost(node) {
            match self.home.member(node) {
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
                        // It was stopped when nothing was on it any more.
                        return false;
                    }
                    // One question may have been answered before the way there broke. Who answers
                    // another is alive, and only the way to it is not.
                    let before = *answered_count.get_or_insert(member.answered_count);
                    if member.answered_count >= before + ANSWERED_COUNT_ALIVE {
                        return false;
                    }
                    std::thread::sleep(ASK_TICK);
                }
                // Who cannot ask does not know.
                Err(_) => return false,
            }
        }
        true
    }
}

/// The nodes among these that answer the home while this goes on.
pub(crate) fn answering(home: &TcpClient, nodes: &[NodeId]) -> Result<Vec<NodeId>, ControlError> {
    let until = Instant::now() + LISTING_TIME_MAX;
    let counts = |node: &NodeId| home.member(*node).map(|member| member.answered_count);
    let before: Vec<u64> = nodes.iter().map(counts).collect::<Result<_, _>>()?;
    loop {
        let mut answering = Vec::new();
        for (node, before) in nodes.iter().zip(&before) {
            // This process has just heard from the home itself.
            if *node == NodeId(0) || counts(node)? >= before + ANSWERED_COUNT_ALIVE {
                answering.push(*node);
            }
        }
        if answering.len() == nodes.len() || Instant::now() > until {
            return Ok(answering);
        }
        std::thread::sleep(ASK_TICK);
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
    /// Bytes that they have; `None` where nobody can look: the node is lost, or has left, or
    /// cannot be reached just now.
    pub used_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use farleaf_node::{GuestNode, GuestOptions, HomeOptions, ShmNode, TcpListenOptions};
    use farleaf_region::{RegionLayout, Superblock};

    use super::*;

    const SIZE_BYTES: u64 = 8 << 20;

    fn listen() -> TcpListenOptions {
        TcpListenOptions::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// Promise (U2): a process that has not heard yet that a node was lost, and that another one is
    /// served at its address, does not work on that one.
    #[test]
    fn another_region_at_a_node_s_address_is_not_that_node() {
        let options = TcpConnectOptions::default();
        let home = HomeOptions {
            address: "127.0.0.1:0".to_owned(),
            connect: options.clone(),
            lost_after: Duration::from_secs(10),
            verbs: None,
        };
        let name = format!("nodes-{}", std::process::id());
        let mut home = ShmNode::start_home(&name, SIZE_BYTES, None, home).expect("a home");
        let home_address = home.listen(&listen()).expect("a port").to_string();
        let guest = GuestNode::start(&GuestOptions {
            name: "nodes-guest".to_owned(),
            size_bytes: SIZE_BYTES,
            listen: listen(),
            address: "127.0.0.1:0".to_owned(),
            wanted: NodeId(0),
            home_address: home_address.clone(),
            connect: options.clone(),
            verbs: None,
        });
        let guest = guest.expect("a guest");
        let number = guest.wait_until_joined().expect("joined");
        let client = Arc::new(TcpClient::connect(&home_address, &options).expect("the home"));
        let endpoint = client.endpoint(None).expect("an endpoint");
        let read = Superblock::read(&endpoint, client.region_size_bytes());
        let superblock = block_on(read, endpoint.completions()).expect("a READ");
        let superblock = superblock.expect("a superblock");
        let of_home = RegionLayout {
            node: NodeId(0),
            superblock,
        };
        let nodes = || {
            let layout = PoolLayout::from(of_home);
            PoolNodes::new(Arc::clone(&client), layout, options.clone())
        };
        let known = nodes();
        assert!(matches!(known.find(number), NodeWay::At(_)));
        let mut gone = known.layout.members().get(number).expect("known").clone();
        gone.layout.superblock.region_id ^= 1;
        let late = nodes();
        late.layout.members().learn(gone, MemberState::Active);
        match late.find(number) {
            NodeWay::Unreachable(why) => assert!(why.contains("another region"), "{why}"),
            way => panic!("{way:?}"),
        }
    }
}
