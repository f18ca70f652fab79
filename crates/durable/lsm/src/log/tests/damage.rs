//! Corruption is an error in durable data, and the end of the log elsewhere.

use std::sync::Arc;

use super::{Opened, open};
use crate::error::LsmError;
use crate::log::FILE;
use crate::manifest::Change;
use crate::place::{LogPosition, SEGMENT_SIZE_BYTES};
use crate::storage::{CrashStorage, Fault, FaultyStorage, Operation, PowerLoss, Storage};

fn shared(storage: &CrashStorage) -> Arc<dyn Storage> {
    Arc::new(storage.clone())
}

fn put_synced(log: &Opened, key: &[u8], size_bytes: usize) -> LogPosition {
    let appended = log.put(key, size_bytes).expect("written");
    log.log.sync_to(appended.end).expect("synced");
    appended.end
}

/// Returns a copy of a directory with one changed byte.
fn flipped(storage: &CrashStorage, file: &str, offset: u64) -> Arc<dyn Storage> {
    let copy = storage.lose_power(PowerLoss::Everything);
    let file = copy.open(file).expect("it is there");
    let mut byte = [0];
    file.read_at(&mut byte, offset).expect("read");
    file.write_at(&[byte[0] ^ 0x10], offset).expect("written");
    shared(&copy)
}

fn is_damaged(opened: &Result<Opened, LsmError>) -> bool {
    matches!(opened, Err(LsmError::CorruptLog { .. }))
}

/// Promise: a changed byte is corruption if a mark proves that it was durable. Otherwise the log
/// ends there, and everything before is present.
#[test]
fn no_damage_is_taken_for_the_end() {
    let storage = CrashStorage::new(1);
    let log = open(&shared(&storage)).expect("made");
    for index in 0..4 {
        put_synced(&log, &[index], 30);
    }
    // This mark is in the next write, and proves that everything before it was durable.
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

/// Promise: the same holds inside a record of several segments, in a full segment, and in one in
/// which an earlier recovery ended the log.
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
    // Now the manifest records the end of the log, so data without a later mark was durable, too.
    let storage = storage.lose_power(PowerLoss::Everything);
    let again = open(&shared(&storage)).expect("it is whole");
    let (last, .., size_bytes) = again.replayed.last().expect("some");
    for at in [0, 16, 31, last.0, last.plus(size_bytes - 1).0] {
        assert!(is_damaged(&open(&flipped(&storage, FILE, at))), "{at}");
    }
}

/// Promise: data before the start of recovery is not read; a missing segment at that position is
/// corruption.
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

/// Returns a copy in which the manifest's last line is incomplete.
fn without_the_last_edit(storage: &CrashStorage) -> Arc<dyn Storage> {
    let file = storage.open("MANIFEST-1").expect("it is there");
    flipped(storage, "MANIFEST-1", file.size().expect("open") - 3)
}

/// Promise: a manifest without an edit that was in force is corruption. A later mark proves this,
/// or a written segment that the edit named.
#[test]
fn a_lost_edit_is_damage() {
    let made = || {
        let storage = CrashStorage::new(4);
        let log = open(&shared(&storage)).expect("made");
        put_synced(&log, b"first", 30);
        (storage, log)
    };
    let edit = [Change::ReadFrom(LogPosition(0))];
    // The edit that reserved the segments, one of which is written: nothing else proves that there
    // is a log at all.
    let storage = CrashStorage::new(4);
    let log = open(&shared(&storage)).expect("made");
    for index in 0..3 {
        log.put(&[index], 1 << 20).expect("written");
    }
    assert!(is_damaged(&open(&without_the_last_edit(&storage))));

    // The edit that records the durable end of the log.
    let (storage, _log) = made();
    let count = open(&without_the_last_edit(&storage)).map(|it| it.replayed.len());
    assert_eq!(count.expect("no mark tells of it"), 1);

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
    let Err(LsmError::CorruptManifest { how, .. }) = opened.map(|it| it.replayed) else {
        panic!("a mark tells of it");
    };
    assert_eq!(size_bytes(), before, "what may have been in force is there");
    assert!(
        how.contains("2 edits") && how.contains("written with 3"),
        "{how}"
    );

    // A record that begins in segments of one edit and continues in those of the next.
    let (storage, log) = made();
    log.put(b"large", 17 << 21).expect("written");
    assert!(is_damaged(&open(&without_the_last_edit(&storage))));
}

/// Regression: an old manifest names, as reserved, segments that the log has used since. It was
/// taken for the newest one, and data that it did not know was dropped. Promise: it is corruption;
/// with the right manifest restored, everything is present.
#[test]
fn an_old_manifest_is_damage() {
    let storage = CrashStorage::new(11);
    let read = |name: &str| {
        let file = storage.open(name).expect("there");
        let mut bytes = vec![0; file.size().expect("known") as usize];
        file.read_at(&mut bytes, 0).expect("read");
        bytes
    };
    let log = open(&shared(&storage)).expect("made");
    put_synced(&log, b"first", 30);
    drop(log);
    let log = open(&shared(&storage)).expect("whole");
    log.log.reserve_ahead().expect("nothing is to do");
    let first = read("MANIFEST-1");
    // The manifest has reserved segments for the first record; opening the log returns and takes
    // them again.
    put_synced(&log, b"second", 30);
    drop(log);
    let second = read("MANIFEST-1");
    let log = open(&shared(&storage)).expect("whole");
    put_synced(&log, b"third", 30);
    drop(log);
    let last = read("MANIFEST-1");
    let with = |manifest: &[u8]| {
        let copy = storage.lose_power(PowerLoss::Everything);
        let file = copy.open("MANIFEST-1").expect("there");
        file.set_size(0).expect("cut");
        file.write_at(manifest, 0).expect("written");
        open(&shared(&copy)).map(|it| it.replayed.len())
    };
    for old in [&first, &second] {
        let refused = with(old);
        let Err(LsmError::CorruptLog { how, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(how.contains("or an old copy"), "{how}");
    }
    assert_eq!(with(&last).expect("whole"), 3);
}

/// Regression: a log that had lost everything, or everything behind the last mark, passed for one
/// that was never written. Promise: a loss of data from a generation's first sync is found,
/// wherever the file is truncated. Of later data, all but the last 8 MiB is found missing, at a
/// cost of one edit per 8 MiB.
#[test]
fn a_log_that_lost_its_end_is_damaged() {
    let cut = |storage: &CrashStorage, size_bytes: u64| {
        let copy = storage.lose_power(PowerLoss::Everything);
        let file = copy.open(FILE).expect("there");
        file.set_size(size_bytes).expect("cut");
        open(&shared(&copy))
    };
    let storage = CrashStorage::new(6);
    let log = open(&shared(&storage)).expect("made");
    log.log.sync_to(LogPosition(0)).expect("nothing is to do");
    assert_eq!(log.manifest.edit_count(), 0);
    put_synced(&log, b"first", 30);
    let said = log.log.synced_to();
    // A mark ends with zeros, which are also what a read of a truncated and extended file returns.
    for size_bytes in 0..said.0 - 7 {
        let Err(LsmError::CorruptLog { how, .. }) = cut(&storage, size_bytes).map(drop) else {
            panic!("{size_bytes} bytes are left");
        };
        let synced = format!("durable up to {said}");
        assert!(how.contains(&synced), "{how}");
        assert!(how.contains("restore the directory"), "{how}");
    }
    let whole = cut(&storage, said.0).expect("all is there");
    assert_eq!(whole.replayed.len(), 1);

    let storage = CrashStorage::new(7);
    let log = open(&shared(&storage)).expect("made");
    for index in 0..30 {
        put_synced(&log, &[index], 1 << 20);
    }
    // Two edits reserve 16 segments each, one records the first sync, and others each 8 MiB.
    assert_eq!(log.manifest.edit_count(), 2 + 1 + 7);
    drop(log);
    // Recovery recorded what it had read; the first sync records what comes next.
    let again = open(&shared(&storage)).expect("whole");
    let first = put_synced(&again, b"again", 30).number();
    let place = again.log.segments().place(first).expect("it is there");
    drop(again);
    for size_bytes in [0, 11 << 20, place.offset(), place.offset() + 40] {
        let opened = cut(&storage, size_bytes);
        assert!(is_damaged(&opened), "{size_bytes} bytes are left");
    }
}

/// Promise: in a log that is written continuously, all losses but those in the last 8 MiB are
/// found.
#[test]
fn the_manifest_follows_the_log() {
    let storage = CrashStorage::new(8);
    let log = open(&shared(&storage)).expect("made");
    for index in 0..30 {
        put_synced(&log, &[index], 1 << 20);
    }
    let synced_to = log.log.synced_to();
    let said = log.manifest.with_state(|it| it.log_synced_to);
    assert!(said.plus(8 << 20) > synced_to, "{said}, {synced_to}");
    for (size_bytes, expected) in [(said.0 - 8, true), (said.0, false)] {
        let copy = storage.lose_power(PowerLoss::Everything);
        let file = copy.open(FILE).expect("there");
        file.set_size(size_bytes).expect("cut");
        assert_eq!(is_damaged(&open(&shared(&copy))), expected);
    }
}

/// Promise: after `record_whole_durable_end`, any loss of durable data is found. It costs an edit
/// if there is anything to record, and does not record data that is not synced.
#[test]
fn all_that_was_said_is_missed() {
    let storage = CrashStorage::new(12);
    let log = open(&shared(&storage)).expect("made");
    log.log
        .record_whole_durable_end()
        .expect("nothing is to do");
    assert_eq!(log.manifest.edit_count(), 0);
    for index in 0..3 {
        put_synced(&log, &[index], 30);
    }
    let synced_to = log.log.synced_to();
    log.put(b"late", 30).expect("written");
    for _ in 0..2 {
        log.log.record_whole_durable_end().expect("said");
        assert_eq!(log.manifest.edit_count(), 3);
    }
    assert_eq!(log.manifest.with_state(|it| it.log_synced_to), synced_to);
    drop(log);
    let copy = storage.lose_power(PowerLoss::Everything);
    let file = copy.open(FILE).expect("there");
    file.set_size(synced_to.0 - 8).expect("cut");
    assert!(is_damaged(&open(&shared(&copy))));
}

/// Promise: if the disk is too full for the manifest to record the durable end, the write is not
/// acknowledged until there is space.
#[test]
fn what_is_not_said_is_not_acknowledged() {
    let storage = CrashStorage::new(7);
    let faulty = FaultyStorage::new(shared(&storage));
    let log = open(&(Arc::new(faulty.clone()) as Arc<dyn Storage>)).expect("made");
    let put = log.put(b"key", 30).expect("written");
    // Enough for the record and the mark behind it, but not for an edit.
    faulty.set(Fault::Full {
        after_bytes: put.end.0 + 28 + 20,
    });
    let failed = log.log.sync_to(put.end).expect_err("there is no room");
    assert!(failed.is_out_of_space(), "{failed}");
    assert!(failed.to_string().contains("MANIFEST-1"), "{failed}");
    assert!(log.log.synced_to() < put.end);
    faulty.lift_all();
    log.log.sync_to(put.end).expect("there is room");
    assert_eq!(
        log.manifest.with_state(|it| it.log_synced_to),
        log.log.synced_to()
    );
    let left = storage.lose_power(PowerLoss::Nothing);
    left.open(FILE).expect("there").set_size(0).expect("cut");
    assert!(is_damaged(&open(&shared(&left))));
}

/// Promise: if the edit that records the durable end cannot be written or synced, nothing more is
/// appended: the manifest's state is unknown. A write that fails for lack of space is an exception.
#[test]
fn a_failed_edit_stops_the_log() {
    for operation in [&[Operation::Write], &[Operation::Sync]] {
        let faulty = FaultyStorage::new(shared(&CrashStorage::new(9)));
        let log = open(&(Arc::new(faulty.clone()) as Arc<dyn Storage>)).expect("made");
        let put = log.put(b"key", 30).expect("written");
        faulty.set(Fault::Fail {
            operations: operation,
            file: Some("MANIFEST-1".to_owned()),
            nth: 1,
            times: 1,
        });
        log.log.sync_to(put.end).expect_err("it was not said");
        let stopped = log.put(b"more", 30).map(drop);
        assert!(
            matches!(stopped, Err(LsmError::Stopped { .. })),
            "{stopped:?}"
        );
    }
}

/// Promise: a log with a missing or truncated file is corrupted, not empty.
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
    assert!(matches!(opened, Err(LsmError::CorruptManifest { .. })));
    assert!(
        !copy.list().expect("listed").iter().any(|it| it == FILE),
        "nothing was changed"
    );
}
