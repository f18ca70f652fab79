//! Lines are used where they are good, and fences elsewhere.

use farleaf_model::strings::{Residuals, StringDirectory, StringSegment, StringSegmentBuilder};
use proptest::prelude::*;
use rand_xoshiro::rand_core::Rng;

use crate::keys::prng;
use crate::strings::samples::{Sample, all_shapes, strings};

/// Words of a few syllables in folders of a few words: clusters within clusters.
fn text(count: usize) -> Vec<Vec<u8>> {
    const SYLLABLES: [&str; 12] = [
        "ba", "berg", "de", "san", "ta", "ville", "ri", "o", "new", "ing", "ham", "st",
    ];
    let prng = &mut prng(5);
    // The smaller of two draws makes some words frequent.
    let mut word = |syllable_count: u64| -> String {
        let mut draw = |end: u64| (prng.next_u64() % end).min(prng.next_u64() % end);
        let count = 1 + draw(syllable_count);
        (0..count).map(|_| SYLLABLES[draw(12) as usize]).collect()
    };
    let mut keys: Vec<_> = (0..count)
        .map(|_| format!("{}/{}/{}", word(2), word(3), word(7)).into_bytes())
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

/// Returns for a directory of lines, and for one of chosen kinds: its size, and the numbers of keys
/// for which it names one leaf or two, including the right one.
fn compare(keys: &[Vec<u8>], record_count: usize) -> [(usize, usize, usize); 2] {
    let sample = Sample::new(keys, record_count);
    [sample.lines(2.67, 4096), sample.chosen(2.67, 4096)].map(|segments| {
        let residuals = sample.bytes(&segments, 2.67);
        let directory = StringDirectory::build(&segments, residuals).expect("trained");
        let located = keys.iter().enumerate().map(|(index, key)| {
            let leaf = (index / record_count) as u32;
            (directory.locate(key), leaf)
        });
        let single = located
            .clone()
            .filter(|(it, leaf)| it.also.is_none() && it.leaf == *leaf);
        let either = located.filter(|(it, leaf)| it.leaf == *leaf || it.also == Some(*leaf));
        (directory.size_bytes(), single.count(), either.count())
    })
}

/// Text is nearly always found at once, with fewer bytes than lines take.
#[test]
fn text_is_front_coded() {
    let keys = text(60_000);
    for record_count in [2, 6] {
        let [(lines_size, lines_right, _), (size, right, either)] = compare(&keys, record_count);
        assert!(size < lines_size, "{size} B, lines {lines_size} B");
        assert!(
            lines_right * 10 < keys.len() * 9,
            "lines suit: {lines_right}"
        );
        let percent = |part: usize| 100 * part / keys.len();
        assert!(percent(right) >= 98, "{right} of {}", keys.len());
        assert!((keys.len() - either) * 1000 <= keys.len(), "{either}");
    }
}

/// Hashes, counters and identifiers get the same lines as without the choice.
#[test]
fn numbers_stay_lines() {
    for (name, keys) in &all_shapes(50_000)[..7] {
        for (record_count, epsilon) in [(1, 30.0), (6, 2.67), (6, 7.5), (30, 2.67)] {
            let sample = Sample::new(keys, record_count);
            let (lines, chosen) = (sample.lines(epsilon, 4096), sample.chosen(epsilon, 4096));
            let coded = chosen.iter().filter(|segment| segment.is_front_coded());
            let leaves: u32 = coded.map(StringSegment::leaf_count).sum();
            // A few leaves at an end, or where the number of digits grows.
            assert!(
                leaves as usize * 200 <= sample.fences.len() + 400,
                "{name}, {record_count} records: {leaves} of {} leaves, {} against {} segments",
                sample.fences.len(),
                chosen.len(),
                lines.len(),
            );
        }
    }
}

/// Where the kind of keys changes, so does the kind of segments.
#[test]
fn kinds_take_turns() {
    let numbers = |letter: char| (0..5000).map(move |n| format!("{letter}{n:06}").into_bytes());
    let words = text(20_000);
    let words = words.iter().map(|word| [&b"m/"[..], word].concat());
    let keys: Vec<_> = numbers('a').chain(words).chain(numbers('z')).collect();
    let sample = Sample::new(&keys, 6);
    let segments = sample.chosen(2.67, 4096);
    let mut kinds: Vec<bool> = segments.iter().map(StringSegment::is_front_coded).collect();
    kinds.dedup();
    assert!(kinds.ends_with(&[false, true, false]), "{kinds:?}");
    let residuals = sample.bytes(&segments, 2.67);
    let Residuals::Bytes {
        residuals: bytes, ..
    } = &residuals
    else {
        unreachable!("bytes were asked for");
    };
    assert!(bytes.len() < sample.fences.len());
    let directory = StringDirectory::build(&segments, residuals).expect("trained");
    for (index, key) in keys.iter().enumerate() {
        let located = directory.locate(key);
        let leaf = (index / 6) as u32;
        if segments[directory.segment_of(key)].is_front_coded() {
            assert_eq!((located.leaf, located.also), (leaf, None));
        }
    }
}

proptest! {
    /// Segments represent all leaves in order and respect the size limit; of two adjacent
    /// front-coded ones the first is full.
    #[test]
    fn segments_cover_all_leaves(fences in strings(200), leaf_count_max in 1_u32..40) {
        let mut builder = StringSegmentBuilder::new(2.67, leaf_count_max);
        let mut segments = Vec::new();
        for fence in &fences {
            let closed = builder.push(fence);
            prop_assert!(closed.len() <= 2);
            segments.extend(closed);
            let closed: u32 = segments.iter().map(StringSegment::leaf_count).sum();
            prop_assert!(builder.pending_count() <= 2 * leaf_count_max);
            prop_assert!(builder.pending_count() > 0 && closed > 0 || segments.is_empty());
        }
        segments.extend(builder.finish());
        prop_assert_eq!(builder.pending_count(), 0);
        let mut rest = &*fences;
        for segment in &segments {
            prop_assert!((1..=leaf_count_max).contains(&segment.leaf_count()));
            prop_assert_eq!(segment.first_fence(), &*rest[0]);
            rest = &rest[segment.leaf_count() as usize..];
        }
        prop_assert!(rest.is_empty());
        for pair in segments.windows(2) {
            let are_both = pair[0].is_front_coded() && pair[1].is_front_coded();
            prop_assert!(!are_both || pair[0].leaf_count() == leaf_count_max);
        }
    }
}
