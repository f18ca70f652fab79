//! Behavior of a cluster when one thing happens at a time.
//!
//! | module | events |
//! |---|---|
//! | `tables` | tables are created, looked up, dropped |
//! | `failures` | servers and masters are lost, and come back |
//! | `outages` | all servers of a region are lost, and some copies with them |
//! | `changes` | drains, splits, moves, balance |
//! | `refusals` | servers refuse the coordinator's records |
//! | `space` | disks get full, and have space again |

mod changes;
mod failures;
mod outages;
mod refusals;
mod space;
mod tables;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_base::clock::ManualClock;
use farleaf_cluster::admin;
use farleaf_cluster::agent::{Agent, AgentOptions};
use farleaf_cluster::client::{Lookup, MapCache, Route};
use farleaf_cluster::coordinator::{Bound, Embedded};
use farleaf_cluster::ids::{ClusterId, ServerId, TableId};
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::master::Master;
use farleaf_cluster::plan::{Action, PlanOptions};
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{AdminReply, AdminRequestKind, RegionRecord};

use crate::sim::host::SimHost;
use crate::sim::sim_servers::{Answer, SimServer, SimServers};

type SimAgent = Agent<Embedded, SimHost>;

/// A cluster in which every actor acts every 50 ms.
struct Scenario {
    clock: ManualClock,
    coordinator: Embedded,
    cluster: ClusterId,
    sim_servers: Arc<Mutex<SimServers>>,
    agents: Vec<(ServerId, Option<SimAgent>)>,
    master: Master<Embedded>,
}

fn terms() -> LeaseTerms {
    LeaseTerms {
        time_to_live: Duration::from_secs(1),
        ..LeaseTerms::default()
    }
}

fn master(coordinator: &Embedded, clock: &ManualClock, address: &str) -> Master<Embedded> {
    let options = PlanOptions::default();
    Master::new(
        Bound::to_first_seen(coordinator.clone()),
        Arc::new(clock.clone()),
        terms(),
        address,
        options,
    )
}

impl Scenario {
    fn new(server_count: u64) -> Self {
        let clock = ManualClock::new();
        let coordinator = Embedded::in_memory(Arc::new(clock.clone()));
        Self::on(coordinator, clock, server_count)
    }

    fn on(coordinator: Embedded, clock: ManualClock, server_count: u64) -> Self {
        let cluster = admin::create_cluster(&coordinator).expect("it is empty");
        let mut scenario = Self {
            master: master(&coordinator, &clock, "first"),
            clock,
            coordinator,
            cluster,
            sim_servers: Arc::default(),
            agents: Vec::new(),
        };
        for number in 1..=server_count {
            scenario.add_server(ServerId(number));
        }
        scenario
    }

    fn add_server(&mut self, id: ServerId) {
        let mut sim_servers = self.sim_servers.lock().expect("one thread");
        sim_servers.servers.insert(id, SimServer::default());
        drop(sim_servers);
        self.agents.push((id, None));
        self.start(id);
    }

    fn start(&mut self, id: ServerId) {
        self.sim_servers
            .lock()
            .expect("one thread")
            .server(id)
            .is_up = true;
        let host = SimHost {
            server: id,
            sim_servers: self.sim_servers.clone(),
        };
        let options = AgentOptions {
            terms: terms(),
            load_interval: Duration::from_millis(200),
            ..AgentOptions::new(self.cluster, id, &format!("host:{}", id.0))
        };
        let clock = Arc::new(self.clock.clone());
        let agent = Agent::new(
            Bound::to(self.coordinator.clone(), self.cluster),
            clock,
            options,
            host,
        );
        *self.agent(id) = Some(agent);
    }

    fn agent(&mut self, id: ServerId) -> &mut Option<SimAgent> {
        let mut agents = self.agents.iter_mut();
        &mut agents.find(|it| it.0 == id).expect("it is there").1
    }

    fn crash(&mut self, id: ServerId) {
        *self.agent(id) = None;
        let mut sim_servers = self.sim_servers.lock().expect("one thread");
        sim_servers.server(id).is_up = false;
        sim_servers.server(id).close_all(true);
    }

    /// Runs for some time; returns the steps of the master.
    fn go_on(&mut self, time: Duration) -> Vec<Action> {
        let mut done = Vec::new();
        let until = self.master_now() + time;
        while self.master_now() < until {
            self.clock.advance(Duration::from_millis(50));
            for (_, agent) in &mut self.agents {
                if let Some(agent) = agent {
                    agent.tick(Duration::ZERO).expect("it is there");
                }
            }
            let mut sim_servers = self.sim_servers.lock().expect("one thread");
            let open: Vec<_> = sim_servers
                .servers
                .iter()
                .flat_map(|(id, server)| server.open.keys().map(|region| (*id, *region)))
                .collect();
            for (id, region) in open {
                sim_servers.pump(id, region, true);
            }
            drop(sim_servers);
            let tick = self.master.tick(Duration::ZERO).expect("it is there");
            done.extend(tick.done.into_iter().map(|step| step.action));
        }
        done
    }

    fn master_now(&self) -> Duration {
        use farleaf_base::clock::Clock;
        self.clock.now()
    }

    fn settle(&mut self) -> Vec<Action> {
        self.go_on(Duration::from_secs(5))
    }

    fn table(&mut self, replica_count: usize, split_keys: &[&[u8]]) -> TableId {
        let keys: Vec<_> = split_keys.iter().map(|key| Key::from(*key)).collect();
        admin::create_table(&self.coordinator, "t", replica_count, &keys)
            .expect("it is new")
            .table
    }

    fn regions(&self, table: TableId) -> Vec<RegionRecord> {
        let view = self.master.view();
        view.regions_of(table).into_iter().cloned().collect()
    }

    fn region(&self, table: TableId) -> RegionRecord {
        self.regions(table)
            .into_iter()
            .next()
            .expect("there is one")
    }

    fn admin_request(&mut self, kind: AdminRequestKind) -> Option<AdminReply> {
        let number = admin::admin_request(&self.coordinator, kind).expect("it works");
        self.go_on(Duration::from_millis(200));
        admin::answer(&self.coordinator, number).expect("it works")
    }

    fn execute(&mut self, route: &Route, key: u8, write: Option<u64>) -> Answer {
        let mut sim_servers = self.sim_servers.lock().expect("one thread");
        let write = write.map(|value| (value, true));
        sim_servers.execute(route.server, route.region, route.epoch, key, write)
    }
}

fn servers(record: &RegionRecord) -> BTreeSet<ServerId> {
    record.members().map(|it| it.server).collect()
}

fn found(cache: &mut MapCache<Embedded>, table: TableId, key: u8) -> Route {
    match cache.lookup(table, &[key]).expect("it works") {
        Lookup::Found(route) => route,
        other => panic!("{other:?}"),
    }
}

fn refusal(answer: Option<AdminReply>) -> String {
    match answer {
        Some(AdminReply::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}
