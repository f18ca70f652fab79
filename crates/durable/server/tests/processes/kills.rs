//! Primaries, and all servers, that are killed.

use std::thread;
use std::time::Duration;

use farleaf_client::{Durability, PersistentTable, PersistentTableOptions};
use farleaf_cluster::coordinator::{Embedded, SharedCoordinator};
use farleaf_net::request::Server;
use farleaf_trial::load::split_keys;
use farleaf_trial::{ProcessCluster, Trial, kills};

use crate::part::serve;
use crate::rest;

/// Checks that the files of all in-sync replicas are equal when nothing happens any more.
fn end_at_rest(fleet: &ProcessCluster, tables: &[&PersistentTable]) {
    for table in tables {
        fleet.wait_replicated(table, 3);
    }
    let compared_count = rest::wait_equal_in(fleet);
    assert!(compared_count > 0, "there is nothing to compare");
}

/// Creates three servers, their coordinator, and a table that is complete on each.
fn three() -> (Server, ProcessCluster, PersistentTable) {
    let coordinator = SharedCoordinator::new(Embedded::default(), "the test's");
    let (service, plan) = serve(&coordinator, [127, 0, 0, 1]);
    let fleet = ProcessCluster::start(coordinator, plan, 3);
    let options = PersistentTableOptions {
        replica_count: 3,
        split_keys: split_keys(),
    };
    let table = fleet.client().create_table("t", &options);
    (service, fleet, table.expect("a new table"))
}

/// The primary of three servers is killed repeatedly, under load. Each time everything is served
/// again within five seconds, and the history is linearizable: acknowledged writes are present, and
/// nothing else than what was written.
#[test]
fn primaries_are_killed_under_load() {
    let (_service, mut fleet, table) = three();
    kills::primaries(&mut fleet, &table, Trial::default());
    end_at_rest(&fleet, &[&table]);
}

/// Regions are split under load, and servers are killed during that: each split took effect or not,
/// and the history is linearizable.
#[test]
fn splits_are_cut_short() {
    let (_service, mut fleet, table) = three();
    kills::splits(&mut fleet, &table, Trial::default());
    end_at_rest(&fleet, &[&table]);
}

/// All servers are killed at once, and restarted: everything acknowledged as durable is present.
#[test]
fn all_are_killed_at_once() {
    let (_service, mut fleet, table) = three();
    let table = table.with_durability(Durability::Sync);
    for round in 0..2_u64 {
        fleet.wait_replicated(&table, 3);
        for number in 0..200_u64 {
            let (key, value) = (format!("{number:02}"), format!("{round}-{number}"));
            table.put(key.as_bytes(), value.as_bytes()).expect("put");
        }
        for index in 0..3 {
            fleet.kill(index);
        }
        for index in 0..3 {
            fleet.start_server(index);
        }
        for number in 0..200_u64 {
            let (key, value) = (format!("{number:02}"), format!("{round}-{number}"));
            let found = table.get(key.as_bytes()).expect("it is served");
            assert_eq!(found, Some(value.into_bytes()), "key {key}, round {round}");
        }
    }
    end_at_rest(&fleet, &[&table]);
}

/// Writes with `memory` are on all disks about a second after the last write, even without further
/// writes: all servers are killed at once then, and the writes are present. With three replicas,
/// and with one.
#[test]
fn all_are_killed_when_nobody_writes_any_more() {
    let (_service, mut fleet, table) = three();
    let options = PersistentTableOptions {
        replica_count: 1,
        split_keys: Vec::new(),
    };
    let lone = fleet.client().create_table("lone", &options);
    let tables = [table, lone.expect("a new table")];
    fleet.wait_replicated(&tables[0], 3);
    fleet.wait_replicated(&tables[1], 1);
    let tables = tables.map(|table| table.with_durability(Durability::Memory));
    let keys = || (0..100_u64).map(|number| format!("{number:02}").into_bytes());
    for round in 0..2_u64 {
        let value = round.to_string().into_bytes();
        for table in &tables {
            keys().for_each(|key| table.put(&key, &value).expect("put"));
        }
        thread::sleep(Duration::from_millis(2500));
        for index in 0..3 {
            fleet.kill(index);
        }
        for index in 0..3 {
            fleet.start_server(index);
        }
        for table in &tables {
            for key in keys() {
                let found = table.get(&key).expect("it is served");
                assert_eq!(found, Some(value.clone()), "{key:?}, round {round}");
            }
        }
        fleet.wait_replicated(&tables[0], 3);
    }
    end_at_rest(&fleet, &[&tables[0]]);
}
