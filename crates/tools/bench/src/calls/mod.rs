//! Costs of calls, compared in one run with a plain echo of as many bytes over loopback TCP. The
//! measured call is the cheapest request to a memory node: a get of a table that it holds.
//!
//! Rounds alternate: in each, the echo and then every fabric execute the same number of calls on
//! one thread, with a fixed number in flight. The result of a fabric is the median of its rounds,
//! and the median of its ratios to the echo of the same round. Every answer is checked.

mod config;
mod echo;
mod measure;
mod rows;

pub use config::CallsConfig;
pub use measure::{CallsRow, run};
