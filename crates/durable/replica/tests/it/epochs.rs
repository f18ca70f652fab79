//! Old primaries that wake up (REPLICATION-8).

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::Durability;
use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{BackupConnections, BackupId, Epoch, Primary, ReplicaError};

use crate::world::{Node, all, layout, opened, options, primary};

/// An old primary whose backup was promoted acknowledges nothing and changes nothing. It finds this
/// with its first attempt, and its reads fail, too. A primary of another epoch than the backup
/// expects is refused.
#[test]
fn an_old_primary_changes_nothing() {
    let nodes: Vec<Node> = (0..4).map(Node::new).collect();
    let old = primary(
        opened(&nodes[0]),
        5,
        IndexKind::Sent,
        &[&nodes[1], &nodes[2]],
    );
    old.put(b"a", b"1", Durability::Memory)
        .expect("acknowledged");
    let early = nodes[1].backup().take().expect("it is one");
    let refused = early.promote(Epoch(5), crate::world::engine_options());
    assert!(
        matches!(refused, Err(ReplicaError::NotPromotable { .. })),
        "{refused:?}"
    );
    let promoted = nodes[2].promote(6).expect("promoted");
    let new = primary_of(promoted, 6, &nodes[3]);
    let put = old
        .put(b"a", b"2", Durability::Memory)
        .expect_err("deposed");
    let is_told = matches!(
        put,
        ReplicaError::Deposed {
            own: Epoch(5),
            found: Epoch(6),
        }
    );
    assert!(is_told, "{put}");
    for again in [
        old.get(b"a").map(|_| ()),
        old.snapshot().map(|_| ()),
        old.confirm(),
        old.delete(b"a", Durability::Sync),
        old.add_backup(BackupId(9), nodes[1].connections()),
    ] {
        assert!(
            matches!(again, Err(ReplicaError::Deposed { .. })),
            "{again:?}"
        );
    }
    assert_eq!(new.get(b"a").expect("it leads"), Some(b"1".to_vec()));
    new.put(b"b", b"3", Durability::Sync).expect("acknowledged");
    new.confirm().expect("it leads");

    let stray = Node::new(9);
    stray.become_backup(8);
    let refused = new.add_backup(BackupId(2), stray.connections());
    let text = refused.expect_err("another epoch").to_string();
    assert!(text.contains("a primary of epoch 6"), "{text}");
    new.put(b"c", b"4", Durability::Sync).expect("acknowledged");
    drop(new);
    let found = all(&nodes[3].promote(7).expect("promoted"));
    assert_eq!(found.len(), 3);
}

fn primary_of(
    engine: farleaf_lsm::Engine,
    epoch: u64,
    node: &Node,
) -> Primary<crate::world::TestEndpoint> {
    primary(engine, epoch, IndexKind::Sent, &[node])
}

/// Whatever an old primary's threads do while a backup is promoted, all writes that they
/// acknowledged are present, without fencing by the fabric.
#[test]
fn no_acknowledged_write_is_lost_to_a_race() {
    let mut counts = [0_u64; 2];
    for seed in 0..25_u64 {
        let nodes: Vec<Node> = (0..2).map(|it| Node::new(seed * 10 + it)).collect();
        nodes[1].become_backup(1);
        let endpoint = || MappedEndpoint::new(nodes[1].memory.clone());
        let primary = Primary::new(opened(&nodes[0]), Epoch(1), options(IndexKind::Sent));
        let acknowledged = [AtomicU64::new(0), AtomicU64::new(0)];
        let promoted = thread::scope(|scope| {
            let filling = scope.spawn(|| {
                let connections = BackupConnections {
                    log: endpoint(),
                    index: endpoint(),
                    layout: layout(),
                };
                primary
                    .add_backup(BackupId(1), connections)
                    .expect("filled");
            });
            while !filling.is_finished() {
                nodes[1].serve();
            }
            for (writer, last) in (0_u64..).zip(&acknowledged) {
                let primary = &primary;
                scope.spawn(move || {
                    for number in 1_u64.. {
                        let key = [writer.to_le_bytes(), number.to_le_bytes()].concat();
                        match primary.put(&key, &[7; 40], Durability::Memory) {
                            Ok(()) => last.store(number, Ordering::Release),
                            Err(ReplicaError::Deposed { .. }) => return,
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
            }
            // On a busy machine a thread may run for the first time after milliseconds.
            let have_written = || acknowledged.iter().all(|it| it.load(Ordering::Acquire) > 4);
            while !have_written() {
                nodes[1].serve();
            }
            let until = std::time::Instant::now() + Duration::from_micros(300 + seed * 200);
            while std::time::Instant::now() < until {
                nodes[1].serve();
            }
            nodes[1].promote(2).expect("promoted")
        });
        for (writer, last) in (0_u64..).zip(&acknowledged) {
            let last = last.load(Ordering::Acquire);
            counts[writer as usize] += last;
            for number in 1..=last {
                let key = [writer.to_le_bytes(), number.to_le_bytes()].concat();
                let value = promoted.get(&key).expect("it can be read");
                assert!(value.is_some(), "seed {seed}: {number} of {last}");
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}
