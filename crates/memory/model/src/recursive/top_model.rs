//! Top model: predicts the sub-model of a key.

use core::ops::RangeInclusive;

use super::{clamp, line};
use crate::segment::evaluate;

/// Number of words of a [`TopLine`].
pub const TOP_LINE_SIZE_WORDS: usize = 4;

/// Line of a top model, which sends keys to its own sub-models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopLine {
    pub(super) first_x: u64,
    pub(super) slope: f64,
    pub(super) intercept: f64,
    /// Number of its first sub-model.
    pub(super) first_number: u32,
}

/// Model that sends keys to sub-models. Each line has its own sub-models, at least one, and the
/// keys from its first one to before the next line's. Keys before all lines belong to the first
/// one.
#[derive(Clone, Debug, PartialEq)]
pub struct TopModel {
    lines: Box<[TopLine]>,
    sub_model_count: u32,
}

impl TopLine {
    /// Encodes the line as words.
    pub fn words(&self) -> [u64; TOP_LINE_SIZE_WORDS] {
        let line = [self.slope.to_bits(), self.intercept.to_bits()];
        [self.first_x, line[0], line[1], self.first_number.into()]
    }

    /// Decodes a line; `None` if the words are not one.
    pub fn from_words(words: &[u64; TOP_LINE_SIZE_WORDS]) -> Option<Self> {
        let [first_x, slope, intercept, first_number] = *words;
        let (slope, intercept) = line(slope, intercept)?;
        Some(Self {
            first_x,
            slope,
            intercept,
            first_number: u32::try_from(first_number).ok()?,
        })
    }

    /// Returns the sub-model of x, one of those before `end_number`.
    #[inline]
    pub(super) fn sub_model_of(&self, x: u64, end_number: u32) -> u32 {
        let x = x.saturating_sub(self.first_x);
        let own_count = end_number - self.first_number;
        self.first_number + clamp(evaluate(self.slope, self.intercept, x), own_count)
    }

    /// Returns the range of x, among the line's, that belong to a sub-model before `end_number`.
    pub(super) fn span(
        &self,
        sub_model: u32,
        end_number: u32,
        own: &RangeInclusive<u64>,
    ) -> Option<RangeInclusive<u64>> {
        let first = self.first_x_from(sub_model, end_number, own)?;
        let last = match self.first_x_from(sub_model + 1, end_number, own) {
            Some(next) => next.checked_sub(1)?,
            None => *own.end(),
        };
        (first <= last).then_some(first..=last)
    }

    /// Returns the line's smallest x that is sent to this sub-model or a later one.
    fn first_x_from(
        &self,
        sub_model: u32,
        end_number: u32,
        own: &RangeInclusive<u64>,
    ) -> Option<u64> {
        let (mut low, mut high) = (*own.start(), *own.end());
        if self.sub_model_of(high, end_number) < sub_model {
            return None;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            if self.sub_model_of(middle, end_number) < sub_model {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }
}

impl TopModel {
    /// Creates a top model of these lines, with `sub_model_count` sub-models in all; `None` if the
    /// lines do not ascend, or one has no sub-model.
    pub fn from_lines(lines: Vec<TopLine>, sub_model_count: u32) -> Option<Self> {
        let ascend = lines.is_sorted_by(|left, right| {
            left.first_x < right.first_x && left.first_number < right.first_number
        });
        let is_first = lines.first()?.first_number == 0;
        let is_last = lines.last()?.first_number < sub_model_count;
        (ascend && is_first && is_last).then(|| Self {
            lines: lines.into_boxed_slice(),
            sub_model_count,
        })
    }

    /// Returns the lines, at least one.
    pub fn lines(&self) -> &[TopLine] {
        &self.lines
    }

    /// Returns the number of sub-models.
    pub fn sub_model_count(&self) -> u32 {
        self.sub_model_count
    }

    /// Returns the size of the lines in memory, in bytes.
    pub fn size_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// Returns the sub-model of x, counted from 0. Monotone in x. Cost: a binary search over the
    /// lines.
    #[inline]
    pub fn sub_model_of(&self, x: u64) -> u32 {
        let index = self.lines.partition_point(|line| line.first_x <= x);
        let index = index.saturating_sub(1);
        self.lines[index].sub_model_of(x, self.end_number(index))
    }

    /// Returns the first and last x that are sent to a sub-model; `None` if there are none.
    pub fn span(&self, sub_model: u32) -> Option<RangeInclusive<u64>> {
        if sub_model >= self.sub_model_count {
            return None;
        }
        let after = |line: &TopLine| line.first_number <= sub_model;
        let index = self.lines.partition_point(after) - 1;
        let line = &self.lines[index];
        let first = if index == 0 { 0 } else { line.first_x };
        let next = self.lines.get(index + 1);
        // Lines ascend, so the next one's first x is not 0.
        let last = next.map_or(u64::MAX, |next| next.first_x - 1);
        line.span(sub_model, self.end_number(index), &(first..=last))
    }

    /// Returns one more than the number of a line's last sub-model.
    #[inline]
    fn end_number(&self, index: usize) -> u32 {
        let next = self.lines.get(index + 1);
        next.map_or(self.sub_model_count, |next| next.first_number)
    }
}
