//! Tables of byte strings: what leads to a page, and what is done there.
//!
//! The division is that of `farleaf-index`: pages hold every truth, and whatever leads to one is a
//! hint. What does not depend on keys is used from there: leases, the commit of a load, where
//! splits are announced.
//!
//! | module | what it holds |
//! |---|---|
//! | [`directory`] | models over strings, and where their pages are, in this process's memory |
//! | [`synonyms`] | pages that splits made since the training |
//! | [`learned`] | the search layer: a page per get |
//! | [`rf_tree`] | another one: all that lists pages, cached |
//! | [`partial`] | as much of the models as a metadata budget has room for |
//! | [`snapshot`] | the directory in far memory |
//! | [`load`] | bulk load: cuts pages, trains, writes, commits; new tables |
//! | [`retrain`] | models trained anew over pages where they are |
//! | [`operation`] | get, put, scan and the rest |
//!
//! What it is not: it holds no truth. Deleting all but the address of the first page would make
//! operations slow, not wrong.
#![forbid(unsafe_code)]

pub mod directory;
pub mod learned;
pub mod load;
pub mod operation;
pub mod partial;
pub mod retrain;
pub mod rf_tree;
pub mod snapshot;
pub mod synonyms;

mod error;

pub use directory::{ByteDirectory, Run};
pub use error::{ByteIndexError, ByteLoadError};
pub use learned::LearnedLayer;
pub use operation::{ByteIndex, ByteIndexState};
pub use partial::PartCounts;
