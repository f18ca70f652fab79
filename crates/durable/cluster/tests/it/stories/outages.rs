//! All servers of a region are lost at once, and some copies with them.

use std::time::Duration;

use farleaf_cluster::client::MapCache;
use farleaf_cluster::ids::{ReplicaNumber, ServerId, TableId};
use farleaf_cluster::plan::Action;
use farleaf_cluster::record::{AdminRequestKind, Phase, RegionRecord, VerificationReport};

use super::{Scenario, found, refusal, servers};
use crate::sim::sim_servers::Answer;

/// Creates a table of three replicas with a record; returns it with its region.
fn scenario(server_count: u64) -> (Scenario, TableId, RegionRecord) {
    let mut scenario = Scenario::new(server_count);
    let table = scenario.table(3, &[]);
    scenario.settle();
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, Some(5)), Answer::Written);
    let record = scenario.region(table);
    assert_eq!((servers(&record).len(), &record.phase), (3, &Phase::Steady));
    (scenario, table, record)
}

fn crash_all(scenario: &mut Scenario, record: &RegionRecord) {
    for replica in record.replicas() {
        scenario.crash(replica.server);
    }
    scenario.go_on(Duration::from_secs(2));
}

fn start_all(scenario: &mut Scenario, record: &RegionRecord) {
    for replica in record.replicas() {
        scenario.start(replica.server);
    }
}

fn is_read(scenario: &mut Scenario, table: TableId) {
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, None), Answer::Read(5));
    let record = scenario.region(table);
    assert_eq!((servers(&record).len(), record.is_unproven), (3, false));
}

/// From when a region continues after an outage of all members until its primary has filled the
/// others, no copy is deleted, whatever the record says: a copy on another disk may be better
/// (CONTROL-18).
#[test]
fn nothing_is_given_up_before_all_are_filled() {
    let (mut scenario, table, record) = scenario(4);
    let members = servers(&record);
    let other = (1..=4).map(ServerId).find(|it| !members.contains(it));
    let other = other.expect("one has no replica");
    scenario.crash(other);
    crash_all(&mut scenario, &record);
    // A copy of an earlier replica, which the record no longer names.
    let first = record.primary.expect("it is served").server;
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    let mut copy = sim_servers.server(first).copies[&record.region].clone();
    copy.number = ReplicaNumber(9);
    sim_servers.server(other).copies.insert(record.region, copy);
    sim_servers.server(first).failing_order_count = 1;
    drop(sim_servers);
    scenario.start(other);
    start_all(&mut scenario, &record);
    let is_kept = |scenario: &Scenario| {
        let sim_servers = scenario.sim_servers.lock().expect("one thread");
        !sim_servers.servers[&other].copies.is_empty()
    };
    while scenario.region(table) == record {
        scenario.go_on(Duration::from_millis(50));
        assert!(is_kept(&scenario), "nobody has gone on");
    }
    while scenario.region(table).is_unproven {
        assert!(is_kept(&scenario), "not all are filled");
        scenario.go_on(Duration::from_millis(50));
    }
    scenario.settle();
    assert!(!is_kept(&scenario), "three have everything");
    is_read(&mut scenario, table);
}

/// A copy that no record names is kept as long as a member reports that it is not verified: the
/// copy may have data that the member lacks (CONTROL-18).
#[test]
fn nothing_is_given_up_before_members_are_verified() {
    let (mut scenario, table, record) = scenario(4);
    let members = servers(&record);
    let other = (1..=4).map(ServerId).find(|it| !members.contains(it));
    let other = other.expect("one has no replica");
    let first = record.primary.expect("it is served").server;
    let backup = record.backups[0].replica.server;
    scenario.crash(other);
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    let mut copy = sim_servers.server(first).open[&record.region].clone();
    copy.number = ReplicaNumber(9);
    copy.primary = None;
    sim_servers.server(other).copies.insert(record.region, copy);
    sim_servers.server(backup).verification = Some(VerificationReport::default());
    drop(sim_servers);
    scenario.start(other);
    let is_kept = |scenario: &Scenario| {
        let sim_servers = scenario.sim_servers.lock().expect("one thread");
        !sim_servers.servers[&other].copies.is_empty()
    };
    scenario.go_on(Duration::from_secs(30));
    assert!(is_kept(&scenario), "one is not verified");
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    sim_servers.server(backup).verification = None;
    drop(sim_servers);
    scenario.go_on(Duration::from_secs(10));
    assert!(!is_kept(&scenario), "three have everything");
    is_read(&mut scenario, table);
}

/// After an outage of all, replicas without the newest log are still members. If the newest copy
/// cannot be opened, another one continues without an administrator (CONTROL-18).
#[test]
fn another_goes_on_if_the_newest_copy_cannot_be_opened() {
    let (mut scenario, table, record) = scenario(3);
    crash_all(&mut scenario, &record);
    // All are equally new, so the first number continues.
    let first = record.primary.expect("it is served").server;
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    sim_servers.server(first).failing_order_count = 1;
    drop(sim_servers);
    start_all(&mut scenario, &record);
    let done = scenario.settle();
    assert_eq!(done[..2], [Action::Recover, Action::Promote], "{done:?}");
    let after = scenario.region(table).primary.expect("it is served").server;
    assert_ne!(after, first);
    is_read(&mut scenario, table);
}

/// A copy that its server reports as damaged is not waited for; its files stay in place
/// (CONTROL-18).
#[test]
fn a_damaged_copy_is_not_waited_for() {
    let (mut scenario, table, record) = scenario(3);
    crash_all(&mut scenario, &record);
    let damaged = record.primary.expect("it is served");
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    sim_servers.server(damaged.server).damage(record.region);
    drop(sim_servers);
    start_all(&mut scenario, &record);
    scenario.settle();
    is_read(&mut scenario, table);
    let sim_servers = scenario.sim_servers.lock().expect("one thread");
    assert_eq!(sim_servers.servers[&damaged.server].damaged.len(), 1);
}

/// If all copies are damaged, the region waits, and reports servers and reasons. No empty copy is
/// created, and no files are removed (CONTROL-18).
#[test]
fn a_region_whose_copies_are_all_damaged_waits() {
    let (mut scenario, table, record) = scenario(3);
    crash_all(&mut scenario, &record);
    for replica in record.replicas() {
        let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
        sim_servers.server(replica.server).damage(record.region);
    }
    start_all(&mut scenario, &record);
    assert_eq!(scenario.settle(), []);
    let waiting = &scenario.master.waiting()[0].what;
    for replica in record.replicas() {
        let whose = format!("that of {}, which is corrupted: it is torn", replica.server);
        let expected = format!("a complete copy to replace {whose}");
        assert!(waiting.contains(&expected), "{waiting}");
    }
    assert_eq!(scenario.region(table), record);
    let sim_servers = scenario.sim_servers.lock().expect("one thread");
    let damaged = sim_servers.servers.values().map(|it| it.damaged.len());
    assert_eq!(damaged.sum::<usize>(), 3);
}

/// A server that is back without its copy is reported differently from one that is not back
/// (CONTROL-18).
#[test]
fn a_server_that_is_back_without_its_copy_is_told() {
    let (mut scenario, table, record) = scenario(3);
    crash_all(&mut scenario, &record);
    let lost = record.primary.expect("it is served").server;
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    sim_servers.server(lost).copies.clear();
    drop(sim_servers);
    start_all(&mut scenario, &record);
    scenario.settle();
    let waiting = scenario.master.waiting()[0].what.clone();
    let expected = format!("the copy of {lost}, which is back without it");
    assert!(waiting.contains(&expected), "{waiting}");
    let (region, other) = (record.region, record.backups[0].replica.server);
    let give_up = |servers: Vec<ServerId>| AdminRequestKind::GiveUp {
        table,
        region,
        servers,
    };
    let refused = refusal(scenario.admin_request(give_up(vec![other])));
    assert!(refused.contains(&expected), "{refused}");
    scenario.admin_request(give_up(vec![lost]));
    scenario.settle();
    is_read(&mut scenario, table);
}

/// Members that are all lost at once, with leases that end one after the other, stay members: none
/// was reported as failed by a survivor. So one that never comes back must be given up, whichever
/// of them was primary (CONTROL-14, CONTROL-18).
#[test]
fn who_is_lost_together_stays_together() {
    let (mut scenario, table, record) = scenario(3);
    let lost = record.primary.expect("it is served").server;
    // Two leases end while the primary's continues, and then that one, too.
    for backup in &record.backups {
        scenario.crash(backup.replica.server);
    }
    scenario.go_on(Duration::from_millis(100));
    scenario.crash(lost);
    scenario.go_on(Duration::from_secs(3));
    assert_eq!(scenario.region(table), record);
    for backup in &record.backups {
        scenario.start(backup.replica.server);
    }
    scenario.settle();
    let region = record.region;
    let servers = vec![lost];
    scenario.admin_request(AdminRequestKind::GiveUp {
        table,
        region,
        servers,
    });
    scenario.start(lost);
    scenario.settle();
    is_read(&mut scenario, table);
}

/// An old primary is a member until the new primary reports it as lost. So if the new one is lost
/// before any report, the old one's copy counts (CONTROL-13).
#[test]
fn an_old_primary_is_a_member_until_it_is_said_to_be_lost() {
    let (mut scenario, table, record) = scenario(3);
    let first = record.primary.expect("it is served").server;
    scenario.crash(first);
    // Only the master runs: the new primary gets no orders.
    let promoted = loop {
        scenario.clock.advance(Duration::from_millis(50));
        for (server, agent) in &mut scenario.agents {
            let is_follower = record.backups.iter().any(|it| it.replica.server == *server);
            if let Some(agent) = agent.as_mut().filter(|_| is_follower) {
                let _ = agent.tick(Duration::ZERO);
            }
        }
        let tick = scenario.master.tick(Duration::ZERO).expect("it works");
        if tick.done.iter().any(|it| it.action == Action::Promote) {
            scenario.master.tick(Duration::ZERO).expect("it works");
            break scenario.region(table);
        }
    };
    let old = promoted
        .backups
        .iter()
        .find(|it| it.replica.server == first);
    assert!(old.is_some_and(|it| it.in_sync), "{promoted:?}");
    scenario.settle();
    let record = scenario.region(table);
    assert!(record.replica_on(first).is_none(), "{record:?}");
    assert_eq!(servers(&record).len(), 2);
}
