//! One of several nodes killed, or stopped, while clients work: what was on it is a typed error in
//! time, and everything else goes on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farleaf::{ConnectOptions, ErrorKind, NodeState, Pool, Table, TableOptions};
use rustix::process::Signal;

use crate::check::eventually;
use crate::children::scene;
use crate::node::{Fabric, Guest, LOST_AFTER, Node, NodePlan};
use crate::worker::TABLE;

const RECORD_COUNT: u64 = 200_000;
/// No operation may take longer: the home notices after `LOST_AFTER`, and asks one guest after the
/// other; clients ask the home.
const STALL_MAX: Duration = Duration::from_secs(6);
const NODE: NodePlan = NodePlan {
    size_mib: 64,
    retrain_threads: 1,
    silence_max: Duration::from_secs(30),
    by_verbs: false,
};

fn key(number: u64) -> u64 {
    number * 10 + (number / 1000) * (number / 1000) * 40
}

/// What a client has met.
#[derive(Default)]
struct Met {
    answered_count: AtomicU64,
    lost_count: AtomicU64,
    worst_ns: AtomicU64,
}

impl Met {
    fn note(&self, begun: Instant) {
        let spent = begun.elapsed().as_nanos() as u64;
        self.worst_ns.fetch_max(spent, Ordering::Relaxed);
    }
}

/// Gets what was loaded and puts what nobody else does, until it is told to stop; every answer is
/// right, or says that the node is lost.
fn work(table: &Table, client: u64, stop: &AtomicBool, met: &Met) {
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

/// Lets something happen to the first guest while clients work.
fn lose_a_guest(name: &str, lose: impl FnOnce(&mut Node) -> Option<Guest>) {
    scene(name, |_| {
        let mut node = Node::start_over(Fabric::Nodes, NODE);
        let address = node.pool(Fabric::Nodes);
        let options = ConnectOptions {
            answer_time_max: Duration::from_secs(2),
            ..ConnectOptions::default()
        };
        let pool = Pool::open_with(&address, &options).expect("the pool");
        let session = pool.session().expect("a session");
        let table = session.create_table(TABLE, &TableOptions::default());
        let table = table.expect("a table");
        let records = (0..RECORD_COUNT).map(|number| (key(number), number));
        table.bulk_load(records, |_| {}).expect("it fits");
        let (stop, met) = (AtomicBool::new(false), Met::default());
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
            worst < STALL_MAX,
            "{worst:?} (a node is lost after {LOST_AFTER:?})"
        );
        // Sessions come and go as before, and so do tables.
        let other = pool.session().expect("a session");
        let fresh = other.create_table("fresh", &TableOptions::default());
        let fresh = fresh.expect("a table");
        fresh.put(1, 2).expect("a put");
        assert_eq!(fresh.get(1).expect("a get"), Some(2));
        other.drop_table(TABLE).expect("it can be dropped");
        drop(kept);
    });
}

/// Promise (U4, V2): a node that is killed takes its keys and no others.
#[test]
fn a_killed_guest_takes_only_its_keys() {
    lose_a_guest("guest_death::a_killed_guest_takes_only_its_keys", |node| {
        node.guests.remove(0).kill();
        None
    });
}

/// Promise (V2): the same of one that is there and does not answer.
#[test]
fn a_stopped_guest_takes_only_its_keys() {
    lose_a_guest("guest_death::a_stopped_guest_takes_only_its_keys", |node| {
        let guest = node.guests.remove(0);
        guest.signal(Signal::STOP);
        Some(guest)
    });
}
