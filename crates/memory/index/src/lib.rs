//! Search layers: indexes that lead to the leaf of a key.
//!
//! A search layer is a hint. It is nearly always right, may be wrong at any time, and is corrected
//! by the fences of the leaf (LEAF-4 and LEAF-5). Several search layers can therefore work over the
//! same kind of leaves:
//!
//! | module | contents |
//! |---|---|
//! | [`learned`] | the default: runs of leaves, models, a residual byte per leaf; a leaf per get |
//! | [`rolex`] | ROLEX as in its paper: leaf table, synonym leaf tables; several leaves per get |
//! | [`rf_tree`] | RF-tree: the whole level that lists leaves, cached on the compute node |
//! | [`fg`] | the same tree without a cache: one round trip per level |
//! | [`inner_cache`] | the same tree with a cache of some of its nodes: `sherman`, `cell` |
//! | [`xstore`] | XStore: models of leaves that only the memory node changes |
//! | [`partial`] | `learned` under a metadata budget: pages are fetched and evicted |
//! | [`hint`] | the interface between search layers and operations |
//! | [`directory`] | models and residuals in this process's memory, for `learned` and `rolex` |
//! | [`synonyms`] | leaves that splits made since the last training |
//! | [`snapshot`] | format of the directory in far memory |
//! | [`tree`] | tree of inner nodes in far memory, for `rf_tree`, `fg` and `inner_cache` |
//! | [`load`] | bulk load: cuts leaves, trains models, writes and commits |
//! | [`retrain`] | retraining: moves leaves to new runs and replaces models |
//! | [`operation`] | get, put, scan and other operations, over any search layer |
//! | [`strings`] | all of this for tables of byte strings |
//!
//! Nothing here decides which keys exist. If everything but the address of the first leaf were
//! deleted, operations would be slow but correct.
#![doc = include_str!("../../../../docs/explanation/learned-layer.md")]
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
pub mod strings;
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
