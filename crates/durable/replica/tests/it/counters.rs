//! Costs of the two kinds of index, and of a write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use farleaf_fabric::Endpoint;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_lsm::Durability;
use farleaf_lsm::engine::WorkDone;
use farleaf_lsm::follow::IndexKind;
use farleaf_replica::{BackupConnections, BackupCounts, BackupId, Epoch, Primary, PrimaryWorkDone};

use crate::world::{Node, all, layout, opened, options, primary};

/// Runs a primary with one backup through some thousand writes and all background work.
fn worked(index: IndexKind) -> (BackupCounts, u64, u64) {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let primary = primary(opened(&nodes[0]), 1, index, &[&nodes[1]]);
    for number in 0..3_000_u64 {
        let key = (number * 7 % 1_000).to_le_bytes();
        primary
            .put(&key, &[5; 8_000], Durability::Memory)
            .expect("put");
        while primary.maintain().expect("no fault is set")
            != PrimaryWorkDone::Engine(WorkDone::Nothing)
        {}
    }
    while nodes[1].serve() {}
    let counts = nodes[1].backup().as_ref().expect("it is one").counts();
    let work = primary.engine().work();
    assert!(work.flush_count > 50 && work.merge_count > 20, "{work:?}");
    let trees = work.flush_size_bytes + work.merge_size_bytes;
    let sent = primary.status().backups[0].index_size_bytes;
    drop(primary);
    let promoted = nodes[1].promote(2).expect("promoted");
    assert_eq!(all(&promoted).len(), 1_000);
    (counts, trees, sent)
}

/// With sent trees, a backup flushes and merges nothing, reads almost nothing, and writes the
/// primary's trees once. With built trees, no tree is sent, and the backup does all of that work
/// again (REPLICATION-9, REPLICATION-11).
#[test]
fn backups_do_no_compaction_where_trees_are_sent() {
    let (sent, trees, sent_size_bytes) = worked(IndexKind::Sent);
    assert_eq!((sent.work.flush_count, sent.work.merge_count), (0, 0));
    assert_eq!(sent.refused_count, 0);
    assert_eq!(sent_size_bytes, trees, "each tree once");
    assert_eq!(sent.index_received_size_bytes, trees);
    assert_eq!(sent.work.trees.written, trees);
    // Only the references of each tree, to check that their targets exist.
    assert!(sent.work.trees.read < trees / 2, "{sent:?}");

    let (built, _, sent_size_bytes) = worked(IndexKind::Built);
    assert!(
        built.work.flush_count > 50 && built.work.merge_count > 0,
        "{built:?}"
    );
    assert_eq!((sent_size_bytes, built.index_received_size_bytes), (0, 0));
    assert!(built.work.trees.read > sent.work.trees.read, "{built:?}");
    assert_eq!(built.edit_count, 0);
}

/// Backups do not write the space after the last record of a log segment. So values of which one
/// fits into a segment take no more space on their devices than on the primary's, whether they were
/// sent individually or with a base. Backups once wrote whole segments, twice as much
/// (REPLICATION-4, REPLICATION-10).
#[test]
fn backups_write_no_more_of_the_log_than_primaries() {
    let written = |node: &Node| {
        let counts = node.backup().as_ref().expect("it is one").counts();
        counts.work.log.written
    };
    for durability in [Durability::Memory, Durability::Sync] {
        let nodes: Vec<Node> = (0..3).map(Node::new).collect();
        let before = primary(opened(&nodes[0]), 1, IndexKind::Sent, &[&nodes[1]]);
        for number in 0..20_u64 {
            let value = vec![number as u8; 1_100_000];
            let put = before.put(&number.to_le_bytes(), &value, durability);
            put.expect("put");
        }
        before.sync().expect("durable");
        while nodes[1].serve() {}
        let by_primary = before.engine().work().log.written;
        assert!(by_primary > 20 * 1_100_000, "{by_primary}");
        // Each has a few records of its own.
        let by_backup = written(&nodes[1]);
        assert!(by_backup < by_primary + 10_000, "{by_backup}, {by_primary}");
        drop(before);
        // A reopened primary does not know from memory where its segments end.
        let again = primary(opened(&nodes[0]), 2, IndexKind::Sent, &[&nodes[2]]);
        let by_filled = written(&nodes[2]);
        assert!(by_filled < by_primary + 10_000, "{by_filled}, {by_primary}");
        drop(again);
        let promoted = nodes[2].promote(3).expect("promoted");
        assert_eq!(all(&promoted).len(), 20);
    }
}

/// A write is one round trip to each backup, of four verbs. No processor of the backup takes part:
/// its server does nothing meanwhile. Waiting threads share the round trip (REPLICATION-5).
#[test]
fn a_write_is_one_round_trip() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    let primary = primary(opened(&nodes[0]), 1, IndexKind::Sent, &[&nodes[1]]);
    primary.put(b"first", b"", Durability::Memory).expect("put");
    nodes[1].faults.steps_left.store(0, Ordering::Release);
    let before = primary.status().backups[0].clone();
    for number in 0..100_u64 {
        let key = number.to_le_bytes();
        primary
            .put(&key, &[0; 20], Durability::Memory)
            .expect("put");
    }
    let after = primary.status().backups[0].clone();
    assert_eq!(after.round_count - before.round_count, 100);
    // Besides a record of 40 bytes, only the word that it shares with the previous one is sent.
    let size_bytes = after.log_size_bytes - before.log_size_bytes;
    assert!((4_000..4_800).contains(&size_bytes), "{size_bytes}");
    let steps_left = nodes[1].faults.steps_left.load(Ordering::Acquire);
    assert_eq!(steps_left, 0, "its server was not asked");
}

/// Many threads that write at once share round trips (REPLICATION-5).
#[test]
fn those_who_wait_share_a_round_trip() {
    let nodes: Vec<Node> = (0..2).map(Node::new).collect();
    nodes[1].become_backup(1);
    let primary = Primary::new(opened(&nodes[0]), Epoch(1), options(IndexKind::Sent));
    let endpoint = || Slow(MappedEndpoint::new(nodes[1].memory.clone()));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                if !nodes[1].serve() {
                    thread::yield_now();
                }
            }
        });
        let connections = BackupConnections {
            log: endpoint(),
            index: endpoint(),
            layout: layout(),
        };
        primary
            .add_backup(BackupId(1), connections)
            .expect("filled");
        let writers: Vec<_> = (0..8_u64)
            .map(|writer| {
                let primary = &primary;
                scope.spawn(move || {
                    for number in 0..50_u64 {
                        let key = [writer.to_le_bytes(), number.to_le_bytes()].concat();
                        primary.put(&key, b"", Durability::Memory).expect("put");
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("no panic");
        }
        is_over.store(true, Ordering::Release);
    });
    let round_count = primary.status().backups[0].round_count;
    assert!(
        round_count < 300,
        "{round_count} round trips for 400 writes"
    );
}

/// An endpoint whose batches take two milliseconds.
struct Slow(MappedEndpoint);

impl Endpoint for Slow {
    async fn execute(
        &self,
        batch: &mut farleaf_fabric::Batch,
    ) -> Result<(), farleaf_fabric::BatchError> {
        thread::sleep(std::time::Duration::from_millis(2));
        self.0.execute_now(batch)
    }

    fn poll_completions(&self) -> usize {
        0
    }

    fn counters(&self) -> &farleaf_fabric::Counters {
        self.0.counters()
    }

    fn memory_word_count(&self, node: farleaf_base::NodeId) -> Option<u64> {
        self.0.memory_word_count(node)
    }
}
