//! Drains, splits, moves, balance.

use std::time::Duration;

use farleaf_cluster::admin;
use farleaf_cluster::client::MapCache;
use farleaf_cluster::ids::{Epoch, RegionId, ServerId};
use farleaf_cluster::plan::Action;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{AdminReply, AdminRequestKind};

use super::{Scenario, found, refusal, servers};
use crate::sim::sim_servers::Answer;

/// A drained server loses all its replicas, including primaries, and gets none.
#[test]
fn a_drained_server_gets_empty() {
    let mut scenario = Scenario::new(4);
    let table = scenario.table(3, &[b"g", b"n"]);
    scenario.settle();
    let drained = scenario.region(table).primary.expect("it is served").server;
    admin::set_drain(&scenario.coordinator, drained, true).expect("it works");
    scenario.go_on(Duration::from_secs(20));
    for record in scenario.regions(table) {
        assert_eq!(servers(&record).len(), 3, "{record:?}");
        assert!(record.replica_on(drained).is_none(), "{record:?}");
    }
    assert!(
        scenario
            .sim_servers
            .lock()
            .expect("one thread")
            .server(drained)
            .open
            .is_empty()
    );
    assert_eq!(scenario.settle(), []);
}

/// A requested split divides a region in two: every key is in one of them, with its data, at the
/// next epoch; an older route is redirected.
#[test]
fn a_region_is_split() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(2, &[]);
    scenario.settle();
    let mut cache = MapCache::new(scenario.coordinator.clone());
    let route = found(&mut cache, table, 1);
    for key in [1, 200] {
        assert_eq!(
            scenario.execute(&route, key, Some(u64::from(key))),
            Answer::Written
        );
    }
    let at = Key(vec![100]);
    let split = AdminRequestKind::Split {
        table,
        region: route.region,
        at: at.clone(),
    };
    assert_eq!(
        scenario.admin_request(split.clone()),
        Some(AdminReply::Begun)
    );
    scenario.settle();
    let regions = scenario.regions(table);
    assert_eq!(regions.len(), 2);
    assert_eq!((&regions[0].to, &regions[1].from), (&Some(at.clone()), &at));
    // One of them may have been handed over since, so that each has a server of its own.
    assert!(regions.iter().all(|it| it.epoch >= Epoch(2)), "{regions:?}");
    assert!(matches!(
        scenario.execute(&route, 200, None),
        Answer::Stale(_)
    ));
    cache.lost(&route);
    for key in [1, 200] {
        let route = found(&mut cache, table, key);
        assert_eq!(
            scenario.execute(&route, key, None),
            Answer::Read(u64::from(key))
        );
    }
    assert!(refusal(scenario.admin_request(split)).contains("is not within the region"));
}

/// A request during another change is refused, and the reason describes that change.
#[test]
fn a_request_during_a_split_is_told_of_it() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(2, &[]);
    scenario.settle();
    let region = scenario.region(table).region;
    let split = |at: &[u8]| AdminRequestKind::Split {
        table,
        region,
        at: Key(at.to_vec()),
    };
    let coordinator = scenario.coordinator.clone();
    admin::admin_request(&coordinator, split(b"m")).expect("it works");
    scenario.go_on(Duration::from_millis(50));
    let second = admin::admin_request(&coordinator, split(b"s")).expect("it works");
    scenario.master.tick(Duration::ZERO).expect("it is there");
    let answer = refusal(admin::answer(&coordinator, second).expect("it works"));
    let expected = "another change is in progress: it is being split at \"m\" into region 2";
    assert_eq!(answer, expected);
}

/// Impossible requests are refused with the reason.
#[test]
fn wishes_that_cannot_be_done_are_refused() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(2, &[]);
    scenario.settle();
    let record = scenario.region(table);
    let region = record.region;
    let on: Vec<_> = record.members().map(|it| it.server).collect();
    let off = (1..=3)
        .map(ServerId)
        .find(|it| !on.contains(it))
        .expect("one is free");
    let mut refused = |kind, why: &str| {
        let answer = refusal(scenario.admin_request(kind));
        assert!(answer.contains(why), "{answer}, and not: {why}");
    };
    let moved = |region, from, to| AdminRequestKind::Move {
        table,
        region,
        from,
        to,
    };
    refused(moved(RegionId(9), on[0], off), "has no region 9");
    refused(moved(region, off, on[0]), "has no replica");
    refused(
        moved(region, on[1], on[0]),
        "already has a replica of region",
    );
    refused(moved(region, on[0], ServerId(9)), "is not registered");
    let servers = vec![on[0]];
    refused(
        AdminRequestKind::GiveUp {
            table,
            region,
            servers,
        },
        "is usable",
    );
}

/// Added servers get a share, by a finite number of moves.
#[test]
fn added_servers_get_a_share() {
    let mut scenario = Scenario::new(2);
    let split_keys: Vec<[u8; 1]> = (1..8).map(|key| [key * 30]).collect();
    let split_keys: Vec<&[u8]> = split_keys.iter().map(|it| &it[..]).collect();
    let table = scenario.table(2, &split_keys);
    scenario.settle();
    scenario.add_server(ServerId(3));
    scenario.add_server(ServerId(4));
    let done = scenario.go_on(Duration::from_secs(30));
    assert!(
        done.iter().any(|it| matches!(it, Action::BeginMove(_))),
        "{done:?}"
    );
    let mut counts = [0; 4];
    for record in scenario.regions(table) {
        assert_eq!(servers(&record).len(), 2);
        for server in servers(&record) {
            counts[server.0 as usize - 1] += 1;
        }
    }
    assert!(
        counts.iter().all(|count| (3..=5).contains(count)),
        "{counts:?}"
    );
    assert_eq!(scenario.settle(), []);
}

/// When a server is lost just after one of its replicas was moved, that replica is the surplus, and
/// no live complete one. The master does nothing about it before the new primary has reported it as
/// failed (CONTROL-14).
#[test]
fn a_lost_server_is_the_surplus() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(2, &[]);
    scenario.settle();
    let from = scenario.region(table).primary.expect("it is served").server;
    admin::set_drain(&scenario.coordinator, from, true).expect("it works");
    while scenario.region(table).members().count() < 3 {
        scenario.go_on(Duration::from_millis(50));
    }
    let members = scenario.region(table);
    scenario.crash(from);
    while !scenario
        .go_on(Duration::from_millis(50))
        .contains(&Action::Promote)
    {}
    // The master sees its own writes before any other actor does.
    let tick = scenario.master.tick(Duration::ZERO).expect("it works");
    assert!(tick.done.is_empty(), "{:?}", tick.done);
    let done = scenario.settle();
    assert!(!done.contains(&Action::RemoveReplica), "{done:?}");
    let after = scenario.region(table);
    let living = members.members().filter(|it| it.server != from);
    for replica in living {
        assert!(after.members().any(|it| it == replica), "{after:?}");
    }
}
