//! XStore: models of leaves that the memory node trains and clients cache.
//!
//! The memory node has a tree over the leaves in its own memory, and executes every write, sent to
//! it by a call. Clients read by themselves: a two-level model says at which positions of a
//! *translation table* a key's leaf may be, and the table says where that leaf lies.
//!
//! | module | what it holds |
//! |---|---|
//! | [`inner`] | the node's tree over the leaves |
//! | [`record`] | models as they lie in far memory, and as replies bring them |
//! | [`layer`] | what a client caches |
//!
//! - **Y1.** The leaves are the truth. A client takes a value, or that there is none, from an image
//!   whose checksum holds and whose fences cover the key (D4), whatever led there.
//! - **Y2.** Sessions of the node change the leaves, by the same operations as any session (D1 to
//!   D9), and nobody else but who loads. Their tree is a hint like every other: what it lacks is
//!   found by links.
//! - **Y3.** A leaf of a table is a leaf of it as long as there is the table. Memory that holds
//!   translation tables holds nothing else until then, and so does memory that holds sub-models.
//!   So whatever is read there, at any time, is an old or a new hint, and never names anything but
//!   a leaf of the table.
//! - **Y4.** A sub-model covers all leaves that overlap with the keys which the top model sends to
//!   it, those at either end included (boundary augmentation). A leaf that splits makes every
//!   sub-model due that covers it, before the write is acknowledged.
//! - **Y5.** A trained sub-model is written with a greater version: its table first, to a place
//!   that the one before does not name, then its record, with a checksum over its place, its
//!   generation and its version. If the leaves have changed meanwhile it is due again; so it is if
//!   the write failed, with yet a greater version: part of it may be there.
//! - **Y6.** A client follows one link from where the model led it (speculation). If the key is
//!   not there either, it asks the node, which answers with the value and with what it has that is
//!   newer than what the client told it uses (fallback). When writes have ended and nothing is due,
//!   each key is found without the node once its sub-model was fetched.
//! - **Y7.** Where there are too many leaves for each sub-model, and after a load, the node trains
//!   a new top model and all sub-models, as a new generation, whose lines and records are written
//!   before anybody is told of it. A line's place is read as a sub-model's is: a checksum over its
//!   place, its generation and the table says that it is the one that was meant. A position that a
//!   client sends with a write counts for the generation that it names, and is a position of a
//!   table, never an address.
//!
//! X. Wei, R. Chen, H. Chen, *Fast RDMA-based Ordered Key-Value Store using Remote Learned Cache*,
//! OSDI 2020. Here a model learns the lows of leaves instead of keys, so absent keys need no care;
//! and no entry of a table has to be marked as invalid, as the fences say what became of a leaf.

pub mod inner;
pub mod layer;
pub mod record;

pub use inner::{InnerLayer, InnerTree};
pub use layer::{ModelCache, XstoreLayer};
pub use record::{Generation, ModelHead, ModelVersion, Place, SubModelRecord};
