//! A tcp client that is stopped for longer than the node's timeout, and continues later.
//!
//! The node cannot distinguish it from a dead one. It fences the client, and others recover what it
//! held. Nothing that it does afterwards may have an effect (FABRIC-6), whatever it was about to
//! do.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use farleaf::{Error, ErrorKind, Pool, Table, TableOptions};
use farleaf_fabric::{BatchError, BatchErrorKind, Control, SessionLife};
use rustix::process::Signal;

use crate::children::{ChildProcess, ChildRole, scene, wait_for_the_end};
use crate::node::{Fabric, Node, NodePlan};
use crate::raw_session::{RawSession, first_lock};

/// Table whose only leaf the sleeper locks.
const HELD: &str = "held";
/// Table to which the sleeper writes continuously.
const WRITTEN: &str = "written";
const KEY: u64 = 1;
/// Larger than all values that the sleeper writes.
const MARK: u64 = u64::MAX;
/// Time without a message after which the node fences a client; running clients send 50 messages a
/// second.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// Time for recovery: the node checks for silent clients four times a second, and then sweeps a
/// small pool.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(6);
/// Time within which all operations of a continued client fail.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(2);

/// Writes ascending values until a write fails; returns the last acknowledged value, and the error.
fn write_until_refused(table: &Table, start_sender: &Sender<()>) -> (u64, Error) {
    for value in 1.. {
        if let Err(error) = table.put(KEY, value) {
            return (value - 1, error);
        }
        if value == 1 {
            start_sender.send(()).expect("the sleeper listens");
        }
    }
    unreachable!("there are more values than time")
}

fn assert_cut_off(error: &BatchError) {
    let is_cut_off = matches!(
        error.kind(),
        BatchErrorKind::Fenced
            | BatchErrorKind::Unknown { .. }
            | BatchErrorKind::Unreachable { .. }
    );
    assert!(is_cut_off, "{error:?}");
}

/// Runs [`ChildRole::Sleeper`]: writes to a table until a write fails, and holds a leaf of another.
/// When its stdin is closed it continues like a lock holder, and checks that all operations fail.
/// Reports the last acknowledged value.
pub(crate) fn play_sleeper(arguments: &[&str]) {
    let pool = Pool::open(arguments[0]).expect("the scene serves it");
    let own = RawSession::open(arguments[1]);
    let lock = first_lock(HELD);
    let (start_sender, start_receiver) = channel();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let session = pool.session().expect("a session");
            let table = session.open_table(WRITTEN).expect("the scene made it");
            let (acknowledged, refusal) = write_until_refused(&table, &start_sender);
            let ErrorKind::Fabric(refusal) = refusal.kind() else {
                panic!("{refusal:?}")
            };
            assert_cut_off(refusal);
            table.get(KEY).expect_err("it reads no more than it writes");
            acknowledged
        });
        assert_eq!(own.take(lock), 0, "nobody holds it");
        start_receiver.recv().expect("it writes");
        eprintln!("locked");
        wait_for_the_end();
        assert_cut_off(&own.unlock(lock).expect_err("it is fenced"));
        let acknowledged = writer.join().expect("it ends by an error");
        let refused = pool.session().expect_err("the process was given up");
        let is_typed = matches!(refused.kind(), ErrorKind::Control(_));
        assert!(is_typed, "{refused:?}");
        eprintln!("{acknowledged}");
    });
}

/// Promise: a client that is stopped for longer than the node's timeout is fenced, and not earlier.
/// A client that waits for its lock gets it. When the stopped client continues, all its operations
/// return a typed error and change nothing, neither a lock that another client holds now nor a
/// record.
#[test]
fn a_client_that_was_given_up_changes_nothing() {
    scene(
        "stopped::a_client_that_was_given_up_changes_nothing",
        |_| {
            let node = Node::start(NodePlan {
                silence_max: SILENCE_MAX,
                ..NodePlan::of_size(32)
            });
            let pool = Pool::open(&node.pool(Fabric::Tcp)).expect("the node serves");
            let session = pool.session().expect("a session");
            let make = |name| session.create_table(name, &TableOptions::default());
            let (held, written) = (
                make(HELD).expect("a table"),
                make(WRITTEN).expect("a table"),
            );
            let (pool_address, network_address) = (node.pool(Fabric::Tcp), node.network_address());
            let arguments = format!("{pool_address} {network_address}");
            let session_count = || pool.usage().expect("usage").session_count;
            let before = session_count();
            let sleeper = ChildProcess::start(ChildRole::Sleeper, &arguments);
            assert_eq!(sleeper.hear(), "locked");

            sleeper.signal(Signal::STOP);
            let stopped = Instant::now();
            held.put(KEY, 7).expect("a put that waits for the lock");
            let took = stopped.elapsed();
            eprintln!("the lock was free {took:?} after its owner was stopped");
            assert!(took > SILENCE_MAX / 2, "it was fenced after {took:?}");
            assert!(took < RECOVERY_TIME_MAX, "it was fenced after {took:?}");
            // The process has two connections to the node, with a timeout for each.
            while session_count() > before {
                let took = stopped.elapsed();
                assert!(took < RECOVERY_TIME_MAX, "not given up after {took:?}");
                std::thread::sleep(Duration::from_millis(20));
            }
            let left = written.put(KEY, MARK).expect("a put");
            // The new holder must keep the lock.
            let (next_holder, lock) = (RawSession::open(network_address), first_lock(HELD));
            assert_eq!(
                next_holder.take(lock),
                0,
                "the sleeper's lock was recovered"
            );

            sleeper.signal(Signal::CONT);
            let resumed = Instant::now();
            let said = sleeper.end();
            let took = resumed.elapsed();
            assert!(took < REFUSAL_TIME_MAX, "it went on for {took:?}: {said:?}");
            let acknowledged: u64 = said.last().expect("a word").parse().expect("a number");
            let left = left.expect("the sleeper wrote it");
            assert!(
                left == acknowledged || left == acknowledged + 1,
                "{left} was in the table, and {acknowledged} the last acknowledged"
            );
            assert_eq!(written.get(KEY).expect("a get"), Some(MARK));
            assert_eq!(
                next_holder.take(lock),
                next_holder.owner.word(),
                "its lock was kept"
            );
            next_holder.unlock(lock).expect("it lives");
            assert_eq!(held.get(KEY).expect("a get"), Some(7));
            let life = next_holder
                .client
                .session_life(next_holder.owner)
                .expect("a life");
            assert!(matches!(life, SessionLife::Alive { .. }), "{life:?}");
        },
    );
}
