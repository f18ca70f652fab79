//! Servers and masters are lost, and come back.

use std::sync::Arc;
use std::time::Duration;

use farleaf_base::clock::{Clock as _, ManualClock};
use farleaf_cluster::ClusterError;
use farleaf_cluster::admin;
use farleaf_cluster::agent::{Agent, AgentOptions};
use farleaf_cluster::client::MapCache;
use farleaf_cluster::coordinator::{
    Bound, Coordinator as _, CoordinatorError, Embedded, Transaction,
};
use farleaf_cluster::ids::{ClusterId, Epoch, ServerId};
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::plan::Action;
use farleaf_cluster::record::{
    AdminReply, AdminRequestKind, CLUSTER_KEY, Cluster, FORMAT_VERSION, Record as _,
};
use farleaf_lsm::storage::{CrashStorage, PowerLoss};

use super::{Scenario, found, master, refusal, servers, terms};
use crate::sim::host::SimHost;
use crate::sim::sim_servers::Answer;

/// A lost backup is replaced while the primary serves, at the same epoch.
#[test]
fn a_lost_backup_is_replaced() {
    let mut scenario = Scenario::new(4);
    let table = scenario.table(3, &[]);
    scenario.settle();
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, Some(5)), Answer::Written);
    let lost = scenario.region(table).backups[0].replica.server;
    scenario.crash(lost);
    scenario.settle();
    let record = scenario.region(table);
    assert_eq!((record.epoch, servers(&record).len()), (Epoch(1), 3));
    assert!(!servers(&record).contains(&lost));
    assert_eq!(scenario.execute(&route, 1, Some(6)), Answer::Written);
}

/// A lost primary is replaced by an in-sync backup, which has everything, and gets a new backup.
#[test]
fn a_lost_primary_is_followed() {
    let mut scenario = Scenario::new(4);
    let table = scenario.table(3, &[]);
    scenario.settle();
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, Some(5)), Answer::Written);
    let before = scenario.region(table);
    scenario.crash(route.server);
    let done = scenario.settle();
    assert_eq!(done[0], Action::Promote);
    let record = scenario.region(table);
    assert_eq!((record.epoch, servers(&record).len()), (Epoch(2), 3));
    assert!(
        before
            .backups
            .iter()
            .any(|it| Some(it.replica) == record.primary)
    );
    cache.lost(&route);
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, None), Answer::Read(5));
}

/// All servers and the coordinator are lost and restarted from disk: each region waits for its
/// members and continues with everything acknowledged.
#[test]
fn all_are_lost_and_restarted() {
    let clock = ManualClock::new();
    let storage = CrashStorage::new(3);
    let open = |storage: &CrashStorage, clock: &ManualClock| {
        let clock = Arc::new(clock.clone());
        Embedded::open(Arc::new(storage.clone()), clock).expect("it is as it was")
    };
    let mut scenario = Scenario::on(open(&storage, &clock), clock.clone(), 3);
    let table = scenario.table(3, &[b"m"]);
    scenario.settle();
    let mut cache = MapCache::new(scenario.coordinator.clone());
    for key in [b'a', b'z'] {
        let route = found(&mut cache, table, key);
        assert_eq!(
            scenario.execute(&route, key, Some(u64::from(key))),
            Answer::Written
        );
    }
    for number in 1..=3 {
        scenario.crash(ServerId(number));
    }
    let storage = storage.lose_power(PowerLoss::Any);
    scenario.coordinator = open(&storage, &clock);
    scenario.master = master(&scenario.coordinator, &clock, "second");
    for number in 1..=2 {
        scenario.start(ServerId(number));
    }
    scenario.settle();
    assert_eq!(
        scenario.master.waiting().len(),
        2,
        "both regions wait for the third"
    );
    assert!(
        scenario.master.waiting()[0]
            .what
            .contains("server 3 to come back")
    );
    scenario.start(ServerId(3));
    let done = scenario.settle();
    assert_eq!(
        done.iter().filter(|it| **it == Action::Recover).count(),
        2,
        "{done:?}"
    );
    let mut cache = MapCache::new(scenario.coordinator.clone());
    for key in [b'a', b'z'] {
        let route = found(&mut cache, table, key);
        assert_eq!(
            scenario.execute(&route, key, None),
            Answer::Read(u64::from(key))
        );
        assert_eq!(servers(&scenario.region(table)).len(), 3);
    }
}

/// A region whose members do not all come back continues without them only after an administrator
/// gives them up.
#[test]
fn members_that_do_not_come_back_are_given_up() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(2, &[]);
    scenario.settle();
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, Some(5)), Answer::Written);
    let record = scenario.region(table);
    let on: Vec<_> = record.members().map(|it| it.server).collect();
    for server in &on {
        scenario.crash(*server);
    }
    scenario.go_on(Duration::from_secs(2));
    let region = record.region;
    let give_up = |servers: &[ServerId]| {
        let servers = servers.to_vec();
        AdminRequestKind::GiveUp {
            table,
            region,
            servers,
        }
    };
    assert!(
        refusal(scenario.admin_request(give_up(&on[..1])))
            .contains("is neither back with its copy")
    );
    assert!(
        refusal(scenario.admin_request(give_up(&on)))
            .contains("no replica of the region would be left")
    );
    scenario.start(on[1]);
    scenario.settle();
    assert_eq!(scenario.region(table), record);
    assert_eq!(scenario.master.waiting().len(), 1);
    assert_eq!(
        scenario.admin_request(give_up(&on[..1])),
        Some(AdminReply::Begun)
    );
    scenario.settle();
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, None), Answer::Read(5));
    assert_eq!(servers(&scenario.region(table)).len(), 2);
}

/// A server that was assigned a region and crashed before opening it does not block the region when
/// it comes back without it.
#[test]
fn a_region_that_was_never_opened_begins_again() {
    let mut scenario = Scenario::new(1);
    scenario.go_on(Duration::from_millis(200));
    let table = scenario.table(1, &[]);
    let tick = scenario.master.tick(Duration::ZERO).expect("it works");
    assert_eq!(tick.done[0].action, Action::Place);
    scenario.crash(ServerId(1));
    scenario.go_on(Duration::from_secs(2));
    scenario.start(ServerId(1));
    let done = scenario.settle();
    assert_eq!(done, [Action::Recover, Action::MarkOpened]);
    // From now on the region never starts empty: a server without a copy of it has lost it.
    assert!(!scenario.region(table).is_new);
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(route.epoch, Epoch(2));
    assert_eq!(scenario.execute(&route, 1, Some(5)), Answer::Written);
}

/// The second master continues when the first is lost; when it resigns, at once.
#[test]
fn masters_follow_each_other() {
    let mut scenario = Scenario::new(2);
    let table = scenario.table(2, &[]);
    scenario.go_on(Duration::from_secs(1));
    let mut second = master(&scenario.coordinator, &scenario.clock, "second");
    assert!(!second.tick(Duration::ZERO).expect("it works").is_master);
    scenario.master.resign().expect("it works");
    scenario.clock.advance(Duration::from_millis(100));
    assert!(second.tick(Duration::ZERO).expect("it works").is_master);
    scenario.master = second;
    scenario.settle();
    assert_eq!(servers(&scenario.region(table)).len(), 2);
}

/// A server that leaves is replaced at once, without waiting for the end of its lease.
#[test]
fn a_server_that_leaves_is_followed_at_once() {
    let mut scenario = Scenario::new(4);
    let table = scenario.table(3, &[]);
    scenario.settle();
    let leaving = scenario.region(table).primary.expect("it is served").server;
    let agent = scenario.agent(leaving).as_mut().expect("it is there");
    agent.leave().expect("it works");
    *scenario.agent(leaving) = None;
    let done = scenario.go_on(Duration::from_millis(200));
    assert_eq!(done[0], Action::Promote);
    scenario.settle();
    assert_eq!(servers(&scenario.region(table)).len(), 3);
}

/// A directory of another cluster is refused, and nothing is registered.
#[test]
fn a_server_of_another_cluster_is_refused() {
    let mut scenario = Scenario::new(1);
    scenario.cluster = ClusterId(scenario.cluster.0 ^ (1 << 100));
    scenario.start(ServerId(1));
    let agent = scenario
        .agent(ServerId(1))
        .as_mut()
        .expect("it was started");
    let error = agent.tick(Duration::ZERO).expect_err("it is another one");
    assert!(
        matches!(
            error,
            ClusterError::Coordinator(CoordinatorError::OtherCluster { .. })
        ),
        "{error}"
    );
    scenario.master.tick(Duration::ZERO).expect("it works");
    assert!(scenario.master.view().lives.is_empty());
}

/// Servers of a cluster that an older version created register nothing until it is adopted; then
/// each continues with the new identifier.
#[test]
fn a_cluster_of_an_older_version_waits_to_be_adopted() {
    let mut scenario = Scenario::new(0);
    let old = Cluster {
        version: FORMAT_VERSION,
        cluster: ClusterId(77),
        formerly: None,
    };
    let put = Transaction::new().put(CLUSTER_KEY, old.encode());
    scenario.coordinator.transact(&put).expect("it works");
    scenario.cluster = old.cluster;
    scenario.add_server(ServerId(1));
    let agent = scenario
        .agent(ServerId(1))
        .as_mut()
        .expect("it was started");
    for _ in 0..3 {
        let error = agent.tick(Duration::ZERO).expect_err("not yet");
        assert!(
            matches!(error, ClusterError::NotAdopted(ClusterId(77))),
            "{error}"
        );
        assert!(error.to_string().contains("cluster adopt"), "{error}");
    }
    let coordinator = scenario.coordinator.clone();
    let adopted = admin::adopt(&coordinator).expect("it has no identifier");
    assert_eq!(adopted.formerly, Some(ClusterId(77)));
    let again = admin::adopt(&coordinator).expect_err("it has one");
    assert!(matches!(again, ClusterError::AdoptedAlready(_)), "{again}");
    let agent = scenario
        .agent(ServerId(1))
        .as_mut()
        .expect("it was started");
    match agent.tick(Duration::ZERO) {
        Err(ClusterError::AdoptedAs { cluster, .. }) => agent.adopt(cluster),
        other => panic!("{other:?}"),
    }
    agent.tick(Duration::ZERO).expect("it goes on");
    assert!(agent.life().is_some());
}

/// A restarted server waits for the end of its former life without an error. A server whose number
/// another running server has gets an error with that server's address. It once waited forever.
#[test]
fn a_number_that_another_server_has_is_told() {
    let mut scenario = Scenario::new(1);
    scenario.settle();
    let clock = Arc::new(scenario.clock.clone());
    let second = |scenario: &Scenario, address: &str| {
        let options = AgentOptions {
            terms: terms(),
            ..AgentOptions::new(scenario.cluster, ServerId(1), address)
        };
        let host = SimHost {
            server: ServerId(1),
            sim_servers: scenario.sim_servers.clone(),
        };
        Agent::new(
            Bound::to(scenario.coordinator.clone(), scenario.cluster),
            clock.clone(),
            options,
            host,
        )
    };
    let (mut taken, mut restarted) = (second(&scenario, "host:2"), second(&scenario, "host:3"));
    let mut error_text = None;
    for _ in 0..200 {
        scenario.go_on(Duration::from_millis(50));
        if let Err(error) = taken.tick(Duration::ZERO) {
            error_text = Some(error.to_string());
            break;
        }
    }
    let error_text = error_text.expect("it does not wait for ever");
    assert!(
        error_text.contains("another server 1 is registered"),
        "{error_text}"
    );
    assert!(
        error_text.contains("at host:1") && error_text.contains("--number"),
        "{error_text}"
    );
    assert!(taken.life().is_none());
    // The former life of the other one ends meanwhile.
    restarted.tick(Duration::ZERO).expect("it waits");
    scenario.crash(ServerId(1));
    scenario
        .sim_servers
        .lock()
        .expect("one thread")
        .server(ServerId(1))
        .is_up = true;
    for _ in 0..40 {
        scenario.go_on(Duration::from_millis(50));
        restarted.tick(Duration::ZERO).expect("it waits");
    }
    assert!(restarted.life().is_some(), "its former life is over");
}

/// A server restarted with a much shorter lease than before waits for the end of the longer one,
/// and then joins. It once ended, as if another server had its number (CONTROL-8).
#[test]
fn a_shorter_lease_waits_for_a_longer_one() {
    let mut scenario = Scenario::new(1);
    scenario.settle();
    scenario.crash(ServerId(1));
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    sim_servers.server(ServerId(1)).is_up = true;
    drop(sim_servers);
    let clock = Arc::new(scenario.clock.clone());
    let agent = |scenario: &Scenario, terms: LeaseTerms| {
        let options = AgentOptions {
            terms,
            ..AgentOptions::new(scenario.cluster, ServerId(1), "host:2")
        };
        let host = SimHost {
            server: ServerId(1),
            sim_servers: scenario.sim_servers.clone(),
        };
        Agent::new(
            Bound::to(scenario.coordinator.clone(), scenario.cluster),
            clock.clone(),
            options,
            host,
        )
    };
    let ten_seconds = LeaseTerms {
        time_to_live: Duration::from_secs(10),
        ..terms()
    };
    for terms in [ten_seconds, terms()] {
        let mut agent = agent(&scenario, terms);
        let since = clock.now();
        while agent.life().is_none() {
            assert!(
                clock.now().saturating_sub(since) < Duration::from_secs(12),
                "it joins"
            );
            scenario.go_on(Duration::from_millis(50));
            agent.tick(Duration::ZERO).expect("it waits");
        }
        // The server ends without releasing its lease.
    }
}
