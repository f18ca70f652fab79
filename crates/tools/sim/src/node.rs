//! The memory node of a run: the real session table and the real sweep, in the simulated world.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};

use farleaf_executor::block_on;
use farleaf_fabric::{Batch, Endpoint, Windows};
use farleaf_index::load::{LoadPlan, create_table};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::{LeafAccess, LeafGeometry};
use farleaf_node::calls::dispatcher::Pile;
use farleaf_node::calls::{Desk, Dispatcher, Receptionist, TableServer};
use farleaf_node::members::Draining;
use farleaf_node::retrain::{RetrainPolicy, Retrainer};
use farleaf_node::sessions::{AgentEvent, Sessions};
use farleaf_node::sweep::Keeper;
use farleaf_region::catalog::{CatalogEntry, EntryState, TableKind, TableRecord, live_word};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::members::{Member, MemberState, write_member};
use farleaf_region::session::{HEARTBEAT_DRAINED, heartbeat_addr, is_fenced, life_of};
use farleaf_region::{PoolLayout, RegionLayout, Superblock};
use farleaf_types::{NodeId, OwnerWord, RemoteAddr, SequenceNumber, TableId};

use crate::fabric::endpoint::{SimEndpoint, SimWindows, StillEndpoint};
use crate::fabric::executor::sleep;
use crate::fabric::world::{ClientId, Nanos, NodeLife, SharedWorld};
use crate::plant::Plant;
use crate::workers::still_worker;

/// Of each node: enough for every table of words that a run makes.
pub const REGION_SIZE_BYTES: u64 = 4 << 20;
/// Name of the table that a run begins with.
pub const TABLE_NAME: &str = "simulated";
/// Error bound of tables' models.
const EPSILON_KEYS: f64 = 16.0;
/// Time between two looks of the agent, in virtual time.
const AGENT_TICK: Nanos = 20_000;
/// The same of one that retrains.
pub const RETRAINER_TICK: Nanos = 4_000;

/// The node.
pub struct Node {
    /// Where everything happens.
    pub world: SharedWorld,
    /// Its region's parts.
    pub layout: PoolLayout,
    sessions: RefCell<Sessions<StillEndpoint>>,
    /// Whose sessions there have been, by their words.
    clients: RefCell<BTreeMap<u64, ClientId>>,
    events: Receiver<AgentEvent>,
    /// As which the agent works.
    agent: Cell<Option<(ClientId, OwnerWord)>>,
    /// As which workers and trainers work in the run, the longest there first.
    hired: RefCell<Vec<ClientId>>,
    desk: Arc<Desk>,
    server: Arc<TableServer>,
    /// Sessions that have ended and not said that they hold nothing; of agents, those for which a
    /// sweep was due.
    holding_count: Cell<u64>,
    /// Whether sessions can make calls.
    takes_calls: Cell<bool>,
    /// What answers calls while the world stands still.
    still_dispatcher: RefCell<Dispatcher>,
}

/// A fresh region.
fn make_region(still: &StillEndpoint, node: NodeId) -> RegionLayout {
    let word_count = still.region_word_count(node);
    let size_bytes = word_count.expect("there is such a node") * 8;
    let superblock = Superblock::new(size_bytes, 1).expect("large enough");
    let mut batch = Batch::new();
    let place = RegionLayout::superblock_addr(node);
    batch.write(place, &superblock.encode());
    block_on(still.execute(&mut batch), || 0).expect("inside the region");
    RegionLayout { node, superblock }
}

impl core::fmt::Debug for Node {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Node").finish_non_exhaustive()
    }
}

impl Node {
    /// A node with a fresh region, and further ones beside it if the world has more than one.
    ///
    /// # Panics
    /// The region is too small, which it is not.
    pub fn new(world: &SharedWorld) -> Rc<Self> {
        let still = StillEndpoint::new(world);
        let layout = PoolLayout::from(make_region(&still, NodeId(0)));
        let node_count = world.borrow().node_count();
        for number in 1..node_count {
            let member = Member {
                layout: make_region(&still, NodeId(number)),
                address: format!("simulated:{number}"),
            };
            let written = write_member(&still, &layout, &member, MemberState::Active);
            block_on(written, || 0).expect("inside the region");
            layout.members().learn(member, MemberState::Active);
        }
        let (sender, events) = channel();
        let home = *layout.home();
        let home_word_count = still.region_word_count(home.node).expect("it is there");
        let desk = Arc::<Desk>::default();
        Rc::new(Self {
            world: SharedWorld::clone(world),
            layout,
            sessions: RefCell::new(Sessions::new(still, home, sender)),
            clients: RefCell::default(),
            events,
            agent: Cell::default(),
            hired: RefCell::default(),
            still_dispatcher: RefCell::new(Dispatcher::new(Arc::clone(&desk))),
            desk,
            server: Arc::new(TableServer::new(home_word_count * 8)),
            holding_count: Cell::default(),
            takes_calls: Cell::new(false),
        })
    }

    /// From now on whoever needs memory gets what was given back before, as in a pool that has been
    /// full: what is used too early is somebody else's.
    ///
    /// # Panics
    /// The region has no such word, which it has.
    pub fn hand_out_all(&self) {
        let still = StillEndpoint::new(&self.world);
        let mut batch = Batch::new();
        for region in self.layout.regions() {
            batch.write_word(region.alloc_num(), region.superblock.chunk_count);
        }
        block_on(still.execute(&mut batch), || 0).expect("inside the region");
    }

    /// What a process that opens the pool now knows of it. Each learns by itself what becomes of
    /// the nodes.
    ///
    /// # Panics
    /// The region has no table of nodes, which it has.
    pub fn open(&self) -> PoolLayout {
        let layout = PoolLayout::from(*self.layout.home());
        if self.world.borrow().node_count() > 1 {
            let still = StillEndpoint::new(&self.world);
            let refreshed = layout.members().refresh(&still, &layout);
            block_on(refreshed, || 0).expect("inside the region");
        }
        layout
    }

    /// U5, the home's part: the node is to be left. Not if it is lost or draining already.
    pub async fn drain(&self, node: NodeId) {
        let members = self.layout.members();
        let Some(member) = members.get(node).cloned() else {
            return;
        };
        if members.state(node) == Some(MemberState::Active) {
            self.set_state(member, MemberState::Draining).await;
        }
    }

    /// U4: the node is gone, and the home says so at once. False: there is no such node, or nothing
    /// is on it any more.
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

    /// U3: the entry, then the home's own knowledge, then a number that processes see.
    async fn set_state(&self, member: Member, state: MemberState) {
        let still = StillEndpoint::new(&self.world);
        let written = write_member(&still, &self.layout, &member, state).await;
        written.expect("the home is there");
        self.layout.members().learn(member, state);
        let mut batch = Batch::new();
        batch.fetch_add(self.layout.sequence(), 1);
        still.execute(&mut batch).await.expect("the home is there");
    }

    /// Whether a node is to be left, and has not been.
    pub fn is_draining(&self) -> bool {
        let mut all = self.layout.members().all();
        all.any(|(_, state)| state == MemberState::Draining)
    }

    /// V5: nodes that have left are stopped.
    pub fn stop_left(&self) {
        for (member, state) in self.layout.members().all() {
            let node = member.layout.node;
            let mut world = self.world.borrow_mut();
            if state == MemberState::Left && world.node_life(node) == NodeLife::Here {
                world.stop_member(node);
            }
        }
    }

    /// A session for a client.
    ///
    /// # Panics
    /// There are more sessions than a region has, which no run opens.
    pub fn register(&self, client: ClientId) -> OwnerWord {
        let opened = self.sessions.borrow_mut().open(client.0);
        let owner = opened.expect("a run opens few sessions");
        self.clients.borrow_mut().insert(owner.word(), client);
        owner
    }

    /// What writes into windows of sessions, in the name of somebody on the node, for whom the
    /// world may stand still.
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

    /// F6 and S2: lets no verb of the client take effect any more, and says so.
    pub fn fence(&self, client: ClientId, owner: OwnerWord) {
        self.world.borrow_mut().fence(client);
        let is_agent = self.agent.get().is_some_and(|(_, agent)| agent == owner);
        if !is_agent && self.is_holding(owner) {
            self.holding_count.update(|count| count + 1);
        }
        self.sessions.borrow_mut().close(owner);
    }

    /// Whether a session has not been fenced yet, and has not said that it holds nothing any more.
    fn is_holding(&self, owner: OwnerWord) -> bool {
        let life = life_of(&self.layout, owner).zip(owner.holder());
        let Some(((place, incarnation), (session, _))) = life else {
            return false;
        };
        let word = |place| self.world.borrow().words(place, 1)[0];
        let heartbeat = word(heartbeat_addr(&self.layout, session));
        !is_fenced(incarnation, word(place)) && heartbeat != HEARTBEAT_DRAINED
    }

    /// How many sessions, but for agents', have ended without saying that they hold nothing.
    pub fn holding_count(&self) -> u64 {
        self.holding_count.get()
    }

    /// Makes a table while the world stands still.
    ///
    /// # Errors
    /// The region is full.
    pub fn create_table(
        &self,
        (kind, entry_count_max): (LayerKind, u32),
        slots: u64,
        fill_percent: u8,
    ) -> Result<CatalogEntry, IndexError> {
        let endpoint = StillEndpoint::new(&self.world);
        let owner = self.register(ClientId(u32::MAX));
        let mut batch = Batch::new();
        // As a session would: the numbers of tables and of loads come from one counter.
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

    /// The catalog's entry of the table, as it is now; `None` when the node has lost it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn entry(&self) -> Result<Option<CatalogEntry>, IndexError> {
        let keeper = self.keeper(StillEndpoint::new(&self.world), OwnerWord::FREE);
        let entries = block_on(keeper.catalog(), || 0)?;
        Ok(entries.into_iter().next())
    }

    /// The node's own way into its region.
    pub fn keeper<E: Endpoint>(&self, endpoint: E, owner: OwnerWord) -> Keeper<E> {
        Keeper {
            blocks: farleaf_node::sweep::BlockSweepers::default(),
            endpoint,
            layout: self.layout.clone(),
            owner,
        }
    }

    /// The agent: frees what was dropped, and sweeps when it hears of a death, until `is_over`. Its
    /// verbs take time and are torn like everybody's. Returns the last failure, if there was one.
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
        let receptionist = self.takes_calls.get().then(|| self.receptionist());
        let stop = AtomicBool::new(false);
        // T5: another agent may have died before this one.
        let (mut is_due, mut failed) = (retrainer.is_some(), None);
        // Value blocks that wait are swept again, and hold up nobody.
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
            if let Some(receptionist) = &receptionist
                && let Err(error) = receptionist.tick(&keeper).await
            {
                failed = Some(error.into());
            }
            is_due |= self.hears_of_deaths();
            let had_deaths = is_due;
            if is_due || is_left {
                // A sweep that fails, or waits for nobody any longer (W6), is tried again.
                match keeper.sweep().await {
                    Ok(report) => {
                        is_due = report.given_up_count > 0;
                        is_left = report.waiting_count > 0;
                        if had_deaths {
                            retrainer.iter().for_each(Retrainer::look_again);
                            receptionist.iter().for_each(Receptionist::look_again);
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
            // It may hold what it would have swept.
            self.holding_count.update(|count| count + 1);
        }
        self.fence(keeper.endpoint.client(), owner);
        failed
    }

    /// From now on sessions can make calls.
    pub fn take_calls(&self) {
        self.takes_calls.set(true);
    }

    /// Whether they can.
    pub fn takes_calls(&self) -> bool {
        self.takes_calls.get()
    }

    /// Which sessions have rings.
    pub fn desk(&self) -> Arc<Desk> {
        Arc::clone(&self.desk)
    }

    /// The tables that the node holds in memory of its own.
    pub fn server(&self) -> &TableServer {
        &self.server
    }

    fn receptionist(&self) -> Receptionist {
        Receptionist::new(self.desk(), Arc::clone(&self.server))
    }

    /// Does what is due for calls while the world stands still: sessions get rings, and requests
    /// are answered.
    ///
    /// # Panics
    /// The region is not there, which it is.
    pub fn answer_still(&self) {
        let keeper = self.keeper(StillEndpoint::new(&self.world), OwnerWord::FREE);
        self.tend_desk(&keeper);
        let worker = still_worker(self, None);
        let mut dispatcher = self.still_dispatcher.borrow_mut();
        let mut pile = Pile {
            tasks: Vec::new(),
            count_max: usize::MAX,
        };
        let mut batch = Batch::new();
        let windows = self.windows(keeper.endpoint.client(), true);
        let turned = dispatcher.turn((&keeper.endpoint, &windows), &mut batch, &mut pile);
        block_on(turned, || 0);
        for task in pile.tasks {
            let way = (&keeper.endpoint, &self.layout, &windows);
            let answered = task.answer(way, &mut batch, (&self.server, &worker));
            block_on(answered, || 0).expect("inside the region");
        }
        block_on(worker.close(), || 0).expect("inside the region");
    }

    /// Takes the rings of all sessions that have ended back, and those that agents left which died,
    /// while the world stands still. False: somebody holds some of them for ever (J2).
    ///
    /// # Panics
    /// The region is not there, which it is.
    pub fn close_desk(&self, keeper: &Keeper<StillEndpoint>) -> bool {
        self.tend_desk(keeper);
        let mut dispatcher = self.still_dispatcher.borrow_mut();
        *dispatcher = Dispatcher::new(self.desk());
        self.tend_desk(keeper);
        self.desk.is_empty()
    }

    fn tend_desk(&self, keeper: &Keeper<StillEndpoint>) {
        block_on(self.receptionist().tick(keeper), || 0).expect("inside the region");
    }

    fn begin_agent(&self, client: ClientId, owner: OwnerWord) {
        self.agent.set(Some((client, owner)));
        let leaves_from = self.layout.chunk_start(ChunkIndex(0)).word_at(0).index();
        let mut world = self.world.borrow_mut();
        world.watch_locks(client, owner, leaves_from);
    }

    /// As which the agent works, if there is one.
    pub fn agent_client(&self) -> Option<ClientId> {
        self.agent.get().map(|(client, _)| client)
    }

    /// A worker or trainer has a session.
    pub fn hire(&self, client: ClientId) {
        self.hired.borrow_mut().push(client);
    }

    /// It has none any more.
    pub fn dismiss(&self, client: ClientId) {
        self.hired.borrow_mut().retain(|hired| *hired != client);
    }

    /// As which one of those works that have a session, counted around.
    pub fn worker_client(&self, number: usize) -> Option<ClientId> {
        let hired = self.hired.borrow();
        let index = number.checked_rem(hired.len())?;
        Some(hired[index])
    }

    /// The agent has stopped, wherever it was: no verb of it takes effect any more.
    pub fn fence_agent(&self) {
        if let Some((client, owner)) = self.agent.take() {
            self.fence(client, owner);
        }
    }

    /// Whether a session has been fenced that may hold something.
    fn hears_of_deaths(&self) -> bool {
        let mut has_died = false;
        while let Ok(event) = self.events.try_recv() {
            has_died |= matches!(event, AgentEvent::Fenced(_));
        }
        has_died
    }
}
