//! Backups that are lost, removed, and filled during writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::engine::WorkDone;
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::storage::{Fault, FaultyStorage, Operation};
use farleaf_lsm::{Durability, LsmError};
use farleaf_replica::{
    Backup, BackupConnections, BackupId, BackupOptions, Epoch, Primary, PrimaryWorkDone,
    ReplicaError, ReplicationOptions,
};

use crate::world::{
    Hook, Model, Node, TestEndpoint, all, engine_options, layout, opened, primary, scanned,
};

const IDLE: PrimaryWorkDone = PrimaryWorkDone::Engine(WorkDone::Nothing);

/// While a backup is lost, every write returns an error that says so. After its removal writes are
/// acknowledged again, and refused ones may be present (REPLICATION-6).
#[test]
fn a_lost_backup_holds_up_writes_until_it_is_removed() {
    let nodes: Vec<Node> = (0..3).map(Node::new).collect();
    let of = [&nodes[1], &nodes[2]];
    let primary = primary(opened(&nodes[0]), 1, IndexKind::Sent, &of);
    primary.put(b"a", b"", Durability::Memory).expect("put");
    nodes[1].faults.is_dead.store(true, Ordering::Release);
    for _ in 0..2 {
        let lost = primary.put(b"lost", b"", Durability::Memory);
        let is_told = matches!(
            lost,
            Err(ReplicaError::BackupLost {
                backup: BackupId(1),
                ..
            })
        );
        assert!(is_told, "{lost:?}");
    }
    assert_eq!(primary.get(b"lost").expect("read"), None, "not on all");
    let status = primary.status();
    assert!(status.backups[0].lost.is_some(), "{status:?}");
    primary.remove_backup(BackupId(1)).expect("it was one");
    let none = primary.remove_backup(BackupId(1));
    let is_told = matches!(none, Err(ReplicaError::WrongBackup { .. }));
    assert!(is_told, "{none:?}");
    primary.put(b"b", b"", Durability::Sync).expect("put");
    let expected = scanned(&primary.snapshot().expect("it leads"));
    assert_eq!(expected.len(), 3);
    drop(primary);
    assert!(all(&nodes[2].promote(2).expect("promoted")) == expected);
}

/// Puts keys of its own until the test is over.
fn write(primary: &Primary<TestEndpoint>, writer: u64, is_over: &AtomicBool, served: &AtomicU64) {
    for number in (0_u64..).take_while(|_| !is_over.load(Ordering::Acquire)) {
        let key = [writer.to_le_bytes(), number.to_le_bytes()].concat();
        let put = primary.put(&key, &[2; 2_000], Durability::Memory);
        put.expect("acknowledged");
        served.fetch_add(1, Ordering::Relaxed);
        if number % 8 == 0 {
            primary.maintain().expect("no fault is set");
        }
    }
}

/// A backup is filled while several threads write, flush and merge. When promoted, it has
/// everything, and so has the backup that existed before. For both kinds of index (REPLICATION-10).
#[test]
fn a_backup_is_filled_while_writes_go_on() {
    for (seed, index) in [(1, IndexKind::Sent), (2, IndexKind::Built)] {
        let nodes: Vec<Node> = (0..4).map(|it| Node::new(seed * 10 + it)).collect();
        let primary = primary(opened(&nodes[0]), 1, index, &[&nodes[1]]);
        let (is_over, served) = (AtomicBool::new(false), AtomicU64::new(0));
        let wait_for = |count: u64| {
            let from = served.load(Ordering::Relaxed);
            let start = Instant::now();
            while served.load(Ordering::Relaxed) < from + count {
                // A writer that failed has reported the reason.
                if start.elapsed() > Duration::from_secs(50) {
                    is_over.store(true, Ordering::Release);
                    panic!("nothing is written any more");
                }
                thread::yield_now();
            }
        };
        nodes[2].become_backup(1);
        thread::scope(|scope| {
            for writer in 0..2 {
                let (primary, is_over, served) = (&primary, &is_over, &served);
                scope.spawn(move || write(primary, writer, is_over, served));
            }
            wait_for(1_000);
            let twice = primary.add_backup(BackupId(1), nodes[3].connections());
            let is_told = matches!(twice, Err(ReplicaError::WrongBackup { .. }));
            assert!(is_told, "{twice:?}");
            let added = primary.add_backup(BackupId(2), nodes[2].connections());
            added.expect("filled");
            wait_for(100);
            is_over.store(true, Ordering::Release);
        });
        let expected: Model = scanned(&primary.snapshot().expect("it leads"));
        assert_eq!(expected.len() as u64, served.load(Ordering::Relaxed));
        for which in [1, 2] {
            let promoted = nodes[which].promote(2).expect("promoted");
            assert!(all(&promoted) == expected, "{index:?}, node {which}");
        }
    }
}

/// While a backup is filled and everything is rewritten, its primary flushes and merges without
/// limits, and no log segment is freed that the backup still needs (REPLICATION-9, REPLICATION-10).
#[test]
fn the_log_stays_for_a_backup_that_is_behind() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let primary = primary(opened(&nodes[0]), 1, IndexKind::Sent, &[]);
    // Always the same key: most segments have no live records when L0 is flushed.
    let write = |primary: &Primary<TestEndpoint>| {
        for _ in 0..30 {
            let put = primary.put(b"a", &vec![1; 1_500_000], Durability::Memory);
            put.expect("no write waits for it yet");
        }
        primary.engine().freeze();
        while primary.maintain().expect("no fault is set") != IDLE {}
        primary.engine().counts().log_segment_count
    };
    let left_count = write(&primary);
    assert!(left_count < 25, "{left_count}: the log is freed otherwise");
    nodes[1].become_backup(1);
    let (hook, writer) = (Hook::default(), primary.clone());
    let mut call_count = 0;
    *hook.lock().expect("no panic") = Some(Box::new(move || {
        call_count += 1;
        // The first request has been answered, but the base is incomplete.
        if call_count == 3 {
            write(&writer);
            let kept_count = write(&writer);
            assert!(kept_count > 30, "{kept_count}");
            let edit_count = writer.status().backups[0].edit_count;
            assert!(edit_count > 3, "{edit_count}: nothing waits for it");
        }
    }));
    let connections = BackupConnections {
        index: nodes[1].endpoint_with(&hook),
        ..nodes[1].connections()
    };
    primary
        .add_backup(BackupId(1), connections)
        .expect("filled");
    // The hook holds a reference to the primary.
    hook.lock().expect("no panic").take();
    let status = &primary.status().backups[0];
    assert!(
        status.log_size_bytes > 40 << 20,
        "it was behind: {status:?}"
    );
    let expected = scanned(&primary.snapshot().expect("it leads"));
    assert!(all(&nodes[1].promote(2).expect("promoted")) == expected);
}

/// Data that a backup lacks are neither read nor flushed into a tree. A flush of them fails, and
/// succeeds after the removal of the backup (REPLICATION-5).
#[test]
fn what_is_not_replicated_becomes_no_tree() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let primary = primary(opened(&nodes[0]), 1, IndexKind::Sent, &[&nodes[1]]);
    let engine = primary.engine();
    // Like a writer that is about to replicate it.
    engine.append(b"a", Some(b"1")).expect("appended");
    nodes[1].faults.is_dead.store(true, Ordering::Release);
    engine.freeze();
    let refused = engine.maintain();
    let is_told = matches!(refused, Err(LsmError::NotFollowed { .. }));
    assert!(is_told, "{refused:?}");
    assert_eq!(primary.get(b"a").expect("read"), None);
    assert!(scanned(&primary.snapshot().expect("it leads")).is_empty());
    primary.remove_backup(BackupId(1)).expect("it was one");
    assert_eq!(engine.maintain().expect("alone"), WorkDone::Flushed);
    let value = primary.get(b"a").expect("read");
    assert_eq!(value, Some(b"1".to_vec()));
}

/// A backup that hangs with accessible memory takes writes as long as it has free buffers, and then
/// blocks them. After its removal waiting writes end, and others continue (REPLICATION-6).
#[test]
fn a_backup_that_hangs_is_removed() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let primary = Primary::new(opened(&nodes[0]), Epoch(1), ReplicationOptions::new());
    nodes[1].become_backup(1);
    let endpoint = || MappedEndpoint::new(Arc::clone(&nodes[1].memory));
    let connections = BackupConnections {
        log: endpoint(),
        index: endpoint(),
        layout: layout(),
    };
    let put_count = AtomicU64::new(0);
    thread::scope(|scope| {
        let filling = scope.spawn(|| primary.add_backup(BackupId(1), connections));
        while !filling.is_finished() {
            nodes[1].serve();
        }
        let filled = filling.join().expect("no panic");
        filled.expect("filled");
        let writing = scope.spawn(|| {
            loop {
                let put = primary.put(b"a", &vec![1; 700_000], Durability::Memory);
                if let Err(error) = put {
                    return error;
                }
                put_count.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Two buffers with space for two such records each.
        let start = Instant::now();
        while put_count.load(Ordering::Relaxed) < 4 && start.elapsed() < Duration::from_secs(50) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(50));
        assert_eq!(put_count.load(Ordering::Relaxed), 4, "the next one waits");
        primary.remove_backup(BackupId(1)).expect("it was one");
        let error = writing.join().expect("no panic");
        let is_told = matches!(error, ReplicaError::BackupLost { .. });
        assert!(is_told, "{error}");
        primary.put(b"b", b"", Durability::Sync).expect("alone");
    });
}

/// A backup whose disk fails reports that: the primary finds it with the next write, and continues
/// after the removal of the backup. The backup cannot be promoted (REPLICATION-6).
#[test]
fn a_backup_whose_disk_fails_says_so() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let storage = FaultyStorage::new(nodes[1].shared_storage());
    let primary = primary(opened(&nodes[0]), 1, IndexKind::Sent, &[]);
    let near = MappedEndpoint::new(Arc::clone(&nodes[1].memory));
    let shared = Arc::new(storage.clone());
    let backup = Backup::new(near, layout(), Epoch(1), shared, BackupOptions::default());
    *nodes[1].backup() = Some(backup.expect("its words are there"));
    primary
        .add_backup(BackupId(1), nodes[1].connections())
        .expect("filled");
    primary.put(b"a", b"1", Durability::Sync).expect("synced");
    storage.set(Fault::Fail {
        operations: &[Operation::Sync],
        file: None,
        nth: 1,
        times: 1,
    });
    let failed = primary.put(b"b", b"2", Durability::Sync);
    let text = failed.expect_err("it cannot sync").to_string();
    assert!(text.contains("it reports that it has failed"), "{text}");
    primary.remove_backup(BackupId(1)).expect("it was one");
    primary.put(b"c", b"3", Durability::Sync).expect("alone");
    let promoted = nodes[1].promote(2);
    let is_refused = matches!(promoted, Err(ReplicaError::NotPromotable { .. }));
    assert!(is_refused, "{promoted:?}");
}

/// A backup that is lost during filling, at any batch or step, does no harm: the primary continues,
/// and another backup is filled. The lost one's directory is not an engine's (REPLICATION-10).
#[test]
fn filling_can_fail_anywhere() {
    let mut failed_count = 0;
    for after in (0..40).step_by(3) {
        let nodes: Vec<Node> = (0..3).map(|it| Node::new(after * 10 + it)).collect();
        let primary = primary(opened(&nodes[0]), 1, IndexKind::Sent, &[]);
        for number in 0..100_u64 {
            let key = number.to_le_bytes();
            primary.put(&key, &[1; 9], Durability::Memory).expect("put");
            primary.maintain().expect("no fault is set");
        }
        nodes[1].become_backup(1);
        let faults = &nodes[1].faults;
        if after % 2 == 0 {
            faults.batches_left.store(after as i64, Ordering::Release);
        } else {
            faults.steps_left.store(after as i64 / 4, Ordering::Release);
        }
        let added = primary.add_backup(BackupId(1), nodes[1].connections());
        if let Err(error) = added {
            assert!(matches!(error, ReplicaError::NotFilled { .. }), "{error}");
            failed_count += 1;
            nodes[1].backup().take();
            let opened = farleaf_lsm::Engine::open(nodes[1].shared_storage(), engine_options());
            assert!(opened.is_err() || all(&opened.expect("new")).is_empty());
        } else {
            primary.remove_backup(BackupId(1)).expect("it was added");
        }
        nodes[2].become_backup(1);
        primary
            .add_backup(BackupId(1), nodes[2].connections())
            .expect("filled");
        primary.put(b"on", b"", Durability::Sync).expect("put");
        drop(primary);
        let promoted = nodes[2].promote(2).expect("promoted");
        assert_eq!(all(&promoted).len(), 101);
    }
    assert!(failed_count > 5, "{failed_count}");
}
