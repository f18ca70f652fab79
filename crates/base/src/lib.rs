//! Types shared by every Farleaf crate: addresses ([`RemoteAddr`], [`WordAddr`]), owners
//! ([`OwnerWord`]), tables ([`TableId`]) and the checksum ([`crc32c`]).
//!
//! The crate also has the limits of records ([`limits`]), the generator of random numbers
//! ([`random`]), clocks ([`clock`]), locks that ignore poisoning ([`locks`]), recognition of other
//! protocols ([`foreign_protocol`]), sizes as text ([`size_text`]), and fuzzing of decoders
//! (`fuzzing`, behind a feature of that name).
//!
//! The crate does no I/O, implements no protocol, and depends on no other Farleaf crate. Every type
//! of its root is a plain value with a fixed bit layout. In far memory it is one aligned 8-byte
//! word, the only unit that is atomic there (FABRIC-3).

#![forbid(unsafe_code)]

pub mod clock;
pub mod foreign_protocol;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod limits;
pub mod locks;
pub mod random;
pub mod size_text;

mod address;
mod checksum;
mod identity;

pub use address::{
    BLOCK_SIZE_BYTES, BLOCK_SIZE_WORDS, NodeId, RemoteAddr, WORD_SIZE_BYTES, WordAddr,
};
pub use checksum::{crc32c, crc32c_bytes};
pub use identity::{Incarnation, OwnerWord, SequenceNumber, SessionId, TableId};

// Layouts are written as native words and read back as bytes by the checksum. Both sides of a pool
// use the same binary format, and all supported targets are little-endian.
#[cfg(target_endian = "big")]
compile_error!("Farleaf's memory formats are little-endian; big-endian targets are not supported");
