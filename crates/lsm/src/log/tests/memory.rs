//! VL8: what of the log's end is read from memory.

use std::sync::Arc;

use super::{LogMemory, open_with};
use crate::cache::BlockCache;
use crate::place::SEGMENT_SIZE_BYTES;
use crate::storage::{CrashStorage, Storage};

/// Promise (VL8): records of as many of the last segments as there is memory for are read without
/// the device, wherever they begin and end; older ones, and those larger than a segment, from it;
/// and all of them are right, while segments take each other's place.
#[test]
fn the_end_of_the_log_is_in_memory() {
    const SIZE_BYTES: usize = 100_000;
    let segment = SEGMENT_SIZE_BYTES as usize;
    let shared: Arc<dyn Storage> = Arc::new(CrashStorage::new(3));
    // A segment and a half have room for one.
    for (memory_size_bytes, kept) in [(0, 0), (segment * 3 / 2, 1), (3 * segment, 3)] {
        let memory = LogMemory {
            recent_size_bytes: memory_size_bytes,
            ..LogMemory::none()
        };
        let log = open_with(&shared, memory).expect("it is whole");
        let device = || log.log.segments().device.bytes().read;
        let mut records = Vec::new();
        for index in 0..150_usize {
            let key = format!("{index}");
            let size_bytes = if index == 100 {
                segment * 2
            } else {
                SIZE_BYTES + index
            };
            let appended = log.put(key.as_bytes(), size_bytes).expect("there is room");
            records.push((appended.position, key, size_bytes));
            let open = appended.position.number();
            for (position, key, size_bytes) in records.iter().rev().step_by(7).take(12) {
                let before = device();
                log.assert_reads(*position, key.as_bytes(), *size_bytes);
                // Numbers of a large record's segments are not kept, so what is before it may be.
                let age = open.0 - position.number().0;
                let is_large = *size_bytes > segment;
                if age <= kept && !is_large {
                    assert_eq!(device(), before, "{position} of {open:?}");
                } else if is_large || age > kept + 3 {
                    assert!(device() > before, "{position} of {open:?}");
                }
            }
        }
    }
}

/// Promise (VL9): a record that is asked for again and again is read from the device twice, and
/// then not any more, if the cache has room, whether it goes on in the next block or not; a larger
/// one is read there each time; and all of them are right.
#[test]
fn blocks_that_are_asked_for_again_stay() {
    let shared: Arc<dyn Storage> = Arc::new(CrashStorage::new(4));
    let memory = LogMemory {
        recent_size_bytes: 0,
        cache: Arc::new(BlockCache::new(8 << 20)),
    };
    let log = open_with(&shared, memory).expect("it is whole");
    let sizes = [0, 100, 300, 490, 17_000, 5];
    let mut records = Vec::new();
    for index in 0..1_200_usize {
        let (key, size_bytes) = (format!("{index}"), sizes[index % sizes.len()]);
        let appended = log.put(key.as_bytes(), size_bytes).expect("there is room");
        records.push((appended.position, key, size_bytes));
    }
    let open = log.log.tail().open_number().expect("one is open");
    records.retain(|(position, ..)| position.number() < open);
    assert!(records.len() > 300);
    let device = || log.log.segments().device.bytes().read;
    let mut read = Vec::new();
    for _ in 0..4 {
        let before = device();
        for (position, key, size_bytes) in &records {
            log.assert_reads(*position, key.as_bytes(), *size_bytes);
        }
        read.push(device() - before);
    }
    let large = records.iter().filter(|it| it.2 == 17_000).count() as u64;
    // Neighbours ask for the same block, so many are kept after one round already.
    assert!(read[1] < read[0], "{read:?}");
    assert_eq!(read[2], read[3], "{read:?}");
    assert!(
        read[3] >= large * 17_000 && read[3] < large * 40_000,
        "{read:?}"
    );
}
