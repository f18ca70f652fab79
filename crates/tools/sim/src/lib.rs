//! The simulator: judge of correctness.
//!
//! Everything happens in virtual time, on one thread, and follows from one seed: which client goes
//! on when, how long a batch takes, in which order its words are read and written, who dies where.
//! So a disaster that was met once can be met again, looked at, and made smaller.
//!
//! | module | what it holds |
//! |---|---|
//! | [`fabric`] | a fabric in virtual time that uses every freedom of the contract |
//! | [`nic`] | a network that takes time, and does nothing else: for performance |
//! | [`experiment`] | many clients on loaded tables over that network, measured |
//! | [`figures`] | the figures of papers, drawn from experiments |
//! | [`random`] | where all chance comes from |
//! | [`exchange`] | calls over one-sided WRITEs, judged |
//! | [`plan`] | one run as a value: table, clients, operations, faults |
//! | [`node`], [`session`] | the memory node and the clients of a run: the real code |
//! | [`run`](mod@run) | a plan, run to its end and judged |
//! | [`strings`] | what a plan's numbers stand for on tables of byte strings |
//! | [`history`] | what clients did and saw |
//! | [`check`] | what must hold, each promise in a file of its own |
//! | [`plant`] | bugs that can be planted, to see that they are found |
//! | [`mod@reduce`] | a smaller plan that breaks the same promise |
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
pub mod random;
pub mod reduce;
pub mod run;
pub mod session;
pub mod strings;

mod shown;
pub mod workers;
