//! Power failure of all replicas.

use std::sync::Arc;

use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::storage::{PowerLoss, Storage};
use farleaf_lsm::{Durability, Engine, LsmError};
use farleaf_replica::{BackupId, promote_directory};

use crate::world::{Model, Node, Random, all, engine_options, key_of, opened, primary, value_of};

/// All replicas lose power at any moment. Each directory then has everything acknowledged as
/// `Sync`, and a state that existed at some moment. It becomes the primary of the others
/// (REPLICATION-7).
#[test]
fn what_is_synced_survives_the_loss_of_all() {
    let mut found_counts = [0; 3];
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let index = [IndexKind::Sent, IndexKind::Built][(seed % 2) as usize];
        let nodes: Vec<Node> = (0..3).map(|it| Node::new(seed * 10 + it)).collect();
        let primary = primary(opened(&nodes[0]), 1, index, &[&nodes[1], &nodes[2]]);
        let cut = random.below(3) as usize;
        let at = nodes[cut].storage.operation_count() + 1 + random.below(90);
        nodes[cut].storage.cut_power_at(at);
        // States since the last one that is durable on all replicas.
        let mut states = vec![Model::new()];
        for _ in 0..160 {
            let number = random.bits();
            let key = key_of(number >> 20);
            let mut model = states.last().expect("one is durable").clone();
            let durability = match number >> 60 {
                0..=3 => Durability::Sync,
                _ => Durability::Memory,
            };
            let done = match number % 16 {
                0..=9 => {
                    let value = value_of(number);
                    model.insert(key.clone(), value.clone());
                    primary.put(&key, &value, durability)
                }
                10 | 11 => {
                    model.remove(&key);
                    primary.delete(&key, durability)
                }
                _ => {
                    let _ = primary.maintain();
                    let node = &nodes[1 + (number >> 8) as usize % 2];
                    node.serve();
                    // Also writes log without a sync (REPLICATION-16).
                    let _ = primary.engine().log().write_tail(&mut Vec::new());
                    let _ = node.tail().write();
                    continue;
                }
            };
            states.push(model);
            if done.is_err() {
                break;
            }
            if durability == Durability::Sync {
                drop(states.drain(..states.len() - 1));
            }
        }
        drop(primary);
        for (which, node) in nodes.iter().enumerate() {
            node.backup().take();
            let left = node.storage.lose_power(PowerLoss::Any);
            let storage: Arc<dyn Storage> = Arc::new(left.clone());
            let context = format!("{index:?}, seed {seed}, node {which}, power cut at {cut}");
            let engine = if which == 0 {
                Engine::open(storage, engine_options()).map_err(Into::into)
            } else {
                let early = Engine::open(Arc::clone(&storage), engine_options());
                assert!(matches!(early, Err(LsmError::Follows { .. })), "{context}");
                promote_directory(storage, engine_options())
            };
            let engine = engine.unwrap_or_else(|error| panic!("{context}: {error}"));
            let found = all(&engine);
            let state = states.iter().position(|state| *state == found);
            assert!(state.is_some(), "{context}: {} keys", found.len());
            found_counts[which] += usize::from(state > Some(0));
            assert_goes_on(engine, which, index, &found, &context);
        }
    }
    assert!(
        found_counts.iter().all(|count| *count > 0),
        "{found_counts:?}"
    );
}

/// Another thread writes a backup's buffers to its device although the backup itself does nothing
/// and the log is longer than all buffers. When the processes of both end then, each directory has
/// everything (REPLICATION-16).
#[test]
fn the_end_of_the_log_outlives_all_processes() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let nodes: Vec<Node> = (0..2).map(Node::new).collect();
        let primary = primary(opened(&nodes[0]), 1, index, &[&nodes[1]]);
        let mut tail = nodes[1].tail();
        let mut model = Model::new();
        let mut buffer = Vec::new();
        for number in 0..1_500_u64 {
            let (key, value) = (key_of(number * 7 % 1_000), vec![number as u8; 8_000]);
            let put = primary.put(&key, &value, Durability::Memory);
            put.expect("the backup need not do anything");
            model.insert(key, value);
            assert!(tail.write().expect("written"), "{number}");
        }
        let log = primary.engine().log();
        assert!(log.write_tail(&mut buffer).expect("written"));
        let status = nodes[1].backup().as_mut().expect("one").status();
        let status = status.expect("its memory is there");
        assert_eq!(status.written_to, primary.log_end());
        assert!(status.synced_to < status.written_to, "nothing was synced");
        drop(primary);
        nodes[1].backup().take();
        assert!(tail.is_over());
        assert!(!tail.write().expect("nothing is left to be done"));
        let storage = nodes[0].shared_storage();
        let engine = Engine::open(storage, engine_options()).expect("it is whole");
        assert!(all(&engine) == model, "{index:?}");
        let engine = promote_directory(nodes[1].shared_storage(), engine_options());
        assert!(all(&engine.expect("it is whole")) == model, "{index:?}");
    }
}

/// Checks that a recovered engine becomes the primary of a backup, which has the same content.
fn assert_goes_on(engine: Engine, which: usize, index: IndexKind, found: &Model, context: &str) {
    let backup = Node::new(which as u64);
    let primary = primary(engine, 2, index, &[&backup]);
    primary
        .put(b"more", b"", Durability::Sync)
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    let status = primary.status();
    assert_eq!(status.backups[0].backup, BackupId(1));
    assert!(
        status.backups[0].synced_to >= status.replicated_to,
        "{status:?}"
    );
    drop(primary);
    let mut expected = found.clone();
    expected.insert(b"more".to_vec(), Vec::new());
    let promoted = backup.promote(3).expect("promoted");
    assert!(all(&promoted) == expected, "{context}: its backup");
}
