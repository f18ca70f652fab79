//! Search layers: whatever leads to a leaf.
//!
//! A search layer is a hint, right nearly always, allowed to be wrong at any time, and corrected by
//! what the leaf says (`farleaf-leaf`, rules D4 and D5). So several of them stand side by side over
//! the same leaves:
//!
//! | module | what it holds |
//! |---|---|
//! | [`learned`] | the default: runs of leaves, models, a residual byte per leaf; a leaf per get |
//! | [`rolex`] | ROLEX as its paper has it: leaf table, synonym leaf table, some leaves per get |
//! | [`rf_tree`] | RF-tree: all that lists leaves cached on the compute node |
//! | [`fg`] | the same tree without a cache: a round trip per level |
//! | [`inner_cache`] | the same tree with a cache of some of its nodes: `sherman`, `cell` |
//! | [`xstore`] | XStore: models of leaves that the node alone changes |
//! | [`partial`] | `learned` under a metadata budget: pages of models and residuals come and go |
//! | [`hint`] | what a search layer offers to the operations |
//! | [`directory`] | models and residuals in this process's memory; both layers search in it |
//! | [`synonyms`] | leaves that splits made since the training |
//! | [`snapshot`] | the directory's format in far memory |
//! | [`tree`] | a tree of inner nodes in far memory, which three of the layers search in |
//! | [`load`] | bulk load: cuts leaves, trains, writes, commits |
//! | [`retrain`] | retraining: leaves move to new runs, new models take the place of old ones |
//! | [`operation`] | get, put, scan and the rest, over any search layer |
//!
//! What it is not: it holds no truth. Deleting everything here but the address of the first leaf
//! would make operations slow, not wrong.
#![doc = include_str!("../../../docs/learned-layer.md")]
#![forbid(unsafe_code)]

pub mod announced;
pub mod directory;
pub mod fg;
pub mod hint;
pub mod inner_cache;
pub mod layer;
pub mod learned;
pub mod load;
pub mod operation;
pub mod partial;
pub mod retrain;
pub mod rf_tree;
pub mod rolex;
pub mod rpc;
pub mod snapshot;
pub mod synonyms;
pub mod tree;
pub mod xstore;

pub mod clock;
mod error;

pub use directory::Directory;
pub use error::{IndexError, LoadError, SnapshotDamage};
pub use hint::{Hint, SearchLayer};
pub use layer::{Layer, LayerKind};
pub use operation::{Index, IndexState};
