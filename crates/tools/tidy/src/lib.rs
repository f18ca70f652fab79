//! The rules of the source tree that a program can check; `cargo test` checks them.
//!
//! Each rule is a function from a [`SourceTree`] to the [`Violation`]s it found, in a module of its
//! own beside tests that feed it a bad example. `tests/it/main.rs` runs every rule on the real
//! tree, one test a rule. Nothing here calls cargo: manifests and sources are read as text.
//!
//! | module | rule |
//! |---|---|
//! | [`layering`] | which crate may depend on which, by the table in [`layers`] |
//! | [`search_layers`] | search layers do not import each other |
//! | [`size`] | lengths of files and lines |
//! | [`unsafe_code`] | where unsafe code may be, and its proofs |
//! | [`leftovers`] | unfinished work, modules without an idea |
//! | [`links`] | links between documents, reachability of docs/ |
//! | [`manifests`] | what every crate says about itself |
//!
//! [`rust_text`] tells code from comments and literals, so that a rule that looks for a word does
//! not find it in a string. It is a scanner, not a parser: what a macro expands to is not seen.

#![forbid(unsafe_code)]

pub mod layering;
pub mod layers;
pub mod leftovers;
pub mod links;
pub mod manifests;
pub mod rust_text;
pub mod search_layers;
pub mod size;
pub mod tree;
pub mod unsafe_code;

pub use tree::{SourceTree, Violation};
