//! A fabric in virtual time, which uses every freedom that the contract leaves.
//!
//! | module | what it holds |
//! |---|---|
//! | [`world`] | virtual time, the nodes' memory, batches in flight, clients |
//! | `fingerprint` | whether the same happened in two runs |
//! | `modelled` | batches that take the time of a modelled network instead |
//! | `schedule` | when the verbs of one batch take effect, piece by piece (F2, F3) |
//! | [`endpoint`] | one client's way in, and one that nothing can happen to |
//! | [`executor`] | tasks in virtual time |
//!
//! What it does that hardware may, and mostly does not, do:
//!
//! - A READ's words are loaded at different moments, in any order, while others write (F3). So are
//!   a WRITE's words stored.
//! - A later WRITE, CAS or FAA without `fence` takes effect before an earlier READ, CAS or FAA of
//!   its batch (F2).
//! - Batches take arbitrarily long, and overtake each other (F2).
//! - A client stops for ever between any two verbs, or in the middle of a WRITE; what it posted
//!   goes on taking effect until it is fenced, and then not a word more (F5, F6).
//! - A connection breaks: the batch in flight is cut anywhere, with an unknown outcome (F5).

pub mod endpoint;
pub mod executor;
pub mod world;

mod fingerprint;
mod modelled;
mod schedule;

pub use schedule::Freedoms;
