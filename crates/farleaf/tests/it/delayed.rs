//! A slow network, and one that is cut: a relay between client and node.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farleaf::{ConnectOptions, ErrorKind, Pool, Secret, Session, Table, TableOptions};
use farleaf_fabric::BatchErrorKind;
use farleaf_node::{ShmNode, TcpListenOptions};

const SECRET: &str = "the secret of the delayed";
const DELAY: Duration = Duration::from_millis(1);

/// Relay that forwards bytes after a delay, or stops forwarding without closing connections.
struct Relay {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    /// Clients' ends of the connections, in the order of their arrival.
    clients: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start(target: SocketAddr, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let is_cut = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&is_cut);
        let clients: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let known = Arc::clone(&clients);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(node) = TcpStream::connect(target) else {
                    return;
                };
                client.set_nodelay(true).expect("a socket");
                node.set_nodelay(true).expect("a socket");
                let clone = |socket: &TcpStream| socket.try_clone().expect("a descriptor");
                known.lock().expect("no panic").push(clone(&client));
                pass_on(clone(&client), clone(&node), delay, &heard);
                pass_on(node, client, delay, &heard);
            }
        });
        Self {
            address,
            is_cut,
            clients,
        }
    }
}

/// Received bytes, and the time at which they are forwarded.
type Piece = (Instant, Vec<u8>);

fn pass_on(mut from: TcpStream, to: TcpStream, delay: Duration, is_cut: &Arc<AtomicBool>) {
    let (sender, pieces): (Sender<Piece>, _) = channel();
    let is_cut = Arc::clone(is_cut);
    std::thread::spawn(move || send_when_due(&pieces, to, &is_cut));
    std::thread::spawn(move || {
        let mut space = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut space) {
            let piece = (Instant::now() + delay, space[..count].to_vec());
            if sender.send(piece).is_err() {
                return;
            }
        }
    });
}

fn send_when_due(pieces: &Receiver<Piece>, mut to: TcpStream, is_cut: &AtomicBool) {
    let mut waiting: VecDeque<Piece> = VecDeque::new();
    loop {
        let due = waiting.front().map(|(due, _)| *due);
        let time = due.map_or(Duration::from_mins(1), |due| {
            due.saturating_duration_since(Instant::now())
        });
        match pieces.recv_timeout(time) {
            Ok(piece) => waiting.push_back(piece),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if waiting.is_empty() => {
                // The other side may have closed already.
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(time),
        }
        while let Some((due, piece)) = waiting.front() {
            if *due > Instant::now() {
                break;
            }
            if !is_cut.load(Ordering::Relaxed) && to.write_all(piece).is_err() {
                return;
            }
            waiting.pop_front();
        }
    }
}

/// Starts a node, and returns its address.
fn node(name: &str) -> (ShmNode, SocketAddr) {
    let name = format!("{name}-{}", std::process::id());
    let mut node = ShmNode::start(&name, 64 << 20, None).expect("a node");
    let mut options = TcpListenOptions::at("127.0.0.1:0".parse().expect("an address"));
    options.secret = Some(Secret::from_text(SECRET).expect("long enough"));
    options.silence_max = Duration::from_millis(500);
    let address = node.listen(&options).expect("a free port");
    (node, address)
}

fn open(address: SocketAddr, answer_time_max: Duration) -> Pool {
    let options = ConnectOptions {
        secret: Some(Secret::from_text(SECRET).expect("long enough")),
        answer_time_max,
        ..ConnectOptions::default()
    };
    Pool::open_with(&format!("tcp:{address}"), &options).expect("it listens")
}

fn loaded(session: &Session) -> Table {
    let table = session
        .create_table("t", &TableOptions::default())
        .expect("a table");
    table
        .bulk_load((0..10_000).map(|key| (key, !key)), |_| {})
        .expect("a load");
    table
}

fn median_us(count: u64, mut once: impl FnMut(u64)) -> u128 {
    let mut times: Vec<_> = (0..count)
        .map(|index| {
            let started_at = Instant::now();
            once(index);
            started_at.elapsed().as_micros()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Returns the time of a bare round trip through a relay.
fn bare_round_trip_us() -> u128 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let relay = Relay::start(listener.local_addr().expect("bound"), DELAY);
    std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().expect("the relay comes");
        let mut space = [0; 64];
        while socket.read_exact(&mut space).is_ok() && socket.write_all(&space).is_ok() {}
    });
    let mut socket = TcpStream::connect(relay.address).expect("the relay listens");
    socket.set_nodelay(true).expect("a socket");
    median_us(100, |_| {
        let mut space = [7; 64];
        socket.write_all(&space).expect("sent");
        socket.read_exact(&mut space).expect("echoed");
    })
}

/// Promise: with a millisecond of delay in each direction a get is one round trip and a put two,
/// and take little more time than the network. Counts are checked; times are only printed, because
/// those of a busy machine vary.
#[test]
fn slow_networks_cost_their_round_trips() {
    let (_node, address) = node("slow");
    let relay = Relay::start(address, DELAY);
    let session = open(relay.address, Duration::from_secs(10))
        .session()
        .expect("a session");
    let table = loaded(&session);
    let bare = bare_round_trip_us();
    let get = median_us(100, |key| {
        assert_eq!(table.get(key * 97).expect("a get"), Some(!(key * 97)));
        assert_eq!(session.last_cost().round_trips, 1);
    });
    let put = median_us(100, |key| {
        assert!(table.put(key * 97, key).expect("a put").is_some());
        assert_eq!(session.last_cost().round_trips, 2);
    });
    let ratio = |time: u128| time as f64 / bare as f64;
    eprintln!(
        "round trip {bare} us; get {get} us, {:.3} times; put {put} us, {:.3} times",
        ratio(get),
        ratio(put)
    );
}

/// Promise (FABRIC-5, FABRIC-6): a client whose connection is cut gets an error within its timeout.
/// The node fences it, and others continue, also with data that it had locked.
#[test]
fn a_cut_link_ends_in_an_error_and_stops_nobody() {
    let (_node, address) = node("cut");
    let relay = Relay::start(address, Duration::ZERO);
    let direct = open(address, Duration::from_secs(10))
        .session()
        .expect("a session");
    let direct_table = loaded(&direct);
    let pool = open(relay.address, Duration::from_millis(300));
    let session = pool.session().expect("a session");
    let table = session.open_table("t").expect("it is there");
    assert_eq!(table.get(5).expect("a get"), Some(!5));
    let alive = direct.pool().usage().expect("usage").session_count;
    relay.is_cut.store(true, Ordering::Relaxed);
    let started_at = Instant::now();
    let error = table.put(5, 0).expect_err("nobody answers");
    let is_unknown = matches!(error.kind(), ErrorKind::Fabric(failure)
        if matches!(failure.kind(), BatchErrorKind::Unknown { .. }));
    assert!(
        is_unknown && started_at.elapsed() < Duration::from_secs(5),
        "{error}"
    );
    for key in 0..200 {
        direct_table.put(key, key).expect("others go on");
    }
    let gone_in = Duration::from_secs(20);
    while direct.pool().usage().expect("usage").session_count >= alive {
        assert!(
            started_at.elapsed() < gone_in,
            "the node has not given the client up"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    for key in 0..200 {
        assert_eq!(direct_table.get(key).expect("a get"), Some(key));
    }
}

/// Promise (FABRIC-6): a process of which only its own data connection breaks cannot catch up with
/// the pool any more. It gives itself up: its sessions are fenced, and memory they might read can
/// be reused.
#[test]
fn a_process_that_cannot_follow_gives_itself_up() {
    let (_node, address) = node("follow");
    let direct = open(address, Duration::from_secs(10))
        .session()
        .expect("a session");
    let direct_table = loaded(&direct);
    let alive = direct.pool().usage().expect("usage").session_count;
    let relay = Relay::start(address, Duration::ZERO);
    let pool = open(relay.address, Duration::from_secs(10));
    let session = pool.session().expect("a session");
    let table = session.open_table("t").expect("it is there");
    // The control connection came first, then the process's own, then the session's.
    let own = relay.clients.lock().expect("no panic").swap_remove(1);
    own.shutdown(Shutdown::Both).expect("it was open");
    let started_at = Instant::now();
    while table.put(5, 0).is_ok() {
        assert!(
            started_at.elapsed() < Duration::from_secs(20),
            "it goes on for ever"
        );
    }
    while direct.pool().usage().expect("usage").session_count > alive {
        assert!(
            started_at.elapsed() < Duration::from_secs(20),
            "it is not fenced"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    pool.session().expect_err("the process has fenced itself");
    direct_table.put(5, 7).expect("others go on");
}
