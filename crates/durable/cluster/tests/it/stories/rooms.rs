//! Disks get full, and have room again (CP16, CP22).

use std::time::Duration;

use farleaf_cluster::client::MapCache;
use farleaf_cluster::ids::{ServerId, TableId};
use farleaf_cluster::plan::Action;
use farleaf_cluster::record::room::LOW_SIZE_BYTES_MIN;
use farleaf_cluster::record::{Room, WishKind};

use super::{Story, found, refusal, servers};
use crate::sim::fleet::{Answer, BreaksFor};

/// What a server says that is low on room, and one that has none.
const LOW: Option<u64> = Some(LOW_SIZE_BYTES_MIN - 1);
const FULL: Option<u64> = Some(0);

impl Story {
    fn set_free(&mut self, server: u64, free_bytes: Option<u64>) {
        let mut fleet = self.fleet.lock().expect("one thread");
        fleet.server(ServerId(server)).free_bytes = free_bytes;
    }

    fn waits(&self) -> Vec<String> {
        let waiting = self.master.waiting().iter();
        waiting.map(|waits| waits.what.clone()).collect()
    }
}

/// Promise (CP22): a server that is low on room gets no replica, nor one by balance; a region that
/// has no other server for one waits, and says for what; and when there is room, it goes there.
#[test]
fn a_server_low_on_room_gets_nothing() {
    let mut story = Story::new(4);
    story.set_free(4, LOW);
    story.go_on(Duration::from_millis(200));
    let table = story.table(3, &[b"g", b"n"]);
    let done = story.settle();
    let on_fourth = |action: &Action| {
        let fourth = ServerId(4);
        matches!(action, Action::AddBackup(it) | Action::BeginMove(it) if *it == fourth)
    };
    assert!(!done.iter().any(on_fourth), "{done:?}");
    assert_eq!(story.waits(), [""; 0]);
    for record in story.regions(table) {
        assert_eq!(servers(&record), [1, 2, 3].map(ServerId).into());
    }
    story.crash(ServerId(3));
    let done = story.settle();
    assert!(!done.iter().any(on_fourth), "{done:?}");
    assert_eq!(story.waits(), ["a server with room for another backup"; 3]);
    story.set_free(4, None);
    story.settle();
    assert_eq!(story.waits(), [""; 0]);
    for record in story.regions(table) {
        assert_eq!(servers(&record), [1, 2, 4].map(ServerId).into());
    }
}

/// Promise (CP22): a replica goes where its size has room, and the server is not low then.
#[test]
fn what_is_to_come_counts() {
    let mut story = Story::new(3);
    let table = story.table(2, &[]);
    story.settle();
    let primary = story.region(table).primary.expect("it is served").server;
    let backup = story.region(table).backups[0].replica.server;
    let other = (1..=3)
        .map(ServerId)
        .find(|it| *it != primary && *it != backup);
    let other = other.expect("there are three");
    // An empty replica counts as 1 MiB.
    let enough = LOW_SIZE_BYTES_MIN + (1 << 20);
    story.set_free(other.0, Some(enough - 1));
    story.go_on(Duration::from_millis(500));
    story.crash(backup);
    story.settle();
    assert_eq!(story.waits(), ["a server with room for another backup"]);
    story.set_free(other.0, Some(enough));
    story.settle();
    assert_eq!(servers(&story.region(table)), [primary, other].into());
}

/// Promise (CP22): a first primary goes to a server that is low on room if there is no other, and
/// never to one that is full; that room is gone, or there, is reported at once.
#[test]
fn a_first_primary_needs_some_room() {
    let mut story = Story::new(2);
    story.set_free(1, FULL);
    story.set_free(2, FULL);
    story.go_on(Duration::from_millis(200));
    let table = story.table(1, &[]);
    story.settle();
    assert_eq!(story.waits(), ["a server with room for its first replica"]);
    assert_eq!(story.region(table).primary, None);
    story.set_free(2, LOW);
    story.go_on(Duration::from_millis(150));
    assert_eq!(story.master.view().room_of(ServerId(2)), Room::Low);
    story.settle();
    let primary = story.region(table).primary.expect("it is placed");
    assert_eq!(primary.server, ServerId(2));
}

/// Promise (CP22): a wish to move to a server without room is refused, with what to do, and so is
/// one to hand over to a full one.
#[test]
fn wishes_need_room() {
    let mut story = Story::new(3);
    let table = story.table(2, &[]);
    story.settle();
    let record = story.region(table);
    let from = record.primary.expect("it is served").server;
    let backup = record.backups[0].replica.server;
    let other = (1..=3)
        .map(ServerId)
        .find(|it| *it != from && *it != backup);
    for (to, free_bytes) in [(other.expect("there are three"), LOW), (backup, FULL)] {
        story.set_free(to.0, free_bytes);
        story.go_on(Duration::from_millis(500));
        let kind = WishKind::Move {
            table,
            region: record.region,
            from,
            to,
        };
        let why = refusal(story.wish(kind));
        assert!(why.contains("has no room for it"), "{why}");
        assert!(
            why.contains("make room on its disk, or enlarge it"),
            "{why}"
        );
    }
}

/// Promise (CP22): of the backups that can take over, one that has room does.
#[test]
fn who_has_room_takes_over() {
    for full in 0..2 {
        let mut story = Story::new(3);
        let table = story.table(3, &[]);
        story.settle();
        let record = story.region(table);
        let full = record.backups[full].replica.server;
        story.set_free(full.0, FULL);
        story.go_on(Duration::from_millis(500));
        story.crash(record.primary.expect("it is served").server);
        story.settle();
        let primary = story.region(table).primary.expect("it is served").server;
        assert_ne!(primary, full);
    }
}

/// Promise (CP22): a primary on a full disk hands over to a backup that has room, in order, and
/// goes on being primary where there is none.
#[test]
fn a_full_primary_hands_over() {
    let mut story = Story::new(3);
    let table = story.table(3, &[]);
    story.settle();
    let record = story.region(table);
    let primary = record.primary.expect("it is served").server;
    let [one, other] = [0, 1].map(|index: usize| record.backups[index].replica.server);
    for server in [primary, one, other] {
        story.set_free(server.0, FULL);
    }
    assert_eq!(story.settle(), [], "nobody else has room");
    story.set_free(other.0, None);
    let done = story.settle();
    assert_eq!(done, [Action::BeginHandOver, Action::HandOver]);
    let after = story.region(table);
    assert_eq!(after.primary.expect("it is served").server, other);
    assert_eq!(servers(&after), servers(&record), "the others stay");
}

/// Three servers, and a table of one region on all of them, whose key 1 has a 5.
fn written() -> (Story, TableId) {
    let mut story = Story::new(3);
    let table = story.table(3, &[]);
    story.settle();
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, Some(5)), Answer::Written);
    (story, table)
}

/// All members of a region break for want of room, and one's server is started again, or none is.
/// There is room again on one disk after the other.
fn all_break_for_want_of_room(is_one_started_again: bool) {
    let (mut story, table) = written();
    let before = story.region(table);
    let mut fleet = story.fleet.lock().expect("one thread");
    let all = fleet.servers.values_mut();
    all.for_each(|server| server.fill_up(|| true));
    drop(fleet);
    assert_eq!(story.settle(), [], "there is no room");
    let primary = before.primary.expect("it was served");
    if is_one_started_again {
        story.crash(primary.server);
        story.start(primary.server);
        assert_eq!(story.settle(), [], "there is no room for the others");
    }
    let backups = before.backups.iter().map(|it| it.replica.server);
    for (index, server) in [primary.server].into_iter().chain(backups).enumerate() {
        assert_eq!(story.region(table), before, "all are waited for");
        let waits = story.waits().concat();
        let told = format!("room on the disk of {server}, which is full");
        let is_back = is_one_started_again && index == 0;
        assert_eq!(waits.contains(&told), !is_back, "{waits}");
        let mut fleet = story.fleet.lock().expect("one thread");
        fleet.server(server).make_room();
        drop(fleet);
        let done = story.settle();
        assert_eq!(
            done.first() == Some(&Action::Recover),
            index == 2,
            "{done:?}"
        );
    }
    let after = story.region(table);
    assert_eq!(story.waits(), [""; 0]);
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
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, None), Answer::Read(5));
    assert_eq!(story.execute(&route, 1, Some(6)), Answer::Written);
}

/// Promise (CP16, CP18): a region whose members have all broken for want of room waits for room on
/// the disks of all, says on which, and goes on by itself then, with all that is durable.
#[test]
fn who_broke_for_want_of_room_goes_on() {
    all_break_for_want_of_room(false);
}

/// The same where a member's server is started again: the others need not be.
#[test]
fn who_broke_for_want_of_room_need_not_be_started_again() {
    all_break_for_want_of_room(true);
}

/// Promise (CP16): a region all of whose members have broken at once for damage goes on by itself,
/// as each may have what another one lacks; nobody need start a server again. Once nothing of it
/// was served before.
#[test]
fn who_broke_for_damage_goes_on() {
    let (mut story, table) = written();
    let before = story.region(table);
    let mut fleet = story.fleet.lock().expect("one thread");
    for server in fleet.servers.values_mut() {
        server.breaks_for = BreaksFor::Damage;
        server.fill_up(|| true);
        server.make_room();
    }
    drop(fleet);
    let done = story.settle();
    assert_eq!(done.first(), Some(&Action::Recover), "{done:?}");
    let after = story.region(table);
    assert_eq!(story.waits(), [""; 0]);
    assert_eq!(servers(&after), servers(&before));
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, None), Answer::Read(5));
    assert_eq!(story.execute(&route, 1, Some(6)), Answer::Written);
}

/// Promise (CP16): one that broke for another reason is waited for until its server is started
/// again, also if the others broke for want of room, and have some.
#[test]
fn who_broke_for_another_reason_is_waited_for() {
    let mut story = Story::new(2);
    let table = story.table(2, &[]);
    story.settle();
    let record = story.region(table);
    let primary = record.primary.expect("it is served").server;
    let backup = record.backups[0].replica.server;
    // The primary is lost, and the backup cannot be promoted.
    let mut fleet = story.fleet.lock().expect("one thread");
    fleet.server(backup).failing_order_count = 1;
    fleet.server(primary).fill_up(|| true);
    drop(fleet);
    story.settle();
    let mut fleet = story.fleet.lock().expect("one thread");
    fleet.server(primary).make_room();
    drop(fleet);
    story.settle();
    let told = format!("{backup} to be mended and started again");
    let waits = story.waits().concat();
    assert!(waits.contains(&told), "{waits}");
    story.crash(backup);
    story.start(backup);
    story.settle();
    assert_eq!(story.waits(), [""; 0]);
    assert_eq!(servers(&story.region(table)).len(), 2);
}
