//! The home's side (V1 to V3).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use farleaf_executor::block_on;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::tcp::{
    JoinRequest, Joined, MemberReply, NodeDirectory, NodeWay, TcpClient, TcpConnectOptions,
};
use farleaf_fabric::{Batch, BatchError, Control, Endpoint};
use farleaf_region::layout::SUPERBLOCK_SIZE_WORDS;
use farleaf_region::members::{MEMBER_ADDRESS_SIZE_BYTES_MAX, Member, MemberState, write_member};
use farleaf_region::{PoolLayout, RegionLayout, Superblock};
use farleaf_types::{NodeId, OwnerWord};

use super::HomeOptions;

/// Time between two questions to a guest, and to who waits to be taken in.
const TICK: Duration = Duration::from_millis(100);

/// How far a node that wants to join has come.
#[derive(Debug)]
enum Joining {
    Asked(JoinRequest),
    /// It is told why not when it asks the next time.
    Failed(String),
}

/// What the home knows of the other nodes, and how it reaches them.
#[derive(Debug)]
pub(crate) struct PoolHome {
    layout: PoolLayout,
    endpoint: Mutex<MappedEndpoint>,
    options: HomeOptions,
    links: Mutex<BTreeMap<NodeId, Arc<TcpClient>>>,
    /// By the numbers of their regions.
    joining: Mutex<BTreeMap<u64, Joining>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolHome {
    /// Writes the home's own entry, by which everybody sees that the pool has, or may have, several
    /// nodes.
    pub(crate) fn new(
        layout: PoolLayout,
        endpoint: MappedEndpoint,
        options: HomeOptions,
    ) -> Result<Arc<Self>, BatchError> {
        let home = Arc::new(Self {
            endpoint: Mutex::new(endpoint),
            options,
            links: Mutex::default(),
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
        let written = write_member(&*endpoint, &self.layout, &member, state);
        block_on(written, endpoint.completions())?;
        self.layout.members().learn(member, state);
        let mut batch = Batch::new();
        batch.fetch_add(self.layout.sequence(), 1);
        endpoint.execute_now(&mut batch)
    }

    /// V1, as far as the listener is concerned.
    pub(crate) fn join(&self, request: &JoinRequest) -> Result<Joined, String> {
        let size = request.address.len();
        if size == 0 || size > MEMBER_ADDRESS_SIZE_BYTES_MAX {
            return Err(format!(
                "a node's address has 1 to {MEMBER_ADDRESS_SIZE_BYTES_MAX} bytes, and this one \
                 {size}"
            ));
        }
        Superblock::new(request.size_bytes, request.region_id)
            .map_err(|error| error.to_string())?;
        let pool_id = self.layout.superblock.region_id;
        if let Some(node) = self.number_of(request.region_id) {
            return Ok(Joined {
                node: Some(node),
                pool_id,
            });
        }
        let mut joining = lock(&self.joining);
        if let Some(Joining::Failed(why)) = joining.get(&request.region_id) {
            let why = why.clone();
            joining.remove(&request.region_id);
            return Err(why);
        }
        let asked = Joining::Asked(request.clone());
        joining.entry(request.region_id).or_insert(asked);
        let node = None;
        Ok(Joined { node, pool_id })
    }

    /// The number of a region that belongs to the pool, or did: then its node is told so when it
    /// asks how it stands, and comes back as another one (U2, V4).
    fn number_of(&self, region_id: u64) -> Option<NodeId> {
        let mut all = self.layout.members().all();
        let found = all.find(|(member, _)| member.layout.superblock.region_id == region_id);
        found.map(|(member, _)| member.layout.node)
    }

    /// Takes in who waits, and tells the others why not when they ask again.
    fn take_in(&self) {
        let asked: Vec<JoinRequest> = lock(&self.joining)
            .values()
            .filter_map(|joining| match joining {
                Joining::Asked(request) => Some(request.clone()),
                Joining::Failed(_) => None,
            })
            .collect();
        for request in asked {
            let mut taken = self.take_in_one(&request);
            match &taken {
                Ok(node) => tracing::info!(
                    node = node.0,
                    address = request.address,
                    size_bytes = request.size_bytes,
                    "a node has joined, empty"
                ),
                Err(why) => tracing::warn!(address = request.address, why, "a node cannot join"),
            }
            let mut joining = lock(&self.joining);
            match taken.as_mut() {
                Ok(_) => joining.remove(&request.region_id),
                Err(why) => joining.insert(request.region_id, Joining::Failed(std::mem::take(why))),
            };
        }
    }

    /// V1.
    fn take_in_one(&self, request: &JoinRequest) -> Result<NodeId, String> {
        let options = TcpConnectOptions {
            answer_time_max: self.options.lost_after,
            ..self.options.connect.clone()
        };
        let client = TcpClient::connect(&request.address, &options);
        let client = client.map_err(|error| format!("the home cannot reach it: {error}"))?;
        let superblock = read_superblock(&client)?;
        let is_it = superblock.region_id == request.region_id;
        if !is_it || superblock.size_bytes != request.size_bytes {
            return Err(format!("at {} another region answers", request.address));
        }
        // Who was reached there before is gone.
        let gone: Vec<NodeId> = {
            let all = self.layout.members().all();
            let old = all.filter(|(member, state)| {
                state.is_reachable() && member.address == request.address
            });
            old.map(|(member, _)| member.layout.node).collect()
        };
        for node in gone {
            self.lose(node, "another region is served at its address");
        }
        let members = self.layout.members();
        // U2. The one that it would like to have, if no region has had that.
        let mut numbers = [request.wanted.0]
            .into_iter()
            .chain(1..=u8::MAX)
            .map(NodeId);
        let node = numbers
            .find(|node| members.get(*node).is_none())
            .ok_or("the pool has given all its 255 node numbers; a new pool has them again")?;
        let member = Member {
            layout: RegionLayout { node, superblock },
            address: request.address.clone(),
        };
        lock(&self.links).insert(node, Arc::new(client));
        self.write(member, MemberState::Active)
            .map_err(|error| error.to_string())?;
        Ok(node)
    }

    /// The guests as they are now: what is asked of them takes its time, and holds no lock.
    fn linked(&self) -> Vec<(NodeId, Arc<TcpClient>)> {
        let links = lock(&self.links);
        let links = links.iter();
        links
            .map(|(node, client)| (*node, Arc::clone(client)))
            .collect()
    }

    /// V2: asks all guests.
    fn ask_all(&self) {
        // All at once: one that does not answer must not keep the others from being missed.
        std::thread::scope(|scope| {
            for (node, client) in self.linked() {
                scope.spawn(move || {
                    if let Err(error) = client.member(node) {
                        self.lose(node, &error.to_string());
                    }
                });
            }
        });
    }

    /// U4.
    fn lose(&self, node: NodeId, why: &str) {
        lock(&self.links).remove(&node);
        let members = self.layout.members();
        let (Some(member), Some(state)) = (members.get(node), members.state(node)) else {
            return;
        };
        match state {
            MemberState::Lost => {}
            MemberState::Left => {
                tracing::info!(
                    node = node.0,
                    address = member.address,
                    "a drained node is gone"
                );
            }
            MemberState::Active | MemberState::Draining => {
                tracing::error!(
                    node = node.0,
                    address = member.address,
                    why,
                    "a node is lost, and what was on it"
                );
                if let Err(error) = self.write(member.clone(), MemberState::Lost) {
                    tracing::error!(%error, "cannot say so");
                }
            }
        }
    }

    /// V3: returns when no verb of the session can take effect on any guest.
    pub(crate) fn fence_at_guests(&self, owner: OwnerWord) {
        for (node, client) in self.linked() {
            if let Err(error) = client.fence_session(owner, &mut |_| ()) {
                self.lose(node, &error.to_string());
            }
        }
    }

    /// An operator's wish.
    pub(crate) fn set_state(&self, node: NodeId, state: u64) -> Result<(), String> {
        let members = self.layout.members();
        let (Some(member), Some(now)) = (members.get(node), members.state(node)) else {
            return Err(format!("the pool has no node {}", node.0));
        };
        if node == self.layout.home().node {
            return Err("this is the pool's home, which cannot leave it".to_owned());
        }
        let wanted = MemberState::from_word(state);
        match (now, wanted) {
            (now, Some(wanted)) if now == wanted => {}
            (MemberState::Active, Some(wanted @ MemberState::Draining))
            | (MemberState::Draining, Some(wanted @ MemberState::Active)) => {
                if !members.change_state(node, now, wanted) {
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
        MemberReply {
            state: state.map_or(0, |state| state as u64),
            pool_id: self.layout.superblock.region_id,
        }
    }
}

/// What a node's region says of itself.
fn read_superblock(client: &TcpClient) -> Result<Superblock, String> {
    let endpoint = client.endpoint(None).map_err(|error| error.to_string())?;
    let mut batch = Batch::new();
    // Every region knows itself as node 0.
    let place = RegionLayout::superblock_addr(NodeId(0));
    let read = batch.read(place, SUPERBLOCK_SIZE_WORDS);
    block_on(endpoint.execute(&mut batch), endpoint.completions())
        .map_err(|error| error.to_string())?;
    let mut words = [0; SUPERBLOCK_SIZE_WORDS];
    words.copy_from_slice(batch.words(read));
    Superblock::decode(&words, client.region_size_bytes()).map_err(|error| error.to_string())
}

/// The ways of the home's own agent.
impl NodeDirectory for PoolHome {
    fn find(&self, node: NodeId) -> NodeWay {
        if self.is_lost(node) {
            return NodeWay::Lost;
        }
        let links = lock(&self.links);
        links
            .get(&node)
            .map_or(NodeWay::None, |client| NodeWay::At(Arc::clone(client)))
    }

    fn is_lost(&self, node: NodeId) -> bool {
        self.layout.members().state(node) == Some(MemberState::Lost)
    }

    /// V2: the home's own way to the node is broken, be it another connection than the one that it
    /// asks over: that is a node which hangs up.
    fn is_lost_now(&self, node: NodeId) -> bool {
        self.lose(node, "the connection of the home's own agent to it broke");
        self.is_lost(node)
    }
}

/// The thread that takes nodes in and asks them; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct MemberThread {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MemberThread {
    pub(crate) fn start(home: Arc<PoolHome>) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("farleaf-members".to_owned());
        let thread = thread.spawn(move || {
            while !told.load(Ordering::Relaxed) {
                home.take_in();
                home.ask_all();
                std::thread::sleep(TICK);
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for MemberThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that looks after the other nodes panicked");
        }
    }
}
