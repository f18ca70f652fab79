//! Requests and replies: all sizes, several in flight, and peers that violate the protocol.

use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use farleaf_net::request::{Caller, ConnectOptions, Connection, NetError, Service};

use crate::parties::{
    Mirror, check, connect, connect_options, frame, greeted_client, greeted_server, has_ended,
    hear_frame, listen_options, mirror, serve,
};

fn bytes(size_bytes: usize) -> Vec<u8> {
    (0..size_bytes).map(|index| (index % 253) as u8).collect()
}

/// Promise: requests of all sizes get their replies, in sequence on the same connection.
#[test]
fn all_sizes_are_answered() {
    let server = mirror();
    let mut connection = connect(&server);
    for size_bytes in [0, 1, 100, 65_527, 65_528, 65_529, 1 << 20, 64 << 20, 3, 0] {
        let mut request = bytes(size_bytes);
        let answer = connection.call(&request).expect("answered").to_vec();
        request.reverse();
        assert!(answer == request, "{size_bytes}");
        assert!(connection.is_usable());
    }
}

/// Promise: replies arrive in the order of requests, however many are in flight.
#[test]
fn several_are_under_way() {
    let server = mirror();
    let mut connection = connect(&server);
    for round in 0..20_u32 {
        for number in 0..50_u32 {
            let request = [round.to_le_bytes(), number.to_le_bytes()].concat();
            connection.send(&request).expect("sent");
        }
        assert!(!connection.is_usable(), "answers are awaited");
        for number in 0..50_u32 {
            let mut request = [round.to_le_bytes(), number.to_le_bytes()].concat();
            request.reverse();
            assert_eq!(connection.receive().expect("answered"), request);
        }
    }
    check(&mut connection);
}

/// Promise: a request that is too large is refused before it is sent, and the connection stays
/// usable. A client that sends one nevertheless gets the reason, and is disconnected.
#[test]
fn a_request_that_is_too_large_is_refused() {
    let mut options = listen_options();
    options.request_size_bytes_max = 1000;
    let server = serve(&options, Mirror);
    let mut connection = connect(&server);
    assert_eq!(connection.request_size_bytes_max(), 1000);
    assert_eq!(connection.call(&[0; 1000]).expect("answered").len(), 1000);
    let error = connection.call(&[0; 1001]).expect_err("too large");
    assert!(matches!(error, NetError::RequestTooLarge { .. }) && error.is_unsent());
    check(&mut connection);
    let mut socket = greeted_client(&server);
    socket
        .write_all(&frame(*b"FLrq", &[0; 1001]))
        .expect("connected");
    let (kind, text) = hear_frame(&mut socket);
    assert_eq!(&kind, b"FLno");
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(
        text.contains("1001 bytes, above the limit of 1000"),
        "{text}"
    );
    assert!(has_ended(&mut socket));
    check(&mut connection);
}

/// Promise: invalid bytes after the greeting, and frames that clients must not send, are reported
/// and end the connection.
#[test]
fn garbage_after_the_greeting_ends_it() {
    let server = mirror();
    let mut own = connect(&server);
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        frame(*b"FLan", b"an answer"),
        frame(*b"FLno", b"a refusal"),
        vec![0xFF; 64],
    ] {
        let mut socket = greeted_client(&server);
        socket
            .write_all(&frame(*b"FLrq", b"xyz"))
            .expect("connected");
        assert_eq!(hear_frame(&mut socket), (*b"FLan", b"zyx".to_vec()));
        socket.write_all(&garbage).expect("connected");
        assert_eq!(hear_frame(&mut socket).0, *b"FLno");
        assert!(has_ended(&mut socket));
    }
    check(&mut own);
}

/// Promise: if a client dies in the middle of a request, that request is not executed, but complete
/// earlier ones are. A frame that stalls ends its connection, and an idle connection stays open.
#[test]
fn half_frames_are_given_up() {
    let mut options = listen_options();
    options.frame_time_max = Duration::from_millis(300);
    let server = serve(&options, Mirror);
    let mut idle = connect(&server);
    for size_bytes in [10, 200_000] {
        let whole = frame(*b"FLrq", &bytes(size_bytes));
        for cut in [1, 7, 8, 9, whole.len() - 1] {
            let mut dying = greeted_client(&server);
            dying
                .write_all(&frame(*b"FLrq", b"xyz"))
                .expect("connected");
            dying.write_all(&whole[..cut]).expect("connected");
            dying.shutdown(Shutdown::Write).expect("connected");
            assert_eq!(hear_frame(&mut dying), (*b"FLan", b"zyx".to_vec()));
            assert_eq!(hear_frame(&mut dying).0, *b"FLno");
            assert!(has_ended(&mut dying));
        }
        let mut slow = greeted_client(&server);
        slow.write_all(&whole[..9]).expect("connected");
        let (kind, text) = hear_frame(&mut slow);
        assert_eq!(&kind, b"FLno");
        assert!(String::from_utf8_lossy(&text).contains("timed out in the middle"));
    }
    // A byte from time to time is not enough.
    let mut trickling = greeted_client(&server);
    let start = Instant::now();
    let whole = frame(*b"FLrq", &bytes(1000));
    let sent = whole.iter().take_while(|byte| {
        std::thread::sleep(Duration::from_millis(50));
        trickling.write_all(&[**byte]).is_ok() && start.elapsed() < Duration::from_secs(10)
    });
    assert!(sent.count() < 100);
    check(&mut idle);
}

/// Service that answers any request with many bytes.
struct Verbose;

impl Service for Verbose {
    fn answer(&self, _: &Caller, _: &[u8], reply: &mut Vec<u8>) {
        reply.resize(32 << 20, 1);
    }
}

/// Promise: a client that does not read its replies is disconnected.
#[test]
fn who_does_not_read_is_hung_up_on() {
    let mut options = listen_options();
    options.frame_time_max = Duration::from_millis(200);
    options.connection_count_max = 1;
    let server = serve(&options, Verbose);
    let mut deaf = greeted_client(&server);
    deaf.write_all(&frame(*b"FLrq", b"tell me"))
        .expect("connected");
    let start = Instant::now();
    let address = server.address().to_string();
    // Its slot is free for the next client.
    let mut next = loop {
        match Connection::connect(&address, &connect_options()) {
            Ok(connection) => break connection,
            Err(error) => assert!(
                error.to_string().contains("limit on connections"),
                "{error}"
            ),
        }
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(next.call(b"tell me").expect("answered").len(), 32 << 20);
}

fn quick() -> ConnectOptions {
    ConnectOptions {
        answer_timeout: Duration::from_millis(200),
        ..connect_options()
    }
}

/// Returns the error of a connection whose server runs `play` once it has a request.
fn outcome(play: impl FnOnce(std::net::TcpStream) + Send + 'static) -> NetError {
    let (address, thread) = greeted_server(move |mut socket| {
        assert_eq!(hear_frame(&mut socket), (*b"FLrq", b"do it".to_vec()));
        play(socket);
    });
    let mut connection = Connection::connect(&address, &quick()).expect("let in");
    let error = connection.call(b"do it").expect_err("no answer");
    assert!(!error.is_unsent(), "{error}");
    assert!(!connection.is_usable());
    let next = connection.send(b"do more").expect_err("it is broken");
    assert!(
        matches!(next, NetError::NotSent { .. }) && next.is_unsent(),
        "{next}"
    );
    drop(connection);
    thread.join().expect("it played");
    error
}

/// Promise: a server that dies, is silent or sends something else leaves a request's outcome
/// unknown, and the connection unusable: a late reply is never taken for that to another request.
#[test]
fn servers_that_fail_in_the_middle() {
    let say = |said: Vec<u8>| {
        move |mut socket: std::net::TcpStream| {
            socket.write_all(&said).expect("connected");
        }
    };
    let answer = frame(*b"FLan", &bytes(100_000));
    for cut in [0, 1, 8, 50_000, answer.len() - 1] {
        let error = outcome(say(answer[..cut].to_vec()));
        assert!(matches!(error, NetError::Lost { .. }), "{error}");
    }
    let error = outcome(say(frame(*b"FLrq", b"do it yourself")));
    assert!(matches!(error, NetError::Lost { .. }), "{error}");
    let error = outcome(say(b"HTTP/1.1 200 OK".to_vec()));
    assert!(matches!(error, NetError::Lost { .. }), "{error}");
    let error = outcome(say(b"\xFF\xFF\xFF\xFFFLan".to_vec()));
    assert!(error.to_string().contains("4294967295 bytes"), "{error}");
    let error = outcome(say(frame(*b"FLno", b"I am \x1btired")));
    assert!(matches!(error, NetError::ClosedByServer { .. }), "{error}");
    assert!(error.to_string().contains("I am tired"), "{error}");
    for begin in [0, 20] {
        let begin = answer[..begin].to_vec();
        let error = outcome(move |mut socket| {
            socket.write_all(&begin).expect("connected");
            assert!(has_ended(&mut socket));
        });
        assert!(matches!(error, NetError::TimedOut { .. }), "{error}");
    }
}

/// Promise: of several requests in flight, those whose replies arrived have them, and the others
/// fail.
#[test]
fn a_server_that_dies_answers_some() {
    let (address, thread) = greeted_server(|mut socket| {
        for _ in 0..3 {
            hear_frame(&mut socket);
        }
        socket
            .write_all(&frame(*b"FLan", b"first"))
            .expect("connected");
    });
    let mut connection = Connection::connect(&address, &quick()).expect("let in");
    for _ in 0..3 {
        connection.send(b"do it").expect("sent");
    }
    assert_eq!(connection.receive().expect("answered"), b"first");
    for _ in 0..2 {
        let error = connection.receive().expect_err("it has died");
        assert!(matches!(error, NetError::Lost { .. }) && !error.is_unsent());
    }
    thread.join().expect("it played");
}

/// Promise: a server that does not read causes an error while a request is sent, and the request
/// counts as not sent, because the server never has all of it.
#[test]
fn a_request_that_does_not_leave_is_unsent() {
    let (done, wait) = std::sync::mpsc::channel();
    let (address, thread) = greeted_server(move |socket| {
        wait.recv().expect("the test goes on");
        drop(socket);
    });
    let mut connection = Connection::connect(&address, &quick()).expect("let in");
    let error = loop {
        // The server accepts at most 1000 bytes.
        if let Err(error) = connection.send(&[1; 1000]) {
            break error;
        }
    };
    assert!(matches!(error, NetError::NotSent { .. }), "{error}");
    assert!(error.is_unsent());
    done.send(()).expect("it waits");
    thread.join().expect("it played");
}

/// Promise: a timeout of one call applies only to that call.
#[test]
fn calls_have_their_own_time() {
    struct Late;
    impl Service for Late {
        fn answer(&self, _: &Caller, request: &[u8], reply: &mut Vec<u8>) {
            std::thread::sleep(Duration::from_millis(u64::from(request[0])));
            reply.push(request[0]);
        }
    }
    let server = serve(&listen_options(), Late);
    let address = server.address().to_string();
    let options = ConnectOptions {
        answer_timeout: Duration::from_millis(80),
        ..connect_options()
    };
    let mut connection = Connection::connect(&address, &options).expect("let in");
    let patient = Duration::from_secs(20);
    let answer = connection.call_within(&[250], patient).expect("answered");
    assert_eq!(answer, [250]);
    let error = connection.call(&[250]).expect_err("late");
    assert!(matches!(error, NetError::TimedOut { .. }), "{error}");
    let error = connection
        .call_within(&[0], patient)
        .expect_err("it is broken");
    assert!(error.is_unsent(), "{error}");
}

/// Promise: a listener at another loopback address works as well, also over IPv6 where that exists.
#[test]
fn other_addresses_work() {
    for address in [
        SocketAddr::from(([127, 0, 0, 2], 0)),
        "[::1]:0".parse().expect("one"),
    ] {
        if std::net::TcpListener::bind(address).is_err() {
            println!("skipped: {address} is none of this host's");
            continue;
        }
        let mut options = listen_options();
        options.address = address;
        let server = serve(&options, Mirror);
        check(&mut connect(&server));
    }
}
