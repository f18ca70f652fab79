//! Random histories against a model; primaries that die at any verb.

use std::sync::atomic::Ordering;

use farleaf_lsm::Durability;
use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{Primary, ReplicaError};

use crate::world::{
    KEY_COUNT, Model, Node, Random, TestEndpoint, all, key_of, opened, primary, scanned, value_of,
};

/// What a region must have: all that was acknowledged, and perhaps what was under way.
struct History {
    acknowledged: Model,
    perhaps: Option<Model>,
}

impl History {
    /// Does one of many things; false: it was not acknowledged.
    fn step(
        &mut self,
        primary: &Primary<TestEndpoint>,
        nodes: &[Node],
        random: &mut Random,
    ) -> bool {
        let number = random.next();
        let durability = match number >> 60 {
            0..=2 => Durability::Sync,
            _ => Durability::Memory,
        };
        let key = key_of(number >> 20);
        let mut model = self.acknowledged.clone();
        let done = match number % 32 {
            0..=15 => {
                let value = value_of(number);
                model.insert(key.clone(), value.clone());
                primary.put(&key, &value, durability)
            }
            16..=20 => {
                model.remove(&key);
                primary.delete(&key, durability)
            }
            21 => {
                primary.engine().freeze();
                Ok(())
            }
            22..=27 => primary.maintain().map(|_| ()),
            28 => primary.confirm(),
            29 => primary.sync(),
            _ => {
                nodes[(number >> 8) as usize % nodes.len()].serve();
                let got = primary.get(&key);
                assert_eq!(got.ok().flatten(), self.acknowledged.get(&key).cloned());
                Ok(())
            }
        };
        match done {
            Ok(()) => self.acknowledged = model,
            Err(_) => self.perhaps = Some(model),
        }
        self.perhaps.is_none()
    }

    /// What a reader has seen is there, whatever comes.
    fn settle_seen(&mut self, seen: Model, context: &str) {
        if self.perhaps.as_ref() == Some(&seen) {
            self.acknowledged = seen;
            self.perhaps = None;
        } else {
            assert!(seen == self.acknowledged, "{context}: what is read");
        }
    }

    /// What is there now is what it comes to from now on.
    fn settle(&mut self, found: Model, context: &str) {
        let is_right = found == self.acknowledged || self.perhaps.as_ref() == Some(&found);
        assert!(is_right, "{context}: {} keys", found.len());
        self.acknowledged = found;
        self.perhaps = None;
    }
}

/// Something that ends a primary, or the way to one of its backups, at any verb or step.
fn set_fault(nodes: &[Node], random: &mut Random) {
    let faults = &nodes[random.below(nodes.len() as u64) as usize].faults;
    let after = random.below(60) as i64;
    match random.below(4) {
        0 => {}
        1 => faults.steps_left.store(after, Ordering::Release),
        _ => faults.batches_left.store(after, Ordering::Release),
    }
}

fn live_and_die(index: IndexKind, seeds: std::ops::Range<u64>) -> [u64; 3] {
    let mut counts = [0; 3];
    for seed in seeds {
        let mut random = Random(seed);
        let mut nodes: Vec<Node> = (0..3).map(|it| Node::new(seed * 10 + it)).collect();
        let mut engine = opened(&nodes[0]);
        let mut history = History {
            acknowledged: Model::new(),
            perhaps: None,
        };
        for generation in 1..4 {
            let primary = primary(engine, generation, index, &[&nodes[1], &nodes[2]]);
            let length = random.below(150);
            let context = format!("{index:?}, seed {seed}, generation {generation}");
            let mut lives = (0..length).all(|_| history.step(&primary, &nodes, &mut random));
            assert!(lives, "{context}: no fault is set");
            set_fault(&nodes[1..], &mut random);
            for _ in 0..80 {
                lives = lives && history.step(&primary, &nodes, &mut random);
            }
            counts[0] += u64::from(!lives);
            let snapshot = primary.snapshot().expect("nobody has taken over");
            let seen = scanned(&snapshot);
            // What was not acknowledged for want of a sync may be seen, and is there from then on.
            history.settle_seen(seen, &context);
            drop(snapshot);
            // The primary dies. One of the backups takes over, whichever it is: the first one
            // mostly when both have the same.
            let newest = |node: &Node| {
                let mut backup = node.backup();
                let backup = backup.as_mut().expect("it is one");
                backup.status().expect("its memory is there").log_end
            };
            let which = if random.below(3) == 0 {
                1 + random.below(2) as usize
            } else {
                1 + usize::from(newest(&nodes[2]) > newest(&nodes[1]))
            };
            let is_zombie = random.below(2) == 0;
            let zombie = is_zombie.then(|| primary.clone());
            drop(primary);
            let promoted = nodes[which].promote(generation + 1).expect("promoted");
            let found = all(&promoted);
            counts[1] += u64::from(history.perhaps.as_ref() == Some(&found));
            history.settle(found, &context);
            if let Some(zombie) = zombie {
                let put = zombie.put(b"late", b"never", Durability::Memory);
                let error = put.expect_err("somebody else is primary");
                let is_known = matches!(
                    error,
                    ReplicaError::Deposed { .. } | ReplicaError::BackupLost { .. }
                );
                assert!(is_known, "{context}: {error}");
                assert!(all(&promoted) == history.acknowledged, "{context}: zombie");
                counts[2] += 1;
            }
            let mut left = vec![nodes[which].restarted(nodes[which].storage.clone())];
            for (index, node) in nodes.iter().enumerate() {
                if index != which {
                    node.backup().take();
                    left.push(node.restarted(node.storage.clone()));
                }
            }
            nodes = left;
            engine = promoted;
        }
        assert!(KEY_COUNT > history.acknowledged.len() as u64 / 2);
    }
    counts
}

/// Promise (RP5, RP7, RP8): wherever a primary dies, at any verb of a batch, or a backup between
/// any two steps, and whichever backup is promoted, it has all that was acknowledged and at most
/// what was under way, whole; what the primary had shown to readers is there; and an old primary
/// that wakes up acknowledges nothing and changes nothing. Trees are sent.
#[test]
fn what_is_acknowledged_is_there_with_trees_sent() {
    let [died, had_more, zombies] = live_and_die(IndexKind::Sent, 0..7);
    assert!(
        died > 4 && had_more > 0 && zombies > 4,
        "{died} {had_more} {zombies}"
    );
}

/// The same where backups make their trees themselves.
#[test]
fn what_is_acknowledged_is_there_with_trees_built() {
    let [died, _, zombies] = live_and_die(IndexKind::Built, 100..105);
    assert!(died > 3 && zombies > 3, "{died} {zombies}");
}

/// The same, with many more histories: `cargo test --release -p farleaf-replica many_histories --
/// --ignored`.
#[test]
#[ignore = "takes minutes"]
fn many_histories() {
    let sent = live_and_die(IndexKind::Sent, 1_000..1_400);
    let built = live_and_die(IndexKind::Built, 2_000..2_400);
    println!("died, had more, zombies: {sent:?}, {built:?}");
}
