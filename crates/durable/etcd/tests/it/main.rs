//! Tests that a real etcd keeps the promises of a coordinator.

mod clusters;
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farleaf_base::clock::SystemClock;
use farleaf_cluster::admin;
use farleaf_cluster::coordinator::conformance::{Harness, run_all};
use farleaf_cluster::coordinator::{Bound, Coordinator, CoordinatorError, Transaction};
use farleaf_cluster::ids::ServerId;
use farleaf_cluster::lease::LeaseTerms;
use farleaf_cluster::leased_key::{LeasedKey, LeasedKeyChange};
use farleaf_cluster::master::Master;
use farleaf_cluster::plan::PlanOptions;
use farleaf_cluster::view::Mirror;
use farleaf_etcd::{Etcd, EtcdOptions};

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

/// Promise: etcd passes the conformance suite of coordinators.
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

fn terms() -> LeaseTerms {
    LeaseTerms {
        time_to_live: Duration::from_secs(2),
        ..LeaseTerms::default()
    }
}

fn leased_key(key: &str) -> LeasedKey {
    LeasedKey::new(
        key.to_owned(),
        b"{}".to_vec(),
        terms(),
        Arc::new(SystemClock),
    )
}

/// Ticks until something changes, for at most 20 seconds; retries after connection failures.
fn tick_until_changed(leased_key: &mut LeasedKey, etcd: &Etcd) -> LeasedKeyChange {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        match leased_key.tick(etcd) {
            Ok(LeasedKeyChange::Unchanged) | Err(_) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(change) => return change,
        }
    }
    LeasedKeyChange::Unchanged
}

/// Promise: while etcd is down for longer than a lease, holders of a key stop acting on it. When
/// etcd recovers, the same tenure continues, because no other process can have taken the key, and a
/// mirror catches up.
#[test]
fn etcd_goes_away_and_comes_back() {
    let Some(mut server) = Server::start_or_skip() else {
        return;
    };
    let etcd = server.connect("away");
    let mut leased_key = leased_key("server/00000000000000000001");
    let LeasedKeyChange::Won(guard) = tick_until_changed(&mut leased_key, &etcd) else {
        panic!("the key is free");
    };
    let since = leased_key.held_since();
    let mut mirror = Mirror::new(etcd.clone(), "");
    mirror.refresh(Duration::ZERO).expect("it is there");
    assert_eq!(mirror.view().lives.len(), 1);
    assert!(guard.may_acknowledge());
    server.kill();
    let start = Instant::now();
    while guard.may_acknowledge() {
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "it is acted on for too long"
        );
        let _ = leased_key.tick(&etcd);
        std::thread::sleep(Duration::from_millis(20));
    }
    let put = Transaction::new().put("a", Vec::new());
    let error = etcd.transact(&put).expect_err("it is away");
    assert!(
        matches!(error, CoordinatorError::OutcomeUnknown { .. }),
        "{error}"
    );
    let error = etcd.range("a").expect_err("it is away");
    assert!(
        matches!(error, CoordinatorError::Unavailable { .. }),
        "{error}"
    );
    std::thread::sleep(Duration::from_secs(2).saturating_sub(start.elapsed()));
    server.start();
    let start = Instant::now();
    while !guard.may_acknowledge() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it does not go on"
        );
        let _ = leased_key.tick(&etcd);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(leased_key.held_since(), since);
    admin::set_drain(&etcd, ServerId(1), true).expect("it is back");
    let start = Instant::now();
    while mirror.view().drains.is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "the mirror stands still"
        );
        let _ = mirror.refresh(Duration::from_millis(50));
    }
    assert_eq!(mirror.view().lives.len(), 1);
}

/// Promise: of two processes that want a key, one holds it. When the first stops, the second gets
/// it with a later revision, and the first notices at its next tick.
#[test]
fn a_key_has_one_holder() {
    let Some(server) = Server::start_or_skip() else {
        return;
    };
    let etcd = server.connect("election");
    let (mut first, mut second) = (leased_key("master"), leased_key("master"));
    let LeasedKeyChange::Won(guard) = tick_until_changed(&mut first, &etcd) else {
        panic!("the key is free");
    };
    assert!(matches!(second.tick(&etcd), Ok(LeasedKeyChange::Unchanged)));
    // The first one stops ticking, as if it were paused.
    assert!(matches!(
        tick_until_changed(&mut second, &etcd),
        LeasedKeyChange::Won(_)
    ));
    assert!(!guard.may_acknowledge());
    assert!(second.held_since() > first.held_since());
    assert!(matches!(
        tick_until_changed(&mut first, &etcd),
        LeasedKeyChange::Lost
    ));
}

/// Promise: a leader over etcd assigns nothing without servers, reports that, and hands over when
/// it resigns.
#[test]
fn masters_over_etcd() {
    let Some(server) = Server::start_or_skip() else {
        return;
    };
    let etcd = server.connect("masters");
    admin::create_cluster(&etcd).expect("it is empty");
    let table = admin::create_table(&etcd, "words", 3, &[])
        .expect("it is new")
        .table;
    assert_eq!(
        admin::table_named(&etcd, "words").expect("it is there"),
        table
    );
    let master = |name| {
        let clock = Arc::new(SystemClock);
        let etcd = Bound::to_first_seen(etcd.clone());
        Master::new(etcd, clock, terms(), name, PlanOptions::default())
    };
    let (mut first, mut second) = (master("first"), master("second"));
    assert!(first.tick(Duration::ZERO).expect("it is there").is_master);
    assert_eq!(first.waiting()[0].what, "a server for its first replica");
    assert!(!second.tick(Duration::ZERO).expect("it is there").is_master);
    first.resign().expect("it is there");
    let start = Instant::now();
    while !second
        .tick(Duration::from_millis(20))
        .expect("it is there")
        .is_master
    {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "nobody is master"
        );
    }
}

/// Promise: unreachable addresses and invalid namespaces are reported as such.
#[test]
fn bad_addresses_are_told() {
    let options = EtcdOptions {
        answer_timeout: Duration::from_millis(300),
        ..EtcdOptions::default()
    };
    let connected = Etcd::connect(&["127.0.0.1:1"], &options);
    let asked = connected.and_then(|etcd| etcd.range("").map(drop));
    let error = asked.expect_err("nothing is there");
    assert!(
        matches!(error, CoordinatorError::Unavailable { .. }),
        "{error}"
    );
    let bad = EtcdOptions {
        namespace: "with space".to_owned(),
        ..options.clone()
    };
    for (addresses, options) in [(&[][..], &options), (&["127.0.0.1:1"][..], &bad)] {
        let error = Etcd::connect(addresses, options).expect_err("it cannot be");
        assert!(matches!(error, CoordinatorError::Invalid { .. }), "{error}");
    }
}
