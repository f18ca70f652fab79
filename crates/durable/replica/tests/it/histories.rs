//! Random histories against a model; primaries that die at any verb.

use std::sync::atomic::Ordering;

use farleaf_lsm::Durability;
use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{Epoch, Primary, ReplicaError};

use crate::world::{
    KEY_COUNT, Model, Node, Random, TestEndpoint, all, assert_equal, key_of, opened, primary,
    scanned, value_of,
};

/// What a region must have: all that was acknowledged, and perhaps what was under way.
struct History {
    acknowledged: Model,
    perhaps: Option<Model>,
    /// The primary's.
    epoch: u64,
    raised_count: u64,
}

impl History {
    /// Does one of many things; false: it was not acknowledged.
    fn step(
        &mut self,
        primary: &Primary<TestEndpoint>,
        nodes: &[Node],
        random: &mut Random,
    ) -> bool {
        if random.below(24) == 0 {
            return self.raise(primary, nodes, random).is_ok();
        }
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

    /// RP12: the primary goes on at the next epoch; some of the backups are raised before, some
    /// later, some when the next epoch comes. RP13: at times it stops before.
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
            primary.stop();
            let refused = primary.put(b"stopped", b"never", Durability::Memory);
            assert!(matches!(refused, Err(ReplicaError::Stopped)), "{refused:?}");
        }
        of_time(0).for_each(|(node, _)| raise(node));
        if of_time(0).next().is_some() && random.below(2) == 0 {
            // It finds the later epoch, unless it has stopped, and is not acknowledged.
            let (key, value) = (key_of(random.next()), value_of(random.next()));
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
        // What was not acknowledged is in the log, and is with this.
        let synced = primary.sync();
        if synced.is_ok() {
            self.acknowledged = self.perhaps.take().unwrap_or(self.acknowledged.clone());
            self.raised_count += 1;
        } else {
            self.perhaps.get_or_insert(self.acknowledged.clone());
        }
        synced
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

/// The backup that takes over, whichever it is: the first one mostly when both have the same.
fn heir(nodes: &[Node], random: &mut Random) -> usize {
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

/// Makes all of the log durable everywhere, and compares the files of all replicas.
fn assert_equal_at_rest(primary: &Primary<TestEndpoint>, nodes: &[Node], index: IndexKind) {
    let storages: Vec<_> = nodes.iter().map(Node::shared_storage).collect();
    assert_equal(primary, &storages[0], (&storages[1..], index));
}

fn live_and_die(index: IndexKind, seeds: std::ops::Range<u64>) -> [u64; 5] {
    let mut counts = [0; 5];
    for seed in seeds {
        let mut random = Random(seed);
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
            let kept = backups.iter().filter(|it| it.kept_size_bytes > 0);
            counts[4] += kept.count() as u64;
            let length = random.below(150);
            let context = format!("{index:?}, seed {seed}, generation {generation}");
            let mut lives = (0..length).all(|_| history.step(&primary, &nodes, &mut random));
            assert!(lives, "{context}: no fault is set");
            // The others go on with what is not durable, or not in trees, yet.
            if (seed + generation).is_multiple_of(2) {
                assert_equal_at_rest(&primary, &nodes, index);
            }
            set_fault(&nodes[1..], &mut random);
            for _ in 0..80 {
                lives = lives && history.step(&primary, &nodes, &mut random);
            }
            counts[0] += u64::from(!lives);
            let snapshot = primary.snapshot().expect("nobody has taken over");
            // What was not acknowledged for want of a sync may be seen, and is there from then on.
            history.settle_seen(scanned(&snapshot), &context);
            drop(snapshot);
            // The primary dies.
            let which = heir(&nodes, &mut random);
            let is_zombie = random.below(2) == 0;
            let zombie = is_zombie.then(|| primary.clone());
            drop(primary);
            // Some epochs are given to the old primary, which does not learn it in time.
            let missed = Epoch(history.epoch + 1);
            history.epoch += 1 + random.below(2);
            let promoted = nodes[which].promote(history.epoch).expect("promoted");
            let found = all(&promoted);
            counts[1] += u64::from(history.perhaps.as_ref() == Some(&found));
            history.settle(found, &context);
            if let Some(zombie) = zombie {
                if missed.0 < history.epoch {
                    // It may not reach the one that was promoted.
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

/// Promise (RP5, RP7, RP8): wherever a primary dies, at any verb of a batch, or a backup between
/// any two steps, and whichever backup is promoted, it has all that was acknowledged and at most
/// what was under way, whole; what the primary had shown to readers is there; and an old primary
/// that wakes up acknowledges nothing and changes nothing. RP14: also where what backups had is
/// kept. RP12, RP13: also where primaries go on
/// at later epochs, or stop and go on, whichever of the two sides is first. Trees are sent.
#[test]
fn what_is_acknowledged_is_there_with_trees_sent() {
    let [died, had_more, zombies, raised, kept] = live_and_die(IndexKind::Sent, 0..7);
    assert!(
        died > 4 && had_more > 0 && zombies > 4 && raised > 30 && kept > 6,
        "{died} {had_more} {zombies} {raised} {kept}"
    );
}

/// The same where backups make their trees themselves.
#[test]
fn what_is_acknowledged_is_there_with_trees_built() {
    let [died, _, zombies, raised, _] = live_and_die(IndexKind::Built, 100..105);
    assert!(
        died > 3 && zombies > 3 && raised > 20,
        "{died} {zombies} {raised}"
    );
}

/// The same, with many more histories: `cargo test --release -p farleaf-replica many_histories --
/// --ignored`.
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
