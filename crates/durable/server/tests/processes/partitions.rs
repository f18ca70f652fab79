//! Servers that are cut off: two servers never acknowledge for one region at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_client::protocol::{Body, Header, Reply, Request, Status};
use farleaf_client::{ClientOptions, Cluster, PersistentTable, PersistentTableOptions};
use farleaf_cluster::coordinator::{Embedded, SharedCoordinator};
use farleaf_net::request::{ConnectOptions, Connection};
use farleaf_trial::fleet::secret;
use farleaf_trial::history::{Act, Operation};
use farleaf_trial::load::{KEY_COUNT, bytes_of, key_of, split_keys, value_of, wait_served};
use farleaf_trial::{AllowedErrors, ProcessCluster, Trial};

use crate::network::{Host, OUTSIDE, address, cut_between, enter, on_a_network, prefix};
use crate::part::{remote, serve};
use crate::rest;

/// Number of clients outside, and on the host that is cut off.
const CLIENT_COUNTS: (usize, usize) = (4, 2);
/// Duration of a cut, longer than leases.
const CUT_TIME: Duration = Duration::from_secs(4);

/// Longest time without service. A primary waits four seconds for a reply of a backup that is cut
/// off, and then until the record no longer names it.
const AWAY_TIME_MAX: Duration = Duration::from_secs(9);

/// Creates clients that do not wait long for a server that does not answer.
fn hasty(coordinator: SharedCoordinator) -> Cluster {
    let options = ClientOptions {
        secret: Some(secret()),
        tls: None,
        patience: Duration::from_secs(2),
        connect_timeout: Duration::from_millis(500),
        answer_timeout: Duration::from_secs(1),
    };
    Cluster::new(coordinator, options)
}

/// Cuts the host of the primary of a table's first region off from these hosts, while clients
/// outside and on that host work. Nothing may be unavailable outside for longer than
/// `away_time_max`.
fn cut_off(others: impl Fn(Host) -> Vec<Host>, away_time_max: Duration) {
    let coordinator = SharedCoordinator::new(Embedded::default(), "the test's");
    let (service, mut plan) = serve(&coordinator, OUTSIDE);
    plan.prefixes = (0..3).map(prefix).collect();
    plan.addresses = (0..3).map(address).collect();
    let fleet = ProcessCluster::start(coordinator, plan, 3);
    let cluster = hasty(fleet.coordinator.clone());
    let options = PersistentTableOptions {
        replica_count: 3,
        split_keys: split_keys(),
    };
    let table = cluster.create_table("t", &options).expect("a new table");
    fleet.wait_replicated(&table, 3);
    let primary = fleet.primary(&table).expect("it has one");
    // Like a client on that host: its connection to the coordinator begins there, too.
    let inside = thread::scope(|scope| {
        let at = service.address().to_string();
        let connected = scope.spawn(move || -> PersistentTable {
            enter(primary);
            let cluster = hasty(remote(&at));
            cluster.open_table("t").expect("it was made")
        });
        connected.join().expect("it is not cut off yet")
    });
    let mut clients = vec![table.clone(); CLIENT_COUNTS.0];
    clients.extend(vec![inside; CLIENT_COUNTS.1]);
    let whole = Trial::new(AllowedErrors::Troubled);
    let begin = |index: usize| {
        if index >= CLIENT_COUNTS.0 {
            enter(primary);
        }
    };
    let stubborn = Stubborn::of(&fleet, &table, primary);
    let is_cut = AtomicBool::new(true);
    let (stubborn, is_cut, trial) = (&stubborn, &is_cut, &whole);
    let away = trial.run_each(&clients, begin, || {
        trial.wait_done(200);
        let mut away = Duration::ZERO;
        let host = Host::At(primary);
        let loses_lease = others(host).contains(&Host::Outside);
        thread::scope(|scope| {
            let begin = |writes| scope.spawn(move || stubborn.work(trial, is_cut, writes));
            let handles = [false, true].map(begin);
            // A write that begins during the cut may get no reply as long as that lasts.
            stubborn.wait_begun(handles.len() as u64, is_cut);
            cut_between(host, &others(host), || {
                let since = Instant::now();
                away = wait_served(&table);
                thread::sleep(CUT_TIME.saturating_sub(since.elapsed()));
                is_cut.store(false, Ordering::Release);
            });
            let counts = handles.map(|it| it.join().expect("it was answered"));
            eprintln!("asked stubbornly: {counts:?} (done, not done; reads alone, and writes)");
            assert!(counts.iter().all(|it| it.0 > 0), "{counts:?}");
            // A server without a lease reads nothing.
            assert!(counts[0].1 > 0 || !loses_lease, "{counts:?}");
        });
        trial.wait_done(200);
        fleet.wait_replicated(&table, 3);
        trial.wait_done(200);
        away
    });
    eprintln!(
        "cut off for {CUT_TIME:?}: served again outside after {away:?}; {} operations done, {} \
         unknown, {} not done",
        trial.done_count(),
        trial.unknown_count(),
        trial.refused_count()
    );
    assert!(away < away_time_max, "{away:?}");
    whole.check_history(&table);
    rest::wait_equal_in(&fleet);
}

/// A client that uses one server at one epoch, whatever the records say. Any reply to it after a
/// failover would be wrong.
struct Stubborn {
    primary: usize,
    header: Header,
    keys: Vec<u64>,
    /// Number of threads that got a first reply.
    begun_count: AtomicU64,
}

impl Stubborn {
    /// Creates a client for the first region of a table, as it is now.
    fn of(fleet: &ProcessCluster, table: &PersistentTable, primary: usize) -> Self {
        let view = fleet.view();
        let region = view.regions_of(table.id())[0];
        let header = Header {
            table: table.id(),
            region: region.region,
            epoch: region.epoch,
            incarnation: table.incarnation(),
            is_durable: false,
            is_one_enough: false,
        };
        let keys = 0..KEY_COUNT;
        Self {
            primary,
            header,
            keys: keys.filter(|it| region.covers(&key_of(*it))).collect(),
            begun_count: AtomicU64::new(0),
        }
    }

    /// Waits until `count` threads got a reply; ends all of them if they do not.
    fn wait_begun(&self, count: u64, is_cut: &AtomicBool) {
        let since = Instant::now();
        while self.begun_count.load(Ordering::Acquire) < count {
            if since.elapsed() > Duration::from_secs(10) {
                is_cut.store(false, Ordering::Release);
                panic!("they are not answered before the cut");
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads, and writes if requested, from the server's own host. Returns the numbers of
    /// successful and failed operations.
    fn work(&self, trial: &Trial, is_cut: &AtomicBool, writes: bool) -> (u64, u64) {
        enter(self.primary);
        let options = ConnectOptions {
            secret: Some(secret()),
            ..ConnectOptions::default()
        };
        let at = address(self.primary).to_string();
        let mut connection = Connection::connect(&at, &options).expect("it is there");
        let (mut done_count, mut refused_count, mut request) = (0, 0, Vec::new());
        for number in self.keys.iter().copied().cycle() {
            if !is_cut.load(Ordering::Acquire) {
                break;
            }
            let (key, value) = (key_of(number), trial.draw_value());
            let new = bytes_of(value);
            let is_read = !writes || value % 2 == 0;
            let body = if is_read {
                Body::Get(vec![&key])
            } else {
                Body::Write(vec![(&key, Some(&new))])
            };
            let header = self.header;
            Request { header, body }.encode(&mut request);
            let started_ns = trial.history.now_ns();
            let reply = connection.call(&request).expect("it is on this host");
            let ended_ns = Some(trial.history.now_ns());
            let mut reply = Reply::decode(reply).expect("a reply");
            let (act, ended_ns) = match &reply.status {
                Status::Done if is_read => {
                    let found = reply.value().expect("a value");
                    (Act::Read(found.map(value_of)), ended_ns)
                }
                Status::Done => (Act::Write(Some(value)), ended_ns),
                Status::Failed {
                    is_unknown: true, ..
                } => (Act::Write(Some(value)), None),
                _ => {
                    refused_count += 1;
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
            };
            done_count += u64::from(ended_ns.is_some());
            if done_count == 1 && ended_ns.is_some() {
                self.begun_count.fetch_add(1, Ordering::Release);
            }
            let operation = Operation {
                act,
                started_ns,
                ended_ns,
            };
            trial.history.note(number, operation);
            thread::sleep(Duration::from_millis(1));
        }
        (done_count, refused_count)
    }
}

fn servers_but(host: Host) -> Vec<Host> {
    let all = (0..3).map(Host::At);
    all.filter(|it| *it != host).collect()
}

/// A primary that is cut off from everything acknowledges nothing once another one may: clients on
/// both sides see one linearizable history (CONTROL-9, CONTROL-10, CONTROL-13).
#[test]
fn a_primary_is_cut_off_from_all() {
    on_a_network("partitions::a_primary_is_cut_off_from_all", || {
        let all = |host| [servers_but(host), vec![Host::Outside]].concat();
        cut_off(all, AWAY_TIME_MAX);
    });
}

/// A primary that is cut off only from the coordinator acknowledges nothing once another one may.
/// (The clients outside are on the coordinator's host.) (CONTROL-10)
#[test]
fn a_primary_is_cut_off_from_the_coordinator() {
    on_a_network(
        "partitions::a_primary_is_cut_off_from_the_coordinator",
        || {
            cut_off(|_| vec![Host::Outside], AWAY_TIME_MAX);
        },
    );
}

/// A primary that reaches the coordinator and no other server continues alone, as soon as the
/// record no longer names its backups (CONTROL-14).
#[test]
fn a_primary_is_cut_off_from_other_servers() {
    on_a_network(
        "partitions::a_primary_is_cut_off_from_other_servers",
        || {
            cut_off(servers_but, 2 * AWAY_TIME_MAX);
        },
    );
}
