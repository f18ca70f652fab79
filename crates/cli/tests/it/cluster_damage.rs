//! Tests of regions whose only replica is corrupted, and of commands that report it.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use crate::cluster::{Crew, refused, serve};
use crate::pool::{PATIENCE, lines};

const RECORD_COUNT: u64 = 40_000;

/// Returns the port of the first server.
fn port_of(crew: &Crew) -> String {
    let port = crew.cluster.rsplit(':').next();
    port.expect("a port").to_owned()
}

/// Returns the output of `cluster status` once a server has reported the problem.
fn wait_not_whole(crew: &Crew, problem: &str) -> String {
    let since = Instant::now();
    loop {
        let status = crew.farleaf(&["cluster", "status"]);
        if status.status == Some(1) && status.stdout.contains(problem) {
            return status.stdout;
        }
        assert!(since.elapsed() < PATIENCE, "{status:?}");
    }
}

/// Promise: for a record with a flipped bit, `get` reports the server, the file and the byte; other
/// records can be read. `cluster status` reports the same, and what to do. Regression test: it
/// reported no problems.
#[test]
fn a_damaged_region_is_told() {
    let mut crew = Crew::new(1);
    crew.kill(1);
    let small = [
        "--listen",
        &port_of(&crew),
        "--l0-size",
        "1MiB",
        "--cache",
        "1MiB",
    ];
    crew.servers[0] = serve(&crew.place, 1, &small);
    crew.run(&["table", "create", "default", "--replicas", "1"]);
    let value = |number: u64| format!("[{number:06}]").repeat(90);
    let records = lines((0..RECORD_COUNT).map(|number| format!("k{number:06}\t{}", value(number))));
    crew.place.file("records", &records);
    crew.run(&["load", "records"]);
    crew.wait_whole();

    let log = crew.place.path().join("data-1/regions/1-1/data-0/log");
    let bytes = fs::read(&log).expect("it is there");
    let first = value(7);
    let at = bytes
        .windows(64)
        .position(|it| it == &first.as_bytes()[..64]);
    let at = at.expect("it is in the log") as u64 + 100;
    let file = fs::OpenOptions::new().write(true).open(&log);
    let byte = bytes[at as usize] ^ 1;
    file.expect("there")
        .write_all_at(&[byte], at)
        .expect("written");

    let fragments = [
        "the log is corrupted at 0:",
        "(byte ",
        "data-1/regions/1-1/data-0/log)",
    ];
    let read = crew.farleaf(&["get", "k000007"]);
    refused(
        &read,
        1,
        &[&fragments[..], &["server 1 at ", "read failed on"]].concat(),
    );
    let whole = crew.run(&["get", "k000008"]);
    assert_eq!(whole, format!("k000008\t{}\n", value(8)));
    let status = wait_not_whole(&crew, "the log is corrupted");
    let more = [
        "region 1 is corrupted on server 1: ",
        "stop the server, restore the directory, and start the server again",
        "problems: 1 region has corruption that no replica can repair\n",
    ];
    for fragment in [&fragments[..], &more].concat() {
        assert!(status.contains(fragment), "no {fragment:?} in {status}");
    }
    let json = crew
        .farleaf(&["cluster", "status", "--output", "json"])
        .stdout;
    for fragment in [
        r#""faults":[{"region":1,"server":1,"is_replica":true,"is_broken":false,"#,
        r#""how":"the log is corrupted at"#,
    ] {
        assert!(json.contains(fragment), "no {fragment:?} in {json}");
    }
}

/// Promise: if the only replica's log has lost writes acknowledged as `sync`, status reports that,
/// the place and what to do, and nothing is served instead. When the file is restored, all records
/// are there. Regression test: a log truncated to nothing was taken for one that was never written,
/// and status reported no problems.
#[test]
fn a_log_of_which_nothing_is_left_is_told() {
    let mut crew = Crew::new(1);
    crew.run(&["table", "create", "default", "--replicas", "1"]);
    for key in ["a", "b", "c"] {
        crew.run(&["put", key, "value", "--durability", "sync"]);
    }
    crew.kill(1);
    let log = crew.place.path().join("data-1/regions/1-1/data-0/log");
    let copy = crew.place.path().join("copy");
    fs::copy(&log, &copy).expect("copied");
    fs::write(&log, b"").expect("truncated");
    crew.servers[0] = serve(&crew.place, 1, &["--listen", &port_of(&crew)]);
    let status = wait_not_whole(&crew, "the log is corrupted");
    for fragment in [
        "the log is corrupted at 0:0x0: no valid record is there (byte 0 of ",
        "data-1/regions/1-1/data-0/log), but the log was durable up to 0:0x",
        "restore the directory from a copy, or a replica",
    ] {
        assert!(status.contains(fragment), "no {fragment:?} in {status}");
    }
    crew.kill(1);
    fs::copy(&copy, &log).expect("copied");
    crew.servers[0] = serve(&crew.place, 1, &["--listen", &port_of(&crew)]);
    crew.wait_whole();
    assert_eq!(crew.run(&["get", "c"]), "c\tvalue\n");
}

/// Promise (CONTROL-23): if the coordinator's data are older than a table, servers keep the table's
/// replicas. `cluster status` and `table create` report why and what to do, and with the newer data
/// the table is served again. Regression test: a server removed such a replica.
#[test]
fn a_copy_outlives_an_old_coordinator() {
    let mut crew = Crew::new(1);
    let coordinator = crew.place.path().join("data-1/coordinator");
    let (old, new) = (crew.place.path().join("old"), crew.place.path().join("new"));
    let copy = |from: &Path, to: &Path| {
        let _ = fs::remove_dir_all(to);
        fs::create_dir(to).expect("made");
        for entry in fs::read_dir(from).expect("there") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
        }
    };
    let start = |crew: &mut Crew| {
        crew.servers[0] = serve(&crew.place, 1, &["--listen", &port_of(crew)]);
    };
    crew.kill(1);
    copy(&coordinator, &old);
    start(&mut crew);
    crew.run(&["table", "create", "default", "--replicas", "1"]);
    crew.run(&["put", "a", "value", "--durability", "sync"]);
    crew.kill(1);
    copy(&coordinator, &new);
    copy(&old, &coordinator);
    start(&mut crew);
    let status = wait_not_whole(&crew, "rejects the coordinator's records");
    for fragment in [
        "server 1 rejects the coordinator's records: coordinator of cluster",
        "was rolled back",
        "its history lacks that start",
        "deletes nothing",
        "Restore the newest copy of the coordinator's directory",
        "farleaf cluster adopt --lost-start",
        "1 server rejects the coordinator's records",
    ] {
        assert!(status.contains(fragment), "no {fragment:?} in {status}");
    }
    crew.kill(1);
    copy(&new, &coordinator);
    start(&mut crew);
    crew.wait_whole();
    assert_eq!(crew.run(&["get", "a"]), "a\tvalue\n");
}
