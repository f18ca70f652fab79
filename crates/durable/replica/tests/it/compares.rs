//! Comparison of a primary's pieces with its backups' by the scrubber (REPLICATION-17).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use farleaf_lsm::Durability;
use farleaf_lsm::engine::WorkDone;
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::log::record::{
    EngineId, RecordKind, RecordSum, SEGMENT_HEADER_SIZE_BYTES, encode_record_header,
    segment_number,
};
use farleaf_lsm::place::{LogNumber, SEGMENT_SIZE_BYTES};
use farleaf_lsm::storage::Storage;
use farleaf_replica::{BackupId, Primary, PrimaryWorkDone};

use crate::world::{Node, Random, TestEndpoint, all, key_of, opened, primary, value_of};

/// Scrubs until a round that began after the call is over; none of it finds corruption on the
/// primary's disk.
fn round(primary: &Primary<TestEndpoint>) {
    for _ in 0..2 {
        while !primary.scrub_step().expect("valid").is_round_over {}
    }
}

/// Finishes all background work, and sends everything to the backups.
fn settle(primary: &Primary<TestEndpoint>, nodes: &[Node]) {
    primary.sync().expect("synced");
    while primary.maintain().expect("no fault is set") != PrimaryWorkDone::Engine(WorkDone::Nothing)
    {
    }
    for node in nodes {
        while node.serve() {}
    }
}

/// Creates a primary that has flushed and merged, and its two backups.
fn region(index: IndexKind) -> ([Node; 3], Primary<TestEndpoint>) {
    let nodes = [0, 1, 2].map(Node::new);
    let primary = primary(opened(&nodes[0]), 1, index, &[&nodes[1], &nodes[2]]);
    for number in 0..600_u64 {
        let key = (number % 300).to_le_bytes();
        let put = primary.put(&key, &[number as u8; 9_000], Durability::Memory);
        put.expect("acknowledged");
        primary.maintain().expect("no fault is set");
    }
    settle(&primary, &nodes);
    round(&primary);
    let status = primary.status();
    assert!(status.comparison.equal_count >= 4, "{status:?}");
    assert_eq!(status.comparison.mismatch_count, 0, "{status:?}");
    (nodes, primary)
}

/// Changes a node's file in each of its segments.
fn change(node: &Node, name: &str, change: impl Fn(&mut [u8])) {
    let file = node.storage.open(name).expect("there");
    let size_bytes = file.size().expect("known");
    for at in (0..size_bytes).step_by(SEGMENT_SIZE_BYTES as usize) {
        let mut bytes = vec![0; SEGMENT_SIZE_BYTES.min(size_bytes - at) as usize];
        file.read_at(&mut bytes, at).expect("read");
        change(&mut bytes);
        file.write_at(&bytes, at).expect("written");
    }
}

/// Checks that the first backup is still in sync, and the second one is lost for this reason.
fn is_found(primary: &Primary<TestEndpoint>, piece: &str) {
    round(primary);
    let status = primary.status();
    assert_eq!(status.comparison.mismatch_count, 1, "{status:?}");
    assert_eq!(status.backups[0].lost, None);
    let how = status.backups[1].lost.clone().expect("it is lost");
    let expected = format!("checksum mismatch in {piece}");
    assert!(how.starts_with(&expected), "{how}");
    let mismatch = status.backups[1].mismatch.expect("that is why it is lost");
    assert_ne!(mismatch.primary, mismatch.backup);
    assert!(primary.put(b"k", b"", Durability::Memory).is_err());
    primary.remove_backup(BackupId(2)).expect("there");
    let put = primary.put(b"k", b"", Durability::Memory);
    put.expect("it goes on without it");
}

/// Ends each closed log segment after its header, with a valid *end* record.
fn cut(bytes: &mut [u8], engine: EngineId, end: LogNumber) {
    let header = bytes.first_chunk().expect("a whole segment");
    let Some(number) = segment_number(header, engine).filter(|number| *number < end) else {
        return;
    };
    let at = number.start().plus(SEGMENT_HEADER_SIZE_BYTES as u64);
    let (header, sum) = RecordSum::of(RecordKind::End, b"", b"");
    let record = encode_record_header(header, sum.at(engine, at));
    bytes[SEGMENT_HEADER_SIZE_BYTES..][..record.len()].copy_from_slice(&record);
}

/// Log segments of a backup that lack records, but have valid checksums, are found by comparison
/// with the primary's. That backup is lost, and no other one (REPLICATION-17).
#[test]
fn records_that_are_missing_without_a_trace_are_found() {
    for index in [IndexKind::Sent, IndexKind::Built] {
        let (nodes, primary) = region(index);
        let (engine, end) = (primary.engine().id(), primary.log_end().number());
        change(&nodes[2], "log", |bytes| cut(bytes, engine, end));
        if index == IndexKind::Sent {
            let mut backup = nodes[2].backup();
            let backup = backup.as_mut().expect("it is one");
            let mut steps = (0..).map(|_| backup.scrub_step().expect("its sums are right"));
            assert!(steps.any(|it| it.expect("it is filled").is_round_over));
        }
        is_found(&primary, "log segment ");
    }
}

/// Log segments that a backup has never written, and trees that differ, are found by comparison,
/// before the backup scrubs its own disk (REPLICATION-17).
#[test]
fn holes_and_trees_that_differ_are_found() {
    let (nodes, primary) = region(IndexKind::Sent);
    change(&nodes[2], "log", |bytes| bytes.fill(0));
    is_found(&primary, "log segment ");
    let (nodes, primary) = region(IndexKind::Sent);
    change(&nodes[2], "trees", |bytes| bytes[4000] ^= 1);
    is_found(&primary, "segment ");
}

/// Corruption of the primary's own disk is not a mismatch: no backup is lost because of it
/// (REPLICATION-17).
#[test]
fn damage_of_the_primary_is_no_mismatch() {
    let (nodes, primary) = region(IndexKind::Sent);
    change(&nodes[0], "log", |bytes| bytes[40] ^= 1);
    change(&nodes[0], "trees", |bytes| bytes[4000] ^= 1);
    let mut damaged_count = 0;
    loop {
        match primary.scrub_step() {
            Ok(scrubbed) if scrubbed.is_round_over => break,
            Ok(_) => {}
            Err(_) => damaged_count += 1,
        }
    }
    assert!(damaged_count > 1, "{damaged_count}");
    let status = primary.status();
    assert_eq!(status.comparison.mismatch_count, 0, "{status:?}");
    assert!(status.backups.iter().all(|it| it.lost.is_none()));
}

/// Log segments and trees that are added, merged and reclaimed meanwhile, on either side, are not
/// mismatches, whatever the backups lack during a comparison. Neither are records larger than a
/// segment (REPLICATION-17).
#[test]
fn what_changes_meanwhile_is_no_mismatch() {
    let (mut equal_count, mut round_count) = (0, 0);
    for seed in 0..4 {
        let index = [IndexKind::Sent, IndexKind::Built][seed as usize % 2];
        let nodes = [0, 1, 2].map(Node::new);
        let primary = primary(opened(&nodes[0]), 1, index, &[&nodes[1], &nodes[2]]);
        let mut random = Random::new(seed);
        for _ in 0..800 {
            let number = random.bits();
            match number % 8 {
                0..=2 => {
                    let put = primary.put(&key_of(number), &value_of(number), Durability::Memory);
                    put.expect("acknowledged");
                }
                3..=4 => drop(primary.maintain().expect("no fault is set")),
                5 => drop(nodes[1 + (number >> 8) as usize % 2].serve()),
                _ => drop(primary.scrub_step().expect("valid")),
            }
            let status = primary.status();
            assert!(
                status.backups.iter().all(|it| it.lost.is_none()),
                "{seed}: {status:?}"
            );
        }
        settle(&primary, &nodes);
        round(&primary);
        let status = primary.status();
        assert_eq!(status.comparison.mismatch_count, 0, "{seed}: {status:?}");
        equal_count += status.comparison.equal_count;
        round_count += status.scrub.round_count;
    }
    assert!(
        equal_count > 60 && round_count > 8,
        "{equal_count}, {round_count}"
    );
}

/// Comparison finds no mismatches while other threads write, flush and merge (REPLICATION-17).
#[test]
fn threads_that_write_meanwhile_make_no_mismatch() {
    let nodes = [0, 1, 2].map(Node::new);
    let primary = primary(
        opened(&nodes[0]),
        1,
        IndexKind::Sent,
        &[&nodes[1], &nodes[2]],
    );
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                primary.maintain().expect("no fault is set");
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                primary.scrub_step().expect("valid");
            }
        });
        let mut random = Random::new(7);
        for _ in 0..800 {
            let number = random.bits();
            let put = primary.put(&key_of(number), &value_of(number), Durability::Memory);
            put.expect("acknowledged");
        }
        is_over.store(true, Ordering::Release);
    });
    settle(&primary, &nodes);
    round(&primary);
    let status = primary.status();
    assert_eq!(status.comparison.mismatch_count, 0, "{status:?}");
    assert!(status.comparison.equal_count > 20, "{status:?}");
    drop(primary);
    for (epoch, node) in (2..).zip(&nodes[1..]) {
        assert!(!all(&node.promote(epoch).expect("promoted")).is_empty());
    }
}
