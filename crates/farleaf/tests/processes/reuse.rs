//! What a sweep may give back, and what it must keep.

use std::sync::mpsc::channel;
use std::time::Duration;

use farleaf::{Pool, TableOptions};

use crate::check::{Below, eventually};
use crate::children::{Part, Peer, scene, wait_for_the_end};
use crate::node::{Fabric, Node, NodePlan};

const TABLE: &str = "reused";
const RECORD_COUNT: u64 = 1000;
/// Splits that take all leaves of more than one chunk.
const INSERT_COUNT: u64 = 20_000;

/// The body of [`Part::Splitter`]: loads the table and splits leaves of it, so that it leases the
/// chunk that the table's first leaf is in; then waits to be killed.
pub(crate) fn play_splitter(arguments: &[&str]) {
    let pool = Pool::open(arguments[0]).expect("the scene serves it");
    let session = pool.session().expect("a session");
    let table = session.open_table(TABLE).expect("the scene made it");
    let records = (0..RECORD_COUNT).map(|index| (index << 32, index));
    table.bulk_load(records, |_| {}).expect("a load");
    for index in 0..50 {
        table.put((500 << 32) + index, index).expect("a put");
    }
    eprintln!("split");
    wait_for_the_end();
}

/// D7: a session that has the table open since before the load still looks at its first leaf first.
/// That was retired; were it given back by the sweep and reused, the session would be lost.
#[test]
fn a_tables_first_leaf_is_never_reused() {
    scene("reuse::a_tables_first_leaf_is_never_reused", |_| {
        let node = Node::start(NodePlan::of_size(64));
        let address = node.pool(Fabric::Shm);
        let pool = Pool::open(&address).expect("the node serves");
        let session = pool.session().expect("a session");
        session
            .create_table(TABLE, &TableOptions::default())
            .expect("a table");
        // A handle that knows only the first leaf, on a thread of its own: it might never return.
        let (ask, asked) = channel::<u64>();
        let (answer, answered) = channel();
        let of_thread = address.clone();
        std::thread::spawn(move || {
            let pool = Pool::open(&of_thread).expect("the node serves");
            let session = pool.session().expect("a session");
            let table = session.open_table(TABLE).expect("a table");
            answer.send(None).expect("the scene listens");
            for key in asked {
                answer
                    .send(table.get(key).expect("a get"))
                    .expect("the scene listens");
            }
        });
        assert_eq!(answered.recv(), Ok(None));

        let splitter = Peer::start(Part::Splitter, &address);
        assert_eq!(splitter.hear(), "split");
        splitter.kill();
        let below = Below::open();
        eventually("the dead splitter's chunks come back", || {
            below.chunks().iter().all(|chunk| chunk.owner.is_free())
        });
        let table = session.open_table(TABLE).expect("a table");
        for index in 0..INSERT_COUNT {
            table.put((700 << 32) + index, index).expect("a put");
        }
        for index in 0..RECORD_COUNT {
            ask.send(index << 32).expect("the thread listens");
            let found = answered
                .recv_timeout(Duration::from_secs(10))
                .expect("a get that returns");
            let expected = if index == 500 || index == 700 {
                0
            } else {
                index
            };
            assert_eq!(found, Some(expected));
        }
        let refused = table.bulk_load([(1, 1)], |_| {});
        assert!(refused.is_err(), "a load into a table that has records");
    });
}
