//! Tests of the simulator: its fabric keeps the contract and uses its freedoms, and the checks find
//! violations.
//!
//! | module | content |
//! |---|---|
//! | `campaigns` | many runs of the real code, with and without planted bugs |
//! | `checkers` | promises broken by hand are detected |
//! | `contract` | the conformance suite over the simulated fabric |
//! | `figures` | a tiny run writes all files, and the page is self-contained |
//! | `freedoms` | torn READs and WRITEs, overtaking, cuts, and nothing after a fence |
//! | `grown` | experiments in which memory nodes retrain |
//! | `network` | the modeled network and experiments on it |
//! | `reversed` | scans of tables of words in descending order |
//! | `retraining` | retrainers die in every phase, and steps reach their limits |
//! | `sessions` | regression tests of sessions, step by step |
//! | `stages` | each stage of the modeled network: what it delays |
//! | `training` | training by memory nodes for clients: its time and its benefit |
//! | `tree_figures` | figures with tree layers |
//! | `xstore_figures` | modeled memory nodes that answer calls, and XStore's figures |

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
mod reversed;
mod sessions;
mod stages;
mod training;
mod tree_figures;
mod xstore_figures;
