//! Backups that do not write what their primary wrote (REPLICATION-15).

use farleaf_lsm::Durability;
use farleaf_lsm::engine::WorkDone;
use farleaf_lsm::follow::{IndexKind, Mistake, WriteFault};
use farleaf_lsm::place::{LogNumber, SEGMENT_SIZE_BYTES};
use farleaf_replica::{BackupId, ComparedPart, LinkStatus, Mismatch, Primary, ReplicaError};

use crate::world::{Model, Node, TestEndpoint, all, opened, primary};

/// Bytes of a segment taken by its header, a record's header and a key of one byte.
const OVERHEAD_SIZE_BYTES: usize = 32 + 12 + 1;
const KINDS: [IndexKind; 2] = [IndexKind::Sent, IndexKind::Built];

/// A primary whose only backup makes one injected mistake, and the written records.
struct Pair {
    primary: Primary<TestEndpoint>,
    backup: Node,
    model: Model,
}

impl Pair {
    fn new(index: IndexKind, mistake: impl FnOnce(LogNumber) -> Mistake) -> Self {
        let mut backup = Node::new(2);
        // The first log segment after the base, which is of an empty engine.
        backup.write_fault = WriteFault::once(mistake(LogNumber(0)));
        let primary = primary(opened(&Node::new(1)), 1, index, &[&backup]);
        assert_eq!(primary.log_end(), LogNumber(0).start());
        Self {
            primary,
            backup,
            model: Model::new(),
        }
    }

    fn put(&mut self, number: u8, size_bytes: usize, how: Durability) -> Result<(), ReplicaError> {
        let (key, value) = (vec![number], vec![number; size_bytes]);
        // A write that is not acknowledged is in the primary's log nevertheless, unless the loss of
        // the backup was known before.
        if self.primary.check().is_ok() {
            self.model.insert(key.clone(), value.clone());
        }
        self.primary.put(&key, &value, how)
    }

    /// Fills a segment with one record, except for `left` bytes.
    fn fill_segment(&mut self, number: u8, left: usize) -> Result<(), ReplicaError> {
        let size_bytes = SEGMENT_SIZE_BYTES as usize - OVERHEAD_SIZE_BYTES - left;
        self.put(number, size_bytes, Durability::Memory)
    }

    fn link(&self) -> LinkStatus {
        self.primary.status().backups.remove(0)
    }

    /// Checks that nothing is acknowledged any more and the status has the reason. Returns the
    /// difference.
    fn mismatch(&mut self) -> Mismatch {
        for how in [Durability::Memory, Durability::Sync] {
            let put = self.put(200, 5, how);
            let lost = put.expect_err("the backup is lost").to_string();
            assert!(lost.contains("checksum mismatch in"), "{lost}");
        }
        assert!(self.primary.sync().is_err());
        let link = self.link();
        assert!(self.backup.write_fault.injected_count() == 1 && link.lost.is_some());
        link.mismatch.expect("it is lost because of that")
    }

    /// Refills the backup and promotes it to show that it has everything.
    fn repair(mut self) {
        let is_empty = self.backup.backup().take().is_none();
        assert!(!is_empty);
        self.primary.remove_backup(BackupId(1)).expect("it was one");
        self.backup.become_backup(1);
        let added = self
            .primary
            .add_backup(BackupId(2), self.backup.connections());
        added.expect("it makes its mistake once");
        self.backup.put_in_force();
        self.put(201, 70, Durability::Sync).expect("acknowledged");
        assert_eq!(self.link().mismatch, None);
        drop(self.primary);
        let promoted = self.backup.promote(2).expect("promoted");
        assert!(all(&promoted) == self.model);
    }
}

/// A backup has all records, whatever space the last record leaves in a segment (REPLICATION-4).
#[test]
fn every_remainder_is_written() {
    for index in KINDS {
        let mut pair = Pair::new(index, |_| Mistake::FlipsBitOfTree);
        for (number, left) in (0..).zip([0, 11, 12, 11, 12, 0, 13, 40, 12, 12, 0, 0]) {
            pair.fill_segment(number, left).expect("acknowledged");
        }
        pair.put(100, 5, Durability::Sync).expect("acknowledged");
        drop(pair.primary);
        let promoted = pair.backup.promote(2).expect("promoted");
        assert!(all(&promoted) == pair.model, "{index:?}");
    }
}

/// A backup that skips the segment after one that is full to its last byte, as commits 47a9ac76 to
/// def9f513 did, is detected before its buffer is reused. Nothing is acknowledged as durable on
/// that basis. After refilling, the backup has everything (REPLICATION-15).
#[test]
fn a_segment_that_is_skipped_is_noticed() {
    for index in KINDS {
        let mut pair = Pair::new(index, |_| Mistake::SkipsBehindFull);
        pair.fill_segment(0, 12).expect("nothing is wrong yet");
        pair.fill_segment(1, 11).expect("nothing is wrong yet");
        let put = pair.put(2, 5, Durability::Sync);
        assert!(
            matches!(put, Err(ReplicaError::BackupLost { .. })),
            "{put:?}"
        );
        let found = pair.mismatch();
        assert_eq!(found.part, ComparedPart::LogSegment(LogNumber(1)));
        assert_eq!(found.backup.size_bytes, 0);
        assert_eq!(found.primary.size_bytes, (2 << 20) - 11);
        pair.repair();
    }
}

/// An unreferenced log segment is freed only after its checksum was compared (REPLICATION-15).
#[test]
fn a_segment_is_kept_until_it_is_compared() {
    let mut pair = Pair::new(IndexKind::Sent, |_| Mistake::FlipsBitOfTree);
    let has_first = |pair: &Pair| {
        let engine = pair.primary.engine();
        engine.freeze();
        while engine.maintain().expect("there is room") != WorkDone::Nothing {}
        engine.log().segments().has(LogNumber(0))
    };
    let away = pair.backup.backup().take();
    for _ in 0..2 {
        pair.fill_segment(0, 12).expect("the buffers are free");
    }
    assert!(has_first(&pair), "the backup has not written it");
    *pair.backup.backup() = away;
    pair.put(1, 5, Durability::Sync).expect("acknowledged");
    assert!(!has_first(&pair), "nobody needs it");
}

/// Segments with a flipped bit, or a missing half, are detected by `memory` writes when the segment
/// is closed, even if a record continues in the next segments (REPLICATION-15).
#[test]
fn a_segment_that_differs_is_noticed() {
    for index in KINDS {
        for (number, size_bytes) in [(1, 700_000), (3, 700_000), (1, 5 << 20), (2, 5 << 20)] {
            for mistake in [Mistake::FlipsBit, Mistake::WritesHalf] {
                let mut pair = Pair::new(index, |_| mistake(LogNumber(number)));
                let failed =
                    (0..40).find_map(|at| pair.put(at, size_bytes, Durability::Memory).err());
                let failed = failed.expect("it is noticed").to_string();
                assert!(failed.contains("checksum mismatch in"), "{failed}");
                let found = pair.mismatch();
                assert_eq!(found.part, ComparedPart::LogSegment(LogNumber(number)));
                let is_short = found.backup.size_bytes < found.primary.size_bytes;
                assert_eq!(
                    is_short,
                    matches!(mistake(LogNumber(0)), Mistake::WritesHalf(_))
                );
                pair.repair();
            }
        }
    }
}

/// A `sync` write is not acknowledged if the backup did not write the synced part of the open
/// segment correctly (REPLICATION-15).
#[test]
fn an_open_segment_that_differs_is_noticed_by_a_sync() {
    for index in KINDS {
        for mistake in [Mistake::FlipsBit, Mistake::WritesHalf] {
            let mut pair = Pair::new(index, mistake);
            let put = pair.put(0, 900, Durability::Sync);
            assert!(
                matches!(put, Err(ReplicaError::BackupLost { .. })),
                "{put:?}"
            );
            let found = pair.mismatch();
            assert_eq!(found.part, ComparedPart::LogSegment(LogNumber(0)));
            pair.repair();
        }
    }
}

/// A tree that a backup did not write as sent is detected during sending (REPLICATION-15).
#[test]
fn a_tree_that_differs_is_noticed() {
    let mut pair = Pair::new(IndexKind::Sent, |_| Mistake::FlipsBitOfTree);
    for number in 0..60 {
        pair.put(number, 100, Durability::Memory)
            .expect("acknowledged");
    }
    pair.primary.engine().freeze();
    for _ in 0..30 {
        pair.primary
            .maintain()
            .expect("a backup's mistake is no error here");
    }
    let found = pair.mismatch();
    assert!(
        matches!(found.part, ComparedPart::TreeSegment { index: 0, .. }),
        "{found}"
    );
    assert_eq!(found.primary.size_bytes, found.backup.size_bytes);
    pair.repair();
}

/// A backup that does not write what it is filled with is not filled, and the primary continues
/// without it (REPLICATION-15).
#[test]
fn what_it_is_filled_with_is_compared() {
    let mistakes = [Mistake::FlipsBit(LogNumber(0)), Mistake::FlipsBitOfTree];
    for (index, mistake) in KINDS
        .into_iter()
        .flat_map(|index| mistakes.map(|it| (index, it)))
    {
        let (primary, mut backup) = (primary(opened(&Node::new(1)), 1, index, &[]), Node::new(2));
        for number in 0..60 {
            let put = primary.put(&[number], &[number; 100], Durability::Memory);
            put.expect("alone");
        }
        primary.engine().freeze();
        while primary.maintain().is_ok_and(|it| it != nothing()) {}
        backup.write_fault = WriteFault::once(mistake);
        backup.become_backup(1);
        let failed = primary.add_backup(BackupId(1), backup.connections());
        let failed = failed.expect_err("it wrote something else");
        let ReplicaError::Mismatch { found, .. } = &failed else {
            panic!("{failed}");
        };
        let is_tree = matches!(found.part, ComparedPart::TreeSegment { .. });
        assert_eq!(is_tree, mistake == Mistake::FlipsBitOfTree);
        primary.put(b"on", b"", Durability::Sync).expect("alone");
        backup.become_backup(1);
        let added = primary.add_backup(BackupId(2), backup.connections());
        added.expect("it makes its mistake once");
        backup.put_in_force();
        drop(primary);
        assert_eq!(all(&backup.promote(2).expect("promoted")).len(), 61);
    }
}

fn nothing() -> farleaf_replica::PrimaryWorkDone {
    farleaf_replica::PrimaryWorkDone::Engine(farleaf_lsm::engine::WorkDone::Nothing)
}
