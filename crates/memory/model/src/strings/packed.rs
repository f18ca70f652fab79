//! Residuals of half a byte per leaf: thresholds as steps from leaf to leaf.
//!
//! A residual must be as wide as the model's error. Four bits would allow only a grid of two
//! leaves, or require models with so small an error that they would need more space than residuals.
//! The *step* from one threshold to the next is independent of the error: it is one leaf on
//! average. So 30 leaves form a block of 16 bytes: the first leaf's full threshold (12 bits), then
//! for each other leaf the number of one of 16 steps.
//!
//! A threshold may be anywhere in its gap, between the last key before it and the first behind.
//! Steps are chosen together: the encoder tracks all reachable thresholds from leaf to leaf, and
//! walks back from one of them at the block's end. For random keys, one per leaf, nearly every gap
//! that contains a grid point is hit.
//!
//! Step 0 means that the leaf has no threshold of its own and forms a *pair* with the one before. A
//! key that is predicted between their neighbors' thresholds may be in either, and a lookup reads
//! both in one READ. For random keys, one per leaf, 0.9 % of leaves are joined so. A second leaf in
//! a row is joined only if it cannot be distinguished: otherwise its threshold is as near to the
//! gap as a step leads, so that every leaf is close to its place.
//!
//! Cost of encoding: 15 tests for each unit of each gap. On average that is at most 15 * 2^`SHIFT`
//! per leaf, plus the model's error, over a segment. Each leaf whose gap is missed costs as many
//! tests again, over the last gap of the block that was hit.

use crate::strings::boundary::{Boundary, Interval};
use crate::strings::line::{LineSegment, StringLine};

/// Shift of positions: units of 2^-6 leaves. On a finer grid, errors of 30 leaves would not fit 12
/// bits.
pub(super) const SHIFT: u32 = 6;
/// Bits of the first threshold, relative to its leaf.
const ANCHOR_BITS: u32 = 12;
const ANCHOR_MAX: i64 = (1 << (ANCHOR_BITS - 1)) - 1;
const ANCHOR_MIN: i64 = -ANCHOR_MAX - 1;
/// Bits of a step's number.
const STEP_BITS: u32 = 4;
/// Length of each step in units: geometric, up to six leaves. Chosen among some twenty sequences by
/// the number of exponentially distributed gaps that it hits.
const STEPS: [i64; 1 << STEP_BITS] = [0, 2, 3, 4, 6, 9, 13, 19, 28, 40, 59, 85, 124, 181, 264, 384];
const STEP_MIN: i64 = STEPS[1];
const STEP_MAX: i64 = STEPS[STEPS.len() - 1];

const STEPS_IN_FIRST_WORD: usize = ((u64::BITS - ANCHOR_BITS) / STEP_BITS) as usize;
const STEPS_IN_SECOND_WORD: usize = (u64::BITS / STEP_BITS) as usize;

/// Thresholds of 30 consecutive leaves of a segment, in 16 bytes.
///
/// Word 0 has the first leaf's threshold in its low 12 bits, in two's complement, in units of 2^-6
/// leaves, relative to the leaf. Above follow, from low bits to high, the numbers of the steps to
/// leaves 1 to 13; word 1 has those to leaves 14 to 29. Any two words are a valid block, but a
/// wrong one predicts wrong leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedBlock {
    words: [u64; 2],
}

const _: () = assert!(size_of::<PackedBlock>() == 16);
const _: () = assert!(PackedBlock::LEAF_COUNT == 1 + STEPS_IN_FIRST_WORD + STEPS_IN_SECOND_WORD);

impl PackedBlock {
    /// Number of leaves per block.
    pub const LEAF_COUNT: usize = 30;
    /// Largest error of models, in leaves, for which blocks are designed: beyond it, thresholds may
    /// be out of range, and predictions wrong.
    pub const EPSILON_MAX: f64 = 30.0;

    /// Returns the number of blocks that a segment's leaves need.
    pub fn count_for(leaf_count: u32) -> usize {
        (leaf_count as usize).div_ceil(Self::LEAF_COUNT)
    }

    /// Creates a block of two words.
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self { words }
    }

    /// Returns the two words, as described at the type.
    pub const fn words(self) -> [u64; 2] {
        self.words
    }

    fn from_steps(anchor: i64, steps: &[usize]) -> Self {
        let mut words = [anchor as u64 & ((1 << ANCHOR_BITS) - 1), 0];
        for (index, &step) in steps.iter().enumerate() {
            if let Some(index) = index.checked_sub(STEPS_IN_FIRST_WORD) {
                words[1] |= (step as u64) << (STEP_BITS * index as u32);
            } else {
                words[0] |= (step as u64) << (ANCHOR_BITS + STEP_BITS * index as u32);
            }
        }
        Self { words }
    }

    #[inline]
    fn anchor(self) -> i64 {
        const UNUSED_BITS: u32 = u64::BITS - ANCHOR_BITS;
        (self.words[0] << UNUSED_BITS) as i64 >> UNUSED_BITS
    }

    /// Walks from threshold to threshold, over `leaf_count` leaves from 1 on, as long as `rest`,
    /// the distance of a position from the first one, reaches them. Returns the last leaf reached,
    /// and whether it forms a pair with the one before.
    #[inline]
    fn walk(self, mut rest: i64, leaf_count: usize) -> (usize, bool) {
        let mut steps = u128::from(self.words[0]) | u128::from(self.words[1]) << u64::BITS;
        steps >>= ANCHOR_BITS;
        let (mut leaf, mut is_pair) = (0, false);
        while leaf + 1 < leaf_count {
            let step = STEPS[(steps & 15) as usize];
            if rest < step {
                break;
            }
            rest -= step;
            leaf += 1;
            is_pair = step == 0;
            steps >>= STEP_BITS;
        }
        (leaf, is_pair)
    }
}

/// Finds the leaf of a coordinate by blocks, of which there must be enough for `leaf_count`. Also
/// returns whether it forms a pair with the one before.
#[inline]
pub(super) fn find_by_steps(
    line: &StringLine,
    coordinate: u64,
    blocks: &[PackedBlock],
    leaf_count: u32,
) -> (u32, bool) {
    let position = line.position(coordinate, SHIFT);
    let first_leaf = |block: usize| block * PackedBlock::LEAF_COUNT;
    let threshold = |block: usize| ((first_leaf(block) as i64) << SHIFT) + blocks[block].anchor();
    let last = blocks.len() - 1;
    let pointed = (position >> SHIFT).clamp(0, i64::from(leaf_count) - 1) as usize;
    let mut block = pointed / PackedBlock::LEAF_COUNT;
    while block > 0 && position < threshold(block) {
        block -= 1;
    }
    while block < last && position >= threshold(block + 1) {
        block += 1;
    }
    let rest = position.saturating_sub(threshold(block));
    let count = (leaf_count as usize - first_leaf(block)).min(PackedBlock::LEAF_COUNT);
    let (leaf, is_pair) = blocks[block].walk(rest, count);
    ((first_leaf(block) + leaf) as u32, is_pair)
}

/// Returns the blocks of a segment's leaves.
///
/// # Panics
///
/// If there is not a boundary for each leaf, in order.
pub fn packed_blocks<'a>(
    segment: &LineSegment,
    boundaries: impl IntoIterator<Item = Boundary<'a>>,
) -> Vec<PackedBlock> {
    let mut intervals: Vec<_> = boundaries
        .into_iter()
        .map(|boundary| Interval::of(segment, boundary, SHIFT))
        .collect();
    let leaf_count = segment.parts().leaf_count;
    assert_eq!(
        intervals.len(),
        leaf_count as usize,
        "one boundary per leaf"
    );
    // Keys before the first leaf belong to it, too: its threshold is free.
    intervals[0].last = intervals[0].last.min(intervals[0].first - (1 << SHIFT));
    let mut encoder = Encoder::default();
    let blocks = intervals.chunks(PackedBlock::LEAF_COUNT).enumerate();
    let blocks = blocks.map(|(block, intervals)| {
        let base = ((block * PackedBlock::LEAF_COUNT) as i64) << SHIFT;
        encoder.encode(intervals, base)
    });
    blocks.collect()
}

/// How a leaf's thresholds follow from those of the previous leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThresholdKind {
    /// By a step into the gap.
    Hit,
    /// Without a threshold: a pair.
    Joined,
    /// By the step that comes nearest to the gap without reaching it.
    Near,
}

/// Possible thresholds of a leaf, given those of the previous leaf.
#[derive(Clone, Copy, Debug)]
struct Layer {
    kind: ThresholdKind,
    /// Smallest threshold.
    start: i64,
    /// One more than the greatest threshold.
    end: i64,
    /// Index of the flag of `start` among all layers' flags.
    offset: usize,
}

/// Encoder that chooses the steps of one block.
#[derive(Debug, Default)]
struct Encoder {
    layers: Vec<Layer>,
    is_reached: Vec<bool>,
}

impl Encoder {
    fn encode(&mut self, intervals: &[Interval], base: i64) -> PackedBlock {
        self.begin(intervals[0], base);
        for interval in &intervals[1..] {
            self.extend(*interval);
        }
        self.walk_back(intervals, base)
    }

    /// Collects every first threshold that separates the keys and fits 12 bits; if there is none,
    /// the nearest one for the right side's keys.
    fn begin(&mut self, interval: Interval, base: i64) {
        self.layers.clear();
        self.is_reached.clear();
        let (low, high) = (base + ANCHOR_MIN, base + ANCHOR_MAX);
        let first = interval.first.clamp(low, high);
        let start = (interval.last.clamp(low - 1, high) + 1).min(first);
        self.is_reached.resize((first + 1 - start) as usize, true);
        self.layers.push(Layer {
            kind: ThresholdKind::Hit,
            start,
            end: first + 1,
            offset: 0,
        });
    }

    fn extend(&mut self, interval: Interval) {
        let before = *self.layers.last().expect("begun");
        let lowest = (before.start + STEP_MIN).max(interval.last + 1);
        let highest = (before.end - 1 + STEP_MAX).min(interval.first);
        let offset = self.is_reached.len();
        for threshold in lowest..=highest {
            let reaches = |step: &i64| self.contains(before, threshold - step);
            let is_reached = STEPS[1..].iter().any(reaches);
            self.is_reached.push(is_reached);
        }
        let hit = Layer {
            kind: ThresholdKind::Hit,
            start: lowest,
            end: highest + 1,
            offset,
        };
        if self.is_reached[offset..].contains(&true) {
            self.layers.push(hit);
            return;
        }
        self.is_reached.truncate(offset);
        let is_far = before.end - 1 + STEP_MAX <= interval.last;
        let layer = match self.nearest_below(before, interval.first) {
            Some(nearest) if is_far || before.kind == ThresholdKind::Joined => {
                self.is_reached.push(true);
                Layer {
                    kind: ThresholdKind::Near,
                    start: nearest,
                    end: nearest + 1,
                    offset,
                }
            }
            _ => Layer {
                kind: ThresholdKind::Joined,
                ..before
            },
        };
        self.layers.push(layer);
    }

    /// Returns the greatest threshold, not above `highest`, that a step leads to.
    fn nearest_below(&self, before: Layer, highest: i64) -> Option<i64> {
        let reached = (before.start..before.end).filter(|value| self.contains(before, *value));
        let steps = reached.flat_map(|value| STEPS[1..].iter().map(move |step| value + step));
        steps.filter(|threshold| *threshold <= highest).max()
    }

    fn contains(&self, layer: Layer, threshold: i64) -> bool {
        (layer.start..layer.end).contains(&threshold)
            && self.is_reached[layer.offset + (threshold - layer.start) as usize]
    }

    /// Chooses, from the last leaf to the first, the usable threshold that is nearest to the fence,
    /// so that later keys are predicted right, too.
    fn walk_back(&self, intervals: &[Interval], base: i64) -> PackedBlock {
        let last = self.layers.len() - 1;
        let layer = self.layers[last];
        let reached = (layer.start..layer.end).filter(|value| self.contains(layer, *value));
        let nearest = reached.min_by_key(|value| value.abs_diff(intervals[last].fence));
        let mut threshold = nearest.expect("every layer has a threshold");
        let mut steps = [0; PackedBlock::LEAF_COUNT - 1];
        for index in (1..=last).rev() {
            let before = self.layers[index - 1];
            let step = match self.layers[index].kind {
                ThresholdKind::Joined => 0,
                ThresholdKind::Hit | ThresholdKind::Near => {
                    let leads_on = |step: &usize| self.contains(before, threshold - STEPS[*step]);
                    let distance = |step: &usize| {
                        (threshold - STEPS[*step]).abs_diff(intervals[index - 1].fence)
                    };
                    let step = (1..STEPS.len()).filter(leads_on).min_by_key(distance);
                    step.expect("what is reached is reached from somewhere")
                }
            };
            threshold -= STEPS[step];
            steps[index - 1] = step;
        }
        PackedBlock::from_steps(threshold - base, &steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(last: i64, first: i64) -> Interval {
        Interval {
            last,
            fence: last + 1,
            first,
        }
    }

    /// Returns the thresholds of a block's leaves; `None` for a joined one.
    fn thresholds(block: PackedBlock, count: usize) -> Vec<Option<i64>> {
        let mut found = vec![Some(block.anchor())];
        let mut threshold = block.anchor();
        for leaf in 1..count {
            // The distance at which the walk reaches the leaf.
            let reached = (threshold..=threshold + STEP_MAX)
                .find(|value| block.walk(value - block.anchor(), count).0 >= leaf);
            threshold = reached.expect("steps end");
            let (at, is_pair) = block.walk(threshold - block.anchor(), leaf + 1);
            assert_eq!(at, leaf);
            found.push((!is_pair).then_some(threshold));
        }
        found
    }

    /// The layout matches the type's documentation word for word.
    #[test]
    fn words_are_as_they_were() {
        let mut steps = [0; PackedBlock::LEAF_COUNT - 1];
        (steps[0], steps[1], steps[12], steps[13], steps[28]) = (1, 15, 2, 3, 4);
        let block = PackedBlock::from_steps(-2, &steps);
        assert_eq!(
            block.words(),
            [0x2000_0000_000f_1ffe, 0x4000_0000_0000_0003]
        );
        assert_eq!(PackedBlock::from_words(block.words()), block);
        assert_eq!(block.anchor(), -2);
        assert_eq!(
            PackedBlock::from_steps(ANCHOR_MAX, &steps).anchor(),
            ANCHOR_MAX
        );
        assert_eq!(
            PackedBlock::from_steps(ANCHOR_MIN, &steps).anchor(),
            ANCHOR_MIN
        );
    }

    /// Walking adds up steps, stops at the count, and reports joined leaves.
    #[test]
    fn walking_adds_steps_up() {
        let block = PackedBlock::from_steps(0, &[5, 0, 15, 1]);
        for (rest, expected) in [
            (-1, (0, false)),
            (8, (0, false)),
            (9, (2, true)),
            (392, (2, true)),
            (393, (3, false)),
            (395, (4, false)),
        ] {
            assert_eq!(block.walk(rest, 5), expected, "{rest}");
        }
        assert_eq!(block.walk(i64::MAX, 4), (3, false));
        assert_eq!(block.walk(i64::MAX, 1), (0, false));
    }

    /// Steps into gaps of one grid point are found if there are any, even if only one first
    /// threshold of forty leads there, and not the one next to the fence.
    #[test]
    fn narrow_gaps_are_hit() {
        let steps = [10, 12, 4, 8, 6, 1, 15, 1];
        let mut intervals = vec![interval(0, 40)];
        let mut expected = vec![Some(17)];
        for step in steps {
            let threshold = expected.last().copied().flatten().expect("a threshold") + STEPS[step];
            intervals.push(interval(threshold - 1, threshold));
            expected.push(Some(threshold));
        }
        let block = Encoder::default().encode(&intervals, 0);
        assert_eq!(thresholds(block, intervals.len()), expected);
    }

    /// A gap without a grid point joins only its leaf with the one before.
    #[test]
    fn tied_leaves_are_joined() {
        let gaps = [(-10, 0), (30, 64), (64, 64), (100, 128)];
        let intervals = gaps.map(|(last, first)| interval(last, first));
        let found = thresholds(Encoder::default().encode(&intervals, 0), gaps.len());
        let is_joined: Vec<bool> = found.iter().map(Option::is_none).collect();
        assert_eq!(is_joined, [false, false, true, false]);
        assert!((31..=64).contains(&found[1].expect("not joined")));
        assert!((101..=128).contains(&found[3].expect("not joined")));
    }

    /// A gap that no step reaches is approached by the longest step, and later leaves are right
    /// again.
    #[test]
    fn far_gaps_are_approached() {
        let gaps = [
            (0, 10),
            (2000, 2010),
            (2030, 2040),
            (2060, 2070),
            (2090, 2100),
            (2190, 2200),
        ];
        let intervals = gaps.map(|(last, first)| interval(last, first));
        let found = thresholds(Encoder::default().encode(&intervals, 0), gaps.len());
        let first = found[0].expect("not joined");
        assert_eq!(found[1], Some(first + STEP_MAX));
        assert_eq!(found[2], Some(first + 2 * STEP_MAX));
    }

    /// Thresholds that exceed 12 bits are clamped.
    #[test]
    fn anchors_are_held_in_bounds() {
        for (last, first) in [(-9000, -8000), (-9000, 9000), (8000, 9000), (-5000, 10)] {
            let block = Encoder::default().encode(&[interval(last, first)], 0);
            assert!((last + 1).clamp(ANCHOR_MIN, ANCHOR_MAX) <= block.anchor());
            assert!(block.anchor() <= first.clamp(ANCHOR_MIN, ANCHOR_MAX));
        }
    }
}
