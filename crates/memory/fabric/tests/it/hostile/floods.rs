//! Floods of connections: existing clients continue, and clients that know the secret can log in.

use std::net::TcpStream;

use farleaf_fabric::Control;
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions};

use rustix::process::{Pid, Resource, Rlimit};

use super::Honest;
use super::raw::{ADMIN, Hello, MAGIC, Raw, message, proof_message};
use crate::children::{Part, Peer};
use crate::network::{self, NetworkNode, secret};

/// Returns the number of silent connections; each takes at most two descriptors of this process.
fn connection_count() -> usize {
    let count = std::env::var("FARLEAF_TEST_CONNECTIONS").ok();
    count.map_or(600, |text| text.parse().expect("a number of connections"))
}

fn connect(node: &NetworkNode) -> TcpStream {
    TcpStream::connect(&node.address).expect("it listens")
}

/// Promise: with thousands of silent connections, existing clients continue to work and a new one
/// can log in.
#[test]
fn a_crowd_that_says_nothing_locks_nobody_out() {
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let mut crowd = Vec::new();
    for number in 0..connection_count() {
        crowd.push(connect(&node));
        if number % 100 == 0 {
            honest.works(0);
        }
    }
    honest.works(0);
    Honest::of(node.client()).works(1);
    honest.works(0);
}

/// Promise: the same holds if the limit of connections is hardly larger than the flood.
#[test]
fn a_crowd_does_not_use_up_the_connections() {
    const CONNECTION_COUNT_MAX: usize = 8;
    let node = NetworkNode::start_with(|options| {
        options.connection_count_max = CONNECTION_COUNT_MAX;
    });
    let honest = Honest::of(node.client());
    let crowd: Vec<_> = (0..50).map(|_| connect(&node)).collect();
    honest.works(0);
    Honest::of(node.client()).works(1);
    honest.works(0);
    drop(crowd);
}

/// Promise: the same holds if the node's process has no descriptor left.
#[test]
fn a_crowd_does_not_use_up_the_descriptors() {
    let mut server = Peer::start(Part::NetworkServer, "");
    let address = server.hear();
    let honest = Honest::of(network::connect(&address, None));
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    let limit = Rlimit {
        current: Some(40),
        maximum: Some(40),
    };
    rustix::process::prlimit(pid, Resource::Nofile, limit).expect("a child of ours");
    let crowd: Vec<_> = (0..100).map(|_| Raw::connect(&address)).collect();
    honest.works(0);
    Honest::of(network::connect(&address, None)).works(1);
    honest.works(0);
    drop(crowd);
}

/// Promise: clients beyond the limit are disconnected, those within it are not disturbed, and a
/// slot is free again when one leaves.
#[test]
fn clients_beyond_the_limit_are_hung_up_on() {
    let node = NetworkNode::start_with(|options| options.connection_count_max = 4);
    let first = Honest::of(node.client());
    let second = Honest::of(node.client());
    let options = TcpConnectOptions {
        secret: Some(secret()),
        ..TcpConnectOptions::default()
    };
    for _ in 0..20 {
        let error = TcpClient::connect(&node.address, &options).expect_err("the fifth");
        assert!(error.to_string().contains("cannot be reached"), "{error}");
    }
    assert!(first.client.endpoint(None).is_err());
    first.works(0);
    second.works(1);
    drop(second);
    for _ in 0..1000 {
        if let Ok(client) = TcpClient::connect(&node.address, &options) {
            client.register_session().expect("served");
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    panic!("a client has left, and there is no room");
}

/// Promise: hundreds of concurrent guesses of the secret exclude no legitimate client of another
/// address, and delay none.
#[test]
fn a_crowd_that_guesses_locks_nobody_out() {
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let mut crowd = Vec::new();
    for number in 0..300_u64 {
        let mut raw = Raw::connect_from(([127, 0, 0, 2], 0).into(), &node.address);
        raw.send(&Hello::control(ADMIN).message());
        raw.send(&proof_message(&[number as u8; 32]));
        crowd.push(raw);
    }
    honest.works(0);
    let start = std::time::Instant::now();
    Honest::of(node.client()).works(1);
    let time = start.elapsed();
    assert!(time < std::time::Duration::from_millis(100), "{time:?}");
    honest.works(0);
}

/// Promise: one control connection cannot take all sessions of a pool. Other clients get some, and
/// so does this one after it has closed one.
#[test]
fn one_client_has_so_many_sessions() {
    const SESSION_COUNT_MAX: usize = 5;
    let node = NetworkNode::start_with(|options| {
        options.session_count_max = SESSION_COUNT_MAX;
    });
    let honest = Honest::of(node.client());
    let greedy = node.client();
    let taken = (0..SESSION_COUNT_MAX).map(|_| greedy.register_session().expect("it may"));
    let taken: Vec<_> = taken.collect();
    for _ in 0..20 {
        let error = greedy.register_session().expect_err("one too many");
        assert!(
            error
                .to_string()
                .contains("the limit of 5 sessions per client is reached"),
            "{error}"
        );
    }
    honest.works(0);
    Honest::of(node.client()).works(1);
    greedy.close_session(taken[0]).expect("closed");
    greedy.register_session().expect("there is room for one");
    greedy.register_session().expect_err("and no more");
}

/// Promise: a client cannot open more data connections than its limit; sessions of others can still
/// connect.
#[test]
fn one_client_has_so_many_connections() {
    const OWN_CONNECTION_COUNT_MAX: usize = 64;
    let node = NetworkNode::start();
    let honest = Honest::of(node.client());
    let greedy = node.client();
    let taken: Vec<_> = (0..OWN_CONNECTION_COUNT_MAX)
        .map(|_| greedy.endpoint(None).expect("it may"))
        .collect();
    let error = greedy.endpoint(None).expect_err("one too many");
    assert!(
        error.to_string().contains("limit on connections"),
        "{error}"
    );
    honest.works(0);
    drop(taken);
    let (mut raw, _) = Raw::log_in(&node.address, ADMIN);
    // Send requests without fetching replies, until the node disconnects.
    let questions = message(&[MAGIC, 5, 1]).repeat(1000);
    let limit = Some(std::time::Duration::from_millis(500));
    raw.0.set_write_timeout(limit).expect("a socket");
    let asked = (0..1000).take_while(|_| {
        use std::io::Write;
        raw.0.write_all(&questions).is_ok()
    });
    assert!(asked.count() < 1000, "the node takes questions without end");
    honest.works(0);
}
