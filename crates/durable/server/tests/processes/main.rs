//! What persistent tables promise when the processes of their servers are killed.
//!
//! The coordinator lives in the test's process, and the servers reach it over the wire. Under
//! `cargo test` a short version runs. The full one, as the project promises it:
//!
//! ```text
//! FARLEAF_TEST_KILLS=50 cargo test --release -p farleaf-server --test processes -- \
//!     --test-threads=1 --nocapture
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `part` | what a server's process does, and where the coordinator of all is |
//! | `network` | a network of a test's own, in namespaces, and ways that are cut |
//! | `kills` | primaries that are killed; all servers that are |
//! | `partitions` | servers that are cut off |
//! | `rest` | the files of replicas at rest, which are equal |
//! | `soak` | everything that can happen, at random, for long |
//!
//! Clients, their histories and how these are checked are in `farleaf-trial`.

mod kills;
mod network;
mod part;
mod partitions;
#[path = "../rest/mod.rs"]
mod rest;
mod soak;
