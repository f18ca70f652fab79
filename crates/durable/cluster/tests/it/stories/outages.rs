//! All servers of a region are lost at once, and some copies with them.

use std::time::Duration;

use farleaf_cluster::client::MapCache;
use farleaf_cluster::ids::{ReplicaNumber, ServerId, TableId};
use farleaf_cluster::plan::Action;
use farleaf_cluster::record::{Phase, RegionRecord, VerificationReport, WishKind};

use super::{Story, found, refusal, servers};
use crate::sim::fleet::Answer;

/// A table of three replicas that has a record, and its region.
fn story(server_count: u64) -> (Story, TableId, RegionRecord) {
    let mut story = Story::new(server_count);
    let table = story.table(3, &[]);
    story.settle();
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, Some(5)), Answer::Written);
    let record = story.region(table);
    assert_eq!((servers(&record).len(), &record.phase), (3, &Phase::Steady));
    (story, table, record)
}

fn crash_all(story: &mut Story, record: &RegionRecord) {
    for replica in record.replicas() {
        story.crash(replica.server);
    }
    story.go_on(Duration::from_secs(2));
}

fn start_all(story: &mut Story, record: &RegionRecord) {
    for replica in record.replicas() {
        story.start(replica.server);
    }
}

fn is_read(story: &mut Story, table: TableId) {
    let mut cache = MapCache::new(story.coordinator.clone());
    let route = found(&mut cache, table, 1);
    assert_eq!(story.execute(&route, 1, None), Answer::Read(5));
    let record = story.region(table);
    assert_eq!((servers(&record).len(), record.is_unproven), (3, false));
}

/// Promise (CP18): from when a region goes on after an outage of all until its primary has filled
/// the others, no copy is given up, whoever the record says to have everything: what is left on
/// another disk may be better.
#[test]
fn nothing_is_given_up_before_all_are_filled() {
    let (mut story, table, record) = story(4);
    let members = servers(&record);
    let other = (1..=4).map(ServerId).find(|it| !members.contains(it));
    let other = other.expect("one has no replica");
    story.crash(other);
    crash_all(&mut story, &record);
    // A copy of an earlier replica, which the record names no more.
    let first = record.primary.expect("it is served").server;
    let mut fleet = story.fleet.lock().expect("one thread");
    let mut copy = fleet.server(first).copies[&record.region].clone();
    copy.number = ReplicaNumber(9);
    fleet.server(other).copies.insert(record.region, copy);
    fleet.server(first).failing_order_count = 1;
    drop(fleet);
    story.start(other);
    start_all(&mut story, &record);
    let is_kept = |story: &Story| {
        let fleet = story.fleet.lock().expect("one thread");
        !fleet.servers[&other].copies.is_empty()
    };
    while story.region(table) == record {
        story.go_on(Duration::from_millis(50));
        assert!(is_kept(&story), "nobody has gone on");
    }
    while story.region(table).is_unproven {
        assert!(is_kept(&story), "not all are filled");
        story.go_on(Duration::from_millis(50));
    }
    story.settle();
    assert!(!is_kept(&story), "three have everything");
    is_read(&mut story, table);
}

/// Promise (CP18, RS14): a copy that no record names is kept as long as a member says that it is
/// not verified: it may have what the member lacks.
#[test]
fn nothing_is_given_up_before_members_are_verified() {
    let (mut story, table, record) = story(4);
    let members = servers(&record);
    let other = (1..=4).map(ServerId).find(|it| !members.contains(it));
    let other = other.expect("one has no replica");
    let first = record.primary.expect("it is served").server;
    let backup = record.backups[0].replica.server;
    story.crash(other);
    let mut fleet = story.fleet.lock().expect("one thread");
    let mut copy = fleet.server(first).open[&record.region].clone();
    copy.number = ReplicaNumber(9);
    copy.primary = None;
    fleet.server(other).copies.insert(record.region, copy);
    fleet.server(backup).verification = Some(VerificationReport::default());
    drop(fleet);
    story.start(other);
    let is_kept = |story: &Story| {
        let fleet = story.fleet.lock().expect("one thread");
        !fleet.servers[&other].copies.is_empty()
    };
    story.go_on(Duration::from_secs(30));
    assert!(is_kept(&story), "one is not verified");
    let mut fleet = story.fleet.lock().expect("one thread");
    fleet.server(backup).verification = None;
    drop(fleet);
    story.go_on(Duration::from_secs(10));
    assert!(!is_kept(&story), "three have everything");
    is_read(&mut story, table);
}

/// Promise (CP18): after an outage of all, those who do not have the newest log are members still:
/// if the one with the newest cannot open it, another one goes on, and nobody need say so.
#[test]
fn another_goes_on_if_the_newest_copy_cannot_be_opened() {
    let (mut story, table, record) = story(3);
    crash_all(&mut story, &record);
    // All are as new as each other, and the first number goes on.
    let first = record.primary.expect("it is served").server;
    let mut fleet = story.fleet.lock().expect("one thread");
    fleet.server(first).failing_order_count = 1;
    drop(fleet);
    start_all(&mut story, &record);
    let done = story.settle();
    assert_eq!(done[..2], [Action::Recover, Action::Promote], "{done:?}");
    let after = story.region(table).primary.expect("it is served").server;
    assert_ne!(after, first);
    is_read(&mut story, table);
}

/// Promise (CP18): a copy of which its server says that it is damaged is not waited for; what is
/// left of it stays where it is.
#[test]
fn a_damaged_copy_is_not_waited_for() {
    let (mut story, table, record) = story(3);
    crash_all(&mut story, &record);
    let damaged = record.primary.expect("it is served");
    let mut fleet = story.fleet.lock().expect("one thread");
    fleet.server(damaged.server).damage(record.region);
    drop(fleet);
    start_all(&mut story, &record);
    story.settle();
    is_read(&mut story, table);
    let fleet = story.fleet.lock().expect("one thread");
    assert_eq!(fleet.servers[&damaged.server].damaged.len(), 1);
}

/// Promise (CP18): where all copies are damaged the region waits, and says whose and why; nothing
/// is begun anew, and nothing of them goes.
#[test]
fn a_region_whose_copies_are_all_damaged_waits() {
    let (mut story, table, record) = story(3);
    crash_all(&mut story, &record);
    for replica in record.replicas() {
        let mut fleet = story.fleet.lock().expect("one thread");
        fleet.server(replica.server).damage(record.region);
    }
    start_all(&mut story, &record);
    assert_eq!(story.settle(), []);
    let waiting = &story.master.waiting()[0].what;
    for replica in record.replicas() {
        let whose = format!("that of {}, which is damaged: it is torn", replica.server);
        let told = format!("a whole copy in the place of {whose}");
        assert!(waiting.contains(&told), "{waiting}");
    }
    assert_eq!(story.region(table), record);
    let fleet = story.fleet.lock().expect("one thread");
    let damaged = fleet.servers.values().map(|it| it.damaged.len());
    assert_eq!(damaged.sum::<usize>(), 3);
}

/// Promise (CP18): a server that is back without its copy is told from one that is not back.
#[test]
fn a_server_that_is_back_without_its_copy_is_told() {
    let (mut story, table, record) = story(3);
    crash_all(&mut story, &record);
    let lost = record.primary.expect("it is served").server;
    let mut fleet = story.fleet.lock().expect("one thread");
    fleet.server(lost).copies.clear();
    drop(fleet);
    start_all(&mut story, &record);
    story.settle();
    let waiting = story.master.waiting()[0].what.clone();
    let told = format!("the copy of {lost}, which is back without it");
    assert!(waiting.contains(&told), "{waiting}");
    let (region, other) = (record.region, record.backups[0].replica.server);
    let give_up = |servers: Vec<ServerId>| WishKind::GiveUp {
        table,
        region,
        servers,
    };
    let refused = refusal(story.wish(give_up(vec![other])));
    assert!(refused.contains(&told), "{refused}");
    story.wish(give_up(vec![lost]));
    story.settle();
    is_read(&mut story, table);
}

/// Promise (CP14, CP18): members whose leases end one after the other, because all are lost at
/// once, stay members: nobody who was lost with them has said that they are. So one that never
/// comes back is given up, whoever of them had been primary.
#[test]
fn who_is_lost_together_stays_together() {
    let (mut story, table, record) = story(3);
    let lost = record.primary.expect("it is served").server;
    // Two leases end while the primary's goes on, and then that one, too.
    for backup in &record.backups {
        story.crash(backup.replica.server);
    }
    story.go_on(Duration::from_millis(100));
    story.crash(lost);
    story.go_on(Duration::from_secs(3));
    assert_eq!(story.region(table), record);
    for backup in &record.backups {
        story.start(backup.replica.server);
    }
    story.settle();
    let region = record.region;
    let servers = vec![lost];
    story.wish(WishKind::GiveUp {
        table,
        region,
        servers,
    });
    story.start(lost);
    story.settle();
    is_read(&mut story, table);
}

/// Promise (CP13): who was primary is a member until the new primary says that it is lost. So when
/// that one is lost, too, before it has said anything, the old one's copy counts.
#[test]
fn an_old_primary_is_a_member_until_it_is_said_to_be_lost() {
    let (mut story, table, record) = story(3);
    let first = record.primary.expect("it is served").server;
    story.crash(first);
    // The master alone goes on: the new primary is told of nothing.
    let promoted = loop {
        story.clock.advance(Duration::from_millis(50));
        for (server, agent) in &mut story.agents {
            let is_follower = record.backups.iter().any(|it| it.replica.server == *server);
            if let Some(agent) = agent.as_mut().filter(|_| is_follower) {
                let _ = agent.tick(Duration::ZERO);
            }
        }
        let tick = story.master.tick(Duration::ZERO).expect("it works");
        if tick.done.iter().any(|it| it.action == Action::Promote) {
            story.master.tick(Duration::ZERO).expect("it works");
            break story.region(table);
        }
    };
    let old = promoted
        .backups
        .iter()
        .find(|it| it.replica.server == first);
    assert!(old.is_some_and(|it| it.in_sync), "{promoted:?}");
    story.settle();
    let record = story.region(table);
    assert!(record.replica_on(first).is_none(), "{record:?}");
    assert_eq!(servers(&record).len(), 2);
}
