//! What the library promises when several processes share a pool, and when they are killed.
//!
//! Processes reach the pool by shm or by tcp; most runs are made both ways. Whoever checks looks at
//! the memory itself, by shm.
//!
//! Under `cargo test` a short version runs. The full one, as the project promises it:
//!
//! ```text
//! FARLEAF_TEST_SECONDS=60 FARLEAF_TEST_KILLS=100 \
//!     cargo test --release -p farleaf --test processes -- --test-threads=1 --nocapture
//! ```
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `FARLEAF_TEST_SECONDS` | how long each mixed run takes | 2 |
//! | `FARLEAF_TEST_KILLS` | how many processes each run with kills loses | 10 |
//!
//! | module | what it holds |
//! |---|---|
//! | `children` | the processes that tests start |
//! | `node` | the memory node among them, which serves by shm and by tcp at once |
//! | `journal` | what workers acknowledged, in files that outlive them |
//! | `worker` | mixed operations on one table |
//! | `crew` | workers that are started, killed and replaced |
//! | `check` | the full check of a table and of the pool's memory |
//! | `mixed` | the runs with and without kills |
//! | `loads` | loads and drops whose processes are killed, and readers beside them |
//! | `node_death` | what is left when the memory node is killed, and what clients by tcp are told |
//! | `bad_network` | delay, loss and a cut network, by the system's own means |
//! | `barred` | a session that its home has fenced, at the guests, over verbs |
//! | `drained` | one of several nodes drained under load, over verbs |
//! | `guest_death` | what is left when one of several nodes is killed, or stopped |
//! | `stopped` | a client by tcp that was given up, and goes on later |
//! | `readers` | clients by tcp that may only read |
//! | `raw_session` | a session that holds locks |
//! | `reuse` | what a sweep may give back |
//! | `deaths` | clients that die faster than the memory node looks |

mod bad_network;
mod barred;
mod check;
mod children;
mod crew;
mod deaths;
mod drained;
mod guest_death;
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

use std::time::Duration;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// No operation of a living process may take longer, whoever is killed beside it.
const STALL_MAX: Duration = Duration::from_secs(5);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|error| panic!("{name} is '{text}': {error}"))
    })
}

/// How long a mixed run takes.
fn run_seconds() -> u64 {
    setting("FARLEAF_TEST_SECONDS", 2)
}

/// How many processes a run with kills loses.
fn kill_count() -> u64 {
    setting("FARLEAF_TEST_KILLS", 10)
}

/// Seeded numbers below bounds.
struct Dice(Xoshiro256PlusPlus);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.next_u64() % bound
    }
}
