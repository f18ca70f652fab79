//! The instruction gate: how many instructions one operation costs, held against a written number.
//!
//! Wall-clock times on shared machines vary by tens of percent, instruction counts hardly at all.
//! So the gate runs each [`Case`] under `valgrind --tool=callgrind`, counts the instructions
//! executed inside one named function, divides by the number of operations and compares with
//! `expected.toml` next to this crate's manifest.
//!
//! What it is not: a measure of time. Cache misses, memory bandwidth and round trips do not show,
//! and valgrind offers the program a plainer processor than the real one (no AVX-512), so the count
//! is that of the fallback path of whatever picks its code at run time.
//!
//! How a count comes about: the gate starts its own executable again under callgrind, in child
//! mode. The child prepares a case's state, then calls the case's measured function once with an
//! operation count. Callgrind collects only while that function is on the stack
//! (`--toggle-collect`), so neither start-up nor preparation is counted. Callgrind writes its
//! profile into the pipe the gate reads, so no profile is ever left on disk.
//!
//! | module | idea |
//! |---|---|
//! | [`case`] | what is measured; the list to which a case is added |
//! | `byte_case` | those of tables of byte strings |
//! | [`callgrind`] | running the child and reading the count |
//! | [`expectation`] | `expected.toml`, and rewriting it on `--bless` |
//! | [`verdict`] | comparing, and the table that is printed |

#![forbid(unsafe_code)]

mod byte_case;
pub mod callgrind;
pub mod case;
pub mod expectation;
pub mod verdict;

pub use case::{CASES, Case};
