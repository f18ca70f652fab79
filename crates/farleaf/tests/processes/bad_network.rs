//! Bad networks: netem on the loopback of a network namespace that belongs to the test. If the host
//! does not offer both to its users, the tests report that they are skipped.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use farleaf::{ConnectOptions, ErrorKind, Pool, Session, Table, TableOptions};
use farleaf_fabric::BatchErrorKind;

use crate::children::scene;
use crate::node::{Fabric, Node, NodePlan};
use crate::worker::TABLE;

/// Set in the test's own namespace.
const INSIDE: &str = "FARLEAF_TEST_OWN_NETWORK";
/// Set if the tests must not be skipped.
const REQUIRED: &str = "FARLEAF_TEST_NETEM_REQUIRED";
const RECORD_COUNT: u64 = 10_000;
const ONE_WAY: Duration = Duration::from_millis(1);
/// Duration of the operations while packets are lost.
const LOSSY_TIME: Duration = Duration::from_secs(3);
/// Time within which a cut network is noticed; longer than the timeout for a reply.
const NOTICE_TIME_MAX: Duration = Duration::from_secs(5);

/// Configures netem for every packet.
fn netem(what: &str) -> Result<(), String> {
    let words = ["qdisc", "replace", "dev", "lo", "root", "netem"];
    let output = Command::new("tc")
        .args(words)
        .args(what.split(' '))
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("tc: {error}")),
    }
}

/// Runs a test in its own network namespace, if the host allows that.
fn on_a_network_of_its_own(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return scene(test, |_| body());
    }
    let probe = "ip link set lo up && tc qdisc replace dev lo root netem delay 1ms";
    let mut probed = Command::new("unshare");
    probed.args(["-rn", "/bin/sh", "-c", probe]);
    let why = match probed.output() {
        Ok(probed) if probed.status.success() => None,
        Ok(probed) => Some(String::from_utf8_lossy(&probed.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    if let Some(why) = why {
        assert!(std::env::var_os(REQUIRED).is_none(), "{test}: {why}");
        // Not by a macro, whose output the test harness would capture.
        let _ = writeln!(std::io::stderr(), "{test}: skipped: no netem here: {why}");
        return;
    }
    let this = std::env::current_exe().expect("this test has a file");
    let run = "ip link set lo up && exec \"$0\" \"$@\"";
    let mut inside = Command::new("unshare");
    inside.args(["-rn", "/bin/sh", "-c", run]).arg(this);
    inside
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1");
    let output = inside.output().expect("as the probe did");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{test}:\n{text}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("1 passed"), "{test}:\n{stdout}");
    eprint!("{text}");
}

fn open(node: &Node, fabric: Fabric, answer_time_max: Duration) -> Session {
    let options = ConnectOptions {
        answer_time_max,
        ..ConnectOptions::default()
    };
    let pool = Pool::open_with(&node.pool(fabric), &options).expect("the pool");
    pool.session().expect("a session")
}

fn loaded(session: &Session) -> Table {
    let table = session.create_table(TABLE, &TableOptions::default());
    let table = table.expect("a table");
    let records = (0..RECORD_COUNT).map(|key| (key, !key));
    table.bulk_load(records, |_| {}).expect("it fits");
    table
}

fn median(mut once: impl FnMut(u64)) -> Duration {
    let timed = |index| {
        let started_at = Instant::now();
        once(index);
        started_at.elapsed()
    };
    let mut times: Vec<_> = (0..100).map(timed).collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns the time of a bare round trip of 64 bytes.
fn bare_round_trip() -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("a client");
        socket.set_nodelay(true).expect("a socket");
        let mut space = [0; 64];
        while socket.read_exact(&mut space).is_ok() && socket.write_all(&space).is_ok() {}
    });
    let mut socket = TcpStream::connect(address).expect("it listens");
    socket.set_nodelay(true).expect("a socket");
    median(|_| {
        let mut space = [7; 64];
        socket.write_all(&space).expect("sent");
        socket.read_exact(&mut space).expect("echoed");
    })
}

/// Promise: with a millisecond of delay in each direction a get takes one round trip, and a put
/// two. Counts are checked; times are only printed, because those of a busy machine vary.
#[test]
fn delayed() {
    on_a_network_of_its_own("bad_network::delayed", || {
        let node = Node::start(NodePlan::of_size(64));
        let session = open(&node, Fabric::Tcp, Duration::from_secs(10));
        let table = loaded(&session);
        netem("delay 1ms").expect("as before");
        let bare = bare_round_trip();
        assert!(bare >= 2 * ONE_WAY, "{bare:?}: the network is not delayed");
        let get = median(|key| {
            assert_eq!(table.get(key * 97).expect("a get"), Some(!(key * 97)));
            assert_eq!(session.last_cost().round_trips, 1);
        });
        let put = median(|key| {
            assert!(table.put(key * 97, key).expect("a put").is_some());
            assert_eq!(session.last_cost().round_trips, 2);
        });
        let ratio = |time: Duration| time.as_secs_f64() / bare.as_secs_f64();
        eprintln!(
            "over tcp: round trip {bare:?}; get {get:?}, {:.3} times; put {put:?}, {:.3} times",
            ratio(get),
            ratio(put)
        );
    });
}

/// Promise: if packets are lost, operations on three nodes take longer, but each returns the right
/// result.
#[test]
fn lossy() {
    on_a_network_of_its_own("bad_network::lossy", || {
        let plan = NodePlan {
            lost_after: Duration::from_secs(10),
            ..NodePlan::of_size(64)
        };
        let node = Node::start_over(Fabric::Nodes, plan);
        let session = open(&node, Fabric::Nodes, Duration::from_secs(10));
        let table = loaded(&session);
        netem("loss 2%").expect("as before");
        let (started_at, mut round) = (Instant::now(), 0);
        while started_at.elapsed() < LOSSY_TIME {
            let key = round * 48_271 % RECORD_COUNT;
            let before = table.put(key, round).expect("a put");
            assert!(before.is_some(), "key {key} was loaded");
            assert_eq!(table.get(key).expect("a get"), Some(round));
            round += 1;
        }
        eprintln!("with 2 % of packets lost: {round} puts and gets in {LOSSY_TIME:?}");
        assert!(round > 0);
    });
}

/// Promise (FABRIC-5, FABRIC-6): a cut network causes an unknown outcome within the configured
/// timeout. When it is repaired, all acknowledged writes are there, and other clients can work.
#[test]
fn cut() {
    on_a_network_of_its_own("bad_network::cut", || {
        let plan = NodePlan {
            silence_max: Duration::from_secs(1),
            ..NodePlan::of_size(64)
        };
        let node = Node::start(plan);
        let answer_time_max = Duration::from_secs(1);
        let session = open(&node, Fabric::Tcp, answer_time_max);
        let table = loaded(&session);
        for key in 0..100 {
            table.put(key, 7).expect("a put");
        }
        netem("loss 100%").expect("as before");
        let started_at = Instant::now();
        let error = table.put(5, 8).expect_err("nobody answers");
        let is_unknown = matches!(error.kind(), ErrorKind::Fabric(failure)
            if matches!(failure.kind(), BatchErrorKind::Unknown { .. }));
        let noticed = started_at.elapsed();
        assert!(is_unknown, "{error}");
        assert!(noticed < answer_time_max + NOTICE_TIME_MAX, "{noticed:?}");
        eprintln!("a network that is cut: an unknown outcome after {noticed:?}");
        netem("delay 0ms").expect("as before");
        let other = open(&node, Fabric::Tcp, Duration::from_secs(30));
        let other_table = other.open_table(TABLE).expect("it is there");
        for key in 0..RECORD_COUNT {
            let found = other_table.get(key).expect("a get");
            let wrote = if key < 100 { 7 } else { !key };
            let unknown = key == 5 && found == Some(8);
            assert!(unknown || found == Some(wrote), "key {key}: {found:?}");
        }
        for key in 0..100 {
            other_table
                .put(key, 9)
                .expect("others work, also on what it had locked");
        }
    });
}
