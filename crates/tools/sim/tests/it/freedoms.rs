//! Tests that the simulated fabric uses its freedoms: a simulator that is too kind finds nothing.

use std::cell::RefCell;
use std::rc::Rc;

use farleaf_base::random::Random;
use farleaf_base::{NodeId, WordAddr};
use farleaf_fabric::{Batch, BatchErrorKind, Endpoint};
use farleaf_sim::fabric::Freedoms;
use farleaf_sim::fabric::SharedWorld;
use farleaf_sim::fabric::endpoint::SimEndpoint;
use farleaf_sim::fabric::executor::{ExecutorOutcome, Tasks, sleep};

const WORD_COUNT: usize = 8;
const STEP_COUNT_MAX: u64 = 1 << 20;

fn wild() -> Freedoms {
    Freedoms {
        latency_min: 10,
        latency_spread: 500,
        read_torn_per_mille: 800,
        write_torn_per_mille: 800,
        tear_spread: 1_000,
        overtaken_per_mille: 500,
        pause_per_mille: 500,
        stall_per_mille: 0,
    }
}

fn at(index: u64) -> WordAddr {
    WordAddr::new(NodeId(0), index)
}

fn world(seed: u64) -> SharedWorld {
    SharedWorld::new(&[64], wild(), Random::new(seed))
}

/// Runs a program per seed and collects what it saw.
fn seen<T: 'static>(program: impl Fn(&Tasks<'_>, &SharedWorld, Rc<RefCell<Vec<T>>>)) -> Vec<T> {
    let all: Rc<RefCell<Vec<T>>> = Rc::default();
    for seed in 0..300 {
        let world = world(seed);
        let tasks = Tasks::new(&world);
        program(&tasks, &world, Rc::clone(&all));
        assert_eq!(tasks.run(STEP_COUNT_MAX), ExecutorOutcome::Done);
    }
    all.take()
}

/// Promise (FABRIC-3): a READ returns mixtures of two WRITEs, not only prefixes of the later one.
#[test]
fn reads_are_torn_in_any_order() {
    let images = seen(|tasks, world, images| {
        let (writer, reader) = (SimEndpoint::new(world), SimEndpoint::new(world));
        tasks.spawn(async move {
            let mut batch = Batch::new();
            batch.write(at(0), &[1; WORD_COUNT]);
            writer.execute(&mut batch).await.expect("inside");
        });
        tasks.spawn(async move {
            let mut batch = Batch::new();
            let image = batch.read(at(0), WORD_COUNT);
            reader.execute(&mut batch).await.expect("inside");
            images.borrow_mut().push(batch.words(image).to_vec());
        });
    });
    let is_whole = |image: &Vec<u64>| image.iter().all(|word| *word == image[0]);
    assert!(images.iter().any(is_whole), "not every READ is torn");
    let is_prefix = |image: &Vec<u64>| image.is_sorted_by(|left, right| left >= right);
    let is_suffix = |image: &Vec<u64>| image.is_sorted();
    assert!(
        images
            .iter()
            .any(|image| !is_prefix(image) && !is_suffix(image))
    );
}

/// Promise (FABRIC-2): an unfenced WRITE overtakes an earlier READ and an earlier CAS of its batch;
/// a fenced one never does; a READ never overtakes a WRITE.
#[test]
fn only_unfenced_verbs_overtake() {
    let outcomes = seen(|tasks, world, outcomes| {
        for is_fenced in [false, true] {
            let endpoint = SimEndpoint::new(world);
            let outcomes = Rc::clone(&outcomes);
            let base = if is_fenced { 32 } else { 0 };
            tasks.spawn(async move {
                let mut batch = Batch::new();
                let before = batch.read(at(base), 1);
                let swap = batch.compare_swap(at(base + 1), 0, 1);
                if is_fenced {
                    batch.fence();
                }
                batch.write(at(base), &[5, 6]);
                let after = batch.read(at(base), 1);
                endpoint.execute(&mut batch).await.expect("inside");
                let (before, after) = (batch.words(before)[0], batch.words(after)[0]);
                assert_eq!(after, 5, "a READ sees what its batch wrote before");
                let swapped = batch.previous(swap);
                outcomes
                    .borrow_mut()
                    .push((is_fenced, before == 5, swapped == 6));
            });
        }
    });
    let overtook = |fenced: bool| outcomes.iter().filter(move |outcome| outcome.0 == fenced);
    assert!(
        overtook(false).any(|outcome| outcome.1),
        "a WRITE overtakes a READ"
    );
    assert!(
        overtook(false).any(|outcome| outcome.2),
        "a WRITE overtakes a CAS"
    );
    assert!(overtook(true).all(|outcome| !outcome.1 && !outcome.2));
}

/// Promise (FABRIC-5, FABRIC-6): a fenced client leaves a prefix of its effects and parts of the
/// next WRITE, and has no effect later.
#[test]
fn a_fence_cuts_a_batch_anywhere_and_for_good() {
    let leftovers = seen(|tasks, world, leftovers| {
        let endpoint = SimEndpoint::new(world);
        let client = endpoint.client();
        let world = SharedWorld::clone(world);
        tasks.spawn(async move {
            let mut batch = Batch::new();
            batch.write(at(0), &[1, 1]);
            batch.fetch_add(at(2), 1);
            batch.write(at(3), &[1, 1, 1]);
            let first = endpoint.execute(&mut batch).await;
            let is_cut = first.is_err_and(|error| {
                assert!(matches!(error.kind(), BatchErrorKind::Unknown { .. }));
                true
            });
            let mut batch = Batch::new();
            batch.write_word(at(9), 1);
            let late = endpoint.execute(&mut batch).await;
            assert!(!is_cut || late.is_err(), "a connection does not heal");
        });
        tasks.spawn(async move {
            let pause = world.borrow_mut().random().below(3_000);
            sleep(&world, pause).await;
            world.fence(client);
            let then = world.borrow().words(at(0), 10).to_vec();
            sleep(&world, 100_000).await;
            assert_eq!(world.borrow().words(at(0), 10), then, "FABRIC-6");
            leftovers.borrow_mut().push(then);
        });
    });
    for words in &leftovers {
        let first = words[0] + words[1];
        let (add, last) = (words[2], words[3] + words[4] + words[5]);
        assert!(add == 0 || first == 2, "FABRIC-5: a prefix: {words:?}");
        assert!(
            last == 0 || (first == 2 && add == 1),
            "FABRIC-5: a prefix: {words:?}"
        );
    }
    assert!(
        leftovers.iter().any(|words| words[0] != words[1]),
        "a WRITE is cut"
    );
    let middle = |words: &Vec<u64>| words[4] == 1 && (words[3] == 0 || words[5] == 0);
    assert!(
        leftovers.iter().any(middle),
        "any of its words may be missing"
    );
    assert!(leftovers.iter().any(|words| words[0] == 0 && words[1] == 0));
    assert!(leftovers.iter().any(|words| words[9] == 1));
}

/// Promise: the same seed is exactly the same run; another seed is not.
#[test]
fn a_seed_is_a_run() {
    let print = |seed: u64| {
        let world = world(seed);
        let tasks = Tasks::new(&world);
        for number in 0..4 {
            let endpoint = SimEndpoint::new(&world);
            tasks.spawn(async move {
                let mut batch = Batch::new();
                for round in 0..20 {
                    batch.clear();
                    batch.write(at(0), &[number * 100 + round; WORD_COUNT]);
                    batch.read(at(4), WORD_COUNT);
                    endpoint.execute(&mut batch).await.expect("inside");
                }
            });
        }
        assert_eq!(tasks.run(STEP_COUNT_MAX), ExecutorOutcome::Done);
        world.borrow().fingerprint()
    };
    assert_eq!(print(7), print(7));
    assert_ne!(print(7), print(8));
}

/// Promise (FABRIC-2): verbs of one batch to different nodes have no order: either of two WRITEs
/// may be visible without the other one.
#[test]
fn writes_to_two_nodes_take_effect_in_any_order() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..300 {
        let world = SharedWorld::new(&[64, 64], wild(), Random::new(seed));
        let tasks = Tasks::new(&world);
        let (writer, places) = (
            SimEndpoint::new(&world),
            [at(0), WordAddr::new(NodeId(1), 0)],
        );
        tasks.spawn(async move {
            let mut batch = Batch::new();
            for place in places {
                batch.write_word(place, 1);
            }
            // Half of them are cut off, which leaves a prefix on each node (FABRIC-5).
            let is_whole = writer.execute(&mut batch).await.is_ok();
            assert!(is_whole || seed % 2 == 0, "nobody cut it off");
        });
        let shared = SharedWorld::clone(&world);
        tasks.spawn(async move {
            sleep(&shared, seed * 4).await;
            if seed % 2 == 0 {
                shared.break_connection(farleaf_sim::fabric::world::ClientId(0));
            }
        });
        let looker = SharedWorld::clone(&world);
        let sights: Rc<RefCell<Vec<[u64; 2]>>> = Rc::default();
        let noted = Rc::clone(&sights);
        tasks.spawn(async move {
            for _ in 0..200 {
                sleep(&looker, 10).await;
                let sight = places.map(|place| looker.borrow().words(place, 1)[0]);
                noted.borrow_mut().push(sight);
            }
        });
        tasks.run(STEP_COUNT_MAX);
        seen.extend(sights.take());
    }
    for sight in [[0, 0], [1, 0], [0, 1], [1, 1]] {
        assert!(seen.contains(&sight), "never seen: {sight:?}");
    }
}
