//! Clients that die faster than the memory node polls: it must still find time to sweep after the
//! first of them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farleaf::{Pool, TableOptions};
use farleaf_fabric::Control;
use farleaf_fabric::shm::{PoolName, ShmClient};
use farleaf_fabric::tcp::{TcpClient, TcpConnectOptions};
use farleaf_leaf::words::LeafGeometry;

use crate::check::PoolMemory;
use crate::children::{ChildProcess, ChildRole, scene, wait_for_the_end};
use crate::node::{Fabric, Node, NodePlan};

const TABLE: &str = "mourned";
/// Number of concurrent processes, each of which dies as soon as it has a session.
const SHORT_LIVED_COUNT: usize = 3;
/// Time between two other sessions that end undrained, which the node treats as a death as well. It
/// is far less than the 20 ms between two polls of the node, even on a slow host.
const DEATH_INTERVAL: Duration = Duration::from_millis(2);
/// Time after which the lock must be free: a few polls, and a sweep of a small pool.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(5);
/// Time for which the others die before, so that the node is busy when it learns of the first
/// death.
const LEAD: Duration = Duration::from_millis(300);

/// Returns a control connection that registers sessions without closing them, in a pool of any
/// kind.
fn control(address: &str) -> Box<dyn Control> {
    match address.split_once(':') {
        Some(("shm", name)) => {
            let name = PoolName::new(name).expect("a name");
            Box::new(ShmClient::connect(&name).expect("it is served").0)
        }
        Some(("tcp", at)) => {
            let client = TcpClient::connect(at, &TcpConnectOptions::default());
            Box::new(client.expect("it is served"))
        }
        _ => panic!("{address} is no address of a scene"),
    }
}

/// Runs [`ChildRole::Holder`]: takes the lock of the table's first leaf in its own session, and
/// waits to be killed.
pub(crate) fn play_holder(arguments: &[&str]) {
    let client = control(arguments[0]);
    let owner = client.register_session().expect("a session");
    let pool_memory = PoolMemory::open();
    let leaf = pool_memory.first_leaf(TABLE);
    assert!(
        pool_memory.take_lock(geometry(), leaf, owner),
        "nobody held it"
    );
    eprintln!("locked");
    wait_for_the_end();
}

/// Runs [`ChildRole::ShortLived`]: dies with an open session.
pub(crate) fn play_short_lived(arguments: &[&str]) {
    let pool = Pool::open(arguments[0]).expect("the scene serves it");
    let session = pool.session().expect("a session");
    session.open_table(TABLE).expect("the scene made it");
    std::process::abort();
}

fn geometry() -> LeafGeometry {
    LeafGeometry::new(TableOptions::default().slots).expect("a geometry")
}

/// Ends sessions undrained, one every few milliseconds.
fn let_sessions_die(address: &str, stop: &AtomicBool, death_count: &AtomicU64) {
    let client = control(address);
    while !stop.load(Ordering::Relaxed) {
        let owner = client.register_session().expect("a session");
        client.close_session(owner).expect("the node hears it");
        death_count.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(DEATH_INTERVAL);
    }
}

/// Promise: the lock of a client that died is soon free, although no client looks for it and other
/// processes and sessions die every few milliseconds.
#[test]
fn clients_that_keep_dying_do_not_keep_the_sweep_off() {
    let name = "deaths::clients_that_keep_dying_do_not_keep_the_sweep_off";
    scene(name, |_| mourn(Fabric::Shm));
}

/// Promise: the same holds over tcp, where a death is a closed socket.
#[test]
fn clients_that_keep_dying_do_not_keep_the_sweep_off_over_tcp() {
    let name = "deaths::clients_that_keep_dying_do_not_keep_the_sweep_off_over_tcp";
    scene(name, |_| mourn(Fabric::Tcp));
}

fn mourn(fabric: Fabric) {
    let node = Node::start(NodePlan::of_size(32));
    let address = node.pool(fabric);
    let pool = Pool::open(&address).expect("the node serves");
    let session = pool.session().expect("a session");
    let options = TableOptions::default();
    let table = session.create_table(TABLE, &options).expect("a table");
    let pool_memory = PoolMemory::open();
    let leaf = pool_memory.first_leaf(TABLE);
    let holder = ChildProcess::start(ChildRole::Holder, &address);
    assert_eq!(holder.hear(), "locked");

    let (stop, process_count, session_count) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let took = std::thread::scope(|scope| {
        for _ in 0..SHORT_LIVED_COUNT {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    ChildProcess::start(ChildRole::ShortLived, &address).die();
                    process_count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| let_sessions_die(&address, &stop, &session_count));
        std::thread::sleep(LEAD);
        assert!(pool_memory.is_locked(geometry(), leaf), "its owner lives");
        let killed = Instant::now();
        holder.kill();
        let mut took = killed.elapsed();
        while pool_memory.is_locked(geometry(), leaf) && took < RECOVERY_TIME_MAX {
            std::thread::sleep(Duration::from_millis(1));
            took = killed.elapsed();
        }
        stop.store(true, Ordering::Relaxed);
        took
    });
    let deaths = [&process_count, &session_count].map(|it| it.load(Ordering::Relaxed));
    eprintln!("{fabric:?}: the lock was free after {took:?}; beside it died {deaths:?}");
    assert!(took < RECOVERY_TIME_MAX, "{deaths:?} died meanwhile");
    assert!(deaths[0] > 0 && deaths[1] > 20, "{deaths:?} died");
    table.put(1, 2).expect("a put");
    assert_eq!(table.get(1).expect("a get"), Some(2));
}
