//! A copy that was there before, of which a filling takes what is the same (FO9).

use std::sync::Arc;

use super::super::previous::OMITS_COMPARING;
use super::{
    Filled, FollowOptions, Follower, IndexKind, Model, Pair, all, follow_options, options,
};
use crate::log::extent::Extents;
use crate::manifest::{Manifest, ManifestState};
use crate::place::{LogNumber, SEGMENT_SIZE_BYTES, SegmentId, TreeId};
use crate::storage::{CrashStorage, DirectoryStorage, Fault, FaultyStorage, PowerLoss, Storage};
use crate::tree::{mix, random_numbers};
use crate::{Durability, Engine, LsmError};

fn beside(previous: &CrashStorage) -> FollowOptions {
    FollowOptions {
        previous: Some(Arc::new(previous.clone())),
        ..follow_options(IndexKind::Sent)
    }
}

/// An engine that was promoted, and the copy of another backup of the one before, which ends
/// earlier, or later, or where that one does.
struct Promoted {
    pair: Pair,
    /// Where the copy is: the first directory of its computer.
    copy: CrashStorage,
    /// What the copy has.
    model: Model,
    /// The engine was closed in order: the copy's last words are the engine's.
    random: Box<dyn Iterator<Item = u64>>,
}

impl Promoted {
    fn new(seed: u64) -> Self {
        let mut random: Box<dyn Iterator<Item = u64>> = Box::new(random_numbers(seed));
        let mut next = || random.next().expect("endless");
        let (one, two) = (CrashStorage::new(seed), CrashStorage::new(mix(seed)));
        let mut pair = Pair::new(&CrashStorage::new(mix(seed + 1)));
        let step = |pair: &mut Pair, number: u64| {
            pair.step(number);
            if number & 1 << 50 == 0 {
                pair.follow().expect("no fault is set");
            }
        };
        for _ in 0..80 {
            pair.step(next());
        }
        // Either of the two is behind the other one: its edits end where the other's begin.
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
        // What was lost is the machine of that copy alone.
        let copy = CrashStorage::clone(&two.lose_power(PowerLoss::Everything));
        let mut pair = Pair::over(promoted(&one));
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

/// The bytes of a segment of a device.
fn segment(storage: &CrashStorage, name: &str, segment: SegmentId) -> Vec<u8> {
    let file = storage.open(name).expect("there");
    let mut bytes = vec![0; SEGMENT_SIZE_BYTES as usize];
    let size_bytes = file.size().expect("known").saturating_sub(segment.offset());
    let there = size_bytes.min(SEGMENT_SIZE_BYTES) as usize;
    file.read_at(&mut bytes[..there], segment.offset())
        .expect("read");
    bytes
}

/// Everything that a copy is, wherever it lies.
type Told = (
    Vec<(LogNumber, Option<u32>, Vec<u8>)>,
    Vec<Vec<(TreeId, crate::tree::TreeShape, Vec<Vec<u8>>)>>,
    [u64; 5],
);

fn told(storage: &CrashStorage) -> Told {
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

/// What a copy is that is filled beside the one before, and what one is that is filled anew.
fn both_ways(seed: u64) -> (Filled, bool, u64) {
    let Promoted { mut pair, copy, .. } = Promoted::new(seed);
    let anew = CrashStorage::new(seed);
    pair.fill(&anew, IndexKind::Sent).expect("filled");
    drop(pair.follower.take());
    let new = copy.beside(1);
    let filled = pair.fill_beside(&new, beside(&copy)).expect("filled");
    drop(pair.follower.take());
    assert_needed(&filled, &copy, &new);
    // The log segment that the second one has more is the one that ended for it.
    let (mut expected, mut found) = (told(&anew), told(&new));
    let next_log = expected.2[2].min(found.2[2]);
    for told in [&mut expected, &mut found] {
        told.0.retain(|(number, ..)| number.0 < next_log);
        told.2[1..3].fill(0);
    }
    (filled, expected == found, seed)
}

/// That what was sent into a copy is not in the one before.
fn assert_needed(filled: &Filled, before: &CrashStorage, new: &CrashStorage) {
    let (state, new) = (state_of(before), told(new));
    for number in &filled.sent_log {
        let (_, _, bytes) = new.0.iter().find(|it| it.0 == *number).expect("it came");
        let own = state.log.get(number);
        let own = own.map(|it| segment(before, "log", it.segment));
        assert!(own.is_none_or(|own| !own.starts_with(bytes)), "{number:?}");
    }
    for (id, index) in &filled.sent_trees {
        let mut trees = new.1.iter().flatten();
        let (_, _, parts) = trees.find(|it| it.0 == *id).expect("it came");
        let own = state.levels.iter().flatten().find(|it| it.id == *id);
        let own = own.and_then(|it| it.segments.get(*index));
        let own = own.map(|it| segment(before, "trees", *it));
        assert!(
            own.is_none_or(|own| !own.starts_with(&parts[*index])),
            "{id:?}"
        );
    }
}

/// Promise (FO9): a copy that was filled with pieces of the one before is, byte by byte of what
/// counts, what filling anew makes, whether the one before was behind, ahead, or both; and nothing
/// is sent that the one before has.
#[test]
fn a_copy_is_what_filling_anew_makes() {
    let (mut taken_count, mut sent_count) = (0, 0);
    for seed in 0..8 {
        let (filled, is_same, _) = both_ways(seed);
        assert!(is_same, "seed {seed}: {filled:?}");
        assert!(filled.has_previous, "seed {seed}");
        taken_count += filled.taken_count;
        sent_count += filled.sent_log.len() + filled.sent_trees.len();
    }
    assert!(
        taken_count > 30 && sent_count > 10,
        "{taken_count}, {sent_count}"
    );
}

/// Promise: the test above finds a filling that takes own pieces without comparing them.
#[test]
fn not_comparing_is_found() {
    OMITS_COMPARING.set(true);
    let wrong = |seed| {
        let compared = std::panic::catch_unwind(|| both_ways(seed));
        compared.map_or(true, |(_, is_same, _)| !is_same)
    };
    let wrong_count = (0..8).filter(|seed| wrong(*seed)).count();
    OMITS_COMPARING.set(false);
    assert!(wrong_count > 2, "{wrong_count}");
}

/// Promise (FO9): a bit that has flipped in an own piece, of the log or of a tree, wherever it is in
/// what counts, is found; that piece is sent, and no other one that need not be.
#[test]
fn a_flipped_bit_is_sent() {
    let mut flipped_counts = [0; 2];
    for seed in 0..6 {
        let Promoted {
            mut pair,
            copy,
            mut random,
            ..
        } = Promoted::new(seed);
        let before = pair
            .fill_beside(&copy.beside(1), beside(&copy))
            .expect("filled");
        drop(pair.follower.take());
        let state = state_of(&copy);
        // Of pieces that were taken before: one of the log, one of a tree.
        let taken: Vec<LogNumber> = state_of(&copy.beside(1))
            .log
            .keys()
            .copied()
            .filter(|it| state.log.contains_key(it) && !before.sent_log.contains(it))
            .collect();
        let Some(number) = taken.last().copied() else {
            continue;
        };
        flipped_counts[0] += 1;
        let place = state.log[&number].segment;
        let flip = |name: &str, offset: u64| {
            let file = copy.open(name).expect("there");
            let mut byte = [0];
            file.read_at(&mut byte, offset).expect("read");
            file.write_at(&[byte[0] ^ 1 << (offset % 8)], offset)
                .expect("written");
        };
        let log = told(&copy.beside(1)).0;
        let (_, _, counted) = log.iter().find(|it| it.0 == number).expect("taken");
        let size_bytes = counted.len() as u64;
        flip(
            "log",
            place.offset() + random.next().expect("endless") % size_bytes,
        );
        let shared: Vec<_> = state_of(&copy.beside(1))
            .levels
            .iter()
            .flatten()
            .filter(|tree| state.levels.iter().flatten().any(|it| it.id == tree.id))
            .filter(|tree| !before.sent_trees.iter().any(|it| it.0 == tree.id))
            .cloned()
            .collect();
        let tree = shared.last();
        if let Some(tree) = tree {
            flipped_counts[1] += 1;
            let size_bytes = u64::from(tree.shape.block_count).min(512) * 4096;
            flip(
                "trees",
                tree.segments[0].offset() + random.next().expect("endless") % size_bytes,
            );
        }
        let after = pair
            .fill_beside(&copy.beside(2), beside(&copy))
            .expect("filled");
        assert!(after.sent_log.contains(&number), "seed {seed}");
        let mut others = after.sent_log.clone();
        others.retain(|it| *it != number && !before.sent_log.contains(it));
        // But for the segment that the engine has ended for this base.
        assert!(others.len() <= 1, "seed {seed}: {others:?}");
        if let Some(tree) = tree {
            assert!(after.sent_trees.contains(&(tree.id, 0)), "seed {seed}");
            assert_eq!(
                after.sent_trees.len(),
                before.sent_trees.len() + 1,
                "seed {seed}"
            );
        }
        let mut follower = pair.follower.take().expect("filled");
        follower.release_previous().expect("released");
        let engine = follower.promote(options()).expect("an engine");
        assert!(all(&engine) == pair.model, "seed {seed}");
    }
    assert!(
        flipped_counts.iter().all(|it| *it > 1),
        "{flipped_counts:?}"
    );
}

/// Promise (FO9, RS1): wherever the power goes while a copy is filled beside the one before, follows,
/// and takes its place: until it is in force the one before is what it was, and from then on the new
/// one has all that it had synced; never anything between. The one that is not in force does no
/// harm, and each goes on as an engine.
#[test]
fn one_copy_or_the_other_is_there() {
    let mut counts = [0; 3];
    for seed in 0..12 {
        cut_once(seed, None, &mut counts);
    }
    assert!(counts[0] > 2 && counts[2] > 2, "{counts:?}");
}

/// The same at each operation of some histories: `cargo test --release -p farleaf-lsm
/// at_each_operation -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn one_copy_or_the_other_is_there_at_each_operation() {
    let mut counts = [0; 3];
    for seed in 1_000..1_040 {
        let mut at = 1;
        while cut_once(seed, Some(at), &mut counts) {
            at += 1;
        }
        println!("seed {seed}: power cut at each of {at} operations");
    }
    println!("the old one, the new one, released: {counts:?}");
}

/// False: it was over before the power went.
fn cut_once(seed: u64, cut_at: Option<u64>, counts: &mut [u64; 3]) -> bool {
    let Promoted {
        mut pair,
        copy,
        model,
        mut random,
    } = Promoted::new(seed);
    let mut next = || random.next().expect("endless");
    let new = copy.beside(1);
    let at = cut_at.unwrap_or_else(|| 1 + next() % 120);
    copy.cut_power_at(copy.operation_count() + at);
    let mut is_in_force = false;
    let mut is_released = false;
    let mut states = vec![pair.model.clone()];
    let filled = pair.fill_beside(&new, beside(&copy));
    let mut is_on = filled.is_ok();
    let commits_at = next() % 12;
    for index in 0..24 {
        if !is_on {
            break;
        }
        if index == commits_at {
            // The note is durable (RS1).
            let follower = pair.follower.as_mut().expect("filled");
            if follower.sync_log().is_err() {
                break;
            }
            is_in_force = true;
            is_on = follower.release_previous().is_ok();
            is_released = is_on;
            continue;
        }
        let number = next();
        if number % 3 > 0 {
            pair.step(number);
            states.push(pair.model.clone());
            continue;
        }
        let syncs = number % 2 == 0;
        let followed = if syncs {
            pair.follow_log()
                .and_then(|()| pair.follower.as_mut().expect("filled").sync_log())
        } else {
            pair.follow().map(drop)
        };
        is_on = followed.is_ok();
        if is_on && syncs {
            drop(states.drain(..states.len() - 1));
        }
    }
    drop(pair.follower.take());
    let left = copy.lose_power(PowerLoss::Any);
    let (in_force, other) = if is_in_force {
        (left.beside(1), left.clone())
    } else {
        (left.clone(), left.beside(1))
    };
    let found = goes_on(&in_force, seed);
    if is_in_force {
        assert!(
            states.contains(&found),
            "seed {seed}, cut at {at}: the new copy"
        );
    } else {
        assert!(found == model, "seed {seed}, cut at {at}: the old copy");
    }
    counts[usize::from(is_in_force) + usize::from(is_released)] += 1;
    // RS1: the other one goes when the next one is begun.
    for name in other.list().expect("listed") {
        other.remove(&name).expect("removed");
    }
    let mut pair = Pair::over(
        Engine::open(Arc::new(in_force) as Arc<dyn Storage>, options()).expect("it is an engine's"),
    );
    pair.fill(&CrashStorage::new(seed), IndexKind::Sent)
        .expect("filled");
    !is_on
}

/// What a copy has when it is promoted, and after it was opened once more.
fn goes_on(storage: &CrashStorage, seed: u64) -> Model {
    let follower = Follower::open(Arc::new(storage.clone()) as Arc<dyn Storage>);
    let follower = follower.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let engine = follower.promote(options());
    let engine = engine.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let mut found = all(&engine);
    engine
        .put(b"0", b"more", Durability::Sync)
        .expect("written");
    drop(engine);
    assert!(
        !storage
            .list()
            .expect("listed")
            .iter()
            .any(|name| name == "SHARED")
    );
    let again = Engine::open(Arc::new(storage.clone()) as Arc<dyn Storage>, options());
    let again = again.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let before = found.insert(b"0".to_vec(), b"more".to_vec());
    assert!(all(&again) == found, "seed {seed}");
    match before {
        Some(value) => found.insert(b"0".to_vec(), value),
        None => found.remove(&b"0"[..]),
    };
    found
}

/// Promise (FO9): a copy of another engine, one that was never whole, one that somebody has open,
/// and one on another computer is of no use, and stays as it is; so is one for a backup that makes
/// its trees itself. All is sent then.
#[test]
fn what_cannot_be_used_is_left_alone() {
    let Promoted {
        mut pair,
        copy,
        model,
        ..
    } = Promoted::new(5);
    let (other, empty) = (CrashStorage::new(7), copy.beside(4));
    drop(Engine::open(
        Arc::new(other.clone()) as Arc<dyn Storage>,
        crate::EngineOptions::new(),
    ));
    let far = CrashStorage::new(8);
    let held = copy.lock("LOCK").expect("locked");
    let check = |pair: &mut Pair, to: &CrashStorage, options: FollowOptions| {
        let filled = pair.fill_beside(to, options).expect("filled");
        assert!(
            !filled.has_previous && filled.taken_count == 0,
            "{filled:?}"
        );
        assert!(filled.sent_log.len() > 3);
        assert!(
            !to.list()
                .expect("listed")
                .iter()
                .any(|name| name == "SHARED")
        );
        drop(pair.follower.take());
    };
    check(&mut pair, &copy.beside(1), beside(&copy));
    drop(held);
    check(&mut pair, &other.beside(1), beside(&other));
    check(&mut pair, &copy.beside(1), beside(&empty));
    check(&mut pair, &far, beside(&copy));
    let built = FollowOptions {
        index: IndexKind::Built,
        ..beside(&copy)
    };
    check(&mut pair, &copy.beside(1), built);
    assert!(all(&promoted(&copy)) == model);
}

/// Promise (MF2, FO9): a copy whose manifest has lost its last edit is not shared, as it could not
/// be told any more that it has; and one that loses it while it is shared is not opened.
#[test]
fn a_lost_edit_is_found_all_the_same() {
    let Promoted { mut pair, copy, .. } = Promoted::new(11);
    let follower = Follower::open(Arc::new(copy.clone()) as Arc<dyn Storage>).expect("whole");
    drop(follower);
    let name = |storage: &CrashStorage| {
        let names = storage.list().expect("listed");
        let mut manifests = names.into_iter().filter(|it| it.starts_with("MANIFEST-"));
        manifests.next().expect("one is there")
    };
    let cut = |storage: &CrashStorage| {
        let file = storage.open(&name(storage)).expect("there");
        let size_bytes = file.size().expect("known");
        let mut bytes = vec![0; size_bytes as usize];
        file.read_at(&mut bytes, 0).expect("read");
        let without_last = &bytes[..bytes.len() - 1];
        let last = without_last
            .iter()
            .rposition(|it| *it == b'\n')
            .expect("several lines");
        file.set_size(last as u64 + 1).expect("cut");
        size_bytes > last as u64 + 1
    };
    // An edit that names log segments, which are written then.
    let lost = Pair::over(promoted(&copy));
    for number in 0..2 {
        lost.engine
            .put(&[number], &[1; 4096], Durability::Sync)
            .expect("put");
    }
    drop(lost);
    let before = copy.lose_power(PowerLoss::Everything);
    assert!(cut(&before));
    let filled = pair
        .fill_beside(&before.beside(1), beside(&before))
        .expect("filled");
    assert!(!filled.has_previous);
    drop(pair.follower.take());
    let error = Engine::open(Arc::new(before) as Arc<dyn Storage>, options()).expect_err("damaged");
    assert!(
        matches!(
            error,
            LsmError::DamagedLog { .. } | LsmError::DamagedManifest { .. }
        ),
        "{error}"
    );

    let during = copy.lose_power(PowerLoss::Everything);
    let filled = pair
        .fill_beside(&during.beside(1), beside(&during))
        .expect("filled");
    assert!(filled.has_previous);
    drop(pair.follower.take());
    assert!(cut(&during));
    let error = Engine::open(Arc::new(during) as Arc<dyn Storage>, options()).expect_err("damaged");
    assert!(matches!(error, LsmError::DamagedManifest { .. }), "{error}");
}

/// Promise (FO9): over a real directory the devices are the same files, and nothing is written twice;
/// where they cannot be linked, or own pieces cannot be read, all that is needed is sent.
#[test]
fn a_real_directory_shares_its_files() {
    use std::os::unix::fs::MetadataExt;

    let scratch = tempfile::tempdir().expect("a folder for the test");
    let open = |name: &str| {
        let storage = DirectoryStorage::open(scratch.path().join(name)).expect("made");
        Arc::new(storage) as Arc<dyn Storage>
    };
    let mut pair = Pair::new(&CrashStorage::new(3));
    for number in random_numbers(3).take(400) {
        pair.step(number);
    }
    let mut fill = |to: Arc<dyn Storage>, previous: Option<Arc<dyn Storage>>| {
        let options = FollowOptions {
            previous,
            ..follow_options(IndexKind::Sent)
        };
        let filled = pair.fill_into(to, options).expect("filled");
        let mut follower = pair.follower.take().expect("filled");
        follower.release_previous().expect("released");
        filled
    };
    let first = fill(open("data-0"), None);
    let second = fill(open("data-1"), Some(open("data-0")));
    assert!(
        second.has_previous && second.sent_trees.is_empty(),
        "{second:?}"
    );
    assert!(second.sent_log.len() <= 1 && second.taken_count >= first.sent_log.len());
    let inode = |name: &str| {
        let metadata = std::fs::metadata(scratch.path().join(name)).expect("there");
        metadata.ino()
    };
    assert_eq!(inode("data-0/log"), inode("data-1/log"));
    assert_eq!(inode("data-0/trees"), inode("data-1/trees"));
    std::fs::remove_dir_all(scratch.path().join("data-0")).expect("removed");
    let faulty = FaultyStorage::new(open("data-2"));
    let id = faulty.set(Fault::Fail {
        operations: &[crate::storage::Operation::Read],
        file: Some("log".to_owned()),
        nth: 1,
        times: 3,
    });
    let third = fill(Arc::new(faulty.clone()), Some(open("data-1")));
    assert!(faulty.hit_count(id) == 3 && third.has_previous);
    assert!(
        third.sent_log.len() >= 3 && third.sent_log.len() <= 4,
        "{third:?}"
    );
    faulty.lift_all();
    let faulty = FaultyStorage::new(open("data-3"));
    let id = faulty.set(Fault::Fail {
        operations: &[crate::storage::Operation::Create],
        file: Some("trees".to_owned()),
        nth: 1,
        times: 1,
    });
    let fourth = fill(Arc::new(faulty.clone()), Some(open("data-2")));
    assert!(faulty.hit_count(id) == 1 && !fourth.has_previous && fourth.taken_count == 0);
    assert_ne!(inode("data-2/log"), inode("data-3/log"));
    let follower = Follower::open(open("data-3")).expect("whole");
    assert!(all(&follower.promote(options()).expect("an engine")) == pair.model);
}
