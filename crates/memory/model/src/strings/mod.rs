//! Models from sorted byte strings to leaves: lines, or the fences themselves.
//!
//! # Overview
//!
//! A line needs numbers. A [`LineSegment`] is a line over consecutive leaves whose lower fences
//! share a *prefix*. The *coordinate* of a string is what follows the prefix, read as up to 64 bits
//! of digits of an [`Alphabet`]. [`LineSegmentBuilder`] takes the fences in ascending order and
//! cuts them into segments. [`Residuals`] correct their predictions, leaf by leaf:
//! [`byte_residuals`] or [`packed_blocks`].
//!
//! Names and paths do not fit lines. For these a [`FrontCodedSegment`] stores the fences, each
//! without the bytes shared with the one before, and is exact for every key.
//! [`StringSegmentBuilder`] chooses the kind for each stretch. [`StringDirectory`] finds the
//! segment of a key, and then the leaf.
//!
//! # Why a coordinate is monotone
//!
//! Strings that begin with the prefix are adjacent in string order. Strings before them have
//! coordinate 0, strings behind have `u64::MAX`. Two strings with the prefix compare like their
//! rests:
//!
//! - A byte in the alphabet becomes its rank, and ranks ascend with bytes.
//! - A string that ends early is padded with the smallest digit, so it is not above its
//!   continuations.
//! - At the first byte outside the alphabet, the rest is replaced by one number. That number is not
//!   below any smaller string's, and not above any greater string's.
//!
//! So either two strings differ in a digit, and their coordinates compare likewise. Or they do not
//! differ within 64 bits, and their coordinates are equal. Equal coordinates of neighboring fences
//! end a segment, so all fences within a segment have different ones.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `alphabet` | numbers from bytes |
//! | `line`, `line_builder` | one line, and the stream that closes lines |
//! | `front_coded` | segments of fences |
//! | `segment`, `builder` | either kind of segment, and the stream that chooses |
//! | `boundary`, `packed` | residuals of a byte, and of half a byte |
//! | `residuals` | either kind of residuals |
//! | `routes` | the search for a segment |
//! | `directory` | all of it together |

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
