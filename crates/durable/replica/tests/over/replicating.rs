//! A primary with writers, a backup on a thread, and its promotion, whatever is between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use farleaf_fabric::Endpoint;
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::storage::{DirectoryStorage, Storage};
use farleaf_lsm::{Durability, Engine};
use farleaf_replica::{
    Backup, BackupCounts, BackupId, BackupOptions, BackupWays, Epoch, Primary, ReplicaError,
};

use super::{Model, assert_equal, engine_options, layout, options, scanned};

const WRITER_COUNT: u64 = 2;
/// Of each writer. Every fiftieth is larger than a segment of the log; with the large ones the log
/// goes through its two buffers several times.
const RECORD_COUNT: u64 = 150;

/// A backup's server, on a thread, until it is asked back.
struct Server<N> {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Backup<N>>,
}

impl<N: Endpoint + Send + 'static> Server<N> {
    fn start(near: N, storage: Arc<dyn Storage>) -> Self {
        let options = BackupOptions {
            engine: engine_options(),
            ..BackupOptions::default()
        };
        let of = (storage, options);
        let mut backup = Backup::new(near, layout(), Epoch(1), of).expect("its words are there");
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            loop {
                if backup.serve().expect("it can follow") {
                    continue;
                }
                if over.load(Ordering::Acquire) {
                    return backup;
                }
                thread::yield_now();
            }
        });
        Self { is_over, thread }
    }

    /// When there is nothing to do any more.
    fn stop(self) -> Backup<N> {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().expect("no panic")
    }
}

/// Writes through a primary whose backup is reached by `way`, and has `near` to its own memory;
/// then promotes that one, when the primary has been cut off, as far as it can be. What is promoted
/// has all that was acknowledged. Returns how the old primary's next write was refused.
pub(crate) fn replicate<N, E>(
    index: IndexKind,
    near: N,
    way: impl Fn() -> E,
    cut_off: impl FnOnce(),
) -> ReplicaError
where
    N: Endpoint + Send + 'static,
    E: Endpoint + Send + 'static,
{
    let scratch = [(); 2].map(|()| tempfile::tempdir().expect("a scratch directory"));
    let [own, other] = scratch.each_ref().map(|directory| {
        let storage = DirectoryStorage::open(directory.path()).expect("it is there");
        Arc::new(storage) as Arc<dyn Storage>
    });
    let engine = Engine::open(Arc::clone(&own), engine_options()).expect("made");
    let primary = Primary::new(engine, Epoch(1), options(index));
    primary
        .put(b"before", b"0", Durability::Memory)
        .expect("alone");
    let server = Server::start(near, Arc::clone(&other));
    let ways = BackupWays {
        log: way(),
        index: way(),
        layout: layout(),
    };
    primary.add_backup(BackupId(1), ways).expect("filled");
    thread::scope(|scope| {
        for writer in 0..WRITER_COUNT {
            let primary = &primary;
            scope.spawn(move || write(primary, writer));
        }
    });
    primary.confirm().expect("it leads");
    assert_equal(&primary, &own, (&[other], index));
    let backup = server.stop();
    assert_index(index, &backup.counts());
    cut_off();
    let promoted = backup
        .promote(Epoch(2), engine_options())
        .expect("promoted");
    let late = primary.put(b"late", b"", Durability::Memory);
    let late = late.expect_err("it is primary no more");
    assert_whole(&promoted);
    late
}

fn write<E: Endpoint + Send + 'static>(primary: &Primary<E>, writer: u64) {
    for number in 0..RECORD_COUNT {
        let (key, value) = record(writer, number);
        let durability = if number % 16 == 0 {
            Durability::Sync
        } else {
            Durability::Memory
        };
        let put = primary.put(&key, &value, durability);
        put.expect("acknowledged");
        primary.maintain().expect("no fault is set");
    }
}

fn record(writer: u64, number: u64) -> (Vec<u8>, Vec<u8>) {
    let key = [writer.to_le_bytes(), number.to_le_bytes()].concat();
    let size_bytes = if number % 50 == 7 { 3 << 20 } else { 500 };
    (key, vec![(writer * 101 + number) as u8; size_bytes])
}

/// RP9, RP11: who has made the backup's trees.
fn assert_index(index: IndexKind, counts: &BackupCounts) {
    let (is_sent, flush_count) = (counts.edit_count > 0, counts.work.flush_count);
    match index {
        IndexKind::Sent => assert!(is_sent && flush_count == 0, "{counts:?}"),
        IndexKind::Built => assert!(!is_sent && flush_count > 0, "{counts:?}"),
    }
    assert_eq!(counts.refused_count, 0, "{counts:?}");
}

/// All that was acknowledged, and nothing else, by a scan and by gets.
fn assert_whole(engine: &Engine) {
    let mut written = Model::from([(b"before".to_vec(), b"0".to_vec())]);
    for writer in 0..WRITER_COUNT {
        written.extend((0..RECORD_COUNT).map(|number| record(writer, number)));
    }
    let found = scanned(&engine.snapshot());
    // Values of megabytes are of no use in a message.
    assert!(found.keys().eq(written.keys()), "{} keys", found.len());
    for (key, value) in &written {
        assert!(found[key] == *value, "the scan's value of {key:?}");
        let got = engine.get(key).expect("it can be read");
        assert!(got.as_ref() == Some(value), "the value of {key:?}");
    }
}
