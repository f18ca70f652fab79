//! The word of a backup on which both sides use atomics (REPLICATION-8, REPLICATION-12).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::block_on;
use farleaf_fabric::verbs::VerbsEndpoint;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_lsm::storage::{DirectoryStorage, Storage};
use farleaf_replica::{Backup, BackupOptions, Epoch, ReplicaError};

use crate::memory::Memory;
use crate::over::{FIRST_WORD, layout};

/// Duration: enough for a thousand epochs in a guest, or for a fraction of them on a busy machine.
const TIME: Duration = Duration::from_secs(3);
/// Number of polls in a batch: more than a primary has, so that more of them are in progress at a
/// time.
const POLL_COUNT: usize = 16;

/// The epoch of a raised backup does not fall, although batches constantly check it by a CAS from
/// the previous epoch to the same, as primaries do. With a backup that used its processor, one of
/// some thousand epochs fell, over Soft-RoCE (FABRIC-4, REPLICATION-8, REPLICATION-12).
pub(crate) fn an_epoch_that_was_raised_does_not_fall() {
    let (_node, memory) = Memory::served();
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let storage = DirectoryStorage::open(scratch.path()).expect("it is there");
    let storage: Arc<dyn Storage> = Arc::new(storage);
    let options = BackupOptions::default();
    let backup = Backup::new(memory.near(), layout(), Epoch(1), storage, options);
    let mut backup = backup.expect("its words are there");
    let (seen, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
    let endpoint = memory.connection();
    let raised = thread::scope(|scope| {
        let (seen, is_over) = (&seen, &is_over);
        scope.spawn(move || poll(&endpoint, seen, is_over));
        let raised = raise(&mut backup, seen);
        is_over.store(true, Ordering::Release);
        raised
    });
    let raised = raised.expect("no epoch has fallen");
    assert_eq!(memory.word(FIRST_WORD), raised, "the last epoch has fallen");
    assert!(raised > 10, "only {raised} epochs");
}

/// Polls the epoch until the test is over, and publishes the value seen.
fn poll(endpoint: &VerbsEndpoint, seen: &AtomicU64, is_over: &AtomicBool) {
    let word = WordAddr::new(NodeId(0), FIRST_WORD);
    let mut batch = Batch::new();
    let mut epoch = 1;
    while !is_over.load(Ordering::Acquire) {
        batch.clear();
        let polls = [(); POLL_COUNT].map(|()| batch.compare_swap(word, epoch, epoch));
        let executed = endpoint.execute(&mut batch);
        block_on(executed, endpoint.completions()).expect("it is served");
        epoch = batch.previous(polls[POLL_COUNT - 1]);
        seen.store(epoch, Ordering::Release);
    }
}

/// Raises the backup whenever its last epoch was seen, at any moment of the batch in progress.
/// Returns the last epoch.
fn raise<E: Endpoint>(backup: &mut Backup<E>, seen: &AtomicU64) -> Result<u64, ReplicaError> {
    let until = Instant::now() + TIME;
    let mut epoch = 1;
    while Instant::now() < until {
        if seen.load(Ordering::Acquire) < epoch {
            thread::yield_now();
            continue;
        }
        let since = Instant::now();
        while since.elapsed() < Duration::from_micros(epoch * 37 % 400) {
            core::hint::spin_loop();
        }
        epoch += 1;
        backup.raise(Epoch(epoch))?;
    }
    Ok(epoch)
}
