//! Sub-model: predicts the piece that covers a key, with an error bound.

use core::ops::{Range, RangeInclusive};

use super::{clamp, least_squares, line};
use crate::segment::evaluate;

/// Bound of the rounding error of sums of predictions and errors: far more than it is for less than
/// 2^32 pieces.
const ROUNDING_MARGIN: f64 = 1e-5;

/// Largest distance of a prediction behind the last piece. Keys between two clusters are predicted
/// far behind it, which does not count as an error.
const OVERSHOOT: f64 = 4.0;

/// Range length above which a line is fitted again without the pieces at the ends.
const GOOD_RANGE_LENGTH: u32 = 8;

/// Number of words of a [`SubModel`].
pub const SUB_MODEL_SIZE_WORDS: usize = 5;

/// Model that predicts which of its pieces covers a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubModel {
    first_x: u64,
    slope: f64,
    intercept: f64,
    piece_count: u32,
    /// Measured maximum by which a prediction is less than the piece's number.
    behind: f32,
    /// Measured maximum by which a prediction is greater; at a piece's end it is 1 even for a
    /// perfect line.
    ahead: f32,
}

/// Returns the pieces with these lows that overlap with a span. The first low must not be above the
/// span.
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
    /// Fits a model to the pieces that overlap with a span, given their ascending lows; the first
    /// piece may begin before the span. Uses the best of the least-squares lines through all lows,
    /// or all but those at the ends.
    ///
    /// # Panics
    /// There are no pieces, or more than 2^32 - 1.
    pub fn fit(lows: &[u64], span: &RangeInclusive<u64>) -> Self {
        let count = lows.len();
        let model = Self::through(lows, span, 0..count);
        if model.range_length_max() <= GOOD_RANGE_LENGTH || count < 4 {
            return model;
        }
        // The first and the last piece may reach far into a gap without other pieces.
        let others = [1..count, 0..count - 1, 1..count - 1];
        let others = others.map(|fitted| Self::through(lows, span, fitted));
        let better = |best: Self, other: Self| {
            if other.width() < best.width() {
                other
            } else {
                best
            }
        };
        others.into_iter().fold(model, better)
    }

    /// Returns the line through some of the lows, with its errors over all pieces.
    fn through(lows: &[u64], span: &RangeInclusive<u64>, fitted: Range<usize>) -> Self {
        assert!(!lows.is_empty());
        let piece_count = u32::try_from(lows.len()).expect("fewer than 2^32 pieces");
        let within = |low: u64| low.clamp(*span.start(), *span.end());
        let begins = lows.iter().map(|low| within(*low));
        let first_x = within(lows[fitted.start]);
        let points = begins.clone().take(fitted.end).skip(fitted.start);
        let (slope, intercept) = least_squares(first_x, fitted.start as u32, &points);
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
            // Predictions rise with x, so those of a piece lie between those of its ends.
            // Predictions before the first piece count as the first, those behind the last as the
            // last.
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

    /// Predicts a position; monotone in x.
    #[inline]
    fn predict(&self, x: u64) -> f64 {
        let x = x.saturating_sub(self.first_x);
        let most = f64::from(self.piece_count) + OVERSHOOT;
        evaluate(self.slope, self.intercept, x).min(most)
    }

    /// Returns the piece that most probably covers x.
    #[inline]
    pub fn position(&self, x: u64) -> u32 {
        let middle = (f64::from(self.behind) - f64::from(self.ahead)) / 2.0;
        clamp((self.predict(x) + middle).round(), self.piece_count)
    }

    /// Returns a range of pieces, one of which covers x, if x is in the span that the model was
    /// fitted to.
    #[inline]
    pub fn range(&self, x: u64) -> RangeInclusive<u32> {
        let predicted = self.predict(x);
        let first = (predicted - f64::from(self.ahead)).ceil();
        let last = clamp(predicted + f64::from(self.behind), self.piece_count);
        clamp(first, self.piece_count).min(last)..=last
    }

    /// Returns the predicted beginning of this piece for [`narrow`](Self::narrow), in units of
    /// 2^-16 of the model's error range, rounded down. `low` is where the piece begins, or before
    /// the span.
    pub fn residual(&self, piece: u32, low: u64) -> u16 {
        let error = self.predict(low.max(self.first_x)) - f64::from(piece);
        let steps = (error + f64::from(self.behind)) / self.step();
        clamp(steps, 1 << 16) as u16
    }

    /// Returns the pieces of a [`range`](Self::range), one of which covers x, given the residuals
    /// of all of them in order: usually one.
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
            // If predictions are equal, x may be on either side.
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
        self.width() / f64::from(1 << 16)
    }

    fn width(&self) -> f64 {
        f64::from(self.behind) + f64::from(self.ahead)
    }

    /// Returns the number of pieces.
    pub fn piece_count(&self) -> u32 {
        self.piece_count
    }

    /// Encodes the model as words.
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

    /// Decodes a model; `None` if the words are not one.
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

    /// Returns the largest possible number of pieces in a range.
    pub fn range_length_max(&self) -> u32 {
        clamp(self.width(), self.piece_count) + 1
    }
}
