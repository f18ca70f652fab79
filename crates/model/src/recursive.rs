//! A two-level recursive model, as XStore has it: a line that says which of so many lines a key
//! belongs to, and these, each of which says where the key is and how far it can be wrong.
//!
//! What is looked for is not a key but the *piece* that covers it: pieces follow each other, each
//! from its low to just before the next one's. A sub-model knows those that overlap with the keys
//! which the top model sends to it, so the piece at either end is known to two of them. That is
//! XStore's boundary augmentation (section 4.2) for pieces: a key that lies between two sub-models'
//! pieces and is in neither's training set is still in the range that its sub-model predicts.
//!
//! - X. Wei, R. Chen, H. Chen, *Fast RDMA-based Ordered Key-Value Store using Remote Learned
//!   Cache*, OSDI 2020.
//! - T. Kraska, A. Beutel, E. Chi, J. Dean, N. Polyzotis, *The Case for Learned Index Structures*,
//!   SIGMOD 2018: recursive models, and the smallest and greatest error of each.
//!
//! Deviations: x is taken relative to the first one in `u64`, before anything becomes a float; the
//! errors are those of whole pieces, not of the keys that happen to be there, and are measured with
//! the arithmetic that predicts, so absent keys need no care.

use core::ops::{Range, RangeInclusive};

use crate::segment::evaluate;

/// What sums of predictions and errors may be off by, as they are rounded: of less than 2^32 pieces
/// far less than this.
const ROUNDING_MARGIN: f64 = 1e-5;

/// Words of a [`TopModel`].
pub const TOP_MODEL_SIZE_WORDS: usize = 4;
/// Words of a [`SubModel`].
pub const SUB_MODEL_SIZE_WORDS: usize = 5;

/// Sends keys to sub-models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopModel {
    first_x: u64,
    slope: f64,
    intercept: f64,
    sub_model_count: u32,
}

/// Predicts which of its pieces covers a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubModel {
    first_x: u64,
    slope: f64,
    intercept: f64,
    piece_count: u32,
    /// By how much a prediction can be less than the piece's number, measured.
    behind: f32,
    /// And by how much greater: that of a piece's end is, by 1, even if the line is perfect.
    ahead: f32,
}

impl TopModel {
    /// Fitted to ascending x, such that each sub-model gets about as many of them.
    ///
    /// # Panics
    /// There is no x, or no sub-model.
    pub fn fit(xs: &[u64], sub_model_count: u32) -> Self {
        assert!(!xs.is_empty() && sub_model_count > 0);
        debug_assert!(xs.is_sorted());
        let (slope, intercept) = least_squares(xs[0], &xs.iter().copied());
        // From positions to sub-models.
        let scale = f64::from(sub_model_count) / xs.len() as f64;
        Self {
            first_x: xs[0],
            slope: slope * scale,
            intercept: intercept * scale,
            sub_model_count,
        }
    }

    /// How many sub-models there are.
    pub fn sub_model_count(&self) -> u32 {
        self.sub_model_count
    }

    /// The model as words.
    pub fn words(&self) -> [u64; TOP_MODEL_SIZE_WORDS] {
        let count = self.sub_model_count.into();
        let line = [self.slope.to_bits(), self.intercept.to_bits()];
        [self.first_x, line[0], line[1], count]
    }

    /// The model that was written so; `None`: none was.
    pub fn from_words(words: &[u64; TOP_MODEL_SIZE_WORDS]) -> Option<Self> {
        let [first_x, slope, intercept, count] = *words;
        let (slope, intercept) = line(slope, intercept)?;
        let sub_model_count = u32::try_from(count).ok().filter(|count| *count > 0)?;
        Some(Self {
            first_x,
            slope,
            intercept,
            sub_model_count,
        })
    }

    /// The sub-model of x, from 0. Monotone: no greater for a smaller x.
    #[inline]
    pub fn sub_model_of(&self, x: u64) -> u32 {
        let x = x.saturating_sub(self.first_x);
        clamp(
            evaluate(self.slope, self.intercept, x),
            self.sub_model_count,
        )
    }

    /// The x that are sent to a sub-model, first and last; `None`: there is none.
    pub fn span(&self, sub_model: u32) -> Option<RangeInclusive<u64>> {
        let first = self.first_x_from(sub_model)?;
        let last = match self.first_x_from(sub_model + 1) {
            Some(next) => next.checked_sub(1)?,
            None => u64::MAX,
        };
        (first <= last).then_some(first..=last)
    }

    /// The smallest x that is sent to this sub-model or a later one.
    fn first_x_from(&self, sub_model: u32) -> Option<u64> {
        if self.sub_model_of(u64::MAX) < sub_model {
            return None;
        }
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.sub_model_of(middle) < sub_model {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }
}

/// Which of the pieces with these lows overlap with a span. The first low is not above the span.
///
/// # Panics
/// There are no pieces.
pub fn pieces_of(lows: &[u64], span: &RangeInclusive<u64>) -> Range<usize> {
    assert!(!lows.is_empty());
    let first = lows.partition_point(|low| low <= span.start());
    let end = lows.partition_point(|low| low <= span.end());
    first.saturating_sub(1)..end
}

impl SubModel {
    /// Fitted to the pieces that overlap with a span, given their ascending lows; the first one may
    /// begin before it.
    ///
    /// # Panics
    /// There are no pieces, or more than 2^32 - 1.
    pub fn fit(lows: &[u64], span: &RangeInclusive<u64>) -> Self {
        assert!(!lows.is_empty());
        let piece_count = u32::try_from(lows.len()).expect("fewer than 2^32 pieces");
        let first_x = *span.start();
        let within = |low: u64| low.clamp(first_x, *span.end());
        let begins = lows.iter().map(|low| within(*low));
        let (slope, intercept) = least_squares(first_x, &begins);
        let mut model = Self {
            first_x,
            slope,
            intercept,
            piece_count,
            behind: 0.0,
            ahead: 0.0,
        };
        let (mut behind, mut ahead) = (0.0_f64, 0.0_f64);
        let nexts = begins.clone().skip(1).map(|next| next.saturating_sub(1));
        let ends = nexts.chain([*span.end()]);
        for (piece, (begin, end)) in (0_u32..).zip(begins.zip(ends)) {
            // Predictions rise with x: those of a piece lie between those of its ends. What is
            // predicted before the first piece is of that, and behind the last, of the last.
            if piece > 0 {
                behind = behind.max(f64::from(piece) - model.predict(begin));
            }
            if piece < piece_count - 1 {
                ahead = ahead.max(model.predict(end.max(begin)) - f64::from(piece));
            }
        }
        model.behind = ((behind + ROUNDING_MARGIN) as f32).next_up();
        model.ahead = ((ahead + ROUNDING_MARGIN) as f32).next_up();
        model
    }

    #[inline]
    fn predict(&self, x: u64) -> f64 {
        let x = x.saturating_sub(self.first_x);
        evaluate(self.slope, self.intercept, x)
    }

    /// The piece that most probably covers x.
    #[inline]
    pub fn position(&self, x: u64) -> u32 {
        let middle = (f64::from(self.behind) - f64::from(self.ahead)) / 2.0;
        clamp((self.predict(x) + middle).round(), self.piece_count)
    }

    /// The pieces of which one covers x, if x is of the span that the model was fitted to.
    #[inline]
    pub fn range(&self, x: u64) -> RangeInclusive<u32> {
        let predicted = self.predict(x);
        let first = (predicted - f64::from(self.ahead)).ceil();
        let last = clamp(predicted + f64::from(self.behind), self.piece_count);
        clamp(first, self.piece_count).min(last)..=last
    }

    /// Where the piece with this number begins as the model predicts it, in 2^-16 of the range of
    /// its errors, rounded down: what [`narrow`](Self::narrow) wants to know of each piece. `low`
    /// is where it begins, or before the span.
    pub fn residual(&self, piece: u32, low: u64) -> u16 {
        let error = self.predict(low.max(self.first_x)) - f64::from(piece);
        let steps = (error + f64::from(self.behind)) / self.step();
        clamp(steps, 1 << 16) as u16
    }

    /// The pieces of a [`range`](Self::range) of which one covers x, given the residuals of all of
    /// them in their order: one as a rule.
    pub fn narrow(
        &self,
        x: u64,
        range: RangeInclusive<u32>,
        residuals: impl IntoIterator<Item = u16>,
    ) -> RangeInclusive<u32> {
        let (predicted, step) = (self.predict(x), self.step());
        let (mut first, mut last) = (*range.start(), *range.start());
        for (piece, residual) in range.zip(residuals) {
            let begins = f64::from(piece) - f64::from(self.behind) + f64::from(residual) * step;
            // Where a prediction is the same, x may be on either side.
            if begins - ROUNDING_MARGIN > predicted {
                break;
            }
            last = piece;
            if begins + step + ROUNDING_MARGIN < predicted {
                first = piece;
            }
        }
        first..=last
    }

    fn step(&self) -> f64 {
        (f64::from(self.behind) + f64::from(self.ahead)) / f64::from(1 << 16)
    }

    /// How many pieces it knows.
    pub fn piece_count(&self) -> u32 {
        self.piece_count
    }

    /// The model as words.
    pub fn words(&self) -> [u64; SUB_MODEL_SIZE_WORDS] {
        let line = [self.slope.to_bits(), self.intercept.to_bits()];
        let errors = [self.behind, self.ahead].map(|error| u64::from(error.to_bits()));
        let count = self.piece_count.into();
        [
            self.first_x,
            line[0],
            line[1],
            count,
            errors[0] | errors[1] << 32,
        ]
    }

    /// The model that was written so; `None`: none was.
    pub fn from_words(words: &[u64; SUB_MODEL_SIZE_WORDS]) -> Option<Self> {
        let [first_x, slope, intercept, count, errors] = *words;
        let (slope, intercept) = line(slope, intercept)?;
        let piece_count = u32::try_from(count).ok().filter(|count| *count > 0)?;
        let [behind, ahead] = [errors, errors >> 32].map(|bits| f32::from_bits(bits as u32));
        (behind.is_finite() && ahead.is_finite()).then_some(())?;
        Some(Self {
            first_x,
            slope,
            intercept,
            piece_count,
            behind,
            ahead,
        })
    }

    /// Pieces of a range at the most.
    pub fn range_length_max(&self) -> u32 {
        let length = f64::from(self.behind) + f64::from(self.ahead);
        clamp(length, self.piece_count) + 1
    }
}

/// A line that was written as bits, if it is one that can have been fitted.
fn line(slope: u64, intercept: u64) -> Option<(f64, f64)> {
    let line = (f64::from_bits(slope), f64::from_bits(intercept));
    (line.0.is_finite() && line.0 >= 0.0 && line.1.is_finite()).then_some(line)
}

/// Rounded down, and at least 0 and below `count`.
#[inline]
#[expect(
    clippy::cast_sign_loss,
    reason = "casts of floats saturate, and 0 is what is wanted"
)]
fn clamp(value: f64, count: u32) -> u32 {
    (value as u32).min(count - 1)
}

/// The line through the points (x, its position) that has the least squared error, relative to
/// `first_x`: slope and intercept, both finite, the slope not negative.
fn least_squares(first_x: u64, xs: &(impl Iterator<Item = u64> + Clone)) -> (f64, f64) {
    let points = || {
        let relative = xs.clone().map(|x| x.saturating_sub(first_x) as f64);
        relative.zip(0_u32..)
    };
    let mut count = 0.0;
    let (mut mean_x, mut mean_y) = (0.0, 0.0);
    for (x, y) in points() {
        count += 1.0;
        mean_x += (x - mean_x) / count;
        mean_y += (f64::from(y) - mean_y) / count;
    }
    let (mut covariance, mut variance) = (0.0, 0.0);
    for (x, y) in points() {
        covariance += (x - mean_x) * (f64::from(y) - mean_y);
        variance += (x - mean_x) * (x - mean_x);
    }
    // Positions rise with x; what is below 0 is rounding.
    let slope = if variance > 0.0 {
        (covariance / variance).max(0.0)
    } else {
        0.0
    };
    (slope, mean_y - slope * mean_x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks every key of `asked` against pieces with these lows.
    fn check(lows: &[u64], sub_model_count: u32, asked: impl IntoIterator<Item = u64>) {
        let top = TopModel::fit(lows, sub_model_count);
        assert_eq!(TopModel::from_words(&top.words()), Some(top));
        for x in asked {
            let sub_model = top.sub_model_of(x);
            let span = top.span(sub_model).expect("x is sent there");
            assert!(span.contains(&x), "{x}: {span:?}");
            let pieces = pieces_of(lows, &span);
            let model = SubModel::fit(&lows[pieces.clone()], &span);
            let truth = lows.partition_point(|low| *low <= x) - 1;
            assert!(pieces.contains(&truth), "{x} is in {truth}, not {pieces:?}");
            let wanted = (truth - pieces.start) as u32;
            let range = model.range(x);
            assert!(range.contains(&wanted), "{x} is in {wanted}, not {range:?}");
            assert_eq!(SubModel::from_words(&model.words()), Some(model));
            assert!(range.end() - range.start() < model.range_length_max());
            let residuals: Vec<u16> = lows[pieces]
                .iter()
                .zip(0..)
                .map(|(low, piece)| model.residual(piece, *low))
                .collect();
            let in_range = residuals[*range.start() as usize..=*range.end() as usize].iter();
            let narrow = model.narrow(x, range.clone(), in_range.copied());
            assert!(
                narrow.contains(&wanted),
                "{x} is in {wanted}, not {narrow:?}"
            );
            assert!(*range.end() < model.piece_count());
        }
    }

    /// Lows of every shape: the first is 0, as the first leaf's.
    fn lows() -> impl Strategy<Value = Vec<u64>> {
        let cluster = (any::<u64>(), 0_u32..63, 1_usize..60);
        proptest::collection::vec(cluster, 1..6).prop_map(|clusters| {
            let mut lows: Vec<u64> = vec![0];
            for (from, shift, count) in clusters {
                let distance = (from >> 1 | 1) >> shift;
                lows.extend(
                    (0..count as u64)
                        .map(|step| from.wrapping_add(step.wrapping_mul(distance.max(1)))),
                );
            }
            lows.sort_unstable();
            lows.dedup();
            lows
        })
    }

    proptest! {
        /// Promise: whatever the pieces are, the one that covers a key is in the range that the
        /// key's sub-model predicts: of lows, of keys around them, of any keys.
        #[test]
        fn every_key_is_in_its_range(
            lows in lows(),
            sub_model_count in 1_u32..40,
            random in proptest::collection::vec(any::<u64>(), 20),
        ) {
            let around = lows.iter().flat_map(|low| {
                [*low, low.saturating_sub(1), low.saturating_add(1)]
            });
            let asked = around.chain(random).chain([0, u64::MAX]);
            check(&lows, sub_model_count, asked);
        }

        /// Promise: spans are those of the sub-models, and cover all keys, each once.
        #[test]
        fn spans_tile_the_keys(lows in lows(), sub_model_count in 1_u32..40) {
            let top = TopModel::fit(&lows, sub_model_count);
            let mut next = Some(0);
            for sub_model in 0..top.sub_model_count() {
                let Some(span) = top.span(sub_model) else { continue };
                prop_assert_eq!(Some(*span.start()), next);
                prop_assert_eq!(top.sub_model_of(*span.start()), sub_model);
                prop_assert_eq!(top.sub_model_of(*span.end()), sub_model);
                next = span.end().checked_add(1);
            }
            prop_assert_eq!(next, None);
        }
    }

    proptest! {
        /// Promise: any words are a model or none, and a model predicts something of any key.
        #[test]
        fn any_words_can_be_read(words: [u64; 5], x: u64) {
            if let Some(model) = SubModel::from_words(&words) {
                prop_assert!(*model.range(x).end() < model.piece_count());
            }
            let [first_x, slope, intercept, count, _] = words;
            if let Some(top) = TopModel::from_words(&[first_x, slope, intercept, count % 9]) {
                prop_assert!(top.sub_model_of(x) < top.sub_model_count());
            }
        }
    }

    /// What is not a line, or has no pieces, is no model.
    #[test]
    fn words_of_no_model_are_refused() {
        let model = SubModel::fit(&[3, 9], &(3..=20));
        let words = model.words();
        let with = |index: usize, word: u64| {
            let mut words = words;
            words[index] = word;
            SubModel::from_words(&words)
        };
        assert_eq!(with(1, f64::NAN.to_bits()), None);
        assert_eq!(with(1, (-1.0_f64).to_bits()), None);
        assert_eq!(with(2, f64::INFINITY.to_bits()), None);
        assert_eq!(with(3, 0), None);
        assert_eq!(with(3, 1 << 32), None);
        assert_eq!(with(4, f32::NAN.to_bits().into()), None);
        assert_eq!(TopModel::from_words(&[0, 0, 0, 0]), None);
    }

    /// Pieces at equal distances are predicted within one, wherever the keys are.
    #[test]
    fn a_line_is_learned() {
        for from in [0, 1 << 40, 1 << 62, u64::MAX - 1_000_000] {
            let lows: Vec<u64> = (0..1000).map(|piece| from + piece * 1000).collect();
            let span = from..=from + 999_999;
            let model = SubModel::fit(&lows, &span);
            assert!(model.range_length_max() <= 2, "{from}: {model:?}");
            let counts = (0..1000).map(|piece| {
                let range = model.range(from + piece * 1000 + 500);
                range.end() - range.start() + 1
            });
            assert_eq!(counts.max(), Some(1), "in the middle of a piece it is one");
            let top = TopModel::fit(&lows, 10);
            let counts = (0..10).map(|sub_model| {
                let span = top.span(sub_model).expect("all have keys");
                pieces_of(&lows, &span).len()
            });
            assert!(counts.clone().all(|count| (99..=102).contains(&count)));
        }
    }

    /// Promise: that the last piece ends with the last key, and the first begins with the first, is
    /// no error, however far these are from the others.
    #[test]
    fn ends_are_no_errors() {
        let lows: Vec<u64> = (0..100).map(|piece| (1 << 40) + piece * 30).collect();
        let model = SubModel::fit(&lows, &(0..=u64::MAX));
        let lows_alone = SubModel::fit(&lows, &(1 << 40..=(1 << 40) + 2999));
        assert!(lows_alone.range_length_max() <= 2);
        assert!(model.range_length_max() <= 20, "{model:?}");
        assert_eq!(model.range(0), 0..=0);
        assert_eq!(model.range(u64::MAX), 99..=99);
    }

    /// Promise: of random keys, whose range is some pieces, residuals leave one.
    #[test]
    fn residuals_name_the_piece() {
        let mut state = 1_u64;
        let mut xs: Vec<u64> = (0..20_000)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                state >> 4
            })
            .collect();
        xs.sort_unstable();
        // Pieces begin between keys, as leaves do that are loaded.
        let between = xs[5..].windows(2).step_by(6);
        let between = between.map(|pair| pair[0].midpoint(pair[1]));
        let lows: Vec<u64> = core::iter::once(0).chain(between).collect();
        let top = TopModel::fit(&lows, lows.len() as u32 / 32);
        let (mut in_range, mut in_narrow) = (0, 0);
        for x in &xs {
            let span = top.span(top.sub_model_of(*x)).expect("x is sent there");
            let pieces = pieces_of(&lows, &span);
            let model = SubModel::fit(&lows[pieces.clone()], &span);
            let range = model.range(*x);
            let of_range = &lows[pieces][*range.start() as usize..];
            let residuals = of_range.iter().zip(*range.start()..);
            let residuals = residuals.map(|(low, piece)| model.residual(piece, *low));
            let narrow = model.narrow(*x, range.clone(), residuals);
            in_range += range.end() - range.start() + 1;
            in_narrow += narrow.end() - narrow.start() + 1;
        }
        let count = xs.len() as f64;
        assert!(f64::from(in_range) / count > 2.0, "{in_range}");
        assert!(f64::from(in_narrow) / count < 1.02, "{in_narrow}");
    }

    /// One piece, one sub-model, equal lows in one place: nothing divides by nothing.
    #[test]
    fn the_least_there_is_works() {
        check(&[0], 1, [0, 5, u64::MAX]);
        check(&[0], 7, [0, 5, u64::MAX]);
        check(&[0, u64::MAX], 3, [0, 1, u64::MAX - 1, u64::MAX]);
        let model = SubModel::fit(&[3], &(10..=20));
        assert_eq!(model.range(15), 0..=0);
    }
}
