//! What is not as it was written is an error, where it was durable, and the end of the log, where
//! it was not.

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
    // The edit that reserved the segments, of which one is written: nothing else says that there is
    // a log at all.
    let storage = CrashStorage::new(4);
    let log = open(&shared(&storage)).expect("made");
    for index in 0..3 {
        log.put(&[index], 1 << 20).expect("written");
    }
    assert!(is_damaged(&open(&without_the_last_edit(&storage))));

    // The one that says how far the log is durable (VL6).
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
    let Err(LsmError::DamagedManifest { how, .. }) = opened.map(|it| it.replayed) else {
        panic!("a mark tells of it");
    };
    assert_eq!(size_bytes(), before, "what may have been in force is there");
    assert!(how.contains("2 edits") && how.contains("3 once"), "{how}");

    // A record that begins in segments of one edit and goes on in those of the next.
    let (storage, log) = made();
    log.put(b"large", 17 << 21).expect("written");
    assert!(is_damaged(&open(&without_the_last_edit(&storage))));
}

/// A bug that was found: an old manifest, which names for what was to come the segments that the
/// log has had since, was taken for the newest, and what it knows nothing of was given up. Promise
/// (MF2): it is damage; with the right one put back, all is there.
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
    // It has reserved segments for the first one: they are given back, and taken again, when the
    // log is opened.
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
        let Err(LsmError::DamagedLog { how, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert!(how.contains("or an old one"), "{how}");
    }
    assert_eq!(with(&last).expect("whole"), 3);
}

/// A bug that was found: a log of which nothing was left, or not the mark behind what was lost,
/// passed for one that was never written. Promise (VL6): what a first sync has made durable is
/// missed, wherever the file was cut, and so is all but the last 8 MiB of what was synced later, of
/// each life of the log; for one edit in 8 MiB.
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
    // What a mark ends with is zeros, as a file has them that is cut there and is read as long.
    for size_bytes in 0..said.0 - 7 {
        let Err(LsmError::DamagedLog { how, .. }) = cut(&storage, size_bytes).map(drop) else {
            panic!("{size_bytes} bytes are left");
        };
        let synced = format!("was on the device up to {said}");
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
    // To reserve 16 segments, twice, when the last ones are begun; of the first sync; of others,
    // whenever 8 MiB have come.
    assert_eq!(log.manifest.edit_count(), 2 + 1 + 7);
    drop(log);
    // What was read again is said then; of what comes next the first sync says it anew.
    let again = open(&shared(&storage)).expect("whole");
    let first = put_synced(&again, b"again", 30).number();
    let place = again.log.segments().place(first).expect("it is there");
    drop(again);
    for size_bytes in [0, 11 << 20, place.offset(), place.offset() + 40] {
        let opened = cut(&storage, size_bytes);
        assert!(is_damaged(&opened), "{size_bytes} bytes are left");
    }
}

/// Promise (VL6): of a log that is written on and on all is missed but the last 8 MiB.
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

/// Promise (VL6): when the manifest was asked to say how far the log is durable, all of that is
/// missed; which costs an edit if there is anything to say, and says nothing of what is not synced.
#[test]
fn all_that_was_said_is_missed() {
    let storage = CrashStorage::new(12);
    let log = open(&shared(&storage)).expect("made");
    log.log.say_all_synced().expect("nothing is to do");
    assert_eq!(log.manifest.edit_count(), 0);
    for index in 0..3 {
        put_synced(&log, &[index], 30);
    }
    let synced_to = log.log.synced_to();
    log.put(b"late", 30).expect("written");
    for _ in 0..2 {
        log.log.say_all_synced().expect("said");
        assert_eq!(log.manifest.edit_count(), 3);
    }
    assert_eq!(log.manifest.with_state(|it| it.log_synced_to), synced_to);
    drop(log);
    let copy = storage.lose_power(PowerLoss::Everything);
    let file = copy.open(FILE).expect("there");
    file.set_size(synced_to.0 - 8).expect("cut");
    assert!(is_damaged(&open(&shared(&copy))));
}

/// Promise (VL6, VL7): where there is no room in the manifest to say how far the log is durable,
/// the write is not acknowledged, and is when there is.
#[test]
fn what_is_not_said_is_not_acknowledged() {
    let storage = CrashStorage::new(7);
    let faulty = FaultyStorage::new(shared(&storage));
    let log = open(&(Arc::new(faulty.clone()) as Arc<dyn Storage>)).expect("made");
    let put = log.put(b"key", 30).expect("written");
    // For the record and the mark behind it, and less than an edit.
    faulty.set(Fault::Full {
        after_bytes: put.end.0 + 28 + 20,
    });
    let failed = log.log.sync_to(put.end).expect_err("there is no room");
    assert!(failed.is_no_room(), "{failed}");
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

/// Promise (VL6, VL7): where the edit that says how far the log is durable cannot be written or
/// synced, but for want of room to write it, nothing is appended any more: nobody knows what the
/// manifest says.
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
