//! Reused pieces equal those that would have been sent.

use super::{Promoted, beside, contents_of, segment, state_of};
use crate::follow::previous::OMITS_COMPARING;
use crate::follow::tests::{Filled, IndexKind, all, options};
use crate::place::{LogNumber, SegmentId, TreeId};
use crate::storage::{CrashStorage, Storage};

/// Fills one copy beside the previous one, and another from scratch; returns what was sent and
/// whether they are equal.
fn both_ways(seed: u64) -> (Filled, bool, u64) {
    let Promoted { mut pair, copy, .. } = Promoted::new(seed);
    let anew = CrashStorage::new(seed);
    pair.fill(&anew, IndexKind::Sent).expect("filled");
    drop(pair.follower.take());
    let new = copy.beside(1);
    let filled = pair.fill_beside(&new, beside(&copy)).expect("filled");
    drop(pair.follower.take());
    assert_needed(&filled, &copy, &new);
    // The second copy has one more log segment: the one that was ended for its base.
    let (mut expected, mut found) = (contents_of(&anew), contents_of(&new));
    let next_log = expected.2[2].min(found.2[2]);
    for contents_of in [&mut expected, &mut found] {
        contents_of.0.retain(|(number, ..)| number.0 < next_log);
        contents_of.2[1..3].fill(0);
    }
    (filled, expected == found, seed)
}

/// Asserts that every piece sent into a copy is not in the previous one.
fn assert_needed(filled: &Filled, before: &CrashStorage, new: &CrashStorage) {
    let (state, new) = (state_of(before), contents_of(new));
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

/// Promise: a copy filled with pieces of the previous one has the same bytes that count as one
/// filled from scratch. The previous one may be behind, ahead, or both. No piece of the previous
/// copy is sent.
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

/// Promise: the test above detects a filling that reuses pieces without comparing them.
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

/// Flips a bit in reused pieces of the next copy: in the log, and in a tree.
fn flip_taken(
    copy: &CrashStorage,
    before: &Filled,
    random: &mut dyn Iterator<Item = u64>,
) -> (Option<LogNumber>, Option<TreeId>) {
    let (state, taken) = (state_of(copy), contents_of(&copy.beside(1)));
    let mut flip = |name: &str, place: SegmentId, size_bytes: usize| {
        let at = random.next().expect("endless") % size_bytes as u64;
        let file = copy.open(name).expect("there");
        let (mut byte, offset) = ([0], place.offset() + at);
        file.read_at(&mut byte, offset).expect("read");
        let flipped = byte[0] ^ 1 << (at % 8);
        file.write_at(&[flipped], offset).expect("written");
    };
    let mut log = taken.0.iter().rev();
    let log = log.find(|it| !before.sent_log.contains(&it.0));
    if let Some((number, _, bytes)) = log {
        flip("log", state.log[number].segment, bytes.len());
    }
    let mut trees = taken.1.iter().flatten();
    let tree = trees.find(|it| !before.sent_trees.iter().any(|sent| sent.0 == it.0));
    if let Some((id, _, parts)) = tree {
        let mut own = state.levels.iter().flatten();
        let own = own.find(|it| it.id == *id).expect("it was taken");
        flip("trees", own.segments[0], parts[0].len());
    }
    (log.map(|it| it.0), tree.map(|it| it.0))
}

/// Promise: a flipped bit in an own piece, of the log or a tree, at any byte that counts, is found.
/// That piece is sent, and no unneeded one.
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
        let (number, tree) = flip_taken(&copy, &before, &mut random);
        let Some(number) = number else {
            continue;
        };
        flipped_counts[0] += 1;
        flipped_counts[1] += u32::from(tree.is_some());
        let after = pair
            .fill_beside(&copy.beside(2), beside(&copy))
            .expect("filled");
        assert!(after.sent_log.contains(&number), "seed {seed}");
        let mut others = after.sent_log.clone();
        others.retain(|it| *it != number && !before.sent_log.contains(it));
        // Except the segment that the engine has ended for this base.
        assert!(others.len() <= 1, "seed {seed}: {others:?}");
        if let Some(tree) = tree {
            assert!(after.sent_trees.contains(&(tree, 0)), "seed {seed}");
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
