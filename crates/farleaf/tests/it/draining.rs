//! Nodes that are drained under load, with every search layer.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farleaf::{LayerKind, NodeInfo, NodeState};

use crate::several_nodes::{key, loaded_as, wait_for};

/// Promise: a node is drained while clients work. No record is missing, then or meanwhile, and
/// clients return what they lease there.
#[test]
fn a_node_is_drained_under_load() {
    drain_under_load(LayerKind::Learned, 300_000);
}

/// Promise: draining also moves the leaves and inner nodes of tables with a tree.
#[test]
fn a_node_with_trees_is_drained_under_load() {
    for layer in super::TREES {
        drain_under_load(layer, 60_000);
    }
}

fn drain_under_load(layer: LayerKind, record_count: u64) {
    let (_nodes, [first, _second], pool, table) = loaded_as(layer, record_count);
    let address = first.network_address().to_string();
    let of_first = |nodes: &[NodeInfo]| {
        let node = nodes.iter().find(|node| node.address == address);
        node.map(|node| (node.number, node.state))
            .expect("it has joined")
    };
    let (number, _) = of_first(&pool.nodes().expect("the main node is there"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut model: BTreeMap<u64, u64> = (0..record_count).map(|it| (key(it), it)).collect();
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let session = pool.session().expect("a session");
            let table = session.open_table("t").expect("the table");
            let mut written = Vec::new();
            let mut number = 1;
            while !stop.load(Ordering::Relaxed) {
                number = number * 48_271 % 2_147_483_647;
                let key = key(number % record_count) + 1 + number % 7;
                table.put(key, number).expect("a put");
                assert_eq!(table.get(key).expect("a get"), Some(number));
                written.push((key, number));
            }
            written
        });
        std::thread::sleep(Duration::from_millis(300));
        pool.set_node_state(number, NodeState::Draining)
            .expect("it drains");
        let refused = pool.set_node_state(0, NodeState::Draining);
        assert!(
            refused
                .expect_err("the main node stays")
                .to_string()
                .contains("main node")
        );
        let checked = std::cell::Cell::new(0);
        wait_for(&pool, "it has left", |nodes| {
            for number in (checked.get() % 1000..record_count).step_by(1009) {
                assert_eq!(table.get(key(number)).expect("a get"), Some(number));
            }
            checked.set(checked.get() + 1);
            of_first(nodes).1 == NodeState::Left
        });
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("it found what it wrote")
    });
    model.extend(written);
    drop(first);
    std::thread::sleep(Duration::from_millis(300));
    let scanned: Result<Vec<(u64, u64)>, _> = table.scan(0, usize::MAX).collect();
    assert!(
        scanned.expect("a scan").into_iter().eq(model),
        "nothing is missing"
    );
    let nodes = pool.nodes().expect("the main node is there");
    assert_eq!(
        of_first(&nodes).1,
        NodeState::Left,
        "nothing is lost with it"
    );
}
