//! What a cluster does when one thing happens at a time, step by step.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farleaf_cluster::agent::{Agent, AgentOptions};
use farleaf_cluster::client::{AfterStale, Lookup, MapCache, Route, Stale};
use farleaf_cluster::clock::ManualClock;
use farleaf_cluster::coordinator::Embedded;
use farleaf_cluster::ids::{ClusterId, Epoch, RegionId, ServerId, TableId};
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::master::Master;
use farleaf_cluster::plan::{Action, PlanOptions};
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{RegionRecord, WishAnswer, WishKind};
use farleaf_cluster::{ClusterError, admin};
use farleaf_lsm::storage::{CrashStorage, PowerLoss};

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
        coordinator.clone(),
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
        let agent = Agent::new(self.coordinator.clone(), clock, options, host);
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
        admin::create_table(&self.coordinator, "t", replica_count, &keys).expect("it is new")
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

/// A new table's regions get a primary each and as many backups as are wanted, all on distinct
/// servers, primaries spread.
#[test]
fn a_table_is_placed_on_distinct_servers() {
    let mut story = Story::new(4);
    let table = story.table(3, &[b"g", b"n", b"t"]);
    story.settle();
    let regions = story.regions(table);
    assert_eq!(regions.len(), 4);
    for record in &regions {
        assert_eq!(
            (servers(record).len(), record.epoch.0),
            (3, 1),
            "{record:?}"
        );
    }
    let primaries: BTreeSet<_> = regions.iter().filter_map(|it| it.primary).collect();
    let primaries: BTreeSet<_> = primaries.iter().map(|it| it.server).collect();
    assert_eq!(primaries.len(), 4);
    // And then nothing more is done.
    assert_eq!(story.settle(), []);
}

/// A lookup costs two round trips at first, then none; after a redirection one.
#[test]
fn lookups_cost_round_trips_only_when_the_map_is_old() {
    let mut story = Story::new(3);
    let table = story.table(2, &[]);
    let mut cache = MapCache::new(story.coordinator.clone());
    assert_eq!(
        cache.lookup(table, b"k").expect("it works"),
        Lookup::NotServed
    );
    assert_eq!(
        cache.lookup(TableId(9), b"k").expect("it works"),
        Lookup::NoTable
    );
    story.settle();
    let before = cache.round_trip_count();
    let route = found(&mut cache, table, b'k');
    assert_eq!(cache.round_trip_count() - before, 2);
    assert_eq!(route.address, format!("host:{}", route.server.0));
    assert_eq!(story.execute(&route, b'k', Some(7)), Answer::Written);
    for key in 0..255 {
        assert_eq!(found(&mut cache, table, key), route);
    }
    assert_eq!(cache.round_trip_count() - before, 2);
    let record = story.region(table);
    let to = record.backups[0].replica.server;
    let (from, region) = (route.server, route.region);
    let moved = story.wish(WishKind::Move {
        table,
        region,
        from,
        to,
    });
    assert_eq!(moved, Some(WishAnswer::Begun));
    story.settle();
    let Answer::Stale(stale) = story.execute(&route, b'k', None) else {
        panic!("the old primary answers");
    };
    assert_eq!(cache.stale(&route, stale), AfterStale::LookAgain);
    let next = found(&mut cache, table, b'k');
    assert_eq!(cache.round_trip_count() - before, 3);
    assert_eq!((next.server, next.epoch), (to, Epoch(2)));
    assert_eq!(story.execute(&next, b'k', None), Answer::Read(7));
    // A server that is behind the map is asked again; an old redirection changes nothing.
    let behind = Stale {
        epoch: Some(Epoch(1)),
    };
    assert_eq!(cache.stale(&next, behind), AfterStale::AskAgain);
    assert_eq!(
        cache.stale(&route, Stale { epoch: None }),
        AfterStale::LookAgain
    );
    found(&mut cache, table, b'k');
    assert_eq!(cache.round_trip_count() - before, 3);
}

/// A backup that is lost is replaced while the primary serves, at the same epoch.
#[test]
fn a_lost_backup_is_replaced() {
    let mut story = Story::new(4);
    let table = story.table(3, &[]);
    story.settle();
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, Some(5)), Answer::Written);
    let lost = story.region(table).backups[0].replica.server;
    story.crash(lost);
    story.settle();
    let record = story.region(table);
    assert_eq!((record.epoch, servers(&record).len()), (Epoch(1), 3));
    assert!(!servers(&record).contains(&lost));
    assert_eq!(story.execute(&route, 1, Some(6)), Answer::Written);
}

/// A primary that is lost is followed by a backup in sync, which has everything, and gets a new
/// backup.
#[test]
fn a_lost_primary_is_followed() {
    let mut story = Story::new(4);
    let table = story.table(3, &[]);
    story.settle();
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, Some(5)), Answer::Written);
    let before = story.region(table);
    story.crash(route.server);
    let done = story.settle();
    assert_eq!(done[0], Action::Promote);
    let record = story.region(table);
    assert_eq!((record.epoch, servers(&record).len()), (Epoch(2), 3));
    assert!(
        before
            .backups
            .iter()
            .any(|it| Some(it.replica) == record.primary)
    );
    cache.lost(&route);
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, None), Answer::Read(5));
}

/// A server that is drained loses all that it has, primaries too, and gets nothing.
#[test]
fn a_drained_server_gets_empty() {
    let mut story = Story::new(4);
    let table = story.table(3, &[b"g", b"n"]);
    story.settle();
    let drained = story.region(table).primary.expect("it is served").server;
    admin::set_drain(&story.coordinator, drained, true).expect("it works");
    story.go_on(Duration::from_secs(20));
    for record in story.regions(table) {
        assert_eq!(servers(&record).len(), 3, "{record:?}");
        assert!(record.replica_on(drained).is_none(), "{record:?}");
    }
    assert!(
        story
            .fleet
            .lock()
            .expect("one thread")
            .server(drained)
            .open
            .is_empty()
    );
    assert_eq!(story.settle(), []);
}

/// A region becomes two by a wish: every key is in one of them, with what it had, at the next
/// epoch; a route from before is redirected.
#[test]
fn a_region_is_split() {
    let mut story = Story::new(3);
    let table = story.table(2, &[]);
    story.settle();
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    for key in [1, 200] {
        assert_eq!(
            story.execute(&route, key, Some(u64::from(key))),
            Answer::Written
        );
    }
    let at = Key(vec![100]);
    let split = WishKind::Split {
        table,
        region: route.region,
        at: at.clone(),
    };
    assert_eq!(story.wish(split.clone()), Some(WishAnswer::Begun));
    story.settle();
    let regions = story.regions(table);
    assert_eq!(regions.len(), 2);
    assert_eq!((&regions[0].to, &regions[1].from), (&Some(at.clone()), &at));
    // One of them may have been handed over since, so that each has a server of its own.
    assert!(regions.iter().all(|it| it.epoch >= Epoch(2)), "{regions:?}");
    assert!(matches!(story.execute(&route, 200, None), Answer::Stale(_)));
    cache.lost(&route);
    for key in [1, 200] {
        let route = found(&mut cache, table, key);
        assert_eq!(
            story.execute(&route, key, None),
            Answer::Read(u64::from(key))
        );
    }
    assert!(refusal(story.wish(split)).contains("is not within the region"));
}

/// Wishes that cannot be done are refused, with the reason.
#[test]
fn wishes_that_cannot_be_done_are_refused() {
    let mut story = Story::new(3);
    let table = story.table(2, &[]);
    story.settle();
    let record = story.region(table);
    let region = record.region;
    let on: Vec<_> = record.members().map(|it| it.server).collect();
    let off = (1..=3)
        .map(ServerId)
        .find(|it| !on.contains(it))
        .expect("one is free");
    let mut refused = |kind, why: &str| {
        let answer = refusal(story.wish(kind));
        assert!(answer.contains(why), "{answer}, and not: {why}");
    };
    let moved = |region, from, to| WishKind::Move {
        table,
        region,
        from,
        to,
    };
    refused(moved(RegionId(9), on[0], off), "there is no region 9");
    refused(moved(region, off, on[0]), "has no replica");
    refused(
        moved(region, on[1], on[0]),
        "has a replica of the region already",
    );
    refused(moved(region, on[0], ServerId(9)), "is not there");
    let servers = vec![on[0]];
    refused(
        WishKind::GiveUp {
            table,
            region,
            servers,
        },
        "is alive",
    );
}

/// Servers that are added get a share, by moves that come to an end.
#[test]
fn added_servers_get_a_share() {
    let mut story = Story::new(2);
    let split_keys: Vec<[u8; 1]> = (1..8).map(|key| [key * 30]).collect();
    let split_keys: Vec<&[u8]> = split_keys.iter().map(|it| &it[..]).collect();
    let table = story.table(2, &split_keys);
    story.settle();
    story.add_server(ServerId(3));
    story.add_server(ServerId(4));
    let done = story.go_on(Duration::from_secs(30));
    assert!(
        done.iter().any(|it| matches!(it, Action::BeginMove(_))),
        "{done:?}"
    );
    let mut counts = [0; 4];
    for record in story.regions(table) {
        assert_eq!(servers(&record).len(), 2);
        for server in servers(&record) {
            counts[server.0 as usize - 1] += 1;
        }
    }
    assert!(
        counts.iter().all(|count| (3..=5).contains(count)),
        "{counts:?}"
    );
    assert_eq!(story.settle(), []);
}

/// A dropped table's regions are closed everywhere, and its name is free.
#[test]
fn a_dropped_table_goes() {
    let mut story = Story::new(3);
    let table = story.table(3, &[b"m"]);
    story.settle();
    let again = admin::create_table(&story.coordinator, "t", 1, &[]);
    assert!(
        matches!(again, Err(ClusterError::TableExists(_))),
        "{again:?}"
    );
    admin::drop_table(&story.coordinator, table).expect("it is there");
    story.settle();
    let fleet = story.fleet.lock().expect("one thread");
    assert!(fleet.servers.values().all(|server| server.open.is_empty()));
    drop(fleet);
    assert_ne!(story.table(1, &[]), table);
}

/// All are lost, the coordinator with them, and restarted from disk: each region waits for its
/// members and goes on with what was acknowledged.
#[test]
fn all_are_lost_and_restarted() {
    let clock = ManualClock::new();
    let storage = CrashStorage::new(3);
    let open = |storage: &CrashStorage, clock: &ManualClock| {
        let clock = Arc::new(clock.clone());
        Embedded::open(Arc::new(storage.clone()), clock).expect("it is as it was")
    };
    let mut story = Story::on(open(&storage, &clock), clock.clone(), 3);
    let table = story.table(3, &[b"m"]);
    story.settle();
    let mut cache = MapCache::new(story.coordinator.clone());
    for key in [b'a', b'z'] {
        let route = found(&mut cache, table, key);
        assert_eq!(
            story.execute(&route, key, Some(u64::from(key))),
            Answer::Written
        );
    }
    for number in 1..=3 {
        story.crash(ServerId(number));
    }
    let storage = storage.lose_power(PowerLoss::Any);
    story.coordinator = open(&storage, &clock);
    story.master = master(&story.coordinator, &clock, "second");
    for number in 1..=2 {
        story.start(ServerId(number));
    }
    story.settle();
    assert_eq!(
        story.master.waiting().len(),
        2,
        "both regions wait for the third"
    );
    assert!(
        story.master.waiting()[0]
            .what
            .contains("server 3 to come back")
    );
    story.start(ServerId(3));
    let done = story.settle();
    assert_eq!(
        done.iter().filter(|it| **it == Action::Recover).count(),
        2,
        "{done:?}"
    );
    let mut cache = MapCache::new(story.coordinator.clone());
    for key in [b'a', b'z'] {
        let route = found(&mut cache, table, key);
        assert_eq!(
            story.execute(&route, key, None),
            Answer::Read(u64::from(key))
        );
        assert_eq!(servers(&story.region(table)).len(), 3);
    }
}

/// A region whose members do not all come back goes on without them when an administrator says so,
/// and not before.
#[test]
fn members_that_do_not_come_back_are_given_up() {
    let mut story = Story::new(3);
    let table = story.table(2, &[]);
    story.settle();
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, Some(5)), Answer::Written);
    let record = story.region(table);
    let on: Vec<_> = record.members().map(|it| it.server).collect();
    for server in &on {
        story.crash(*server);
    }
    story.go_on(Duration::from_secs(2));
    let region = record.region;
    let give_up = |servers: &[ServerId]| {
        let servers = servers.to_vec();
        WishKind::GiveUp {
            table,
            region,
            servers,
        }
    };
    assert!(refusal(story.wish(give_up(&on[..1]))).contains("is not back with its copy"));
    assert!(refusal(story.wish(give_up(&on))).contains("no member of the region would be left"));
    story.start(on[1]);
    story.settle();
    assert_eq!(story.region(table), record);
    assert_eq!(story.master.waiting().len(), 1);
    assert_eq!(story.wish(give_up(&on[..1])), Some(WishAnswer::Begun));
    story.settle();
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, None), Answer::Read(5));
    assert_eq!(servers(&story.region(table)).len(), 2);
}

/// A server that was given a region and died before it opened it does not hold the region up when
/// it is back without it.
#[test]
fn a_region_that_was_never_opened_begins_again() {
    let mut story = Story::new(1);
    story.go_on(Duration::from_millis(200));
    let table = story.table(1, &[]);
    let tick = story.master.tick(Duration::ZERO).expect("it works");
    assert_eq!(tick.done[0].action, Action::Place);
    story.crash(ServerId(1));
    story.go_on(Duration::from_secs(2));
    story.start(ServerId(1));
    let done = story.settle();
    assert_eq!(done, [Action::Recover]);
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(route.epoch, Epoch(2));
    assert_eq!(story.execute(&route, 1, Some(5)), Answer::Written);
}

/// The second master goes on when the first is gone; when it resigns, at once.
#[test]
fn masters_follow_each_other() {
    let mut story = Story::new(2);
    let table = story.table(2, &[]);
    story.go_on(Duration::from_secs(1));
    let mut second = master(&story.coordinator, &story.clock, "second");
    assert!(!second.tick(Duration::ZERO).expect("it works").is_master);
    story.master.resign().expect("it works");
    story.clock.advance(Duration::from_millis(100));
    assert!(second.tick(Duration::ZERO).expect("it works").is_master);
    story.master = second;
    story.settle();
    assert_eq!(servers(&story.region(table)).len(), 2);
}

/// A directory of another cluster is refused, and nothing is registered.
#[test]
fn a_server_of_another_cluster_is_refused() {
    let mut story = Story::new(1);
    story.cluster = ClusterId(story.cluster.0 ^ 1);
    story.start(ServerId(1));
    let agent = story.agent(ServerId(1)).as_mut().expect("it was started");
    let error = agent.tick(Duration::ZERO).expect_err("it is another one");
    assert!(
        matches!(error, ClusterError::OtherCluster { .. }),
        "{error}"
    );
    story.master.tick(Duration::ZERO).expect("it works");
    assert!(story.master.view().lives.is_empty());
}

/// Tables that cannot be are refused, and nothing is made.
#[test]
fn tables_that_cannot_be_are_refused() {
    let story = Story::new(0);
    let many: Vec<_> = (0..=200_u8).map(|key| Key(vec![key + 1])).collect();
    let twice = [Key(vec![2]), Key(vec![2])];
    for (name, replicas, keys) in [
        ("", 3, &[][..]),
        ("sl/ash", 3, &[]),
        ("t", 0, &[]),
        ("t", 16, &[]),
        ("t", 3, &many[..]),
        ("t", 3, &twice[..]),
        ("t", 3, &[Key(Vec::new())]),
    ] {
        let made = admin::create_table(&story.coordinator, name, replicas, keys);
        assert!(
            matches!(made, Err(ClusterError::BadTable(_))),
            "{name:?}: {made:?}"
        );
    }
    let largest = &many[..admin::FIRST_REGION_COUNT_MAX - 1];
    admin::create_table(&story.coordinator, "t", 3, largest).expect("it can be made");
    let named = admin::table_named(&story.coordinator, "t").expect("it is there");
    assert_eq!(named, TableId(1));
    let unnamed = admin::table_named(&story.coordinator, "u");
    assert!(
        matches!(unnamed, Err(ClusterError::NoTable(_))),
        "{unnamed:?}"
    );
}
