//! Disks get full, and have space again (CONTROL-16, CONTROL-22).

use std::time::Duration;

use farleaf_cluster::client::MapCache;
use farleaf_cluster::ids::{ServerId, TableId};
use farleaf_cluster::plan::Action;
use farleaf_cluster::record::space::LOW_SIZE_BYTES_MIN;
use farleaf_cluster::record::{AdminRequestKind, SpaceState};

use super::{Scenario, found, refusal, servers};
use crate::sim::sim_servers::{Answer, BreaksFor};

/// Reported free space of a server that is low, and of one that is full.
const LOW: Option<u64> = Some(LOW_SIZE_BYTES_MIN - 1);
const FULL: Option<u64> = Some(0);

impl Scenario {
    fn set_free(&mut self, server: u64, free_bytes: Option<u64>) {
        let mut sim_servers = self.sim_servers.lock().expect("one thread");
        sim_servers.server(ServerId(server)).free_bytes = free_bytes;
    }

    fn waits(&self) -> Vec<String> {
        let waiting = self.master.waiting().iter();
        waiting.map(|waits| waits.what.clone()).collect()
    }
}

/// A server low on space gets no replicas, not even by balancing. A region without another server
/// for one waits, and reports that; when there is space, the replica is placed (CONTROL-22).
#[test]
fn a_server_low_on_space_gets_nothing() {
    let mut scenario = Scenario::new(4);
    scenario.set_free(4, LOW);
    scenario.go_on(Duration::from_millis(200));
    let table = scenario.table(3, &[b"g", b"n"]);
    let done = scenario.settle();
    let on_fourth = |action: &Action| {
        let fourth = ServerId(4);
        matches!(action, Action::AddBackup(it) | Action::BeginMove(it) if *it == fourth)
    };
    assert!(!done.iter().any(on_fourth), "{done:?}");
    assert_eq!(scenario.waits(), [""; 0]);
    for record in scenario.regions(table) {
        assert_eq!(servers(&record), [1, 2, 3].map(ServerId).into());
    }
    scenario.crash(ServerId(3));
    let done = scenario.settle();
    assert!(!done.iter().any(on_fourth), "{done:?}");
    assert_eq!(
        scenario.waits(),
        ["a server with free space for another backup"; 3]
    );
    scenario.set_free(4, None);
    scenario.settle();
    assert_eq!(scenario.waits(), [""; 0]);
    for record in scenario.regions(table) {
        assert_eq!(servers(&record), [1, 2, 4].map(ServerId).into());
    }
}

/// A replica is placed only where its size fits and the server is not low afterwards (CONTROL-22).
#[test]
fn what_is_to_come_counts() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(2, &[]);
    scenario.settle();
    let primary = scenario.region(table).primary.expect("it is served").server;
    let backup = scenario.region(table).backups[0].replica.server;
    let other = (1..=3)
        .map(ServerId)
        .find(|it| *it != primary && *it != backup);
    let other = other.expect("there are three");
    // An empty replica counts as 1 MiB.
    let enough = LOW_SIZE_BYTES_MIN + (1 << 20);
    scenario.set_free(other.0, Some(enough - 1));
    scenario.go_on(Duration::from_millis(500));
    scenario.crash(backup);
    scenario.settle();
    assert_eq!(
        scenario.waits(),
        ["a server with free space for another backup"]
    );
    scenario.set_free(other.0, Some(enough));
    scenario.settle();
    assert_eq!(servers(&scenario.region(table)), [primary, other].into());
}

/// A first primary is placed on a server low on space if there is no other, and never on a full
/// one. Changes of the space state are reported at once (CONTROL-22).
#[test]
fn a_first_primary_needs_some_space() {
    let mut scenario = Scenario::new(2);
    scenario.set_free(1, FULL);
    scenario.set_free(2, FULL);
    scenario.go_on(Duration::from_millis(200));
    let table = scenario.table(1, &[]);
    scenario.settle();
    assert_eq!(
        scenario.waits(),
        ["a server with free space for its first replica"]
    );
    assert_eq!(scenario.region(table).primary, None);
    scenario.set_free(2, LOW);
    scenario.go_on(Duration::from_millis(150));
    assert_eq!(
        scenario.master.view().space_of(ServerId(2)),
        SpaceState::Low
    );
    scenario.settle();
    let primary = scenario.region(table).primary.expect("it is placed");
    assert_eq!(primary.server, ServerId(2));
}

/// A request to move to a server without space is refused with the remedy, and so is one to hand
/// over to a full one (CONTROL-22).
#[test]
fn wishes_need_space() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(2, &[]);
    scenario.settle();
    let record = scenario.region(table);
    let from = record.primary.expect("it is served").server;
    let backup = record.backups[0].replica.server;
    let other = (1..=3)
        .map(ServerId)
        .find(|it| *it != from && *it != backup);
    for (to, free_bytes) in [(other.expect("there are three"), LOW), (backup, FULL)] {
        scenario.set_free(to.0, free_bytes);
        scenario.go_on(Duration::from_millis(500));
        let kind = AdminRequestKind::Move {
            table,
            region: record.region,
            from,
            to,
        };
        let why = refusal(scenario.admin_request(kind));
        assert!(why.contains("has too little free space"), "{why}");
        assert!(
            why.contains("free space on its disk, or enlarge it"),
            "{why}"
        );
    }
}

/// A failover prefers a backup with space (CONTROL-22).
#[test]
fn who_has_space_takes_over() {
    for full in 0..2 {
        let mut scenario = Scenario::new(3);
        let table = scenario.table(3, &[]);
        scenario.settle();
        let record = scenario.region(table);
        let full = record.backups[full].replica.server;
        scenario.set_free(full.0, FULL);
        scenario.go_on(Duration::from_millis(500));
        scenario.crash(record.primary.expect("it is served").server);
        scenario.settle();
        let primary = scenario.region(table).primary.expect("it is served").server;
        assert_ne!(primary, full);
    }
}

/// A primary on a full disk hands over to a backup with space, by stopping first, and stays primary
/// if there is none (CONTROL-22).
#[test]
fn a_full_primary_hands_over() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(3, &[]);
    scenario.settle();
    let record = scenario.region(table);
    let primary = record.primary.expect("it is served").server;
    let [one, other] = [0, 1].map(|index: usize| record.backups[index].replica.server);
    for server in [primary, one, other] {
        scenario.set_free(server.0, FULL);
    }
    assert_eq!(scenario.settle(), [], "nobody else has room");
    scenario.set_free(other.0, None);
    let done = scenario.settle();
    assert_eq!(done, [Action::BeginHandOver, Action::HandOver]);
    let after = scenario.region(table);
    assert_eq!(after.primary.expect("it is served").server, other);
    assert_eq!(servers(&after), servers(&record), "the others stay");
}

/// Creates three servers, and a table of one region on all of them, whose key 1 has a 5.
fn written() -> (Scenario, TableId) {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(3, &[]);
    scenario.settle();
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, Some(5)), Answer::Written);
    (scenario, table)
}

/// All members of a region break on full disks, and one server is restarted, or none. Then one disk
/// after the other has space again.
fn all_break_for_want_of_space(is_one_started_again: bool) {
    let (mut scenario, table) = written();
    let before = scenario.region(table);
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    let all = sim_servers.servers.values_mut();
    all.for_each(|server| server.fill_up(|| true));
    drop(sim_servers);
    assert_eq!(scenario.settle(), [], "there is no room");
    let primary = before.primary.expect("it was served");
    if is_one_started_again {
        scenario.crash(primary.server);
        scenario.start(primary.server);
        assert_eq!(scenario.settle(), [], "there is no room for the others");
    }
    let backups = before.backups.iter().map(|it| it.replica.server);
    for (index, server) in [primary.server].into_iter().chain(backups).enumerate() {
        assert_eq!(scenario.region(table), before, "all are waited for");
        let waits = scenario.waits().concat();
        let expected = format!("free space on the disk of {server}, which is full");
        let is_back = is_one_started_again && index == 0;
        assert_eq!(waits.contains(&expected), !is_back, "{waits}");
        let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
        sim_servers.server(server).make_space();
        drop(sim_servers);
        let done = scenario.settle();
        assert_eq!(
            done.first() == Some(&Action::Recover),
            index == 2,
            "{done:?}"
        );
    }
    let after = scenario.region(table);
    assert_eq!(scenario.waits(), [""; 0]);
    assert_eq!(servers(&after), servers(&before));
    assert!(!after.is_unproven, "{after:?}");
    for old in before.replicas() {
        let new = after.replicas().find(|it| it.number == old.number);
        let new = new.expect("it is a member still");
        let is_same_life = new.life == old.life;
        let is_started_again = is_one_started_again && old == primary;
        assert_eq!(is_same_life, !is_started_again);
        assert_eq!(new.opened_again > before.epoch, is_same_life);
    }
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, None), Answer::Read(5));
    assert_eq!(scenario.execute(&route, 1, Some(6)), Answer::Written);
}

/// A region whose members have all broken on full disks waits for space on all disks, and reports
/// which. It then continues by itself, with all durable data (CONTROL-16, CONTROL-18).
#[test]
fn who_broke_for_want_of_space_goes_on() {
    all_break_for_want_of_space(false);
}

/// The region also continues if one member's server is restarted: the others need no restart.
#[test]
fn who_broke_for_want_of_space_need_not_be_started_again() {
    all_break_for_want_of_space(true);
}

/// A region whose members have all broken for damage continues by itself, as each may have what
/// another one lacks; no server needs a restart. It was once not served until then (CONTROL-16).
#[test]
fn who_broke_for_damage_goes_on() {
    let (mut scenario, table) = written();
    let before = scenario.region(table);
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    for server in sim_servers.servers.values_mut() {
        server.breaks_for = BreaksFor::Damage;
        server.fill_up(|| true);
        server.make_space();
    }
    drop(sim_servers);
    let done = scenario.settle();
    assert_eq!(done.first(), Some(&Action::Recover), "{done:?}");
    let after = scenario.region(table);
    assert_eq!(scenario.waits(), [""; 0]);
    assert_eq!(servers(&after), servers(&before));
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(scenario.execute(&route, 1, None), Answer::Read(5));
    assert_eq!(scenario.execute(&route, 1, Some(6)), Answer::Written);
}

/// A member that broke for another reason is waited for until its server is restarted, even if the
/// others broke on full disks and have space again (CONTROL-16).
#[test]
fn who_broke_for_another_reason_is_waited_for() {
    let mut scenario = Scenario::new(2);
    let table = scenario.table(2, &[]);
    scenario.settle();
    let record = scenario.region(table);
    let primary = record.primary.expect("it is served").server;
    let backup = record.backups[0].replica.server;
    // The primary is lost, and the backup cannot be promoted.
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    sim_servers.server(backup).failing_order_count = 1;
    sim_servers.server(primary).fill_up(|| true);
    drop(sim_servers);
    scenario.settle();
    let mut sim_servers = scenario.sim_servers.lock().expect("one thread");
    sim_servers.server(primary).make_space();
    drop(sim_servers);
    scenario.settle();
    let expected = format!("{backup} to be repaired and restarted");
    let waits = scenario.waits().concat();
    assert!(waits.contains(&expected), "{waits}");
    scenario.crash(backup);
    scenario.start(backup);
    scenario.settle();
    assert_eq!(scenario.waits(), [""; 0]);
    assert_eq!(servers(&scenario.region(table)).len(), 2);
}
