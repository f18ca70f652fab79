//! Tests of tables and records, with one process per command.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use flate2::{Compression, write::GzEncoder};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::pool::{Place, end, lines, send};

fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// Returns the records of a table: key, tab, value.
fn all_records(place: &Place, table: &str) -> String {
    place
        .farleaf(&["scan", "--limit", "0", "--table", table])
        .quietly()
}

/// Promise: tables can be created, listed by name with their options, and dropped.
#[test]
fn tables_come_and_go() {
    let place = Place::new();
    let _server = place.serve(&["--size", "8MiB"]);
    let rolex = ["table", "create", "b", "--index", "rolex", "--slots", "16"];
    let rolex = [&rolex[..], &["--fill", "50", "--epsilon", "0.5"]].concat();
    assert_eq!(place.farleaf(&rolex).quietly(), "created table 'b'\n");
    place.farleaf(&["table", "create", "a"]).quietly();
    let list = place
        .farleaf(&["table", "list", "--output", "json"])
        .quietly();
    let list = json_lines(&list);
    assert_eq!(list[0]["name"], "a");
    let options = json!({"name": "b", "id": 1, "kind": "words", "slots": 16, "index": "rolex", "fill_percent": 50,
        "epsilon_keys": 0.5});
    assert_eq!((list.len(), &list[1]), (2, &options));
    let text = place.farleaf(&["table", "list"]).quietly();
    assert!(text.contains("rolex") && text.contains("50 %"), "{text}");
    assert_eq!(
        place.farleaf(&["table", "drop", "b"]).quietly(),
        "dropped table 'b'\n"
    );
    assert!(
        !place
            .farleaf(&["table", "list"])
            .quietly()
            .contains("rolex")
    );
}

/// Promise: records that one process loads and writes can be read, scanned and deleted by others,
/// including both ends of the key domain. Absent keys are reported on stderr and end with status 1.
#[test]
fn records_are_seen_by_all_processes() {
    let place = Place::new();
    let _server = place.serve(&["--size", "16MiB"]);
    place.file(
        "records.csv",
        format!("{},7\n0,1\n10,11\n20,21\n", u64::MAX),
    );
    let loaded = place
        .farleaf(&["load", "records.csv", "--create"])
        .quietly();
    assert!(
        loaded.starts_with("loaded 4 records of records.csv into table 'default'"),
        "{loaded}"
    );
    let got = place
        .farleaf(&["get", "20", "18446744073709551615", "0"])
        .quietly();
    assert_eq!(got, "20\t21\n18446744073709551615\t7\n0\t1\n");
    assert_eq!(
        place.farleaf(&["put", "15", "16"]).quietly(),
        "inserted 15\n"
    );
    assert_eq!(
        place.farleaf(&["put", "15", "17"]).quietly(),
        "updated 15 (previous value 16)\n"
    );
    assert_eq!(place.farleaf(&["get", "15"]).quietly(), "15\t17\n");
    assert_eq!(
        place.farleaf(&["del", "0"]).quietly(),
        "deleted 0 (previous value 1)\n"
    );
    for absent in [
        place.farleaf(&["get", "0", "10"]),
        place.farleaf(&["del", "0", "10"]),
    ] {
        assert_eq!(absent.status, Some(1));
        assert_eq!(absent.stderr, "key 0 is absent from table 'default'\n");
        assert!(
            absent.stdout.contains("10"),
            "the other key was left out: {absent:?}"
        );
    }
    let got = place.farleaf(&["get", "15", "16", "--output", "json"]);
    assert_eq!((got.status, got.stderr.as_str()), (Some(1), ""));
    let found = [
        json!({"key": 15, "value": 17}),
        json!({"key": 16, "value": null}),
    ];
    assert_eq!(json_lines(&got.stdout), found);
    assert_eq!(
        all_records(&place, "default"),
        "15\t17\n20\t21\n18446744073709551615\t7\n"
    );
}

/// Promise: a scan respects its bounds, both inclusive, and its limit, and prints lines that `load`
/// can read.
#[test]
fn scans_keep_to_bounds_and_limits() {
    let place = Place::new();
    let _server = place.serve(&["--size", "16MiB"]);
    place.file("keys.txt", lines((0..1_000).map(|index| index * 3)));
    place.farleaf(&["load", "keys.txt", "--create"]).quietly();
    let scan = |arguments: &[&str]| place.farleaf(&[&["scan"], arguments].concat()).quietly();
    assert_eq!(scan(&["--from", "4", "--to", "12"]), "6\t6\n9\t9\n12\t12\n");
    let stopped = place.farleaf(&["scan"]);
    assert_eq!(
        (stopped.status, stopped.stdout.lines().count()),
        (Some(0), 100)
    );
    assert!(
        stopped.stderr.contains("--limit 0 prints all"),
        "{stopped:?}"
    );
    assert_eq!(scan(&["--limit", "0"]).lines().count(), 1_000);
    assert_eq!(scan(&["--from", "2997", "--limit", "1k"]), "2997\t2997\n");
    assert_eq!(scan(&["--from", "3000"]), "");
    assert_eq!(
        scan(&["--reverse", "--from", "4", "--to", "12"]),
        "12\t12\n9\t9\n6\t6\n"
    );
    assert_eq!(
        scan(&["--reverse", "--limit", "2"]),
        "2997\t2997\n2994\t2994\n"
    );
    assert_eq!(scan(&["--reverse", "--to", "11", "--limit", "1"]), "9\t9\n");
    let down = scan(&["--reverse", "--limit", "0", "--keys-only"]);
    assert!(
        down.lines()
            .rev()
            .eq((0..1_000).map(|index| (index * 3).to_string()))
    );
    let object = scan(&["--limit", "1", "--output", "json"]);
    assert_eq!(json_lines(&object), [json!({"key": 0, "value": 0})]);
    let all = scan(&["--limit", "0"]);
    let copied = place.farleaf_with_stdin(&["load", "-", "--create", "-t", "copy"], all.as_bytes());
    assert!(
        copied
            .quietly()
            .starts_with("loaded 1,000 records of stdin into table 'copy'")
    );
    assert_eq!(all_records(&place, "copy"), all);
}

/// Promise: a reader that closes the pipe, as `head` does, ends a scan without an error.
#[test]
fn a_reader_that_goes_away_ends_a_scan_quietly() {
    let place = Place::new();
    let _server = place.serve(&["--size", "32MiB"]);
    place.file("keys.txt", lines(0..100_000));
    place.farleaf(&["load", "keys.txt", "--create"]).quietly();
    let mut scan = place.command(&["scan", "--limit", "0"]);
    let mut child = scan
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut reader = BufReader::with_capacity(16, child.stdout.take().expect("piped"));
    let mut first = String::new();
    reader.read_line(&mut first).expect("a line");
    assert_eq!(first, "0\t0\n");
    drop(reader);
    assert_eq!(end(&mut child), (Some(0), String::new()));
}

/// Promise: gzip files are loaded like plain files. Records of a file are added one by one to a
/// table that has records, and the message has the number of new ones.
#[test]
fn a_second_load_adds_to_the_table() {
    let place = Place::new();
    let _server = place.serve(&["--size", "16MiB"]);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed
        .write_all(lines(0..1_000).as_bytes())
        .expect("in memory");
    place.file("first.gz", packed.finish().expect("in memory"));
    place.file(
        "second.txt",
        lines((990..1_100).rev().map(|key| format!("{key} 5"))),
    );
    place.farleaf(&["load", "first.gz", "--create"]).quietly();
    let second = place.farleaf(&["load", "second.txt"]).quietly();
    let message = "wrote 110 records of second.txt into table 'default', which had records: 100 \
                inserted, 10 updated\n";
    assert_eq!(second, message);
    assert_eq!(
        place.farleaf(&["get", "989", "990", "1099"]).quietly(),
        "989\t989\n990\t5\n1099\t5\n"
    );
    // An emptied table still counts as one that has had records.
    place.file("few.txt", "1\n2\n");
    place
        .farleaf(&["load", "few.txt", "--create", "-t", "few"])
        .quietly();
    place.farleaf(&["del", "-t", "few", "1", "2"]).quietly();
    let again = place.farleaf(&["load", "few.txt", "-t", "few"]).quietly();
    assert!(
        again.contains(" 2 ") || again.contains(": 2 inserted"),
        "{again}"
    );
    assert_eq!(all_records(&place, "few"), "1\t1\n2\t2\n");
}

/// Returns the N of "only N of ...".
fn written_count(stderr: &str) -> u64 {
    let (_, rest) = stderr.split_once("only ").expect("it tells how many");
    let (count, _) = rest.split_once(" of ").expect("and of how many");
    count.replace(',', "").parse().expect("a count")
}

/// Promise: when the pool is full, a load into an empty table leaves it empty and says so, and says
/// whether it has created the table. A load into another table reports exactly how many records
/// were written, and those are there.
#[test]
fn a_full_pool_is_told_with_what_was_loaded() {
    let place = Place::new();
    let _server = place.serve(&["--size", "4MiB"]);
    place.file("keys.txt", lines(1..=300_000));
    let refused = place.farleaf(&["load", "keys.txt", "--create"]);
    assert_eq!((refused.status, refused.stdout.as_str()), (Some(1), ""));
    let message = "nothing was loaded; the new table 'default' remains: the pool is \
                full";
    assert!(refused.stderr.contains(message), "{refused:?}");
    assert_eq!(all_records(&place, "default"), "");
    for again in [&["load", "keys.txt"][..], &["load", "keys.txt", "--create"]] {
        let refused = place.farleaf(again);
        let message = "error: nothing was loaded: the pool is full";
        assert!(refused.stderr.starts_with(message), "{refused:?}");
    }
    place.farleaf(&["put", "0", "9"]).quietly();
    let partly = place.farleaf(&["load", "keys.txt"]);
    assert_eq!((partly.status, partly.stdout.as_str()), (Some(1), ""));
    let message = &partly.stderr;
    assert!(
        message.contains(" of 300,000 records") && message.contains("the pool is full"),
        "{message}"
    );
    let count = written_count(message);
    assert!(count > 1_000, "{message}");
    assert!(
        message.contains(&format!("the keys up to {count}, and")),
        "{message}"
    );
    let found = all_records(&place, "default").lines().count() as u64 - 1;
    // The record at which the load stopped is "perhaps" in the table.
    assert!(
        found == count || found == count + 1,
        "{found} records, {message}"
    );
}

/// Promise: a load that is interrupted between records reports how many were written, and those are
/// there.
#[test]
fn an_interrupted_load_says_how_far_it_came() {
    let place = Place::new();
    let _server = place.serve(&["--size", "256MiB"]);
    place.file("keys.txt", lines(1..=4_000_000));
    place
        .farleaf(&["table", "create", "default", "--kind", "words"])
        .quietly();
    place.farleaf(&["put", "0", "0"]).quietly();
    let mut load = place.command(&["load", "keys.txt", "-v"]);
    let mut child = load.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut log = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    log.read_line(&mut line).expect("a line");
    assert!(line.contains("writing record by record"), "{line}");
    send(&child, Signal::INT);
    line.clear();
    log.read_line(&mut line).expect("a line");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert!(
        line.contains(" of 4,000,000 records") && line.contains("interrupted"),
        "{line}"
    );
    let found = all_records(&place, "default").lines().count() as u64 - 1;
    assert_eq!(found, written_count(&line), "{line}");
}

/// Promise: stats show the contents of each table, and the costs of the command.
#[test]
fn stats_tell_what_is_there() {
    let place = Place::new();
    let _server = place.serve(&["--size", "16MiB"]);
    place.file("keys.txt", lines((0..6_000).map(|index| index * 7)));
    place.farleaf(&["load", "keys.txt", "--create"]).quietly();
    place.farleaf(&["table", "create", "another"]).quietly();
    let stats = place.farleaf(&["stats", "-o", "json"]).quietly();
    let stats: Value = serde_json::from_str(&stats).expect("one object");
    assert_eq!(stats["pool"]["address"], "shm:default");
    assert_eq!(stats["pool"]["tables"], 2);
    assert_eq!(stats["tables"][0]["name"], "another");
    let table = &stats["tables"][1];
    assert_eq!(
        (&table["records"], &table["leaves"]),
        (&json!(6_000), &json!(1_000))
    );
    assert_eq!(
        (&table["sound"], &table["locked_leaves"]),
        (&json!(true), &json!(0))
    );
    assert_eq!(table["fill"], 0.75);
    for positive in ["models", "metadata_bytes", "memory_bytes", "generation"] {
        assert!(
            table[positive].as_u64().is_some_and(|it| it > 0),
            "{positive}: {table}"
        );
    }
    assert_eq!(stats["counters"][0]["kind"], "control");
    assert!(
        stats["counters"][0]["round_trips"]
            .as_u64()
            .is_some_and(|it| it >= 1_000)
    );
    let text = place.farleaf(&["stats", "--table", "default"]).quietly();
    assert!(text.contains("6,000") && text.contains("75.0 %"), "{text}");
    assert!(!text.contains("another") && text.lines().all(|line| line.chars().count() <= 100));
}

/// Promise: -v logs the round trips of an operation.
#[test]
fn verbose_tells_costs() {
    let place = Place::new();
    let _server = place.serve(&["--size", "8MiB"]);
    place.farleaf(&["table", "create", "default"]).quietly();
    place.farleaf(&["put", "1", "2"]).quietly();
    let got = place.farleaf(&["get", "1", "-v"]);
    assert_eq!((got.status, got.stdout.as_str()), (Some(0), "1\t2\n"));
    assert!(
        got.stderr
            .contains("cost of get operations=1 round_trips=1 "),
        "{}",
        got.stderr
    );
}
