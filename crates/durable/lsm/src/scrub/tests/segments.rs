//! Single segments, and records larger than one.

use std::sync::Arc;

use super::{end_of_records, round};
use crate::engine::WorkDone;
use crate::engine::tests::tiny;
use crate::follow::{Edit, Follow};
use crate::log::record::{EngineId, encode_segment_header};
use crate::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};
use crate::scrub::Scrub;
use crate::scrub::segment::{SegmentCheck, check_segment};
use crate::storage::{CrashStorage, Fault, FaultyStorage, Operation, Storage};
use crate::{Durability, Engine, LsmError};

/// Promise: each bit of a segment's header and records is verified, and none behind them.
#[test]
fn each_bit_of_a_segment_counts() {
    let storage: Arc<dyn Storage> = Arc::new(CrashStorage::new(1));
    let engine = Engine::open(Arc::clone(&storage), tiny()).expect("made");
    for (key, value) in [(&b"a"[..], &b"value"[..]), (b"", b""), (b"b", b"x")] {
        engine.put(key, value, Durability::Memory).expect("put");
    }
    engine.delete(b"a", Durability::Sync).expect("deleted");
    // A large record ends the segment.
    engine
        .put(b"c", &vec![1; 3 << 20], Durability::Sync)
        .expect("put");
    let mut bytes = vec![0; SEGMENT_SIZE_BYTES as usize];
    let place = engine.log().segments().place(LogNumber(0)).expect("there");
    let file = storage.open("log").expect("there");
    file.read_at(&mut bytes, place.offset()).expect("read");
    let end = end_of_records(&bytes).expect("it is whole");
    let check = |bytes: &[u8]| check_segment(bytes, EngineId(77), LogNumber(0), place);
    assert!(matches!(check(&bytes), Ok(SegmentCheck::Whole { .. })) && end < 300);
    for bit in 0..(end + 50) * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        let is_whole = matches!(check(&bytes), Ok(SegmentCheck::Whole { .. }));
        assert_eq!(is_whole, bit / 8 >= end, "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    let elsewhere = check_segment(&bytes, EngineId(77), LogNumber(1), place);
    assert!(elsewhere.is_err(), "{elsewhere:?}");
    let header = encode_segment_header(EngineId(77), LogNumber(9));
    for size_bytes in 0..32 {
        let part = check_segment(&header[..size_bytes], EngineId(77), LogNumber(9), place);
        assert!(part.is_err(), "{size_bytes}");
    }
}

/// Follower that needs the log from a segment on.
#[derive(Debug)]
struct Needs(LogNumber);

impl Follow for Needs {
    fn reach(&self, _end: LogPosition) -> Result<(), LsmError> {
        Ok(())
    }

    fn needed_from(&self) -> LogNumber {
        self.0
    }

    fn takes_trees(&self) -> bool {
        false
    }

    fn edited(&self, _edit: Edit) {}
}

/// Promise: unreferenced data is not scrubbed. The first segments of a dead large record may be
/// free already, and no record begins in the others.
#[test]
fn the_rest_of_a_dead_record_is_none() {
    let storage: Arc<dyn Storage> = Arc::new(CrashStorage::new(1));
    let engine = Engine::open(storage, tiny()).expect("made");
    engine.set_follow(Arc::new(Needs(LogNumber(2))));
    engine
        .put(b"a", &vec![1; 7 << 20], Durability::Memory)
        .expect("put");
    engine.freeze();
    while engine.maintain().expect("no fault is set") != WorkDone::Nothing {}
    engine.put(b"a", b"small", Durability::Sync).expect("put");
    engine.merge_all().expect("no fault is set");
    let places = [1, 2, 3].map(|number| engine.log().segments().place(LogNumber(number)).is_ok());
    assert_eq!(places, [false, true, true]);
    let found = round(&engine);
    assert!(found.is_empty(), "{found:?}");
}

/// Promise: corruption or a read failure in any segment of a large record is one error, and the
/// next steps continue behind the record.
#[test]
fn a_large_record_is_told_once() {
    let storage = FaultyStorage::new(Arc::new(CrashStorage::new(1)));
    let engine = Engine::open(Arc::new(storage.clone()), tiny()).expect("made");
    engine
        .put(b"a", &vec![1; 7 << 20], Durability::Memory)
        .expect("put");
    engine
        .put(b"b", b"behind it", Durability::Sync)
        .expect("put");
    let place = |number| {
        engine
            .log()
            .segments()
            .place(LogNumber(number))
            .expect("there")
    };
    for number in 0..5 {
        for offset in [3, 33, 36, 41, 60] {
            let fault = storage.set(Fault::FlipBit {
                file: "log".to_owned(),
                offset: place(number).offset() + offset,
                bit: 3,
                stays: true,
            });
            let found = round(&engine);
            assert_eq!(found.len(), 1, "{number}, {offset}: {found:?}");
            storage.lift(fault);
        }
        let fault = storage.set(Fault::Fail {
            operations: &[Operation::Read],
            file: Some("log".to_owned()),
            nth: number + 1,
            times: 1,
        });
        let found = round(&engine);
        assert_eq!(found.len(), 1, "{number}: {found:?}");
        storage.lift(fault);
    }
    assert!(round(&engine).is_empty());
}

/// Promise: unreadable data is reported, counted, and passed. An engine that has stopped is not
/// scrubbed.
#[test]
fn what_cannot_be_read_is_told() {
    let storage = FaultyStorage::new(Arc::new(CrashStorage::new(1)));
    let engine = Engine::open(Arc::new(storage.clone()), tiny()).expect("made");
    engine.put(b"a", b"", Durability::Sync).expect("put");
    storage.set(Fault::Fail {
        operations: &[Operation::Read],
        file: None,
        nth: 1,
        times: 1,
    });
    let found = round(&engine);
    assert!(
        matches!(&found[..], [LsmError::Storage { .. }]),
        "{found:?}"
    );
    storage.set(Fault::Fail {
        operations: &[Operation::Write],
        file: None,
        nth: 1,
        times: 1,
    });
    engine
        .put(b"b", b"", Durability::Sync)
        .expect_err("it cannot write");
    let mut scrub = Scrub::new();
    let refused = engine.scrub(&mut scrub);
    assert!(
        matches!(refused, Err(LsmError::Stopped { .. })),
        "{refused:?}"
    );
    assert_eq!(scrub.counts().damaged_count, 0);
}
