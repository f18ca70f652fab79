//! The directory in far memory: how a training reaches other processes.
//!
//! A snapshot is written whole before anything names it, and never changed; the root word of the
//! table's catalog entry names it. Only the synonym leaf tables behind it live on: their counters
//! are advanced by FAA and their entries are written once each. It consists of parts, each with a
//! checksum of its own, so that a session with a metadata budget reads those that it needs.
//!
//! | module | what it holds |
//! |---|---|
//! | `format` | header and contents |
//! | `heads` | the part table |
//! | `part` | models, fences and residuals, word by word |
//! | `model` | the words of a model |
//! | `transfer` | snapshots to far memory and back |

mod format;
#[cfg(test)]
mod fuzz;
mod heads;
mod model;
mod part;
#[cfg(test)]
mod tests;
mod transfer;

pub(crate) use format::Header;
pub use format::{Contents, HEADER_SIZE_WORDS};
pub(crate) use part::Part;
pub use transfer::{
    SnapshotParts, give_back_snapshot, read_contents, read_directory, write_snapshot,
    write_snapshot_into,
};
