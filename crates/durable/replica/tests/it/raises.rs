//! Primaries that continue at a later epoch (REPLICATION-12), or stop (REPLICATION-13).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::{Durability, Engine, LsmError};
use farleaf_replica::{BackupConnections, BackupId, Epoch, Primary, ReplicaError};

use crate::world::{Hook, Node, all, engine_options, layout, opened, options, primary, scanned};

fn raise_backup(node: &Node, epoch: u64) {
    let mut backup = node.backup();
    let backup = backup.as_mut().expect("it is one");
    backup.raise(Epoch(epoch)).expect("it is later");
}

fn epoch_of(node: &Node) -> Epoch {
    let mut backup = node.backup();
    let status = backup.as_mut().expect("it is one").status();
    status.expect("its memory is there").epoch
}

/// A primary continues at a later epoch with the same backups, which are raised before, after, or
/// never. Epochs never fall, and refused operations change nothing. Writes of all epochs are
/// present when a backup is promoted, from any epoch that its host knows (REPLICATION-12).
#[test]
fn a_primary_goes_on_at_a_later_epoch() {
    let nodes: Vec<Node> = (0..3).map(Node::new).collect();
    let of = [&nodes[1], &nodes[2]];
    let primary = primary(opened(&nodes[0]), 4, IndexKind::Sent, &of);
    let put = |key: &[u8]| primary.put(key, b"", Durability::Memory);
    put(b"4").expect("acknowledged");
    for given in [3, 4] {
        let refused = primary.raise(Epoch(given));
        let is_told = matches!(refused, Err(ReplicaError::NotLater { .. }));
        assert!(is_told, "{refused:?}");
        let mut backup = nodes[1].backup();
        let refused = backup.as_mut().expect("it is one").raise(Epoch(given));
        let is_told = matches!(refused, Err(ReplicaError::NotLater { .. }));
        assert!(is_told, "{refused:?}");
    }
    put(b"still 4").expect("nothing was changed");
    // One backup first: nothing is acknowledged until the primary is raised, too.
    raise_backup(&nodes[1], 5);
    let waits = put(b"5 or not").expect_err("a backup is of a later epoch");
    assert!(matches!(waits, ReplicaError::Deposed { .. }), "{waits}");
    primary.confirm().expect_err("nor is it known");
    primary.raise(Epoch(5)).expect("it is its own");
    put(b"5").expect("acknowledged");
    assert_eq!(primary.status().epoch, Epoch(5));
    assert_eq!(
        (epoch_of(&nodes[1]), epoch_of(&nodes[2])),
        (Epoch(5), Epoch(5))
    );
    // The primary first, and a backup never.
    raise_backup(&nodes[2], 5);
    primary.raise(Epoch(6)).expect("it is its own");
    put(b"6").expect("acknowledged");
    primary.confirm().expect("it leads");
    assert_eq!(epoch_of(&nodes[1]), Epoch(6), "its host knows of 5");
    let early = nodes[1].backup().take().expect("it is one");
    let refused = early.promote(Epoch(6), engine_options());
    let is_told = matches!(refused, Err(ReplicaError::NotPromotable { .. }));
    assert!(is_told, "{refused:?}");
    put(b"6, too").expect("its memory is there still");
    let expected = scanned(&primary.snapshot().expect("it leads"));
    assert_eq!(expected.len(), 6, "what was not acknowledged is in the log");
    let promoted = nodes[2].promote(7).expect("its host knows of 5");
    assert!(all(&promoted) == expected);
    let late = primary.raise(Epoch(8)).expect_err("a backup is of 7");
    assert!(matches!(late, ReplicaError::Deposed { .. }), "{late}");
    let late = put(b"7").expect_err("another one is primary");
    assert!(matches!(late, ReplicaError::Deposed { .. }), "{late}");
    primary.raise(Epoch(9)).expect_err("so it is at any epoch");
    primary.get(b"4").expect_err("it is deposed");
}

/// An old primary whose backup was raised for another primary is refused in everything. So is the
/// other primary, until the backup starts over. Then it fills the backup, which has nothing of the
/// old one any more (REPLICATION-12).
#[test]
fn a_backup_that_is_raised_for_another_primary_refuses_the_old_one() {
    let nodes: Vec<Node> = (0..3).map(Node::new).collect();
    let old = primary(opened(&nodes[0]), 5, IndexKind::Sent, &[&nodes[1]]);
    for number in 0..6_u8 {
        let put = old.put(&[number], &vec![number; 900_000], Durability::Memory);
        put.expect("acknowledged");
    }
    raise_backup(&nodes[1], 6);
    for refused in [
        old.put(b"a", b"old", Durability::Memory),
        old.confirm(),
        old.sync(),
        old.add_backup(BackupId(2), nodes[1].connections()),
        old.get(b"a").map(|_| ()),
    ] {
        let is_told = matches!(refused, Err(ReplicaError::Deposed { .. }));
        assert!(is_told, "{refused:?}");
    }
    let fresh = Primary::new(opened(&nodes[2]), Epoch(5), options(IndexKind::Sent));
    let new = Node::new(3);
    new.become_backup(5);
    raise_backup(&new, 6);
    let refused = fresh.add_backup(BackupId(1), new.connections());
    let text = refused.expect_err("of a lower epoch").to_string();
    assert!(text.contains("a primary of epoch 5"), "{text}");
    fresh.raise(Epoch(6)).expect("without backups");
    let refused = fresh.add_backup(BackupId(1), nodes[1].connections());
    let text = refused
        .expect_err("with what is left of the old one")
        .to_string();
    assert!(text.contains("restart the backup"), "{text}");
    nodes[1].backup().take();
    nodes[1].become_backup(5);
    raise_backup(&nodes[1], 6);
    let filled = fresh.add_backup(BackupId(1), nodes[1].connections());
    filled.expect("it is the primary of 6");
    fresh.put(b"a", b"new", Durability::Sync).expect("put");
    let found = all(&nodes[1].promote(7).expect("promoted"));
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        [(b"a".to_vec(), b"new".to_vec())]
    );
}

/// A backup that cannot be reached when its primary continues is lost. Writes wait at the new epoch
/// until it is removed, and its word may have either epoch (REPLICATION-12).
#[test]
fn a_backup_that_is_not_reached_is_lost() {
    for batches_left in [0, 1] {
        let nodes: Vec<Node> = (0..3).map(|it| Node::new(it + 10 * batches_left)).collect();
        let of = [&nodes[1], &nodes[2]];
        let primary = primary(opened(&nodes[0]), 1, IndexKind::Sent, &of);
        primary.put(b"a", b"", Durability::Memory).expect("put");
        nodes[1]
            .faults
            .batches_left
            .store(batches_left as i64, Ordering::Release);
        primary.raise(Epoch(2)).expect("it goes on");
        let waits = primary.put(b"b", b"", Durability::Memory);
        let is_told = matches!(waits, Err(ReplicaError::BackupLost { .. }));
        assert!(is_told, "{waits:?}");
        let lost = nodes[1].promote(3).expect("it has what was acknowledged");
        assert!(all(&lost).contains_key(&b"a"[..]));
        primary.remove_backup(BackupId(1)).expect("it was one");
        primary.put(b"c", b"", Durability::Memory).expect("put");
        // While a backup is known to be lost, nothing is added to the log.
        let count = 2 + batches_left as usize;
        assert_eq!(all(&nodes[2].promote(4).expect("promoted")).len(), count);
    }
}

/// A backup is being filled when its primary continues, at any batch of that, and its host raises
/// it before the primary, after it, or not at all. It is then filled and at the new epoch, or an
/// error says that it was not filled; the primary continues (REPLICATION-10, REPLICATION-12).
#[test]
fn filling_goes_on_or_fails_when_the_primary_does() {
    let mut counts = [0, 0];
    for batch in 0..36 {
        let nodes: Vec<Node> = (0..3).map(|it| Node::new(it + 10 * batch)).collect();
        let primary = primary(opened(&nodes[0]), 1, IndexKind::Sent, &[&nodes[1]]);
        for number in 0..60_u64 {
            let key = number.to_le_bytes();
            primary
                .put(&key, &[3; 90], Durability::Memory)
                .expect("put");
            primary.maintain().expect("no fault is set");
        }
        nodes[2].become_backup(1);
        let (hook, raised, host) = (Hook::default(), primary.clone(), nodes[2].clone());
        let mut left = batch / 3;
        *hook.lock().expect("no panic") = Some(Box::new(move || {
            if left == 0 {
                if batch % 3 == 0 {
                    raise_backup(&host, 2);
                }
                // After a batch that holds the connections, `raise` waits for it.
                raised.raise(Epoch(2)).expect("it is its own");
                if batch % 3 == 1 {
                    raise_backup(&host, 2);
                }
            }
            left = left.wrapping_sub(1);
        }));
        let connections = BackupConnections {
            index: nodes[2].endpoint_with(&hook),
            ..nodes[2].connections()
        };
        let added = primary.add_backup(BackupId(2), connections);
        hook.lock().expect("no panic").take();
        primary.put(b"last", b"", Durability::Memory).expect("put");
        if let Err(error) = added {
            assert!(matches!(error, ReplicaError::NotFilled { .. }), "{error}");
            counts[1] += 1;
            assert_eq!(all(&nodes[1].promote(3).expect("promoted")).len(), 61);
        } else {
            counts[0] += 1;
            assert_eq!(epoch_of(&nodes[2]), primary.status().epoch, "batch {batch}");
            assert_eq!(all(&nodes[2].promote(3).expect("promoted")).len(), 61);
        }
    }
    assert!(counts[0] > 5 && counts[1] > 0, "{counts:?}");
}

fn mapped_ways(node: &Node) -> BackupConnections<MappedEndpoint> {
    let endpoint = || MappedEndpoint::new(Arc::clone(&node.memory));
    BackupConnections {
        log: endpoint(),
        index: endpoint(),
        layout: layout(),
    }
}

/// Fills a backup over memory that both sides have, while another thread serves it.
fn filled(primary: &Primary<MappedEndpoint>, node: &Node) {
    node.become_backup(1);
    thread::scope(|scope| {
        let filling = scope.spawn(|| primary.add_backup(BackupId(1), mapped_ways(node)));
        while !filling.is_finished() {
            node.serve();
        }
        let filled = filling.join().expect("no panic");
        filled.expect("filled");
    });
}

/// While threads write, their primary continues at one epoch after another, its backup first or
/// last. When the backup is promoted, all writes acknowledged at any of these epochs are present
/// (REPLICATION-12).
#[test]
fn nothing_is_lost_when_epochs_rise_under_writes() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let primary = Primary::new(opened(&nodes[0]), Epoch(1), options(IndexKind::Sent));
    filled(&primary, &nodes[1]);
    let acknowledged = [AtomicU64::new(0), AtomicU64::new(0)];
    let is_over = AtomicBool::new(false);
    let mut went_on_count = 0;
    thread::scope(|scope| {
        for (writer, count) in (0_u64..).zip(&acknowledged) {
            let (primary, is_over) = (&primary, &is_over);
            scope.spawn(move || {
                for number in (0_u64..).take_while(|_| !is_over.load(Ordering::Acquire)) {
                    let key = [writer.to_le_bytes(), number.to_le_bytes()].concat();
                    // Until the primary is raised, a write that finds the backup's later epoch may
                    // be present or not.
                    while !is_over.load(Ordering::Acquire) {
                        match primary.put(&key, &[7; 40], Durability::Memory) {
                            Ok(()) => {
                                count.store(number + 1, Ordering::Release);
                                break;
                            }
                            Err(ReplicaError::Deposed { .. } | ReplicaError::Stopped) => {
                                thread::yield_now();
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        let sum = || {
            acknowledged
                .iter()
                .map(|it| it.load(Ordering::Acquire))
                .sum::<u64>()
        };
        for epoch in 2..40 {
            let before = sum();
            let since = Instant::now();
            while sum() < before + 20 && since.elapsed() < Duration::from_secs(20) {
                nodes[1].serve();
            }
            went_on_count += u64::from(sum() >= before + 20);
            match epoch % 4 {
                0 => primary.raise(Epoch(epoch)).expect("its own"),
                1 => {
                    raise_backup(&nodes[1], epoch);
                    primary.raise(Epoch(epoch)).expect("its own");
                }
                2 => {
                    primary.stop(Epoch(epoch));
                    primary.raise(Epoch(epoch)).expect("its own");
                    raise_backup(&nodes[1], epoch);
                }
                _ => {
                    raise_backup(&nodes[1], epoch);
                    primary.stop(Epoch(epoch));
                    primary.raise(Epoch(epoch)).expect("its own");
                }
            }
        }
        is_over.store(true, Ordering::Release);
    });
    assert_eq!(went_on_count, 38, "writes go on at each epoch");
    let promoted = nodes[1].promote(40).expect("promoted");
    for (writer, count) in (0_u64..).zip(&acknowledged) {
        for number in 0..count.load(Ordering::Acquire) {
            let key = [writer.to_le_bytes(), number.to_le_bytes()].concat();
            let value = promoted.get(&key).expect("it can be read");
            assert!(value.is_some(), "{writer}: {number}");
        }
    }
}

/// A stopped primary acknowledges no write, sync or read, not even one in progress that waits for a
/// backup that hangs. Refused operations change nothing. The primary continues when it is raised
/// (REPLICATION-13).
#[test]
fn a_primary_that_was_stopped_acknowledges_nothing() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let primary = Primary::new(opened(&nodes[0]), Epoch(1), options(IndexKind::Sent));
    filled(&primary, &nodes[1]);
    thread::scope(|scope| {
        let writing = scope.spawn(|| {
            loop {
                let put = primary.put(b"a", &vec![1; 700_000], Durability::Memory);
                if let Err(error) = put {
                    return error;
                }
            }
        });
        // The write waits for a buffer, since the backup is not served.
        thread::sleep(Duration::from_millis(60));
        assert!(!writing.is_finished());
        primary.stop(Epoch(2));
        let error = writing.join().expect("no panic");
        assert!(matches!(error, ReplicaError::Stopped), "{error}");
    });
    assert!(primary.status().is_stopped);
    for refused in [
        primary.put(b"b", b"", Durability::Memory),
        primary.delete(b"b", Durability::Sync),
        primary.sync(),
        primary.confirm(),
        primary.check_leads(),
        primary.get(b"b").map(|_| ()),
        primary.snapshot().map(|_| ()),
        primary.add_backup(BackupId(3), mapped_ways(&nodes[1])),
    ] {
        assert!(matches!(refused, Err(ReplicaError::Stopped)), "{refused:?}");
    }
    primary.raise(Epoch(2)).expect("it is its own");
    assert_eq!(primary.get(b"b").expect("it leads"), None, "it was refused");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                nodes[1].serve();
            }
        });
        primary.put(b"c", b"", Durability::Sync).expect("put");
        is_over.store(true, Ordering::Release);
    });
}

/// A read or write that took effect before a stop, but is checked after it, is not acknowledged
/// (REPLICATION-13).
#[test]
fn a_stop_under_way_holds() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let primary = Primary::new(opened(&nodes[0]), Epoch(1), options(IndexKind::Sent));
    nodes[1].become_backup(1);
    let hook = Hook::default();
    let connections = BackupConnections {
        log: nodes[1].endpoint_with(&hook),
        ..nodes[1].connections()
    };
    primary
        .add_backup(BackupId(1), connections)
        .expect("filled");
    for (epoch, act) in (2..).zip([
        |primary: &Primary<_>| primary.put(b"a", b"1", Durability::Memory),
        |primary: &Primary<_>| primary.delete(b"a", Durability::Sync),
        Primary::sync,
        Primary::confirm,
    ]) {
        primary.put(b"b", b"", Durability::Memory).expect("put");
        let stopper = primary.clone();
        *hook.lock().expect("no panic") = Some(Box::new(move || {
            stopper.stop(Epoch(epoch));
        }));
        let done = act(&primary);
        assert!(
            matches!(done, Err(ReplicaError::Stopped)),
            "{epoch}: {done:?}"
        );
        hook.lock().expect("no panic").take();
        primary.raise(Epoch(epoch)).expect("it is its own");
    }
}

/// An order to stop for an epoch that is repeated while the primary is raised to that epoch, or
/// afterwards, stops nothing. An order for a later epoch holds (REPLICATION-13).
#[test]
fn a_stop_that_is_repeated_stops_nothing() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let primary = Primary::new(opened(&nodes[0]), Epoch(1), options(IndexKind::Sent));
    nodes[1].become_backup(1);
    let hook = Hook::default();
    let connections = BackupConnections {
        log: nodes[1].endpoint_with(&hook),
        ..nodes[1].connections()
    };
    primary
        .add_backup(BackupId(1), connections)
        .expect("filled");
    let raise = |epoch: u64, stop: u64| {
        primary.stop(Epoch(epoch));
        let stopper = primary.clone();
        let stops = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&stops);
        *hook.lock().expect("no panic") = Some(Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            stopper.stop(Epoch(stop));
        }));
        primary.raise(Epoch(epoch)).expect("it is its own");
        hook.lock().expect("no panic").take();
        assert_eq!(stops.load(Ordering::Relaxed), 1, "one batch");
    };
    raise(2, 2);
    primary.stop(Epoch(2));
    primary.put(b"a", b"", Durability::Memory).expect("put");
    raise(3, 4);
    let refused = primary.put(b"b", b"", Durability::Memory);
    assert!(matches!(refused, Err(ReplicaError::Stopped)), "{refused:?}");
    raise(4, 4);
    primary.put(b"c", b"", Durability::Memory).expect("put");
}

/// An engine is closed, and its directory can be opened again, exactly when its primary and all
/// clones, snapshots and workers are dropped. Neither backups nor edits that wait for them keep it
/// open.
#[test]
fn a_primary_that_is_dropped_closes_its_engine() {
    let nodes: Vec<Node> = (0..3).map(Node::new).collect();
    let primary = primary(
        opened(&nodes[0]),
        1,
        IndexKind::Sent,
        &[&nodes[1], &nodes[2]],
    );
    let worker = primary.engine().start_worker();
    for number in 0..200_u64 {
        let key = number.to_le_bytes();
        primary
            .put(&key, &[3; 90], Durability::Memory)
            .expect("put");
    }
    let since = Instant::now();
    let has_edits = || primary.status().backups.iter().all(|it| it.edit_count > 0);
    while !has_edits() && since.elapsed() < Duration::from_secs(20) {
        thread::yield_now();
    }
    assert!(has_edits(), "edits wait, and nobody ships them");
    let snapshot = primary.snapshot().expect("it leads");
    let is_locked = || {
        let opened = Engine::open(nodes[0].shared_storage(), engine_options());
        matches!(opened, Err(LsmError::Locked { .. }))
    };
    let helper = primary.clone();
    let background = thread::spawn(move || helper.maintain().map(|_| ()));
    background
        .join()
        .expect("no panic")
        .expect("no fault is set");
    primary.sync().expect("synced");
    primary.stop(Epoch(2));
    drop(primary);
    assert!(is_locked(), "there are a worker and a snapshot");
    drop(worker);
    assert!(is_locked(), "there is a snapshot");
    drop(snapshot);
    let reopened = opened(&nodes[0]);
    assert_eq!(all(&reopened).len(), 200);
}
