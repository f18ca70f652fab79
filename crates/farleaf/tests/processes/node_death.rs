//! The memory node is killed while clients work. Clients that have mapped its memory keep it and
//! continue, new ones cannot connect, and a node of the same name can be started again. Clients
//! over tcp get errors in time.

use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use farleaf::{ConnectOptions, ControlError, Error, ErrorKind, Pool, Session, Table, TableOptions};
use farleaf_fabric::BatchErrorKind;
use rustix::process::Signal;

use crate::check::check_records;
use crate::children::scene;
use crate::journal::Journal;
use crate::node::{Fabric, Node, NodePlan};
use crate::raw_session::{RawSession, first_lock};
use crate::worker::TABLE;
use crate::worker_processes::{RunPlan, WorkerProcesses};

#[test]
fn clients_outlive_the_memory_node() {
    scene("node_death::clients_outlive_the_memory_node", |directory| {
        let plan = RunPlan {
            process_count: 2,
            threads_per_process: 1,
            keys_per_class: 1 << 14,
        };
        let node = Node::start(NodePlan::of_size(64));
        let address = node.pool(Fabric::Shm);
        let pool = Pool::open(&address).expect("the node serves");
        let session = pool.session().expect("a session");
        let table = session
            .create_table(TABLE, &TableOptions::default())
            .expect("a table");
        let nothing = vec![0; plan.keys_per_class as usize];
        for class in 0..plan.deal().class_count {
            Journal::create(directory, class, &nothing);
        }
        let mut worker_processes = WorkerProcesses::start(plan, address.clone(), directory, 3);
        worker_processes.watch(Duration::from_millis(500));
        node.kill();
        let before = worker_processes.operation_count();
        worker_processes.watch(Duration::from_millis(500));
        assert!(worker_processes.operation_count() > before, "clients go on");

        let refused = pool.session().expect_err("nobody registers sessions");
        assert!(
            matches!(refused.kind(), ErrorKind::Control(_)),
            "{refused:?}"
        );
        let refused = Pool::open(&address).expect_err("nobody serves the pool");
        assert!(
            matches!(refused.kind(), ErrorKind::Control(_)),
            "{refused:?}"
        );

        let _next = Node::start(NodePlan::of_size(64));
        let next_pool = Pool::open(&address).expect("another node serves");
        let next_session = next_pool.session().expect("a session");
        assert_eq!(next_session.list_tables().expect("a catalog"), []);
        let next_table = next_session
            .create_table(TABLE, &TableOptions::default())
            .expect("a table");
        next_table.put(1, 2).expect("a put");

        let (journals, _) = worker_processes.end();
        check_records(&table, plan.deal(), &journals);
        assert_eq!(next_table.get(1).expect("a get"), Some(2));
        assert_eq!(next_table.range(..).count(), 1);
    });
}

/// Time within which clients get errors: a killed node's kernel closes its connections.
const LOSS_TIME_MAX: Duration = Duration::from_secs(2);
/// Reply timeout of clients of a stopped node.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(500);
/// Longest time of an operation: it posts a few batches, of which only the first can time out.
const SILENCE_TIME_MAX: Duration = Duration::from_secs(3);

/// Repeats an operation until it fails; returns when and why.
fn until_refused(mut operation: impl FnMut() -> Result<(), Error>) -> (Instant, Error) {
    loop {
        if let Err(error) = operation() {
            return (Instant::now(), error);
        }
    }
}

fn is_loss(error: &Error) -> bool {
    let ErrorKind::Fabric(error) = error.kind() else {
        return false;
    };
    matches!(
        error.kind(),
        BatchErrorKind::Unreachable { .. } | BatchErrorKind::Unknown { .. }
    )
}

/// Returns whether an error is the loss of the main node, or fencing: data nodes fence the sessions
/// of a process that has ended its own sessions.
fn is_loss_or_fenced(error: &Error) -> bool {
    let is_fenced = matches!(error.kind(), ErrorKind::Fabric(error)
        if matches!(error.kind(), BatchErrorKind::Fenced));
    is_fenced || is_loss(error)
}

/// Threads with one kind of operation each on a table of [`RECORD_COUNT`] records, and one that
/// waits for a lock that is never released; with their results.
struct Clients<'scope> {
    threads: Vec<(&'static str, ScopedJoinHandle<'scope, (Instant, Error)>)>,
}

const RECORD_COUNT: u64 = 10_000;
/// Table whose only leaf is locked all the time.
const LOCKED: &str = "locked";

impl<'scope> Clients<'scope> {
    fn start<'env>(scope: &'scope Scope<'scope, 'env>, pool: &'env Pool) -> Self {
        let mut clients = Self {
            threads: Vec::new(),
        };
        let mut add = |name, operation: fn(&Session, &Table, u64) -> Result<(), Error>| {
            let thread = scope.spawn(move || {
                let session = pool.session().expect("a session");
                let table = session.open_table(TABLE).expect("a table");
                let mut count = 0;
                until_refused(|| {
                    count += 1;
                    operation(&session, &table, count % RECORD_COUNT)
                })
            });
            clients.threads.push((name, thread));
        };
        add("get", |_, table, key| table.get(key).map(drop));
        add("put", |_, table, key| table.put(key, key).map(drop));
        add("scan", |_, table, _| {
            table.range(..).try_for_each(|record| record.map(drop))
        });
        add("multi_get", |_, table, key| {
            let keys: Vec<u64> = (key..key + 256).collect();
            table.multi_get(&keys).map(drop)
        });
        add("create and drop", |session, _, _| {
            session.create_table("other", &TableOptions::default())?;
            session.drop_table("other")
        });
        add("put that waits for a lock", |session, _, key| {
            session.open_table(LOCKED)?.put(key, key).map(drop)
        });
        add("open a session", |session, _, _| {
            session.pool().session()?.close()
        });
        clients
    }

    /// Checks that all threads have ended within `time_max` after `since`, by the right errors.
    fn assert_ended(self, since: Instant, time_max: Duration) {
        self.assert_ended_by(since, time_max, is_loss);
    }

    fn assert_ended_by(self, since: Instant, time_max: Duration, is_told: fn(&Error) -> bool) {
        for (name, thread) in self.threads {
            let (ended, error) = thread.join().expect("an error is no panic");
            let took = ended.saturating_duration_since(since);
            eprintln!("{name}: after {took:?}: {error}");
            assert!(took < time_max, "{name} ended after {took:?}: {error}");
            let is_typed = is_told(&error) || matches!(error.kind(), ErrorKind::Control(_));
            assert!(is_typed, "{name}: {error:?}");
        }
    }
}

fn make_table(pool: &Pool) -> (Session, Table) {
    let session = pool.session().expect("a session");
    let table = session.create_table(TABLE, &TableOptions::default());
    let table = table.expect("a table");
    let locked = session.create_table(LOCKED, &TableOptions::default());
    locked.expect("a table");
    let records = (0..RECORD_COUNT).map(|key| (key, key));
    table.bulk_load(records, |_| {}).expect("a load");
    (session, table)
}

/// Promise: over tcp the memory is gone with its node. Every unfinished operation ends within
/// [`LOSS_TIME_MAX`] with a typed error, including one that waits for a lock, and so do all later
/// ones. Sessions and pools can be dropped, and a pool that is opened at the next node works.
#[test]
fn clients_of_a_killed_node_are_told_over_tcp() {
    let name = "node_death::clients_of_a_killed_node_are_told_over_tcp";
    scene(name, |_| {
        let node = Node::start(NodePlan::of_size(64));
        let address = node.pool(Fabric::Tcp);
        let pool = Pool::open(&address).expect("the node serves");
        let (session, table) = make_table(&pool);
        let holder = RawSession::open(node.network_address());
        assert_eq!(holder.take(first_lock(LOCKED)), 0, "nobody has it");
        std::thread::scope(|scope| {
            let clients = Clients::start(scope, &pool);
            std::thread::sleep(Duration::from_millis(300));
            let killed = Instant::now();
            node.kill();
            clients.assert_ended(killed, LOSS_TIME_MAX);
        });
        let start = Instant::now();
        let lost = table.get(1).expect_err("nobody answers");
        assert!(is_loss(&lost), "{lost:?}");
        for refused in [
            pool.session().map(drop).expect_err("nobody registers"),
            Pool::open(&address).map(drop).expect_err("nobody serves"),
        ] {
            let is_control = matches!(refused.kind(), ErrorKind::Control(_));
            assert!(is_control, "{refused:?}");
        }
        drop((table, session, pool));
        assert!(start.elapsed() < LOSS_TIME_MAX, "{:?}", start.elapsed());

        let next = Node::start(NodePlan::of_size(64));
        let next_pool = Pool::open(&next.pool(Fabric::Tcp)).expect("another node serves");
        let (_session, table) = make_table(&next_pool);
        assert_eq!(table.get(7).expect("a get"), Some(7));
    });
}

/// Promise: a pool of several nodes needs its main node: if that is killed, all operations fail as
/// quickly, including those that use only a data node's keys. (They continued as long as they did
/// not need the main node.)
#[test]
fn clients_of_a_killed_main_node_are_told() {
    scene("node_death::clients_of_a_killed_main_node_are_told", |_| {
        let node = Node::start_over(Fabric::Nodes, NodePlan::of_size(64));
        let address = node.pool(Fabric::Nodes);
        let pool = Pool::open(&address).expect("the node serves");
        let (session, table) = make_table(&pool);
        std::thread::scope(|scope| {
            let clients = Clients::start(scope, &pool);
            std::thread::sleep(Duration::from_millis(300));
            let killed = Instant::now();
            let _data_nodes = node.kill_main_node();
            clients.assert_ended_by(killed, LOSS_TIME_MAX, is_loss_or_fenced);
            let lost = table.get(1).expect_err("nobody answers");
            assert!(is_loss_or_fenced(&lost), "{lost:?}");
        });
        drop((table, session, pool));
    });
}

/// Promise: operations on a node that does not reply time out after the client's configured time. A
/// session whose verbs were not answered stays unusable even if the node continues; a new session
/// works.
#[test]
fn clients_of_a_stopped_node_are_told_over_tcp() {
    let name = "node_death::clients_of_a_stopped_node_are_told_over_tcp";
    scene(name, |_| {
        let node = Node::start(NodePlan::of_size(64));
        let address = node.pool(Fabric::Tcp);
        let options = ConnectOptions {
            answer_time_max: ANSWER_TIME_MAX,
            ..ConnectOptions::default()
        };
        let open = || Pool::open_with(&address, &options);
        let pool = open().expect("the node serves");
        let (session, table) = make_table(&pool);
        let holder = RawSession::open(node.network_address());
        assert_eq!(holder.take(first_lock(LOCKED)), 0, "nobody has it");
        std::thread::scope(|scope| {
            let clients = Clients::start(scope, &pool);
            std::thread::sleep(Duration::from_millis(300));
            let stopped = Instant::now();
            node.signal(Signal::STOP);
            clients.assert_ended(stopped, SILENCE_TIME_MAX);
        });
        let start = Instant::now();
        let lost = table.get(1).expect_err("nobody answers");
        assert!(is_loss(&lost), "{lost:?}");
        let refused = open().map(drop).expect_err("nobody answers");
        let is_silent = matches!(
            refused.kind(),
            ErrorKind::Control(ControlError::Silent { .. })
        );
        assert!(is_silent, "{refused:?}");
        assert!(start.elapsed() < SILENCE_TIME_MAX, "{:?}", start.elapsed());
        node.signal(Signal::CONT);
        table.get(1).expect_err("what was lost stays lost");
        drop((table, session, pool));

        let pool = open().expect("it serves again");
        let session = pool.session().expect("a session");
        let table = session.open_table(TABLE).expect("the table");
        assert_eq!(table.range(..).count() as u64, RECORD_COUNT);
        assert_eq!(table.get(7).expect("a get"), Some(7));
    });
}
