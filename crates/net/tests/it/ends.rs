//! Stopping a server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use farleaf_net::request::{Caller, Connection, Listener, NetError, Service};

use crate::parties::{Mirror, check, connect, connect_options, dial, listen_options, serve};

/// Service that replies only when the test lets it.
#[derive(Default)]
struct BlockedService {
    is_open: Mutex<bool>,
    opened: Condvar,
    waiting_count: AtomicUsize,
}

impl BlockedService {
    fn open(&self) {
        *self.is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }
}

impl Service for BlockedService {
    fn answer(&self, _: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        self.waiting_count.fetch_add(1, Ordering::SeqCst);
        let mut is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
        while !*is_open {
            let waited = self.opened.wait(is_open);
            is_open = waited.unwrap_or_else(PoisonError::into_inner);
        }
        reply.extend_from_slice(request);
    }
}

/// Promise: stopping a server disconnects waiting clients at once, with an unknown outcome. Its
/// drop waits for the service, which is not in use afterwards.
#[test]
fn blocked_clients_are_let_go() {
    let service = Arc::new(BlockedService::default());
    let listener = Listener::bind(&listen_options()).expect("a free port");
    let server = listener.serve(service.clone()).expect("threads");
    let idle = connect(&server);
    let stranger = dial(&server);
    let ends: Sender<NetError>;
    let errors;
    (ends, errors) = channel();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (mut connection, ends) = (connect(&server), ends.clone());
            std::thread::spawn(move || {
                let error = connection.call(b"wait").expect_err("it stops");
                ends.send(error).expect("the test waits");
            })
        })
        .collect();
    let start = Instant::now();
    while service.waiting_count.load(Ordering::SeqCst) < 4 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    assert!(idle.is_usable());
    server.stop();
    for _ in 0..4 {
        let error = errors.recv_timeout(Duration::from_secs(5)).expect("let go");
        assert!(matches!(error, NetError::Lost { .. }) && !error.is_unsent());
    }
    assert!(!idle.is_usable());
    let is_dropped = Arc::new(AtomicBool::new(false));
    let dropped = is_dropped.clone();
    let address = server.address();
    let dropping = std::thread::spawn(move || {
        drop(server);
        dropped.store(true, Ordering::SeqCst);
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(
        !is_dropped.load(Ordering::SeqCst),
        "it waits for the service"
    );
    service.open();
    dropping.join().expect("dropped");
    assert_eq!(Arc::strong_count(&service), 1);
    let error = Connection::connect(&address.to_string(), &connect_options());
    let error = error.expect_err("nobody listens");
    assert!(matches!(error, NetError::Connect { .. }), "{error}");
    drop(stranger);
    for thread in threads {
        thread.join().expect("it told");
    }
}

/// Promise: another server can listen at the address as soon as the previous one has ended, and
/// clients that reconnect get replies.
#[test]
fn an_address_is_free_again() {
    let mut options = listen_options();
    let mut server = serve(&options, Mirror);
    options.address = server.address();
    for _ in 0..5 {
        let mut connection = connect(&server);
        check(&mut connection);
        drop(server);
        let error = connection.call(b"abc").expect_err("it has ended");
        assert!(matches!(
            error,
            NetError::Lost { .. } | NetError::NotSent { .. }
        ));
        server = serve(&options, Mirror);
    }
    check(&mut connect(&server));
}

/// Promise: a service that panics ends only that connection.
#[test]
fn a_panic_ends_one_connection() {
    struct Fragile;
    impl Service for Fragile {
        fn answer(&self, _: &Caller, request: &[u8], reply: &mut Vec<u8>) {
            assert!(request != b"break", "as this test wishes");
            reply.extend(request.iter().rev());
        }
    }
    let server = serve(&listen_options(), Fragile);
    let (mut first, mut second) = (connect(&server), connect(&server));
    let error = first.call(b"break").expect_err("it broke");
    assert!(matches!(error, NetError::Lost { .. }), "{error}");
    check(&mut second);
    check(&mut connect(&server));
}
