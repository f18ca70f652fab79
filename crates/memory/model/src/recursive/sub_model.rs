//! One sub-model: which of its pieces covers a key, and how far it can be wrong.

use core::ops::{Range, RangeInclusive};

use super::{clamp, least_squares, line};
use crate::segment::evaluate;

/// What sums of predictions and errors may be off by, as they are rounded: of less than 2^32 pieces
/// far less than this.
const ROUNDING_MARGIN: f64 = 1e-5;

/// How far behind its last piece a line may predict: what a line says of keys between two clusters
/// is far more than the number of its last piece, and no error.
const OVERSHOOT: f64 = 4.0;

/// A line that is wrong by more is fitted again without what is at the ends.
const GOOD_RANGE_LENGTH: u32 = 8;

/// Words of a [`SubModel`].
pub const SUB_MODEL_SIZE_WORDS: usize = 5;

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
    /// begin before it. The best of the least-squares lines through all begins, or all but those at
    /// the ends.
    ///
    /// # Panics
    /// There are no pieces, or more than 2^32 - 1.
    pub fn fit(lows: &[u64], span: &RangeInclusive<u64>) -> Self {
        let count = lows.len();
        let model = Self::through(lows, span, 0..count);
        if model.range_length_max() <= GOOD_RANGE_LENGTH || count < 4 {
            return model;
        }
        // The first and the last may reach far into a gap, where no other is.
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

    /// The line through some of the begins, with its errors over all pieces.
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

    /// Rises with x.
    #[inline]
    fn predict(&self, x: u64) -> f64 {
        let x = x.saturating_sub(self.first_x);
        let most = f64::from(self.piece_count) + OVERSHOOT;
        evaluate(self.slope, self.intercept, x).min(most)
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
        self.width() / f64::from(1 << 16)
    }

    fn width(&self) -> f64 {
        f64::from(self.behind) + f64::from(self.ahead)
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
        clamp(self.width(), self.piece_count) + 1
    }
}
