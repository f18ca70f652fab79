//! What is not as it was written is an error, where it was durable, and the end of the log, where
//! it was not.

use std::sync::Arc;

use super::{Opened, open};
use crate::error::LsmError;
use crate::log::FILE;
use crate::manifest::Change;
use crate::place::{LogPosition, SEGMENT_SIZE_BYTES};
use crate::storage::{CrashStorage, PowerLoss, Storage};

fn shared(storage: &CrashStorage) -> Arc<dyn Storage> {
    Arc::new(storage.clone())
}

fn put_synced(log: &Opened, key: &[u8], size_bytes: usize) -> LogPosition {
    let appended = log.put(key, size_bytes).expect("written");
    log.log.sync_to(appended.end).expect("synced");
    appended.end
}

/// A copy of a directory in which a byte is another one.
fn flipped(storage: &CrashStorage, file: &str, offset: u64) -> Arc<dyn Storage> {
    let copy = storage.lose_power(PowerLoss::Everything);
    let file = copy.open(file).expect("it is there");
    let mut byte = [0];
    file.read_at(&mut byte, offset).expect("read");
    file.write_at(&[byte[0] ^ 0x10], offset).expect("written");
    shared(&copy)
}

fn is_damaged(opened: &Result<Opened, LsmError>) -> bool {
    matches!(opened, Err(LsmError::DamagedLog { .. }))
}

/// Promise (VL6): a byte that is not what was written, in what a mark says was on the device, is
/// damage; in what none says, the log ends there, and what was before is there.
#[test]
fn no_damage_is_taken_for_the_end() {
    let storage = CrashStorage::new(1);
    let log = open(&shared(&storage)).expect("made");
    for index in 0..4 {
        put_synced(&log, &[index], 30);
    }
    // This mark is in the next write: it says that all before it was on the device.
    let covered = log.log.synced_to();
    let last = log.put(b"last", 30).expect("written");
    log.log.sync_to(last.end).expect("synced");
    let end = log.log.synced_to();
    for at in 0..end.0 {
        let opened = open(&flipped(&storage, FILE, at));
        if at < covered.0 {
            assert!(is_damaged(&opened), "byte {at}");
        } else {
            let count = opened.expect("it is the end").replayed.len();
            assert_eq!(count, if at < last.end.0 { 4 } else { 5 }, "byte {at}");
        }
    }
}

/// Promise (VL6): the same in the middle of a record of several segments, and in a segment that is
/// full, and in one at whose end the log was read again once.
#[test]
fn damage_of_full_segments_is_found() {
    let storage = CrashStorage::new(2);
    let log = open(&shared(&storage)).expect("made");
    put_synced(&log, b"small", 30);
    put_synced(&log, b"large", 3 << 21);
    put_synced(&log, b"half", 3 << 19);
    put_synced(&log, b"half", 3 << 19);
    put_synced(&log, b"small", 30);
    put_synced(&log, b"small", 30);
    let segments = [0, 1, 2, 3, 4, 5];
    for at in segments.map(|it| it * SEGMENT_SIZE_BYTES + 40) {
        assert!(is_damaged(&open(&flipped(&storage, FILE, at))), "{at}");
    }
    // Now the manifest says where the log ended: what no mark covers, too, was on the device.
    let storage = storage.lose_power(PowerLoss::Everything);
    let again = open(&shared(&storage)).expect("it is whole");
    let (last, .., size_bytes) = again.replayed.last().expect("some");
    for at in [0, 16, 31, last.0, last.plus(size_bytes - 1).0] {
        assert!(is_damaged(&open(&flipped(&storage, FILE, at))), "{at}");
    }
}

/// Promise (VL6): what is before the place from which the log is read again is not read; that the
/// segment of that place is not there is damage.
#[test]
fn the_log_is_there_up_to_where_it_is_read_from() {
    let storage = CrashStorage::new(3);
    let log = open(&shared(&storage)).expect("made");
    let from = put_synced(&log, b"small", 30);
    let changes = [Change::ReadFrom(log.log.synced_to())];
    log.manifest.commit(&changes).expect("committed");
    assert!(is_damaged(&open(&flipped(&storage, FILE, 5))));
    let opened = open(&flipped(&storage, FILE, from.0 - 1)).expect("not read");
    assert_eq!(opened.replayed, []);
}

/// The last line of the manifest is one that was never whole.
fn without_the_last_edit(storage: &CrashStorage) -> Arc<dyn Storage> {
    let file = storage.open("MANIFEST-1").expect("it is there");
    flipped(storage, "MANIFEST-1", file.size().expect("open") - 3)
}

/// Promise (MF2): a manifest that lacks an edit which was in force is damage, if a mark tells of
/// it, or if it named a segment that was written.
#[test]
fn a_lost_edit_is_damage() {
    let made = || {
        let storage = CrashStorage::new(4);
        let log = open(&shared(&storage)).expect("made");
        put_synced(&log, b"first", 30);
        (storage, log)
    };
    let edit = [Change::ReadFrom(LogPosition(0))];
    // The edit that reserved the segment: nothing else says that there is a log at all.
    let (storage, _log) = made();
    assert!(is_damaged(&open(&without_the_last_edit(&storage))));

    let (storage, log) = made();
    log.manifest.commit(&edit).expect("committed");
    let count = open(&without_the_last_edit(&storage)).map(|it| it.replayed.len());
    assert_eq!(count.expect("no mark tells of it"), 1);

    let (storage, log) = made();
    log.manifest.commit(&edit).expect("committed");
    put_synced(&log, b"second", 30);
    let storage = without_the_last_edit(&storage);
    let size_bytes = || {
        let file = storage.open("MANIFEST-1").expect("there");
        file.size().expect("open")
    };
    let before = size_bytes();
    let opened = open(&storage);
    let Err(LsmError::DamagedManifest { how, .. }) = opened.map(|it| it.replayed) else {
        panic!("a mark tells of it");
    };
    assert_eq!(size_bytes(), before, "what may have been in force is there");
    assert!(how.contains("1 edits") && how.contains("2 once"), "{how}");

    // A record that begins in segments of one edit and goes on in those of the next.
    let (storage, log) = made();
    put_synced(&log, b"large", 17 << 21);
    assert!(is_damaged(&open(&without_the_last_edit(&storage))));
}

/// Promise: without its file, or with a shorter one, a log is damaged, and not empty.
#[test]
fn a_file_that_is_gone_is_damage() {
    let storage = CrashStorage::new(5);
    let log = open(&shared(&storage)).expect("made");
    put_synced(&log, b"first", 30);
    put_synced(&log, b"second", 30);
    drop(log);
    drop(open(&shared(&storage)).expect("whole"));
    let copy = storage.lose_power(PowerLoss::Everything);
    copy.open(FILE).expect("there").set_size(0).expect("cut");
    assert!(is_damaged(&open(&shared(&copy))));
    copy.remove(FILE).expect("removed");
    let opened = open(&shared(&copy));
    assert!(matches!(opened, Err(LsmError::DamagedManifest { .. })));
    assert!(
        !copy.list().expect("listed").iter().any(|it| it == FILE),
        "nothing was changed"
    );
}
