//! A region whose only copy is damaged, as commands tell it.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use crate::cluster::{Crew, refused, serve};
use crate::pool::{PATIENCE, lines};

const RECORD_COUNT: u64 = 40_000;

/// Promise (RS8): of a record whose bit flipped `get` says on which server, and at which byte of
/// which file; others are read; and `cluster status` says the same, and what to do, and that this
/// is not whole. Once it said that all is.
#[test]
fn a_damaged_region_is_told() {
    let mut crew = Crew::new(1);
    crew.kill(1);
    let port = crew.cluster.rsplit(':').next().expect("a port").to_owned();
    let small = ["--listen", &port, "--l0-size", "1MiB", "--cache", "1MiB"];
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

    let told = [
        "the log is damaged at 0:",
        "(byte ",
        "data-1/regions/1-1/data-0/log)",
    ];
    let read = crew.farleaf(&["get", "k000007"]);
    refused(
        &read,
        1,
        &[&told[..], &["server 1 at ", "could not read"]].concat(),
    );
    let whole = crew.run(&["get", "k000008"]);
    assert_eq!(whole, format!("k000008\t{}\n", value(8)));
    // Its server reports it soon.
    let since = Instant::now();
    let status = loop {
        let status = crew.farleaf(&["cluster", "status"]);
        if status.status == Some(1) {
            break status;
        }
        assert!(since.elapsed() < PATIENCE, "{status:?}");
    };
    let more = [
        "region 1 is damaged on server 1: ",
        "stop the server, put it there, and start it again",
        "not whole: 1 region has damage that no replica can repair\n",
    ];
    for told in [&told[..], &more].concat() {
        assert!(status.stdout.contains(told), "no {told:?} in {status:?}");
    }
    let json = crew
        .farleaf(&["cluster", "status", "--output", "json"])
        .stdout;
    for told in [
        r#""faults":[{"region":1,"server":1,"is_replica":true,"is_broken":false,"#,
        r#""how":"the log is damaged at"#,
    ] {
        assert!(json.contains(told), "no {told:?} in {json}");
    }
}
