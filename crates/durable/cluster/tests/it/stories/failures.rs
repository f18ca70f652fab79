//! Servers and masters are lost, and come back.

use std::sync::Arc;
use std::time::Duration;

use farleaf_cluster::ClusterError;
use farleaf_cluster::admin;
use farleaf_cluster::agent::{Agent, AgentOptions};
use farleaf_cluster::client::MapCache;
use farleaf_cluster::clock::{Clock as _, ManualClock};
use farleaf_cluster::coordinator::{
    Bound, Coordinator as _, CoordinatorError, Embedded, Transaction,
};
use farleaf_cluster::ids::{ClusterId, Epoch, ServerId};
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::plan::Action;
use farleaf_cluster::record::{
    CLUSTER_KEY, Cluster, FORMAT_VERSION, Record as _, WishAnswer, WishKind,
};
use farleaf_lsm::storage::{CrashStorage, PowerLoss};

use super::{Story, found, master, refusal, servers, terms};
use crate::sim::fleet::Answer;
use crate::sim::host::SimHost;

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
    assert_eq!(done, [Action::Recover, Action::MarkOpened]);
    // From now on it never begins from nothing: whoever has no copy of it has lost it.
    assert!(!story.region(table).is_new);
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

/// A server that leaves is followed at once; nobody waits for the end of its lease.
#[test]
fn a_server_that_leaves_is_followed_at_once() {
    let mut story = Story::new(4);
    let table = story.table(3, &[]);
    story.settle();
    let leaving = story.region(table).primary.expect("it is served").server;
    let agent = story.agent(leaving).as_mut().expect("it is there");
    agent.leave().expect("it works");
    *story.agent(leaving) = None;
    let done = story.go_on(Duration::from_millis(200));
    assert_eq!(done[0], Action::Promote);
    story.settle();
    assert_eq!(servers(&story.region(table)).len(), 3);
}

/// A directory of another cluster is refused, and nothing is registered.
#[test]
fn a_server_of_another_cluster_is_refused() {
    let mut story = Story::new(1);
    story.cluster = ClusterId(story.cluster.0 ^ (1 << 100));
    story.start(ServerId(1));
    let agent = story.agent(ServerId(1)).as_mut().expect("it was started");
    let error = agent.tick(Duration::ZERO).expect_err("it is another one");
    assert!(
        matches!(
            error,
            ClusterError::Coordinator(CoordinatorError::OtherCluster { .. })
        ),
        "{error}"
    );
    story.master.tick(Duration::ZERO).expect("it works");
    assert!(story.master.view().lives.is_empty());
}

/// Promise (ID1): servers of a cluster that an older version created register nothing until it is
/// adopted; then each goes on as one of the new identifier.
#[test]
fn a_cluster_of_an_older_version_waits_to_be_adopted() {
    let mut story = Story::new(0);
    let old = Cluster {
        version: FORMAT_VERSION,
        cluster: ClusterId(77),
        formerly: None,
    };
    let put = Transaction::new().put(CLUSTER_KEY, old.encode());
    story.coordinator.transact(&put).expect("it works");
    story.cluster = old.cluster;
    story.add_server(ServerId(1));
    let agent = story.agent(ServerId(1)).as_mut().expect("it was started");
    for _ in 0..3 {
        let error = agent.tick(Duration::ZERO).expect_err("not yet");
        assert!(
            matches!(error, ClusterError::NotAdopted(ClusterId(77))),
            "{error}"
        );
        assert!(error.to_string().contains("cluster adopt"), "{error}");
    }
    let coordinator = story.coordinator.clone();
    let adopted = admin::adopt(&coordinator).expect("it has no identifier");
    assert_eq!(adopted.formerly, Some(ClusterId(77)));
    let again = admin::adopt(&coordinator).expect_err("it has one");
    assert!(matches!(again, ClusterError::AdoptedAlready(_)), "{again}");
    let agent = story.agent(ServerId(1)).as_mut().expect("it was started");
    match agent.tick(Duration::ZERO) {
        Err(ClusterError::AdoptedAs { cluster, .. }) => agent.adopt(cluster),
        other => panic!("{other:?}"),
    }
    agent.tick(Duration::ZERO).expect("it goes on");
    assert!(agent.life().is_some());
}

/// Promise: a server that is started again waits for its former life's end and says nothing worse;
/// one whose number another server has, that goes on, is told so, with where that one is. Once it
/// waited for ever.
#[test]
fn a_number_that_another_server_has_is_told() {
    let mut story = Story::new(1);
    story.settle();
    let clock = Arc::new(story.clock.clone());
    let second = |story: &Story, address: &str| {
        let options = AgentOptions {
            terms: terms(),
            ..AgentOptions::new(story.cluster, ServerId(1), address)
        };
        let host = SimHost {
            server: ServerId(1),
            fleet: story.fleet.clone(),
        };
        Agent::new(
            Bound::to(story.coordinator.clone(), story.cluster),
            clock.clone(),
            options,
            host,
        )
    };
    let (mut taken, mut restarted) = (second(&story, "host:2"), second(&story, "host:3"));
    let mut told = None;
    for _ in 0..200 {
        story.go_on(Duration::from_millis(50));
        if let Err(error) = taken.tick(Duration::ZERO) {
            told = Some(error.to_string());
            break;
        }
    }
    let told = told.expect("it does not wait for ever");
    assert!(told.contains("server 1 is another server, too"), "{told}");
    assert!(
        told.contains("at host:1") && told.contains("--number"),
        "{told}"
    );
    assert!(taken.life().is_none());
    // The former life of the other one ends meanwhile.
    restarted.tick(Duration::ZERO).expect("it waits");
    story.crash(ServerId(1));
    story
        .fleet
        .lock()
        .expect("one thread")
        .server(ServerId(1))
        .is_up = true;
    for _ in 0..40 {
        story.go_on(Duration::from_millis(50));
        restarted.tick(Duration::ZERO).expect("it waits");
    }
    assert!(restarted.life().is_some(), "its former life is over");
}

/// Promise (CP8): a server that is started again with a lease that is much shorter than before
/// waits for the end of the longer one, and joins then. It once ended, as if another server had
/// its number.
#[test]
fn a_shorter_lease_waits_for_a_longer_one() {
    let mut story = Story::new(1);
    story.settle();
    story.crash(ServerId(1));
    let mut fleet = story.fleet.lock().expect("one thread");
    fleet.server(ServerId(1)).is_up = true;
    drop(fleet);
    let clock = Arc::new(story.clock.clone());
    let agent = |story: &Story, terms: LeaseTerms| {
        let options = AgentOptions {
            terms,
            ..AgentOptions::new(story.cluster, ServerId(1), "host:2")
        };
        let host = SimHost {
            server: ServerId(1),
            fleet: story.fleet.clone(),
        };
        Agent::new(
            Bound::to(story.coordinator.clone(), story.cluster),
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
        let mut agent = agent(&story, terms);
        let since = clock.now();
        while agent.life().is_none() {
            assert!(
                clock.now().saturating_sub(since) < Duration::from_secs(12),
                "it joins"
            );
            story.go_on(Duration::from_millis(50));
            agent.tick(Duration::ZERO).expect("it waits");
        }
        // It ends without a word.
    }
}
