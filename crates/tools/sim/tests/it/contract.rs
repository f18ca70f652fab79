//! Conformance suite of fabrics, run on the simulated fabric with and without its freedoms.

use std::rc::Rc;

use farleaf_base::random::Random;
use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::conformance::{Backend, Client, MEMORY_WORD_COUNT_MIN, run_all};
use farleaf_fabric::{Batch, Cost, Endpoint};
use farleaf_sim::fabric::Freedoms;
use farleaf_sim::fabric::SharedWorld;
use farleaf_sim::fabric::endpoint::{SimEndpoint, StillEndpoint};
use farleaf_sim::fabric::executor::{ExecutorOutcome, Tasks};

/// Step limit: more than any case of the suite needs.
const STEP_COUNT_MAX: u64 = 1 << 32;

struct Simulated {
    world: SharedWorld,
}

impl Simulated {
    fn new(freedoms: Freedoms, seed: u64) -> Self {
        let size = MEMORY_WORD_COUNT_MIN as usize;
        Self {
            world: SharedWorld::new(&[size], freedoms, Random::new(seed)),
        }
    }
}

impl Backend for Simulated {
    type Endpoint = SimEndpoint;

    fn memory_word_count(&self) -> u64 {
        MEMORY_WORD_COUNT_MIN
    }

    fn run(&self, clients: Vec<Client<'_, SimEndpoint>>) {
        let tasks = Tasks::new(&self.world);
        for client in clients {
            let endpoint = Rc::new(SimEndpoint::new(&self.world));
            tasks.spawn(client(endpoint));
        }
        assert_eq!(tasks.run(STEP_COUNT_MAX), ExecutorOutcome::Done);
    }
}

#[test]
fn a_calm_world_keeps_the_contract() {
    run_all(|| Simulated::new(Freedoms::CALM, 1));
}

const WILD: Freedoms = Freedoms {
    latency_min: 10,
    latency_spread: 5_000,
    read_torn_per_mille: 500,
    write_torn_per_mille: 500,
    tear_spread: 2_000,
    overtaken_per_mille: 500,
    pause_per_mille: 300,
    stall_per_mille: 0,
};

/// Promise: a fabric with everything torn, overtaken and late keeps the contract.
#[test]
fn a_wild_world_keeps_the_contract() {
    run_all(|| Simulated::new(WILD, 2));
}

/// Promise (FABRIC-9): endpoints report the cost that the simulator counts, for batches that are
/// torn or not, to one node or two, refused in the middle or not.
#[test]
fn the_world_counts_what_endpoints_count() {
    let post = |batch: &mut Batch, is_refused: bool| {
        let at = |node, index| WordAddr::new(NodeId(node), index);
        batch.clear();
        batch.read(at(0, 0), 20);
        batch.write(at(1, 8), &[3; 9]);
        batch.write(at(0, 3), &[]);
        if is_refused {
            batch.read(at(1, 60), 5);
        }
        batch.compare_swap(at(0, 1), 0, 1);
        batch.fetch_add(at(1, 2), 1);
    };
    let once = |is_refused: bool| Cost {
        round_trips: 1,
        doorbells: 2,
        verbs: 5 + u64::from(is_refused),
        bytes_read: 160,
        bytes_written: 72,
        atomics: if is_refused { 0 } else { 2 },
        ..Cost::default()
    };
    for is_refused in [false, true] {
        for seed in 0..50 {
            let world = SharedWorld::new(&[64, 64], WILD, Random::new(seed));
            let tasks = Tasks::new(&world);
            let endpoint = SimEndpoint::new(&world);
            let client = endpoint.client();
            tasks.spawn(async move {
                let mut batch = Batch::new();
                post(&mut batch, is_refused);
                assert_eq!(endpoint.execute(&mut batch).await.is_err(), is_refused);
                assert_eq!(batch.take_cost(), once(is_refused));
            });
            assert_eq!(tasks.run(STEP_COUNT_MAX), ExecutorOutcome::Done);
            assert_eq!(world.borrow().executed(client), once(is_refused));
        }
        let world = SharedWorld::new(&[64, 64], WILD, Random::new(1));
        let still = StillEndpoint::new(&world);
        let mut batch = Batch::new();
        post(&mut batch, is_refused);
        assert_eq!(
            block_on(still.execute(&mut batch), || 0).is_err(),
            is_refused
        );
        assert_eq!(batch.take_cost(), once(is_refused));
        assert_eq!(world.borrow().executed(still.client()), once(is_refused));
    }
}
