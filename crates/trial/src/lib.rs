//! Persistent tables on trial: clients that work while servers, disks, networks and coordinators
//! fail, and whether what they saw can be. For tests of other crates alone.
//!
//! | module | what it holds |
//! |---|---|
//! | [`history`] | what clients did and saw, with when |
//! | [`check`] | whether that is linearizable, key by key |
//! | [`load`] | clients that work while something fails |
//! | [`fleet`] | servers as processes of their own, which can be killed |
//! | [`kills`] | primaries that are killed under load |
//! | [`outage`] | a coordinator that can be out of reach |

#![forbid(unsafe_code)]

pub mod check;
pub mod fleet;
pub mod history;
pub mod kills;
pub mod load;
pub mod outage;

pub use fleet::{Fleet, Part};
pub use history::History;
pub use load::{Course, Trial};
pub use outage::Outage;
