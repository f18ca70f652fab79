//! XStore at the memory node: executes writes to leaves, and trains models of them (Y1 to Y7 of
//! `farleaf_index::xstore`).
//!
//! | module | what it holds |
//! |---|---|
//! | [`tables`] | the tables that are served, and what is due to be trained |
//! | [`served`] | one of them: the tree over its leaves, and its models |
//! | [`worker`] | a session of the node that executes requests |
//! | [`execute`] | what each request comes to |
//! | [`area`] | where in far memory a table's models lie |
//! | [`trainer`] | trains sub-models, and all of them |
//!
//! - **Z1.** Each thread that executes requests, or trains, has a session of its own and does one
//!   thing at a time. Before each it looks at the sequence number; if that has grown, it lets go of
//!   tables that were dropped, and publishes it (D7, P4).
//! - **Z2.** A table's tree is made by one thread, which walks along the links from the table's
//!   first leaf, when the first request for it comes, and when a leaf is met that is retired: a
//!   load alone does that (B3).
//! - **Z3.** One thread at a time trains a sub-model, and several train those of a table. Who
//!   trains all of a table does so alone, and comes before those whose sub-models were due later.
//!   What is trained is written into chunks of the table that nobody owns and that are noted as
//!   models, so that they are free when it is dropped (G2).

pub mod area;
pub mod execute;
pub mod served;
pub mod tables;
pub mod trainer;
pub mod worker;

pub use served::LeafTable;
pub use tables::LeafTables;
pub use trainer::Trainer;
pub use worker::{Employer, Worker};
