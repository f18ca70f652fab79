//! XStore: models of leaves that the memory node trains and clients cache.
//!
//! The memory node has a tree over the leaves in its own memory, and executes every write, sent to
//! it as a call. Clients read by themselves: a two-level model predicts at which positions of a
//! *translation table* a key's leaf may be, and the table has the leaves' addresses.
//!
//! | module | contents |
//! |---|---|
//! | [`inner`] | the node's tree over the leaves |
//! | [`record`] | format of models in far memory and in replies |
//! | [`layer`] | models that a client caches |
//!
//! - **Leaves decide.** A client takes a value, or its absence, only from an image whose checksum
//!   matches and whose fences cover the key (LEAF-4).
//! - **Writers.** Only sessions of the node, and loads, change the leaves, by the same operations
//!   as any session (LEAF-1 to LEAF-9). Their tree is a hint: links lead to leaves that it lacks.
//! - **Memory keeps its use.** A leaf belongs to its table as long as the table exists. Memory of
//!   translation tables, and of sub-models, is not used for anything else until then. Anything read
//!   there, at any time, is therefore an old or new hint, and names only leaves of the table.
//! - **Coverage.** A sub-model covers all leaves that overlap with the keys that the top model
//!   sends to it (boundary augmentation). A leaf that splits makes every sub-model that covers it
//!   due, before the write is acknowledged.
//! - **Versions.** A trained sub-model is written with a higher version. First its table is
//!   written, to a place that the previous record does not name. Then its record is written, with a
//!   checksum over place, generation and version. If the leaves have changed meanwhile, the
//!   sub-model is due again. If the write failed, it is due again with a still higher version,
//!   because part of it may be written.
//! - **Speculation and fallback.** A client follows one link from where the model led it
//!   (speculation). If the key is not there either, it calls the node (fallback). The reply has the
//!   value, and models that are newer than those that the client named. When writes have ended and
//!   nothing is due, each key is found without the node once its sub-model was fetched.
//! - **Generations.** After a load, and when there are too many leaves per sub-model, the node
//!   trains a new generation: the top model and all sub-models. Its lines and records are written
//!   before a reply names them. Blocks of lines are verified like records: a checksum over place,
//!   generation and table. A position that a client sends with a write counts only for the
//!   generation that it names. It is a position of a table, never an address.
//!
//! X. Wei, R. Chen, H. Chen, *Fast RDMA-based Ordered Key-Value Store using Remote Learned Cache*,
//! OSDI 2020. Here a model learns the lower fences of leaves instead of keys, so absent keys need
//! no special treatment. Table entries are never marked invalid, because fences show what happened
//! to a leaf.

pub mod inner;
pub mod layer;
pub mod record;

pub use inner::{InnerLayer, InnerTree};
pub use layer::{ModelCache, XstoreLayer};
pub use record::{Generation, ModelHead, ModelVersion, SubModelRecord, TablePosition};
