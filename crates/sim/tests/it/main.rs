//! The simulator's own promises: that its fabric keeps the contract, and that it uses the freedoms
//! that the contract leaves.
//!
//! | module | what it holds |
//! |---|---|
//! | `campaigns` | many runs of the real code, with and without planted bugs |
//! | `contract` | the conformance suite over the simulated fabric |
//! | `freedoms` | torn READs and WRITEs, overtaking, cuts, and nothing after a fence |

mod campaigns;
mod contract;
mod freedoms;
