//! Trials of persistent tables: clients that work while servers, disks, networks and coordinators
//! fail, and a check of their results. Only for tests of other crates.
//!
//! | module | contents |
//! |---|---|
//! | [`history`] | operations and results of clients, with times |
//! | [`check`] | linearizability check, key by key |
//! | [`load`] | clients that work during failures |
//! | [`fleet`] | servers as separate processes, which can be killed |
//! | [`kills`] | trials that kill servers under load |
//! | [`outage`] | coordinator that can become unreachable |

#![forbid(unsafe_code)]

pub mod check;
pub mod fleet;
pub mod history;
pub mod kills;
pub mod load;
pub mod outage;

pub use fleet::{ProcessCluster, ServerParameters};
pub use history::History;
pub use load::{AllowedErrors, Trial};
pub use outage::CuttableCoordinator;
