//! Secrets, proofs, versions and tickets: which peers can log in, and as which client.

use std::io::{Read as _, Write};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use farleaf_fabric::ControlError;
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions};
use farleaf_net::secret::{Rights, Secret};
use rustix::net::sockopt::set_socket_linger;

use super::Honest;
use super::raw::{
    ADMIN, Hello, MAGIC, MESSAGE_SIZE_BYTES, Message, READ, Raw, WRITE, greeting, key_of, message,
    number_of, proof, proof_message, ticket_of, turned_away,
};
use crate::network::{NetworkNode, SECRET, secret};

const OTHER_SECRET: &str = "a secret that is another one";
/// Delay of the answer to a wrong proof.
const PENALTY_TIME: Duration = Duration::from_secs(1);

/// Log of the nodes of this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn log() -> MutexGuard<'static, Vec<u8>> {
    LOG.lock().unwrap_or_else(PoisonError::into_inner)
}

struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        log().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn keep_log() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
            .with_ansi(false)
            .with_writer(|| LogWriter)
            .init();
    });
}

/// Promise: a wrong proof is refused, but not before the penalty is over, and the node logs it with
/// the peer's address.
#[test]
fn a_wrong_secret_is_refused_late_and_logged() {
    keep_log();
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let mut raw = Raw::connect(&node.address);
    let start = Instant::now();
    let greeting = raw.greet(&Hello::control(ADMIN), &key_of(OTHER_SECRET, ADMIN));
    assert!(start.elapsed() >= PENALTY_TIME, "{:?}", start.elapsed());
    let said = turned_away(&greeting.answer);
    assert!(said.starts_with("wrong secret"), "{said}");
    raw.wait_for_end();
    let text = String::from_utf8(log().clone()).expect("UTF-8");
    let peer = raw.peer_of_node().to_string();
    let line = text.lines().find(|line| line.contains(&peer));
    let line = line.expect("it is logged");
    assert!(
        line.contains("WARN") && line.contains("wrong secret"),
        "{line}"
    );
    honest.works(0);
}

/// Promise: of many wrong secrets a few are logged, and the number of the rest; the next second
/// starts anew.
#[test]
fn the_log_does_not_grow_with_every_guess() {
    const GUESS_COUNT: usize = 60;
    keep_log();
    let begin = log().len();
    let node = NetworkNode::start();
    let guesses: Vec<Raw> = (0..GUESS_COUNT)
        .map(|_| {
            let mut raw = Raw::connect(&node.address);
            let hello = Hello::control(ADMIN).message();
            let challenge = raw.ask(&hello);
            assert_eq!(number_of(&challenge), 2, "a challenge");
            raw
        })
        .collect();
    let peers: Vec<String> = guesses
        .iter()
        .map(|raw| raw.peer_of_node().to_string())
        .collect();
    let mut guesses = guesses;
    for raw in &mut guesses {
        raw.send(&proof_message(&[7; 32]));
    }
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        // Earlier log lines belong to other tests, whose peers may have had the same ports.
        let text = String::from_utf8(log()[begin..].to_vec()).expect("UTF-8");
        let own = |field: &str| peers.iter().any(|peer| field == peer);
        let is_told = |line: &&str| fields(line, "peer").any(own) && line.contains("wrong secret");
        let told_count = text.lines().filter(is_told).count();
        assert!(told_count <= GUESS_COUNT / 2, "{told_count}");
        let withheld = text.lines().filter(|line| {
            fields(line, "last_peer").any(own) && line.contains("suppressed: failed log-ins")
        });
        let counts = withheld.flat_map(|line| fields(line, "count"));
        let withheld_count: usize = counts.map(|text| text.parse().unwrap_or(0)).sum();
        if told_count + withheld_count == GUESS_COUNT {
            break;
        }
        let missing = GUESS_COUNT - told_count - withheld_count;
        assert!(
            Instant::now() < until,
            "{missing} of them are not accounted for"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the values of a field in a line of the log.
fn fields<'a>(line: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let words = line.split_whitespace();
    words.filter_map(move |word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Promise: the library's client reports the same error to its user, and nothing more.
#[test]
fn a_client_with_another_secret_is_refused() {
    let node = NetworkNode::start();
    let options = TcpConnectOptions {
        secret: Some(Secret::from_text(OTHER_SECRET).expect("long enough")),
        ..TcpConnectOptions::default()
    };
    let start = Instant::now();
    let error = TcpClient::connect(&node.address, &options).expect_err("another secret");
    assert!(matches!(error, ControlError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("wrong secret"), "{error}");
    assert!(start.elapsed() >= PENALTY_TIME);
}

/// Promise: a peer that disconnects during the penalty costs the node no processor time.
#[test]
fn the_penalty_costs_the_node_no_time() {
    let node = NetworkNode::start();
    for _ in 0..8 {
        let mut raw = Raw::connect(&node.address);
        let hello = Hello::control(ADMIN).message();
        raw.ask(&hello);
        raw.send(&super::raw::proof_message(&[3; 32]));
        // Give the node time to receive the proof. Then reset the connection, which `poll` would
        // report without end.
        std::thread::sleep(Duration::from_millis(10));
        set_socket_linger(&raw.0, Some(Duration::ZERO)).expect("a socket");
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = node.listener_time();
    std::thread::sleep(Duration::from_millis(600));
    let spent = node.listener_time().saturating_sub(before);
    assert!(spent < Duration::from_millis(200), "{spent:?} of 600 ms");
}

/// Promise: a recorded greeting opens no second connection.
#[test]
fn a_replayed_proof_is_refused() {
    let node = NetworkNode::start();
    let mut first = Raw::connect(&node.address);
    let recorded = first.greet(&Hello::control(ADMIN), &key_of(SECRET, ADMIN));
    ticket_of(&recorded.answer);
    let mut second = Raw::connect(&node.address);
    let challenge = second.ask(&recorded.hello);
    assert_ne!(challenge, recorded.challenge, "no challenge is used twice");
    let answer = second.ask(&recorded.proof);
    let said = turned_away(&answer);
    assert!(said.starts_with("wrong secret"), "{said}");
    second.wait_for_end();
    first.register();
}

/// Promise: a derived key proves no stronger rights, and the proof of one side is invalid for the
/// other.
#[test]
fn a_weaker_key_proves_no_stronger_rights() {
    let node = NetworkNode::start();
    let refused = [(READ, WRITE), (READ, ADMIN), (WRITE, ADMIN)].map(|(has, wants)| {
        let address = node.address.clone();
        std::thread::spawn(move || {
            let mut raw = Raw::connect(&address);
            let greeting = raw.greet(&Hello::control(wants), &key_of(SECRET, has));
            turned_away(&greeting.answer)
        })
    });
    for refused in refused {
        let said = refused.join().expect("no panic");
        assert!(said.starts_with("wrong secret"), "{said}");
    }
    // The library's client does not even try.
    let text = secret().derived_text(Rights::Read).expect("admin");
    let options = TcpConnectOptions {
        secret: Some(Secret::from_text(&text).expect("a key")),
        rights: Some(Rights::Write),
        ..TcpConnectOptions::default()
    };
    let error = TcpClient::connect(&node.address, &options).expect_err("too weak");
    assert!(
        error.to_string().contains("grants 'read', and 'write'"),
        "{error}"
    );
}

/// Promise: peers of other versions, and those that send garbage, get an error and are
/// disconnected.
#[test]
fn other_versions_and_garbage_are_turned_away() {
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let hello = |rights, purpose| greeting(1, rights, &[1; 32], &[purpose]);
    let cases: [(Message, &str); 9] = [
        (
            message(&[MAGIC + 1, 1]),
            "speaks version 5 of its protocol, the client version 6",
        ),
        (message(&[u64::MAX; 32]), "begins with '\\xff"),
        (message(&[0; 32]), "begins with '\\x00"),
        (message(&[MAGIC, 99]), "unknown type"),
        (hello(0, 1), "unknown rights"),
        (hello(4, 1), "unknown rights"),
        (
            greeting(2, 0, &[1; 32], &[]),
            "a message other than a hello",
        ),
        (proof_message(&[1; 32]), "a message other than a hello"),
        (message(&[MAGIC, 0]), "a message other than a hello"),
    ];
    for (sent, said) in cases {
        let mut raw = Raw::connect(&node.address);
        let answer = raw.ask(&sent);
        let text = turned_away(&answer);
        assert!(text.contains(said), "{text}");
        raw.wait_for_end();
    }
    // Only a peer that knows the secret learns that its purpose is unknown.
    let mut raw = Raw::connect(&node.address);
    let sent = hello(3, 7);
    let challenge = raw.ask(&sent);
    let proof = proof(&key_of(SECRET, ADMIN), &sent, &challenge);
    let text = turned_away(&raw.ask(&proof_message(&proof)));
    assert!(text.contains("unknown purpose"), "{text}");
    let mut raw = Raw::connect(&node.address);
    raw.send(
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
            .repeat(1000)
            .as_slice(),
    );
    raw.wait_for_end();
    honest.works(0);
}

/// Promise: a client that speaks HTTP or RESP, even with a request that is longer than a message,
/// gets an answer in its protocol that names the port, and then the end of the connection.
#[test]
fn other_protocols_are_answered_readably() {
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let long = [&b"POST / HTTP/1.1\r\n"[..], &b"X: y\r\n".repeat(500)].concat();
    for (request, begin) in [
        (
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            "HTTP/1.1 400 Bad Request\r\n",
        ),
        (&long, "HTTP/1.1 400 Bad Request\r\n"),
        (b"*1\r\n$4\r\nPING\r\n", "-ERR "),
        (b"PING\r\n", "-ERR "),
    ] {
        let mut raw = Raw::connect(&node.address);
        raw.send(request);
        let mut reply = String::new();
        raw.0.read_to_string(&mut reply).expect("an orderly end");
        assert!(reply.starts_with(begin), "{reply}");
        assert!(reply.contains("port of a Farleaf memory node"), "{reply}");
    }
    honest.works(0);
}

/// Promise: a peer that sends half a message has 5 s for the rest.
#[test]
fn half_a_greeting_is_hung_up_on() {
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let mut raw = Raw::connect(&node.address);
    let mut after_hello = Raw::connect(&node.address);
    let hello = Hello::control(ADMIN).message();
    let start = Instant::now();
    after_hello.ask(&hello);
    after_hello.send(&proof_message(&[1; 32])[..MESSAGE_SIZE_BYTES - 1]);
    raw.send(&hello[..MESSAGE_SIZE_BYTES / 2]);
    honest.works(0);
    raw.wait_for_end();
    after_hello.wait_for_end();
    assert!(
        start.elapsed() >= Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    honest.works(0);
}

/// Promise: a data connection belongs to its client. Tickets cannot be guessed, sessions of others
/// cannot be used, and each session has one connection.
#[test]
fn data_connections_belong_to_their_client() {
    let node = NetworkNode::start();
    let (mut client, ticket) = Raw::log_in(&node.address, ADMIN);
    let owner = client.register();
    let (mut other, other_ticket) = Raw::log_in(&node.address, ADMIN);
    let (_reader, reader_ticket) = Raw::log_in(&node.address, READ);
    let other_owner = other.register();
    let mut bent = ticket;
    bent[0] ^= 1;
    let first = Raw::open_data(&node.address, ADMIN, ticket, owner);
    let cases = [
        (ADMIN, [0; 16], 0, "no longer connected"),
        (ADMIN, bent, owner, "no longer connected"),
        (ADMIN, other_ticket, owner, "not a session of this client"),
        (ADMIN, ticket, other_owner, "not a session of this client"),
        (ADMIN, ticket, u64::MAX, "not a session of this client"),
        (ADMIN, ticket, owner, "already has a connection"),
        (READ, ticket, 0, "different rights"),
        (ADMIN, reader_ticket, 0, "different rights"),
    ];
    for (rights, ticket, owner, said) in cases {
        let mut raw = Raw::connect(&node.address);
        let greeting = raw.greet_data(rights, ticket, owner);
        let text = turned_away(&greeting.answer);
        assert!(text.contains(said), "{text}");
        raw.wait_for_end();
    }
    // The ticket of a client that has ended is invalid.
    drop((first, client));
    for _ in 0..1000 {
        let mut raw = Raw::connect(&node.address);
        let answer = raw.greet_data(ADMIN, ticket, 0).answer;
        if number_of(&answer) == 0 {
            assert!(turned_away(&answer).contains("no longer connected"));
            return;
        }
    }
    panic!("the ticket of a client that is gone opens connections");
}
