//! Input that no engine sends is refused, and changes nothing.

use super::{
    Durability, Engine, FollowedEngine, IndexKind, InstalledEdit, LogNumber, LogPosition, LsmError,
    all, maintain_all, options,
};
use crate::place::{BLOCK_SIZE_BYTES, TreeId};
use crate::storage::CrashStorage;

fn edit() -> InstalledEdit {
    InstalledEdit {
        log_end: LogPosition(0),
        read_from: None,
        removed: Vec::new(),
        added: None,
        freed: Vec::new(),
    }
}

/// Promise: log and trees that are not the next ones, are corrupted, or refer to missing data are
/// refused with an error. Valid input is still accepted afterwards.
#[test]
fn what_cannot_follow_is_refused() {
    let mut pair = FollowedEngine::new(&CrashStorage::new(1));
    for number in 0..30_u64 {
        pair.step(number << 40 | 9 << 8);
    }
    let storage = CrashStorage::new(2);
    pair.fill(&storage, IndexKind::Sent).expect("filled");
    pair.step(9 << 40 | 9 << 8);
    pair.engine.freeze();
    maintain_all(&pair.engine);
    let edits = pair.edits.0.lock().expect("no panic").clone();
    let engine_edit = edits.into_iter().rfind(|edit| edit.added.is_some());
    let engine_edit = engine_edit.expect("a flush adds a tree");
    let (_, tree) = engine_edit.added.expect("a flush adds a tree");
    let follower = pair.follower.as_mut().expect("filled");
    let refused = |outcome: Result<(), LsmError>, expected: &str| {
        let text = outcome.expect_err(expected).to_string();
        assert!(text.contains(expected), "{text}, and not: {expected}");
    };
    let at = follower.written_to();
    refused(
        follower.write_log(at.plus(8), &[0; 64], false),
        "continues at",
    );
    refused(
        follower.write_log(at, &[0; 64], false),
        "is not one of this log",
    );
    let ahead = InstalledEdit {
        log_end: LogNumber(at.number().0 + 9).start(),
        ..edit()
    };
    refused(follower.install(&ahead), "needs the log up to");
    let added = Some((1, tree.id(), tree.shape()));
    let early = InstalledEdit { added, ..edit() };
    refused(follower.install(&early), "no segment of it was received");
    let mut buffer = Vec::new();
    let blocks = tree.read_segment(0, &mut buffer).expect("it is there");
    let mut blocks = blocks.to_vec();
    refused(
        follower.put_tree_segment(tree.id(), 1, &blocks).map(drop),
        "after 0 segments",
    );
    refused(
        follower.put_tree_segment(TreeId(999), 0, &blocks).map(drop),
        "checksum",
    );
    blocks[BLOCK_SIZE_BYTES / 2] ^= 1;
    refused(
        follower.put_tree_segment(tree.id(), 0, &blocks).map(drop),
        "checksum",
    );
    blocks[BLOCK_SIZE_BYTES / 2] ^= 1;
    refused(
        follower
            .put_tree_segment(tree.id(), 0, &blocks[..100])
            .map(drop),
        "100 bytes",
    );
    follower
        .put_tree_segment(tree.id(), 0, &blocks)
        .expect("it is right");
    refused(follower.install(&early), "which does not exist");
    let gone = InstalledEdit {
        removed: vec![TreeId(999)],
        ..edit()
    };
    refused(follower.install(&gone), "is removed, but does not exist");
}

/// Promise: an engine's directory is not emptied for a follower, and no engine opens a follower's.
#[test]
fn directories_are_not_mixed_up() {
    let mut pair = FollowedEngine::new(&CrashStorage::new(1));
    let storage = CrashStorage::new(2);
    let other = Engine::open(std::sync::Arc::new(storage.clone()), options()).expect("made");
    other.put(b"mine", b"", Durability::Sync).expect("put");
    let locked = pair.fill(&storage, IndexKind::Sent);
    assert!(matches!(locked, Err(LsmError::Locked { .. })), "{locked:?}");
    drop(other);
    let refused = pair.fill(&storage, IndexKind::Sent);
    let text = refused.expect_err("it is an engine's").to_string();
    assert!(text.contains("not a follower's"), "{text}");
    let other = Engine::open(std::sync::Arc::new(storage.clone()), options()).expect("whole");
    assert_eq!(all(&other).len(), 1);
}
