//! A two-level recursive model, as XStore has it: a *top model* that says which of so many
//! sub-models a key belongs to, and these, each of which is a line that says where the key is and
//! how far it can be wrong.
//!
//! What is looked for is not a key but the *piece* that covers it: pieces follow each other, each
//! from its low to just before the next one's. A sub-model knows those that overlap with the keys
//! which the top model sends to it, so the piece at either end is known to two of them. That is
//! XStore's boundary augmentation (section 4.2) for pieces: a key that lies between two sub-models'
//! pieces and is in neither's training set is still in the range that its sub-model predicts.
//!
//! The top model is one line as long as that serves, and more of them where keys lie in clusters:
//! module `cut` says how many, and where each begins. It is not an approximation of anything: which
//! sub-model a key belongs to is what the top model says, whatever it says, so it has no error.
//!
//! - X. Wei, R. Chen, H. Chen, *Fast RDMA-based Ordered Key-Value Store using Remote Learned
//!   Cache*, OSDI 2020.
//! - T. Kraska, A. Beutel, E. Chi, J. Dean, N. Polyzotis, *The Case for Learned Index Structures*,
//!   SIGMOD 2018: recursive models, and the smallest and greatest error of each.
//!
//! Deviations: the top model may have several lines; x is taken relative to a first one in `u64`,
//! before anything becomes a float; the errors are those of whole pieces, not of the keys that
//! happen to be there, and are measured with the arithmetic that predicts, so absent keys need no
//! care.

mod cut;
mod sub_model;
mod top_model;

#[cfg(test)]
mod tests;

pub use sub_model::{SUB_MODEL_SIZE_WORDS, SubModel, pieces_of};
pub use top_model::{TOP_LINE_SIZE_WORDS, TopLine, TopModel};

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

/// The line through the points (x, its position, from `first_y` on) that has the least squared
/// error, relative to `first_x`: slope and intercept, both finite, the slope not negative.
fn least_squares(
    first_x: u64,
    first_y: u32,
    xs: &(impl Iterator<Item = u64> + Clone),
) -> (f64, f64) {
    let points = || {
        let relative = xs.clone().map(|x| x.saturating_sub(first_x) as f64);
        relative.zip(first_y..)
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
