//! Tests of commands that wait for a cluster, and of their messages.

use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::{Crew, refused};
use crate::pool::end;

impl Crew {
    /// Starts a command without waiting for its end.
    fn begin(&self, arguments: &[&str]) -> Child {
        let cluster = ["--cluster", &self.cluster, "--secret-file", "secret"];
        let mut command = self.place.command(&[&cluster, arguments].concat());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("started")
    }
}

/// Promise: administrative commands, and those that read and write, wait for a coordinator whose
/// server restarts, and say so once. If it does not come back, they end with the error after their
/// timeout. Regression test: each ended at once.
#[test]
fn a_coordinator_that_starts_again_is_waited_for() {
    let mut crew = Crew::new(3);
    crew.run(&["table", "create", "t"]);
    crew.wait_whole();
    let orders = [
        &["cluster", "undrain", "2", "--coordinator-patience", "30"][..],
        &[
            "cluster",
            "status",
            "--table",
            "t",
            "--coordinator-patience",
            "30",
        ],
        &["table", "create", "u"],
        &["table", "list"],
        &["put", "mars", "4", "-t", "t"],
        &["scan", "-t", "t"],
    ];
    crew.kill(1);
    let mut children = orders.map(|order| crew.begin(order));
    thread::sleep(Duration::from_millis(1200));
    crew.restart(1);
    for (child, order) in children.iter_mut().zip(orders) {
        let (status, output) = end(child);
        let waiting = " s for the coordinator tcp:";
        assert_eq!(output.matches(waiting).count(), 1, "{order:?}: {output}");
        assert!(!output.contains("\nerror: "), "{order:?}: {output}");
        // `cluster status` may still report a replica that is not in sync.
        assert!(matches!(status, Some(0 | 1)), "{order:?}: {output}");
    }
    assert!(crew.run(&["table", "list"]).contains("u "));
    assert_eq!(crew.run(&["get", "mars", "-t", "t"]), "mars\t4\n");
    crew.wait_whole();

    crew.kill(1);
    let since = Instant::now();
    let given_up = crew.farleaf(&["cluster", "status", "--coordinator-patience", "1"]);
    let fragments = ["waiting up to 1 s for the coordinator", "cannot be reached"];
    refused(&given_up, 1, &fragments);
    assert!(since.elapsed() >= Duration::from_secs(1));
    let at_once = crew.farleaf(&["cluster", "status", "--coordinator-patience", "0"]);
    refused(&at_once, 1, &["cannot be reached"]);
    assert!(!at_once.stderr.contains("waiting"), "{at_once:?}");
    let get = crew.farleaf(&["get", "mars", "-t", "t"]);
    let fragments = [
        "waiting up to 5 s for the coordinator",
        "\nerror: the coordinator",
        "check that the server is running",
    ];
    refused(&get, 1, &fragments);
}

/// Promise: a waiting drain prints now and then which regions are left, and why. A table that no
/// server can take is created with a warning that says what it waits for.
#[test]
fn what_has_no_server_says_so() {
    let crew = Crew::new(2);
    crew.run(&["table", "create", "t", "--replicas", "2"]);
    crew.wait_whole();
    let mut drain = crew.begin(&["cluster", "drain", "2", "--wait"]);
    thread::sleep(Duration::from_secs(5));
    crew.run(&["cluster", "undrain", "2"]);
    let (status, output) = end(&mut drain);
    assert_eq!(status, Some(1), "{output}");
    let why = "server 2 has 1 replica left: region 1 needs a server that takes over the \
               replica of server 2\n";
    assert!(output.matches(why).count() >= 2, "{output}");
    assert!(
        output.contains("the drain of server 2 was canceled"),
        "{output}"
    );

    for server in ["1", "2"] {
        crew.run(&["cluster", "drain", server]);
    }
    let made = crew.farleaf(&["table", "create", "u", "--replicas", "1"]);
    assert_eq!(made.status, Some(0), "{made:?}");
    let warned = "warning: region 2 is not served yet: needs a server for its first replica";
    assert!(made.stderr.contains(warned), "{made:?}");
}
