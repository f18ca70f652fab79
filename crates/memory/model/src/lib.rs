//! Error-bounded piecewise linear regression over sorted `u64` keys, and models over the models.
//!
//! # The story
//!
//! A sorted sequence of keys is a monotone function from key to position. [`SegmentBuilder`] reads
//! the keys once, in order, and cuts the sequence into the smallest possible number of
//! [`Segment`]s, each one straight line that is nowhere further than `epsilon` positions from the
//! truth. Who holds the segments finds a position by one multiplication and one addition, and knows
//! how far it can be wrong. [`UpperModels`] finds the right segment for a key: it is built of the
//! same segments, over the segments' first keys, level upon level, until few enough keys are left
//! to search plainly.
//!
//! The bound is the whole promise of the crate:
//!
//! 1. *Verified.* [`Segment::error_max`] is no estimate. When a segment closes, the error of every
//!    one of its points is measured with the very arithmetic of [`Segment::predict`].
//! 2. *Bounded.* `error_max <= epsilon + rounding_tolerance(epsilon, point_count)`. The tolerance
//!    is 1.2e-10 positions for a segment of 65,535 points; [`rounding_tolerance`] has its
//!    derivation.
//! 3. *Exact near 2^64.* Keys are made relative to the segment's first key in `u64`, before
//!    anything becomes a float, and what fits is decided in integers (module `region`).
//! 4. *Minimal.* No cut of the same keys into segments of the same bound has fewer segments, where
//!    `epsilon` counts as rounded down to a multiple of 2^-16.
//! 5. *Monotone.* Slopes are finite and never negative, so a key between two keys is predicted
//!    between their predictions. This costs nothing: positions rise with the keys, so the mean of
//!    the extreme lines does (its derivation is in module `region`).
//!
//! # What it is not
//!
//! It does no input or output and knows nothing of leaves, residuals, runs or retraining: a
//! position is a number. It does not clamp predictions, does not store keys that it was trained on
//! (apart from the first keys in [`UpperModels`]), and is not updatable: new keys mean a new
//! segment.
//!
//! # Modules
//!
//! `segment` is one line and its prediction; `region` the set of all lines that fit the points so
//! far, in exact arithmetic; `builder` the stream that closes segments; `upper` the search for a
//! segment. [`recursive`] has XStore's two-level models, which the memory node trains: a top model
//! of one line or several, and under it lines of their own kind. [`strings`] has the same lines
//! over byte strings, what makes numbers of them, what finds a leaf by them, and what does where
//! they do not fit.
//!
//! # Papers, and where we deviate
//!
//! - J. O'Rourke, *An on-line algorithm for fitting straight lines between data ranges*, CACM
//!   24(9), 1981: the region of feasible lines and its two extreme lines.
//! - Q. Xie, C. Pang, X. Zhou, X. Zhang, K. Deng, *Maximum error-bounded Piecewise Linear
//!   Representation for online stream approximation*, VLDB J. 23(6), 2014: `OptimalPLR`, convex
//!   hulls that make the update constant time, amortized. Taken as it is.
//! - P. Ferragina, G. Vinciguerra, *The PGM-index*, PVLDB 13(8), 2020: the same algorithm over keys
//!   and positions, and the recursion of models over the models' first keys.
//!
//! Deviations: equal keys at different positions are allowed (PGM-index wants distinct keys); the
//! line is the mean of the two extreme lines, in slope and in intercept, which is cheaper than
//! their intersection and just as feasible (the region is convex); positions restart at 0 in every
//! segment; epsilon may be a fraction; the number of points of a segment can be capped. In
//! [`UpperModels`] the recursion stops at a root of up to 256 keys, as a plain search of those is
//! faster than one more model; and the search around a prediction quarters a window of fixed size
//! instead of halving one as large as the bound.

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
