//! Tables of byte strings: search layers that find a page, and operations on pages.
//!
//! All truth is in the pages, and search layers only give hints. Parts that do not depend on keys
//! (leases, the commit of a load, announcements of splits) are those of tables of words.
//!
//! | module | contents |
//! |---|---|
//! | [`directory`] | models over strings and addresses of their pages, in this process's memory |
//! | [`synonyms`] | pages that splits created after the training |
//! | [`learned`] | the learned search layer: a page per get |
//! | [`rf_tree`] | the RF-tree search layer: a cache of a list of all pages |
//! | [`partial`] | the part of the models that fits a metadata budget |
//! | [`snapshot`] | the directory in far memory |
//! | [`load`] | bulk load: cuts pages, trains, writes, commits; new tables |
//! | [`retrain`] | retraining of models over pages that stay in place |
//! | [`operation`] | get, put, scan and other operations |

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
