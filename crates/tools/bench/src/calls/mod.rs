//! What a call costs: the least that a memory node can be asked (a get of a table that it holds),
//! beside a plain echo of as many bytes over loopback TCP, in one run.
//!
//! Rounds alternate: in each, the echo and then every fabric do the same number of calls, with so
//! many under way at a time on one thread. What is told of a fabric is the median of its rounds,
//! and the median of its ratios to the echo of the same round. Every answer is checked.

mod config;
mod echo;
mod measure;
mod rows;

pub use config::CallsConfig;
pub use measure::{CallsRow, CallsSink, run};
pub use rows::{calls_row, header_text};
