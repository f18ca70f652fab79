//! XStore at the memory node: executes writes to leaves, and trains models of them
//! (`farleaf_index::xstore`; see also docs/explanation/xstore.md).
//!
//! | module | contents |
//! |---|---|
//! | [`tables`] | the served tables, and the queue of due training |
//! | [`served`] | one of them: the tree over its leaves, and its models |
//! | [`worker`] | a session of the node that executes requests |
//! | [`execute`] | execution of requests |
//! | [`area`] | allocation of models in far memory |
//! | [`trainer`] | training of sub-models and of all models |
//!
//! - **Sessions.** Each thread that executes requests, or trains, has its own session and does one
//!   task at a time. Before each task it reads the sequence number. If that has grown, the thread
//!   closes tables that were dropped, and publishes the number (LEAF-7).
//! - **Trees.** One thread builds a table's tree, by walking along the links from the table's first
//!   leaf. It does so at the first request for the table, and when a retired leaf is found: in
//!   these tables, only a load retires leaves.
//! - **Training.** One thread at a time trains a sub-model; several threads may train sub-models of
//!   a table. A thread that trains all of a table runs alone, and takes precedence over sub-models
//!   that became due later. Models are written into unowned chunks of the table that are marked as
//!   models, so they are freed when the table is dropped.

pub mod area;
pub mod execute;
pub mod served;
pub mod tables;
pub mod trainer;
pub mod worker;

pub use served::LeafTable;
pub use tables::LeafTables;
pub use trainer::Trainer;
pub use worker::{SessionFactory, Worker};
