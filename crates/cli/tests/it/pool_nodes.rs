//! Tests of `farleaf serve --pool FILE --node N`: several processes that serve one pool.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use rcgen::generate_simple_self_signed;

use crate::pool::{Place, Server, lines};

/// Timeout for a node to join.
const JOIN_TIME_MAX: Duration = Duration::from_secs(30);

/// Returns ports that are free at the moment.
fn free_ports<const COUNT: usize>() -> [u16; COUNT] {
    let sockets = [(); COUNT].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    sockets.map(|socket| socket.local_addr().expect("bound").port())
}

/// Promise: with TLS for each node, and an authority for connections between nodes and from
/// clients, two nodes form a pool that can be filled, read and administered. Clients without
/// encryption are rejected.
#[test]
fn a_pool_of_two_nodes_can_be_encrypted() {
    let place = Place::new();
    let made = generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("made");
    place.file("node.pem", made.cert.pem());
    place.file("node.key", made.signing_key.serialize_pem());
    place.file("pool.secret", place.farleaf(&["secret", "new"]).quietly());
    let ports = free_ports::<2>();
    let node = |port: &u16| format!("[[node]]\naddress = '127.0.0.1:{port}'\nsize = '16MiB'\n");
    let nodes = lines(ports.iter().map(node));
    place.file("pool.toml", format!("secret_file = 'pool.secret'\n{nodes}"));
    let serve = |number: &str| -> Server {
        let tls = ["--tls-cert", "node.pem", "--tls-key", "node.key"];
        let which = [
            "--tls-ca",
            "node.pem",
            "--pool",
            "pool.toml",
            "--node",
            number,
        ];
        place.serve(&[&which[..], &tls].concat())
    };
    let _servers = [serve("0"), serve("1")];
    // By the address of the second node.
    let pool = format!("tcp:127.0.0.1:{}", ports[1]);
    let in_clear = ["--pool", &pool, "--secret-file", "pool.secret"];
    let common = [&in_clear[..], &["--tls-ca", "node.pem"]].concat();
    let try_run = |rest: &[&str]| place.farleaf(&[&common, rest].concat());
    let until = Instant::now() + JOIN_TIME_MAX;
    loop {
        let listed = try_run(&["nodes", "list"]);
        if listed.stdout.matches("active").count() == 2 {
            break;
        }
        assert!(Instant::now() < until, "it is not taken in: {listed:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let run = |rest: &[&str]| try_run(rest).quietly();
    place.file("keys.txt", lines(1..=20_000));
    assert!(run(&["load", "keys.txt", "--create", "-t", "t"]).starts_with("loaded 20,000"));
    assert_eq!(run(&["get", "19999", "-t", "t"]), "19999\t19999\n");
    assert_eq!(run(&["put", "20001", "7", "-t", "t"]), "inserted 20001\n");
    let scanned = run(&["scan", "--limit", "0", "-t", "t"]);
    assert_eq!(scanned.lines().count(), 20_001);
    run(&["nodes", "drain", "1"]);
    run(&["nodes", "keep", "1"]);
    let refused = place.farleaf(&[&in_clear[..], &["get", "1", "-t", "t"]].concat());
    assert_eq!(refused.status, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("this server requires TLS"),
        "{refused:?}"
    );
}
