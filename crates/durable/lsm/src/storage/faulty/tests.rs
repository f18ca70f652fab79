//! Each fault has its documented effect, and ends when it is lifted.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::storage::{CrashStorage, Fault, FaultyStorage, Operation, Storage, StorageFile};

fn storage() -> FaultyStorage {
    FaultyStorage::new(Arc::new(CrashStorage::new(1)))
}

fn kind<T>(result: io::Result<T>) -> Result<(), io::ErrorKind> {
    result.map(|_| ()).map_err(|error| error.kind())
}

fn read(file: &dyn StorageFile, size_bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; size_bytes];
    file.read_at(&mut buffer, 0).expect("within the file");
    buffer
}

const FULL: Result<(), io::ErrorKind> = Err(io::ErrorKind::StorageFull);
const FAILED: Result<(), io::ErrorKind> = Err(io::ErrorKind::Other);

/// Promise: the named operations fail, from the n-th on, the requested number of times.
#[test]
fn the_nth_operation_fails() {
    let storage = storage();
    let one = storage.create("one").expect("made");
    let two = storage.create("two").expect("made");
    let fault = storage.set(Fault::Fail {
        operations: &[Operation::Sync, Operation::SetSize],
        file: Some("one".to_owned()),
        nth: 2,
        times: 2,
    });
    let results = [
        one.sync(),
        two.sync(),
        one.set_size(1),
        two.sync(),
        one.sync(),
        one.sync(),
    ];
    let results = results.map(kind);
    assert_eq!(results, [Ok(()), Ok(()), FAILED, Ok(()), FAILED, Ok(())]);
    assert_eq!(one.size().expect("its size"), 0, "nothing was done");
    assert_eq!(storage.hit_count(fault), 2);

    storage.set(Fault::Fail {
        operations: &[Operation::SyncNames],
        file: None,
        nth: 1,
        times: u64::MAX,
    });
    assert_eq!(kind(storage.sync_names()), FAILED);
    let error = storage.sync_names().expect_err("fails for good");
    assert_eq!(error.to_string(), "a fault: SyncNames");
    storage.lift_all();
    storage.sync_names().expect("lifted");
}

/// Promise: a failed write writes its first half; a failed sync syncs nothing.
#[test]
fn what_fails_is_done_in_part_or_not() {
    let memory = CrashStorage::new(1);
    let storage = FaultyStorage::new(Arc::new(memory.clone()));
    let file = storage.create("file").expect("made");
    file.write_at(b"abcdef", 0).expect("written");
    storage.sync_names().expect("synced");
    storage.set(Fault::Fail {
        operations: &[Operation::Write, Operation::Sync],
        file: None,
        nth: 1,
        times: 2,
    });
    assert_eq!(kind(file.write_at(b"ABCDEF", 0)), FAILED);
    assert_eq!(read(&*file, 6), b"ABCdef");
    assert_eq!(kind(file.sync()), FAILED);
    let left = memory.lose_power(crate::storage::PowerLoss::Nothing);
    let file = left.open("file").expect("its name was synced");
    assert_eq!(file.size().expect("its size"), 0);
}

/// Promise: a full disk accepts what fits and refuses the rest, for writes and sizes, until there
/// is space again.
#[test]
fn a_full_disk_takes_what_fits() {
    let storage = storage();
    let file = storage.create("file").expect("made");
    file.write_at(&[1; 4096], 0).expect("written");
    let fault = storage.set(Fault::Full {
        after_bytes: 10_000,
    });
    file.write_at(&[2; 4096], 0).expect("takes no room");
    file.set_size(12_288).expect("takes 8192");
    assert_eq!(kind(file.set_size(15_000)), FULL);
    assert_eq!(file.size().expect("its size"), 12_288);
    file.write_at(&[2; 8192], 4096)
        .expect("takes no room any more");
    assert_eq!(kind(file.write_at(&[3; 8192], 8192)), FULL);
    assert_eq!(file.size().expect("its size"), 12_288);
    let mut buffer = [0; 4096];
    file.read_at(&mut buffer, 8192).expect("there");
    assert_eq!(buffer, [3; 4096], "what fitted is there");
    file.write_at(&[4; 1000], 12_288)
        .expect("takes 1000 of 1808");
    assert_eq!(storage.hit_count(fault), 2);
    assert!(storage.lift(fault));
    file.set_size(1 << 20).expect("lifted");
    assert!(!storage.lift(fault));
}

/// Promise: discarding frees whole blocks, once; truncating, removing and replacing free the file's
/// space.
#[test]
fn space_is_given_back() {
    let memory: Arc<dyn Storage> = Arc::new(CrashStorage::new(1));
    let before = memory.create("before").expect("made");
    before.set_size(4096).expect("set");
    let storage = FaultyStorage::new(memory);
    let file = storage.create("file").expect("made");
    file.write_at(&[1; 16_384], 0).expect("written");
    storage.set(Fault::Full { after_bytes: 0 });
    let probe = |expected_bytes: u64| {
        let probe = storage.create("probe").expect("made");
        assert_eq!(kind(probe.set_size(expected_bytes + 1)), FULL);
        probe.set_size(expected_bytes).expect("there is room");
        storage.remove("probe").expect("removed");
    };
    probe(0);
    file.discard(1, 8192).expect("discarded");
    probe(4096);
    file.discard(0, 8192).expect("discarded");
    probe(8192);
    file.write_at(&[1; 10], 5000).expect("there is room");
    probe(4096);
    file.set_size(4096).expect("cut in the first hole");
    probe(16_384);
    file.set_size(0).expect("cut");
    probe(16_384);
    storage.remove("before").expect("removed, never opened");
    probe(20_480);
    file.set_size(4096).expect("there is room");
    storage.create("new").expect("made");
    storage.rename("new", "file").expect("replaced");
    probe(20_480);
    file.write_at(&[1; 10], 0)
        .expect("has no name, and is not counted");
    let file = storage.open("file").expect("there");
    file.set_size(20_480).expect("there is room");
    probe(0);
    storage.create("file").expect("made empty");
    probe(20_480);
}

/// Promise: a bit that flips in transfer is flipped in one read; one that flips on the disk, until
/// its byte is written.
#[test]
fn bits_flip() {
    let storage = storage();
    let file = storage.create("file").expect("made");
    file.write_at(&[0; 8], 0).expect("written");
    let flip = |bit, stays| Fault::FlipBit {
        file: "renamed".to_owned(),
        offset: 2,
        bit,
        stays,
    };
    let once = storage.set(flip(0, false));
    let stays = storage.set(flip(7, true));
    assert_eq!(read(&*file, 3), [0, 0, 0], "another name");
    storage.rename("file", "renamed").expect("renamed");
    assert_eq!(read(&*file, 2), [0, 0], "not so far");
    assert_eq!(read(&*file, 3), [0, 0, 0x81]);
    assert_eq!(read(&*file, 3), [0, 0, 0x80]);
    assert_eq!((storage.hit_count(once), storage.hit_count(stays)), (1, 2));
    file.write_at(&[9], 1).expect("written beside it");
    assert_eq!(read(&*file, 3), [0, 9, 0x80]);
    file.write_at(&[9], 2).expect("written over it");
    assert_eq!(read(&*file, 3), [0, 9, 9]);
    assert!(!storage.lift(once) && !storage.lift(stays));
}

/// Promise: slow operations take at least the additional time, and others do not wait for them.
#[test]
fn operations_are_slow() {
    let storage = storage();
    let file = storage.create("file").expect("made");
    let each = Duration::from_millis(30);
    let operations = &[Operation::Sync];
    let fault = storage.set(Fault::Slow { operations, each });
    let start = Instant::now();
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync());
        while storage.hit_count(fault) == 0 {
            std::thread::yield_now();
        }
        file.write_at(b"meanwhile", 0).expect("written");
        assert!(!sync.is_finished() || start.elapsed() >= each);
        sync.join().expect("no panic").expect("synced");
    });
    assert!(start.elapsed() >= each);
}

/// Promise: operations and bytes are counted for the file's current name, and in total. Failed
/// operations are counted, with the bytes that they transferred.
#[test]
fn everything_is_counted() {
    let storage = storage();
    let file = storage.create("one").expect("made");
    file.write_at(&[1; 100], 0).expect("written");
    storage.rename("one", "two").expect("renamed");
    file.write_at(&[1; 10], 0).expect("written");
    read(&*file, 50);
    assert_eq!(
        kind(file.read_at(&mut [0; 500], 0)),
        Err(io::ErrorKind::UnexpectedEof)
    );
    storage.set(Fault::Fail {
        operations: &[Operation::Write],
        file: None,
        nth: 1,
        times: 1,
    });
    assert_eq!(kind(file.write_at(&[1; 8], 0)), FAILED);
    storage.list().expect("names");

    let (one, two) = (storage.counters_of("one"), storage.counters_of("two"));
    assert_eq!((one.written_bytes, one.read_bytes), (100, 0));
    assert_eq!((two.written_bytes, two.read_bytes), (14, 50));
    assert_eq!(one.operation_count(Operation::Rename), 1);
    assert_eq!(two.operation_count(Operation::Write), 2);
    assert_eq!(two.operation_count(Operation::Read), 2);
    let all = storage.counters();
    assert_eq!((all.written_bytes, all.read_bytes), (114, 50));
    assert_eq!(all.operation_count(Operation::List), 1);
    assert_eq!(storage.counters_by_file().len(), 2);
    storage.clear_counters();
    assert_eq!(storage.counters().operation_count(Operation::Write), 0);
}
