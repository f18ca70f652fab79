//! Tables are created, looked up, dropped.

use std::collections::BTreeSet;

use farleaf_cluster::client::{AfterStale, Lookup, MapCache, Stale};
use farleaf_cluster::coordinator::{Coordinator, Transaction};
use farleaf_cluster::ids::{Epoch, ServerId, TableId};
use farleaf_cluster::plan::{PlanOptions, Waiting, plan};
use farleaf_cluster::record::region::Key;
use farleaf_cluster::record::{AdminReply, AdminRequestKind, IDS_KEY};
use farleaf_cluster::view::View;
use farleaf_cluster::{ClusterError, admin};

use super::{Scenario, found, servers};
use crate::sim::sim_servers::Answer;

/// A new table's regions get a primary each and the requested number of backups, all on distinct
/// servers, with primaries spread.
#[test]
fn a_table_is_placed_on_distinct_servers() {
    let mut scenario = Scenario::new(4);
    let table = scenario.table(3, &[b"g", b"n", b"t"]);
    scenario.settle();
    let regions = scenario.regions(table);
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
    assert_eq!(scenario.settle(), []);
}

/// A lookup costs two round trips at first, then none; after a redirection one.
#[test]
fn lookups_cost_round_trips_only_when_the_map_is_old() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(2, &[]);
    let mut cache = MapCache::new(scenario.coordinator.clone());
    assert_eq!(
        cache.lookup(table, b"k").expect("it works"),
        Lookup::NotServed
    );
    assert_eq!(
        cache.lookup(TableId(9), b"k").expect("it works"),
        Lookup::NoTable
    );
    scenario.settle();
    let before = cache.round_trip_count();
    let route = found(&mut cache, table, b'k');
    assert_eq!(cache.round_trip_count() - before, 2);
    assert_eq!(route.address, format!("host:{}", route.server.0));
    assert_eq!(scenario.execute(&route, b'k', Some(7)), Answer::Written);
    for key in 0..255 {
        assert_eq!(found(&mut cache, table, key), route);
    }
    assert_eq!(cache.round_trip_count() - before, 2);
    let record = scenario.region(table);
    let to = record.backups[0].replica.server;
    let (from, region) = (route.server, route.region);
    let moved = scenario.admin_request(AdminRequestKind::Move {
        table,
        region,
        from,
        to,
    });
    assert_eq!(moved, Some(AdminReply::Begun));
    scenario.settle();
    let Answer::Stale(stale) = scenario.execute(&route, b'k', None) else {
        panic!("the old primary answers");
    };
    assert_eq!(cache.stale(&route, stale), AfterStale::LookAgain);
    let next = found(&mut cache, table, b'k');
    assert_eq!(cache.round_trip_count() - before, 3);
    assert_eq!((next.server, next.epoch), (to, Epoch(2)));
    assert_eq!(scenario.execute(&next, b'k', None), Answer::Read(7));
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

/// A dropped table's regions are closed on all servers, and its name is free.
#[test]
fn a_dropped_table_goes() {
    let mut scenario = Scenario::new(3);
    let table = scenario.table(3, &[b"m"]);
    scenario.settle();
    let again = admin::create_table(&scenario.coordinator, "t", 1, &[]);
    assert!(
        matches!(again, Err(ClusterError::TableExists(_))),
        "{again:?}"
    );
    admin::drop_table(&scenario.coordinator, table).expect("it is there");
    scenario.settle();
    let sim_servers = scenario.sim_servers.lock().expect("one thread");
    assert!(
        sim_servers
            .servers
            .values()
            .all(|server| server.open.is_empty())
    );
    drop(sim_servers);
    assert_ne!(scenario.table(1, &[]), table);
}

/// Copies that the coordinator has lost are kept, whether open or found on disks, and the master
/// reports them. No table is created and no region split, as they would get the same numbers. When
/// the coordinator has its data back, everything is served again (CONTROL-23).
///
/// Regression: servers once removed all copies of a table that was newer than the coordinator's
/// data.
#[test]
fn copies_that_the_coordinator_has_forgotten_are_kept() {
    let mut scenario = Scenario::new(2);
    let before = scenario.coordinator.range("").expect("there").entries;
    let ids = before.iter().find(|it| it.key == IDS_KEY).expect("founded");
    let table = scenario.table(2, &[]);
    scenario.settle();
    let route = found(
        &mut MapCache::new(scenario.coordinator.clone()),
        table,
        b'k',
    );
    scenario.execute(&route, b'k', Some(7));
    let records = scenario.coordinator.range("").expect("there").entries;
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
    scenario.coordinator.transact(&lost).expect("it is there");
    let mut cache = MapCache::new(scenario.coordinator.clone());
    for restarted in [None, Some(ServerId(1)), Some(ServerId(2))] {
        if let Some(server) = restarted {
            scenario.crash(server);
            scenario.start(server);
        }
        scenario.settle();
        let made = admin::create_table(&scenario.coordinator, "u", 1, &[]);
        assert!(
            matches!(made, Err(ClusterError::UnknownCopy { .. })),
            "{made:?}"
        );
        let all = scenario.coordinator.range("").expect("there");
        let view = View::of(all.revision, &all.entries);
        let waiting = plan(&view, &PlanOptions::default()).waiting;
        let is_told = |it: &Waiting| it.what.contains("is unknown to the coordinator");
        assert!(waiting.iter().any(is_told), "{restarted:?}: {waiting:?}");
    }
    scenario.coordinator.transact(&back).expect("it is there");
    scenario.settle();
    let route = found(&mut cache, table, b'k');
    let read = scenario.execute(&route, b'k', None);
    assert!(matches!(read, Answer::Read(7)), "{read:?}");
}

/// While the coordinator does not answer which numbers were assigned, no copy of a region without a
/// record is removed. When it does, all copies of a dropped table are (CONTROL-23).
#[test]
fn nothing_goes_while_nobody_says_what_there_was() {
    let mut scenario = Scenario::new(2);
    let table = scenario.table(2, &[]);
    scenario.settle();
    let seen = scenario.coordinator.range(IDS_KEY).expect("there").entries;
    let put = |scenario: &Scenario, value: Vec<u8>| {
        let transaction = Transaction::new().put(IDS_KEY, value);
        scenario
            .coordinator
            .transact(&transaction)
            .expect("it is there");
    };
    put(&scenario, b"none".to_vec());
    admin::drop_table(&scenario.coordinator, table).expect("it is there");
    scenario.settle();
    assert!(scenario.regions(table).is_empty(), "it was dropped");
    let open_count = |scenario: &Scenario| {
        let sim_servers = scenario.sim_servers.lock().expect("one thread");
        let open = sim_servers.servers.values().map(|server| server.open.len());
        open.sum::<usize>()
    };
    assert_eq!(open_count(&scenario), 2);
    put(&scenario, seen[0].value.clone());
    scenario.settle();
    assert_eq!(open_count(&scenario), 0);
}

/// Invalid tables are refused, and nothing is created.
#[test]
fn tables_that_cannot_be_are_refused() {
    let scenario = Scenario::new(0);
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
        let made = admin::create_table(&scenario.coordinator, name, replicas, keys);
        assert!(
            matches!(made, Err(ClusterError::BadTable(_))),
            "{name:?}: {made:?}"
        );
    }
    let largest = &many[..admin::FIRST_REGION_COUNT_MAX - 1];
    admin::create_table(&scenario.coordinator, "t", 3, largest).expect("it can be made");
    let named = admin::table_named(&scenario.coordinator, "t").expect("it is there");
    assert_eq!(named, TableId(1));
    let unnamed = admin::table_named(&scenario.coordinator, "u");
    assert!(
        matches!(unnamed, Err(ClusterError::NoTable(_))),
        "{unnamed:?}"
    );
}
