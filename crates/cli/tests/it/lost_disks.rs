//! Tests of servers that are lost together with their disks, one after the other, and replaced by
//! new ones.

use std::fmt::Write as _;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::Crew;

/// Servers to lose. The first server has the only coordinator: losing its disk is tested elsewhere.
const LOST: [usize; 3] = [2, 3, 4];
const PATIENCE: Duration = Duration::from_mins(1);

/// Amount of data to load.
struct Load {
    table_count: usize,
    record_count: u64,
}

/// Returns records with keys of 9 bytes and values of 1 to 23 bytes, in key order.
fn records(seed: u64, count: u64) -> String {
    let mut state = seed;
    let mut text = String::new();
    for number in 0..count {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let size_bytes = 1 + (state >> 33) as usize % 23;
        let _ = writeln!(text, "u{number:08}\t{}", "v".repeat(size_bytes));
    }
    text
}

/// Returns whether a JSON value mentions a server anywhere.
fn mentions(value: &Value, server: usize) -> bool {
    match value {
        Value::Object(fields) => fields
            .iter()
            .any(|(name, it)| (name == "server" && *it == server) || mentions(it, server)),
        Value::Array(items) => items.iter().any(|it| mentions(it, server)),
        _ => false,
    }
}

/// Waits until no region has a replica on a server, and there is no problem.
fn wait_replaced(crew: &Crew, server: usize) {
    let since = Instant::now();
    while mentions(&crew.status()["regions"], server) {
        assert!(
            since.elapsed() < PATIENCE,
            "server {server} is not replaced"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    crew.wait_whole();
}

/// Waits until `region compare` finds all replicas equal and complete.
fn wait_equal(crew: &Crew, servers: &[usize]) {
    let directories: Vec<String> = servers.iter().map(|it| format!("data-{it}")).collect();
    let mut arguments = vec!["region", "compare"];
    arguments.extend(directories.iter().map(String::as_str));
    let since = Instant::now();
    loop {
        let ran = crew.place.farleaf(&arguments);
        if ran.status == Some(0) && !ran.stdout.contains("not yet received") {
            assert!(ran.stdout.contains("3 replicas are equal"), "{ran:?}");
            return;
        }
        assert!(since.elapsed() < PATIENCE, "{ran:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn lose_each(load: &Load) {
    let mut crew = Crew::new(4);
    let loaded: Vec<(String, String)> = (0..load.table_count)
        .map(|it| (format!("t{it}"), records(it as u64, load.record_count)))
        .collect();
    for (table, records) in &loaded {
        crew.place.file("records", records);
        crew.run(&["load", "records", "--create", "-t", table]);
    }
    crew.wait_whole();
    let mut servers = vec![1, 2, 3, 4];
    wait_equal(&crew, &servers);
    for lost in LOST {
        crew.kill(lost);
        let directory = crew.place.path().join(format!("data-{lost}"));
        fs::remove_dir_all(directory).expect("its process has ended");
        let new = crew.servers.len() + 1;
        let server = crew.start(new, "0");
        crew.servers.push(server);
        servers.retain(|it| *it != lost);
        servers.push(new);
        wait_replaced(&crew, lost);
        for (table, records) in &loaded {
            let dumped = crew.run(&["dump", "-t", table]);
            assert!(dumped == *records, "table {table}, after server {lost}");
        }
        wait_equal(&crew, &servers);
    }
}

/// Promise: each server except the one with the only coordinator can be killed and lose its disk,
/// one after the other, and a new one joins each time. Every table has exactly the loaded records,
/// and all replicas hold the same files.
#[test]
fn each_server_is_lost_with_its_disk() {
    lose_each(&Load {
        table_count: 3,
        record_count: 60_000,
    });
}

/// Runs the test with more data: `cargo test --release -p farleaf-cli lost_disks -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn each_server_is_lost_with_its_disk_and_much_is_there() {
    lose_each(&Load {
        table_count: 8,
        record_count: 1_500_000,
    });
}
