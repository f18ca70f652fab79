//! Leaves of tables whose keys and values are words.
//!
//! | module | contents |
//! |---|---|
//! | [`course`] | checks of an operation's path, so that it ends even in a corrupted table |
//! | [`mod@format`] | what reading, locking and recovery need to know of a leaf's layout |
//! | [`geometry`] | number of words of a leaf and their places |
//! | [`image`] | the codec: the only code that knows the record layout and the checksum |
//! | [`change`] | changes of a locked leaf as batches (LEAF-2, LEAF-3) |
//! | [`access`] | reading, locking and changing one leaf (LEAF-1, LEAF-4, LEAF-5) |
//! | [`moving`] | moving leaves to another place |
//! | [`recovery`] | recovery of leaves of fenced owners (LEAF-8) |
//! | [`lease`] | leaves leased ahead for splits |
//! | [`leases`] | leases on all memory nodes for one session and table |
//! | [`local_locks`] | waiting for a lock within a process, and handing it over |
//!
//! This module does not find leaves. Search layers (`farleaf-index`) do, and this module checks
//! their hints against the leaf's own fences.
#![doc = include_str!("../../../../../docs/reference/leaf-protocol.md")]
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

pub use access::{LeafAccess, LeafCheck};
pub use course::SearchPath;
pub use error::{Contradiction, LeafError};
pub use farleaf_fabric::Critical;
pub use format::{LeafFormat, link_of, low_word_of, was_never_written};
pub use geometry::{GeometryError, LeafGeometry};
pub use image::{KeyPlacement, LeafBuffer, LeafImage, record_count_of};
pub use lease::{LeafLease, LeaseShape};
pub use leases::LeafLeases;
pub use local_locks::LocalLocks;
