//! Instruction gate: counts the instructions of one operation, and compares the number with a
//! recorded one.
//!
//! Wall-clock times on shared machines vary by tens of percent, instruction counts hardly at all.
//! The gate therefore runs each [`Case`] under `valgrind --tool=callgrind` and counts the
//! instructions executed inside one named function. It divides by the number of operations, and
//! compares with `expected.toml` next to this crate's manifest.
//!
//! The count is not a measure of time. It does not show cache misses, memory bandwidth and round
//! trips. Valgrind emulates a simpler processor than the real one (no AVX-512), so for code that is
//! selected at run time the count is that of the fallback.
//!
//! The gate starts its own executable again under callgrind, in child mode. The child prepares a
//! case's state, then calls the case's measured function once with an operation count. Callgrind
//! collects only while that function is on the stack (`--toggle-collect`), so neither start-up nor
//! preparation is counted. Callgrind writes its profile into the pipe from which the gate reads, so
//! no profile is left on disk.
//!
//! | module | content |
//! |---|---|
//! | [`case`] | the measured operations; the list to which a case is added |
//! | `byte_case` | those on tables of byte strings |
//! | [`callgrind`] | runs the child and reads the count |
//! | [`expectation`] | `expected.toml`, and rewriting it on `--bless` |
//! | [`verdict`] | comparison, and the printed table |

#![forbid(unsafe_code)]

mod byte_case;
pub mod callgrind;
pub mod case;
pub mod expectation;
pub mod verdict;

pub use case::{CASES, Case};
