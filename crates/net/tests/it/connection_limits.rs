//! Many connections, and more than the limit.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use farleaf_net::request::{Connection, NetError, Server};

use crate::parties::{
    Mirror, check, connect, connect_options, dial, has_ended, listen_options, mirror, serve,
};

/// Connects after a connection has ended, which the server may not have noticed yet.
fn connect_when_there_is_capacity(server: &Server) -> Connection {
    let address = server.address().to_string();
    let start = Instant::now();
    loop {
        match Connection::connect(&address, &connect_options()) {
            Ok(connection) => return connection,
            Err(error) => assert!(matches!(error, NetError::Refused { .. }), "{error}"),
        }
        assert!(start.elapsed() < Duration::from_secs(20));
    }
}

/// Promise: many concurrent connections get their own replies, each in order.
#[test]
fn many_at_once() {
    let server = mirror();
    std::thread::scope(|scope| {
        for thread in 0..48_u32 {
            let server = &server;
            scope.spawn(move || {
                let mut connection = connect(server);
                for number in 0..200_u32 {
                    let mut request = [thread.to_le_bytes(), number.to_le_bytes()].concat();
                    let answer = connection.call(&request).expect("answered").to_vec();
                    request.reverse();
                    assert_eq!(answer, request);
                }
            });
        }
    });
}

/// Promise: a connection beyond the limit is refused with a reason; when another one has ended, a
/// new one is admitted.
#[test]
fn one_too_many_is_told() {
    let mut options = listen_options();
    options.connection_count_max = 3;
    let server = serve(&options, Mirror);
    let address = server.address().to_string();
    let mut three: Vec<_> = (0..3).map(|_| connect(&server)).collect();
    let error = Connection::connect(&address, &connect_options()).expect_err("no room");
    assert!(matches!(error, NetError::Refused { .. }), "{error}");
    assert!(
        error.to_string().contains("limit on connections"),
        "{error}"
    );
    three.iter_mut().for_each(check);
    three.pop();
    let mut next = connect_when_there_is_capacity(&server);
    check(&mut next);
    three.iter_mut().for_each(check);
}

/// Promise: silent unauthenticated connections block no clients: the oldest of them is replaced.
#[test]
fn strangers_keep_nobody_out() {
    let mut options = listen_options();
    options.connection_count_max = 4;
    let server = serve(&options, Mirror);
    let mut own = connect(&server);
    let mut strangers: Vec<TcpStream> = (0..6).map(|_| dial(&server)).collect();
    let mut second = connect(&server);
    for stranger in &mut strangers[..4] {
        assert!(has_ended(stranger));
    }
    check(&mut own);
    check(&mut second);
}
