//! One of several nodes drained under load, over verbs: the main node's agent moves its data by
//! queue pairs to both nodes. (For tcp see `several_nodes` of the tests `it`.)

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use farleaf::{NodeInfo, NodeState, Pool, Table, TableOptions};

use crate::children::scene;
use crate::node::{Fabric, Node, NodePlan, open_pool};
use crate::worker::TABLE;

/// Records that one node has space for.
const RECORD_COUNT: u64 = 16_000;

/// Even under software emulation a node with a few MiB is empty long before.
const DRAIN_TIME_MAX: Duration = Duration::from_mins(1);

fn key(number: u64) -> u64 {
    number * 10 + (number / 1000) * (number / 1000) * 40
}

/// Returns the data node that has the table. The main node has the catalog and is therefore never
/// the emptiest node.
fn used_data_node(pool: &Pool) -> NodeInfo {
    let nodes = pool.nodes().expect("the main node is there");
    let mut data_nodes = nodes.into_iter().filter(|node| node.number != 0);
    let used = data_nodes.find(|node| node.used_bytes > Some(0));
    used.expect("runs go where there is least")
}

/// Puts and gets until it is stopped; returns what it has put.
fn write(table: &Table, stop: &AtomicBool) -> Vec<(u64, u64)> {
    let mut written = Vec::new();
    let mut number = 1;
    while !stop.load(Ordering::Relaxed) {
        number = number * 48_271 % 2_147_483_647;
        let key = key(number % RECORD_COUNT) + 1 + number % 7;
        table.put(key, number).expect("a put");
        assert_eq!(table.get(key).expect("a get"), Some(number));
        written.push((key, number));
    }
    written
}

/// Promise: over verbs, too, a node is drained while clients work, and no record is missing, then
/// or meanwhile.
#[test]
#[ignore = "needs RDMA devices; `guest/run` starts a machine that has two"]
fn a_node_is_drained_under_load_over_verbs() {
    let name = "drained::a_node_is_drained_under_load_over_verbs";
    scene(name, |_| {
        let plan = NodePlan {
            retrain_threads: 1,
            ..NodePlan::of_size(48)
        };
        let node = Node::start_over(Fabric::VerbsNodes, plan);
        let pool = open_pool(&node.pool(Fabric::VerbsNodes));
        let session = pool.session().expect("a session");
        let table = session.create_table(TABLE, &TableOptions::default());
        let table = table.expect("a table");
        let mut model: BTreeMap<u64, u64> = (0..RECORD_COUNT).map(|it| (key(it), it)).collect();
        let records = model.iter().map(|(key, value)| (*key, *value));
        table.bulk_load(records, |_| {}).expect("it fits");
        let drained = used_data_node(&pool);
        let state = || {
            let nodes = pool.nodes().expect("the main node is there");
            let found = nodes.iter().find(|node| node.number == drained.number);
            found.expect("it is known").state
        };
        let stop = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let session = pool.session().expect("a session");
                let table = session.open_table(TABLE).expect("the table");
                write(&table, &stop)
            });
            pool.set_node_state(drained.number, NodeState::Draining)
                .expect("it drains");
            let until = Instant::now() + DRAIN_TIME_MAX;
            while state() != NodeState::Left {
                assert!(
                    Instant::now() < until,
                    "it does not leave: {:?}",
                    pool.nodes()
                );
                for number in (0..RECORD_COUNT).step_by(109) {
                    assert_eq!(table.get(key(number)).expect("a get"), Some(number));
                }
            }
            stop.store(true, Ordering::Relaxed);
            writer.join().expect("it found what it wrote")
        });
        eprintln!("{name}: {} puts, {drained:?}", written.len());
        model.extend(written);
        let scanned: Result<Vec<(u64, u64)>, _> = table.scan(0, usize::MAX).collect();
        let scanned = scanned.expect("a scan");
        assert!(scanned.into_iter().eq(model), "nothing is missing");
    });
}
