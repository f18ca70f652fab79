//! Rules of the source tree that a program can check; `cargo test` checks them.
//!
//! Each rule is a function from a [`SourceTree`] to the [`Violation`]s that it found. It is in a
//! module of its own, with tests on a bad example. `tests/it/main.rs` runs every rule on the real
//! tree, one test per rule. No rule calls cargo: manifests and sources are read as text.
//!
//! | module | rule |
//! |---|---|
//! | [`layering`] | permitted dependencies between crates, by the table in [`layers`] |
//! | [`search_layers`] | search layers do not import each other |
//! | [`size`] | lengths of files and lines |
//! | [`unsafe_code`] | files with unsafe code, and its proofs |
//! | [`leftovers`] | unfinished work, meaningless module names |
//! | [`links`] | links between documents, reachability of docs/, the summary of the book |
//! | [`prose`] | plain English in comments and documents, as far as a program can check it |
//! | [`names`] | terms instead of metaphors, the glossary, one list of search layers |
//! | [`rules`] | every numbered rule that is cited is defined, once |
//! | [`manifests`] | metadata, documentation and lints of every crate |
//!
//! [`rust_text`] separates code from comments and literals, so that a rule that searches for a word
//! does not find it in a string. It is a scanner, not a parser: it does not see the expansion of
//! macros.

#![forbid(unsafe_code)]

pub mod layering;
pub mod layers;
pub mod leftovers;
pub mod links;
pub mod manifests;
pub mod markdown;
pub mod names;
pub mod prose;
pub mod rules;
pub mod rust_text;
pub mod search_layers;
pub mod size;
pub mod tree;
pub mod unsafe_code;

pub use tree::{SourceTree, Violation};
