//! The words that every Farleaf crate shares: where something is ([`RemoteAddr`], [`WordAddr`]),
//! who holds something ([`OwnerWord`]), which table it belongs to ([`TableId`]), and the one
//! checksum ([`crc32c`]).
//!
//! What it is not: no I/O, no protocol, nothing below it. Every type here is a plain value with a
//! fixed bit layout, because each of them is stored in far memory as one aligned 8-byte word, the
//! only unit that is atomic there (fabric contract F3).

#![forbid(unsafe_code)]

mod address;
mod checksum;
mod identity;

pub use address::{
    BLOCK_SIZE_BYTES, BLOCK_SIZE_WORDS, NodeId, RemoteAddr, WORD_SIZE_BYTES, WordAddr,
};
pub use checksum::{crc32c, crc32c_bytes};
pub use identity::{Incarnation, OwnerWord, SequenceNumber, SessionId, TableId};

// Layouts are written as native words and read back as bytes by the checksum; both sides of a pool
// run the same binary format, and every machine this was built for is little-endian.
#[cfg(target_endian = "big")]
compile_error!("Farleaf's memory formats are little-endian; big-endian targets are not supported");
