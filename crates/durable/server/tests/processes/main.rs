//! Guarantees of persistent tables when the processes of their servers are killed.
//!
//! The coordinator is in the test's process, and the servers reach it over the wire. `cargo test`
//! runs a short version. The full one, as the project promises it:
//!
//! ```text
//! FARLEAF_TEST_KILLS=50 cargo test --release -p farleaf-server --test processes -- \
//!     --test-threads=1 --nocapture
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `part` | the process of a server, and the address of the common coordinator |
//! | `network` | a network of a test's own, in namespaces, and cut connections |
//! | `kills` | primaries, and all servers, that are killed |
//! | `partitions` | servers that are cut off |
//! | `rest` | comparison of the files of replicas at rest |
//! | `soak` | random faults for a long time |
//!
//! Clients, their histories and the checks of these are in `farleaf-trial`.

mod kills;
mod network;
mod part;
mod partitions;
#[path = "../rest/mod.rs"]
mod rest;
mod soak;
