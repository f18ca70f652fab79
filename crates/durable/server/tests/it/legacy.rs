//! Directories of older versions, which belong to a cluster without a 128-bit identifier.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use farleaf_cluster::admin;
use farleaf_cluster::coordinator::{
    Coordinator, CoordinatorError, Embedded, KeepAlive, LeaseId, Revision, SharedCoordinator,
    Snapshot, Transaction, TransactionOutcome, Watch,
};
use farleaf_cluster::ids::ClusterId;
use farleaf_cluster::record::{CLUSTER_KEY, Cluster, FORMAT_VERSION, IDS_KEY, Ids, Record as _};
use farleaf_server::{RegionServer, ServerOptions};
use farleaf_trial::fleet::terms;

/// A coordinator that counts reads of its cluster.
struct Counting(Embedded, Arc<AtomicUsize>);

impl Coordinator for Counting {
    fn range(&self, prefix: &str) -> Result<Snapshot, CoordinatorError> {
        let is_counted = prefix == CLUSTER_KEY;
        self.1.fetch_add(is_counted.into(), Ordering::Relaxed);
        self.0.range(prefix)
    }

    fn transact(&self, transaction: &Transaction) -> Result<TransactionOutcome, CoordinatorError> {
        self.0.transact(transaction)
    }

    fn grant_lease(&self, time_to_live: Duration) -> Result<(LeaseId, Duration), CoordinatorError> {
        self.0.grant_lease(time_to_live)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<KeepAlive, CoordinatorError> {
        self.0.keep_alive(lease)
    }

    fn revoke_lease(&self, lease: LeaseId) -> Result<(), CoordinatorError> {
        self.0.revoke_lease(lease)
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, CoordinatorError> {
        self.0.watch(prefix, after)
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(path, text).expect("written");
}

/// A server that waits for its cluster to be adopted, or whose directory cannot be adopted, checks
/// about once a second, and joins when it can. It once checked in a busy loop.
#[test]
fn a_server_that_is_not_adopted_asks_once_a_second() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let own = scratch.path().join("server");
    write(
        &own.join("SERVER"),
        r#"{"version":1,"cluster":77,"server":3}"#,
    );
    let note = r#"{"version":1,"table":1,"region":5,"replica":2,"epoch":9,"generation":3}"#;
    let replica = own.join("regions/5-2");
    write(&replica.join("REPLICA"), note);
    // The note cannot be written while this directory exists.
    let in_the_way = replica.join("REPLICA.new");
    fs::create_dir(&in_the_way).expect("made");
    let embedded = Embedded::default();
    let old = Cluster {
        version: FORMAT_VERSION,
        cluster: ClusterId(77),
        formerly: None,
    };
    let put = Transaction::new()
        .put(CLUSTER_KEY, old.encode())
        .put(IDS_KEY, Ids::default().encode());
    embedded.transact(&put).expect("it works");
    let asked = Arc::new(AtomicUsize::new(0));
    let counting = Counting(embedded.clone(), Arc::clone(&asked));
    let mut options = ServerOptions::new(&own);
    options.terms = terms();
    options.is_candidate = false;
    let coordinator = SharedCoordinator::new(counting, "here");
    let server = RegionServer::start(coordinator, &options).expect("it waits");
    for is_adopted in [false, true] {
        if is_adopted {
            admin::adopt(&embedded).expect("it has no identifier");
        }
        let before = asked.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(2500));
        let asked = asked.load(Ordering::Relaxed) - before;
        assert!((1..=8).contains(&asked), "{asked}, adopted: {is_adopted}");
        assert!(!server.has_joined());
    }
    fs::remove_dir(&in_the_way).expect("removed");
    let since = Instant::now();
    while !server.has_joined() {
        assert!(since.elapsed() < Duration::from_secs(20), "it joins");
        std::thread::sleep(Duration::from_millis(20));
    }
    let note = fs::read_to_string(replica.join("REPLICA")).expect("it is there");
    assert!(note.contains(r#""cluster":"#), "{note}");
}
