//! Tests of the library's promises when several processes share a pool, and when they are killed.
//!
//! Processes access the pool by shm or by tcp; most tests run with both. The checks read the memory
//! itself, by shm.
//!
//! `cargo test` runs a short version. Run the full one with:
//!
//! ```text
//! FARLEAF_TEST_SECONDS=60 FARLEAF_TEST_KILLS=100 \
//!     cargo test --release -p farleaf --test processes -- --test-threads=1 --nocapture
//! ```
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `FARLEAF_TEST_SECONDS` | duration of each mixed run | 2 |
//! | `FARLEAF_TEST_KILLS` | number of processes that each run with kills loses | 10 |
//!
//! | module | contents |
//! |---|---|
//! | `children` | processes that tests start |
//! | `node` | memory node, which serves by shm and tcp at once |
//! | `journal` | acknowledged writes of workers, in files that outlive them |
//! | `worker` | mixed operations on one table |
//! | `worker_processes` | workers that are started, killed and replaced |
//! | `check` | full check of a table and of the pool's memory |
//! | `mixed` | runs with and without kills |
//! | `loads` | loads and drops whose processes are killed, with concurrent readers |
//! | `node_death` | effects of killing the memory node, and the errors of tcp clients |
//! | `bad_network` | delay, packet loss and a cut network, emulated by the system |
//! | `barred` | a session that its main node has fenced, at the data nodes, over verbs |
//! | `drained` | one of several nodes drained under load, over verbs |
//! | `data_node_death` | effects of killing or stopping one of several nodes |
//! | `stopped` | a tcp client that was fenced and continues later |
//! | `readers` | tcp clients that have only the right to read |
//! | `raw_session` | a session that holds locks |
//! | `reuse` | memory that a sweep must not free |
//! | `deaths` | clients that die faster than the memory node polls |

mod bad_network;
mod barred;
mod check;
mod children;
mod data_node_death;
mod deaths;
mod drained;
mod journal;
mod loads;
mod mixed;
mod node;
mod node_death;
mod raw_session;
mod readers;
mod reuse;
mod stopped;
mod worker;
mod worker_processes;

use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Longest time of an operation of a live process, whichever process is killed.
const STALL_MAX: Duration = Duration::from_secs(5);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|error| panic!("{name} is '{text}': {error}"))
    })
}

/// Returns the duration of a mixed run.
fn run_seconds() -> u64 {
    setting("FARLEAF_TEST_SECONDS", 2)
}

/// Returns the number of processes that a run with kills loses.
fn kill_count() -> u64 {
    setting("FARLEAF_TEST_KILLS", 10)
}

/// Seeded random numbers with upper bounds.
struct BoundedRandom(Xoshiro256PlusPlus);

impl BoundedRandom {
    fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }
}
