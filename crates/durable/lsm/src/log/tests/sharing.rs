//! Waiting threads share a sync, and nothing is written after a failed one.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::open;
use crate::error::LsmError;
use crate::log::FILE;
use crate::place::LogPosition;
use crate::storage::{CrashStorage, Fault, FaultyStorage, Operation, PowerLoss, Storage};

fn faulty(seed: u64) -> (CrashStorage, FaultyStorage, Arc<dyn Storage>) {
    let storage = CrashStorage::new(seed);
    let faulty = FaultyStorage::new(Arc::new(storage.clone()));
    let shared = Arc::new(faulty.clone());
    (storage, faulty, shared)
}

/// Promise: threads that arrive during a sync wait for the next one, and all of them share it.
#[test]
fn one_sync_is_for_all_who_wait() {
    let (_, faulty, shared) = faulty(1);
    let log = open(&shared).expect("made");
    let first = log.put(b"first", 10).expect("written");
    faulty.set(Fault::Slow {
        operations: &[Operation::Sync],
        each: Duration::from_millis(150),
    });
    faulty.clear_counters();
    let sync_count = || faulty.counters_of(FILE).operation_count(Operation::Sync);
    thread::scope(|scope| {
        scope.spawn(|| log.log.sync_to(first.end).expect("synced"));
        let started = Instant::now();
        while sync_count() == 0 && started.elapsed() < Duration::from_secs(20) {
            thread::yield_now();
        }
        for index in 0..6 {
            let log = &log;
            scope.spawn(move || {
                let appended = log.put(&[index], 10).expect("written");
                log.log.sync_to(appended.end).expect("synced");
                assert!(log.log.synced_to() >= appended.end);
            });
        }
    });
    // One more, if a thread is so late that it arrives after the second sync began.
    let count = sync_count();
    assert!((2..=3).contains(&count), "{count} syncs for 7 writers");
    let end = log.log.synced_to();
    log.log.sync_to(end).expect("it is");
    assert_eq!(sync_count(), count, "what is synced is not synced again");
}

/// Promise: marks of syncs do not count as written data, however many are adjacent, even if a mark
/// begins a segment. After a sync of all written data, nothing is left to sync, and the next write
/// counts again.
#[test]
fn marks_are_nothing_written() {
    let (_, faulty, shared) = faulty(3);
    let log = open(&shared).expect("made");
    assert_eq!(log.log.written_end(), log.log.synced_to());
    for round in 0..40_u8 {
        let appended = log.put(&[round], 150_000).expect("written");
        assert_eq!(log.log.written_end(), appended.end);
        // At most one more where a segment ended.
        let mut synced_to = LogPosition(0);
        let mut tries = 0;
        while log.log.written_end() > synced_to {
            synced_to = log.log.end();
            log.log.sync_to(synced_to).expect("synced");
            tries += 1;
        }
        assert!(tries <= 2, "{tries} in round {round}");
        let end = log.log.written_end();
        for _ in 0..3 {
            log.log.sync_to(log.log.end().plus(1)).expect("synced");
            assert_eq!(log.log.written_end(), end, "only marks came");
        }
    }
    assert!(faulty.counters().operation_count(Operation::Sync) > 0);
}

/// Promise: after a failed write or sync nothing is written, and errors give the reason.
/// Acknowledged data is present and can be read.
#[test]
fn a_failure_stops_the_log() {
    for operation in [&[Operation::Write], &[Operation::Sync]] {
        let (storage, faulty, shared) = faulty(2);
        let log = open(&shared).expect("made");
        let good = log.put(b"good", 10).expect("written");
        log.log.sync_to(good.end).expect("synced");
        faulty.set(Fault::Fail {
            operations: operation,
            file: Some(FILE.to_owned()),
            nth: 1,
            times: 1,
        });
        let bad = log.put(b"bad", 10).expect("in memory");
        let failed = log.log.sync_to(bad.end);
        assert!(
            matches!(failed, Err(LsmError::Storage { .. })),
            "{failed:?}"
        );
        let first = failed.expect_err("it failed").to_string();
        for stopped in [
            log.put(b"more", 1).map(|_| ()),
            log.log.sync_to(bad.end),
            log.put(b"large", 1 << 23).map(|_| ()),
        ] {
            let Err(LsmError::Stopped { first: reported }) = stopped else {
                panic!("{stopped:?}");
            };
            assert_eq!(reported, first);
        }
        log.assert_reads(good.position, b"good", 10);
        let left: Arc<dyn Storage> = Arc::new(storage.lose_power(PowerLoss::Nothing));
        let again = open(&left).expect("whole");
        assert_eq!(again.replayed.len(), 1);
    }
}

/// Promise: if the disk is too full for a segment, nothing is appended, and the log continues when
/// there is space. Data appended before is present.
#[test]
fn a_full_disk_is_waited_for() {
    let (storage, faulty, shared) = faulty(3);
    let log = open(&shared).expect("made");
    faulty.set(Fault::Full {
        after_bytes: 3 << 20,
    });
    let failed = (0..4).find_map(|index| log.put(&[index], 1 << 20).err());
    assert!(
        matches!(
            failed,
            Some(LsmError::Storage {
                action: "write",
                ..
            })
        ),
        "{failed:?}"
    );
    let large = log.put(b"large", 1 << 23).map(|_| ());
    assert!(large.is_err_and(|error| error.is_out_of_space()));
    faulty.lift_all();
    let more = log.put(b"more", 1).expect("there is room");
    log.log.sync_to(more.end).expect("there is room");
    log.assert_reads(more.position, b"more", 1);
    let left: Arc<dyn Storage> = Arc::new(storage.lose_power(PowerLoss::Nothing));
    let again = open(&left).expect("whole");
    let keys: Vec<_> = again.replayed.iter().map(|it| it.1.clone()).collect();
    assert_eq!(keys.last(), Some(&b"more".to_vec()), "{keys:?}");
    assert!(!keys.contains(&b"large".to_vec()), "{keys:?}");
}
