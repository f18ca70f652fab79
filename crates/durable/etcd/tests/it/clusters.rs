//! Region servers whose coordinator is a real etcd: servers, the leader and etcd itself are killed
//! under load.
//!
//! `cargo test` runs a short version. Run the full one with:
//!
//! ```text
//! FARLEAF_TEST_KILLS=50 cargo test --release -p farleaf-etcd clusters -- \
//!     --test-threads=1 --nocapture
//! ```

use std::thread;
use std::time::Duration;

use farleaf_client::{PersistentTable, PersistentTableOptions};
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::{Coordinator, SharedCoordinator};
use farleaf_etcd::{Etcd, EtcdOptions};
use farleaf_server::{RegionServer, ServerOptions};
use farleaf_trial::fleet::{ServerLaunchPlan, epochs, secret, terms, view};
use farleaf_trial::load::{CLIENT_COUNT, split_keys, wait_served};
use farleaf_trial::{ProcessCluster, ServerParameters, Trial, kills};

use crate::server::Server;

const PART: &str = "clusters::play_a_server";
const NAMESPACE: &str = "clusters";

fn connect(address: &str) -> SharedCoordinator {
    let options = EtcdOptions {
        namespace: NAMESPACE.to_owned(),
        answer_timeout: Duration::from_millis(500),
    };
    let etcd = Etcd::connect(&[address], &options).expect("it answers");
    SharedCoordinator::new(etcd, &format!("etcd:{address}"))
}

/// Starts an etcd, three servers, and a table of three regions, each replicated on all servers.
fn start_or_skip() -> Option<(Server, ProcessCluster, PersistentTable)> {
    let server = Server::start_or_skip()?;
    let coordinator = connect(&server.address());
    let lease = terms().time_to_live;
    let (_, granted) = coordinator.grant_lease(lease).expect("it answers");
    assert_eq!(granted, lease, "etcd's election timeout is too long");
    admin::create_cluster(&coordinator).expect("a new cluster");
    let fleet = ProcessCluster::start(
        coordinator,
        ServerLaunchPlan::here(PART, &server.address()),
        3,
    );
    let options = PersistentTableOptions {
        replica_count: 3,
        split_keys: split_keys(),
    };
    let table = fleet.client().create_table("t", &options);
    let table = table.expect("a new table");
    fleet.wait_replicated(&table, 3);
    Some((server, fleet, table))
}

/// Promise: with etcd and leases of a second, the primary among three servers is killed repeatedly
/// under load. Each time all regions are served again within five seconds, and the history is
/// linearizable: acknowledged writes are there.
#[test]
fn primaries_are_killed_over_etcd() {
    if let Some((_etcd, mut fleet, table)) = start_or_skip() {
        kills::primaries(&mut fleet, &table, Trial::default());
    }
}

/// Promise (CONTROL-6): etcd is killed under load for longer than a lease and restarted. Nothing is
/// acknowledged while leases may have expired, the same servers continue at the same epochs, and
/// the history is linearizable.
#[test]
fn etcd_is_killed_under_load() {
    let Some((mut etcd, fleet, table)) = start_or_skip() else {
        return;
    };
    let before = epochs(&fleet.coordinator, &table);
    let trial = Trial::default();
    let (mut over_ns, mut back_ns) = (0, 0);
    trial.run(&vec![table.clone(); CLIENT_COUNT], || {
        for _ in 0..2 {
            trial.wait_done(200);
            etcd.kill();
            thread::sleep(terms().time_to_live);
            over_ns = trial.history.now_ns();
            thread::sleep(Duration::from_millis(1500));
            back_ns = trial.history.now_ns();
            etcd.start();
            let away = wait_served(&table);
            eprintln!("etcd is back: served after {away:?}");
            let between = trial.history.acknowledged(over_ns..back_ns);
            assert_eq!(between, [], "their leases may have been over");
        }
        trial.wait_done(200);
    });
    assert_eq!(epochs(&fleet.coordinator, &table), before);
    trial.check_history(&table);
}

/// Returns the server whose process is the leader.
fn master(fleet: &ProcessCluster) -> Option<usize> {
    let seen = view(&fleet.coordinator);
    let address = seen.master?.record.address;
    let mut servers = seen.servers.into_iter();
    let found = servers.find(|(_, seen)| seen.record.address == address);
    found.map(|(server, _)| server.0 as usize - 1)
}

/// Promise (CONTROL-11): the leader's process is killed under load. Another leader promotes
/// backups, its regions are served again within five seconds, and in the end all regions are fully
/// replicated.
#[test]
fn masters_are_killed_over_etcd() {
    let Some((_etcd, mut fleet, table)) = start_or_skip() else {
        return;
    };
    let trial = Trial::default();
    let mut away = Vec::new();
    trial.run(&vec![table.clone(); CLIENT_COUNT], || {
        for _ in 0..2 {
            trial.wait_done(200);
            let master = master(&fleet).expect("there is one");
            fleet.kill(master);
            away.push(wait_served(&table));
            fleet.start_server(master);
            fleet.wait_replicated(&table, 3);
        }
    });
    eprintln!("masters killed: away {away:?}");
    assert!(
        away.iter().all(|away| *away < kills::AWAY_TIME_MAX),
        "{away:?}"
    );
    trial.check_history(&table);
}

/// Runs a server in a process that a test has started; does nothing if the test runner calls it.
#[test]
#[ignore = "a part that other tests have processes play"]
fn play_a_server() {
    let part = ServerParameters::from_parent();
    let mut options = ServerOptions::new(&part.directory);
    options.number = Some(part.number);
    options.address = part.address;
    options.secret = Some(secret());
    options.terms = terms();
    options.slot_count = 2;
    options.link_patience = Duration::from_secs(3);
    options.engine.l0_size_bytes_max = 1 << 20;
    options.engine.l0_entry_count_max = 2048;
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let coordinator = connect(&part.coordinator);
    let server = RegionServer::start(coordinator, &options).expect("it can be started");
    part.play();
    server.stop();
}
