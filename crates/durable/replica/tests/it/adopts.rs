//! Backups that keep what they have when another primary fills them (RP14).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farleaf_lsm::Durability;
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::storage::{PowerLoss, Storage};
use farleaf_replica::{BackupId, LinkStatus, Primary, promote_directory};

use crate::world::{
    Model, Node, Random, TestEndpoint, all, engine_options, key_of, opened, options, primary,
    value_of,
};

fn work(primary: &Primary<TestEndpoint>, model: &mut Model, random: &mut Random, count: u64) {
    for _ in 0..count {
        let number = random.next();
        let (key, value) = (key_of(number >> 20), value_of(number));
        let put = primary.put(&key, &value, Durability::Memory);
        put.expect("no fault is set");
        model.insert(key, value);
        if number.is_multiple_of(3) {
            primary.maintain().expect("no fault is set");
        }
    }
}

/// A primary at epoch 2 that was the backup of another one, which has died; the other backup, whose
/// copy in force has all, and which waits to be filled; and what was acknowledged.
fn heir(seed: u64) -> (Primary<TestEndpoint>, Node, Model) {
    let mut random = Random(seed);
    let nodes: Vec<Node> = (0..3).map(|it| Node::new(seed * 10 + it)).collect();
    let first = primary(
        opened(&nodes[0]),
        1,
        IndexKind::Sent,
        &[&nodes[1], &nodes[2]],
    );
    let mut model = Model::new();
    work(&first, &mut model, &mut random, 120);
    drop(first);
    let engine = nodes[1].promote(2).expect("promoted");
    let backup = nodes[2].backup().take().expect("it is one");
    backup.retire().expect("all of it is kept");
    let other = nodes[2].restarted(nodes[2].storage.clone());
    let heir = Primary::new(engine, farleaf_replica::Epoch(2), options(IndexKind::Sent));
    other.become_backup(2);
    (heir, other, model)
}

fn link(primary: &Primary<TestEndpoint>) -> LinkStatus {
    primary.status().backups.remove(0)
}

/// Promise (RP14): of a backup that had everything hardly anything is sent, and of one that was the
/// primary, and did not write meanwhile, neither; what differs is, and what is promoted then has
/// everything.
#[test]
fn only_what_differs_is_sent() {
    let (primary, other, mut model) = heir(1);
    primary
        .add_backup(BackupId(1), other.ways())
        .expect("filled");
    other.put_in_force();
    let first = link(&primary);
    // At the most the segment in which the log had ended.
    assert!(first.index_size_bytes <= 2 << 20, "{first:?}");
    assert!(first.kept_size_bytes > 4 << 20, "{first:?}");
    let kept = other
        .backup()
        .as_mut()
        .expect("one")
        .counts()
        .kept_size_bytes;
    assert!(kept > 0 && kept <= first.kept_size_bytes, "{kept}");
    work(&primary, &mut model, &mut Random(2), 40);
    let backup = other.backup().take().expect("it is one");
    backup.retire().expect("all of it is kept");
    primary.remove_backup(BackupId(1)).expect("it was one");
    // It misses some.
    let again = other.restarted(other.storage.clone());
    work(&primary, &mut model, &mut Random(3), 40);
    again.become_backup(2);
    primary
        .add_backup(BackupId(2), again.ways())
        .expect("filled");
    let second = link(&primary);
    assert!(second.index_size_bytes > 0, "{second:?}");
    assert!(
        second.kept_size_bytes > second.index_size_bytes,
        "{second:?}"
    );
    drop(primary);
    assert!(all(&again.promote(3).expect("promoted")) == model);
}

/// Promise (RP14, RS1): wherever the way to a backup ends that is filled with what it has, or that
/// one stops serving, its copy in force has all that it had; if it was filled, the new one has all.
#[test]
fn adoption_can_fail_anywhere() {
    let mut counts = [0; 2];
    for seed in 0..24 {
        let (primary, other, mut model) = heir(seed % 4);
        let before = model.clone();
        let mut random = Random(seed);
        let after = random.below(40) as i64;
        let faults = &other.faults;
        if random.below(3) == 0 {
            faults.steps_left.store(after, Ordering::Release);
        } else {
            faults.batches_left.store(after, Ordering::Release);
        }
        let is_filled = primary.add_backup(BackupId(1), other.ways()).is_ok();
        counts[usize::from(is_filled)] += 1;
        if is_filled {
            faults.steps_left.store(i64::MAX, Ordering::Release);
            faults.batches_left.store(i64::MAX, Ordering::Release);
            other.put_in_force();
            work(&primary, &mut model, &mut random, 20);
            drop(primary);
            assert!(
                all(&other.promote(3).expect("promoted")) == model,
                "seed {seed}"
            );
            continue;
        }
        other.backup().take();
        let engine = promote_directory(other.shared_storage(), engine_options());
        let engine = engine.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(all(&engine) == before, "seed {seed}");
    }
    assert!(counts.iter().all(|it| *it > 2), "{counts:?}");
}

/// Promise (RP14, RS1): wherever the power of a backup goes that is filled with what it has, or
/// that puts it in force, one of the two copies has everything.
#[test]
fn adoption_survives_a_loss_of_power() {
    let mut counts = [0; 2];
    for seed in 0..20 {
        let (primary, other, model) = heir(seed % 4);
        let mut random = Random(seed);
        let at = other.storage.operation_count() + 1 + random.below(64);
        other.storage.cut_power_at(at);
        let filled = primary.add_backup(BackupId(1), other.ways());
        if filled.is_ok() {
            other.put_in_force();
        }
        counts[usize::from(filled.is_ok())] += 1;
        drop(primary);
        other.backup().take();
        let left = other.restarted(other.storage.lose_power(PowerLoss::Any));
        let storage: Arc<dyn Storage> = left.shared_storage();
        let engine = promote_directory(storage, engine_options());
        let engine = engine.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(all(&engine) == model, "seed {seed}, {filled:?}");
    }
    assert!(counts.iter().all(|it| *it > 2), "{counts:?}");
}
