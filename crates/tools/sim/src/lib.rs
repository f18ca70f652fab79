//! Simulator: checks correctness against random failures.
//!
//! A run takes place in virtual time, on one thread, and one seed decides it: which client runs
//! when, how long a batch takes, in which order its words are read and written, which clients die
//! and where. A failure can therefore be repeated, traced, and reduced.
//!
//! | module | content |
//! |---|---|
//! | [`fabric`] | a fabric in virtual time that uses every freedom of the contract |
//! | [`nic`] | a network without faults that only takes time: for performance |
//! | [`experiment`] | measurements of many clients on loaded tables over that network |
//! | [`figures`] | the figures of papers, drawn from experiments |
//! | [`exchange`] | checks of calls over one-sided WRITEs |
//! | [`plan`] | one run as a value: table, clients, operations, faults |
//! | [`node`], [`session`] | the memory node and the clients of a run: the real code |
//! | [`run`](mod@run) | runs a plan to its end and checks it |
//! | [`strings`] | meaning of a plan's numbers on tables of byte strings |
//! | [`history`] | operations of clients and their answers |
//! | [`check`] | promises, each in a file of its own |
//! | [`plant`] | bugs that can be planted, to test the checks |
//! | [`mod@reduce`] | reduction of a plan that breaks a promise |
//! | [`campaign`] | many runs on all processors |

#![forbid(unsafe_code)]

pub mod campaign;
pub mod check;
pub mod exchange;
pub mod experiment;
pub mod fabric;
pub mod figures;
pub mod history;
pub mod nic;
pub mod node;
pub mod plan;
pub mod plant;
pub mod reduce;
pub mod run;
pub mod session;
pub mod strings;

pub mod workers;

mod display;
mod profile;
