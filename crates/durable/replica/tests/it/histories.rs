//! Random histories compared with a model; primaries that end at any verb.

use std::sync::atomic::Ordering;

use farleaf_lsm::Durability;
use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{Epoch, Primary, ReplicaError};

use crate::world::{
    KEY_COUNT, Model, Node, Random, TestEndpoint, all, assert_equal, key_of, opened, primary,
    scanned, value_of,
};

/// Content that a region must have: everything acknowledged, and possibly writes in progress.
struct History {
    acknowledged: Model,
    perhaps: Option<Model>,
    /// Epoch of the primary.
    epoch: u64,
    raised_count: u64,
}

impl History {
    /// Does one random operation; returns false if it was not acknowledged.
    fn step(
        &mut self,
        primary: &Primary<TestEndpoint>,
        nodes: &[Node],
        random: &mut Random,
    ) -> bool {
        if random.below(24) == 0 {
            return self.raise(primary, nodes, random).is_ok();
        }
        let number = random.bits();
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

    /// Raises the primary to the next epoch (REPLICATION-12). Some backups are raised before, some
    /// after, some with the next epoch. Sometimes the primary stops before (REPLICATION-13).
    fn raise(
        &mut self,
        primary: &Primary<TestEndpoint>,
        nodes: &[Node],
        random: &mut Random,
    ) -> Result<(), ReplicaError> {
        let next = Epoch(self.epoch + 1);
        let raise = |node: &Node| {
            let mut backup = node.backup();
            let backup = backup.as_mut().expect("it is one");
            backup.raise(next).expect("its memory is there");
        };
        let when: Vec<u64> = nodes[1..].iter().map(|_| random.below(3)).collect();
        let of_time = |time| nodes[1..].iter().zip(&when).filter(move |it| *it.1 == time);
        if random.below(3) == 0 {
            primary.stop(next);
            let refused = primary.put(b"stopped", b"never", Durability::Memory);
            assert!(matches!(refused, Err(ReplicaError::Stopped)), "{refused:?}");
        }
        of_time(0).for_each(|(node, _)| raise(node));
        if of_time(0).next().is_some() && random.below(2) == 0 {
            // It finds the later epoch, unless it has stopped, and is not acknowledged.
            let (key, value) = (key_of(random.bits()), value_of(random.bits()));
            let put = primary.put(&key, &value, Durability::Memory);
            let error = put.expect_err("a backup is of the next epoch");
            if !matches!(error, ReplicaError::Stopped) {
                let mut model = self.acknowledged.clone();
                model.insert(key, value);
                self.perhaps = Some(model);
            }
        }
        primary.raise(next).expect("nobody else is of it");
        self.epoch += 1;
        assert_eq!(primary.status().epoch, next);
        of_time(1).for_each(|(node, _)| raise(node));
        // Unacknowledged writes are in the log, and are replicated with this.
        let synced = primary.sync();
        if synced.is_ok() {
            self.acknowledged = self.perhaps.take().unwrap_or(self.acknowledged.clone());
            self.raised_count += 1;
        } else {
            self.perhaps.get_or_insert(self.acknowledged.clone());
        }
        synced
    }

    /// Data that a reader has seen stay, whatever happens.
    fn settle_seen(&mut self, seen: Model, context: &str) {
        if self.perhaps.as_ref() == Some(&seen) {
            self.acknowledged = seen;
            self.perhaps = None;
        } else {
            assert!(seen == self.acknowledged, "{context}: what is read");
        }
    }

    /// The present content is the base from now on.
    fn settle(&mut self, found: Model, context: &str) {
        let is_right = found == self.acknowledged || self.perhaps.as_ref() == Some(&found);
        assert!(is_right, "{context}: {} keys", found.len());
        self.acknowledged = found;
        self.perhaps = None;
    }
}

/// Sets a fault that ends a primary, or the connection to one of its backups, at any verb or step.
fn set_fault(nodes: &[Node], random: &mut Random) {
    let faults = &nodes[random.below(nodes.len() as u64) as usize].faults;
    let after = random.below(60) as i64;
    match random.below(4) {
        0 => {}
        1 => faults.steps_left.store(after, Ordering::Release),
        _ => faults.batches_left.store(after, Ordering::Release),
    }
}

/// Chooses the backup to promote: usually the first one if both have the same data.
fn chosen_backup(nodes: &[Node], random: &mut Random) -> usize {
    let newest = |node: &Node| {
        let mut backup = node.backup();
        let backup = backup.as_mut().expect("it is one");
        backup.status().expect("its memory is there").log_end
    };
    if random.below(3) == 0 {
        1 + random.below(2) as usize
    } else {
        1 + usize::from(newest(&nodes[2]) > newest(&nodes[1]))
    }
}

/// Makes the whole log durable on all replicas, and compares their files.
fn assert_equal_at_rest(primary: &Primary<TestEndpoint>, nodes: &[Node], index: IndexKind) {
    let storages: Vec<_> = nodes.iter().map(Node::shared_storage).collect();
    assert_equal(primary, &storages[0], &storages[1..], index);
}

fn live_and_die(index: IndexKind, seeds: std::ops::Range<u64>) -> [u64; 5] {
    let mut counts = [0; 5];
    for seed in seeds {
        let mut random = Random::new(seed);
        let mut nodes: Vec<Node> = (0..3).map(|it| Node::new(seed * 10 + it)).collect();
        let mut engine = opened(&nodes[0]);
        let mut history = History {
            acknowledged: Model::new(),
            perhaps: None,
            epoch: 1,
            raised_count: 0,
        };
        for generation in 1..4 {
            let of = [&nodes[1], &nodes[2]];
            let primary = primary(engine, history.epoch, index, &of);
            let backups = primary.status().backups;
            let adopters = backups.iter().filter(|it| it.kept_size_bytes > 0);
            counts[4] += adopters.count() as u64;
            let length = random.below(150);
            let context = format!("{index:?}, seed {seed}, generation {generation}");
            let mut lives = (0..length).all(|_| history.step(&primary, &nodes, &mut random));
            assert!(lives, "{context}: no fault is set");
            // The other histories continue with data that are not durable, or not in trees, yet.
            if (seed + generation).is_multiple_of(2) {
                assert_equal_at_rest(&primary, &nodes, index);
            }
            set_fault(&nodes[1..], &mut random);
            for _ in 0..80 {
                lives = lives && history.step(&primary, &nodes, &mut random);
            }
            counts[0] += u64::from(!lives);
            let snapshot = primary.snapshot().expect("nobody has taken over");
            // Writes that were not acknowledged because of a failed sync may be seen, and stay from
            // then on.
            history.settle_seen(scanned(&snapshot), &context);
            drop(snapshot);
            // The primary is lost.
            let which = chosen_backup(&nodes, &mut random);
            let is_zombie = random.below(2) == 0;
            let zombie = is_zombie.then(|| primary.clone());
            drop(primary);
            // The old primary is given some epochs, but does not learn that in time.
            let missed = Epoch(history.epoch + 1);
            history.epoch += 1 + random.below(2);
            let promoted = nodes[which].promote(history.epoch).expect("promoted");
            let found = all(&promoted);
            counts[1] += u64::from(history.perhaps.as_ref() == Some(&found));
            history.settle(found, &context);
            if let Some(zombie) = zombie {
                if missed.0 < history.epoch {
                    // It must not reach the epoch of the promoted replica.
                    let _ = zombie.raise(missed);
                }
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
        counts[3] += history.raised_count;
        assert!(KEY_COUNT > history.acknowledged.len() as u64 / 2);
    }
    counts
}

/// A primary is lost at any verb of a batch, or a backup between any two steps, and any backup is
/// promoted. It has everything acknowledged, and at most the complete writes in progress. What
/// readers of the primary had seen is present. An old primary that wakes up acknowledges nothing
/// and changes nothing (REPLICATION-5, REPLICATION-7, REPLICATION-8).
///
/// Histories include backups that keep pieces of their previous copies (REPLICATION-14), and
/// primaries that continue at later epochs, or stop and continue, with either side first
/// (REPLICATION-12, REPLICATION-13). Trees are sent.
#[test]
fn what_is_acknowledged_is_there_with_trees_sent() {
    let [died, had_more, zombies, raised, adopters] = live_and_die(IndexKind::Sent, 0..7);
    assert!(
        died > 4 && had_more > 0 && zombies > 4 && raised > 30 && adopters > 6,
        "{died} {had_more} {zombies} {raised} {adopters}"
    );
}

/// Runs the same histories with backups that build their trees.
#[test]
fn what_is_acknowledged_is_there_with_trees_built() {
    let [died, _, zombies, raised, _] = live_and_die(IndexKind::Built, 100..105);
    assert!(
        died > 3 && zombies > 3 && raised > 20,
        "{died} {zombies} {raised}"
    );
}

/// Runs many more histories: `cargo test --release -p farleaf-replica many_histories -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn many_histories() {
    for part in 0..20 {
        let seeds = |from: u64| from + part * 20..from + part * 20 + 20;
        let sent = live_and_die(IndexKind::Sent, seeds(1_000));
        let built = live_and_die(IndexKind::Built, seeds(2_000));
        println!("{part}: died, had more, zombies, raised, kept: {sent:?}, {built:?}");
    }
}
