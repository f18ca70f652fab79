//! The main node's side of membership; `joining` admits data nodes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use farleaf_base::locks::lock;
use farleaf_base::{NodeId, OwnerWord};
use farleaf_executor::block_on;
use farleaf_fabric::network::{NodeAccess, NodeDirectory};
use farleaf_fabric::tcp::{MemberReply, TcpClient, TcpConnectOptions};
use farleaf_fabric::{Batch, BatchError, Control, ControlError, Endpoint};
use farleaf_net::secret::PassKey;
use farleaf_pool::PoolLayout;
use farleaf_pool::members::{Member, MemberState, write_member};

use super::MainNodeOptions;
use super::joining::{JoinState, check_memory};
use super::watch::DataNodeLink;
use crate::endpoint::NodeEndpoint;

/// Reason that is logged when a connection of the main node's agent failed.
const AGENT_CONNECTION_FAILED: &str = "the connection of the main node's agent to the node failed, \
    although the node replies to the main node; the connection is retried";

/// Error of a drain when retraining is disabled.
const RETRAINING_DISABLED: &str = "the pool's main node is served with --retrain-threads 0, so \
    leaves cannot be moved to other nodes; serve it with --retrain-threads 1 to drain nodes";

/// The main node's state for the other nodes, and its connections to them.
#[derive(Debug)]
pub(crate) struct PoolMainNode {
    pub(super) layout: PoolLayout,
    /// Endpoint to the main node's memory. Locked by every change of the member table, and while a
    /// data node is declared lost.
    endpoint: Mutex<NodeEndpoint>,
    pub(super) options: MainNodeOptions,
    /// Whether the main node retrains tables, and so can drain nodes.
    moves_leaves: bool,
    /// Session of the agent, and the key that signs passes, known once the main node listens.
    agent: OwnerWord,
    pass_key: Mutex<Option<PassKey>>,
    /// Links to all data nodes whose entries say that they are active or draining.
    links: Mutex<BTreeMap<NodeId, Arc<DataNodeLink>>>,
    /// Locked while a session is fenced: from reading the list of data nodes until the session's
    /// block says "fenced".
    fencing: Mutex<()>,
    /// Joining nodes, by the identities of their memories.
    pub(super) joining: Mutex<BTreeMap<u64, JoinState>>,
}

impl PoolMainNode {
    /// Writes the main node's own entry, by which clients see that the pool may have several nodes.
    pub(crate) fn new(
        layout: PoolLayout,
        endpoint: NodeEndpoint,
        options: MainNodeOptions,
        moves_leaves: bool,
        agent: OwnerWord,
    ) -> Result<Arc<Self>, BatchError> {
        let main_node = Arc::new(Self {
            endpoint: Mutex::new(endpoint),
            options,
            moves_leaves,
            agent,
            pass_key: Mutex::default(),
            links: Mutex::default(),
            fencing: Mutex::default(),
            joining: Mutex::default(),
            layout,
        });
        let own = Member {
            layout: *main_node.layout.main_node(),
            address: main_node.options.address.clone(),
        };
        main_node.write(own, MemberState::Active)?;
        Ok(main_node)
    }

    /// Writes a member's entry and advances the sequence number, so that every process reads the
    /// table again.
    fn write(&self, member: Member, state: MemberState) -> Result<(), BatchError> {
        let endpoint = lock(&self.endpoint);
        // The node may have been declared lost since this was decided. Writing that takes the lock,
        // too.
        if self.is_lost(member.layout.node) {
            return Ok(());
        }
        self.write_by(&endpoint, member, state)
    }

    fn write_by(
        &self,
        endpoint: &NodeEndpoint,
        member: Member,
        state: MemberState,
    ) -> Result<(), BatchError> {
        let written = write_member(endpoint, &self.layout, &member, state);
        block_on(written, endpoint.completions())?;
        self.layout.members().learn(member, state);
        let mut batch = Batch::new();
        batch.fetch_add(self.layout.sequence(), 1);
        block_on(endpoint.execute(&mut batch), endpoint.completions())
    }

    /// Runs work on the main node's own memory.
    pub(super) fn with_endpoint<R>(&self, work: impl FnOnce(&NodeEndpoint) -> R) -> R {
        work(&lock(&self.endpoint))
    }

    /// Sets the key that signs passes, once it is known.
    pub(crate) fn give_pass_key(&self, key: Option<PassKey>) {
        *lock(&self.pass_key) = key;
    }

    /// Returns the options for the main node's connections to data nodes.
    pub(super) fn connect_options(&self) -> TcpConnectOptions {
        TcpConnectOptions {
            answer_time_max: self.options.lost_after,
            ..self.options.connect.clone()
        }
    }

    /// Logs in at a data node for one of the main node's sessions.
    fn log_in(&self, member: &Member, owner: OwnerWord) -> Result<TcpClient, ControlError> {
        let client = TcpClient::connect(&member.address, &self.connect_options())?;
        check_memory(&client, member)?;
        let key = lock(&self.pass_key).clone();
        let pass = key.map(|key| key.pass(owner)).unwrap_or_default();
        Ok(client.with_pass(owner, pass))
    }

    /// Returns the connection to a data node for a session of the main node other than its agent's.
    pub(crate) fn connection_for(&self, owner: OwnerWord, node: NodeId) -> NodeAccess {
        if self.is_lost(node) {
            return NodeAccess::Lost;
        }
        let Some(member) = self.layout.members().get(node) else {
            return NodeAccess::None;
        };
        match self.log_in(member, owner) {
            Ok(client) => NodeAccess::At(Arc::new(client)),
            Err(_) if self.has_lost(node) => NodeAccess::Lost,
            Err(error) => NodeAccess::Unreachable(error.to_string()),
        }
    }

    /// Polls a data node; returns whether it is lost.
    pub(crate) fn has_lost(&self, node: NodeId) -> bool {
        if let Some(link) = self.link(node)
            && let Err(error) = link.ask(node)
        {
            self.declare_link_lost(node, &link, &error.to_string());
        }
        self.is_lost(node)
    }

    /// Returns whether the pool has passes, without which data nodes admit no session.
    pub(super) fn has_passes(&self) -> bool {
        lock(&self.pass_key).is_some()
    }

    fn link(&self, node: NodeId) -> Option<Arc<DataNodeLink>> {
        lock(&self.links).get(&node).map(Arc::clone)
    }

    fn is_linked(&self, node: NodeId, link: &Arc<DataNodeLink>) -> bool {
        let linked = self.link(node);
        linked.is_some_and(|linked| Arc::ptr_eq(&linked, link))
    }

    /// Adds a newcomer to the data nodes that are notified of every fenced session. All sessions
    /// whose fencing began before are fenced when this returns.
    pub(super) fn link_newcomer(&self, node: NodeId, link: &Arc<DataNodeLink>) {
        let _none_is_being_fenced = lock(&self.fencing);
        lock(&self.links).insert(node, Arc::clone(link));
    }

    /// Writes the entry of a newcomer, unless its link has failed in the meantime.
    pub(super) fn write_entry(
        &self,
        member: Member,
        link: &Arc<DataNodeLink>,
    ) -> Result<(), String> {
        let endpoint = lock(&self.endpoint);
        if !self.is_linked(member.layout.node, link) {
            return Err("the node disconnected or timed out while it joined".to_owned());
        }
        let written = self.write_by(&endpoint, member, MemberState::Active);
        written.map_err(|error| error.to_string())
    }

    /// Removes a newcomer that failed to join.
    pub(super) fn remove_newcomer(&self, node: NodeId, link: &Arc<DataNodeLink>) {
        let _endpoint = lock(&self.endpoint);
        if self.is_linked(node, link) {
            lock(&self.links).remove(&node);
        }
    }

    /// Returns the current links. Requests over them take time, and must not hold a lock.
    pub(super) fn linked(&self) -> Vec<(NodeId, Arc<DataNodeLink>)> {
        let links = lock(&self.links);
        let links = links.iter();
        links
            .map(|(node, link)| (*node, Arc::clone(link)))
            .collect()
    }

    /// Declares the data node of this link lost, if the link is still current: its number may
    /// belong to another node by now.
    pub(super) fn declare_link_lost(&self, node: NodeId, link: &Arc<DataNodeLink>, why: &str) {
        let endpoint = lock(&self.endpoint);
        if self.is_linked(node, link) {
            self.declare_lost_by(&endpoint, node, why);
        }
    }

    /// Declares a data node lost.
    pub(super) fn declare_lost(&self, node: NodeId, why: &str) {
        self.declare_lost_by(&lock(&self.endpoint), node, why);
    }

    /// Declares a data node lost and removes its link when the entry says so. Nodes without a link
    /// cannot be declared lost. A newcomer without an entry yet gets none.
    fn declare_lost_by(&self, endpoint: &NodeEndpoint, node: NodeId, why: &str) {
        let members = self.layout.members();
        if let (Some(member), Some(state)) = (members.get(node), members.state(node)) {
            let address = &member.address;
            match state {
                MemberState::Lost => {}
                MemberState::Left => {
                    tracing::info!(node = node.0, address, "a drained node has disconnected");
                }
                MemberState::Active | MemberState::Draining => {
                    tracing::error!(
                        node = node.0,
                        address,
                        why,
                        "a node is lost, with the data on it"
                    );
                    let written = self.write_by(endpoint, member.clone(), MemberState::Lost);
                    if let Err(error) = written {
                        // The data node is polled again, and found lost again.
                        tracing::error!(node = node.0, %error, "cannot record the loss; retrying");
                        return;
                    }
                }
            }
        }
        if let Some(link) = lock(&self.links).remove(&node) {
            // Fails all requests that still wait for its answers.
            link.client.hang_up();
        }
    }

    /// Fences a session on all data nodes, and calls `fence` when no verb of it can take effect
    /// there any more.
    pub(crate) fn fence_everywhere(&self, owner: OwnerWord, fence: impl FnOnce()) {
        let _no_newcomer_is_linked = lock(&self.fencing);
        for (node, link) in self.linked() {
            if let Err(error) = link.client.fence_session(owner, &mut |_| ()) {
                self.declare_link_lost(node, &link, &error.to_string());
            }
        }
        fence();
    }

    /// Calls `fence` at once if there are no data nodes to notify; returns false if there are.
    pub(crate) fn fence_if_alone(&self, fence: impl FnOnce()) -> bool {
        // The lock prevents that a newcomer is linked in the meantime.
        let links = lock(&self.links);
        let is_alone = links.is_empty();
        if is_alone {
            fence();
        }
        is_alone
    }

    /// Sets the state of a node on request of an operator.
    pub(crate) fn set_state(&self, node: NodeId, state: u64) -> Result<(), String> {
        let members = self.layout.members();
        let member_status = members.member_status(node);
        let (Some(member), Some(now)) = (members.get(node), member_status.state()) else {
            return Err(format!("the pool has no node {}", node.0));
        };
        if node == self.layout.main_node().node {
            return Err("this is the pool's main node, which cannot leave the pool".to_owned());
        }
        let wanted = MemberState::from_word(state);
        match (now, wanted) {
            (now, Some(wanted)) if now == wanted => {}
            (MemberState::Active, Some(MemberState::Draining)) if !self.moves_leaves => {
                return Err(RETRAINING_DISABLED.to_owned());
            }
            (MemberState::Active, Some(wanted @ MemberState::Draining))
            | (MemberState::Draining, Some(wanted @ MemberState::Active)) => {
                if !members.change_state(node, member_status, wanted) {
                    return Err(format!(
                        "the state of node {} has just changed; retry",
                        node.0
                    ));
                }
                let written = self.write(member.clone(), wanted);
                written.map_err(|error| error.to_string())?;
            }
            (MemberState::Active | MemberState::Draining, Some(MemberState::Lost)) => {
                self.declare_lost(node, "declared lost by an operator");
            }
            (now, _) => return Err(format!("node {} is {now}", node.0)),
        }
        Ok(())
    }

    /// Returns the membership of a node.
    pub(crate) fn member(&self, node: NodeId) -> MemberReply {
        let state = self.layout.members().state(node);
        let links = lock(&self.links);
        MemberReply {
            state: state.map_or(0, |state| state as u64),
            pool_id: self.pool_id(),
            answered_count: links.get(&node).map_or(0, |link| link.answered_count()),
        }
    }

    /// Returns the identity of the pool: that of this node's memory.
    pub(crate) fn pool_id(&self) -> u64 {
        self.layout.superblock.memory_id
    }

    /// Returns whether the agent's connection to a live data node is broken.
    pub(crate) fn is_agent_connection_broken(&self, is_open: impl Fn(NodeId) -> bool) -> bool {
        let linked = self.linked();
        let mut broken = linked.iter().filter(|(_, link)| link.agent.has_failed());
        broken.any(|(node, _)| is_open(*node))
    }
}

/// Connections of the main node's own agent.
impl NodeDirectory for PoolMainNode {
    fn find(&self, node: NodeId) -> NodeAccess {
        if self.is_lost(node) {
            return NodeAccess::Lost;
        }
        let (Some(member), Some(link)) = (self.layout.members().get(node), self.link(node)) else {
            return NodeAccess::None;
        };
        if let Some(why) = link.agent.retry_blocked_by() {
            return NodeAccess::Unreachable(why);
        }
        match link.agent.open(|| self.log_in(member, self.agent)) {
            Ok(client) => NodeAccess::At(client),
            Err(_) if self.query_lost(node) => NodeAccess::Lost,
            Err(error) => {
                link.agent.fail(&error.to_string());
                NodeAccess::Unreachable(error.to_string())
            }
        }
    }

    fn is_lost(&self, node: NodeId) -> bool {
        self.layout.members().state(node) == Some(MemberState::Lost)
    }

    /// One answer after the failure of the connection shows that the node is alive.
    fn query_lost(&self, node: NodeId) -> bool {
        if let Some(link) = self.link(node) {
            match link.ask(node) {
                Ok(()) => link.agent.fail(AGENT_CONNECTION_FAILED),
                Err(error) => self.declare_link_lost(node, &link, &error.to_string()),
            }
        }
        self.is_lost(node)
    }
}
