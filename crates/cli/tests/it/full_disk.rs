//! Tests of a server on a full disk: a small file system of the test's own.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Crew, serve};

/// Environment variable that is set where the test may mount.
const INSIDE: &str = "FARLEAF_TEST_MOUNTS";

/// Runs a test where it may mount file systems. If this machine does not allow that, prints so.
fn where_it_may_mount(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    let unshared = || {
        let mut command = Command::new("unshare");
        command.args(["-rm", "/bin/sh", "-c"]);
        command
    };
    let probe = unshared().arg("mount -t tmpfs tmpfs /mnt").output();
    if !probe.is_ok_and(|it| it.status.success()) {
        // Not by a macro, whose output the test harness captures.
        let _ = writeln!(std::io::stderr(), "{test}: skipped: nothing can be mounted");
        return;
    }
    let this = std::env::current_exe().expect("this test has a file");
    let mut inside = unshared();
    inside.args(["exec \"$@\"", "sh"]).arg(this);
    let inside = inside.args([test, "--exact", "--nocapture"]);
    let output = inside.env(INSIDE, "1").output().expect("as the probe did");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}:\n{text}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("1 passed"), "{test}:\n{stdout}");
}

/// Cluster with a table whose only replica is on server 2, on a disk of 64 MiB.
struct Small {
    crew: Crew,
    disk: PathBuf,
}

impl Small {
    fn new() -> Self {
        let mut crew = Crew::new(1);
        let disk = crew.place.path().join("data-2");
        std::fs::create_dir(&disk).expect("made");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]);
        let mounted = mount.arg(&disk).status();
        assert!(mounted.expect("there is mount").success());
        crew.run(&["cluster", "drain", "1"]);
        let cluster = crew.cluster.clone();
        let arguments = ["--coordinator", &cluster, "--listen", "0"];
        crew.servers.push(serve(&crew.place, 2, &arguments));
        crew.run(&["table", "create", "t", "--replicas", "1"]);
        crew.run(&["put", "k", "v", "-t", "t"]);
        Self { crew, disk }
    }

    /// Fills the disk to its last byte.
    fn fill_up(&self) {
        let mut file = File::create(self.disk.join("regions/filler")).expect("made");
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn make_space(&self) {
        std::fs::remove_file(self.disk.join("regions/filler")).expect("removed");
    }

    /// Waits until `cluster status` prints this text.
    fn wait_told(&self, text: &str) {
        let since = Instant::now();
        loop {
            let ran = self.crew.farleaf(&["cluster", "status"]);
            if ran.stdout.contains(text) {
                return;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "{}", ran.stdout);
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn waits(&self) -> Vec<Value> {
        let ran = self
            .crew
            .farleaf(&["cluster", "status", "--output", "json"]);
        let status: Value = serde_json::from_str(&ran.stdout).expect("one object");
        status["waiting"].as_array().expect("a list").clone()
    }
}

/// Promise: if the only server of a region starts on a disk without a free byte, its records can be
/// read, and writes are rejected with what to do. When there is space, writes succeed again without
/// a restart.
#[test]
fn a_lone_server_that_starts_on_a_full_disk_is_read() {
    let name = "full_disk::a_lone_server_that_starts_on_a_full_disk_is_read";
    where_it_may_mount(name, || {
        let mut small = Small::new();
        small.fill_up();
        for _ in 0..3 {
            small.crew.kill(2);
            small.crew.restart(2);
            assert_eq!(small.crew.run(&["get", "k", "-t", "t"]), "k\tv\n");
        }
        let refused = small.crew.farleaf(&["put", "k", "w", "-t", "t"]);
        assert!(refused.stderr.contains("server 2 is full"), "{refused:?}");
        assert!(refused.stderr.contains("free space on it"), "{refused:?}");
        small.wait_told("the disk of server 2 is full");
        assert_eq!(small.waits(), [Value::Null; 0]);
        small.make_space();
        let since = Instant::now();
        while small.crew.farleaf(&["put", "k", "w", "-t", "t"]).status != Some(0) {
            assert!(since.elapsed() < Duration::from_secs(20), "there is room");
        }
        assert_eq!(small.crew.run(&["get", "k", "-t", "t"]), "k\tw\n");
    });
}

/// Promise: if a region cannot be opened without free space, `cluster status` reports that the
/// region waits for it, the disk, and what to do. When there is space, the region is served.
#[test]
fn a_server_that_waits_for_space_is_told() {
    let name = "full_disk::a_server_that_waits_for_space_is_told";
    where_it_may_mount(name, || {
        let mut small = Small::new();
        small.crew.kill(2);
        // As an older version left it.
        std::fs::remove_file(small.disk.join("regions/1-1/REPLICA.new")).expect("there");
        small.fill_up();
        small.crew.restart(2);
        small.wait_told(
            "region 1 unavailable: needs free space on the disk of server 2, which is full; free \
             space on it, or enlarge it, and the region is served again\n",
        );
        small.wait_told("problems: 1 region is not served; ");
        small.make_space();
        let since = Instant::now();
        while !small.waits().is_empty() {
            assert!(since.elapsed() < Duration::from_secs(20), "there is room");
        }
        assert_eq!(small.crew.run(&["get", "k", "-t", "t"]), "k\tv\n");
    });
}
