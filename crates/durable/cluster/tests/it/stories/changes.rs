//! Drains, splits, moves, balance.

use std::time::Duration;

use farleaf_cluster::admin;
use farleaf_cluster::client::MapCache;
use farleaf_cluster::ids::{Epoch, RegionId, ServerId};
use farleaf_cluster::plan::Action;
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{WishAnswer, WishKind};

use super::{Story, found, refusal, servers};
use crate::sim::fleet::Answer;

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

/// Promise: what is wished for while something else is being done is refused, and the master says
/// in words what that is.
#[test]
fn a_wish_during_a_split_is_told_of_it() {
    let mut story = Story::new(3);
    let table = story.table(2, &[]);
    story.settle();
    let region = story.region(table).region;
    let split = |at: &[u8]| WishKind::Split {
        table,
        region,
        at: Key(at.to_vec()),
    };
    let coordinator = story.coordinator.clone();
    admin::wish(&coordinator, split(b"m")).expect("it works");
    story.go_on(Duration::from_millis(50));
    let second = admin::wish(&coordinator, split(b"s")).expect("it works");
    story.master.tick(Duration::ZERO).expect("it is there");
    let answer = refusal(admin::answer(&coordinator, second).expect("it works"));
    let told = "something is being done already: it is being split at \"m\" into region 2";
    assert_eq!(answer, told);
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

/// Promise (CP14): when a server is lost while a replica of it has just been moved, it is the one
/// that is too many, and no living one that has everything: the master does nothing about it before
/// the new primary has said so.
#[test]
fn a_lost_server_is_the_surplus() {
    let mut story = Story::new(3);
    let table = story.table(2, &[]);
    story.settle();
    let from = story.region(table).primary.expect("it is served").server;
    admin::set_drain(&story.coordinator, from, true).expect("it works");
    while story.region(table).members().count() < 3 {
        story.go_on(Duration::from_millis(50));
    }
    let members = story.region(table);
    story.crash(from);
    while !story
        .go_on(Duration::from_millis(50))
        .contains(&Action::Promote)
    {}
    // The master looks at what it has written before anybody else does.
    let tick = story.master.tick(Duration::ZERO).expect("it works");
    assert!(tick.done.is_empty(), "{:?}", tick.done);
    let done = story.settle();
    assert!(!done.contains(&Action::RemoveReplica), "{done:?}");
    let after = story.region(table);
    let living = members.members().filter(|it| it.server != from);
    for replica in living {
        assert!(after.members().any(|it| it == replica), "{after:?}");
    }
}
