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
use crate::node::{DataNodeProcess, Fabric, LOST_AFTER, Node, NodePlan, connect_options};
use crate::worker::TABLE;

const RECORD_COUNT: u64 = 200_000;
/// Longest time of an operation in addition to the time that the main node needs to notice.
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
    fn note(&self, started_at: Instant) {
        let spent = started_at.elapsed().as_nanos() as u64;
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
        let started_at = Instant::now();
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
        met.note(started_at);
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

/// Makes the first data node fail while clients work; keeps the returned value until they have
/// ended.
fn lose_a_data_node<T>(
    name: &str,
    fabric: Fabric,
    lost_after: Duration,
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
        let lost_node = std::thread::scope(|scope| {
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
            let lost_node = lose(&mut node);
            let started_at = Instant::now();
            let nodes = pool.nodes().expect("the main node is there");
            assert!(
                started_at.elapsed() < LISTING_MAX,
                "{:?}",
                started_at.elapsed()
            );
            let silent = nodes.iter().filter(|node| node.used_bytes.is_none());
            assert_eq!(silent.count(), 1, "{nodes:?}");
            eventually("the node is known to be lost", || {
                let nodes = pool.nodes().expect("the main node is there");
                nodes.iter().any(|node| node.state == NodeState::Lost)
            });
            let before = met.answered_count.load(Ordering::Relaxed);
            eventually("the others go on", || {
                let lost = met.lost_count.load(Ordering::Relaxed);
                lost > 1000 && met.answered_count.load(Ordering::Relaxed) > before + 2000
            });
            stop.store(true, Ordering::Relaxed);
            lost_node
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
        drop(lost_node);
    });
}

/// Promise: the loss of a killed node affects only its keys.
#[test]
fn a_killed_data_node_takes_only_its_keys() {
    let name = "data_node_death::a_killed_data_node_takes_only_its_keys";
    lose_a_data_node(name, Fabric::Nodes, LOST_AFTER, kill_the_first);
}

fn kill_the_first(node: &mut Node) {
    node.data_nodes.remove(0).kill();
}

fn stop_the_first(node: &mut Node) -> DataNodeProcess {
    let data_node = node.data_nodes.remove(0);
    data_node.signal(Signal::STOP);
    data_node
}

/// Promise: the loss of a node that exists but does not reply affects only its keys.
#[test]
fn a_stopped_data_node_takes_only_its_keys() {
    let name = "data_node_death::a_stopped_data_node_takes_only_its_keys";
    lose_a_data_node(name, Fabric::Nodes, LOST_AFTER, stop_the_first);
}

/// Promise: the same holds if the main node waits longer for a data node than clients wait for a
/// reply. (They gave up asking the main node, and their sessions broke; a list of the nodes waited
/// as long.)
#[test]
fn clients_wait_as_long_as_the_main_node_does() {
    let name = "data_node_death::clients_wait_as_long_as_the_main_node_does";
    lose_a_data_node(name, Fabric::Nodes, LONG, stop_the_first);
}

/// Promise: while a data node hangs, only fencing and closing sessions wait until it is declared
/// lost, however long that takes; calls of other clients are answered. (The main node's listener
/// waited, and all requests behind it.)
#[test]
fn fencing_beside_a_hanging_data_node_keeps_nobody_else() {
    let name = "data_node_death::fencing_beside_a_hanging_data_node_keeps_nobody_else";
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
            client.expect("the main node")
        });
        let [own, bystander] =
            [&first, &second].map(|client| client.register_session().expect("a session"));
        let stopped_node = stop_the_first(&mut node);
        let started_at = Instant::now();
        let (closed_after, call_count) = std::thread::scope(|scope| {
            let closing = scope.spawn(|| {
                first.close_session(own).expect("by and by");
                started_at.elapsed()
            });
            let mut call_count = 0;
            while !closing.is_finished() {
                let life = second.session_life(own).expect("an answer in time");
                assert!(
                    started_at.elapsed() > LONG / 2 || matches!(life, SessionLife::Alive { .. }),
                    "nobody may think so while a data node has not barred it"
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
        drop(stopped_node);
    });
}

/// Promise: if an operator gives up a hanging data node, no request waits for it any more, however
/// long the main node would have waited. (Fencing waited for that time, and so did joining.)
#[test]
fn giving_up_a_hanging_data_node_frees_who_waits_for_it() {
    let name = "data_node_death::giving_up_a_hanging_data_node_frees_who_waits_for_it";
    scene(name, |_| {
        let plan = NodePlan {
            lost_after: Duration::from_mins(10),
            ..NODE
        };
        let mut node = Node::start_over(Fabric::Nodes, plan);
        let connect = || TcpClient::connect(node.network_address(), &ConnectOptions::default());
        let [first, operator] = [(); 2].map(|()| connect().expect("the main node"));
        let own = first.register_session().expect("a session");
        let stopped_node = stop_the_first(&mut node);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| first.close_session(own).expect("by and by"));
            std::thread::sleep(Duration::from_millis(500));
            assert!(!closing.is_finished(), "the data node has not barred it");
            let given_up = Instant::now();
            let lost = operator.set_member(NodeId(1), NodeState::Lost as u64);
            lost.expect("it can be given up");
            closing.join().expect("closed");
            assert!(given_up.elapsed() < STALL_MAX, "{:?}", given_up.elapsed());
        });
        drop(stopped_node);
    });
}

/// Promise: the loss of a killed node affects only its keys over verbs, where the kernel ends the
/// node's queue pairs.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn a_killed_data_node_takes_only_its_keys_over_verbs() {
    let name = "data_node_death::a_killed_data_node_takes_only_its_keys_over_verbs";
    lose_a_data_node(name, Fabric::VerbsNodes, LOST_AFTER, kill_the_first);
}

/// Promise: the loss of a node that does not reply affects only its keys over verbs, although its
/// card continues to execute verbs.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn a_stopped_data_node_takes_only_its_keys_over_verbs() {
    let name = "data_node_death::a_stopped_data_node_takes_only_its_keys_over_verbs";
    lose_a_data_node(name, Fabric::VerbsNodes, LOST_AFTER, stop_the_first);
}
