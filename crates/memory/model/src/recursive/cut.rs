//! Cuts a top model into lines, and chooses the number of leaves per sub-model.
//!
//! If keys are spread evenly on the scale of a sub-model, one least-squares line over all lows
//! sends about equally many lows to each sub-model. Otherwise sub-models have too large errors, and
//! the lows are cut into lines by this crate's regression. Its bound is first many sub-models'
//! lows, then fewer. A line that serves its lows well is not cut further; others are cut with the
//! next bound. Below the lows of one sub-model, smaller sub-models are tried. So even keys have one
//! line, and each dense, remote cluster of keys has its own.
//!
//! A line with all lows within `epsilon` of their places sends at most `2 * epsilon` additional
//! lows to a sub-model.
//!
//! The low at which the regression closes a line usually belongs to a piece between two clusters,
//! far from its neighbors. It does not begin a line. It is the last piece of the line before, whose
//! predictions end there.

use super::least_squares;
use super::sub_model::{SubModel, pieces_of};
use super::top_model::{TopLine, TopModel};
use crate::SegmentBuilder;

/// Intended mean number of positions that a key may be at.
const RANGE_LENGTH_GOAL: f64 = 8.0;
/// Largest number of positions that a key may be at.
const RANGE_LENGTH_MAX: u32 = 64;
/// Largest factor by which a sub-model's lows may exceed the intended number.
const LOW_COUNT_FACTOR_MAX: usize = 4;
/// Smallest number of lows for which a smaller sub-model is tried to reduce errors.
const LOWS_PER_SUB_MODEL_MIN: usize = 8;
/// Largest number of lows per sub-model, so that the regression accepts bounds of many sub-models.
const LOWS_PER_SUB_MODEL_MAX: usize = 1 << 20;
/// Number of sub-models sampled to estimate the error of a line.
const SAMPLE_COUNT: u32 = 256;
/// Bounds of the first lines, in sub-models.
const BOUNDS: [usize; 3] = [64, 8, 1];
/// Number of lines that any top model may have, and number of lows for each further one.
const LINE_COUNT_FREE: usize = 64;
const LOWS_PER_LINE_MIN: usize = 16;

/// Bound of a cut, and the number of lows per sub-model.
#[derive(Clone, Copy, Debug)]
struct CutLevel {
    epsilon: f64,
    per_sub_model: usize,
}

/// Planned line: over the lows from `first` to before `end`, for keys up to the low at `next`.
#[derive(Clone, Copy, Debug)]
struct LineDraft {
    first: usize,
    end: usize,
    next: usize,
    /// Slope from x, relative to the first low, to positions, relative to `first`.
    slope: f64,
    intercept: f64,
    per_sub_model: usize,
}

impl TopModel {
    /// Fits a model to ascending lows such that each sub-model gets about `lows_per_sub_model` of
    /// them. Where the errors would be too large, it halves that number repeatedly, down to 8. Uses
    /// one line if that suffices; otherwise at most 64, plus one for each 16 lows.
    ///
    /// # Panics
    /// There are no lows, or `lows_per_sub_model` is 0.
    pub fn fit(lows: &[u64], lows_per_sub_model: usize) -> Self {
        assert!(!lows.is_empty() && lows_per_sub_model > 0);
        debug_assert!(lows.is_sorted_by(|left, right| left < right));
        let lows_per_sub_model = lows_per_sub_model
            .min(lows.len())
            .min(LOWS_PER_SUB_MODEL_MAX);
        let levels = levels(lows_per_sub_model);
        let line_count_max = LINE_COUNT_FREE + lows.len() / LOWS_PER_LINE_MIN;
        // Too many lines: leave out the last bound, then the one before.
        let depths = (0..=levels.len()).rev();
        let mut cuts = depths.map(|depth| {
            let mut cut = Cut {
                lows,
                levels: &levels[..depth],
                line_count_max,
                per_sub_model: lows_per_sub_model,
                drafts: Vec::new(),
            };
            cut.settle(one_line(lows, lows_per_sub_model), 0);
            cut.drafts
        });
        let drafts = cuts.find(|drafts| drafts.len() <= line_count_max);
        let drafts = drafts.expect("with no bound it is one line");
        let (mut lines, mut sub_model_count) = (Vec::with_capacity(drafts.len()), 0);
        for draft in drafts {
            let (line, end_number) = draft.line(lows, sub_model_count);
            lines.push(line);
            sub_model_count = end_number;
        }
        Self::from_lines(lines, sub_model_count).expect("lows ascend")
    }
}

fn levels(lows_per_sub_model: usize) -> Vec<CutLevel> {
    let bounds = BOUNDS.map(|bound| CutLevel {
        epsilon: (bound * lows_per_sub_model) as f64,
        per_sub_model: lows_per_sub_model,
    });
    let halves = core::iter::successors(Some(lows_per_sub_model), |more| Some(more / 2));
    let halves = halves.skip(1);
    let smaller = halves.take_while(|half| *half >= LOWS_PER_SUB_MODEL_MIN);
    let smaller = smaller.map(|half| CutLevel {
        epsilon: half as f64,
        per_sub_model: half,
    });
    bounds.into_iter().chain(smaller).collect()
}

/// Returns the least-squares line through all lows.
fn one_line(lows: &[u64], per_sub_model: usize) -> LineDraft {
    let (slope, intercept) = least_squares(lows[0], 0, &lows.iter().copied());
    LineDraft {
        first: 0,
        end: lows.len(),
        next: lows.len(),
        slope,
        intercept,
        per_sub_model,
    }
}

impl LineDraft {
    fn sub_model_count(&self) -> u32 {
        let low_count = self.end - self.first;
        let count = (low_count + self.per_sub_model / 2) / self.per_sub_model;
        u32::try_from(count.max(1)).unwrap_or(u32::MAX)
    }

    /// Returns the line, whose sub-models are numbered from `first_number`, and the next free
    /// number.
    fn line(&self, lows: &[u64], first_number: u32) -> (TopLine, u32) {
        let count = self.sub_model_count();
        // Scales positions to sub-models.
        let scale = f64::from(count) / (self.end - self.first) as f64;
        let line = TopLine {
            first_x: lows[self.first],
            slope: self.slope * scale,
            intercept: self.intercept * scale,
            first_number,
        };
        (line, first_number.saturating_add(count))
    }

    /// Returns whether the line sends about equally many lows to each sub-model with small errors:
    /// in the worst case, and in the mean of a sample.
    fn is_good(&self, lows: &[u64]) -> bool {
        let (line, count) = self.line(lows, 0);
        let own_lows = &lows[self.first..self.next];
        let sharing = own_lows.chunk_by(|left, right| {
            line.sub_model_of(*left, count) == line.sub_model_of(*right, count)
        });
        let mut long = Vec::new();
        for share in sharing {
            if share.len() > LOW_COUNT_FACTOR_MAX * self.per_sub_model {
                return false;
            }
            // With fewer lows, plus the one before them, the error cannot be that large.
            if share.len() >= RANGE_LENGTH_MAX as usize {
                long.push(line.sub_model_of(share[0], count));
            }
        }
        // Keys before the first line's first low belong to it, too.
        let first = if self.first <= 1 { 0 } else { lows[self.first] };
        let own = first..=lows.get(self.next).map_or(u64::MAX, |next| next - 1);
        let fitted = |number| {
            let span = line.span(number, count, &own)?;
            Some(SubModel::fit(&lows[pieces_of(lows, &span)], &span))
        };
        let is_too_wrong = |model: &SubModel| model.range_length_max() > RANGE_LENGTH_MAX;
        if long
            .into_iter()
            .filter_map(fitted)
            .any(|model| is_too_wrong(&model))
        {
            return false;
        }
        let step = (count / SAMPLE_COUNT).max(1) as usize;
        let (mut lengths, mut low_count) = (0.0, 0.0);
        for model in (0..count).step_by(step).filter_map(fitted) {
            let length = model.range_length_max();
            let weight = f64::from(model.piece_count());
            lengths += weight * f64::from(length);
            low_count += weight;
        }
        lengths <= RANGE_LENGTH_GOAL * low_count
    }
}

/// Input of a cut, and the finished lines.
struct Cut<'a> {
    lows: &'a [u64],
    levels: &'a [CutLevel],
    line_count_max: usize,
    per_sub_model: usize,
    drafts: Vec<LineDraft>,
}

impl Cut<'_> {
    /// Adds a line, or the lines into which the levels from `level` on cut it.
    fn settle(&mut self, mut draft: LineDraft, level: usize) {
        if self.drafts.len() > self.line_count_max {
            return;
        }
        // Try large sub-models first.
        let cut_for = core::mem::replace(&mut draft.per_sub_model, self.per_sub_model);
        let mut is_good = draft.is_good(self.lows);
        if !is_good && cut_for < self.per_sub_model {
            draft.per_sub_model = cut_for;
            is_good = draft.is_good(self.lows);
        }
        match self.levels.get(level) {
            Some(bound) if !is_good => {
                for finer in self.cut(&draft, *bound) {
                    self.settle(finer, level + 1);
                }
            }
            _ => {
                // The line cannot be cut further, but its sub-models can be smaller.
                while !is_good && draft.per_sub_model / 2 >= LOWS_PER_SUB_MODEL_MIN {
                    draft.per_sub_model /= 2;
                    is_good = draft.is_good(self.lows);
                }
                self.drafts.push(draft);
            }
        }
    }

    /// Replaces a line by as few lines as possible within a bound.
    fn cut(&self, whole: &LineDraft, level: CutLevel) -> Vec<LineDraft> {
        let mut builder = SegmentBuilder::new(level.epsilon, u32::MAX);
        // Left out: the very first low is 0, or not a key's low, wherever the keys are.
        let has_others = whole.first == 0 && whole.next > 1;
        let begin = if has_others { 1 } else { whole.first };
        let (mut first, mut drafts) = (begin, Vec::new());
        for index in begin..=whole.next {
            let is_end = index == whole.next;
            let closed = if is_end {
                builder.finish()
            } else {
                builder.push(self.lows[index])
            };
            let Some(segment) = closed else { continue };
            drafts.push(LineDraft {
                first,
                end: index,
                next: (index + 1).min(whole.next),
                slope: segment.slope,
                intercept: segment.intercept,
                per_sub_model: level.per_sub_model,
            });
            // The low that closed the line does not begin one.
            builder.finish();
            first = index + 1;
        }
        drafts
    }
}
