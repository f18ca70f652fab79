//! Tables are made, looked up, dropped.

use std::collections::BTreeSet;

use farleaf_cluster::client::{AfterStale, Lookup, MapCache, Stale};
use farleaf_cluster::coordinator::{Coordinator, Transaction};
use farleaf_cluster::ids::{Epoch, ServerId, TableId};
use farleaf_cluster::plan::{PlanOptions, Waiting, plan};
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{IDS_KEY, WishAnswer, WishKind};
use farleaf_cluster::view::View;
use farleaf_cluster::{ClusterError, admin};

use super::{Story, found, servers};
use crate::sim::fleet::Answer;

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

/// A bug that was found: where the coordinator's data were older than a table, servers removed all
/// copies of it. Promise (CP23): they are kept, open or found on disks; the master says so; no
/// table is made and no region split, as they would get the same numbers; and when the coordinator
/// has its data back, all is served again.
#[test]
fn copies_that_the_coordinator_has_forgotten_are_kept() {
    let mut story = Story::new(2);
    let before = story.coordinator.range("").expect("there").entries;
    let ids = before.iter().find(|it| it.key == IDS_KEY).expect("founded");
    let table = story.table(2, &[]);
    story.settle();
    let route = found(&mut MapCache::new(story.coordinator.clone()), table, b'k');
    story.execute(&route, b'k', Some(7));
    let records = story.coordinator.range("").expect("there").entries;
    let of_table = |key: &str| {
        let prefixes = ["region/", "table/", "name/"];
        prefixes.iter().any(|it| key.starts_with(it)) || key == IDS_KEY
    };
    let mut lost = Transaction::new().put(IDS_KEY, ids.value.clone());
    let mut back = Transaction::new();
    for entry in records.iter().filter(|it| of_table(&it.key)) {
        back = back.put(entry.key.clone(), entry.value.clone());
        if entry.key != IDS_KEY {
            lost = lost.delete(entry.key.clone());
        }
    }
    story.coordinator.transact(&lost).expect("it is there");
    let mut cache = MapCache::new(story.coordinator.clone());
    for restarted in [None, Some(ServerId(1)), Some(ServerId(2))] {
        if let Some(server) = restarted {
            story.crash(server);
            story.start(server);
        }
        story.settle();
        let made = admin::create_table(&story.coordinator, "u", 1, &[]);
        assert!(
            matches!(made, Err(ClusterError::UnknownCopy { .. })),
            "{made:?}"
        );
        let all = story.coordinator.range("").expect("there");
        let view = View::of(all.revision, &all.entries);
        let waiting = plan(&view, &PlanOptions::default()).waiting;
        let is_told = |it: &Waiting| it.what.contains("has never heard of it");
        assert!(waiting.iter().any(is_told), "{restarted:?}: {waiting:?}");
    }
    story.coordinator.transact(&back).expect("it is there");
    story.settle();
    let route = found(&mut cache, table, b'k');
    let read = story.execute(&route, b'k', None);
    assert!(matches!(read, Answer::Read(7)), "{read:?}");
}

/// Promise (CP23): while the coordinator does not say which regions there ever were, nothing of a
/// region goes that has no record any more; when it does, all goes that a dropped table had.
#[test]
fn nothing_goes_while_nobody_says_what_there_was() {
    let mut story = Story::new(2);
    let table = story.table(2, &[]);
    story.settle();
    let seen = story.coordinator.range(IDS_KEY).expect("there").entries;
    let put = |story: &Story, value: Vec<u8>| {
        let transaction = Transaction::new().put(IDS_KEY, value);
        story
            .coordinator
            .transact(&transaction)
            .expect("it is there");
    };
    put(&story, b"none".to_vec());
    admin::drop_table(&story.coordinator, table).expect("it is there");
    story.settle();
    assert!(story.regions(table).is_empty(), "it was dropped");
    let open_count = |story: &Story| {
        let fleet = story.fleet.lock().expect("one thread");
        let open = fleet.servers.values().map(|server| server.open.len());
        open.sum::<usize>()
    };
    assert_eq!(open_count(&story), 2);
    put(&story, seen[0].value.clone());
    story.settle();
    assert_eq!(open_count(&story), 0);
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
