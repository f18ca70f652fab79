//! From sorted byte strings to leaves: lines, or the fences themselves.
//!
//! # The story
//!
//! A line needs numbers. A [`LineSegment`] is a line over consecutive leaves whose lower fences
//! have a *prefix* in common, and the number that it makes of a string, its *coordinate*, is what
//! follows the prefix, read as digits of an [`Alphabet`] as far as 64 bits go.
//! [`LineSegmentBuilder`] takes the fences in ascending order and cuts them into segments, whose
//! predictions [`Residuals`] correct, leaf by leaf: [`byte_residuals`] or [`packed_blocks`].
//!
//! Names and paths are no lines: of these a [`FrontCodedSegment`] keeps the fences, each without
//! what it shares with the one before. It is right about every key. [`StringSegmentBuilder`]
//! chooses, stretch by stretch; [`StringDirectory`] finds the segment of a key, and then the leaf.
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
//! `alphabet` makes numbers of bytes; `line` is one line, `line_builder` the stream that closes
//! them; `front_coded` is fences; `segment` either of the two, `builder` what chooses; `boundary`
//! residuals of a byte and `packed` those of half a byte, `residuals` either; `routes` the search
//! for a segment; `directory` all of it together.

mod alphabet;
mod boundary;
mod builder;
mod directory;
mod error;
mod front_coded;
mod line;
mod line_builder;
mod packed;
mod residuals;
mod routes;
mod segment;

pub use alphabet::Alphabet;
pub use boundary::{Boundary, byte_residuals, byte_shift};
pub use builder::StringSegmentBuilder;
pub use directory::{Located, StringDirectory};
pub use error::StringModelError;
pub use front_coded::{FrontCodedSegment, FrontCodedSegmentParts};
pub use line::{LineSegment, LineSegmentParts};
pub use line_builder::LineSegmentBuilder;
pub use packed::{PackedBlock, packed_blocks};
pub use residuals::Residuals;
pub use routes::StringRoutes;
pub use segment::StringSegment;
