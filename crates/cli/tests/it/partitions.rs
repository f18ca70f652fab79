//! Tests of tables over several pools, each served by a process of its own.

use crate::pool::{Place, lines};

const POOLS: [&str; 2] = ["--pool", "shm:a,shm:b"];

fn run(place: &Place, arguments: &[&str]) -> String {
    place.farleaf(&[&POOLS, arguments].concat()).quietly()
}

/// Promise: the commands for a table of one server also create, load, read, write, list, describe
/// and drop a table over two servers. Each server has its part of the keys.
#[test]
fn a_table_over_two_servers_is_a_table() {
    let place = Place::new();
    let _servers = ["a", "b"].map(|name| place.serve(&["--size", "8MiB", "--name", name]));
    for index in ["learned", "xstore", "rpc"] {
        let created = [
            "table", "create", "default", "--bounds", "1000", "--index", index,
        ];
        assert_eq!(
            run(&place, &created),
            "created table 'default' of 2 parts, bounds 1000\n"
        );
        place.file(
            "records.txt",
            lines((0..2_000).map(|key| format!("{key}\t{}", key + 7))),
        );
        let loaded = run(&place, &["load", "records.txt"]);
        assert!(
            loaded.starts_with("loaded 2,000 records of records.txt into"),
            "{loaded}"
        );
        assert_eq!(
            run(&place, &["get", "1500", "3", "999"]),
            "1500\t1507\n3\t10\n999\t1006\n"
        );
        assert_eq!(run(&place, &["put", "5000", "1"]), "inserted 5000\n");
        assert_eq!(
            run(&place, &["put", "999", "1"]),
            "updated 999 (previous value 1006)\n"
        );
        assert_eq!(
            run(&place, &["del", "1000"]),
            "deleted 1000 (previous value 1007)\n"
        );
        assert_eq!(
            run(&place, &["scan", "--from", "998", "--limit", "3"]),
            "998\t1005\n999\t1\n1001\t1008\n"
        );
        let all = run(&place, &["scan", "--limit", "0"]);
        assert_eq!(all.lines().count(), 2_000);
        check_told(&place, index);
        assert_eq!(
            run(&place, &["table", "drop", "default"]),
            "dropped table 'default'\n"
        );
        assert_eq!(
            run(&place, &["table", "list"]),
            "no tables over shm:a,shm:b; create one with `farleaf table create NAME`\n"
        );
    }
}

/// Asserts that the table, its parts and their records are listed and described.
fn check_told(place: &Place, index: &str) {
    let list = run(place, &["table", "list"]);
    assert!(
        list.contains("bounds") && list.contains(index) && list.contains("1000"),
        "{list}"
    );
    let part = place
        .farleaf(&["--pool", "shm:b", "table", "list"])
        .quietly();
    let description = "table 'default' is part 1 of 2 of a table over several pools: keys 1000 to \
                    18446744073709551615\n";
    assert!(part.ends_with(description), "{part}");
    let stats = run(place, &["stats", "-t", "default", "--output", "json"]);
    let records: Vec<&str> = stats
        .lines()
        .filter_map(|line| line.split("\"records\":").nth(1)?.split(',').next())
        .collect();
    assert_eq!(records, ["1000", "1000"], "{stats}");
    assert!(
        stats.contains(r#""part":{"number":0,"count":2,"from":0,"to":999}"#),
        "{stats}"
    );
    let stats = run(place, &["stats"]);
    assert!(
        stats.contains("shm:a: 8 MiB") && stats.contains("\nshm:b: 8 MiB"),
        "{stats}"
    );
}

/// Promise: a load that creates the table divides it so that each server has the same number of
/// records. A load into an existing table writes by key.
#[test]
fn a_load_shares_the_records() {
    let place = Place::new();
    let _servers = ["a", "b"].map(|name| place.serve(&["--size", "8MiB", "--name", name]));
    place.file("keys.txt", lines((0..600_u64).map(|key| key * key)));
    run(&place, &["load", "keys.txt", "--create"]);
    let list = run(&place, &["table", "list", "--output", "json"]);
    assert!(list.ends_with("\"bounds\":[90000]}\n"), "{list}");
    let again = run(&place, &["load", "keys.txt", "--create"]);
    assert!(again.contains("0 inserted, 600 updated"), "{again}");
    let mut command = place.command(&["get", "90000"]);
    let ran = command.env("FARLEAF_POOL", "shm:a,shm:b").output();
    assert_eq!(ran.expect("it starts").stdout, b"90000\t90000\n");
}

/// Promise: when a server has ended, keys of the others can still be read and written, and an error
/// about other keys names the part.
#[test]
fn a_lost_server_takes_its_part_alone() {
    let place = Place::new();
    let _first = place.serve(&["--size", "8MiB", "--name", "a"]);
    let mut second = place.serve(&["--size", "8MiB", "--name", "b"]);
    run(&place, &["table", "create", "default", "--bounds", "10"]);
    second.signal(rustix::process::Signal::KILL);
    second.end();
    let ran = place.farleaf(&[&POOLS[..], &["get", "1"]].concat());
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("shm:b cannot be reached"), "{ran:?}");
    let ran = place.farleaf(&["--pool", "shm:a", "table", "drop", "default"]);
    assert!(ran.stderr.contains("is part 0 of 2"), "{ran:?}");
    let dropped = ["--pool", "shm:a", "table", "drop", "default", "--part"];
    assert_eq!(
        place.farleaf(&dropped).quietly(),
        "dropped the part of table 'default' in shm:a\n"
    );
}

/// Promise: all workloads run correctly on a table over several servers, with the user's library,
/// and the report has the number of servers.
#[test]
fn all_workloads_run_over_two_pools() {
    let place = Place::new();
    let ran = place.farleaf(&[
        "bench",
        "ycsb",
        "--index",
        "xstore",
        "--partitions",
        "2",
        "--records",
        "2k",
        "--operations",
        "2k",
        "--format",
        "json",
    ]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 6);
    for line in ran.stdout.lines() {
        assert!(line.contains("\"partitions\":2"), "{line}");
        assert!(line.contains("\"errors\":0,\"missing\":0"), "{line}");
    }
}
