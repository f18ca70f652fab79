//! Comparing directories, and findings when they differ.

use super::*;
use crate::engine::tests::tiny;
use crate::follow::IndexKind;
use crate::log::record::{
    EngineId, RecordKind, RecordSum, SEGMENT_HEADER_SIZE_BYTES, encode_record_header,
    encode_segment_header,
};
use crate::storage::CrashStorage;
use crate::{Durability, Engine};

fn inspect(storage: &CrashStorage) -> Inspection {
    let storage: Arc<dyn Storage> = Arc::new(storage.clone());
    Inspection::read(&storage).expect("its manifest is whole")
}

/// Creates a directory with trees, large records, and several log segments.
fn made() -> (CrashStorage, Engine) {
    let storage = CrashStorage::new(1);
    let engine = Engine::open(Arc::new(storage.clone()), tiny()).expect("made");
    for number in 0..60_u32 {
        let size_bytes = match number {
            3 => 5 << 20,
            4 | 24 | 25 | 44 => 1_200_000,
            _ => 20,
        };
        let (key, value) = (number.to_be_bytes(), vec![number as u8; size_bytes]);
        engine.put(&key, &value, Durability::Memory).expect("put");
        engine.maintain().expect("no fault is set");
    }
    engine.sync().expect("no fault is set");
    (storage, engine)
}

fn copy(from: &CrashStorage, seed: u64) -> CrashStorage {
    let to = CrashStorage::new(seed);
    for name in from.list().expect("listed") {
        let (source, target) = (from.open(&name), to.create(&name));
        let (source, target) = (source.expect("there"), target.expect("made"));
        let mut bytes = vec![0; source.size().expect("known") as usize];
        source.read_at(&mut bytes, 0).expect("read");
        target.write_at(&bytes, 0).expect("written");
    }
    to
}

fn flip(storage: &CrashStorage, file: &str, offset: u64) {
    let file = storage.open(file).expect("there");
    let mut byte = [0];
    file.read_at(&mut byte, offset).expect("read");
    file.write_at(&[byte[0] ^ 1], offset).expect("written");
}

/// Promise: a directory can be inspected while an engine has it open, without any change, and all
/// of the log is found.
#[test]
fn an_open_directory_is_inspected() {
    let (storage, engine) = made();
    let names = storage.list().expect("listed");
    let inspection = inspect(&storage);
    assert_eq!(inspection.damage().len(), 0, "{:?}", inspection.damage());
    assert_eq!(inspection.log_end(), engine.log().end());
    assert!(inspection.write_end() <= inspection.log_end());
    assert!(!inspection.is_follower() && inspection.engine() == engine.id());
    assert!(inspection.trees().next().is_some() && inspection.segments().len() > 6);
    assert_eq!(storage.list().expect("listed"), names);
    let same = compare(&inspection, &inspect(&storage), IndexKind::Sent).expect("read");
    assert!(same.is_equal() && same.tree_count > 0, "{same:?}");
}

/// Promise: one flipped bit in bytes that count, in any log segment or tree, is found with its
/// place. Bits behind the end of the records are ignored.
#[test]
fn one_bit_that_differs_is_found() {
    let (storage, engine) = made();
    drop(engine);
    let whole = inspect(&storage);
    for (number, segment) in whole.segments() {
        let start = segment.place.offset();
        for offset in [0, 31, 32, 50, segment.size_bytes as u64 - 1] {
            let other = copy(&storage, 2);
            flip(&other, log::FILE, start + offset);
            let found = compare(&whole, &inspect(&other), IndexKind::Sent).expect("read");
            let report = found.differences.join("\n");
            let is_told = report.contains(&format!("log segment {}", number.0));
            // In the last segment, nothing proves that the record existed.
            let is_end = report.contains("ends at") || report.contains("corrupted");
            let is_mark = found.mark_size_bytes > 0;
            assert!(
                is_told || is_end || is_mark,
                "{number:?}, {offset}: {report}"
            );
        }
        if (segment.size_bytes as u64) < SEGMENT_SIZE_BYTES {
            let other = copy(&storage, 2);
            // The file may end there.
            let file = other.open(log::FILE).expect("there");
            let behind = start + segment.size_bytes as u64;
            file.write_at(&[0xab], behind).expect("written");
            let found = compare(&whole, &inspect(&other), IndexKind::Sent).expect("read");
            assert!(found.is_equal(), "{number:?}: {found:?}");
        }
    }
    for tree in whole.trees() {
        let other = copy(&storage, 2);
        flip(&other, TREES, tree.segments[0].offset() + 100);
        let found = compare(&whole, &inspect(&other), IndexKind::Sent).expect("read");
        let report = found.differences.join("\n");
        assert!(
            report.contains(&format!("of tree {}", tree.id.0)),
            "{report}"
        );
        let built = compare(&whole, &inspect(&other), IndexKind::Built).expect("read");
        assert!(
            built.differences.is_empty() && built.tree_count == 0,
            "{built:?}"
        );
    }
}

/// Promise: a segment that was never written is found, even with a single replica.
#[test]
fn a_hole_is_found() {
    let (storage, engine) = made();
    drop(engine);
    let whole = inspect(&storage);
    let needed = whole.segments().iter().filter(|it| it.1.is_needed);
    let mut needed = needed.collect::<Vec<_>>();
    // Nothing proves that the last one existed.
    needed.pop();
    for (number, segment) in needed {
        let other = copy(&storage, 2);
        let file = other.open(log::FILE).expect("there");
        let zeros = vec![0; SEGMENT_SIZE_BYTES as usize];
        file.write_at(&zeros, segment.place.offset())
            .expect("written");
        let other = inspect(&other);
        let damage: Vec<String> = other.damage().iter().map(ToString::to_string).collect();
        let place = number.start().to_string();
        assert!(
            damage.iter().any(|it| it.contains(&place)),
            "{place}: {damage:?}"
        );
        let found = compare(&whole, &other, IndexKind::Sent).expect("read");
        assert!(!found.differences.is_empty(), "{number:?}");
    }
}

/// Promise: writes that one replica lacks are a difference; marks are not.
#[test]
fn a_log_that_ends_earlier_differs() {
    let (storage, engine) = made();
    let before = copy(&storage, 2);
    engine.sync().expect("no fault is set");
    engine.put(b"key", b"value", Durability::Sync).expect("put");
    let found = compare(&inspect(&storage), &inspect(&before), IndexKind::Sent);
    let found = found.expect("read");
    let report = found.differences.join("\n");
    assert!(report.contains("the last write ends at"), "{report}");
}

/// Promise: the records of a segment end at the same byte in a replica that has an end record, in
/// one whose recovery ended the log there by its manifest, and in one with both. Where a recovery
/// ended the log earlier, the rest does not count. A segment without either is open.
#[test]
fn an_end_record_and_a_recovered_end_are_the_same() {
    let (engine, number) = (EngineId(7), LogNumber(3));
    let mut bytes = encode_segment_header(engine, number).to_vec();
    let mut offsets = Vec::new();
    for (kind, key, value) in [
        (RecordKind::Put, &b"mars"[..], &b"6779"[..]),
        (RecordKind::Put, b"venus", b"12104"),
        (RecordKind::End, b"", b""),
    ] {
        let offset = bytes.len();
        offsets.push(offset);
        let (header, sum) = RecordSum::of(kind, key, value);
        let sum = sum.at(engine, number.start().plus(offset as u64));
        bytes.extend(encode_record_header(header, sum));
        bytes.extend([key, value].concat());
    }
    bytes.resize(SEGMENT_SIZE_BYTES as usize, 0);
    let pass = |end: Option<usize>, bytes: &[u8]| {
        let mut walk = RecordWalk::new(engine, number.start());
        walk.pass(number, end.map(|it| it as u32), bytes)
    };
    let (second_put, end) = (offsets[1], offsets[2]);
    assert_eq!(offsets[0], SEGMENT_HEADER_SIZE_BYTES);
    assert_eq!(pass(None, &bytes), SegmentEnd::EndRecord(end));
    assert_eq!(pass(Some(end), &bytes), SegmentEnd::Closed(end));
    assert_eq!(
        pass(Some(second_put), &bytes),
        SegmentEnd::Closed(second_put)
    );
    bytes[end] ^= 1;
    assert_eq!(pass(Some(end), &bytes), SegmentEnd::Closed(end));
    assert_eq!(pass(None, &bytes), SegmentEnd::Open(end));

    let of = |end| InspectedSegment::of(end, SegmentId(0), true);
    let (recorded, recovered) = (of(SegmentEnd::EndRecord(end)), of(SegmentEnd::Closed(end)));
    let longer = of(SegmentEnd::Open(end + 12));
    assert_eq!(recorded.size_bytes, end + 12);
    assert!(!compare::is_size_wrong(&recorded, &recovered));
    assert!(!compare::is_size_wrong(&recovered, &recorded));
    for closed in [recorded, recovered] {
        assert!(compare::is_size_wrong(&longer, &closed));
        assert!(compare::is_size_wrong(&closed, &longer));
        assert!(!compare::is_size_wrong(&closed, &of(SegmentEnd::Open(end))));
    }
}
