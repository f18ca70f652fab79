//! Tests of clusters: region servers as processes, persistent tables, and administrative commands.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::pool::{Place, Ran, Server, lines};

const COMMON: &[&str] = &["--lease", "1", "--link-patience", "2", "--buffers", "2"];

/// Region servers, numbered from 1; the first has the coordinator.
pub(crate) struct Crew {
    pub(crate) place: Place,
    pub(crate) servers: Vec<Server>,
    pub(crate) cluster: String,
}

/// Returns the address of a server, from its first line.
pub(crate) fn address_of(server: &Server) -> String {
    let (_, after) = server.ready.split_once(" at ").expect(&server.ready);
    after.split(',').next().expect("a beginning").to_owned()
}

impl Crew {
    pub(crate) fn new(server_count: usize) -> Self {
        let place = Place::new();
        place.file("secret", "the secret of these tests");
        let first = serve(&place, 1, &["--init", "--listen", "0"]);
        let cluster = format!("tcp:{}", address_of(&first));
        let mut crew = Self {
            place,
            servers: vec![first],
            cluster,
        };
        for number in 2..=server_count {
            let server = crew.start(number, "0");
            crew.servers.push(server);
        }
        crew
    }

    pub(crate) fn start(&self, number: usize, port: &str) -> Server {
        let coordinator = ["--coordinator", &self.cluster, "--listen", port];
        let is_first = number == 1;
        serve(
            &self.place,
            number,
            &coordinator[if is_first { 2 } else { 0 }..],
        )
    }

    /// Kills a server with SIGKILL, and waits for its end.
    pub(crate) fn kill(&mut self, number: usize) {
        let server = &mut self.servers[number - 1];
        server.signal(Signal::KILL);
        assert_eq!(server.end().0, None);
    }

    /// Restarts a server with its directory and address.
    pub(crate) fn restart(&mut self, number: usize) {
        let address = address_of(&self.servers[number - 1]);
        let port = address.rsplit(':').next().expect("a port").to_owned();
        self.servers[number - 1] = self.start(number, &port);
    }

    /// Restarts all servers in this order, each a moment after the previous one. Servers that start
    /// before the one with the coordinator wait for it.
    pub(crate) fn restart_all(&mut self, order: &[usize]) {
        let crew = &*self;
        let started = std::thread::scope(|scope| {
            let starts = order.iter().map(|number| {
                let address = address_of(&crew.servers[number - 1]);
                let port = address.rsplit(':').next().expect("a port").to_owned();
                let start = scope.spawn(move || crew.start(*number, &port));
                std::thread::sleep(Duration::from_millis(150));
                (*number, start)
            });
            let starts: Vec<_> = starts.collect();
            let servers = starts.into_iter();
            let servers = servers.map(|(number, start)| (number, start.join().expect("it starts")));
            servers.collect::<Vec<_>>()
        });
        for (number, server) in started {
            self.servers[number - 1] = server;
        }
    }

    pub(crate) fn farleaf(&self, arguments: &[&str]) -> Ran {
        let cluster = ["--cluster", &self.cluster, "--secret-file", "secret"];
        self.place.farleaf(&[&cluster, arguments].concat())
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        self.farleaf(arguments).quietly()
    }

    pub(crate) fn status(&self) -> Value {
        let ran = self.farleaf(&["cluster", "status", "--output", "json"]);
        serde_json::from_str(&ran.stdout).expect("one object")
    }

    /// Waits until `cluster status` reports no problem.
    pub(crate) fn wait_whole(&self) {
        let since = Instant::now();
        loop {
            let ran = self.farleaf(&["cluster", "status"]);
            if ran.status == Some(0) {
                let (_, last) = ran
                    .stdout
                    .trim_end()
                    .rsplit_once('\n')
                    .expect("several lines");
                assert!(last.starts_with("no problems found: "), "{ran:?}");
                return;
            }
            assert_eq!(ran.status, Some(1), "{ran:?}");
            assert!(since.elapsed() < Duration::from_secs(40), "{}", ran.stdout);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

pub(crate) fn serve(place: &Place, number: usize, arguments: &[&str]) -> Server {
    serve_with(place, number, "secret", arguments)
}

/// Starts a region server with the secret in this file.
pub(crate) fn serve_with(place: &Place, number: usize, secret: &str, arguments: &[&str]) -> Server {
    let (directory, number) = (format!("data-{number}"), number.to_string());
    let own = ["region", "serve", "--data", &directory, "--number", &number];
    let secret = ["--secret-file", secret];
    place.start(&[&own, &secret[..], COMMON, arguments].concat())
}

/// Asserts that each server that is alive reports the capacity and the free space of its disk.
fn assert_space_is_reported(status: &Value) {
    for server in status["servers"].as_array().expect("servers") {
        let of = |what: &str| server[what].as_u64();
        let is_alive = server["is_alive"] == true;
        assert_eq!(of("free_bytes").is_some(), is_alive, "{server}");
        assert!(of("free_bytes") <= of("capacity_bytes"), "{server}");
        assert!(of("low_below_bytes") <= of("capacity_bytes"), "{server}");
    }
}

/// Promise: each replica that is alive reports the progress of its verification, and data written
/// by this version count as verified.
fn assert_verification_is_told(status: &Value) {
    for region in status["regions"].as_array().expect("regions") {
        assert_eq!(region["mismatch_count"], 0, "{region}");
        let backups = region["backups"].as_array().expect("backups");
        let replicas = backups.iter().chain([&region["primary"]]);
        for replica in replicas.filter(|it| it["is_alive"] == true) {
            let verification = &replica["verification"];
            assert_eq!(verification["is_finished"], true, "{region}");
            let of = |what: &str| verification[what].as_u64();
            assert!(of("passed_size_bytes") <= of("pass_size_bytes"), "{region}");
        }
    }
}

/// Returns the number of the primary of the region whose keys start at `from`.
fn primary_of(status: &Value, from: &str) -> u64 {
    let regions = status["regions"].as_array().expect("regions");
    let region = regions.iter().find(|it| it["from"]["key"] == *from);
    let primary = &region.expect("a region")["primary"]["server"];
    primary.as_u64().expect("a primary")
}

pub(crate) fn refused(ran: &Ran, status: i32, fragments: &[&str]) {
    assert_eq!(
        (ran.status, ran.stdout.as_str()),
        (Some(status), ""),
        "{ran:?}"
    );
    assert!(ran.stderr.contains("error: "), "{ran:?}");
    for fragment in fragments {
        assert!(ran.stderr.contains(fragment), "no {fragment:?} in {ran:?}");
    }
}

/// Promise: the commands for tables of bytes work with persistent tables over three processes, with
/// the same options and the same output.
#[test]
fn commands_work_with_persistent_tables() {
    let mut crew = Crew::new(3);
    assert!(crew.run(&["table", "list"]).contains("has no tables"));
    let made = crew.run(&["table", "create", "t", "--engine", "lsm", "--split-at", "m"]);
    assert_eq!(made, "created table 't' of 2 regions, 3 replicas of each\n");
    let run = |arguments: &[&str]| crew.run(&[arguments, &["-t", "t"]].concat());
    assert_eq!(run(&["put", "mars", "4"]), "inserted mars\n");
    let put = run(&["put", "mars", "four", "--durability", "sync"]);
    assert_eq!(put, "updated mars (previous value 4)\n");
    assert_eq!(run(&["put", "00ff", "01", "--hex"]), "inserted 00ff\n");
    assert_eq!(run(&["get", "mars"]), "mars\tfour\n");
    assert_eq!(run(&["get", "mars", "--raw"]), "four");
    let json = run(&["get", "00ff", "--hex", "-o", "json"]);
    assert_eq!(json, "{\"key_hex\":\"00ff\",\"value_hex\":\"01\"}\n");
    assert_eq!(run(&["scan"]), "\\x00\\xff\t\\x01\nmars\tfour\n");
    let scanned = run(&["scan", "--reverse", "--limit", "1", "--keys-only"]);
    assert_eq!(scanned, "mars\n");
    let deleted = run(&["del", "00ff", "--hex", "--durability", "sync"]);
    assert_eq!(deleted, "deleted 00ff (previous value 01)\n");
    let absent = crew.farleaf(&["get", "pluto", "-t", "t"]);
    assert_eq!((absent.status, absent.stdout.as_str()), (Some(1), ""));
    assert_eq!(absent.stderr, "key pluto is absent from table 't'\n");

    let records = lines((0..6000).map(|number| format!("{number:04}\tv{number}")));
    crew.place.file("records", &records);
    let loaded = crew.run(&["load", "records", "--create", "--replicas", "2", "-t", "u"]);
    assert_eq!(loaded, "wrote 6,000 records of records into table 'u'\n");
    assert_eq!(crew.run(&["dump", "-t", "u"]), records);
    let some = crew.run(&["scan", "--prefix", "012", "--limit", "3", "-t", "u"]);
    assert_eq!(some, "0120\tv120\n0121\tv121\n0122\tv122\n");
    let deleted = crew.run(&["del", "--prefix", "5", "-t", "u"]);
    assert_eq!(deleted, "deleted 1,000 keys that began with 5\n");
    let again = crew.farleaf(&["load", "records", "--create", "-t", "u"]);
    refused(
        &again,
        1,
        &[
            "'u' already exists with 2 replicas, not 3",
            "leave out --create",
        ],
    );
    crew.wait_whole();
    let listed = crew.run(&["table", "list", "-o", "json"]);
    assert!(listed.starts_with(r#"{"name":"t","number":1,"replica_count":3,"region_count":2,"#));
    assert!(listed.contains(r#""in_sync_count":6,"#), "{listed}");
    assert_eq!(crew.run(&["table", "drop", "t"]), "dropped table 't'\n");

    // Two of three servers are enough for the rest.
    let drained = crew.farleaf(&["cluster", "drain", "3", "--wait"]);
    assert_eq!(
        drained.stdout,
        "server 3 has no replicas left and can be stopped\n"
    );
    assert_eq!(
        crew.run(&["cluster", "undrain", "3"]),
        "server 3 gets replicas again\n"
    );
    assert_eq!(crew.run(&["dump", "-t", "u"]).lines().count(), 5000);
    let wide = crew.farleaf(&["table", "create", "wide", "--replicas", "4"]);
    assert!(wide.stderr.contains("3 servers are up"), "{wide:?}");
    for server in crew.servers.iter_mut().rev() {
        server.signal(Signal::TERM);
        let (status, log) = server.end();
        assert_eq!(status, Some(0), "{log}");
        assert!(log.contains("stopped address="), "{log}");
    }
}

/// Splits the region of a key, and waits until there is one more.
fn split(crew: &Crew, key: &str) {
    let region_count = |status: Value| status["regions"].as_array().expect("regions").len();
    let before = region_count(crew.status());
    let split = crew.run(&["cluster", "split", "default", key]);
    let message = format!("is split at {key}; `farleaf cluster status`");
    assert!(split.contains(&message), "{split}");
    let since = Instant::now();
    while region_count(crew.status()) == before {
        assert!(since.elapsed() < Duration::from_secs(20), "it is not split");
    }
}

/// Promise: once a server has printed that it serves, it counts as alive, at its first start and
/// after a restart. Regression test: the line was printed before the first lease, and a table
/// created right then was reported to lack a server.
#[test]
fn a_server_that_says_so_is_counted() {
    let mut crew = Crew::new(1);
    let assert_alive = |crew: &Crew, number: usize| {
        let status = crew.status();
        let mut servers = status["servers"].as_array().expect("servers").iter();
        let server = servers.find(|it| it["number"] == number).expect("its line");
        assert_eq!(server["is_alive"], true, "{status}");
    };
    assert_alive(&crew, 1);
    for number in 2..=6 {
        let server = crew.start(number, "0");
        crew.servers.push(server);
        assert_alive(&crew, number);
    }
    for number in 2..=3 {
        crew.kill(number);
        // The killed server's lease has ended, so the server alive below is the new one.
        std::thread::sleep(Duration::from_millis(1500));
        crew.restart(number);
        assert_alive(&crew, number);
    }
}

/// Promise: if the process of a primary is killed, another server is promoted, with all
/// acknowledged writes. When the process is back, status reports no problems again, also if it
/// had the coordinator.
#[test]
fn a_killed_primary_is_followed_by_another() {
    let mut crew = Crew::new(3);
    crew.run(&[
        "table",
        "create",
        "default",
        "--split-at",
        "k3",
        "--split-at",
        "k6",
    ]);
    crew.wait_whole();
    let mut model = BTreeMap::new();
    let put = |crew: &Crew, model: &mut BTreeMap<_, _>, number: u32, round: u32| {
        let (key, value) = (format!("k{number}"), format!("{round}"));
        crew.run(&["put", &key, &value]);
        model.insert(key, value);
    };
    let all = |model: &BTreeMap<String, String>| {
        lines(model.iter().map(|(key, value)| format!("{key}\t{value}")))
    };
    for number in 0..10 {
        put(&crew, &mut model, number, 0);
    }
    // Also one on a server without the coordinator.
    let froms = ["", "k3", "k6"];
    let status = crew.status();
    let mut primaries = froms.iter().map(|from| primary_of(&status, from));
    let killed = primaries
        .find(|primary| *primary != 1)
        .expect("not all are on one");
    crew.kill(killed as usize);
    for number in 0..10 {
        put(&crew, &mut model, number, 1);
    }
    assert_eq!(crew.run(&["scan"]), all(&model));
    let status = crew.status();
    assert!(
        froms.iter().all(|from| primary_of(&status, from) != killed),
        "{status}"
    );
    assert_space_is_reported(&status);
    assert_verification_is_told(&status);
    assert_eq!(
        crew.farleaf(&["cluster", "status"]).status,
        Some(1),
        "a replica lacks"
    );
    crew.restart(killed as usize);
    crew.wait_whole();
    // A hand-over to the restarted server.
    let status = crew.status();
    let region = status["regions"].as_array().expect("regions").iter();
    let mut moving = region.filter(|it| it["primary"]["server"] != killed);
    let moving = moving.next().expect("not all are on one");
    let [region, from] = [&moving["number"], &moving["primary"]["server"]].map(Value::to_string);
    let to = killed.to_string();
    let order = ["cluster", "move", "default", "--region", &region];
    let moved = crew.run(&[&order, &["--from", &from, "--to", &to][..]].concat());
    assert!(moved.starts_with(&format!(
        "region {region} moves from server {from} to server {to}"
    )));
    put(&crew, &mut model, 3, 2);
    split(&crew, "k5");
    crew.wait_whole();
    crew.kill(1);
    crew.restart(1);
    for number in 0..10 {
        put(&crew, &mut model, number, 3);
    }
    crew.wait_whole();
    assert_eq!(crew.run(&["dump"]), all(&model));
}

/// Promise: a directory that another process uses, or of another cluster, is rejected with what to
/// do, and nothing is changed.
#[test]
fn directories_of_others_are_refused() {
    let crew = Crew::new(1);
    let place = &crew.place;
    let serving = |directory: &str, more: &[&str]| {
        let own = [
            "region",
            "serve",
            "--secret-file",
            "secret",
            "--listen",
            "0",
            "--data",
        ];
        place.farleaf(&[&own, &[directory][..], more].concat())
    };
    let locked = serving("data-1", &[]);
    refused(
        &locked,
        1,
        &[
            "cannot serve regions from 'data-1'",
            "is in use by another server",
        ],
    );
    let joining = ["--coordinator", &crew.cluster];
    let locked = serving("data-1", &joining);
    refused(
        &locked,
        1,
        &[
            "cannot serve regions from 'data-1'",
            "in use by another server",
        ],
    );
    {
        let mut own = serve(place, 7, &["--init", "--listen", "0"]);
        own.signal(Signal::TERM);
        assert_eq!(own.end().0, Some(0));
    }
    let others = serving("data-7", &joining);
    refused(
        &others,
        1,
        &["data-7", "belongs to cluster", "correct the address"],
    );
}

/// Promise: unknown or already existing tables, regions and servers are reported with their place,
/// and with the command that lists the existing ones.
#[test]
fn what_a_cluster_does_not_have_is_told() {
    let crew = Crew::new(1);
    let warned = crew.farleaf(&["table", "create", "t"]);
    assert_eq!(warned.status, Some(0));
    assert!(
        warned.stderr.contains("warning: 1 server is up"),
        "{warned:?}"
    );
    let again = crew.farleaf(&["table", "create", "t"]);
    refused(&again, 1, &["table 't' already exists", &crew.cluster]);
    let none = crew.farleaf(&["get", "k", "-t", "none"]);
    refused(
        &none,
        1,
        &[
            "table 'none' does not exist in the cluster at",
            &crew.cluster,
            "`farleaf table list`",
        ],
    );
    // A key that is too long is an invalid argument of each command; the longest valid key is not.
    let long = "k".repeat(4097);
    for arguments in [
        &["get", &long][..],
        &["scan", &long],
        &["scan", "--to", &long],
    ] {
        let ran = crew.farleaf(&[arguments, &["-t", "t"]].concat());
        refused(
            &ran,
            2,
            &["the key has 4097 bytes, more than the maximum of 4096"],
        );
    }
    for bound in ["--from", "--to", "--prefix"] {
        assert_eq!(crew.run(&["scan", bound, &long[1..], "-t", "t"]), "");
    }
    let named = crew.farleaf(&["table", "create", "a/b"]);
    refused(&named, 2, &["\"a/b\"", "letters, digits"]);
    let order = [
        "cluster", "move", "t", "--region", "9", "--from", "1", "--to", "2",
    ];
    refused(
        &crew.farleaf(&order),
        1,
        &["table 't' has no region 9", "cluster status --table t"],
    );
    let order = [
        "cluster", "move", "t", "--region", "1", "--from", "1", "--to", "2",
    ];
    refused(
        &crew.farleaf(&order),
        1,
        &["no server 2 in the cluster", "`farleaf cluster status`"],
    );
    let order = ["cluster", "give-up", "t", "--region", "1", "--server", "1"];
    refused(
        &crew.farleaf(&order),
        1,
        &["the master rejected the request", "nothing was changed"],
    );
    refused(
        &crew.farleaf(&["cluster", "drain", "8"]),
        1,
        &["no server 8 in the cluster"],
    );
    for create in ["init", "found"] {
        let ran = crew.farleaf(&["cluster", create]);
        refused(&ran, 1, &["has cluster", "already"]);
    }
    let ran = crew.farleaf(&["cluster", "adopt"]);
    refused(
        &ran,
        1,
        &["already has a 128-bit id", "nothing was changed"],
    );
}

/// Promise: clients without the secret are rejected. If both a pool and a cluster are given, the
/// error asks which one is meant.
#[test]
fn a_cluster_is_named_and_its_secret_known() {
    let crew = Crew::new(1);
    let place = &crew.place;
    place.file("wrong", "this is somebody else's secret");
    let wrong = [
        "--cluster",
        &crew.cluster,
        "--secret-file",
        "wrong",
        "table",
        "list",
    ];
    refused(&place.farleaf(&wrong), 1, &[&crew.cluster, "wrong secret"]);
    let both = ["--cluster", &crew.cluster, "--pool", "shm:x", "get", "k"];
    refused(
        &place.farleaf(&both),
        2,
        &["--pool and --cluster cannot be used together"],
    );
    let mut command = place.command(&["get", "k"]);
    command
        .env("FARLEAF_POOL", "shm:x")
        .env("FARLEAF_CLUSTER", &crew.cluster);
    let both = Ran::from(command.output().expect("it starts"));
    refused(&both, 2, &["FARLEAF_POOL and FARLEAF_CLUSTER are both set"]);
}

/// Promise: the workloads run on a table of a cluster of processes, which is dropped afterwards. An
/// existing table of that name is left unchanged.
#[test]
fn benchmarks_run_on_a_cluster() {
    let crew = Crew::new(2);
    let small = ["--records", "1k", "--operations", "500", "--replicas", "2"];
    let arguments = ["bench", "ycsb", "--workload", "D,F", "--value-size", "MD"];
    let bench = [&arguments[..], &small].concat();
    let text = crew.run(&bench);
    for fragment in [
        "YCSB D: lsm index",
        "YCSB F: lsm",
        "servers cluster, replicas 2",
    ] {
        assert!(text.contains(fragment), "{fragment}: {text}");
    }
    assert!(crew.run(&["table", "list"]).contains("has no tables"));
    crew.run(&["table", "create", "usertable", "--replicas", "1"]);
    crew.run(&["put", "mine", "still", "-t", "usertable"]);
    let taken = ["table 'usertable' already exists", "farleaf table drop"];
    refused(&crew.farleaf(&bench), 1, &taken);
    assert_eq!(
        crew.run(&["get", "mine", "-t", "usertable"]),
        "mine\tstill\n"
    );
}
