//! Random faults for a long time.
//!
//! ```text
//! FARLEAF_TEST_SOAK_S=600 FARLEAF_TEST_SEED=1 cargo test --release -p farleaf-server \
//!     --test processes soak -- --ignored --nocapture
//! ```

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use farleaf_base::random::Random;
use farleaf_client::{Durability, PersistentTable, PersistentTableOptions};
use farleaf_cluster::coordinator::{Embedded, SharedCoordinator};
use farleaf_trial::load::{CLIENT_COUNT, split_keys, wait_served};
use farleaf_trial::{AllowedErrors, CuttableCoordinator, ProcessCluster, Trial};
use rustix::process::Signal;

use crate::part::serve;
use crate::rest;

const SERVER_COUNT: usize = 4;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        let number = text.parse();
        number.unwrap_or_else(|error| panic!("{name} is '{text}': {error}"))
    })
}

/// A cluster under random faults.
struct Soak {
    fleet: ProcessCluster,
    outage: CuttableCoordinator,
    random: Random,
    counts: BTreeMap<&'static str, u64>,
}

impl Soak {
    /// Sleeps for a random time up to `most_ms`.
    fn rest(&mut self, most_ms: u64) {
        thread::sleep(Duration::from_millis(self.random.below(most_ms)));
    }

    fn server(&mut self) -> usize {
        self.random.below(SERVER_COUNT as u64) as usize
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Kills servers, and restarts them after a while.
    fn kill(&mut self, indexes: &[usize]) {
        for index in indexes {
            self.fleet.kill(*index);
        }
        self.rest(3000);
        for index in indexes {
            self.fleet.start_server(*index);
        }
    }

    fn signal(&self, index: usize, signal: Signal) {
        let process = self.fleet.servers[index].as_ref();
        process.expect("it runs").signal(signal);
    }

    /// Causes one random fault.
    fn event(&mut self) {
        match self.random.below(10) {
            0..=3 => {
                self.count("kills");
                let index = self.server();
                self.kill(&[index]);
            }
            4 => {
                self.count("kills of two");
                let index = self.server();
                self.kill(&[index, (index + 1) % SERVER_COUNT]);
            }
            5 => {
                self.count("kills of all");
                let all: Vec<usize> = (0..SERVER_COUNT).collect();
                self.kill(&all);
            }
            6 | 7 => {
                self.count("pauses");
                let index = self.server();
                self.signal(index, Signal::STOP);
                self.rest(4000);
                self.signal(index, Signal::CONT);
            }
            8 => {
                self.count("outages");
                let outage = self.outage.clone();
                outage.away(|| self.rest(3000));
            }
            _ => {
                self.count("kills while the coordinator is away");
                let (outage, index) = (self.outage.clone(), self.server());
                outage.away(|| {
                    self.rest(1500);
                    self.fleet.kill(index);
                    self.rest(1500);
                });
                self.fleet.start_server(index);
            }
        }
    }
}

/// One, two or all servers are killed, or paused for longer than their leases, and the coordinator
/// is unavailable, in any order. The history that clients saw is linearizable, and everything
/// acknowledged as durable is present.
#[test]
#[ignore = "ten minutes; the command is in the module's documentation"]
fn anything_happens() {
    let duration = Duration::from_secs(number("FARLEAF_TEST_SOAK_S", 600));
    let seed = number("FARLEAF_TEST_SEED", 1);
    let outage = CuttableCoordinator::new(Embedded::default());
    let shared = SharedCoordinator::new(outage.clone(), "the test's");
    let (_service, plan) = serve(&shared, [127, 0, 0, 1]);
    let fleet = ProcessCluster::start(shared, plan, SERVER_COUNT);
    let options = PersistentTableOptions {
        replica_count: 3,
        split_keys: split_keys(),
    };
    let table = fleet.client().create_table("t", &options);
    let table = table
        .expect("a new table")
        .with_durability(Durability::Sync);
    fleet.wait_replicated(&table, 3);
    let trial = Trial::new(AllowedErrors::Troubled);
    let mut soak = Soak {
        fleet,
        outage,
        random: Random::new(seed),
        counts: BTreeMap::new(),
    };
    let clients: Vec<PersistentTable> = vec![table.clone(); CLIENT_COUNT];
    let mut away_max = Duration::ZERO;
    trial.run(&clients, || {
        let since = Instant::now();
        while since.elapsed() < duration {
            soak.rest(1500);
            soak.event();
            // Sometimes the next fault comes before everything has recovered.
            if soak.random.below(3) > 0 {
                away_max = away_max.max(wait_served(&table));
                soak.fleet.wait_replicated(&table, 3);
            }
        }
        soak.fleet.wait_replicated(&table, 3);
        trial.wait_done(100);
    });
    eprintln!(
        "{duration:?}, seed {seed}: {:?}; {} operations done, {} unknown, {} not done; served \
         again after {away_max:?} at the most",
        soak.counts,
        trial.done_count(),
        trial.unknown_count(),
        trial.refused_count()
    );
    trial.check_history(&table);
    rest::wait_equal_in(&soak.fleet);
}
