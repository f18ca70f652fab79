//! Backups that keep identical pieces when another primary fills them (REPLICATION-14).

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
        let number = random.bits();
        let (key, value) = (key_of(number >> 20), value_of(number));
        let put = primary.put(&key, &value, Durability::Memory);
        put.expect("no fault is set");
        model.insert(key, value);
        if number.is_multiple_of(3) {
            primary.maintain().expect("no fault is set");
        }
    }
}

/// Returns a primary at epoch 2, promoted after the first one was lost; the other backup, whose
/// copy in force is complete, waiting to be filled; and the acknowledged records.
fn promoted_primary(seed: u64) -> (Primary<TestEndpoint>, Node, Model) {
    let mut random = Random::new(seed);
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
    let promoted_primary =
        Primary::new(engine, farleaf_replica::Epoch(2), options(IndexKind::Sent));
    other.become_backup(2);
    (promoted_primary, other, model)
}

fn link(primary: &Primary<TestEndpoint>) -> LinkStatus {
    primary.status().backups.remove(0)
}

/// Hardly anything is sent to a backup that was complete, or to one that was the primary and did
/// not write meanwhile. Differences are sent, and a promoted backup has everything
/// (REPLICATION-14).
#[test]
fn only_what_differs_is_sent() {
    let (primary, other, mut model) = promoted_primary(2);
    primary
        .add_backup(BackupId(1), other.connections())
        .expect("filled");
    other.put_in_force();
    let first = link(&primary);
    // At most the segment in which the log had ended.
    assert!(first.index_size_bytes <= 2 << 20, "{first:?}");
    assert!(first.kept_size_bytes > 4 << 20, "{first:?}");
    let kept_size_bytes = other
        .backup()
        .as_mut()
        .expect("one")
        .counts()
        .kept_size_bytes;
    assert!(
        kept_size_bytes > 0 && kept_size_bytes <= first.kept_size_bytes,
        "{kept_size_bytes}"
    );
    work(&primary, &mut model, &mut Random::new(2), 40);
    let backup = other.backup().take().expect("it is one");
    backup.retire().expect("all of it is kept");
    primary.remove_backup(BackupId(1)).expect("it was one");
    // The backup misses some writes.
    let again = other.restarted(other.storage.clone());
    work(&primary, &mut model, &mut Random::new(3), 40);
    again.become_backup(2);
    primary
        .add_backup(BackupId(2), again.connections())
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

/// A backup is filled with reuse of its previous copy, and the connection ends at any batch, or the
/// backup stops serving at any step. Its copy in force stays complete; if it was filled, the new
/// copy is complete (REPLICATION-14).
#[test]
fn adoption_can_fail_anywhere() {
    let mut counts = [0; 2];
    for seed in 0..40 {
        let (primary, other, mut model) = promoted_primary(seed % 4);
        let before = model.clone();
        let mut random = Random::new(seed);
        let after = random.below(40) as i64;
        let faults = &other.faults;
        if random.below(3) == 0 {
            faults.steps_left.store(after, Ordering::Release);
        } else {
            faults.batches_left.store(after, Ordering::Release);
        }
        let is_filled = primary.add_backup(BackupId(1), other.connections()).is_ok();
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

/// A backup loses power at any operation while it is filled with reuse of its previous copy, or
/// while the new copy is put in force. One of the two copies is complete (REPLICATION-14).
#[test]
fn adoption_survives_a_loss_of_power() {
    let mut counts = [0; 2];
    for seed in 0..20 {
        let (primary, other, model) = promoted_primary(seed % 4);
        let mut random = Random::new(seed);
        let at = other.storage.operation_count() + 1 + random.below(64);
        other.storage.cut_power_at(at);
        let filled = primary.add_backup(BackupId(1), other.connections());
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
