//! The simulator's own promises: that its fabric keeps the contract, and that it uses the freedoms
//! that the contract leaves.
//!
//! | module | what it holds |
//! |---|---|
//! | `campaigns` | many runs of the real code, with and without planted bugs |
//! | `checkers` | a promise broken by hand is seen |
//! | `contract` | the conformance suite over the simulated fabric |
//! | `figures` | a tiny run writes all files, and the page needs nothing else |
//! | `freedoms` | torn READs and WRITEs, overtaking, cuts, and nothing after a fence |
//! | `grown` | experiments in which memory nodes retrain |
//! | `network` | the modelled network and experiments on it |
//! | `retraining` | retrainers die in every phase, steps come to all that they may |
//! | `sessions` | what was found in the sessions, each by hand |
//! | `stages` | each stage of the modelled network: what it holds up, and what it does not |
//! | `training` | what a memory node trains for clients takes its time, and is worth it |
//! | `tree_figures` | the figures in which layers with a tree stand |
//! | `xstore_figures` | memory nodes that answer calls, modelled, and XStore's figures |

mod campaigns;
mod checkers;
mod compaction;
mod contract;
mod figures;
mod freedoms;
mod grown;
mod hand_over;
mod messages;
mod network;
mod retraining;
mod sessions;
mod stages;
mod training;
mod tree_figures;
mod xstore_figures;
