//! Tests of pools over TCP: `farleaf serve --listen`, secrets, and keys with fewer rights.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rcgen::generate_simple_self_signed;
use rustix::process::Signal;

use crate::cluster::address_of;
use crate::pool::{Place, Ran, Server, lines};

/// Server over TCP, and the directory of its clients.
struct Network {
    place: Place,
    server: Server,
    pool: String,
}

impl Network {
    /// Starts a server that creates its own secret.
    fn open() -> Self {
        Self::serve(Place::new(), &[])
    }

    /// Starts a server with a given secret; files of these names hold keys to read and to write.
    fn guarded() -> Self {
        let place = Place::new();
        let secret = place.farleaf(&["secret", "new"]).quietly();
        place.file("admin", secret);
        for rights in ["read", "write"] {
            let key = place.farleaf(&["secret", "derive", rights, "--secret-file", "admin"]);
            place.file(rights, key.quietly());
        }
        Self::serve(place, &["--secret-file", "admin"])
    }

    fn serve(place: Place, arguments: &[&str]) -> Self {
        let common = ["--size", "16MiB", "--listen", "0"];
        let server = place.serve(&[&common, arguments].concat());
        let pool = server.network_pool();
        Self {
            place,
            server,
            pool,
        }
    }

    /// Runs a command over TCP.
    fn run(&self, arguments: &[&str]) -> Ran {
        let pool = ["--pool", &self.pool];
        self.place.farleaf(&[&pool, arguments].concat())
    }

    /// Runs a command with the secret in a file.
    fn run_with(&self, secret_file: &str, arguments: &[&str]) -> Ran {
        self.run(&[&["--secret-file", secret_file], arguments].concat())
    }
}

/// Asserts that the command failed with this text and printed nothing.
fn assert_refused(ran: &Ran, fragments: &[&str]) {
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.starts_with("error: "), "{ran:?}");
    for fragment in fragments {
        assert!(ran.stderr.contains(fragment), "no {fragment:?} in {ran:?}");
    }
}

const NO_RIGHT: &[&str] = &[
    "needs the right '",
    "permission denied: this session's rights do not allow the operation's writes",
    "use a secret or key that grants more",
];

/// Promise: a node on loopback prints its address, and every command works with it, with the secret
/// that the node has left for programs of its user. Data written over TCP can be read over shared
/// memory.
#[test]
fn every_command_works_over_tcp() {
    let mut network = Network::open();
    let port = network.pool.rsplit(':').next().expect("a port").to_owned();
    let run = |arguments: &[&str]| network.run(arguments).quietly();
    assert!(
        network.pool.starts_with("tcp:127.0.0.1:"),
        "{}",
        network.pool
    );
    assert!(run(&["table", "list"]).contains("has no tables"));
    assert_eq!(run(&["table", "create", "t"]), "created table 't'\n");
    assert_eq!(run(&["put", "5", "50", "-t", "t"]), "inserted 5\n");
    assert_eq!(run(&["get", "5", "-t", "t"]), "5\t50\n");
    assert_eq!(
        run(&["del", "5", "-t", "t"]),
        "deleted 5 (previous value 50)\n"
    );
    network.place.file("keys.txt", lines(1..=5000));
    let loaded = run(&["load", "keys.txt", "--create"]);
    assert!(loaded.starts_with("loaded 5,000 records"), "{loaded}");
    let again = run(&["load", "keys.txt"]);
    assert!(again.contains("0 inserted, 5,000 updated"), "{again}");
    let scanned = run(&["scan", "--limit", "0"]);
    assert_eq!(
        scanned,
        lines((1..=5000).map(|key| format!("{key}\t{key}")))
    );
    let by_shm = network.place.farleaf(&["scan", "--limit", "0"]).quietly();
    assert_eq!(by_shm, scanned);
    let stats = run(&["stats"]);
    assert!(stats.starts_with(&network.pool), "{stats}");
    assert!(
        stats.contains("sessions 2 ") && stats.contains("5,000"),
        "{stats}"
    );
    assert_eq!(run(&["table", "drop", "t"]), "dropped table 't'\n");

    let secret = network.place.runtime_directory();
    let secret = secret.join(format!("tcp-{port}.secret"));
    let mode = secret.metadata().expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    network.server.signal(Signal::TERM);
    let (status, log) = network.server.end();
    assert_eq!(status, Some(0), "{log}");
    assert!(!secret.exists(), "the secret of a node that is gone");
    assert_refused(
        &network.run(&["get", "1"]),
        &[
            &network.pool,
            "cannot be reached",
            "is `farleaf serve` running?",
        ],
    );
}

/// Promise: a finished command prints no warning: its work for the pool ends before its connection
/// does. Regression test: one command in fifty reported that it was fenced.
#[test]
fn leaving_a_pool_is_no_error() {
    let network = Network::open();
    for _ in 0..100 {
        network.run(&["table", "list"]).quietly();
    }
}

/// Promise: a secret that others can read causes one warning that says how to fix it, and works
/// all the same.
#[test]
fn a_secret_that_others_can_read_is_warned_of() {
    let network = Network::guarded();
    let path = network.place.path().join("admin");
    std::fs::set_permissions(path, Permissions::from_mode(0o640)).expect("it is this user's");
    let ran = network.run_with("admin", &["table", "list"]);
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let warning = "other users of this host can read or change 'admin'; run `chmod 600 admin`";
    assert_eq!(ran.stderr.matches(warning).count(), 1, "{ran:?}");
}

/// Promise: the address of a pool given to `--cluster`, and the reverse, cause an error that
/// names the right option, with a secret and without one.
#[test]
fn the_other_kind_of_server_is_recognized() {
    let network = Network::guarded();
    let init = ["region", "serve", "--data", "d", "--init", "--listen", "0"];
    let server = network.place.start(&init);
    let cluster = format!("tcp:{}", address_of(&server));
    for secret in [&[][..], &["--secret-file", "admin"]] {
        let run = |option: &str, address: &str| {
            let line = [&[option, address][..], secret, &["get", "k"]].concat();
            network.place.farleaf(&line)
        };
        let to_pool = format!("use --pool {}", network.pool);
        let fragments = [
            "a memory node of a pool, not a server of a cluster",
            &to_pool,
        ];
        assert_refused(&run("--cluster", &network.pool), &fragments);
        let to_cluster = format!("--cluster {cluster}");
        let fragments = [
            "a server of a cluster, not a memory node of a pool",
            &to_cluster,
        ];
        assert_refused(&run("--pool", &cluster), &fragments);
    }
}

/// Promise: a node with a given secret leaves none in a file. It admits clients with the same
/// secret in a file or in a variable, and no others.
#[test]
fn a_secret_that_was_given_is_wanted() {
    let network = Network::guarded();
    let list = ["table", "list"];
    assert_refused(
        &network.run(&list),
        &[&network.pool, "requires a secret", "--secret-file"],
    );
    network.run_with("admin", &list).quietly();
    let text = std::fs::read_to_string(network.place.path().join("admin")).expect("it is there");
    for (variable, value) in [
        ("FARLEAF_SECRET", text.trim()),
        ("FARLEAF_SECRET_FILE", "admin"),
    ] {
        let mut command = network.place.command(&["--pool", &network.pool]);
        let ran = command.args(list).env(variable, value).output();
        Ran::from(ran.expect("it starts")).quietly();
    }
    let entries = std::fs::read_dir(network.place.runtime_directory()).expect("a directory");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    assert!(
        names
            .into_iter()
            .all(|name| !name.to_string_lossy().contains("secret"))
    );
}

/// Promise: a wrong secret is rejected after a second, with a message that says so and what to do,
/// and the node logs the client.
#[test]
fn a_wrong_secret_is_refused_slowly() {
    let mut network = Network::guarded();
    network
        .place
        .file("wrong", "this is somebody else's secret");
    let start = Instant::now();
    let ran = network.run_with("wrong", &["get", "1"]);
    assert!(start.elapsed() >= Duration::from_secs(1), "{ran:?}");
    let fragments = [
        network.pool.as_str(),
        "refused the request: wrong secret",
        "`farleaf secret derive`",
    ];
    assert_refused(&ran, &fragments);
    network.server.signal(Signal::TERM);
    let (_, log) = network.server.end();
    let warned = log.lines().find(|line| line.contains("log-in failed"));
    let warned = warned.expect(&log);
    assert!(
        warned.contains("WARN") && warned.contains("peer=127.0.0.1:"),
        "{warned}"
    );
}

/// Promise: a key to read can read everything, including leaves split since the load, and changes
/// nothing. The error for a rejected command says that rights are missing.
#[test]
fn a_key_to_read_only_reads() {
    let network = Network::guarded();
    let admin = |arguments: &[&str]| network.run_with("admin", arguments).quietly();
    network
        .place
        .file("even.txt", lines((0..4000).map(|key| key * 2)));
    network
        .place
        .file("odd.txt", lines((0..4000).map(|key| key * 2 + 1)));
    admin(&["load", "even.txt", "--create"]);
    admin(&["load", "odd.txt"]);
    let all = admin(&["scan", "--limit", "0"]);

    let read = |arguments: &[&str]| network.run_with("read", arguments);
    assert_eq!(read(&["scan", "--limit", "0"]).quietly(), all);
    assert_eq!(read(&["get", "7", "8"]).quietly(), "7\t7\n8\t8\n");
    assert!(read(&["table", "list"]).quietly().contains("default"));
    assert!(read(&["stats"]).quietly().contains("8,000"));
    assert_refused(&read(&["put", "7", "70"]), NO_RIGHT);
    assert_refused(&read(&["put", "9000", "1"]), NO_RIGHT);
    assert_refused(&read(&["del", "7"]), NO_RIGHT);
    assert_refused(&read(&["load", "odd.txt"]), NO_RIGHT);
    assert_refused(&read(&["table", "create", "t"]), NO_RIGHT);
    assert_refused(&read(&["table", "drop", "default"]), NO_RIGHT);
    assert_eq!(admin(&["scan", "--limit", "0"]), all);
    assert!(!admin(&["table", "list"]).contains(" t "));
    // A client may ask for fewer rights than its secret grants, not for more.
    let less = network.run_with("admin", &["--rights", "read", "put", "7", "70"]);
    assert_refused(&less, NO_RIGHT);
    let more = read(&["--rights", "write", "put", "7", "70"]);
    assert_refused(
        &more,
        &["the given key grants 'read', and 'write' was requested"],
    );
}

/// Promise: a key to write can change records, one by one and by a load, and can neither create nor
/// drop tables.
#[test]
fn a_key_to_write_makes_no_tables() {
    let network = Network::guarded();
    let admin = |arguments: &[&str]| network.run_with("admin", arguments).quietly();
    admin(&["table", "create", "default", "--kind", "words"]);
    network.place.file("keys.txt", lines(1..=3000));
    let write = |arguments: &[&str]| network.run_with("write", arguments);
    let loaded = write(&["load", "keys.txt"]).quietly();
    assert!(loaded.starts_with("loaded 3,000 records"), "{loaded}");
    let wrote = write(&["load", "keys.txt"]).quietly();
    assert!(wrote.contains("0 inserted, 3,000 updated"), "{wrote}");
    assert_eq!(write(&["put", "9000", "1"]).quietly(), "inserted 9000\n");
    assert_eq!(
        write(&["del", "1"]).quietly(),
        "deleted 1 (previous value 1)\n"
    );
    assert_eq!(write(&["get", "9000"]).quietly(), "9000\t1\n");
    assert_refused(&write(&["table", "create", "t"]), NO_RIGHT);
    assert_refused(&write(&["table", "drop", "default"]), NO_RIGHT);
    assert_refused(
        &write(&["load", "keys.txt", "--create", "-t", "t"]),
        NO_RIGHT,
    );
    let list = admin(&["table", "list"]);
    assert!(list.contains("default") && !list.contains("\nt "), "{list}");
    // Nothing is left locked: other clients can still create tables.
    admin(&["table", "create", "t"]);
}

/// Promise: with a generated secret, a node listens on every address of its host. A secret that
/// could be guessed is refused there.
#[test]
fn a_node_with_a_secret_listens_everywhere() {
    let place = Place::new();
    place.file("weak", "a secret that is long enough");
    let everywhere = ["--listen", "0.0.0.0:0", "--insecure"];
    let weak = ["serve", "--secret-file", "weak"];
    let ran = place.farleaf(&[&weak[..], &everywhere].concat());
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("secret could be guessed"), "{ran:?}");
    assert!(ran.stderr.contains("farleaf secret new"), "{ran:?}");
    let secret = place.farleaf(&["secret", "new"]).quietly();
    place.file("secret", secret);
    let arguments = [
        "--size",
        "8MiB",
        "--listen",
        "0.0.0.0:0",
        "--insecure",
        "--secret-file",
        "secret",
    ];
    let server = place.serve(&arguments);
    let pool = server.network_pool();
    let port = pool.strip_prefix("tcp:0.0.0.0:").expect(&pool);
    let pool = format!("tcp:localhost:{port}");
    let list = place.farleaf(&["--pool", &pool, "--secret-file", "secret", "table", "list"]);
    assert!(list.quietly().starts_with(&format!("{pool} has no tables")));
}

/// Promise: with a certificate, the node encrypts, and admits clients that accept certificates of
/// its authority. Other clients, and those without encryption, get an error. A certificate without
/// its key, or the reverse, is rejected.
#[test]
fn a_pool_can_be_encrypted() {
    let place = Place::new();
    for name in ["node", "other"] {
        let made = generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("made");
        place.file(&format!("{name}.pem"), made.cert.pem());
        place.file(&format!("{name}.key"), made.signing_key.serialize_pem());
    }
    let network = Network::serve(place, &["--tls-cert", "node.pem", "--tls-key", "node.key"]);
    let run_with =
        |authority, rest: &[&str]| network.run(&[&["--tls-ca", authority], rest].concat());
    assert_eq!(
        run_with("node.pem", &["table", "create", "t"]).quietly(),
        "created table 't'\n"
    );
    assert_eq!(
        run_with("node.pem", &["put", "5", "50", "-t", "t"]).quietly(),
        "inserted 5\n"
    );
    assert_eq!(
        run_with("node.pem", &["get", "5", "-t", "t"]).quietly(),
        "5\t50\n"
    );
    assert_refused(
        &run_with("other.pem", &["get", "5", "-t", "t"]),
        &["certificate"],
    );
    assert_refused(
        &run_with("none.pem", &["get", "5", "-t", "t"]),
        &["none.pem", "No such file"],
    );
    assert_refused(
        &network.run(&["get", "5", "-t", "t"]),
        &["this server requires TLS"],
    );
    let half = network
        .place
        .farleaf(&["serve", "--listen", "0", "--tls-cert", "node.pem"]);
    assert_eq!(half.status, Some(2), "{half:?}");
    assert!(half.stderr.contains("--tls-key"), "{half:?}");
}
