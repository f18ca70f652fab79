//! Leaves in far memory, which hold a table's records.
//!
//! | module | leaves of which tables |
//! |---|---|
//! | [`words`] | keys and values of one word: codec, locking, recovery, leases |
//! | [`strings`] | byte strings: leaves of this format are called pages |
//! | [`blobs`] | value blocks: the strings that do not fit into pages |
//!
//! The protocol is the same for words and strings. [`words::LeafFormat`] abstracts what it needs of
//! a format: a lock word, fences, a link to the right and a checksum.
//!
//! This crate does not find leaves. Search layers (`farleaf-index`) do, and this crate checks their
//! hints against the leaf's own fences.

#![forbid(unsafe_code)]

pub mod blobs;
pub mod strings;
pub mod words;
