//! Tests of starting region servers: checks before anything is created, coordinators that are lost,
//! not available yet or unavailable for a while, and duplicate server numbers.

use std::fs;
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cluster::{Crew, address_of, refused, serve};
use crate::pool::{PATIENCE, Place, Ran, end, send};

/// Runs `region serve` on a directory until it ends.
fn serving(place: &Place, directory: &str, more: &[&str]) -> Ran {
    let own = ["region", "serve", "--data", directory];
    place.farleaf(&[&own, more].concat())
}

/// Returns a port that the system has just reported as free; another program could still take it.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    port.to_string()
}

/// Promise: a taken port, a missing or invalid secret, and a directory with other contents are
/// reported before a cluster or anything else is created. Regression test: the directories of the
/// coordinator and the server were left behind.
#[test]
fn nothing_is_made_before_all_is_checked() {
    let place = Place::new();
    let held = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = held.local_addr().expect("bound").to_string();
    let ran = serving(&place, "d", &["--init", "--listen", &address]);
    refused(
        &ran,
        1,
        &["cannot listen at", &address, "choose another port"],
    );
    let open = ["--init", "--listen", "0.0.0.0:0", "--advertise", "h:1"];
    let ran = serving(&place, "d", &open);
    refused(
        &ran,
        2,
        &["--listen", "a secret is required", "--secret-file"],
    );
    let none = ["--init", "--listen", "0", "--secret-file", "none"];
    let ran = serving(&place, "d", &none);
    refused(&ran, 1, &["none", "No such file"]);
    assert!(!place.path().join("d").exists(), "nothing is made");

    fs::create_dir(place.path().join("letters")).expect("made");
    place.file("letters/mine", "dear");
    let ran = serving(&place, "letters", &["--init", "--listen", "0"]);
    refused(
        &ran,
        1,
        &[
            "letters",
            "the directory contains 'mine'",
            "choose an empty directory",
        ],
    );
    let left = fs::read_dir(place.path().join("letters")).expect("there");
    assert_eq!(left.count(), 1, "nothing is made");
}

/// Promise: if the coordinator's data are lost, beside a server's directory of its cluster, no
/// other cluster is created. The error names the cluster, the expected directory, and what to do;
/// when the data are restored, everything works again. The same holds for a server without a
/// coordinator that is started as if it had one.
#[test]
fn a_lost_coordinator_is_not_founded_anew() {
    let place = Place::new();
    place.file("secret", "the secret of these tests");
    let mut server = serve(&place, 1, &["--init", "--listen", "0"]);
    let (_, cluster) = server
        .ready
        .split_once(" of cluster ")
        .expect(&server.ready);
    let cluster = format!(
        "cluster {}",
        cluster.split(';').next().expect("a beginning")
    );
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
    let start = || {
        serving(
            &place,
            "data-1",
            &["--listen", "0", "--secret-file", "secret"],
        )
    };
    let fragments = [
        "'data-1' belongs to",
        &cluster,
        "dir:data-1/coordinator does not have",
        "--coordinator tcp:HOST:PORT",
        "restore that directory from a copy",
        "another --data",
        "Nothing was changed",
    ];
    let (journal, coordinator) = ("data-1/coordinator/COORDINATOR", "data-1/coordinator");
    for lost in [journal, coordinator] {
        let [lost, elsewhere] = [lost, "elsewhere"].map(|it| place.path().join(it));
        fs::rename(&lost, &elsewhere).expect("moved");
        refused(&start(), 1, &fragments);
        assert!(!lost.exists(), "none is made in its place");
        fs::rename(&elsewhere, &lost).expect("moved back");
    }
    // A command line with `--init` can stay unchanged (systemd).
    for how in [&["--listen", "0"][..], &["--init", "--listen", "0"]] {
        let mut again = serve(&place, 1, how);
        assert!(again.ready.contains(&cluster), "{}", again.ready);
        again.signal(Signal::TERM);
        assert_eq!(again.end().0, Some(0));
    }
}

/// Promise: no cluster is created implicitly. An empty directory is rejected with both commands and
/// what it means if the coordinator was there, and nothing is created. `--init` is rejected with a
/// coordinator of another process, and in the directory of a server whose coordinator is elsewhere.
#[test]
fn a_cluster_is_created_by_init_alone() {
    let place = Place::new();
    for before in [false, true] {
        if before {
            fs::create_dir(place.path().join("d")).expect("made");
        }
        let ran = serving(&place, "d", &["--listen", "0"]);
        let fragments = [
            "'d' has no cluster",
            "--init to create a new cluster",
            "--coordinator tcp:HOST:PORT to join",
            "are lost",
            "the other servers keep all their files",
            "run the same command again",
            "Nothing was changed",
        ];
        refused(&ran, 1, &fragments);
        let is_empty = |path| fs::read_dir(path).is_ok_and(|mut it| it.next().is_none());
        let directory = place.path().join("d");
        assert!(
            is_empty(&directory) || !directory.exists(),
            "nothing is made"
        );
    }
    let elsewhere = ["--init", "--coordinator", "tcp:127.0.0.1:1"];
    let fragments = ["--init and --coordinator", "cannot be used together"];
    refused(&serving(&place, "d", &elsewhere), 2, &fragments);
    let crew = Crew::new(2);
    let mut crew = crew;
    let server = &mut crew.servers[1];
    server.signal(Signal::TERM);
    assert_eq!(server.end().0, Some(0));
    let own = ["--init", "--listen", "0", "--secret-file", "secret"];
    let ran = serving(&crew.place, "data-2", &own);
    refused(
        &ran,
        1,
        &["'data-2' belongs to cluster", "Nothing was changed"],
    );
    assert!(!crew.place.path().join("data-2/coordinator").exists());
}

/// Promise: a new directory does not get a number that another server has. Of two directories with
/// one number, the second reports at once which server it waits for, and ends when that one renews
/// its lease. A server that restarts before its former life is over waits for its end, and
/// continues. Regression test: the second one waited forever without a message.
#[test]
fn a_number_that_another_server_has_is_told() {
    let mut crew = Crew::new(2);
    let coordinator = crew.cluster.clone();
    let place = &crew.place;
    let address = address_of(&crew.servers[1]);
    let joining = [
        "--listen",
        "0",
        "--secret-file",
        "secret",
        "--lease",
        "1",
        "--coordinator",
        &coordinator,
    ];
    let ran = serving(place, "new", &[&joining[..], &["--number", "2"]].concat());
    let fragments = [
        "server 2 already exists",
        &address,
        "--number",
        "no number was assigned",
    ];
    refused(&ran, 1, &fragments);
    assert!(!place.path().join("new/SERVER").exists(), "it is nobody's");

    fs::create_dir(place.path().join("copy")).expect("made");
    let [from, to] = ["data-2", "copy"].map(|it| place.path().join(it).join("SERVER"));
    fs::copy(from, to).expect("copied");
    let since = Instant::now();
    let ran = serving(place, "copy", &joining);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(
        since.elapsed() > Duration::from_secs(2),
        "longer than a lease"
    );
    let warned =
        format!("server 2 is waiting: a server with this number is registered at {address}");
    assert!(ran.stderr.contains(&warned), "{ran:?}");
    let message = format!("error: another server 2 is registered at {address}");
    let is_reported = ran
        .stderr
        .replace("cannot serve regions from 'copy': ", "")
        .contains(&message);
    assert!(is_reported && ran.stderr.contains("--number"), "{ran:?}");

    crew.run(&["table", "create", "t", "--replicas", "2"]);
    crew.wait_whole();
    crew.kill(2);
    crew.restart(2);
    // By then the former life is over.
    thread::sleep(Duration::from_secs(2));
    crew.wait_whole();
    let server = &mut crew.servers[1];
    server.signal(Signal::TERM);
    let (status, log) = server.end();
    assert_eq!(status, Some(0), "{log}");
    // On a slow host, the former life may have ended before.
    assert!(log.contains("server 2 begins life "), "{log}");
    assert!(!log.contains("another server 2 is registered"), "{log}");
}

/// Promise: a server that starts before its coordinator waits for it, and says so, until it is
/// available, the timeout of the option expires, or Ctrl-C. A wrong secret ends it at once, and
/// nothing is created then. Regression test: it ended when the coordinator was not listening.
#[test]
fn a_server_waits_for_its_coordinator() {
    let place = Place::new();
    place.file("secret", "the secret of these tests");
    place.file("wrong", "this is somebody else's secret");
    let port = free_port();
    let coordinator = format!("tcp:127.0.0.1:{port}");
    let joining = ["--listen", "0", "--coordinator", &coordinator];
    let (mut first, mut second) = thread::scope(|scope| {
        let second = scope.spawn(|| serve(&place, 2, &joining));
        thread::sleep(Duration::from_millis(1500));
        assert!(!second.is_finished(), "it waits");
        let first = serve(&place, 1, &["--init", "--listen", &port]);
        (first, second.join().expect("it is served"))
    });
    assert!(
        second.ready.contains("server 2 of cluster"),
        "{}",
        second.ready
    );
    let secret = ["--secret-file", "wrong"];
    let ran = serving(&place, "third", &[&joining[..], &secret].concat());
    refused(&ran, 1, &[&coordinator, "wrong secret"]);
    assert!(!place.path().join("third").exists(), "nothing is made");
    for server in [&mut second, &mut first] {
        server.signal(Signal::TERM);
    }
    let (status, log) = second.end();
    assert_eq!(status, Some(0), "{log}");
    let waiting = log.matches("waiting for the coordinator").count();
    // On a slow host, the wait takes longer than the interval of reminders.
    assert!((1..=2).contains(&waiting), "{log}");
    assert!(log.contains("connected to the coordinator "), "{log}");
    assert_eq!(first.end().0, Some(0));

    let patience = ["--secret-file", "secret", "--coordinator-patience", "1"];
    let ran = serving(&place, "data-2", &[&joining[..], &patience].concat());
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let message =
        format!("error: timed out after 1 s: the coordinator {coordinator} cannot be reached");
    assert!(ran.stderr.contains(&message), "{ran:?}");
    let arguments = [
        &["region", "serve", "--data", "data-2"],
        &joining[..],
        &patience[..2],
    ];
    let mut command = place.command(&arguments.concat());
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    thread::sleep(Duration::from_millis(500));
    send(&child, Signal::INT);
    let (status, log) = end(&mut child);
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("waiting for the coordinator"), "{log}");
}

/// Promise: while the coordinator is unavailable, its servers log that once, with reminders now and
/// then, and log when it is back. Regression test: they logged it seven times a second.
#[test]
fn an_outage_of_the_coordinator_is_told_once() {
    let mut crew = Crew::new(2);
    crew.run(&["table", "create", "t", "--replicas", "2"]);
    crew.wait_whole();
    let since = Instant::now();
    crew.kill(1);
    // Longer than a lease, so that the server's life ends, too.
    thread::sleep(Duration::from_secs(4));
    crew.restart(1);
    crew.wait_whole();
    let away_s = since.elapsed().as_secs();
    let since = Instant::now();
    while crew.farleaf(&["get", "k", "-t", "t"]).status != Some(1) {
        assert!(since.elapsed() < PATIENCE, "it is not served");
    }
    let server = &mut crew.servers[1];
    server.signal(Signal::TERM);
    let (status, log) = server.end();
    assert_eq!(status, Some(0), "{log}");
    let away = log
        .lines()
        .filter(|line| line.contains("is unavailable: "))
        .count();
    assert!((1..=1 + away_s / 10).contains(&(away as u64)), "{log}");
    assert!(
        log.contains("the coordinator is reachable again after "),
        "{log}"
    );
}

/// Promise: a server that has lost its directory with the coordinator, and is started by the same
/// command, creates no cluster, even with `--init`. It names the cluster whose members connect to
/// its address, and what to do. The other servers keep their data, and when the directory is
/// restored, everything is served again.
#[test]
fn a_coordinator_that_comes_back_empty_is_refused() {
    let mut crew = Crew::new(2);
    crew.run(&["table", "create", "t", "--replicas", "2"]);
    crew.run(&["put", "k", "value", "-t", "t", "--durability", "sync"]);
    crew.wait_whole();
    let address = address_of(&crew.servers[0]);
    let (_, cluster) = crew.servers[0]
        .ready
        .split_once(" of ")
        .expect("it says so");
    let cluster = cluster.split(';').next().expect("a beginning").to_owned();
    crew.kill(1);
    let [own, lost] = ["data-1", "lost"].map(|it| crew.place.path().join(it));
    fs::rename(&own, &lost).expect("moved");
    let common = [
        "--listen",
        &address,
        "--secret-file",
        "secret",
        "--lease",
        "1",
    ];
    for init in [&[][..], &["--init"]] {
        let ran = serving(&crew.place, "data-1", &[&common, init].concat());
        let fragments = [
            "'data-1' is empty",
            &format!("servers or clients of {cluster} connect to {address}"),
            "the other servers keep all their files",
            "Restore 'data-1'",
            "Nothing was changed",
        ];
        refused(&ran, 1, &fragments);
        assert!(!own.exists(), "nothing is made");
    }
    fs::rename(&lost, &own).expect("moved back");
    crew.restart(1);
    crew.wait_whole();
    assert_eq!(crew.run(&["get", "k", "-t", "t"]), "k\tvalue\n");
}
