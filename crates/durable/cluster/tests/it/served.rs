//! A coordinator in another process: it passes the suite, and lost messages or a lost server are
//! reported as what they are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farleaf_base::clock::{ManualClock, SystemClock};
use farleaf_cluster::coordinator::conformance::{Harness, run_all};
use farleaf_cluster::coordinator::served::{
    COORDINATOR_TAG, CoordinatorService, RemoteCoordinator,
};
use farleaf_cluster::coordinator::{
    Bound, Compare, Coordinator, CoordinatorError, Embedded, Event, KeepAlive, LeaseId, Revision,
    Transaction, TransactionOutcome,
};
use farleaf_cluster::ids::{ClusterId, ServerId};
use farleaf_cluster::{admin, starts};
use farleaf_lsm::storage::DirectoryStorage;
use farleaf_net::request::{
    Caller, ConnectOptions, Connection, ListenOptions, Listener, Membership, NetError, Server,
    Service,
};
use farleaf_net::secret::Secret;

fn secret() -> Secret {
    Secret::from_text("the secret of these tests").expect("long enough")
}

fn serve_at(address: SocketAddr, service: impl Service + 'static) -> Result<Server, NetError> {
    let mut options = ListenOptions::at(address);
    options.secret = Some(secret());
    Listener::bind(&options)?.serve(Arc::new(service))
}

fn serve(service: impl Service + 'static) -> Server {
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    serve_at(free, service).expect("a free port")
}

fn connect_options() -> ConnectOptions {
    ConnectOptions {
        secret: Some(secret()),
        ..ConnectOptions::default()
    }
}

fn connect_with(server: &Server, options: &ConnectOptions) -> RemoteCoordinator {
    let address = server.address().to_string();
    RemoteCoordinator::connect(&address, options).expect("it is served")
}

fn connect(server: &Server) -> RemoteCoordinator {
    connect_with(server, &connect_options())
}

/// A remote coordinator, with its server.
#[derive(Clone)]
struct Served {
    remote: RemoteCoordinator,
    embedded: Embedded,
    _server: Arc<Server>,
}

impl std::ops::Deref for Served {
    type Target = RemoteCoordinator;

    fn deref(&self) -> &RemoteCoordinator {
        &self.remote
    }
}

struct OverTheWire;

impl Harness for OverTheWire {
    type Tested = Served;

    fn open(&self) -> Served {
        let embedded = Embedded::default();
        let server = serve(CoordinatorService::new(embedded.clone()));
        Served {
            remote: connect(&server),
            embedded,
            _server: Arc::new(server),
        }
    }

    fn compact(&self, tested: &Served) {
        tested.embedded.compact();
    }

    fn time_to_live_min(&self) -> Duration {
        Duration::from_millis(300)
    }
}

/// The embedded coordinator, used over the wire, keeps every promise of a coordinator.
#[test]
fn one_in_another_process_conforms() {
    run_all(&OverTheWire);
}

fn open(directory: &tempfile::TempDir, clock: &ManualClock) -> Embedded {
    let storage = DirectoryStorage::open(directory.path()).expect("it can be opened");
    Embedded::open(Arc::new(storage), Arc::new(clock.clone())).expect("it is as it was")
}

fn is_unavailable<T: std::fmt::Debug>(result: Result<T, CoordinatorError>) {
    let error = result.expect_err("nobody is there");
    assert!(
        matches!(error, CoordinatorError::Unavailable { .. }),
        "{error}"
    );
}

/// A stopped server is unavailable, and requests to it are not executed. Restarted with the same
/// directory it has everything, its leases have their whole time again (CONTROL-6), and clients
/// continue. A watch breaks, and a new one returns all changes.
#[test]
fn clients_go_on_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let clock = ManualClock::new();
    let service = || CoordinatorService::new(open(&directory, &clock));
    let server = serve(service());
    let address = server.address();
    let remote = connect(&server);
    let time_to_live = Duration::from_secs(10);
    let (lease, granted) = remote.grant_lease(time_to_live).expect("it works");
    assert_eq!(granted, time_to_live);
    let held = Transaction::new()
        .put_leased("held", b"1".to_vec(), lease)
        .put("kept", vec![0, 0xFF, b'"', b'\n']);
    remote.transact(&held).expect("it works");
    let before = remote.range("").expect("it works");
    let mut watch = remote.watch("", before.revision).expect("it works");
    assert_eq!(watch.next(Duration::ZERO).expect("it works"), []);
    clock.advance(Duration::from_secs(9));
    drop(server);
    is_unavailable(remote.range(""));
    is_unavailable(remote.transact(&Transaction::new().delete("kept")));
    is_unavailable(remote.grant_lease(time_to_live));
    is_unavailable(remote.keep_alive(lease));
    is_unavailable(remote.revoke_lease(lease));
    is_unavailable(remote.watch("", before.revision).map(drop));
    is_unavailable(watch.next(Duration::from_secs(20)));
    clock.advance(Duration::from_secs(100));
    let server = serve_at(address, service()).expect("free again");
    clock.advance(Duration::from_secs(9));
    assert_eq!(remote.range("").expect("it is back"), before);
    let alive = remote.keep_alive(lease).expect("it works");
    assert_eq!(alive, KeepAlive::Alive(time_to_live));
    let mut watch = remote.watch("", before.revision).expect("it works");
    let put = Transaction::new().put("new", Vec::new());
    remote.transact(&put).expect("it works");
    let events = watch.next(Duration::from_secs(20)).expect("it works");
    assert!(matches!(&events[..], [Event::Put(entry)] if entry.key == "new"));
    clock.advance(time_to_live);
    let events = watch.next(Duration::from_secs(20)).expect("it works");
    assert!(matches!(&events[..], [Event::Delete(key, _)] if key == "held"));
    let gone = remote.keep_alive(lease).expect("it works");
    assert_eq!(gone, KeepAlive::Gone);
    // Changes in the journal are returned from before the restart, too.
    let mut old = remote.watch("", Revision(1)).expect("it works");
    let events = old.next(Duration::from_secs(20)).expect("it works");
    let keys: Vec<_> = events.iter().map(Event::key).collect();
    assert_eq!(keys, ["held", "kept", "new", "held"]);
    drop(server);
}

/// Counts requests; if so configured, answers each only after the client has given up.
struct Late {
    service: CoordinatorService<Embedded>,
    waits: AtomicBool,
    request_count: AtomicUsize,
}

impl Service for Late {
    fn answer(&self, caller: &Caller, request: &[u8], reply: &mut Vec<u8>) {
        self.request_count.fetch_add(1, Ordering::SeqCst);
        self.service.answer_coordinator(caller, request, reply);
        if self.waits.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(400));
        }
    }
}

/// A change without a reply has an unknown outcome and is requested once; a read is unavailable. A
/// caller that compares what it knew finds out (CONTROL-5).
#[test]
fn no_answer_is_an_unknown_outcome() {
    let late = Arc::new(Late {
        service: CoordinatorService::new(Embedded::default()),
        waits: AtomicBool::new(false),
        request_count: AtomicUsize::new(0),
    });
    let server = serve(Arc::clone(&late));
    let options = ConnectOptions {
        answer_timeout: Duration::from_millis(150),
        ..connect_options()
    };
    let remote = connect_with(&server, &options);
    let (lease, _) = remote
        .grant_lease(Duration::from_mins(10))
        .expect("it works");
    let unknown = |result: Result<(), CoordinatorError>| {
        let error = result.expect_err("it is late");
        let is_unknown = matches!(error, CoordinatorError::OutcomeUnknown { .. });
        assert!(is_unknown, "{error}");
    };
    late.waits.store(true, Ordering::SeqCst);
    late.request_count.store(0, Ordering::SeqCst);
    let make = Transaction::new()
        .when(Compare::Created("key".to_owned(), Revision::NEVER))
        .put("key", b"mine".to_vec());
    unknown(remote.transact(&make).map(drop));
    unknown(remote.grant_lease(Duration::from_secs(1)).map(drop));
    unknown(remote.keep_alive(lease).map(drop));
    unknown(remote.revoke_lease(lease));
    is_unavailable(remote.range(""));
    assert_eq!(
        late.request_count.load(Ordering::SeqCst),
        5,
        "nothing is asked twice"
    );
    late.waits.store(false, Ordering::SeqCst);
    let outcome = remote.transact(&make).expect("it works again");
    assert_eq!(outcome, TransactionOutcome::Refused, "it was done before");
    let gone = remote.keep_alive(lease).expect("it works");
    assert_eq!(gone, KeepAlive::Gone);
}

/// An impossible transaction is refused before it is sent; a refusal by the coordinator is returned
/// as such.
#[test]
fn invalid_requests_are_told() {
    let server = serve(CoordinatorService::new(Embedded::default()));
    let remote = connect(&server);
    let invalid = |error: CoordinatorError| {
        let is_invalid = matches!(error, CoordinatorError::Invalid { .. });
        assert!(is_invalid, "{error}");
    };
    let twice = Transaction::new().delete("a").delete("a");
    invalid(remote.transact(&twice).expect_err("twice"));
    invalid(remote.grant_lease(Duration::MAX).expect_err("too long"));
    let address = server.address().to_string();
    let without = ConnectOptions::default();
    invalid(RemoteCoordinator::connect(&address, &without).expect_err("no secret"));
    let largest = Transaction::new().put("large", vec![0xFF; 1 << 20]);
    remote.transact(&largest).expect("it is not too large");
    let read = remote.range("large").expect("it works").entries;
    assert_eq!(read[0].value.len(), 1 << 20);
}

/// A service that is not a coordinator.
struct Other;

impl Service for Other {
    fn answer(&self, _: &Caller, _: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(b"what?");
    }
}

/// Invalid and foreign requests get an error reply that a client can read. A service with other
/// replies is not accepted as a coordinator.
#[test]
fn strange_requests_have_error_replies() {
    let server = serve(CoordinatorService::new(Embedded::default()));
    let address = server.address().to_string();
    let mut connection = Connection::connect(&address, &connect_options()).expect("let in");
    let requests: [&[u8]; 5] = [b"", b"K\x01\x02", b"C", b"C{}", b"C{\"version\":9}"];
    for request in requests {
        let reply = connection.call(request).expect("an answer");
        assert_eq!(reply[0], COORDINATOR_TAG);
        let text = String::from_utf8_lossy(reply);
        assert!(text.contains(r#"{"failed":{"invalid":"#), "{text}");
    }
    let server = serve(Other);
    let remote = connect(&server);
    is_unavailable(remote.range(""));
    let error = remote.revoke_lease(LeaseId(1)).expect_err("no coordinator");
    let text = error.to_string();
    assert!(text.contains("begins with 'w'"), "{text}");
}

/// A coordinator that has lost its data is not accepted as the same one.
#[test]
fn a_coordinator_that_forgot_is_refused() {
    let server = serve(CoordinatorService::new(Embedded::default()));
    let address = server.address();
    let remote = connect(&server);
    for _ in 0..5 {
        let put = Transaction::new().put("key", Vec::new());
        remote.transact(&put).expect("it works");
    }
    drop(server);
    let empty = CoordinatorService::new(Embedded::default());
    let server = serve_at(address, empty).expect("free again");
    let error = remote.range("").expect_err("it is another one");
    assert!(error.to_string().contains("has lost data"), "{error}");
    let put = Transaction::new().put("key", Vec::new());
    let error = remote.transact(&put).expect_err("it is another one");
    assert!(
        matches!(error, CoordinatorError::OutcomeUnknown { .. }),
        "{error}"
    );
    connect(&server)
        .range("")
        .expect("who is new does not mind");
}

/// Serves a coordinator as a server of this cluster; at a free address if none is given.
fn serve_of(
    embedded: &Embedded,
    cluster: ClusterId,
    address: Option<SocketAddr>,
) -> (Server, ListenOptions) {
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut options = ListenOptions::at(address.unwrap_or(free));
    options.secret = Some(secret());
    options.membership = Membership::of(cluster.tag().expect("128 bits"));
    let listener = Listener::bind(&options).expect("the address is free");
    let service = CoordinatorService::new(embedded.clone());
    (listener.serve(Arc::new(service)).expect("threads"), options)
}

/// A member that saw a later revision reports an older copy as rolled back with every call. It
/// continues over the same handle when the loss was accepted, at whatever revision the older copy
/// is.
#[test]
fn an_older_copy_over_the_wire_is_told_as_that() {
    let own = Embedded::default();
    let cluster = admin::create_cluster(&own).expect("it is empty");
    starts::begin_start(&own).expect("nobody else starts it");
    let (server, _) = serve_of(&own, cluster, None);
    let address = server.address();
    let member = Bound::to(connect(&server), cluster);
    let (lease, _) = (member.grant_lease(Duration::from_mins(1))).expect("it works");
    let old = own.copy(Arc::new(SystemClock));
    let put = Transaction::new().put("key", Vec::new());
    for _ in 0..50 {
        member.transact(&put).expect("it works");
    }
    drop(server);
    starts::begin_start(&old).expect("nobody else starts it");
    let (server, _) = serve_of(&old, cluster, Some(address));
    let refused = [
        member.keep_alive(lease).map(drop).expect_err("keep alive"),
        member.range("").map(drop).expect_err("range"),
        member.transact(&put).map(drop).expect_err("transact"),
        member.watch("", Revision(1)).map(drop).expect_err("watch"),
    ];
    for error in refused {
        let error_text = error.to_string();
        assert!(error_text.contains("--lost-start"), "{error_text}");
    }
    let seen = member.seen().expect("it has seen some");
    let refusal = member.range("").expect_err("it is older");
    let noted = starts::note_refusal(member.inner(), ServerId(2), Some(&refusal));
    noted.expect("the records take it");
    let operator = Bound::to_first_seen(connect(&server));
    starts::accept_lost_start(&operator, seen.nonce).expect("the history does not have all of it");
    member.transact(&put).expect("the loss was accepted");
    assert!(member.seen().expect("it has seen some").revision < seen.revision);
    assert_eq!(member.accepted_loss_count(), 1);
    drop(server);
}

/// Watches wait beside transactions and do not delay them. Each returns all changes once, in order,
/// in whole revisions, even in replies without space for all.
#[test]
fn watches_tell_everything_beside_transactions() {
    const COUNT: usize = 40;
    let server = serve(CoordinatorService::new(Embedded::default()));
    let remote = connect(&server);
    let start = remote.range("").expect("it works").revision;
    let watching = |pause: Duration| {
        let mut watch = remote.watch("w/", start).expect("it works");
        move || {
            let mut events: Vec<Event> = Vec::new();
            while events.len() < 2 * COUNT {
                let more = watch.next(Duration::from_secs(20)).expect("it goes on");
                assert!(!more.is_empty(), "{} were told", events.len());
                let first = more[0].revision();
                assert!(events.last().is_none_or(|it| it.revision() < first));
                events.extend(more);
                std::thread::sleep(pause);
            }
            events.iter().map(Event::revision).collect::<Vec<_>>()
        }
    };
    let mut expected = Vec::new();
    std::thread::scope(|scope| {
        let pauses = [0, 0, 0, 30].map(Duration::from_millis);
        let watches: Vec<_> = pauses
            .map(|pause| scope.spawn(watching(pause)))
            .into_iter()
            .collect();
        for _ in 0..COUNT {
            let put = Transaction::new()
                .put("w/a", vec![1; 300_000])
                .put("other", Vec::new())
                .put("w/b", Vec::new());
            match remote.transact(&put).expect("it works") {
                TransactionOutcome::Committed(revision) => expected.extend([revision; 2]),
                other => panic!("{other:?}"),
            }
        }
        for watch in watches {
            assert_eq!(watch.join().expect("told"), expected);
        }
    });
}

/// A server stops although watches wait at it.
#[test]
fn waiting_watches_let_a_server_end() {
    let server = serve(CoordinatorService::new(Embedded::default()));
    let remote = connect(&server);
    let mut watch = remote.watch("", Revision(1)).expect("it works");
    let waiting = std::thread::spawn(move || watch.next(Duration::from_mins(10)));
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    drop(server);
    assert!(start.elapsed() < Duration::from_secs(10));
    is_unavailable(waiting.join().expect("no panic"));
}

/// Operations of administrators work over the wire as within the process.
#[test]
fn a_cluster_is_founded_over_the_wire() {
    let embedded = Embedded::default();
    let server = serve(CoordinatorService::new(embedded.clone()));
    let remote = connect(&server);
    admin::create_cluster(&remote).expect("it works");
    admin::create_table(&remote, "words", 3, &[]).expect("it works");
    let own = embedded.range("").expect("it works");
    assert_eq!(remote.range("").expect("it works"), own);
    assert!(own.entries.len() >= 4);
    let address = server.address();
    assert_eq!(
        format!("{remote:?}"),
        format!("RemoteCoordinator at {address}")
    );
}

/// Another cluster's coordinator at the same address gets no requests from clients that know the
/// first cluster; the error has both ids. A client that knows no cluster accepts it. When the first
/// one is back, everything continues.
#[test]
fn another_cluster_at_the_same_address_is_refused() {
    let own = Embedded::default();
    let cluster = admin::create_cluster(&own).expect("it is empty");
    let other = Embedded::default();
    let foreign = admin::create_cluster(&other).expect("it is empty");
    let (server, _) = serve_of(&own, cluster, None);
    let address = server.address();
    let bound = Bound::to_first_seen(connect(&server));
    let member = Bound::to(connect(&server), cluster);
    let (lease, _) = member
        .grant_lease(Duration::from_secs(9))
        .expect("it is the own one");
    let mut watch = member.watch("", Revision(1)).expect("it is the own one");
    admin::create_table(&bound, "t", 1, &[]).expect("it works");
    assert_eq!(bound.cluster(), Some(cluster));
    drop(server);
    let (server, options) = serve_of(&other, foreign, Some(address));
    let put = Transaction::new().put("key", Vec::new());
    for handle in [&bound, &member] {
        let refused = [
            handle.range("").map(drop).expect_err("range"),
            handle.transact(&put).map(drop).expect_err("transact"),
            handle
                .grant_lease(Duration::from_secs(1))
                .map(drop)
                .expect_err("grant"),
            handle.keep_alive(lease).map(drop).expect_err("keep alive"),
            handle.watch("", Revision(1)).map(drop).expect_err("watch"),
        ];
        for error in refused {
            let error_text = error.to_string();
            assert!(
                matches!(error, CoordinatorError::OtherCluster { .. }),
                "{error_text}"
            );
            assert!(error_text.contains(&cluster.to_string()), "{error_text}");
            assert!(error_text.contains(&foreign.to_string()), "{error_text}");
        }
    }
    watch
        .next(Duration::ZERO)
        .expect_err("its process has ended");
    assert_eq!(options.membership.expected_by_peer(), cluster.tag());
    assert_eq!(other.range("key").expect("it works").entries, []);
    let anybody = Bound::to_first_seen(connect(&server));
    anybody.range("").expect("it knows none before");
    assert_eq!(anybody.cluster(), Some(foreign));
    drop(server);
    let (server, _) = serve_of(&own, cluster, Some(address));
    member.transact(&put).expect("it is back");
    assert!(matches!(member.keep_alive(lease), Ok(KeepAlive::Alive(_))));
    drop(server);
}
