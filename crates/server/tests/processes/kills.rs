//! Primaries that are killed; all servers that are.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::{Durability, PersistentTable, PersistentTableOptions};

use crate::check::check;
use crate::children::Fleet;
use crate::history::{Act, History, Operation};
use crate::kill_count;
use crate::load::{CLIENT_COUNT, Course, KEY_COUNT, Over, key_of, work};

/// Leases are of a second; then somebody else is to serve.
const AWAY_TIME_MAX: Duration = Duration::from_secs(5);

fn options(replica_count: usize) -> PersistentTableOptions {
    PersistentTableOptions {
        replica_count,
        split_keys: vec![b"33".to_vec(), b"66".to_vec()],
    }
}

/// How long it takes until each region takes a write again.
fn wait_served(table: &PersistentTable) -> Duration {
    let since = Instant::now();
    for key in [&b"00-probe"[..], b"50-probe", b"90-probe"] {
        while let Err(error) = table.put(key, b"probe") {
            assert!(error.is_outcome_unknown(), "{error}");
        }
    }
    since.elapsed()
}

/// All keys, read at the end, belong to the history.
fn read_all(table: &PersistentTable, history: &History) {
    for number in 0..KEY_COUNT {
        let begun_ns = history.now_ns();
        let found = table.get(&key_of(number)).expect("it is served");
        let found = found.map(|bytes| u64::from_le_bytes(bytes[..8].try_into().expect("8")));
        let operation = Operation {
            act: Act::Read(found),
            begun_ns,
            ended_ns: Some(history.now_ns()),
        };
        history.note(number, operation);
    }
}

fn check_all(history: History) {
    for (key, operations) in history.into_keys() {
        if let Err(how) = check(&operations) {
            panic!("key {key} is not linearizable: {how}");
        }
    }
}

/// Promise: of three servers the one that is primary is killed again and again, under load. Each
/// time all is served again within five seconds, and everything that was done is linearizable: what
/// was acknowledged is there, and nothing else than what was written.
#[test]
fn primaries_are_killed_under_load() {
    let mut fleet = Fleet::start(3);
    let cluster = fleet.client();
    let table = cluster.create_table("t", &options(3)).expect("a new table");
    fleet.wait_whole(&table, 3);
    let (history, course) = (History::new(), Course::default());
    let mut away = Vec::new();
    thread::scope(|scope| {
        let _over = Over(&course);
        for seed in 0..CLIENT_COUNT {
            let of = (&history, &course);
            let cluster = cluster.clone();
            scope.spawn(move || work(&cluster, "t", of, seed + 1));
        }
        for _ in 0..kill_count(3) {
            thread::sleep(Duration::from_millis(300));
            let primary = fleet.primary(&table).expect("the region has one");
            fleet.kill(primary);
            away.push(wait_served(&table));
            fleet.start_server(primary);
            fleet.wait_whole(&table, 3);
        }
    });
    read_all(&table, &history);
    let done_count = course.done_count.load(Ordering::Relaxed);
    let unknown_count = course.unknown_count.load(Ordering::Relaxed);
    away.sort();
    eprintln!(
        "{} kills: away {:?} (median), {:?} (longest); {done_count} operations done, \
         {unknown_count} unknown",
        away.len(),
        away[away.len() / 2],
        away[away.len() - 1]
    );
    assert!(away.iter().all(|away| *away < AWAY_TIME_MAX), "{away:?}");
    assert!(done_count > 100, "{done_count}");
    check_all(history);
}

/// Promise: regions are split under load, and servers killed in the middle of it: the split was, or
/// it was not, and everything that was done is linearizable.
#[test]
fn splits_are_cut_short() {
    let mut fleet = Fleet::start(3);
    let cluster = fleet.client();
    let table = cluster.create_table("t", &options(3)).expect("a new table");
    fleet.wait_whole(&table, 3);
    let (history, course) = (History::new(), Course::default());
    thread::scope(|scope| {
        let _over = Over(&course);
        for seed in 0..CLIENT_COUNT {
            let of = (&history, &course);
            let cluster = cluster.clone();
            scope.spawn(move || work(&cluster, "t", of, seed + 77));
        }
        for round in 0..kill_count(3) {
            thread::sleep(Duration::from_millis(100));
            fleet.wish_split(&table, key_of(round * 7 % KEY_COUNT));
            // From before it is begun until it is done.
            thread::sleep(Duration::from_millis(round * 13 % 120));
            let killed = match fleet.primary(&table) {
                Some(primary) if round % 3 < 2 => primary,
                _ => (round % 3) as usize,
            };
            fleet.kill(killed);
            wait_served(&table);
            fleet.start_server(killed);
            fleet.wait_whole(&table, 3);
        }
    });
    read_all(&table, &history);
    eprintln!(
        "{} regions; {} operations done, {} unknown",
        fleet.region_count(&table),
        course.done_count.load(Ordering::Relaxed),
        course.unknown_count.load(Ordering::Relaxed)
    );
    check_all(history);
}

/// Promise: all servers are killed at once, and started again: what was acknowledged as durable is
/// there.
#[test]
fn all_are_killed_at_once() {
    let mut fleet = Fleet::start(3);
    let cluster = fleet.client();
    let table = cluster.create_table("t", &options(3)).expect("a new table");
    let table = table.with_durability(Durability::Sync);
    for round in 0..2_u64 {
        fleet.wait_whole(&table, 3);
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
}
