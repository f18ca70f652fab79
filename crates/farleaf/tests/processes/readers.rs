//! Clients over tcp with only the right to read, beside writers: they cannot take a lock for
//! reading.

use std::thread::JoinHandle;
use std::time::Duration;

use farleaf::{ConnectOptions, Error, ErrorKind, Pool, Rights, TableOptions};
use farleaf_fabric::BatchErrorKind;

use crate::children::scene;
use crate::node::{Fabric, Node, NodePlan};
use crate::raw_session::{RawSession, first_lock};

const TABLE: &str = "read";
const KEY: u64 = 5;
const VALUE: u64 = 50;
/// Longer than all the retries after which a reader considers a leaf corrupted.
const HOLD_TIME: Duration = Duration::from_millis(500);

fn open_to_read(address: &str) -> Pool {
    let options = ConnectOptions {
        rights: Some(Rights::Read),
        ..ConnectOptions::default()
    };
    Pool::open_with(address, &options).expect("the node serves")
}

/// Starts a get in its own thread.
fn start_get(address: &str) -> JoinHandle<Result<Option<u64>, Error>> {
    let pool = open_to_read(address);
    std::thread::spawn(move || pool.session()?.open_table(TABLE)?.get(KEY))
}

/// Promise: a client that can only read waits for a torn leaf until its writer is done, or, if the
/// writer dies, until the leaf has been recovered. It does not fail because it cannot lock.
#[test]
fn a_reader_waits_for_a_torn_leaf() {
    scene("readers::a_reader_waits_for_a_torn_leaf", |_| {
        let node = Node::start(NodePlan::of_size(32));
        let address = node.pool(Fabric::Tcp);
        let pool = Pool::open(&address).expect("the node serves");
        let session = pool.session().expect("a session");
        let table = session.create_table(TABLE, &TableOptions::default());
        table.expect("a table").put(KEY, VALUE).expect("a put");
        let lock = first_lock(TABLE);
        for dies in [false, true] {
            let writer = RawSession::open(node.network_address());
            assert_eq!(writer.take(lock), 0, "nobody has it");
            // Like an update before its commit point.
            let place = writer.find(lock, VALUE);
            writer.write(place, VALUE + 1).expect("it lives");
            let get = start_get(&address);
            std::thread::sleep(HOLD_TIME);
            assert!(!get.is_finished(), "{:?}", get.join());
            if !dies {
                writer.write(place, VALUE).expect("it lives");
                writer.unlock(lock).expect("it lives");
            }
            drop(writer);
            let found = get.join().expect("no panic").expect("a get");
            assert_eq!(found, Some(if dies { VALUE + 1 } else { VALUE }));
        }
    });
}

/// Promise: a write that is rejected for lack of rights changes nothing, and the session continues.
#[test]
fn a_refused_write_leaves_the_session_as_it_was() {
    scene(
        "readers::a_refused_write_leaves_the_session_as_it_was",
        |_| {
            let node = Node::start(NodePlan::of_size(32));
            let address = node.pool(Fabric::Tcp);
            let pool = Pool::open(&address).expect("the node serves");
            let session = pool.session().expect("a session");
            let table = session.create_table(TABLE, &TableOptions::default());
            table.expect("a table").put(KEY, VALUE).expect("a put");
            let pool = open_to_read(&address);
            let session = pool.session().expect("a session");
            let table = session.open_table(TABLE).expect("the table");
            for _ in 0..2 {
                for refused in [
                    table.put(KEY, 1).map(drop).expect_err("it may not"),
                    table.delete(KEY).map(drop).expect_err("it may not"),
                ] {
                    let ErrorKind::Fabric(error) = refused.kind() else {
                        panic!("{refused:?}")
                    };
                    let is_forbidden = matches!(error.kind(), BatchErrorKind::Forbidden { .. });
                    assert!(is_forbidden, "{refused:?}");
                }
                assert_eq!(table.get(KEY).expect("a get"), Some(VALUE));
            }
            drop(table);
            session.close().expect("nothing is under way");
        },
    );
}
