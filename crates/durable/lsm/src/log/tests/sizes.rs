//! Records of all sizes stay at their positions, and are recovered in order.

use std::sync::Arc;

use super::{Opened, RecoveredRecord, open, seen};
use crate::log::record::{PAYLOAD_SIZE_BYTES, RecordKind};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};
use crate::storage::{CrashStorage, PowerLoss, Storage};

fn opened(storage: &CrashStorage) -> Opened {
    let shared: Arc<dyn Storage> = Arc::new(storage.clone());
    open(&shared).expect("it is whole")
}

/// Asserts that exactly these records are recovered after a power failure that leaves synced data
/// only.
fn assert_comes_again(storage: &CrashStorage, expected: &[RecoveredRecord], sizes: &[usize]) {
    let again = opened(&storage.lose_power(PowerLoss::Nothing));
    assert_eq!(again.replayed, expected);
    for ((position, key, is_delete, _), size_bytes) in expected.iter().zip(sizes) {
        if !is_delete {
            again.assert_reads(*position, key, *size_bytes);
        }
    }
}

/// Promise: records read back at their positions, from memory, from the device, and after recovery,
/// also if they are larger than a segment.
#[test]
fn records_are_read_back() {
    let storage = CrashStorage::new(1);
    let log = opened(&storage);
    let mebibyte = 1 << 20;
    let sizes = [
        0,
        1,
        100,
        70_000,
        mebibyte,
        PAYLOAD_SIZE_BYTES,
        3,
        2 * mebibyte,
        0,
        5 * mebibyte,
        2 * PAYLOAD_SIZE_BYTES - 15,
        2 * PAYLOAD_SIZE_BYTES - 14,
        10,
    ];
    let mut expected = Vec::new();
    for (index, size_bytes) in sizes.into_iter().enumerate() {
        let key = format!("{index:03}");
        let appended = log.put(key.as_bytes(), size_bytes).expect("written");
        expected.push(seen(appended, key.as_bytes(), false, size_bytes));
        for ((position, key, ..), size_bytes) in expected.iter().zip(sizes) {
            log.assert_reads(*position, key, size_bytes);
        }
        if index % 3 == 0 {
            log.log.sync_to(appended.end).expect("synced");
            log.assert_reads(appended.position, key.as_bytes(), size_bytes);
        }
    }
    log.log
        .sync_to(expected.last().expect("some").0.plus(1))
        .expect("synced");
    assert!(expected.is_sorted(), "positions ascend");
    assert_comes_again(&storage, &expected, &sizes);
}

/// Promise: whatever space is left at a segment's end, the next record reads back. An *end* record
/// marks the end if it fits.
#[test]
fn any_remainder_is_ended() {
    let storage = CrashStorage::new(2);
    let log = opened(&storage);
    let remainders = [0, 1, 2, 11, 12, 13, 14, 27, 28, 29, 30, 39, 40, 41];
    let (mut expected, mut sizes) = (Vec::new(), Vec::new());
    for (index, left) in remainders.into_iter().enumerate() {
        // Both have more than half a segment, so both begin one.
        for (key, size_bytes) in [
            (b"fills", PAYLOAD_SIZE_BYTES - 12 - 5 - left),
            (b"after", SEGMENT_SIZE_BYTES as usize / 2 + index),
        ] {
            let appended = log.put(key, size_bytes).expect("written");
            assert_eq!(appended.position.offset(), 32, "{left} bytes left");
            expected.push(seen(appended, key, false, size_bytes));
            sizes.push(size_bytes);
        }
        if index % 2 == 0 {
            let end = log.log.between_records(|end| end);
            log.log.sync_to(end).expect("synced");
        }
    }
    let small = log.put(b"small", 1).expect("written");
    log.log.sync_to(small.end).expect("synced");
    expected.push(seen(small, b"small", false, 1));
    sizes.push(1);
    assert_comes_again(&storage, &expected, &sizes);
}

/// Promise: recovery returns puts and deletes, from the manifest's position on. It returns no
/// marks, no moved records, and no data that was lost unsynced.
#[test]
fn puts_and_deletes_come_again() {
    let storage = CrashStorage::new(3);
    let log = opened(&storage);
    log.put(b"before", 10).expect("written");
    let from = log.log.between_records(|end| end);
    let put = log.put(b"a", 10).expect("written");
    log.log.sync_to(put.end).expect("synced");
    let moved = log.log.append(RecordKind::Moved, b"m", b"moved", |_| ());
    let moved = moved.expect("written");
    let delete = log.delete(b"a").expect("written");
    log.log.sync_to(delete.end).expect("synced");
    log.put(b"late", 10).expect("written");
    let expected = [seen(put, b"a", false, 10), seen(delete, b"a", true, 0)];
    let changes = [crate::manifest::Change::ReadFrom(from)];
    log.manifest.commit(&changes).expect("committed");
    let again = opened(&storage.lose_power(PowerLoss::Nothing));
    assert_eq!(again.replayed, expected);
    let mut record = crate::log::Record::default();
    again.log.read(moved.position, &mut record).expect("there");
    assert_eq!((record.key(), record.value()), (&b"m"[..], &b"moved"[..]));
}

/// Promise: the position between records is the end of the last one, or the start of the next
/// segment. That segment may not exist yet.
#[test]
fn between_records_is_before_the_next() {
    let log = opened(&CrashStorage::new(4));
    let start = log.log.between_records(|end| end);
    assert_eq!(start, LogPosition(0));
    for size_bytes in [5, PAYLOAD_SIZE_BYTES - 13, 5, 1 << 22, 1 << 22, 5] {
        let before = log.log.between_records(|end| end);
        let appended = log.put(b"k", size_bytes).expect("written");
        assert!(before <= appended.position);
        assert!(appended.position.0 - before.0 <= 32 + 2 * size_bytes as u64);
        let after = log.log.between_records(|end| end);
        assert!(after >= appended.end);
    }
    assert!(log.log.segments().place(LogNumber(6)).is_ok());
}
