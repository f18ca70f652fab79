//! Memory node of a run: the real session table and the real sweep, in the simulated world.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};

use farleaf_base::{NodeId, OwnerWord, RemoteAddr, SequenceNumber, TableId};
use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint, Windows};
use farleaf_index::load::{LoadPlan, create_table};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::words::{LeafAccess, LeafGeometry};
use farleaf_node::calls::dispatcher::TaskBatch;
use farleaf_node::calls::{Dispatcher, RingAssigner, RingRegistry, TableServer};
use farleaf_node::members::Draining;
use farleaf_node::retrain::{RetrainPolicy, Retrainer};
use farleaf_node::sessions::{AgentEvent, Sessions};
use farleaf_node::sweep::MemoryMaintainer;
use farleaf_pool::catalog::{CatalogEntry, EntryState, TableKind, TableRecord, live_word};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::members::{Member, MemberState, write_member};
use farleaf_pool::session::{HEARTBEAT_DRAINED, heartbeat_addr, is_fenced, life_of};
use farleaf_pool::{NodeLayout, PoolLayout, Superblock};

use crate::fabric::SharedWorld;
use crate::fabric::endpoint::{SimEndpoint, SimWindows, StillEndpoint};
use crate::fabric::executor::sleep;
use crate::fabric::world::{ClientId, Nanos, NodeLife};
use crate::plant::Plant;
use crate::workers::still_worker;

/// Size of each node's memory: enough for every table of numbers that a run creates.
pub const REGION_SIZE_BYTES: u64 = 4 << 20;
/// Name of the table with which a run begins.
pub const TABLE_NAME: &str = "simulated";
/// Error bound of tables' models.
const EPSILON_KEYS: f64 = 16.0;
/// Time between two ticks of the agent, in virtual time.
const AGENT_TICK: Nanos = 20_000;
/// Time between two ticks of an agent that retrains, in virtual time.
pub const RETRAINER_TICK: Nanos = 4_000;

/// Simulated memory node.
pub struct Node {
    /// World of the run.
    pub world: SharedWorld,
    /// Layout of the node's memory.
    pub layout: PoolLayout,
    sessions: RefCell<Sessions<StillEndpoint>>,
    /// Clients of all sessions so far, by their owner words.
    clients: RefCell<BTreeMap<u64, ClientId>>,
    events: Receiver<AgentEvent>,
    /// Client and session of the agent.
    agent: Cell<Option<(ClientId, OwnerWord)>>,
    /// Clients of the workers and trainers in the run, oldest first.
    worker_session: RefCell<Vec<ClientId>>,
    ring_registry: Arc<RingRegistry>,
    server: Arc<TableServer>,
    /// Sessions that ended without reporting that they hold nothing; for agents, those for which a
    /// sweep was due.
    holding_count: Cell<u64>,
    /// Whether sessions can make calls.
    takes_calls: Cell<bool>,
    /// Dispatcher that answers calls while virtual time stands still.
    still_dispatcher: RefCell<Dispatcher>,
}

/// Formats a fresh memory.
fn make_memory(still: &StillEndpoint, node: NodeId) -> NodeLayout {
    let word_count = still.memory_word_count(node);
    let size_bytes = word_count.expect("there is such a node") * 8;
    let superblock = Superblock::new(size_bytes, 1).expect("large enough");
    let mut batch = Batch::new();
    let place = NodeLayout::superblock_addr(node);
    batch.write(place, &superblock.encode());
    block_on(still.execute(&mut batch), || 0).expect("inside the memory");
    NodeLayout { node, superblock }
}

impl core::fmt::Debug for Node {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

impl Node {
    /// Creates a node with a fresh memory, and further nodes if the world has more than one.
    ///
    /// # Panics
    /// The memory is too small, which it is not.
    pub fn new(world: &SharedWorld) -> Rc<Self> {
        let still = StillEndpoint::new(world);
        let layout = PoolLayout::from(make_memory(&still, NodeId(0)));
        let node_count = world.borrow().node_count();
        for number in 1..node_count {
            let member = Member {
                layout: make_memory(&still, NodeId(number)),
                address: format!("simulated:{number}"),
            };
            let written = write_member(&still, &layout, &member, MemberState::Active);
            block_on(written, || 0).expect("inside the memory");
            layout.members().learn(member, MemberState::Active);
        }
        let (sender, events) = channel();
        let main_node = *layout.main_node();
        let main_node_word_count = still
            .memory_word_count(main_node.node)
            .expect("it is there");
        let ring_registry = Arc::<RingRegistry>::default();
        Rc::new(Self {
            world: SharedWorld::clone(world),
            layout,
            sessions: RefCell::new(Sessions::new(still, main_node, sender)),
            clients: RefCell::default(),
            events,
            agent: Cell::default(),
            worker_session: RefCell::default(),
            still_dispatcher: RefCell::new(Dispatcher::new(Arc::clone(&ring_registry))),
            ring_registry,
            server: Arc::new(TableServer::new(main_node_word_count * 8)),
            holding_count: Cell::default(),
            takes_calls: Cell::new(false),
        })
    }

    /// From now on allocations get memory that was freed before, as in a pool that has been full:
    /// memory that is reused too early then belongs to another user.
    ///
    /// # Panics
    /// The memory has no such word, which it has.
    pub fn hand_out_all(&self) {
        let still = StillEndpoint::new(&self.world);
        let mut batch = Batch::new();
        for memory in self.layout.memories() {
            batch.write_word(memory.alloc_num(), memory.superblock.chunk_count);
        }
        block_on(still.execute(&mut batch), || 0).expect("inside the memory");
    }

    /// Returns what a process that opens the pool now knows of it. Each process learns the fate of
    /// the nodes by itself.
    ///
    /// # Panics
    /// The memory has no table of nodes, which it has.
    pub fn open(&self) -> PoolLayout {
        let layout = PoolLayout::from(*self.layout.main_node());
        if self.world.borrow().node_count() > 1 {
            let still = StillEndpoint::new(&self.world);
            let refreshed = layout.members().refresh(&still, &layout);
            block_on(refreshed, || 0).expect("inside the memory");
        }
        layout
    }

    /// Starts to drain a node, as the main node does, unless it is lost or draining already.
    pub async fn drain(&self, node: NodeId) {
        let members = self.layout.members();
        let Some(member) = members.get(node).cloned() else {
            return;
        };
        if members.state(node) == Some(MemberState::Active) {
            self.set_state(member, MemberState::Draining).await;
        }
    }

    /// Loses a node, which the main node announces at once. Returns false if the node does not
    /// exist, or has no data anymore.
    pub fn lose_member(&self, node: NodeId) -> bool {
        let members = self.layout.members();
        let (Some(member), Some(state)) = (members.get(node).cloned(), members.state(node)) else {
            return false;
        };
        if !state.is_reachable() {
            return false;
        }
        self.world.borrow_mut().lose_member(node);
        block_on(self.set_state(member, MemberState::Lost), || 0);
        true
    }

    /// Sets a node's state: first its entry, then the main node's own knowledge, then a number that
    /// processes see.
    async fn set_state(&self, member: Member, state: MemberState) {
        let still = StillEndpoint::new(&self.world);
        let written = write_member(&still, &self.layout, &member, state).await;
        written.expect("the main node is there");
        self.layout.members().learn(member, state);
        let mut batch = Batch::new();
        batch.fetch_add(self.layout.sequence(), 1);
        still
            .execute(&mut batch)
            .await
            .expect("the main node is there");
    }

    /// Returns whether a node is draining and has not left yet.
    pub fn is_draining(&self) -> bool {
        let mut all = self.layout.members().all();
        all.any(|(_, state)| state == MemberState::Draining)
    }

    /// Stops nodes that have left.
    pub fn stop_left(&self) {
        for (member, state) in self.layout.members().all() {
            let node = member.layout.node;
            let mut world = self.world.borrow_mut();
            if state == MemberState::Left && world.node_life(node) == NodeLife::Here {
                world.stop_member(node);
            }
        }
    }

    /// Registers a session for a client.
    ///
    /// # Panics
    /// There are more sessions than a node's memory has, which no run opens.
    pub fn register(&self, client: ClientId) -> OwnerWord {
        let opened = self.sessions.borrow_mut().open(client.0);
        let owner = opened.expect("a run opens few sessions");
        self.clients.borrow_mut().insert(owner.word(), client);
        owner
    }

    /// Returns a writer into windows of sessions, on behalf of a client of the node. Virtual time
    /// may stand still for it.
    pub fn windows(&self, writer: ClientId, is_still: bool) -> impl Windows {
        SimWindows {
            world: &self.world,
            is_still,
            ends_of: move |owner: OwnerWord| {
                let client = self.clients.borrow().get(&owner.word()).copied();
                client.map(|client| (client, writer))
            },
        }
    }

    /// Fences a client (FABRIC-6) and records that: none of its verbs takes effect anymore.
    pub fn fence(&self, client: ClientId, owner: OwnerWord) {
        self.world.fence(client);
        let is_agent = self.agent.get().is_some_and(|(_, agent)| agent == owner);
        if !is_agent && self.is_holding(owner) {
            self.holding_count.update(|count| count + 1);
        }
        self.sessions.borrow_mut().close(owner);
    }

    /// Returns whether a session is not fenced yet, and has not reported that it holds nothing.
    fn is_holding(&self, owner: OwnerWord) -> bool {
        let life = life_of(&self.layout, owner).zip(owner.holder());
        let Some(((place, incarnation), (session, _))) = life else {
            return false;
        };
        let word = |place| self.world.borrow().words(place, 1)[0];
        let heartbeat = word(heartbeat_addr(&self.layout, session));
        !is_fenced(incarnation, word(place)) && heartbeat != HEARTBEAT_DRAINED
    }

    /// Returns the number of sessions, except agents', that ended without reporting that they hold
    /// nothing.
    pub fn holding_count(&self) -> u64 {
        self.holding_count.get()
    }

    /// Creates a table while virtual time stands still.
    ///
    /// # Errors
    /// The memory is full.
    pub fn create_table(
        &self,
        kind: LayerKind,
        entry_count_max: u32,
        slots: u64,
        fill_percent: u8,
    ) -> Result<CatalogEntry, IndexError> {
        let endpoint = StillEndpoint::new(&self.world);
        let owner = self.register(ClientId(u32::MAX));
        let mut batch = Batch::new();
        // Like a session: the numbers of tables and of loads come from one counter.
        let slot = batch.fetch_add(self.layout.table_num(), 1);
        block_on(endpoint.execute(&mut batch), || 0)?;
        let id = TableId(batch.previous(slot) as u32 + 1);
        let access = LeafAccess {
            endpoint: &endpoint,
            layout: &self.layout,
            geometry: LeafGeometry::new(slots).expect("drawn from those that there are"),
            table: id,
            owner,
        };
        let plan = LoadPlan {
            kind,
            fill_percent,
            epsilon_keys: EPSILON_KEYS,
            entry_count_max,
        };
        let table = block_on(create_table(&access, &plan), || 0)?;
        let record = TableRecord {
            id,
            name: TABLE_NAME.to_owned(),
            kind: TableKind::Words {
                slots: access.geometry.slots(),
            },
            search_layer: kind.number(),
            fill_percent,
            epsilon_milli: (EPSILON_KEYS * 1000.0) as u32,
            first_leaf: table.first_leaf,
            part: None,
        };
        let root = table.root;
        let place = self.layout.catalog_entry(0);
        batch.clear();
        batch.write(place.offset(1), &record.encode_body(root));
        batch.write_word(place, live_word(id));
        block_on(endpoint.execute(&mut batch), || 0)?;
        block_on(table.give_back(&access, true), || 0)?;
        self.sessions.borrow_mut().close(owner);
        Ok(CatalogEntry {
            index: 0,
            state: EntryState::Live,
            record,
            dropped_at: SequenceNumber::default(),
            root,
            underfull_count: 0,
            pending_root: RemoteAddr::NULL,
        })
    }

    /// Returns the current catalog entry of the table; `None` after the node has lost it.
    ///
    /// # Errors
    /// The entry cannot be read.
    pub fn entry(&self) -> Result<Option<CatalogEntry>, IndexError> {
        let keeper = self.keeper(StillEndpoint::new(&self.world), OwnerWord::FREE);
        let entries = block_on(keeper.catalog(), || 0)?;
        Ok(entries.into_iter().next())
    }

    /// Returns the node's own access to its memory.
    pub fn keeper<E: Endpoint>(&self, endpoint: E, owner: OwnerWord) -> MemoryMaintainer<E> {
        MemoryMaintainer {
            blocks: farleaf_node::sweep::BlockSweepers::default(),
            endpoint,
            layout: self.layout.clone(),
            owner,
        }
    }

    /// Runs the agent until `is_over`: it frees dropped tables, and sweeps when it learns of a
    /// death. Its verbs take time and are torn like those of any client. Returns the last failure,
    /// if there was one.
    pub async fn run_agent(
        &self,
        plant: Option<Plant>,
        policy: Option<RetrainPolicy>,
        is_over: impl Fn() -> bool,
    ) -> Option<IndexError> {
        let endpoint = SimEndpoint::with_plant(&self.world, plant);
        let owner = self.register(endpoint.client());
        self.begin_agent(endpoint.client(), owner);
        let keeper = self.keeper(endpoint, owner);
        let world = SharedWorld::clone(&self.world);
        let clock = move || world.borrow().now();
        let retrainer = policy.map(|policy| Retrainer::new(policy, clock));
        let ring_assigner = self.takes_calls.get().then(|| self.ring_assigner());
        let stop = AtomicBool::new(false);
        // Another agent may have died before this one started.
        let (mut is_due, mut failed) = (retrainer.is_some(), None);
        // Value blocks that wait are swept again, without blocking other work.
        let mut is_left = false;
        let mut draining = Draining::default();
        while !is_over() {
            let tick = if retrainer.is_some() {
                RETRAINER_TICK
            } else {
                AGENT_TICK
            };
            sleep(&self.world, tick).await;
            if let Err(error) = draining.tick(&keeper).await {
                failed = Some(error.into());
            }
            self.stop_left();
            if let Err(error) = keeper.reclaim().await {
                failed = Some(error.into());
            }
            if let Some(ring_assigner) = &ring_assigner
                && let Err(error) = ring_assigner.tick(&keeper).await
            {
                failed = Some(error.into());
            }
            is_due |= self.has_fenced_holders();
            let had_deaths = is_due;
            if is_due || is_left {
                // A sweep that fails, or is no longer needed, is tried again.
                match keeper.sweep().await {
                    Ok(report) => {
                        is_due = report.given_up_count > 0;
                        is_left = report.waiting_count > 0;
                        if had_deaths {
                            retrainer.iter().for_each(Retrainer::rescan);
                            ring_assigner.iter().for_each(RingAssigner::rescan);
                        }
                    }
                    Err(error) => failed = Some(error),
                }
            }
            if had_deaths {
                continue;
            }
            if let Some(retrainer) = &retrainer {
                if let Err(error) = retrainer.tick(&keeper, &stop).await {
                    failed = Some(error);
                }
                is_due |= retrainer.take_wanted_sweep();
                is_left |= retrainer.take_left_blocks();
            }
        }
        if is_due || is_left {
            // The agent may hold what it would have swept.
            self.holding_count.update(|count| count + 1);
        }
        self.fence(keeper.endpoint.client(), owner);
        failed
    }

    /// Enables calls of sessions from now on.
    pub fn take_calls(&self) {
        self.takes_calls.set(true);
    }

    /// Returns whether sessions can make calls.
    pub fn takes_calls(&self) -> bool {
        self.takes_calls.get()
    }

    /// Returns the assignment of rings to sessions.
    pub fn ring_registry(&self) -> Arc<RingRegistry> {
        Arc::clone(&self.ring_registry)
    }

    /// Returns the tables that the node holds in memory of its own.
    pub fn server(&self) -> &TableServer {
        &self.server
    }

    fn ring_assigner(&self) -> RingAssigner {
        RingAssigner::new(self.ring_registry(), Arc::clone(&self.server))
    }

    /// Executes the due work for calls while virtual time stands still: assigns rings, and answers
    /// requests.
    ///
    /// # Panics
    /// The memory does not exist, which it does.
    pub fn answer_still(&self) {
        let keeper = self.keeper(StillEndpoint::new(&self.world), OwnerWord::FREE);
        self.tick_ring_assigner(&keeper);
        let worker = still_worker(self, None);
        let mut dispatcher = self.still_dispatcher.borrow_mut();
        let mut pile = TaskBatch {
            tasks: Vec::new(),
            count_max: usize::MAX,
        };
        let mut batch = Batch::new();
        let windows = self.windows(keeper.endpoint.client(), true);
        let turned = dispatcher.turn(&keeper.endpoint, &windows, &mut batch, &mut pile);
        block_on(turned, || 0);
        for task in pile.tasks {
            let answered = task.answer(
                &keeper.endpoint,
                &self.layout,
                &windows,
                &mut batch,
                &self.server,
                &worker,
            );
            block_on(answered, || 0).expect("inside the memory");
        }
        block_on(worker.close(), || 0).expect("inside the memory");
    }

    /// Reclaims the rings of all ended sessions, and those left behind by dead agents, while
    /// virtual time stands still. Returns false if some of them can never be reclaimed.
    ///
    /// # Panics
    /// The memory does not exist, which it does.
    pub fn close_ring_registry(&self, keeper: &MemoryMaintainer<StillEndpoint>) -> bool {
        self.tick_ring_assigner(keeper);
        let mut dispatcher = self.still_dispatcher.borrow_mut();
        *dispatcher = Dispatcher::new(self.ring_registry());
        self.tick_ring_assigner(keeper);
        self.ring_registry.is_empty()
    }

    fn tick_ring_assigner(&self, keeper: &MemoryMaintainer<StillEndpoint>) {
        block_on(self.ring_assigner().tick(keeper), || 0).expect("inside the memory");
    }

    fn begin_agent(&self, client: ClientId, owner: OwnerWord) {
        self.agent.set(Some((client, owner)));
        let leaves_from = self.layout.chunk_start(ChunkIndex(0)).word_at(0).index();
        let mut world = self.world.borrow_mut();
        world.watch_locks(client, owner, leaves_from);
    }

    /// Returns the agent's client, if there is an agent.
    pub fn agent_client(&self) -> Option<ClientId> {
        self.agent.get().map(|(client, _)| client)
    }

    /// Records that a worker or trainer has a session.
    pub fn open_worker_session(&self, client: ClientId) {
        self.worker_session.borrow_mut().push(client);
    }

    /// Records that a worker or trainer has no session anymore.
    pub fn end_worker_session(&self, client: ClientId) {
        self.worker_session
            .borrow_mut()
            .retain(|worker_session| *worker_session != client);
    }

    /// Returns the client of a worker or trainer with a session; numbers wrap around.
    pub fn worker_client(&self, number: usize) -> Option<ClientId> {
        let worker_session = self.worker_session.borrow();
        let index = number.checked_rem(worker_session.len())?;
        Some(worker_session[index])
    }

    /// Fences the agent, which has stopped at any point: none of its verbs takes effect anymore.
    pub fn fence_agent(&self) {
        if let Some((client, owner)) = self.agent.take() {
            self.fence(client, owner);
        }
    }

    /// Returns whether a session has been fenced that may hold something.
    fn has_fenced_holders(&self) -> bool {
        let mut has_died = false;
        while let Ok(event) = self.events.try_recv() {
            has_died |= matches!(event, AgentEvent::Fenced(_));
        }
        has_died
    }
}
