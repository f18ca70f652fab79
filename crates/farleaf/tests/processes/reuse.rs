//! Memory that a sweep may free, and memory that it must keep.

use std::sync::mpsc::channel;
use std::time::Duration;

use farleaf::{Pool, TableOptions};

use crate::check::{PoolMemory, eventually};
use crate::children::{ChildProcess, ChildRole, scene, wait_for_the_end};
use crate::node::{Fabric, Node, NodePlan};

const TABLE: &str = "reused";
const RECORD_COUNT: u64 = 1000;
/// Number of inserts whose splits take all leaves of more than one chunk.
const INSERT_COUNT: u64 = 20_000;

/// Runs [`ChildRole::Splitter`]: loads the table and splits its leaves, so that it leases the chunk
/// with the table's first leaf; then waits to be killed.
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

/// Promise (LEAF-7): a session that opened the table before its load still reads the first leaf
/// first. That leaf was retired. If the sweep freed it and it were reused, the session would read
/// another leaf.
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
        // A handle that knows only the first leaf, in its own thread, because it might never
        // return.
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

        let splitter = ChildProcess::start(ChildRole::Splitter, &address);
        assert_eq!(splitter.hear(), "split");
        splitter.kill();
        let pool_memory = PoolMemory::open();
        eventually("the dead splitter's chunks come back", || {
            pool_memory
                .chunks()
                .iter()
                .all(|chunk| chunk.owner.is_free())
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
