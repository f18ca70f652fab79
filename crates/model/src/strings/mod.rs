//! Piecewise linear models over sorted byte strings.
//!
//! # The story
//!
//! A line needs numbers. A [`StringSegment`] is a line over consecutive leaves whose lower fences
//! have a *prefix* in common, and the number that it makes of a string, its *coordinate*, is what
//! follows the prefix, read as digits of an [`Alphabet`] as far as 64 bits go.
//! [`StringSegmentBuilder`] takes the fences in ascending order and cuts them into segments;
//! [`byte_residuals`] or [`packed_blocks`] correct each leaf's prediction; [`StringDirectory`]
//! finds the segment of a key, and then the leaf.
//!
//! # Why a coordinate is monotone
//!
//! Strings that begin with the prefix lie side by side in the order of strings; what sorts before
//! them has coordinate 0, what sorts behind has `u64::MAX`. Two that begin with it compare like
//! what follows. A listed byte becomes its rank, and ranks ascend with bytes; what ends early is
//! filled up with the smallest digit, so it is not above anything that continues it; and at the
//! first byte that is not listed, what could follow it is given up for one number that is not below
//! all that is smaller, and not above all that is greater. Two strings thus either differ in a
//! digit, and their coordinates do as they do, or not at all within 64 bits, and their coordinates
//! are equal. Equal coordinates of neighbouring fences end a segment, so that within one it tells
//! all fences apart.
//!
//! # Modules
//!
//! `alphabet` makes numbers of bytes; `segment` is one line; `builder` the stream that closes
//! segments; `boundary` residuals of a byte and `packed` those of half a byte; `routes` the search
//! for a segment; `directory` all of it together.

mod alphabet;
mod boundary;
mod builder;
mod directory;
mod error;
mod packed;
mod routes;
mod segment;

pub use alphabet::Alphabet;
pub use boundary::{Boundary, byte_residuals, byte_shift};
pub use builder::StringSegmentBuilder;
pub use directory::{Located, Residuals, StringDirectory};
pub use error::StringModelError;
pub use packed::{PackedBlock, packed_blocks};
pub use routes::StringRoutes;
pub use segment::{StringSegment, StringSegmentParts};
