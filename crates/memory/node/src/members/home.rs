//! The home's side (V2, V3, V6); how it takes guests in: `joining`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farleaf_executor::block_on;
use farleaf_fabric::network::{NodeDirectory, NodeWay};
use farleaf_fabric::tcp::{MemberReply, PassKey, TcpClient, TcpConnectOptions};
use farleaf_fabric::{Batch, BatchError, Control, ControlError, Endpoint};
use farleaf_region::PoolLayout;
use farleaf_region::members::{Member, MemberState, write_member};
use farleaf_types::{NodeId, OwnerWord};

use super::HomeOptions;
use super::joining::{Joining, check_region};
use super::watch::GuestLink;
use crate::endpoint::NodeEndpoint;

/// What is said of a way that failed.
const WAY_FAILED: &str = "the way of the home's own agent to the node failed, though the node \
    answers the home; it is tried again";

/// Why no node can drain.
const NOTHING_MOVES: &str = "the pool's home is served with --retrain-threads 0, so nobody moves \
    leaves to other nodes: serve it with 1 to drain nodes";

/// What the home knows of the other nodes, and how it reaches them.
#[derive(Debug)]
pub(crate) struct PoolHome {
    pub(super) layout: PoolLayout,
    /// Held by whoever changes an entry of the member table, or says that a guest is none any more.
    endpoint: Mutex<NodeEndpoint>,
    pub(super) options: HomeOptions,
    /// Whether it retrains tables, and so can drain nodes.
    moves_leaves: bool,
    /// The session of the agent, and what its passes are made with, once the home listens.
    agent: OwnerWord,
    pass_key: Mutex<Option<PassKey>>,
    /// A guest whose entry says that it is active, or draining, has one.
    links: Mutex<BTreeMap<NodeId, Arc<GuestLink>>>,
    /// V3: held from the look at who is to be told of a fenced session until its block says so.
    fencing: Mutex<()>,
    /// By the numbers of their regions.
    pub(super) joining: Mutex<BTreeMap<u64, Joining>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolHome {
    /// Writes the home's own entry, by which everybody sees that the pool has, or may have, several
    /// nodes.
    pub(crate) fn new(
        layout: PoolLayout,
        endpoint: NodeEndpoint,
        (options, moves_leaves): (HomeOptions, bool),
        agent: OwnerWord,
    ) -> Result<Arc<Self>, BatchError> {
        let home = Arc::new(Self {
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
            layout: *home.layout.home(),
            address: home.options.address.clone(),
        };
        home.write(own, MemberState::Active)?;
        Ok(home)
    }

    /// U3, and a sequence number, so that every process looks.
    fn write(&self, member: Member, state: MemberState) -> Result<(), BatchError> {
        let endpoint = lock(&self.endpoint);
        // U4: it may have been lost since this was decided. Who writes that holds the lock, too.
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

    /// What works on the home's own region.
    pub(super) fn with_endpoint<R>(&self, work: impl FnOnce(&NodeEndpoint) -> R) -> R {
        work(&lock(&self.endpoint))
    }

    /// What passes are made with, once it is known.
    pub(crate) fn give_pass_key(&self, key: Option<PassKey>) {
        *lock(&self.pass_key) = key;
    }

    /// How the home connects to guests.
    pub(super) fn connect_options(&self) -> TcpConnectOptions {
        TcpConnectOptions {
            answer_time_max: self.options.lost_after,
            ..self.options.connect.clone()
        }
    }

    /// V6: a log-in at a guest by which a session of the home is let in.
    fn log_in(&self, member: &Member, owner: OwnerWord) -> Result<TcpClient, ControlError> {
        let client = TcpClient::connect(&member.address, &self.connect_options())?;
        check_region(&client, member)?;
        let key = lock(&self.pass_key).clone();
        let pass = key.map(|key| key.pass(owner)).unwrap_or_default();
        Ok(client.with_pass(owner, pass))
    }

    /// The way to a guest for a session of the home other than its agent's.
    pub(crate) fn way_for(&self, owner: OwnerWord, node: NodeId) -> NodeWay {
        if self.is_lost(node) {
            return NodeWay::Lost;
        }
        let Some(member) = self.layout.members().get(node) else {
            return NodeWay::None;
        };
        match self.log_in(member, owner) {
            Ok(client) => NodeWay::At(Arc::new(client)),
            Err(_) if self.has_lost(node) => NodeWay::Lost,
            Err(error) => NodeWay::Unreachable(error.to_string()),
        }
    }

    /// Whether a guest is lost, after it was asked.
    pub(crate) fn has_lost(&self, node: NodeId) -> bool {
        if let Some(link) = self.link(node)
            && let Err(error) = link.ask(node)
        {
            self.lose_link(node, &link, &error.to_string());
        }
        self.is_lost(node)
    }

    /// Whether the pool has passes, without which no guest lets anybody in.
    pub(super) fn has_passes(&self) -> bool {
        lock(&self.pass_key).is_some()
    }

    fn link(&self, node: NodeId) -> Option<Arc<GuestLink>> {
        lock(&self.links).get(&node).map(Arc::clone)
    }

    fn is_linked(&self, node: NodeId, link: &Arc<GuestLink>) -> bool {
        let linked = self.link(node);
        linked.is_some_and(|linked| Arc::ptr_eq(&linked, link))
    }

    /// V3: from now on it hears of every session that is fenced; all whose fencing began before are
    /// fenced by now.
    pub(super) fn link_newcomer(&self, node: NodeId, link: &Arc<GuestLink>) {
        let _none_is_being_fenced = lock(&self.fencing);
        lock(&self.links).insert(node, Arc::clone(link));
    }

    /// V1: writes the entry of a newcomer, unless its link has failed meanwhile.
    pub(super) fn enter(&self, member: Member, link: &Arc<GuestLink>) -> Result<(), String> {
        let endpoint = lock(&self.endpoint);
        if !self.is_linked(member.layout.node, link) {
            return Err("it hung up, or did not answer, while it was taken in".to_owned());
        }
        let written = self.write_by(&endpoint, member, MemberState::Active);
        written.map_err(|error| error.to_string())
    }

    /// A newcomer that has not become one.
    pub(super) fn turn_away(&self, node: NodeId, link: &Arc<GuestLink>) {
        let _endpoint = lock(&self.endpoint);
        if self.is_linked(node, link) {
            lock(&self.links).remove(&node);
        }
    }

    /// The guests as they are now: what is asked of them takes its time, and holds no lock.
    pub(super) fn linked(&self) -> Vec<(NodeId, Arc<GuestLink>)> {
        let links = lock(&self.links);
        let links = links.iter();
        links
            .map(|(node, link)| (*node, Arc::clone(link)))
            .collect()
    }

    /// U4: a guest to which this link leads, if one still does: its number may be another's by now.
    pub(super) fn lose_link(&self, node: NodeId, link: &Arc<GuestLink>, why: &str) {
        let endpoint = lock(&self.endpoint);
        if self.is_linked(node, link) {
            self.lose_by(&endpoint, node, why);
        }
    }

    /// U4.
    pub(super) fn lose(&self, node: NodeId, why: &str) {
        self.lose_by(&lock(&self.endpoint), node, why);
    }

    /// The link goes when the entry says so: one that has none is nobody's to lose. A newcomer that
    /// has no entry yet gets none.
    fn lose_by(&self, endpoint: &NodeEndpoint, node: NodeId, why: &str) {
        let members = self.layout.members();
        if let (Some(member), Some(state)) = (members.get(node), members.state(node)) {
            let address = &member.address;
            match state {
                MemberState::Lost => {}
                MemberState::Left => {
                    tracing::info!(node = node.0, address, "a drained node is gone");
                }
                MemberState::Active | MemberState::Draining => {
                    tracing::error!(
                        node = node.0,
                        address,
                        why,
                        "a node is lost, and what was on it"
                    );
                    let written = self.write_by(endpoint, member.clone(), MemberState::Lost);
                    if let Err(error) = written {
                        // It is asked again, and found lost again.
                        tracing::error!(node = node.0, %error, "cannot say so; trying again");
                        return;
                    }
                }
            }
        }
        if let Some(link) = lock(&self.links).remove(&node) {
            // Whoever waits for its answers has waited long enough.
            link.client.hang_up();
        }
    }

    /// V3: fences a session by `fence` when no verb of it can take effect on any guest.
    pub(crate) fn fence_everywhere(&self, owner: OwnerWord, fence: impl FnOnce()) {
        let _no_newcomer_is_linked = lock(&self.fencing);
        for (node, link) in self.linked() {
            if let Err(error) = link.client.fence_session(owner, &mut |_| ()) {
                self.lose_link(node, &link, &error.to_string());
            }
        }
        fence();
    }

    /// V3: the same at once, if there is no guest that has to hear of it; false: there is one.
    pub(crate) fn fence_if_alone(&self, fence: impl FnOnce()) -> bool {
        // No newcomer is linked meanwhile.
        let links = lock(&self.links);
        let is_alone = links.is_empty();
        if is_alone {
            fence();
        }
        is_alone
    }

    /// An operator's wish.
    pub(crate) fn set_state(&self, node: NodeId, state: u64) -> Result<(), String> {
        let members = self.layout.members();
        let standing = members.standing(node);
        let (Some(member), Some(now)) = (members.get(node), standing.state()) else {
            return Err(format!("the pool has no node {}", node.0));
        };
        if node == self.layout.home().node {
            return Err("this is the pool's home, which cannot leave it".to_owned());
        }
        let wanted = MemberState::from_word(state);
        match (now, wanted) {
            (now, Some(wanted)) if now == wanted => {}
            (MemberState::Active, Some(MemberState::Draining)) if !self.moves_leaves => {
                return Err(NOTHING_MOVES.to_owned());
            }
            (MemberState::Active, Some(wanted @ MemberState::Draining))
            | (MemberState::Draining, Some(wanted @ MemberState::Active)) => {
                if !members.change_state(node, standing, wanted) {
                    return Err(format!("node {} has just changed; ask again", node.0));
                }
                let written = self.write(member.clone(), wanted);
                written.map_err(|error| error.to_string())?;
            }
            (MemberState::Active | MemberState::Draining, Some(MemberState::Lost)) => {
                self.lose(node, "an operator said so");
            }
            (now, _) => return Err(format!("node {} is {now}", node.0)),
        }
        Ok(())
    }

    /// How a node stands.
    pub(crate) fn member(&self, node: NodeId) -> MemberReply {
        let state = self.layout.members().state(node);
        let links = lock(&self.links);
        MemberReply {
            state: state.map_or(0, |state| state as u64),
            pool_id: self.pool_id(),
            answered_count: links.get(&node).map_or(0, |link| link.answered_count()),
        }
    }

    /// Which pool it is: the number of this node's region.
    pub(crate) fn pool_id(&self) -> u64 {
        self.layout.superblock.region_id
    }

    /// V6: whether the agent's way to a guest is broken that goes on.
    pub(crate) fn is_way_broken(&self, is_open: impl Fn(NodeId) -> bool) -> bool {
        let linked = self.linked();
        let mut broken = linked.iter().filter(|(_, link)| link.agent.has_failed());
        broken.any(|(node, _)| is_open(*node))
    }
}

/// V6: the ways of the home's own agent.
impl NodeDirectory for PoolHome {
    fn find(&self, node: NodeId) -> NodeWay {
        if self.is_lost(node) {
            return NodeWay::Lost;
        }
        let (Some(member), Some(link)) = (self.layout.members().get(node), self.link(node)) else {
            return NodeWay::None;
        };
        if let Some(why) = link.agent.failed_lately() {
            return NodeWay::Unreachable(why);
        }
        match link.agent.open(|| self.log_in(member, self.agent)) {
            Ok(client) => NodeWay::At(client),
            Err(_) if self.is_lost_now(node) => NodeWay::Lost,
            Err(error) => {
                link.agent.fail(&error.to_string());
                NodeWay::Unreachable(error.to_string())
            }
        }
    }

    fn is_lost(&self, node: NodeId) -> bool {
        self.layout.members().state(node) == Some(MemberState::Lost)
    }

    /// V6. One answer says that the node goes on: it is asked after the way there broke.
    fn is_lost_now(&self, node: NodeId) -> bool {
        if let Some(link) = self.link(node) {
            match link.ask(node) {
                Ok(()) => link.agent.fail(WAY_FAILED),
                Err(error) => self.lose_link(node, &link, &error.to_string()),
            }
        }
        self.is_lost(node)
    }
}
