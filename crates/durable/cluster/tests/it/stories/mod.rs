//! What a cluster does when one thing happens at a time, step by step.
//!
//! | module | what happens |
//! |---|---|
//! | `tables` | tables are made, looked up, dropped |
//! | `failures` | servers and masters are lost, and come back |
//! | `outages` | all servers of a region are lost, and some copies with them |
//! | `changes` | drains, splits, moves, balance |
//! | `refusals` | servers refuse the coordinator's records |
//! | `rooms` | disks get full, and have room again |

mod changes;
mod failures;
mod outages;
mod refusals;
mod rooms;
mod tables;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_cluster::admin;
use farleaf_cluster::agent::{Agent, AgentOptions};
use farleaf_cluster::client::{Lookup, MapCache, Route};
use farleaf_cluster::clock::ManualClock;
use farleaf_cluster::coordinator::{Bound, Embedded};
use farleaf_cluster::ids::{ClusterId, ServerId, TableId};
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::master::Master;
use farleaf_cluster::plan::{Action, PlanOptions};
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{RegionRecord, WishAnswer, WishKind};

use crate::sim::fleet::{Answer, Fleet, SimServer};
use crate::sim::host::SimHost;

type SimAgent = Agent<Embedded, SimHost>;

/// A cluster in which everybody acts every 50 ms.
struct Story {
    clock: ManualClock,
    coordinator: Embedded,
    cluster: ClusterId,
    fleet: Arc<Mutex<Fleet>>,
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

impl Story {
    fn new(server_count: u64) -> Self {
        let clock = ManualClock::new();
        let coordinator = Embedded::in_memory(Arc::new(clock.clone()));
        Self::on(coordinator, clock, server_count)
    }

    fn on(coordinator: Embedded, clock: ManualClock, server_count: u64) -> Self {
        let cluster = admin::found(&coordinator).expect("it is empty");
        let mut story = Self {
            master: master(&coordinator, &clock, "first"),
            clock,
            coordinator,
            cluster,
            fleet: Arc::default(),
            agents: Vec::new(),
        };
        for number in 1..=server_count {
            story.add_server(ServerId(number));
        }
        story
    }

    fn add_server(&mut self, id: ServerId) {
        let mut fleet = self.fleet.lock().expect("one thread");
        fleet.servers.insert(id, SimServer::default());
        drop(fleet);
        self.agents.push((id, None));
        self.start(id);
    }

    fn start(&mut self, id: ServerId) {
        self.fleet.lock().expect("one thread").server(id).is_up = true;
        let host = SimHost {
            server: id,
            fleet: self.fleet.clone(),
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
        let mut fleet = self.fleet.lock().expect("one thread");
        fleet.server(id).is_up = false;
        fleet.server(id).close_all(true);
    }

    /// Goes on for so long; what the master has done.
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
            let mut fleet = self.fleet.lock().expect("one thread");
            let open: Vec<_> = fleet
                .servers
                .iter()
                .flat_map(|(id, server)| server.open.keys().map(|region| (*id, *region)))
                .collect();
            for (id, region) in open {
                fleet.pump(id, region, true);
            }
            drop(fleet);
            let tick = self.master.tick(Duration::ZERO).expect("it is there");
            done.extend(tick.done.into_iter().map(|step| step.action));
        }
        done
    }

    fn master_now(&self) -> Duration {
        use farleaf_cluster::clock::Clock;
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

    fn wish(&mut self, kind: WishKind) -> Option<WishAnswer> {
        let number = admin::wish(&self.coordinator, kind).expect("it works");
        self.go_on(Duration::from_millis(200));
        admin::answer(&self.coordinator, number).expect("it works")
    }

    fn execute(&mut self, route: &Route, key: u8, write: Option<u64>) -> Answer {
        let mut fleet = self.fleet.lock().expect("one thread");
        let write = write.map(|value| (value, true));
        fleet.execute(route.server, (route.region, route.epoch), key, write)
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

fn refusal(answer: Option<WishAnswer>) -> String {
    match answer {
        Some(WishAnswer::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}
