//! Peers that send or read a few bytes at a time are disconnected within a bounded time, in every
//! phase of a connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_net::request::{Caller, Connection, Server, Service};
use farleaf_net::tls::TlsServer;

use crate::encrypted::Certificates;
use crate::parties::{
    Mirror, check, connect, dial, frame, greeted_client, hear_frame, hello, listen_options, serve,
};

/// Time for a frame in these tests; frames of more than a MiB get a second more for each.
const FRAME_TIME_MAX: Duration = Duration::from_millis(300);
/// Time after which a connection counts as not ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pause after each byte.
const PAUSE: Duration = Duration::from_millis(20);

fn impatient(service: impl Service + 'static) -> Server {
    let mut options = listen_options();
    options.frame_time_max = FRAME_TIME_MAX;
    serve(&options, service)
}

/// Sends one byte at a time until the connection ends; returns the time that it took.
fn trickle(socket: &mut TcpStream, bytes: &[u8]) -> Duration {
    let start = Instant::now();
    for byte in bytes {
        if socket.write_all(&[*byte]).is_err() {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the connection does not end");
        thread::sleep(PAUSE);
    }
    start.elapsed()
}

/// Promise: a greeting of one byte at a time ends after 5 seconds, before and within a message.
#[test]
fn a_trickled_greeting_ends() {
    let server = impatient(Mirror);
    let mut socket = dial(&server);
    // The pause is 20 ms, so the whole message would take over 5 seconds.
    let greeting = hello().repeat(4);
    let time = trickle(&mut socket, &greeting);
    assert!(time < Duration::from_secs(15), "{time:?}");
    check(&mut connect(&server));
}

/// Promise: a request of one byte at a time ends within its limit and one read's: a small one, and
/// one that has its own memory, from its header on and from its middle on.
#[test]
fn a_trickled_request_ends() {
    let server = impatient(Mirror);
    for (size_bytes, begin_bytes) in [(1000, 0), (200_000, 0), (200_000, 150_000)] {
        let request = frame(*b"FLrq", &vec![7; size_bytes]);
        let mut socket = greeted_client(&server);
        let (begin, rest) = request.split_at(begin_bytes);
        socket.write_all(begin).expect("connected");
        let time = trickle(&mut socket, rest);
        assert!(time < Duration::from_secs(10), "{time:?}");
    }
    assert_eq!(server.request_memory_bytes_peak(), 200_000);
    check(&mut connect(&server));
}

/// Service that answers any request with 8 MiB, more than the sockets' buffers take.
struct Verbose;

impl Service for Verbose {
    fn answer(&self, _: &Caller, _: &[u8], reply: &mut Vec<u8>) {
        reply.resize(8 << 20, 1);
    }
}

/// Promise: a client that reads its reply one byte at a time is disconnected within the frame's
/// time, a second for each of the 8 MiB, and one write's limit.
#[test]
fn a_reply_that_is_read_by_bytes_ends() {
    let server = impatient(Verbose);
    let mut socket = greeted_client(&server);
    let start = Instant::now();
    socket.write_all(&frame(*b"FLrq", b"x")).expect("connected");
    // The server has ended the connection when a request is answered by a reset.
    while socket.read_exact(&mut [0; 1]).is_ok() {
        if socket.write_all(&frame(*b"FLrq", b"x")).is_err() {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the connection does not end");
        thread::sleep(PAUSE);
    }
    println!("ended after {:?}", start.elapsed());
}

/// Forwards bytes to a server: `fast_bytes` at once, and the rest one at a time.
fn forward(mut from: TcpStream, mut to: TcpStream, mut fast_bytes: usize) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let size_bytes = if fast_bytes == 0 {
            1
        } else {
            buffer.len().min(fast_bytes)
        };
        let count = from.read(&mut buffer[..size_bytes])?;
        if count == 0 {
            return to.shutdown(Shutdown::Write);
        }
        to.write_all(&buffer[..count])?;
        fast_bytes = fast_bytes.saturating_sub(count);
        if fast_bytes == 0 {
            thread::sleep(PAUSE);
        }
    }
}

/// Returns the address of a proxy for one connection, which slows down after `fast_bytes`.
fn slow_proxy(server: SocketAddr, fast_bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let server = TcpStream::connect(server).expect("it listens");
        let back = (
            server.try_clone().expect("a socket"),
            client.try_clone().expect("a socket"),
        );
        thread::spawn(move || {
            let ended = forward(back.0, back.1, usize::MAX);
            println!("the server ended the connection: {ended:?}");
        });
        // The server has ended the connection if it fails.
        let _ = forward(client, server, fast_bytes);
    });
    address
}

/// Promise: the same holds with encryption, where a record of up to 16 KiB arrives one byte at a
/// time: in the handshake, and within a request.
#[test]
fn trickled_records_end() {
    let certificates = Certificates::new();
    let mut options = listen_options();
    options.frame_time_max = FRAME_TIME_MAX;
    let tls = TlsServer::from_files(certificates.own(), None);
    options.tls = Some(tls.expect("they go together"));
    let server = serve(&options, Mirror);
    let mut patient = certificates.client(None);
    patient.connect_timeout = PATIENCE;
    patient.answer_timeout = PATIENCE;
    for (fast_bytes, is_admitted) in [(100, false), (30_000, true)] {
        let proxy = slow_proxy(server.address(), fast_bytes).to_string();
        let start = Instant::now();
        let connected = Connection::connect(&proxy, &patient);
        assert_eq!(connected.is_ok(), is_admitted, "{connected:?}");
        if let Ok(mut connection) = connected {
            let error = connection
                .call(&vec![7; 60_000])
                .expect_err("it is too slow");
            println!("{error}");
        }
        let time = start.elapsed();
        assert!(time < Duration::from_secs(15), "{time:?}");
    }
    let mut own = Connection::connect(&server.address().to_string(), &patient).expect("let in");
    check(&mut own);
}

/// Promise: a slow request that is complete in time is answered.
#[test]
fn a_slow_request_in_time_is_answered() {
    let mut options = listen_options();
    options.frame_time_max = Duration::from_secs(10);
    let server = serve(&options, Mirror);
    let mut socket = greeted_client(&server);
    trickle(&mut socket, &frame(*b"FLrq", b"xyz"));
    assert_eq!(hear_frame(&mut socket), (*b"FLan", b"zyx".to_vec()));
}
