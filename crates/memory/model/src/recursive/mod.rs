//! Two-level recursive model, as in XStore. A *top model* predicts the sub-model of a key. A
//! sub-model is a line that predicts the key's position with a known error bound.
//!
//! The models predict the *piece* that covers a key. Pieces are adjacent, each from its low to just
//! before the next one's. A sub-model knows the pieces that overlap with the keys that the top
//! model sends to it, so two sub-models know the piece at each boundary. This corresponds to
//! XStore's boundary augmentation (section 4.2). A key between two sub-models' pieces, which is in
//! neither's training set, is still in the range that its sub-model predicts.
//!
//! The top model is one line if that suffices, and several if keys form clusters: module `cut`
//! chooses their number and where each begins. The top model has no error, because its result
//! defines the sub-model of a key.
//!
//! - X. Wei, R. Chen, H. Chen, *Fast RDMA-based Ordered Key-Value Store using Remote Learned
//!   Cache*, OSDI 2020.
//! - T. Kraska, A. Beutel, E. Chi, J. Dean, N. Polyzotis, *The Case for Learned Index Structures*,
//!   SIGMOD 2018: recursive models, and the smallest and greatest error of each.
//!
//! Deviations:
//!
//! - The top model may have several lines.
//! - x is made relative to a first one in `u64` before conversion to floats.
//! - Errors are those of whole pieces, not of the keys that happen to exist. They are measured with
//!   the arithmetic of predictions, so absent keys need no special treatment.

mod cut;
mod sub_model;
mod top_model;

#[cfg(test)]
mod tests;

pub use sub_model::{SUB_MODEL_SIZE_WORDS, SubModel, pieces_of};
pub use top_model::{TOP_LINE_SIZE_WORDS, TopLine, TopModel};

/// Decodes a line from bits, if fitting can have produced it.
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

/// Returns slope and intercept of the least-squares line through the points (x, its position, from
/// `first_y` on), relative to `first_x`. Both are finite; the slope is not negative.
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
    // Positions rise with x, so a negative slope is a rounding error.
    let slope = if variance > 0.0 {
        (covariance / variance).max(0.0)
    } else {
        0.0
    };
    (slope, mean_y - slope * mean_x)
}
