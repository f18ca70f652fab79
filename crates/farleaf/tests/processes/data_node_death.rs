//! One of several nodes is killed or stopped while clients work: operations on its data return a
//! typed error in time, and all others continue.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farleaf::{ConnectOptions, ErrorKind, NodeState, Pool, Table, TableOptions};
use farleaf_base::NodeId;
use farleaf_fabric::tcp::TcpClient;
use farleaf_fabric::{Control, SessionLife};
use rustix::process::Signal;

use crate::check::eventually;
use crate::children::scene;
use crate::node::{Fabric, Guest, LOST_AFTER, Node, NodePlan, connect_options};
use crate::worker::TABLE;

const RECORD_COUNT: u64 = 200_000;
/// Longest time of an operation in addition to the time that the home needs to notice.
const STALL_MAX: Duration = Duration::from_millis(4500);
/// Longer than two reply timeouts of clients.
const LONG: Duration = Duration::from_secs(6);
/// Longest time for listing the nodes, whether they reply or not.
const LISTING_MAX: Duration = Duration::from_millis(3500);
const NODE: NodePlan = NodePlan {
    size_mib: 64,
    retrain_threads: 1,
    silence_max: Duration::from_secs(30),
    by_verbs: false,
    lost_after: LOST_AFTER,
};

fn key(number: u64) -> u64 {
    number * 10 + (number / 1000) * (number / 1000) * 40
}

/// Results of a client.
#[derive(Default)]
struct ClientCounts {
    answered_count: AtomicU64,
    lost_count: AtomicU64,
    worst_ns: AtomicU64,
}

impl ClientCounts {
    fn note(&self, begun: Instant) {
        let spent = begun.elapsed().as_nanos() as u64;
        self.worst_ns.fetch_max(spent, Ordering::Relaxed);
    }
}

/// Gets loaded records and puts the client's own ones until it is stopped. Every result is right,
/// or an error that the node is lost.
fn work(table: &Table, client: u64, stop: &AtomicBool, met: &ClientCounts) {
    let mut number = client + 1;
    while !stop.load(Ordering::Relaxed) {
        number = number * 48_271 % 2_147_483_647;
        let loaded = number % RECORD_COUNT;
        let own = key(loaded) + 1 + client;
        let begun = Instant::now();
        let outcome = if number.is_multiple_of(3) {
            table.put(own, number).and_then(|_| {
                let found = table.get(own)?;
                assert_eq!(found, Some(number), "what was written is there");
                Ok(())
            })
        } else {
            table.get(key(loaded)).map(|found| {
                assert_eq!(found, Some(loaded), "no answer is made up");
            })
        };
        met.note(begun);
        match outcome {
            Ok(()) => met.answered_count.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                assert!(
                    matches!(error.kind(), ErrorKind::NodeLost { .. }),
                    "{error}"
                );
                met.lost_count.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}

/// Makes the first guest fail while clients work; keeps the returned value until they have ended.
fn lose_a_guest<T>(
    name: &str,
    (fabric, lost_after): (Fabric, Duration),
    lose: impl FnOnce(&mut Node) -> T,
) {
    scene(name, |_| {
        let plan = NodePlan { lost_after, ..NODE };
        let mut node = Node::start_over(fabric, plan);
        let address = node.pool(fabric);
        let options = ConnectOptions {
            answer_time_max: Duration::from_secs(2),
            ..connect_options()
        };
        let pool = Pool::open_with(&address, &options).expect("the pool");
        let session = pool.session().expect("a session");
        let table = session.create_table(TABLE, &TableOptions::default());
        let table = table.expect("a table");
        let records = (0..RECORD_COUNT).map(|number| (key(number), number));
        table.bulk_load(records, |_| {}).expect("it fits");
        let (stop, met) = (AtomicBool::new(false), ClientCounts::default());
        let kept = std::thread::scope(|scope| {
            for client in 0..3 {
                let (pool, stop, met) = (&pool, &stop, &met);
                scope.spawn(move || {
                    let session = pool.session().expect("a session");
                    let table = session.open_table(TABLE).expect("the table");
                    work(&table, client, stop, met);
                });
            }
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(
                met.lost_count.load(Ordering::Relaxed),
                0,
                "nothing is lost yet"
            );
            let kept = lose(&mut node);
            let begun = Instant::now();
            let nodes = pool.nodes().expect("the home is there");
            assert!(begun.elapsed() < LISTING_MAX, "{:?}", begun.elapsed());
            let silent = nodes.iter().filter(|node| node.used_bytes.is_none());
            assert_eq!(silent.count(), 1, "{nodes:?}");
            eventually("the node is known to be lost", || {
                let nodes = pool.nodes().expect("the home is there");
                nodes.iter().any(|node| node.state == NodeState::Lost)
            });
            let before = met.answered_count.load(Ordering::Relaxed);
            eventually("the others go on", || {
                let lost = met.lost_count.load(Ordering::Relaxed);
                lost > 1000 && met.answered_count.load(Ordering::Relaxed) > before + 2000
            });
            stop.store(true, Ordering::Relaxed);
            kept
        });
        let worst = Duration::from_nanos(met.worst_ns.load(Ordering::Relaxed));
        eprintln!("{name}: worst stall {worst:?}");
        assert!(
            worst < lost_after + STALL_MAX,
            "{worst:?} (a node is lost after {lost_after:?})"
        );
        // Sessions and tables can be created and dropped as before.
        let other = pool.session().expect("a session");
        let fresh = other.create_table("fresh", &TableOptions::default());
        let fresh = fresh.expect("a table");
        fresh.put(1, 2).expect("a put");
        assert_eq!(fresh.get(1).expect("a get"), Some(2));
        other.drop_table(TABLE).expect("it can be dropped");
        drop(kept);
    });
}

/// Promise: the loss of a killed node affects only its keys.
#[test]
fn a_killed_guest_takes_only_its_keys() {
    let name = "guest_death::a_killed_guest_takes_only_its_keys";
    lose_a_guest(name, (Fabric::Nodes, LOST_AFTER), kill_the_first);
}

fn kill_the_first(node: &mut Node) {
    node.guests.remove(0).kill();
}

fn stop_the_first(node: &mut Node) -> Guest {
    let guest = node.guests.remove(0);
    guest.signal(Signal::STOP);
    guest
}

/// Promise: the loss of a node that exists but does not reply affects only its keys.
#[test]
fn a_stopped_guest_takes_only_its_keys() {
    let name = "guest_death::a_stopped_guest_takes_only_its_keys";
    lose_a_guest(name, (Fabric::Nodes, LOST_AFTER), stop_the_first);
}

/// Promise: the same holds if the home waits longer for a guest than clients wait for a reply.
/// (They gave up asking the home, and their sessions broke; a list of the nodes waited as long.)
#[test]
fn clients_wait_as_long_as_the_home_does() {
    let name = "guest_death::clients_wait_as_long_as_the_home_does";
    lose_a_guest(name, (Fabric::Nodes, LONG), stop_the_first);
}

/// Promise: while a guest hangs, only fencing and closing sessions wait until it is declared lost,
/// however long that takes; calls of other clients are answered. (The home's listener waited, and
/// all requests behind it.)
#[test]
fn fencing_beside_a_hanging_guest_keeps_nobody_else() {
    let name = "guest_death::fencing_beside_a_hanging_guest_keeps_nobody_else";
    scene(name, |_| {
        let plan = NodePlan {
            lost_after: LONG,
            ..NODE
        };
        let mut node = Node::start_over(Fabric::Nodes, plan);
        let options = ConnectOptions {
            answer_time_max: Duration::from_secs(2),
            ..ConnectOptions::default()
        };
        let [first, second] = [(); 2].map(|()| {
            let client = TcpClient::connect(node.network_address(), &options);
            client.expect("the home")
        });
        let [own, bystander] =
            [&first, &second].map(|client| client.register_session().expect("a session"));
        let kept = stop_the_first(&mut node);
        let begun = Instant::now();
        let (closed_after, call_count) = std::thread::scope(|scope| {
            let closing = scope.spawn(|| {
                first.close_session(own).expect("by and by");
                begun.elapsed()
            });
            let mut call_count = 0;
            while !closing.is_finished() {
                let life = second.session_life(own).expect("an answer in time");
                assert!(
                    begun.elapsed() > LONG / 2 || matches!(life, SessionLife::Alive { .. }),
                    "nobody may think so while a guest has not barred it"
                );
                let other = second.register_session().expect("an answer in time");
                second.session_life(other).expect("an answer in time");
                call_count += 1;
                std::thread::sleep(Duration::from_millis(200));
            }
            (closing.join().expect("closed"), call_count)
        });
        assert!(closed_after > LONG / 2, "{closed_after:?}");
        assert!(call_count > 10, "{call_count}");
        let life = second.session_life(own).expect("an answer");
        assert_eq!(life, SessionLife::Fenced);
        let life = second.session_life(bystander).expect("an answer");
        assert!(matches!(life, SessionLife::Alive { .. }));
        drop(kept);
    });
}

/// Promise: if an operator gives up a hanging guest, no request waits for it any more, however long
/// the home would have waited. (Fencing waited for that time, and so did joining.)
#[test]
fn giving_up_a_hanging_guest_frees_who_waits_for_it() {
    let name = "guest_death::giving_up_a_hanging_guest_frees_who_waits_for_it";
    scene(name, |_| {
        let plan = NodePlan {
            lost_after: Duration::from_mins(10),
            ..NODE
        };
        let mut node = Node::start_over(Fabric::Nodes, plan);
        let connect = || TcpClient::connect(node.network_address(), &ConnectOptions::default());
        let [first, operator] = [(); 2].map(|()| connect().expect("the home"));
        let own = first.register_session().expect("a session");
        let kept = stop_the_first(&mut node);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| first.close_session(own).expect("by and by"));
            std::thread::sleep(Duration::from_millis(500));
            assert!(!closing.is_finished(), "the guest has not barred it");
            let given_up = Instant::now();
            let lost = operator.set_member(NodeId(1), NodeState::Lost as u64);
            lost.expect("it can be given up");
            closing.join().expect("closed");
            assert!(given_up.elapsed() < STALL_MAX, "{:?}", given_up.elapsed());
        });
        drop(kept);
    });
}

/// Promise: the loss of a killed node affects only its keys over verbs, where the kernel ends the
/// node's queue pairs.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn a_killed_guest_takes_only_its_keys_over_verbs() {
    let name = "guest_death::a_killed_guest_takes_only_its_keys_over_verbs";
    lose_a_guest(name, (Fabric::VerbsNodes, LOST_AFTER), kill_the_first);
}

/// Promise: the loss of a node that does not reply affects only its keys over verbs, although its
/// card continues to execute verbs.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn a_stopped_guest_takes_only_its_keys_over_verbs() {
    let name = "guest_death::a_stopped_guest_takes_only_its_keys_over_verbs";
    lose_a_guest(name, (Fabric::VerbsNodes, LOST_AFTER), stop_the_first);
}
