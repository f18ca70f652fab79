//! Filling a copy with equal pieces of the previous one.

mod contents;
mod power;
mod refusals;

use std::sync::Arc;

use super::{
    FollowOptions, FollowedEngine, Follower, IndexKind, Model, all, follow_options, options,
};
use crate::Engine;
use crate::log::extent::Extents;
use crate::manifest::{Manifest, ManifestState};
use crate::place::{LogNumber, SEGMENT_SIZE_BYTES, SegmentId, TreeId};
use crate::storage::{CrashStorage, PowerLoss, Storage};
use crate::tree::{mix, random_numbers};

fn beside(previous: &CrashStorage) -> FollowOptions {
    FollowOptions {
        previous: Some(Arc::new(previous.clone())),
        ..follow_options(IndexKind::Sent)
    }
}

/// Engine that was promoted, and the copy of another backup of the previous primary. That copy ends
/// earlier, later, or at the same position.
struct Promoted {
    pair: FollowedEngine,
    /// Storage of the copy: the first directory of its computer.
    copy: CrashStorage,
    /// Contents of the copy.
    model: Model,
    /// Random numbers of the test.
    random: Box<dyn Iterator<Item = u64>>,
}

impl Promoted {
    fn new(seed: u64) -> Self {
        let mut random: Box<dyn Iterator<Item = u64>> = Box::new(random_numbers(seed));
        let mut next = || random.next().expect("endless");
        let (one, two) = (CrashStorage::new(seed), CrashStorage::new(mix(seed)));
        let mut pair = FollowedEngine::new(&CrashStorage::new(mix(seed + 1)));
        let step = |pair: &mut FollowedEngine, number: u64| {
            pair.step(number);
            if number & 1 << 50 == 0 {
                pair.follow().expect("no fault is set");
            }
        };
        for _ in 0..80 {
            pair.step(next());
        }
        // Either copy may be behind the other: its edits end where those of the other one begin.
        let [first, second] = if next() % 2 == 0 {
            [&one, &two]
        } else {
            [&two, &one]
        };
        pair.fill(first, IndexKind::Sent).expect("filled");
        for _ in 0..next() % 200 {
            step(&mut pair, next());
        }
        if next() % 2 == 0 {
            while pair.follow().expect("no fault is set") {}
        }
        let behind = pair.follower.take();
        pair.fill(second, IndexKind::Sent).expect("filled");
        for _ in 0..next() % 60 {
            step(&mut pair, next());
        }
        pair.follow_log().expect("no fault is set");
        for follower in [behind, pair.follower.take()] {
            let mut follower = follower.expect("it was filled");
            follower.sync_log().expect("synced");
        }
        drop(pair);
        let model = {
            let copy = two.lose_power(PowerLoss::Everything);
            all(&promoted(&copy))
        };
        // Only the machine of that copy has failed.
        let copy = CrashStorage::clone(&two.lose_power(PowerLoss::Everything));
        let mut pair = FollowedEngine::over(promoted(&one));
        for _ in 0..next() % 100 {
            pair.step(next());
        }
        Self {
            pair,
            copy,
            model,
            random,
        }
    }
}

fn promoted(storage: &CrashStorage) -> Engine {
    let follower = Follower::open(Arc::new(storage.clone()) as Arc<dyn Storage>);
    let engine = follower.expect("it is whole").promote(options());
    engine.expect("it is an engine")
}

fn state_of(storage: &CrashStorage) -> ManifestState {
    let manifest = Manifest::open(Arc::new(storage.clone()) as Arc<dyn Storage>);
    manifest.expect("it is whole").0.state()
}

/// Returns the bytes of a device's segment.
fn segment(storage: &CrashStorage, name: &str, segment: SegmentId) -> Vec<u8> {
    let file = storage.open(name).expect("there");
    let mut bytes = vec![0; SEGMENT_SIZE_BYTES as usize];
    let size_bytes = file.size().expect("known").saturating_sub(segment.offset());
    let there = size_bytes.min(SEGMENT_SIZE_BYTES) as usize;
    file.read_at(&mut bytes[..there], segment.offset())
        .expect("read");
    bytes
}

/// All contents of a copy, wherever they are stored.
type CopyContents = (
    Vec<(LogNumber, Option<u32>, Vec<u8>)>,
    Vec<Vec<(TreeId, crate::tree::TreeShape, Vec<Vec<u8>>)>>,
    [u64; 5],
);

fn contents_of(storage: &CrashStorage) -> CopyContents {
    let state = state_of(storage);
    let mut extents = Extents::new(state.engine, state.read_from);
    let mut log = Vec::new();
    for (number, entry) in &state.log {
        let mut bytes = segment(storage, "log", entry.segment);
        bytes.truncate(extents.size_of(*number, entry.end, &bytes));
        log.push((*number, entry.end, bytes));
    }
    let mut levels = Vec::new();
    for level in &state.levels {
        let mut trees = Vec::new();
        for tree in level {
            let mut left = tree.shape.block_count as usize * 4096;
            let mut parts = Vec::new();
            for place in &tree.segments {
                let mut bytes = segment(storage, "trees", *place);
                bytes.truncate(left);
                left -= bytes.len();
                parts.push(bytes);
            }
            trees.push((tree.id, tree.shape, parts));
        }
        levels.push(trees);
    }
    let rest = [
        state.engine.0,
        state.edit_count,
        state.next_log.0,
        state.read_from.0,
        state.next_tree.0,
    ];
    (log, levels, rest)
}
