//! Cost of a call compared with a bare exchange over TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::parties::{connect, listen_options, serve};

use farleaf_net::request::{Caller, Service};

struct Echo;

impl Service for Echo {
    fn answer(&self, _: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(request);
    }
}

const ROUND_TIME: Duration = Duration::from_millis(300);

/// Measures two operations in alternating rounds; returns their median times in nanoseconds per
/// call.
fn medians(mut one: impl FnMut(), mut other: impl FnMut()) -> [f64; 2] {
    let round = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        let mut count = 0_u32;
        while start.elapsed() < ROUND_TIME {
            call();
            count += 1;
        }
        start.elapsed().as_nanos() as f64 / f64::from(count)
    };
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..7 {
        times[0].push(round(&mut one));
        times[1].push(round(&mut other));
    }
    times.map(|mut them| {
        them.sort_by(f64::total_cmp);
        them[them.len() / 2]
    })
}

/// Prints the ratio of a call's time to that of a bare exchange of as many bytes, for several
/// sizes.
#[test]
#[ignore = "it measures: see docs/reference/wire.md"]
fn time_of_a_call() {
    let server = serve(&listen_options(), Echo);
    for size_bytes in [8, 1 << 10, 60 << 10, 1 << 20, 16 << 20] {
        let bare = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = bare.local_addr().expect("bound");
        let thread = std::thread::spawn(move || {
            let (mut socket, _) = bare.accept().expect("a client");
            socket.set_nodelay(true).expect("a socket");
            let mut bytes = vec![0; size_bytes];
            let mut answer = Vec::new();
            while socket.read_exact(&mut bytes).is_ok() {
                // The service does the same.
                answer.clear();
                answer.extend_from_slice(&bytes);
                socket.write_all(&answer).expect("connected");
            }
        });
        let mut socket = TcpStream::connect(address).expect("it listens");
        socket.set_nodelay(true).expect("a socket");
        let mut connection = connect(&server);
        let request = vec![7; size_bytes];
        let mut answer = vec![0; size_bytes];
        let [call, exchange] = medians(
            || {
                assert_eq!(
                    connection.call(&request).expect("answered").len(),
                    size_bytes
                );
            },
            || {
                socket.write_all(&request).expect("connected");
                socket.read_exact(&mut answer).expect("connected");
            },
        );
        println!(
            "{size_bytes} bytes: {:.2} times a bare exchange, which takes {:.0} us",
            call / exchange,
            exchange / 1000.0
        );
        drop(socket);
        thread.join().expect("it ended");
    }
}
