//! Reads of the log from memory.

use std::sync::Arc;

use super::{LogMemory, Opened, open_with};
use crate::cache::BlockCache;
use crate::log::record::RecordKind;
use crate::place::{BlockNumber, LogNumber, LogPosition, SEGMENT_SIZE_BYTES, TreeId};
use crate::storage::{CrashStorage, Storage};
use crate::tree::block_for_tests;
use crate::written::WrittenSum;

/// Promise: records of the last segments that fit into memory are read without the device, wherever
/// they begin and end. Older records, and those larger than a segment, are read from it. All
/// contents are right while segments replace each other.
#[test]
fn the_end_of_the_log_is_in_memory() {
    const SIZE_BYTES: usize = 100_000;
    let segment = SEGMENT_SIZE_BYTES as usize;
    let shared: Arc<dyn Storage> = Arc::new(CrashStorage::new(3));
    // A segment and a half have space for one.
    for (memory_size_bytes, segment_count) in [(0, 0), (segment * 3 / 2, 1), (3 * segment, 3)] {
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
                // Segments of a large record are not kept, so earlier ones may be.
                let age = open.0 - position.number().0;
                let is_large = *size_bytes > segment;
                if age <= segment_count && !is_large {
                    assert_eq!(device(), before, "{position} of {open:?}");
                } else if is_large || age > segment_count + 3 {
                    assert!(device() > before, "{position} of {open:?}");
                }
            }
        }
    }
}

/// Promise: if a segment was closed so long ago that its end is no longer known, a follower
/// receives all of the device's bytes. The checksum covers them, even if memory has the segment up
/// to its end.
#[test]
fn checksums_of_old_segments_are_of_what_is_sent() {
    const COUNT: u64 = 70;
    let segment = SEGMENT_SIZE_BYTES as usize;
    let storage: Arc<dyn Storage> = Arc::new(CrashStorage::new(3));
    let memory = LogMemory {
        recent_size_bytes: COUNT as usize * segment,
        ..LogMemory::none()
    };
    let log = open_with(&storage, memory).expect("a new one").log;
    for index in 0..COUNT {
        // One in each segment: there is no space for another.
        let value = vec![index as u8; segment / 2 + 1];
        log.append(RecordKind::Put, &b"key"[..], &value[..], |_| ())
            .expect("there is room");
    }
    let mut sent = Vec::new();
    let first = LogPosition(0).number();
    for number in (first.0..COUNT - 1).map(LogNumber) {
        log.read_raw(number.start(), &mut sent)
            .expect("it is there");
        let sum = log.sum_of(number, sent.len() as u32);
        assert_eq!(
            sum.expect("it is there"),
            WrittenSum::of(&sent),
            "{number:?}"
        );
    }
}

fn with_cache(shared: &Arc<dyn Storage>, cache: &Arc<BlockCache>) -> Opened {
    let memory = LogMemory {
        cache: Arc::clone(cache),
        ..LogMemory::none()
    };
    open_with(shared, memory).expect("it is whole")
}

/// Appends records until this many segments are full, and returns them.
fn filled(log: &Opened, count: usize, size_of: impl Fn(usize) -> usize) -> Vec<Filled> {
    let mut records = Vec::new();
    for index in 0..count {
        let (key, size_bytes) = (format!("{index:06}"), size_of(index));
        let appended = log.put(key.as_bytes(), size_bytes);
        records.push((appended.expect("there is room").position, key, size_bytes));
    }
    let open = log.log.tail().open_number().expect("one is open");
    records.retain(|(position, ..)| position.number() < open);
    records
}

type Filled = (LogPosition, String, usize);

/// Promise: records that are read repeatedly are no longer read from the device, with few
/// exceptions, if the cache has space. This holds for records and headers that continue in the next
/// block. Larger records are read from the device each time. All contents are right.
#[test]
fn blocks_that_are_asked_for_again_stay() {
    let shared: Arc<dyn Storage> = Arc::new(CrashStorage::new(4));
    let log = with_cache(&shared, &Arc::new(BlockCache::new(64 << 20)));
    let sizes = [0, 90, 300, 440, 17_000, 5];
    let records = filled(&log, 20_000, |index| match sizes[index % sizes.len()] {
        17_000 => 17_000,
        // So that records begin at any offset of a block.
        size_bytes => size_bytes + index / 6 % 37,
    });
    assert!(records.len() > 15_000);
    let in_two = records
        .iter()
        .filter(|(position, ..)| position.offset() % 4096 > 4096 - 12);
    assert!(in_two.count() > 5, "headers in two blocks");
    let device = || log.log.segments().device.bytes().read;
    let mut read = Vec::new();
    for _ in 0..4 {
        let mut small = 0;
        for (position, key, size_bytes) in &records {
            let before = device();
            log.assert_reads(*position, key.as_bytes(), *size_bytes);
            let read = device() - before;
            let is_large = *size_bytes == 17_000;
            assert!(!is_large || read >= 17_000);
            small += if is_large { 0 } else { read };
        }
        read.push(small);
    }
    // Of three blocks with equal hash prefixes, one may be forgotten each time.
    assert!(read[3] * 20 < read[0], "{read:?}");
}

/// Promise: reading the log in order evicts nothing from the cache. Neighbors in a block once
/// counted as a second request, which evicted everything.
#[test]
fn a_pass_over_the_log_drives_nothing_out() {
    let shared: Arc<dyn Storage> = Arc::new(CrashStorage::new(4));
    let cache = Arc::new(BlockCache::new(4 << 20));
    let log = with_cache(&shared, &cache);
    let records = filled(&log, 100_000, |_| 90);
    for number in (0..500).map(BlockNumber) {
        let block = Arc::new(block_for_tests(TreeId(1), number));
        cache.insert(TreeId(1), number, &block);
        assert!(cache.get(TreeId(1), number).is_some());
    }
    for (position, key, size_bytes) in &records {
        log.assert_reads(*position, key.as_bytes(), *size_bytes);
    }
    let left = (0..500).filter(|it| cache.get(TreeId(1), BlockNumber(*it)).is_some());
    assert_eq!(left.count(), 500);
}
