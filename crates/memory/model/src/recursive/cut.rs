//! Where a top model's lines begin, and how many leaves each sub-model gets.
//!
//! One least-squares line over all lows sends about equally many to each sub-model if keys are
//! spread evenly, on the scale of a sub-model. Where they are not, and sub-models are wrong by too
//! much for it, the lows are cut into lines of this crate's regression, within a bound that is
//! many sub-models' lows first, and then fewer. What a line of one bound serves well is not cut any
//! further; what it does not, is, by the next bound. Below the lows of one sub-model the bounds go
//! on with smaller sub-models. So there is one line where one serves, and one for each cluster of
//! keys where these are dense and far apart.
//!
//! A line of which all lows are within `epsilon` of their places sends no more than `2 * epsilon`
//! lows too many to a sub-model.
//!
//! The low at which the regression closes a line is that of a piece between two clusters, as a
//! rule: it begins far from those before and those behind it. It begins no line, so it is the last
//! piece of the line before, whose predictions end there.

use super::least_squares;
use super::sub_model::{SubModel, pieces_of};
use super::top_model::{TopLine, TopModel};
use crate::SegmentBuilder;

/// Positions that a key may be at, as they are meant to be in the mean.
const RANGE_LENGTH_GOAL: f64 = 8.0;
/// And at the most.
const RANGE_LENGTH_MAX: u32 = 64;
/// No sub-model gets more than so many times the lows that it is meant to get.
const CROWD: usize = 4;
/// A sub-model is not made for fewer lows because others are wrong.
const LOWS_PER_SUB_MODEL_MIN: usize = 8;
/// And not for more: bounds of so many sub-models are some that the regression takes.
const LOWS_PER_SUB_MODEL_MAX: usize = 1 << 20;
/// Sub-models that tell how wrong all of a line are.
const SAMPLE_COUNT: u32 = 256;
/// Bounds of the first lines, in sub-models.
const BOUNDS: [usize; 3] = [64, 8, 1];
/// Lines that a top model may have for any lows, and lows for each further one.
const LINE_COUNT_FREE: usize = 64;
const LOWS_PER_LINE_MIN: usize = 16;

/// A bound, and how many lows a sub-model gets.
#[derive(Clone, Copy, Debug)]
struct Level {
    epsilon: f64,
    per_sub_model: usize,
}

/// A line to be: over the lows from `first` to before `end`, for keys until the low at `next`.
#[derive(Clone, Copy, Debug)]
struct Draft {
    first: usize,
    end: usize,
    next: usize,
    /// From x, relative to the first low, to positions, relative to `first`.
    slope: f64,
    intercept: f64,
    per_sub_model: usize,
}

impl TopModel {
    /// Fitted to ascending lows, such that each sub-model gets about so many of them, or, where it
    /// would be wrong by too much, half of that, and half again, down to 8. It has one line if that
    /// is enough, and else up to 64, and one for each 16 lows.
    ///
    /// # Panics
    /// There are no lows, or a sub-model is to get none.
    pub fn fit(lows: &[u64], lows_per_sub_model: usize) -> Self {
        assert!(!lows.is_empty() && lows_per_sub_model > 0);
        debug_assert!(lows.is_sorted_by(|left, right| left < right));
        let lows_per_sub_model = lows_per_sub_model
            .min(lows.len())
            .min(LOWS_PER_SUB_MODEL_MAX);
        let levels = levels(lows_per_sub_model);
        let line_count_max = LINE_COUNT_FREE + lows.len() / LOWS_PER_LINE_MIN;
        // Too many lines: the last bound is left out, and then the one before.
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

fn levels(lows_per_sub_model: usize) -> Vec<Level> {
    let bounds = BOUNDS.map(|bound| Level {
        epsilon: (bound * lows_per_sub_model) as f64,
        per_sub_model: lows_per_sub_model,
    });
    let halves = core::iter::successors(Some(lows_per_sub_model), |more| Some(more / 2));
    let halves = halves.skip(1);
    let smaller = halves.take_while(|half| *half >= LOWS_PER_SUB_MODEL_MIN);
    let smaller = smaller.map(|half| Level {
        epsilon: half as f64,
        per_sub_model: half,
    });
    bounds.into_iter().chain(smaller).collect()
}

/// The line through all lows that has the least squared error.
fn one_line(lows: &[u64], per_sub_model: usize) -> Draft {
    let (slope, intercept) = least_squares(lows[0], 0, &lows.iter().copied());
    Draft {
        first: 0,
        end: lows.len(),
        next: lows.len(),
        slope,
        intercept,
        per_sub_model,
    }
}

impl Draft {
    fn sub_model_count(&self) -> u32 {
        let low_count = self.end - self.first;
        let count = (low_count + self.per_sub_model / 2) / self.per_sub_model;
        u32::try_from(count.max(1)).unwrap_or(u32::MAX)
    }

    /// The line, whose sub-models have numbers from this one on, and the number behind them.
    fn line(&self, lows: &[u64], first_number: u32) -> (TopLine, u32) {
        let count = self.sub_model_count();
        // From positions to sub-models.
        let scale = f64::from(count) / (self.end - self.first) as f64;
        let line = TopLine {
            first_x: lows[self.first],
            slope: self.slope * scale,
            intercept: self.intercept * scale,
            first_number,
        };
        (line, first_number.saturating_add(count))
    }

    /// Whether it sends about equally many lows to each sub-model, and these are right enough: each
    /// at the worst, and in the mean, of which some of them tell.
    fn is_good(&self, lows: &[u64]) -> bool {
        let (line, count) = self.line(lows, 0);
        let own_lows = &lows[self.first..self.next];
        let sharing = own_lows.chunk_by(|left, right| {
            line.sub_model_of(*left, count) == line.sub_model_of(*right, count)
        });
        let mut long = Vec::new();
        for share in sharing {
            if share.len() > CROWD * self.per_sub_model {
                return false;
            }
            // With fewer lows, and the one before them, it cannot be wrong by so many.
            if share.len() >= RANGE_LENGTH_MAX as usize {
                long.push(line.sub_model_of(share[0], count));
            }
        }
        // What is before the first line's is its own, too.
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

/// What is cut, and the lines that are settled.
struct Cut<'a> {
    lows: &'a [u64],
    levels: &'a [Level],
    line_count_max: usize,
    per_sub_model: usize,
    drafts: Vec<Draft>,
}

impl Cut<'_> {
    /// Takes a line, or what comes of it by the levels from this one on.
    fn settle(&mut self, mut draft: Draft, level: usize) {
        if self.drafts.len() > self.line_count_max {
            return;
        }
        // Large sub-models, if the line serves them.
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
                // It cannot be cut any more: its sub-models can be smaller.
                while !is_good && draft.per_sub_model / 2 >= LOWS_PER_SUB_MODEL_MIN {
                    draft.per_sub_model /= 2;
                    is_good = draft.is_good(self.lows);
                }
                self.drafts.push(draft);
            }
        }
    }

    /// As few lines within a bound as there can be in place of one.
    fn cut(&self, whole: &Draft, level: Level) -> Vec<Draft> {
        let mut builder = SegmentBuilder::new(level.epsilon, u32::MAX);
        // The first low of all is 0, or else nobody's, wherever the keys are.
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
            drafts.push(Draft {
                first,
                end: index,
                next: (index + 1).min(whole.next),
                slope: segment.slope,
                intercept: segment.intercept,
                per_sub_model: level.per_sub_model,
            });
            // What has closed it begins no line.
            builder.finish();
            first = index + 1;
        }
        drafts
    }
}
