//! Generates the keys to load, sorted and distinct, and fresh keys to insert.

use std::path::Path;

use rand::Rng;

use super::draw::Draw;
use super::{Dataset, DatasetError, read_key_file};
use crate::distribution::{Purpose, Random, below, purpose_stream};

/// Generates the `record_count` keys of `dataset`, ascending and distinct: the same ones for the
/// same arguments. 10^7 keys take about a second of one core.
///
/// If a file has more keys than requested, a sample is taken, each key equally likely.
pub fn generate(
    dataset: &Dataset,
    record_count: usize,
    seed: u64,
) -> Result<Vec<u64>, DatasetError> {
    generate_with_inserts(dataset, record_count, 0, seed).map(|(loaded, _)| loaded)
}

/// Generates the keys of [`generate`], and `insert_count` distinct keys of the same distribution
/// that are not among them, in the order in which they are to be inserted.
pub(super) fn generate_with_inserts(
    dataset: &Dataset,
    record_count: usize,
    insert_count: usize,
    seed: u64,
) -> Result<(Vec<u64>, Vec<u64>), DatasetError> {
    if let Some(draw) = Draw::new(dataset, record_count, 0, seed) {
        let mut load_random = purpose_stream(seed, Purpose::LoadedKeys);
        let mut insert_random = purpose_stream(seed, Purpose::InsertKeys);
        let loaded = distinct(record_count, || draw.key(&mut load_random));
        let draw = Draw::new(dataset, record_count, insert_count, seed).unwrap_or(draw);
        let inserts = fresh(insert_count, &loaded, || draw.key(&mut insert_random));
        return Ok((loaded, inserts));
    }
    let Dataset::Keys(path) = dataset else {
        let first = record_count as u64;
        return Ok((
            (0..first).collect(),
            (first..first + insert_count as u64).collect(),
        ));
    };
    draw_of_file(path, read_key_file(path)?, record_count, insert_count, seed)
}

/// Draws `record_count` keys of a file, each equally likely, ascending; and `insert_count` others
/// in random order.
pub(super) fn draw_of_file(
    path: &Path,
    keys: Vec<u64>,
    record_count: usize,
    insert_count: usize,
    seed: u64,
) -> Result<(Vec<u64>, Vec<u64>), DatasetError> {
    let wanted = record_count + insert_count;
    if keys.len() < wanted {
        return Err(DatasetError::TooFewKeys {
            path: path.to_owned(),
            available: keys.len(),
            wanted,
        });
    }
    let mut load_random = purpose_stream(seed, Purpose::LoadedKeys);
    let mut insert_random = purpose_stream(seed, Purpose::InsertKeys);
    let (loaded, mut rest) = sample(keys, record_count, &mut load_random);
    deal(&mut rest, insert_count, &mut insert_random);
    Ok((loaded, rest))
}

/// Returns `count` distinct keys from `draw`, ascending.
fn distinct(count: usize, mut draw: impl FnMut() -> u64) -> Vec<u64> {
    let mut keys: Vec<u64> = Vec::with_capacity(count);
    while keys.len() < count {
        let sorted = keys.len();
        keys.extend((sorted..count).map(|_| draw()));
        keys[sorted..].sort_unstable();
        if sorted > 0 {
            merge_tail(&mut keys);
        }
        keys.dedup();
    }
    keys
}

/// The keys are two ascending runs.
#[expect(
    clippy::stable_sort_primitive,
    reason = "it merges two runs in linear time"
)]
fn merge_tail(keys: &mut [u64]) {
    keys.sort();
}

/// Returns `count` distinct keys from `draw` that are not in `loaded`, in the order drawn.
fn fresh(count: usize, loaded: &[u64], mut draw: impl FnMut() -> u64) -> Vec<u64> {
    let mut fresh: Vec<u64> = Vec::with_capacity(count);
    let mut fresh_sorted: Vec<u64> = Vec::with_capacity(count);
    while fresh.len() < count {
        let mut drawn: Vec<(u64, usize)> =
            (fresh.len()..count).map(|turn| (draw(), turn)).collect();
        drawn.sort_unstable();
        drawn.dedup_by_key(|(key, _)| *key);
        drawn.retain(|(key, _)| {
            loaded.binary_search(key).is_err() && fresh_sorted.binary_search(key).is_err()
        });
        fresh_sorted.extend(drawn.iter().map(|(key, _)| *key));
        merge_tail(&mut fresh_sorted);
        drawn.sort_unstable_by_key(|(_, turn)| *turn);
        fresh.extend(drawn.into_iter().map(|(key, _)| key));
    }
    fresh
}

/// Splits `keys` into a sample of `count`, each equally likely, and the rest, both in order
/// (selection sampling: Knuth, The Art of Computer Programming 2, 3.4.2, algorithm S).
fn sample(keys: Vec<u64>, count: usize, random: &mut Random) -> (Vec<u64>, Vec<u64>) {
    if keys.len() == count {
        return (keys, Vec::new());
    }
    let mut taken = Vec::with_capacity(count);
    let mut rest = Vec::with_capacity(keys.len() - count);
    let mut left = keys.len();
    for key in keys {
        if below(random, left as u64) < (count - taken.len()) as u64 {
            taken.push(key);
        } else {
            rest.push(key);
        }
        left -= 1;
    }
    (taken, rest)
}

/// Keeps `count` of `keys`, in random order (Fisher and Yates).
fn deal(keys: &mut Vec<u64>, count: usize, random: &mut impl Rng) {
    for turn in 0..count {
        let other = turn + below(random, (keys.len() - turn) as u64) as usize;
        keys.swap(turn, other);
    }
    keys.truncate(count);
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    const DRAWN: [Dataset; 5] = [
        Dataset::Uniform,
        Dataset::Sequential,
        Dataset::Normal,
        Dataset::Lognormal,
        Dataset::Clustered,
    ];

    fn key_file(keys: impl Iterator<Item = u64>) -> (tempfile::TempDir, Dataset) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys.txt");
        let mut text = String::new();
        for key in keys {
            writeln!(text, "{key}").expect("text");
        }
        std::fs::write(&path, text).expect("a file");
        (folder, Dataset::Keys(path))
    }

    /// Promise: exactly as many keys as requested, ascending and distinct, whatever the count.
    #[test]
    fn keys_are_sorted_distinct_and_exactly_as_many() {
        for dataset in DRAWN {
            for count in [0, 1, 2, 17, 1_000, 100_000] {
                let keys = generate(&dataset, count, 5).expect("drawn");
                assert_eq!(keys.len(), count, "{dataset}");
                assert!(keys.windows(2).all(|pair| pair[0] < pair[1]), "{dataset}");
            }
        }
    }

    /// Promise: the seed decides the keys, and another seed gives other keys.
    #[test]
    fn the_seed_decides_the_keys() {
        for dataset in DRAWN {
            let [first, again, other] = [5, 5, 6].map(|seed| generate(&dataset, 1_000, seed));
            let (first, again, other) = (first.expect("1"), again.expect("2"), other.expect("3"));
            assert_eq!(first, again, "{dataset}");
            assert_eq!(first == other, dataset == Dataset::Sequential, "{dataset}");
        }
    }

    /// Promise: inserts are distinct and fresh, even if there are many times more inserts than
    /// records; loaded keys do not depend on them.
    #[test]
    fn inserts_are_distinct_fresh_and_change_nothing_loaded() {
        for dataset in DRAWN {
            for insert_count in [0, 10, 500, 20_000] {
                let (loaded, inserts) =
                    generate_with_inserts(&dataset, 1_000, insert_count, 5).expect("drawn");
                assert_eq!(
                    loaded,
                    generate(&dataset, 1_000, 5).expect("drawn"),
                    "{dataset}"
                );
                assert_eq!(inserts.len(), insert_count, "{dataset}");
                let mut all = [loaded, inserts].concat();
                all.sort_unstable();
                all.dedup();
                assert_eq!(all.len(), 1_000 + insert_count, "{dataset}");
            }
        }
    }

    /// Promise: inserts are in random order, except sequential keys, which are appended.
    #[test]
    fn inserts_come_in_random_order_or_are_appended() {
        for dataset in DRAWN {
            let (_, inserts) = generate_with_inserts(&dataset, 1_000, 1_000, 5).expect("drawn");
            let ascents = inserts.windows(2).filter(|pair| pair[0] < pair[1]).count();
            if dataset == Dataset::Sequential {
                assert_eq!(inserts, (1_000..2_000).collect::<Vec<u64>>());
            } else {
                assert!((400..600).contains(&ascents), "{dataset}: {ascents}");
            }
        }
    }

    /// Promise: a file with exactly the requested keys is loaded whole. Of a larger one an even
    /// sample is loaded, and inserts come from the rest. A smaller one is refused, with both
    /// counts.
    #[test]
    fn a_file_is_sampled_evenly_and_refused_when_small() {
        let (_folder, dataset) = key_file((0..1_000).map(|i| i * 3));
        let whole = generate(&dataset, 1_000, 1).expect("whole");
        assert_eq!(whole, (0..1_000).map(|i| i * 3).collect::<Vec<u64>>());

        let (loaded, inserts) = generate_with_inserts(&dataset, 600, 400, 1).expect("all used");
        assert_eq!((loaded.len(), inserts.len()), (600, 400));
        let low = loaded.iter().filter(|key| **key < 1_500).count();
        assert!((250..350).contains(&low), "{low}");
        assert!(!inserts.is_sorted());
        let mut all = [loaded, inserts].concat();
        all.sort_unstable();
        assert_eq!(all, whole);

        let error = generate_with_inserts(&dataset, 600, 401, 1).expect_err("one too many");
        assert!(
            error
                .to_string()
                .contains("has 1000 distinct keys, but 1001 are needed"),
            "{error}"
        );
    }
}
