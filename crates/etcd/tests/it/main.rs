//! A real etcd keeps the promises of a coordinator.

mod server;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farleaf_cluster::coordinator::conformance::{Harness, run_all};
use farleaf_cluster::coordinator::Coordinator;
use farleaf_etcd::Etcd;

use self::server::Server;

struct Namespaces<'s> {
    server: &'s Server,
    next: AtomicU64,
}

impl Harness for Namespaces<'_> {
    type Tested = Etcd;

    fn open(&self) -> Etcd {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.server.connect(&format!("conformance/{number}"))
    }

    fn compact(&self, tested: &Etcd) {
        let now = tested.range("").expect("it can be asked").revision;
        tested.compact(now).expect("it can be asked");
    }

    fn time_to_live_min(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn has_own_revisions(&self) -> bool {
        false
    }
}

/// etcd keeps every promise of a coordinator.
#[test]
fn etcd_conforms() {
    let Some(server) = Server::start_or_skip() else {
        return;
    };
    run_all(&Namespaces {
        server: &server,
        next: AtomicU64::new(0),
    });
}
