//! A cluster in virtual time, on one thread. The seed determines the schedule and the faults.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_base::clock::ManualClock;
use farleaf_cluster::ClusterError;
use farleaf_cluster::admin;
use farleaf_cluster::agent::{Agent, AgentOptions};
use farleaf_cluster::client::{Lookup, MapCache};
use farleaf_cluster::coordinator::{Bound, Embedded, SeenStart};
use farleaf_cluster::ids::{ClusterId, ServerId, StartNonce, TableId};
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::master::Master;
use farleaf_cluster::omission::{Check, Omission};
use farleaf_cluster::plan::PlanOptions;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::starts;

use super::check::Checker;
use super::host::SimHost;
use super::link::{Link, LinkFaults, Shared, Time};
use super::sim_servers::{Answer, SimServer, SimServers};
use farleaf_base::random::Random;

pub(crate) const SERVER_COUNT: usize = 5;
pub(super) const MASTER_COUNT: usize = 2;
const CLIENT_COUNT: usize = 2;
pub(crate) const REPLICA_COUNT: usize = 3;
/// Upper bound of keys, which are one byte.
pub(crate) const KEY_END: u64 = 16;
/// Length of a lease.
const TIME_TO_LIVE: Duration = Duration::from_secs(1);
/// Duration of the faults; afterwards everything must recover within more than the same time.
pub(super) const FAULTS_UNTIL: Duration = Duration::from_secs(9);
const CALM_UNTIL: Duration = Duration::from_secs(24);

/// One run in so many has disks that get full.
const FILLS_EACH: u64 = 3;

/// One run in so many has replacements of the coordinator.
const REPLACES_EACH: u64 = 5;

/// Planted bug of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    Nothing,
    /// A check of the protocol is left out.
    Omitted(Check),
    /// Clocks may differ, but servers use no margin.
    NoMargin,
    /// Clocks are worse than configured.
    WildClocks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Agent(usize),
    Master(usize),
    Pump(usize),
    Client(usize),
    Fault,
    Restart(usize),
    /// Disks get full.
    Fill,
    /// A server's disk has space again.
    SpaceState(usize),
    /// Another coordinator replaces the cluster's.
    Replace,
    /// The cluster's own coordinator answers again.
    PutBack,
}

pub(super) struct Server {
    pub(super) id: ServerId,
    clock: ManualClock,
    pub(super) agent: Option<Agent<Link, SimHost>>,
    /// Newest state of the coordinator that it has seen.
    pub(super) seen: Option<SeenStart>,
    pub(super) paused_until: Duration,
}

struct Client {
    cache: MapCache<Bound<Link>>,
    routes_lost: u64,
}

impl Server {
    fn new(index: usize, clock: &ManualClock) -> Self {
        Self {
            id: ServerId(index as u64 + 1),
            clock: clock.clone(),
            agent: None,
            seen: None,
            paused_until: Duration::ZERO,
        }
    }
}

impl Client {
    fn new(link: Bound<Link>) -> Self {
        Self {
            cache: MapCache::new(link),
            routes_lost: 0,
        }
    }
}

fn omission_of(plant: Plant) -> Omission {
    match plant {
        Plant::Omitted(check) => Omission::of(check),
        Plant::Nothing | Plant::NoMargin | Plant::WildClocks => Omission::NONE,
    }
}

/// A cluster.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(super) random: Random,
    /// Random numbers for full disks.
    pub(super) filling: Random,
    /// Random numbers for replacements of the coordinator.
    pub(super) replacing: Random,
    /// Time until which the coordinator is unavailable.
    pub(super) away_until: Duration,
    pub(super) shared: Arc<Mutex<Shared>>,
    pub(crate) embedded: Embedded,
    pub(crate) sim_servers: Arc<Mutex<SimServers>>,
    cluster: ClusterId,
    table: TableId,
    pub(super) servers: Vec<Server>,
    pub(super) masters: Vec<(ManualClock, Option<Master<Link>>, Duration)>,
    clients: Vec<Client>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    event_count: u64,
    next_value: u64,
    pub(crate) checker: Checker,
    plant: Plant,
    all_durable: bool,
    pub(crate) steps: BTreeMap<String, u64>,
    /// Number of copies that were damaged while all servers were down.
    pub(crate) damage_count: u64,
    /// A copy of the coordinator's directory.
    pub(super) copied: Option<Embedded>,
    /// Start of the coordinator that answers in place of the cluster's.
    pub(super) replaced_by: Option<StartNonce>,
    /// Number of replacements of the coordinator.
    pub(crate) replaced_count: u64,
}

impl World {
    pub(crate) fn new(seed: u64, plant: Plant) -> Self {
        let mut random = Random::new(seed);
        let mut time = Time::new();
        let rates: Vec<_> = (0..=SERVER_COUNT + MASTER_COUNT)
            .map(|_| match plant {
                Plant::WildClocks => 700 + random.below(700),
                _ => 980 + random.below(41),
            })
            .collect();
        let clock = time.clock(rates[0]);
        let embedded = Embedded::in_memory(Arc::new(clock));
        let clocks: Vec<_> = rates[1..].iter().map(|rate| time.clock(*rate)).collect();
        let cluster = admin::create_cluster(&embedded).expect("it is empty");
        starts::begin_start(&embedded).expect("nobody else starts it");
        let split_keys = [Key(vec![5]), Key(vec![11])];
        let split_keys = &split_keys[..random.index(3)];
        let table = admin::create_table(&embedded, "t", REPLICA_COUNT, split_keys)
            .expect("it can be made")
            .table;
        let actor_count = SERVER_COUNT + MASTER_COUNT + CLIENT_COUNT;
        let shared = Arc::new(Mutex::new(Shared {
            time,
            random: Random::new(seed ^ 0x5EED),
            embedded: embedded.clone(),
            replaced_count: 0,
            link_faults: vec![LinkFaults::default(); actor_count],
            foreign_writes: Vec::new(),
        }));
        let link = |actor| Link {
            shared: shared.clone(),
            actor,
        };
        let servers = clocks[..SERVER_COUNT].iter().enumerate();
        let servers = servers.map(|(index, clock)| Server::new(index, clock));
        let masters = clocks[SERVER_COUNT..].iter().cloned();
        let clients = (0..CLIENT_COUNT).map(|index| {
            let link = link(SERVER_COUNT + MASTER_COUNT + index);
            Client::new(Bound::to(link, cluster).leaving_out(omission_of(plant)))
        });
        let mut world = Self {
            seed,
            servers: servers.collect(),
            masters: masters.map(|clock| (clock, None, Duration::ZERO)).collect(),
            clients: clients.collect(),
            checker: Checker::new(&embedded, table),
            all_durable: random.one_in(2),
            random,
            filling: Random::new(seed ^ 0xF111),
            replacing: Random::new(seed ^ 0x0DD),
            away_until: Duration::ZERO,
            shared,
            embedded,
            sim_servers: Arc::default(),
            cluster,
            table,
            events: BinaryHeap::new(),
            event_count: 0,
            next_value: 1,
            plant,
            steps: BTreeMap::new(),
            damage_count: 0,
            copied: None,
            replaced_by: None,
            replaced_count: 0,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let is_wild = self.plant == Plant::WildClocks;
        self.sim_servers
            .lock()
            .expect("one thread")
            .reads_may_be_old = is_wild;
        for index in 0..SERVER_COUNT {
            self.sim_servers
                .lock()
                .expect("one thread")
                .servers
                .insert(self.servers[index].id, SimServer::default());
            self.start_server(index);
            self.at(3 + index as u64, Event::Agent(index));
            self.at(9 + index as u64, Event::Pump(index));
        }
        for index in 0..MASTER_COUNT {
            self.start_master(index);
            self.at(1 + index as u64 * 20, Event::Master(index));
        }
        for index in 0..CLIENT_COUNT {
            self.at(400 + index as u64, Event::Client(index));
        }
        self.at(900, Event::Fault);
        if self.seed.is_multiple_of(REPLACES_EACH) {
            self.at(1500, Event::Replace);
        }
        if self.seed.is_multiple_of(FILLS_EACH) {
            self.at(1000, Event::Fill);
        }
    }

    pub(crate) fn now(&self) -> Duration {
        self.shared.lock().expect("one thread").time.now()
    }

    pub(super) fn at(&mut self, in_milliseconds: u64, event: Event) {
        self.event_count += 1;
        let at = self.now() + Duration::from_millis(in_milliseconds);
        self.events.push(Reverse((at, self.event_count, event)));
    }

    fn terms(&self) -> LeaseTerms {
        LeaseTerms {
            time_to_live: TIME_TO_LIVE,
            clock_error_per_mille: if self.plant == Plant::NoMargin { 0 } else { 20 },
            margin: Duration::ZERO,
        }
    }

    fn omission(&self) -> Omission {
        omission_of(self.plant)
    }

    /// Returns an actor's handle. Servers keep the state that they saw of the coordinator on their
    /// disks.
    fn bound(&self, actor: usize) -> Bound<Link> {
        let link = Link {
            shared: self.shared.clone(),
            actor,
        };
        let bound = Bound::to(link, self.cluster).leaving_out(self.omission());
        let server = self.servers.get(actor);
        bound.having_seen(server.and_then(|it| it.seen))
    }

    pub(super) fn start_server(&mut self, index: usize) {
        let server = &self.servers[index];
        let options = AgentOptions {
            terms: self.terms(),
            load_interval: Duration::from_secs(1),
            omission: self.omission(),
            ..AgentOptions::new(self.cluster, server.id, "simulated")
        };
        let host = SimHost {
            server: server.id,
            sim_servers: self.sim_servers.clone(),
        };
        let clock = Arc::new(server.clock.clone());
        let agent = Agent::new(self.bound(index), clock, options, host);
        let id = server.id;
        self.servers[index].agent = Some(agent);
        self.servers[index].paused_until = Duration::ZERO;
        self.sim_servers
            .lock()
            .expect("one thread")
            .server(id)
            .is_up = true;
    }

    pub(super) fn crash_server(&mut self, index: usize) {
        let id = self.servers[index].id;
        if let Some(agent) = self.servers[index].agent.take() {
            self.servers[index].seen = agent.seen();
            let mut sim_servers = self.sim_servers.lock().expect("one thread");
            sim_servers.server(id).is_up = false;
            sim_servers.server(id).close_all(true);
        }
    }

    pub(super) fn start_master(&mut self, index: usize) {
        let options = PlanOptions {
            omission: self.omission(),
            imbalance_bytes_min: 100_000_000,
            // A few operations are many in this test.
            imbalance_operations_min: 0,
            ..PlanOptions::default()
        };
        let clock = Arc::new(self.masters[index].0.clone());
        let actor = SERVER_COUNT + index;
        let address = format!("actor {actor}");
        let link = self.bound(actor);
        let master = Master::new(link, clock, self.terms(), &address, options);
        self.masters[index].1 = Some(master);
    }

    /// Runs the cluster to the end; returns a description if a check failed.
    pub(crate) fn run(mut self) -> Result<Self, String> {
        while self.now() < CALM_UNTIL {
            let Some(Reverse((at, _, event))) = self.events.pop() else {
                break;
            };
            self.advance_to(at);
            self.act(event);
            self.judge()
                .map_err(|what| format!("seed {}: {what}", self.seed))?;
            if self.now() > FAULTS_UNTIL + TIME_TO_LIVE && self.is_well() {
                break;
            }
        }
        let end = self
            .checker
            .judge_end(&self.sim_servers.lock().expect("one thread"));
        end.map_err(|what| format!("seed {}: in the end, {what}", self.seed))?;
        Ok(self)
    }

    fn is_well(&self) -> bool {
        let sim_servers = self.sim_servers.lock().expect("one thread");
        self.checker.judge_end(&sim_servers).is_ok()
    }

    fn advance_to(&mut self, at: Duration) {
        let mut shared = self.shared.lock().expect("one thread");
        let by = at.saturating_sub(shared.time.now());
        shared.time.advance(by);
    }

    fn judge(&mut self) -> Result<(), String> {
        let mut sim_servers = self.sim_servers.lock().expect("one thread");
        if let Some(found) = sim_servers.violations.pop() {
            return Err(found);
        }
        if let Some(found) = self.shared.lock().expect("one thread").foreign_writes.pop() {
            return Err(found);
        }
        self.checker.judge(&sim_servers)
    }

    fn act(&mut self, event: Event) {
        if super::traces()
            && !matches!(
                event,
                Event::Agent(_) | Event::Master(_) | Event::Pump(_) | Event::Client(_)
            )
        {
            eprintln!("{:?} {event:?}", self.now());
        }
        match event {
            Event::Agent(index) => {
                let is_paused = self.now() < self.servers[index].paused_until;
                if let (false, Some(agent)) = (is_paused, &mut self.servers[index].agent) {
                    // Failures of the connection are intended; no other server has the same number.
                    let ticked = agent.tick(Duration::ZERO);
                    if let Err(error @ ClusterError::NumberTaken { .. }) = ticked {
                        let mut sim_servers = self.sim_servers.lock().expect("one thread");
                        sim_servers.violations.push(error.to_string());
                    }
                }
                let wait = 20 + self.random.below(120);
                self.at(wait, event);
            }
            Event::Master(index) => {
                let is_paused = self.now() < self.masters[index].2;
                if !is_paused {
                    self.master(index);
                }
                let wait = 20 + self.random.below(80);
                self.at(wait, event);
            }
            Event::Pump(index) => {
                self.pump(index);
                let wait = 30 + self.random.below(100);
                self.at(wait, event);
            }
            Event::Client(index) => {
                self.client(index);
                let wait = 10 + self.random.below(60);
                self.at(wait, event);
            }
            Event::Fault => self.fault(),
            Event::Restart(index) if index < SERVER_COUNT => {
                if self.servers[index].agent.is_none() {
                    self.start_server(index);
                }
            }
            Event::Fill => self.fill_up(),
            Event::Replace => self.replace_coordinator(),
            Event::PutBack => self.put_coordinator_back(),
            Event::SpaceState(index) => {
                let id = self.servers[index].id;
                self.sim_servers
                    .lock()
                    .expect("one thread")
                    .server(id)
                    .make_space();
            }
            Event::Restart(index) => {
                if self.masters[index - SERVER_COUNT].1.is_none() {
                    self.start_master(index - SERVER_COUNT);
                }
            }
        }
    }

    fn master(&mut self, index: usize) {
        let Some(master) = &mut self.masters[index].1 else {
            return;
        };
        let Ok(tick) = master.tick(Duration::ZERO) else {
            return; // Failures of the connection are intended.
        };
        for step in tick.done {
            let name = format!("{:?}", step.action);
            let name = name.split('(').next().unwrap_or_default().to_owned();
            *self.steps.entry(name).or_default() += 1;
        }
    }

    fn pump(&mut self, index: usize) {
        if self.now() < self.servers[index].paused_until {
            return;
        }
        let id = self.servers[index].id;
        let sync = self.all_durable || self.random.one_in(4);
        let mut sim_servers = self.sim_servers.lock().expect("one thread");
        let regions: Vec<_> = sim_servers.servers[&id].open.keys().copied().collect();
        for region in regions {
            sim_servers.pump(id, region, sync);
        }
    }

    fn client(&mut self, index: usize) {
        let key = self.random.below(KEY_END) as u8;
        let client = &mut self.clients[index];
        let Ok(Lookup::Found(route)) = client.cache.lookup(self.table, &[key]) else {
            return;
        };
        let server = route.server.0 as usize - 1;
        if self.now() < self.servers[server].paused_until {
            // Some requests wait until the server continues, before its agent ticks.
            return self.clients[index].cache.lost(&route);
        }
        let write = self.random.one_in(2).then(|| {
            self.next_value += 1;
            let is_durable = self.all_durable || self.random.one_in(2);
            (self.next_value, is_durable)
        });
        let floor = self.checker.floor(key);
        let answer = self.sim_servers.lock().expect("one thread").execute(
            route.server,
            route.region,
            route.epoch,
            key,
            write,
        );
        if super::traces() {
            eprintln!("{:?} {key} {write:?} by {route:?}: {answer:?}", self.now());
        }
        let client = &mut self.clients[index];
        match (answer, write) {
            (Answer::Stale(stale), _) => {
                let _ = client.cache.stale(&route, stale);
            }
            (Answer::Nothing, _) => {
                client.routes_lost += 1;
                client.cache.lost(&route);
            }
            (Answer::Written, Some((value, is_durable))) => {
                self.checker.acknowledged(key, value, is_durable);
            }
            (Answer::Read(value), _) => self.checker.read(key, value, floor),
            (Answer::Written, None) => unreachable!("a read is not written"),
        }
    }
}
