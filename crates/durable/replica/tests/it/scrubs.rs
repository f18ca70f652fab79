//! Scrubbing of primaries and backups.

use farleaf_lsm::engine::WorkDone;
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::scrub::{ScrubCounts, Scrubbed};
use farleaf_lsm::storage::Storage;
use farleaf_lsm::{Durability, LsmError};
use farleaf_replica::{PrimaryWorkDone, ReplicaError};

use crate::world::{Node, all, opened, primary};

/// Scrubs until a round is over; returns the corruption found.
fn round(mut step: impl FnMut() -> Result<Scrubbed, ReplicaError>) -> Vec<LsmError> {
    let mut found = Vec::new();
    loop {
        match step() {
            Ok(scrubbed) if scrubbed.is_round_over => return found,
            Ok(_) => {}
            Err(ReplicaError::Engine(error)) => found.push(error),
            Err(error) => panic!("{error}"),
        }
    }
}

fn round_of_backup(node: &Node) -> Vec<LsmError> {
    let mut backup = node.backup();
    let backup = backup.as_mut().expect("it is one");
    round(|| Ok(backup.scrub_step()?.expect("it has everything")))
}

fn flip(node: &Node, name: &str, offset: u64) {
    let file = node.storage.open(name).expect("there");
    let mut byte = [0];
    file.read_at(&mut byte, offset).expect("read");
    file.write_at(&[byte[0] ^ 4], offset).expect("written");
}

/// A bit flip on the device of a primary or backup, of either kind, is reported by that replica
/// alone and counted in its status, and both continue. An incomplete backup is not scrubbed.
#[test]
fn damage_is_told_by_who_has_it() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let nodes: Vec<Node> = (0..2).map(Node::new).collect();
        nodes[1].become_backup(1);
        let waiting = nodes[1].backup().as_mut().expect("one").scrub_step();
        assert_eq!(waiting.expect("it is not filled"), None);
        let primary = primary(opened(&nodes[0]), 1, index, &[&nodes[1]]);
        for number in 0..400_u64 {
            let key = (number % 90).to_le_bytes();
            let put = primary.put(&key, &[5; 9_000], Durability::Memory);
            put.expect("acknowledged");
            let worked = primary.maintain().expect("no fault is set");
            while worked == PrimaryWorkDone::Engine(WorkDone::Nothing) && nodes[1].serve() {}
        }
        primary.sync().expect("synced");
        while primary.maintain().expect("no fault is set")
            != PrimaryWorkDone::Engine(WorkDone::Nothing)
        {}
        while nodes[1].serve() {}
        let step = || primary.scrub_step();
        assert!(round(step).is_empty() && round_of_backup(&nodes[1]).is_empty());
        for name in ["log", "trees"] {
            let size_bytes = |node: &Node| {
                let file = node.storage.open(name).expect("there");
                file.size().expect("known")
            };
            for damaged in [0, 1] {
                // In each segment, since at least one of them is in use.
                let offsets = (40..size_bytes(&nodes[damaged])).step_by(2 << 20);
                offsets
                    .clone()
                    .for_each(|it| flip(&nodes[damaged], name, it));
                // A primary that compares would lose its damaged backup (REPLICATION-17).
                let of_primary = if damaged == 0 {
                    round(step)
                } else {
                    Vec::new()
                };
                let found = [of_primary, round_of_backup(&nodes[1])];
                offsets.for_each(|it| flip(&nodes[damaged], name, it));
                assert!(!found[damaged].is_empty(), "{index:?}, {name}, {damaged}");
                assert!(found[1 - damaged].is_empty(), "{index:?}: {found:?}");
                let is_right = |it: &LsmError| match name {
                    "log" => matches!(it, LsmError::CorruptLog { .. }),
                    _ => matches!(it, LsmError::CorruptTree { .. }),
                };
                assert!(found[damaged].iter().all(is_right), "{found:?}");
            }
        }
        let mut backup = nodes[1].backup();
        let status = backup.as_mut().expect("one").status().expect("its memory");
        drop(backup);
        for (counts, expected) in [(primary.status().scrub, 3), (status.scrub, 5)] {
            let ScrubCounts {
                round_count,
                damaged_count,
                ..
            } = counts;
            assert!(round_count == expected && damaged_count > 1, "{counts:?}");
        }
        primary
            .put(b"on", b"", Durability::Sync)
            .expect("it goes on");
        assert_eq!(all(&nodes[1].promote(2).expect("promoted")).len(), 91);
    }
}
