//! Error-bounded piecewise linear regression over sorted `u64` keys, and models over the models.
//!
//! # Overview
//!
//! A sorted sequence of keys is a monotone function from key to position. [`SegmentBuilder`] reads
//! the keys once, in order, and cuts the sequence into the smallest possible number of
//! [`Segment`]s. Each is a straight line that is nowhere further than `epsilon` positions from the
//! true position. With the segments, one multiplication and one addition predict a position with a
//! known error bound. [`UpperModels`] finds the segment for a key. It consists of the same kind of
//! segments, over the segments' first keys, level upon level, until a plain search of the remaining
//! keys is cheap.
//!
//! The crate makes these promises:
//!
//! 1. *Verified.* [`Segment::error_max`] is not an estimate. When a segment closes, the error of
//!    every one of its points is measured with the arithmetic of [`Segment::predict`].
//! 2. *Bounded.* `error_max <= epsilon + rounding_tolerance(epsilon, point_count)`. The tolerance
//!    is 1.2e-10 positions for a segment of 65,535 points; [`rounding_tolerance`] has its
//!    derivation.
//! 3. *Exact near 2^64.* Keys are made relative to the segment's first key in `u64`, before
//!    conversion to floats, and integer arithmetic decides what fits (module `region`).
//! 4. *Minimal.* No cut of the same keys into segments of the same bound has fewer segments, where
//!    `epsilon` counts as rounded down to a multiple of 2^-16.
//! 5. *Monotone.* Slopes are finite and never negative, so a key between two keys is predicted
//!    between their predictions. This costs nothing: positions rise with the keys, so the mean of
//!    the extreme lines does (module `region` has the derivation).
//!
//! # Limits
//!
//! The crate performs no I/O and does not know leaves, residuals, runs or retraining: a position is
//! a number. It does not clamp predictions or store the training keys (except the first keys in
//! [`UpperModels`]). Models cannot be updated: new keys need new segments.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `segment` | one line and its prediction |
//! | `region` | the set of all lines that fit the points so far, in exact arithmetic |
//! | `builder` | the stream that closes segments |
//! | `upper` | the search for a segment |
//! | [`recursive`] | XStore's two-level models, which the memory node trains |
//! | [`strings`] | models over byte strings |
//!
//! # Papers and deviations
//!
//! - J. O'Rourke, *An on-line algorithm for fitting straight lines between data ranges*, CACM
//!   24(9), 1981: the region of feasible lines and its two extreme lines.
//! - Q. Xie, C. Pang, X. Zhou, X. Zhang, K. Deng, *Maximum error-bounded Piecewise Linear
//!   Representation for online stream approximation*, VLDB J. 23(6), 2014: `OptimalPLR`, convex
//!   hulls that make the update amortized constant time. Unchanged here.
//! - P. Ferragina, G. Vinciguerra, *The PGM-index*, PVLDB 13(8), 2020: the same algorithm over keys
//!   and positions, and the recursion of models over the models' first keys.
//!
//! Deviations of segments:
//!
//! - Equal keys at different positions are allowed (PGM-index requires distinct keys).
//! - The line is the mean of the two extreme lines, in slope and in intercept. This is cheaper than
//!   their intersection and also feasible (the region is convex).
//! - Positions restart at 0 in every segment.
//! - Epsilon may be a fraction.
//! - The number of points of a segment can be limited.
//!
//! Deviations of [`UpperModels`]:
//!
//! - The recursion stops at a root of up to 256 keys, because a plain search of these is faster
//!   than one more model.
//! - The search around a prediction quarters a window of fixed size instead of halving one of the
//!   bound's size.

#![forbid(unsafe_code)]

mod builder;
pub mod recursive;
mod region;
mod segment;
pub mod strings;
mod upper;

pub use builder::SegmentBuilder;
pub use segment::{Segment, rounding_tolerance};
pub use upper::UpperModels;
