//! Blocks of new trees in memory, for a follower.

use super::*;
use crate::follow::SharedTree;

/// Promise: a follower that takes trees gets the same blocks as on the device, without a read. For
/// one that does not, they are read from the device.
#[test]
fn new_trees_are_told_without_a_read() {
    let storage = CrashStorage::new(7);
    let pair = FollowedEngine::new(&storage);
    for round in 0..2 {
        for number in 0..3_000_u32 {
            let key = format!("{round} {number}");
            let put = pair.engine.put(key.as_bytes(), b"v", Durability::Memory);
            put.expect("put");
        }
        pair.engine.freeze();
        while pair.engine.maintain().expect("no fault is set") != WorkDone::Nothing {}
        let edits: Vec<Edit> = pair.edits.0.lock().expect("no panic").drain(..).collect();
        let read = || pair.engine.work().trees.read;
        let (mut kept_count, mut buffer) = (0, Vec::new());
        for (_, tree) in edits.iter().filter_map(|edit| edit.added.as_ref()) {
            let on_device = SharedTree::new(
                Arc::clone(tree.live()),
                Arc::clone(tree.device()),
                Vec::new(),
            );
            for index in 0..tree.segment_count() {
                let before = read();
                let expected = tree
                    .read_segment(index, &mut buffer)
                    .expect("told")
                    .to_vec();
                kept_count += usize::from(read() == before);
                let before = read();
                let there = on_device.read_segment(index, &mut buffer);
                assert!(there.expect("read") == expected, "segment {index}");
                assert!(read() >= before + expected.len() as u64);
            }
        }
        assert!(kept_count > 0, "the first tree of each round is kept");
    }
}
