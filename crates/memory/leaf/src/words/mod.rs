//! The data layer: leaves in far memory, which hold every truth of a table.
//!
//! | module | what it holds |
//! |---|---|
//! | [`course`] | which way an operation has gone, so that it ends in a damaged table, too |
//! | [`mod@format`] | what reading, locking and recovering need to know of a leaf's layout |
//! | [`geometry`] | how many words a leaf has and where they are |
//! | [`image`] | the codec: the one place that knows the record layout and the checksum |
//! | [`change`] | changes of a locked leaf as batches (D2, D3) |
//! | [`access`] | reading, locking and changing one leaf through the fabric (D1, D4, D5) |
//! | [`moving`] | moving leaves to another place (L4) |
//! | [`recovery`] | leaves of fenced owners (D8) |
//! | [`lease`] | leaves that splits will need, leased ahead |
//! | [`leases`] | the same of all memory nodes, for one session and table |
//! | [`local_locks`] | waiting for a lock within a process, and handing it over (H1 to H5) |
//!
//! What it is not: it does not know how a leaf is found. Search layers (`farleaf-index`) do, and
//! whatever they say is checked here against the leaf's own fences.
#![doc = include_str!("../../../docs/data-layer.md")]
#![forbid(unsafe_code)]

pub mod access;
pub mod change;
pub mod course;
pub mod format;
pub mod geometry;
pub mod image;
pub mod lease;
pub mod leases;
pub mod local_locks;
pub mod moving;
pub mod recovery;

mod error;
mod promised;

pub use access::{LeafAccess, Look};
pub use course::Course;
pub use error::{Contradiction, LeafError};
pub use farleaf_fabric::Critical;
pub use format::LeafFormat;
pub use geometry::{GeometryError, LeafGeometry};
pub use image::{LeafBuffer, LeafImage, Placement, record_count_of};
pub use lease::{LeafLease, LeaseShape};
pub use leases::LeafLeases;
pub use local_locks::LocalLocks;
