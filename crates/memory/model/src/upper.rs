//! Search for a segment: models over the segments' first keys, and models over those.
//!
//! The models of level 0 predict an index into the first keys, those of level 1 a model of level 0,
//! and so on. A plain search of the last level's few keys, the root, comes first. Each step reads
//! one model (32 bytes) and searches a window of fixed size around its prediction, without branches
//! that depend on keys.
//!
//! Why the window suffices: let key have the true index i among the keys that a model was fitted
//! to. As predictions p are monotone, and clamped to the model's last index, i - e <= p <= i + 1 +
//! e, e being [`EPSILON`] and rounding. The window's start s is p - `WINDOW_COUNT` / 2 = p - (e +
//! 2), rounded to nearest; so s + 1/2 <= i <= s + 2e + 5/2, that is s + 1 ..= s + `WINDOW_COUNT` -
//! 2: the result is never at a window's edge. A result at an edge would still be checked against
//! its neighbors and searched again. So the models determine the time of a search, never its
//! result.

use crate::builder::SegmentBuilder;
use crate::segment::evaluate;

/// Number of keys in a search window: a power of four, because it is searched by quartering.
const WINDOW_COUNT: usize = 16;
/// Error bound of the models, in keys: the largest that the window covers.
const EPSILON: usize = WINDOW_COUNT / 2 - 2;
/// Number of keys in the root, which is searched without models: also a power of four.
const ROOT_COUNT_MAX: usize = 256;

const _: () = assert!(is_power_of_four(WINDOW_COUNT) && is_power_of_four(ROOT_COUNT_MAX));
const _: () = assert!(
    ROOT_COUNT_MAX >= WINDOW_COUNT,
    "a level with models must fill a window"
);

const fn is_power_of_four(count: usize) -> bool {
    count.is_power_of_two() && count.trailing_zeros() & 1 == 0
}

/// Line of an upper level.
#[derive(Clone, Copy, Debug)]
struct Model {
    first_key: u64,
    slope: f64,
    /// Start of the window for the first key, not yet clamped, as an index into the keys below.
    start_intercept: f64,
    /// Start of the last window, for the last key that this model was fitted to.
    start_max: f64,
}

impl Model {
    /// Returns the start of the window for `key`, at most `start_max`.
    #[inline]
    fn window_start(&self, key: u64) -> usize {
        // Adding 2^52, whose last float bit weighs one, rounds to an integer, which is then in the
        // low bits. A cast saturates, and made the whole search take twice as long.
        const ROUNDER: f64 = (1_u64 << 52) as f64;
        let key_relative = key.saturating_sub(self.first_key);
        let start = evaluate(self.slope, self.start_intercept, key_relative);
        // Not `f64::min` and `max`, because their NaN handling costs time.
        let start = if start < self.start_max {
            start
        } else {
            self.start_max
        };
        let start = if start > 0.0 { start } else { 0.0 };
        ((start + ROUNDER).to_bits() ^ ROUNDER.to_bits()) as usize
    }
}

/// Models, and the keys that they predict.
#[derive(Debug)]
struct UpperLevel {
    keys: Box<[u64]>,
    models: Box<[Model]>,
}

/// Builds the models over `keys`.
fn build_models(keys: &[u64]) -> Box<[Model]> {
    let mut builder = SegmentBuilder::new(EPSILON as f64, u32::MAX);
    let mut segments: Vec<_> = keys.iter().filter_map(|&key| builder.push(key)).collect();
    segments.extend(builder.finish());
    let window_start_max = (keys.len() - WINDOW_COUNT) as f64;
    let half_window = (WINDOW_COUNT / 2) as f64;
    let mut start = -half_window;
    let models = segments.iter().map(|segment| {
        let start_intercept = start + segment.intercept;
        start += f64::from(segment.point_count);
        Model {
            first_key: segment.first_x,
            slope: segment.slope,
            start_intercept,
            start_max: (start - 1.0).min(window_start_max),
        }
    });
    models.collect()
}

/// Finds the last of many first keys that is not above a key, and thus the segment that predicts
/// the key. Immutable.
///
/// ```
/// use farleaf_model::UpperModels;
///
/// let upper = UpperModels::build(vec![10, 20, 30]);
/// assert_eq!(upper.find(25), 1);
/// assert_eq!(upper.find(5), 0);
/// ```
#[derive(Debug)]
pub struct UpperModels {
    first_keys: Box<[u64]>,
    /// Models of level 0, over `first_keys`; empty if these fit into the root.
    bottom: Box<[Model]>,
    /// Levels 1 and up, each with its keys: the first keys of the models below.
    middle: Vec<UpperLevel>,
    /// First keys of the last level, padded with `u64::MAX`.
    root: Box<[u64; ROOT_COUNT_MAX]>,
    root_count: usize,
}

impl UpperModels {
    /// Builds the levels over `first_keys`. Cost: linear in their number.
    ///
    /// # Panics
    ///
    /// If there is no first key, or they are not strictly ascending.
    pub fn build(first_keys: Vec<u64>) -> Self {
        assert!(!first_keys.is_empty(), "there must be a first key");
        assert!(
            first_keys.is_sorted_by(|left, right| left < right),
            "first keys must be strictly ascending"
        );
        let first_keys = first_keys.into_boxed_slice();
        let mut bottom = Box::default();
        let mut middle = Vec::new();
        let mut root_keys = first_keys.clone();
        if root_keys.len() > ROOT_COUNT_MAX {
            bottom = build_models(&first_keys);
            root_keys = bottom.iter().map(|model| model.first_key).collect();
        }
        // Any 2 * EPSILON + 1 keys fit a level line, so each level is at most a 13th of the one
        // below.
        while root_keys.len() > ROOT_COUNT_MAX {
            let models = build_models(&root_keys);
            let above = models.iter().map(|model| model.first_key).collect();
            middle.push(UpperLevel {
                keys: root_keys,
                models,
            });
            root_keys = above;
        }
        middle.shrink_to_fit();
        let mut root = Box::new([u64::MAX; ROOT_COUNT_MAX]);
        root[..root_keys.len()].copy_from_slice(&root_keys);
        let root_count = root_keys.len();
        Self {
            first_keys,
            bottom,
            middle,
            root,
            root_count,
        }
    }

    /// Returns the index of the last first key that is not above `key`; 0 if there is none. Always
    /// exact.
    #[inline]
    pub fn find(&self, key: u64) -> usize {
        let mut index = self.search_root(key);
        if self.bottom.is_empty() {
            return index;
        }
        for level in self.middle.iter().rev() {
            index = search_window(&level.keys, level.models[index].window_start(key), key);
        }
        search_window(&self.first_keys, self.bottom[index].window_start(key), key)
    }

    /// Searches little more of the root than its used part. The size of that part never changes, so
    /// the branches are predicted, and each search is unrolled.
    #[inline]
    fn search_root(&self, key: u64) -> usize {
        let index = match (self.root.first_chunk::<16>(), self.root.first_chunk::<64>()) {
            (Some(small), _) if self.root_count <= 16 => search_quarters(small, key),
            (_, Some(medium)) if self.root_count <= 64 => search_quarters(medium, key),
            _ => search_quarters(&self.root, key),
        };
        // The padding counts as not above `u64::MAX`.
        index.min(self.root_count - 1)
    }

    /// Returns the first keys in ascending order.
    pub fn first_keys(&self) -> &[u64] {
        &self.first_keys
    }

    /// Returns the size in bytes of all memory held: this value itself, the first keys and all
    /// upper levels.
    pub fn size_bytes(&self) -> usize {
        let middle = self.middle.iter().map(|level| {
            size_of_val(level) + size_of_val(&*level.keys) + size_of_val(&*level.models)
        });
        size_of::<Self>()
            + size_of_val(&*self.first_keys)
            + size_of_val(&*self.bottom)
            + middle.sum::<usize>()
            + size_of_val(&*self.root)
    }
}

/// Returns the last index whose key is not above `key`, or 0, for a power of four of keys.
/// Quartering takes half as many dependent steps as halving, and its three comparisons per step are
/// independent.
#[inline]
fn search_quarters<const COUNT: usize>(keys: &[u64; COUNT], key: u64) -> usize {
    let mut start = 0;
    let mut quarter = COUNT / 4;
    while quarter > 0 {
        let not_above = |multiple: usize| {
            // The remainder changes nothing; it shows the compiler that the index is in bounds.
            usize::from(keys[(start + multiple * quarter) % COUNT] <= key)
        };
        start += quarter * (not_above(1) + not_above(2) + not_above(3));
        quarter /= 4;
    }
    start
}

/// Returns the last index whose key is not above `key`, or 0, searching the window at `start`
/// first.
#[inline]
fn search_window(keys: &[u64], start: usize, key: u64) -> usize {
    let Some(window) = keys[start..].first_chunk::<WINDOW_COUNT>() else {
        return search_all(keys, key);
    };
    let index = search_quarters(window, key);
    if index == 0 || index == WINDOW_COUNT - 1 {
        return check_edge(keys, start + index, key);
    }
    start + index
}

/// Checks a result at a window's edge by its neighbors, and searches all keys if it is wrong.
#[cold]
#[inline(never)]
fn check_edge(keys: &[u64], found: usize, key: u64) -> usize {
    let starts_before = found == 0 || keys[found] <= key;
    let ends_after = keys.get(found + 1).is_none_or(|&next| key < next);
    if starts_before && ends_after {
        found
    } else {
        search_all(keys, key)
    }
}

#[cold]
#[inline(never)]
fn search_all(keys: &[u64], key: u64) -> usize {
    keys.partition_point(|&first| first <= key)
        .saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squares(count: u64) -> Vec<u64> {
        (0..count).map(|index| index * index).collect()
    }

    /// A wrong prediction makes a search slower, not wrong.
    #[test]
    fn any_prediction_finds_the_answer() {
        let keys = squares(100);
        for key in (0..10_000).step_by(7) {
            let expected = keys.partition_point(|&first| first <= key) - 1;
            for start in [0, 1, 50, 84, 85, 100] {
                assert_eq!(search_window(&keys, start, key), expected, "{key} {start}");
            }
        }
    }

    /// For every key that a model was fitted to, and every key between, the window contains the
    /// result, off its edges: the search of all keys is not needed.
    #[test]
    fn windows_hold_the_answer() {
        let keys = squares(20_000);
        let models = build_models(&keys);
        assert!(models.len() > 10, "squares are no line");
        for key in (0..keys[keys.len() - 1])
            .step_by(997)
            .chain(keys.iter().copied())
        {
            let index = keys.partition_point(|&first| first <= key) - 1;
            let model = models.partition_point(|model| model.first_key <= key) - 1;
            let start = models[model].window_start(key);
            assert!(start + WINDOW_COUNT <= keys.len());
            let at_end = start == 0 || start + WINDOW_COUNT == keys.len();
            assert!(
                index > start || at_end,
                "{key}: {index}, window from {start}"
            );
            assert!(
                index < start + WINDOW_COUNT - 1 || at_end,
                "{key}: {index}, from {start}"
            );
        }
    }

    /// Rounding by the float's last bit rounds to nearest, clamps, and accepts any key.
    #[test]
    fn window_starts_are_rounded_and_clamped() {
        let model = Model {
            first_key: 10,
            slope: 1.0,
            start_intercept: -8.25,
            start_max: 1e9,
        };
        for (key, start) in [
            (0, 0),
            (10, 0),
            (18, 0),
            (19, 1),
            (1010, 992),
            (u64::MAX, 1_000_000_000),
        ] {
            assert_eq!(model.window_start(key), start, "{key}");
        }
        let steep = Model {
            slope: f64::MAX,
            ..model
        };
        assert_eq!(steep.window_start(u64::MAX), 1_000_000_000);
    }

    /// Keys below all first keys belong to the first.
    #[test]
    fn keys_below_all_find_the_first() {
        let keys: Vec<u64> = squares(1000)
            .iter()
            .map(|square| square + 1_000_000)
            .collect();
        let upper = UpperModels::build(keys);
        assert_eq!(upper.find(0), 0);
        assert_eq!(upper.find(999_999), 0);
        assert_eq!(upper.find(u64::MAX), 999);
    }

    /// The levels are few, and small compared with their keys.
    #[test]
    fn levels_are_small() {
        let upper = UpperModels::build(squares(20_000));
        assert!(!upper.bottom.is_empty());
        let keys_size_bytes = 20_000 * size_of::<u64>();
        assert!(upper.size_bytes() > keys_size_bytes);
        assert!(
            upper.size_bytes() < keys_size_bytes * 11 / 10,
            "{}",
            upper.size_bytes()
        );
    }

    #[test]
    #[should_panic(expected = "strictly ascending")]
    fn equal_first_keys_are_refused() {
        UpperModels::build(vec![1, 1]);
    }

    #[test]
    #[should_panic(expected = "there must be a first key")]
    fn no_first_key_is_refused() {
        UpperModels::build(Vec::new());
    }
}
