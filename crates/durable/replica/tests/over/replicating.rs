//! A primary with writers, a backup on a thread, and its promotion, over any connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use farleaf_fabric::Endpoint;
use farleaf_lsm::follow::IndexKind;
use farleaf_lsm::storage::{DirectoryStorage, Storage};
use farleaf_lsm::{Durability, Engine};
use farleaf_replica::{
    Backup, BackupConnections, BackupCounts, BackupId, BackupOptions, Epoch, Primary, ReplicaError,
};

use super::{Model, assert_equal, engine_options, layout, options, scanned};

const WRITER_COUNT: u64 = 2;
/// Number of records of each writer. Every fiftieth is larger than a log segment; with these the
/// log passes through its two buffers several times.
const RECORD_COUNT: u64 = 150;

/// Thread that serves a backup until it is stopped.
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
        let backup = Backup::new(near, layout(), Epoch(1), storage, options);
        let mut backup = backup.expect("its words are there");
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

    /// Stops when there is nothing more to do, and returns the backup.
    fn stop(self) -> Backup<N> {
        self.is_over.store(true, Ordering::Release);
        self.thread.join().expect("no panic")
    }
}

/// Writes through a primary that reaches its backup by `connection`; the backup accesses its own
/// memory by `near`. Then cuts the primary off as far as possible, and promotes the backup, which
/// must have everything acknowledged. Returns the error of the old primary's next write.
pub(crate) fn replicate<N, E>(
    index: IndexKind,
    near: N,
    connection: impl Fn() -> E,
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
    let connections = BackupConnections {
        log: connection(),
        index: connection(),
        layout: layout(),
    };
    primary
        .add_backup(BackupId(1), connections)
        .expect("filled");
    thread::scope(|scope| {
        for writer in 0..WRITER_COUNT {
            let primary = &primary;
            scope.spawn(move || write(primary, writer));
        }
    });
    primary.confirm().expect("it leads");
    assert_equal(&primary, &own, &[other], index);
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

/// Checks which side has built the backup's trees (REPLICATION-9, REPLICATION-11).
fn assert_index(index: IndexKind, counts: &BackupCounts) {
    let (is_sent, flush_count) = (counts.edit_count > 0, counts.work.flush_count);
    match index {
        IndexKind::Sent => assert!(is_sent && flush_count == 0, "{counts:?}"),
        IndexKind::Built => assert!(!is_sent && flush_count > 0, "{counts:?}"),
    }
    assert_eq!(counts.refused_count, 0, "{counts:?}");
}

/// Checks that an engine has exactly the acknowledged records, by a scan and by gets.
fn assert_whole(engine: &Engine) {
    let mut written = Model::from([(b"before".to_vec(), b"0".to_vec())]);
    for writer in 0..WRITER_COUNT {
        written.extend((0..RECORD_COUNT).map(|number| record(writer, number)));
    }
    let found = scanned(&engine.snapshot());
    // Values of megabytes are useless in a message.
    assert!(found.keys().eq(written.keys()), "{} keys", found.len());
    for (key, value) in &written {
        assert!(found[key] == *value, "the scan's value of {key:?}");
        let got = engine.get(key).expect("it can be read");
        assert!(got.as_ref() == Some(value), "the value of {key:?}");
    }
}
