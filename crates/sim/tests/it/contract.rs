//! The conformance suite over the simulated fabric, calm and wild.

use std::rc::Rc;

use farleaf_fabric::conformance::{Backend, Client, REGION_WORD_COUNT_MIN, run_all};
use farleaf_sim::fabric::Freedoms;
use farleaf_sim::fabric::endpoint::SimEndpoint;
use farleaf_sim::fabric::executor::{Ended, Tasks};
use farleaf_sim::fabric::world::{SharedWorld, World};
use farleaf_sim::random::Random;

/// More than any case of the suite needs.
const STEP_COUNT_MAX: u64 = 1 << 32;

struct Simulated {
    world: SharedWorld,
}

impl Simulated {
    fn new(freedoms: Freedoms, seed: u64) -> Self {
        let size = REGION_WORD_COUNT_MIN as usize;
        Self {
            world: World::new(&[size], freedoms, Random::new(seed)),
        }
    }
}

impl Backend for Simulated {
    type Endpoint = SimEndpoint;

    fn region_word_count(&self) -> u64 {
        REGION_WORD_COUNT_MIN
    }

    fn run(&self, clients: Vec<Client<'_, SimEndpoint>>) {
        let tasks = Tasks::new(&self.world);
        for client in clients {
            let endpoint = Rc::new(SimEndpoint::new(&self.world));
            tasks.spawn(client(endpoint));
        }
        assert_eq!(tasks.run(STEP_COUNT_MAX), Ended::Done);
    }
}

#[test]
fn a_calm_world_keeps_the_contract() {
    run_all(|| Simulated::new(Freedoms::CALM, 1));
}

/// With everything torn, overtaken and late that may be.
#[test]
fn a_wild_world_keeps_the_contract() {
    let wild = Freedoms {
        latency_min: 10,
        latency_spread: 5_000,
        read_torn_per_mille: 500,
        write_torn_per_mille: 500,
        tear_spread: 2_000,
        overtaken_per_mille: 500,
        pause_per_mille: 300,
        stall_per_mille: 0,
    };
    run_all(|| Simulated::new(wild, 2));
}
