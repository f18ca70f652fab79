//! Tests of tables of byte strings, with one process per command.

use std::io::Write;

use farleaf::key::text::to_hex;
use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};

use crate::pool::{Place, lines};

fn served() -> (Place, crate::pool::Server) {
    let place = Place::new();
    let server = place.serve(&["--size", "64MiB"]);
    (place, server)
}

/// Returns what a command writes to stdout, byte for byte.
fn bytes_of(place: &Place, arguments: &[&str]) -> Vec<u8> {
    let output = place.command(arguments).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Returns records with every byte in keys and in values, and with sizes from zero to more than a
/// page.
fn all_bytes() -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut records = vec![
        (Vec::new(), Vec::new()),
        ("é\u{301}\u{202e}\"\\".into(), b"text".to_vec()),
        (vec![0xFF; 4096], vec![0x80; 70_000]),
        ((0..=255).collect(), (0..=255).rev().collect()),
    ];
    for byte in 0..=255 {
        records.push((vec![b'k', byte], vec![byte; usize::from(byte)]));
    }
    records.sort();
    records
}

/// Formats records as hexadecimal JSON lines, not in key order.
fn hex_lines(records: &[(Vec<u8>, Vec<u8>)]) -> String {
    lines(
        records
            .iter()
            .rev()
            .map(|(key, value)| json!({"key_hex": to_hex(key), "value_hex": to_hex(value)})),
    )
}

/// Promise: keys and values are the bytes of the arguments. Previous values and absent keys are
/// reported as for numbers. A table without a kind is one of bytes.
#[test]
fn strings_are_put_got_and_deleted() {
    let (place, _server) = served();
    let run = |arguments: &[&str]| place.farleaf(arguments);
    assert_eq!(
        run(&["table", "create", "default"]).quietly(),
        "created table 'default'\n"
    );
    assert_eq!(
        run(&["put", "user:1", "al ice"]).quietly(),
        "inserted user:1\n"
    );
    assert_eq!(
        run(&["put", "user:1", "bob\t\n\\"]).quietly(),
        "updated user:1 (previous value al ice)\n"
    );
    assert_eq!(run(&["put", "-1", "-2"]).quietly(), "inserted -1\n");
    assert_eq!(run(&["put", "", ""]).quietly(), "inserted \n");
    assert_eq!(
        run(&["get", "user:1", "-1", ""]).quietly(),
        "user:1\tbob\\t\\n\\\\\n-1\t-2\n\t\n"
    );
    let got = run(&["get", "none\n", "-1"]);
    assert_eq!(got.status, Some(1));
    assert_eq!(got.stdout, "-1\t-2\n");
    assert_eq!(got.stderr, "key none\\n is absent from table 'default'\n");
    let got = run(&["get", "user:1", "none", "-o", "json"]);
    assert_eq!((got.status, got.stderr.as_str()), (Some(1), ""));
    assert_eq!(
        got.stdout,
        "{\"key\":\"user:1\",\"value\":\"bob\\t\\n\\\\\"}\n{\"key\":\"none\",\"value\":null}\n"
    );
    let deleted = run(&["del", "none", "user:1"]);
    assert_eq!(deleted.status, Some(1));
    assert_eq!(
        deleted.stdout,
        "deleted user:1 (previous value bob\\t\\n\\\\)\n"
    );
    assert_eq!(deleted.stderr, "key none is absent from table 'default'\n");
}

/// Promise: any byte can be given and printed, with `--hex` or `--escaped`. Without them, output is
/// escaped, and in JSON hexadecimal if it is invalid UTF-8.
#[test]
fn any_byte_can_be_given_and_is_shown() {
    let (place, _server) = served();
    let run = |arguments: &[&str]| place.farleaf(arguments).quietly();
    run(&["table", "create", "default"]);
    assert_eq!(run(&["put", "--hex", "00Ff", "c3"]), "inserted 00ff\n");
    assert_eq!(
        run(&["put", "--escaped", "\\x00\\xff", "a\\tb\\x0a"]),
        "updated \\x00\\xff (previous value \\xc3)\n"
    );
    assert_eq!(run(&["get", "--hex", "00ff"]), "00ff\t6109620a\n");
    assert_eq!(run(&["scan"]), "\\x00\\xff\ta\\tb\\n\n");
    assert_eq!(
        run(&["scan", "-o", "json"]),
        "{\"key_hex\":\"00ff\",\"value\":\"a\\tb\\n\"}\n"
    );
    assert_eq!(
        run(&["scan", "--hex", "-o", "json"]),
        "{\"key_hex\":\"00ff\",\"value_hex\":\"6109620a\"}\n"
    );
}

/// Promise: a value is read unchanged from a file or stdin, and written unchanged to stdout,
/// whatever its bytes and its size. An absent key writes nothing.
#[test]
fn values_go_in_and_out_as_they_are() {
    let (place, _server) = served();
    place.farleaf(&["table", "create", "default"]).quietly();
    let value: Vec<u8> = (0..300_000_u32)
        .map(|index| (index * 7 >> 3) as u8)
        .collect();
    place.file("value.bin", &value);
    let put = ["put", "file", "--value-file", "value.bin"];
    assert_eq!(place.farleaf(&put).quietly(), "inserted file\n");
    let put = ["put", "stdin", "--value-file", "-"];
    assert_eq!(
        place.farleaf_with_stdin(&put, &value).quietly(),
        "inserted stdin\n"
    );
    for key in ["file", "stdin"] {
        assert!(bytes_of(&place, &["get", "--raw", key]) == value, "{key}");
    }
    assert_eq!(
        place.farleaf(&["put", "file", ""]).quietly(),
        "updated file (previous value of 300,000 bytes)\n"
    );
    assert_eq!(bytes_of(&place, &["get", "--raw", "file"]), b"");
    let absent = place.farleaf(&["get", "--raw", "none"]);
    assert_eq!((absent.status, absent.stdout.as_str()), (Some(1), ""));
    assert_eq!(absent.stderr, "key none is absent from table 'default'\n");
}

/// Promise: scans respect their bounds, both inclusive, their prefix and their limit, in either
/// order, with values or without. A prefix is deleted with all its keys and no others.
#[test]
fn scans_and_prefixes_are_exact() {
    let (place, _server) = served();
    let run = |arguments: &[&str]| place.farleaf(arguments).quietly();
    let keys: Vec<String> = (0..500).map(|number| format!("k{number:03}")).collect();
    place.file(
        "keys.tsv",
        lines(keys.iter().map(|key| format!("{key}\tv{key}"))),
    );
    let loaded = run(&["load", "keys.tsv", "--create"]);
    assert!(
        loaded.starts_with("loaded 500 records of keys.tsv into table 'default' (pages "),
        "{loaded}"
    );
    assert_eq!(place.farleaf(&["scan"]).stdout.lines().count(), 100);
    let hex = run(&["dump", "--hex"]);
    assert!(hex.starts_with("6b303030\t766b303030\n"), "{hex}");
    place.file("hex.tsv", &hex);
    place.file("raw.tsv", "\u{feff}C:\\new\ta\tb\n");
    run(&["load", "raw.tsv", "--raw", "--create", "-t", "raw"]);
    let raw = run(&["dump", "--hex", "-t", "raw"]);
    assert_eq!(
        raw, "efbbbf433a5c6e6577\t610962\n",
        "raw bytes are kept, a mark too"
    );
    run(&["table", "create", "numbers", "--kind", "words"]);
    place.file("numbers.tsv", run(&["dump", "-t", "numbers"]));
    let copied = place.farleaf(&["load", "numbers.tsv", "--create", "-t", "copy"]);
    assert_eq!(copied.stderr, "numbers.tsv is empty: 0 records loaded\n");
    assert_eq!(
        copied.stdout,
        "loaded 0 records of numbers.tsv into table 'copy', which holds byte strings\n"
    );
    run(&["load", "hex.tsv", "--hex", "--create", "-t", "hex"]);
    assert_eq!(run(&["dump", "-t", "hex"]), run(&["dump"]));
    let all = run(&["scan", "--limit", "0", "--keys-only"]);
    assert_eq!(all, lines(&keys));
    let reversed = run(&["scan", "--limit", "0", "--keys-only", "--reverse"]);
    assert_eq!(reversed, lines(keys.iter().rev()));
    for first in [&["scan", "k007"][..], &["scan", "--from", "k007"]] {
        let bounded = run(&[first, &["--to", "k009"]].concat());
        assert_eq!(bounded, "k007\tvk007\nk008\tvk008\nk009\tvk009\n");
    }
    let last = run(&["scan", "--prefix", "k49", "--reverse", "--limit", "2"]);
    assert_eq!(last, "k499\tvk499\nk498\tvk498\n");
    assert_eq!(run(&["scan", "--prefix", "k49"]).lines().count(), 10);
    let objects = run(&["scan", "--prefix", "k499", "--keys-only", "-o", "json"]);
    assert_eq!(objects, "{\"key\":\"k499\"}\n");
    assert_eq!(run(&["scan", "--prefix", "none"]), "");
    assert_eq!(
        run(&["del", "--prefix", "k1"]),
        "deleted 100 keys that began with k1\n"
    );
    let left = keys.iter().filter(|key| !key.starts_with("k1"));
    assert_eq!(run(&["scan", "--limit", "0", "--keys-only"]), lines(left));
    let again = place.farleaf(&["del", "--prefix", "k1"]);
    assert_eq!((again.status, again.stdout.as_str()), (Some(1), ""));
    assert_eq!(again.stderr, "no key of table 'default' begins with k1\n");
}

/// Promise: `load` reads the output of `dump`, in both formats, packed or not, in bulk into an
/// empty table and one by one into one that has records. That includes every byte, empty strings,
/// and strings larger than a page. A record is always one line.
#[test]
fn dumps_of_strings_load_byte_for_byte() {
    let (place, _server) = served();
    let records = all_bytes();
    place.file("first.json", hex_lines(&records));
    let first = [
        "load",
        "first.json",
        "--format",
        "json",
        "--create",
        "-t",
        "first",
    ];
    let loaded = place.farleaf(&first).quietly();
    assert!(
        loaded.starts_with("loaded 260 records of first.json"),
        "{loaded}"
    );
    for (key, value) in &records {
        let got = bytes_of(
            &place,
            &["get", "--raw", "--hex", &to_hex(key), "-t", "first"],
        );
        assert!(got == *value, "{}", to_hex(key));
    }
    for format in ["tsv", "json"] {
        let dump = |table| bytes_of(&place, &["dump", "--format", format, "-t", table]);
        let dumped = dump("first");
        assert_eq!(dumped.split_inclusive(|byte| *byte == b'\n').count(), 260);
        let text = String::from_utf8(dumped.clone()).expect("UTF-8");
        assert!(!text.contains(['\r', '\0', '\u{202e}', '\u{1b}']) || format == "json");
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&dumped).expect("in memory");
        place.file("dump.gz", packed.finish().expect("in memory"));
        let load = ["load", "dump.gz", "--format", format, "-t", format];
        let load_new = [&load[..], &["--create"]].concat();
        let loaded = place.farleaf(&load_new).quietly();
        assert!(loaded.starts_with("loaded 260 records"), "{loaded}");
        assert!(dump(format) == dumped, "{format}");
        let wrote = place.farleaf(&load).quietly();
        assert!(
            wrote.contains("which had records: 0 inserted, 260 updated"),
            "{wrote}"
        );
        assert!(dump(format) == dumped, "{format}");
    }
}

/// Promise: the dump of a table of numbers loads into another one, and creates one if there is
/// none.
#[test]
fn dumps_of_numbers_load() {
    let (place, _server) = served();
    place.file("words.csv", format!("{},7\n0,1\n10,11\n", u64::MAX));
    place.farleaf(&["load", "words.csv", "--create"]).quietly();
    for format in ["tsv", "json"] {
        let dump = |table| {
            place
                .farleaf(&["dump", "--format", format, "-t", table])
                .quietly()
        };
        let dumped = dump("default");
        place.file("dump", &dumped);
        let load = ["load", "dump", "--format", format, "--create", "-t", format];
        let loaded = place.farleaf(&load).quietly();
        assert!(loaded.starts_with("loaded 3 records of dump"), "{loaded}");
        assert_eq!(dump(format), dumped);
        let list = place.farleaf(&["table", "list", "-o", "json"]).quietly();
        assert_eq!(
            list.matches("\"kind\":\"words\"").count(),
            list.lines().count()
        );
    }
    assert_eq!(
        place
            .farleaf(&["dump", "--format", "json", "-t", "json"])
            .quietly(),
        "{\"key\":0,\"value\":1}\n{\"key\":10,\"value\":11}\n{\"key\":18446744073709551615,\"value\":7}\n"
    );
    let keys = place
        .farleaf(&["scan", "0", "--to", "10", "--keys-only"])
        .quietly();
    assert_eq!(keys, "0\n10\n");
}

/// Promise: numbers in a file are read as strings if `--kind` or an option for strings only
/// requests it. They then keep their zeros, and sort as strings.
#[test]
fn numbers_can_be_strings() {
    let (place, _server) = served();
    place.file("numbers.tsv", "10\t1\n9\t007\n");
    for options in [&["--kind", "bytes"][..], &["--page-size", "2048"]] {
        let load = [&["load", "numbers.tsv", "--create"], options].concat();
        place.farleaf(&load).quietly();
        assert_eq!(place.farleaf(&["dump"]).quietly(), "10\t1\n9\t007\n");
        place.farleaf(&["table", "drop", "default"]).quietly();
    }
}

/// Promise: lists and stats show the kind of a table, and count pages and value blocks.
#[test]
fn lists_and_stats_tell_the_kind() {
    let (place, _server) = served();
    let small = lines((0..2_000).map(|number| format!("key-{number:06}\tvalue")));
    let large = format!("large\t{}\n", "v".repeat(5_000));
    place.file("records.tsv", small + &large);
    let load = ["load", "records.tsv", "--create", "--page-size", "512"];
    let load = [&load[..], &["--inline-value", "64"]].concat();
    place.farleaf(&load).quietly();
    place
        .farleaf(&["table", "create", "w", "--slots", "8"])
        .quietly();
    let list = place.farleaf(&["table", "list", "-o", "json"]).quietly();
    let first: Value = serde_json::from_str(list.lines().next().expect("a line")).expect("JSON");
    let options = json!({"name": "default", "id": 1, "kind": "bytes", "index": "learned",
        "page_size_bytes": 512, "inline_value_size_bytes": 64, "fill_percent": 75,
        "epsilon_keys": 16.0});
    assert_eq!(first, options);
    let text = place.farleaf(&["table", "list"]).quietly();
    assert!(text.contains("bytes") && text.contains("words"), "{text}");
    let stats = place.farleaf(&["stats", "-o", "json"]).quietly();
    let stats: Value = serde_json::from_str(&stats).expect("one object");
    let [bytes, words] = [&stats["tables"][0], &stats["tables"][1]];
    assert_eq!(words["kind"], "words");
    for (name, value) in [
        ("kind", json!("bytes")),
        ("records", json!(2_001)),
        ("trained_records", json!(2_001)),
        ("value_blocks", json!(1)),
        ("locked_pages", json!(0)),
        ("sound", json!(true)),
    ] {
        assert_eq!(bytes[name], value, "{name}: {bytes}");
    }
    assert_eq!(bytes["pages"], bytes["trained_pages"]);
    let fill = bytes["fill"].as_f64().expect("a number");
    assert!((0.65..=0.8).contains(&fill), "{bytes}");
    let text = place.farleaf(&["stats", "-t", "default"]).quietly();
    assert!(
        text.contains("2,001") && text.contains("of bytes"),
        "{text}"
    );
    assert!(!text.contains("slots") && text.lines().all(|line| line.chars().count() <= 100));
}

/// Promise: a load that finds the pool full leaves an empty table empty. For a table that had
/// records, it reports how many were written, up to which key; those are there.
#[test]
fn a_full_pool_is_told_with_what_was_loaded() {
    let place = Place::new();
    let _server = place.serve(&["--size", "4MiB"]);
    let record = |number| format!("key-{number:06}\t{}", "v".repeat(100));
    place.file("records.tsv", lines((0..40_000).map(record)));
    let refused = place.farleaf(&["load", "records.tsv", "--create"]);
    assert_eq!((refused.status, refused.stdout.as_str()), (Some(1), ""));
    let message = "nothing was loaded; the new table 'default' remains: the pool is \
                full";
    assert!(refused.stderr.contains(message), "{refused:?}");
    assert_eq!(place.farleaf(&["dump"]).quietly(), "");
    place.farleaf(&["put", "a", "first"]).quietly();
    let partly = place.farleaf(&["load", "records.tsv"]);
    assert_eq!((partly.status, partly.stdout.as_str()), (Some(1), ""));
    let message = &partly.stderr;
    assert!(
        message.contains(" of 40,000 records") && message.contains("the pool is full"),
        "{message}"
    );
    let count = message
        .split_once("only ")
        .and_then(|(_, rest)| rest.split_once(" of "));
    let count = count.expect(message).0.replace(',', "");
    let count: usize = count.parse().expect("a count");
    assert!(count > 1_000, "{message}");
    let last = format!(
        "(the keys up to 'key-{:06}', and possibly 'key-{count:06}')",
        count - 1
    );
    assert!(message.contains(&last), "{message}");
    let found = place
        .farleaf(&["scan", "--limit", "0", "--keys-only"])
        .quietly();
    let found = found.lines().count() - 1;
    // The record at which the load stopped is "perhaps" in the table.
    assert!(
        found == count || found == count + 1,
        "{found} records, {message}"
    );
}

/// Promise: a table of byte strings in the node's own memory supports the same commands. Dumps can
/// be loaded from it into a table of pages, and from a table of pages into it. The records include
/// values transferred in parts and keys of every byte.
#[test]
fn tables_that_the_node_holds_take_the_same_commands() {
    let (place, _server) = served();
    let run = |arguments: &[&str]| place.farleaf(arguments).quietly();
    run(&[
        "table", "create", "held", "--kind", "bytes", "--index", "rpc",
    ]);
    let listed = run(&["table", "list", "-o", "json"]);
    let listed: Value = serde_json::from_str(&listed).expect("one table");
    assert_eq!(
        (&listed["kind"], &listed["index"]),
        (&json!("bytes"), &json!("rpc"))
    );
    assert_eq!(run(&["put", "-t", "held", "a", "1"]), "inserted a\n");
    assert_eq!(
        run(&["put", "-t", "held", "a", "2"]),
        "updated a (previous value 1)\n"
    );
    assert_eq!(run(&["get", "-t", "held", "a"]), "a\t2\n");
    assert_eq!(
        run(&["del", "-t", "held", "a"]),
        "deleted a (previous value 2)\n"
    );
    let records = all_bytes();
    place.file("records.json", hex_lines(&records));
    run(&["load", "records.json", "--format", "json", "-t", "held"]);
    let scan = ["scan", "-t", "held", "--hex", "-o", "json"];
    let shown = hex_lines(&records.iter().rev().cloned().collect::<Vec<_>>());
    assert_eq!(run(&[&scan[..], &["--limit", "0"]].concat()), shown);
    let reversed = run(&[&scan[..], &["--limit", "0", "--reverse"]].concat());
    assert_eq!(reversed, hex_lines(&records));
    let stats = run(&["stats", "-t", "held", "-o", "json"]);
    let stats: Value = serde_json::from_str(&stats).expect("a pool");
    assert_eq!(stats["tables"][0]["records"], json!(records.len()));
    let dumped = bytes_of(&place, &["dump", "-t", "held"]);
    place.file("dumped.tsv", &dumped);
    run(&[
        "load",
        "dumped.tsv",
        "--create",
        "--kind",
        "bytes",
        "-t",
        "paged",
    ]);
    assert_eq!(bytes_of(&place, &["dump", "-t", "paged"]), dumped);
    run(&[
        "load",
        "dumped.tsv",
        "--create",
        "--index",
        "rpc",
        "--page-size",
        "512",
        "-t",
        "again",
    ]);
    assert_eq!(bytes_of(&place, &["dump", "-t", "again"]), dumped);
    assert!(run(&["del", "-t", "held", "--prefix", "k"]).contains("256"));
    run(&["table", "drop", "held"]);
}
