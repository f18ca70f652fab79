//! The directory in far memory, from which other processes load a training.
//!
//! A snapshot is written completely before anything refers to it, and is never modified. The root
//! word of the table's catalog entry names it. Only its synonym leaf tables change: their counters
//! are advanced by FAA, and each entry is written once. A snapshot consists of parts, each with its
//! own checksum, so that a session with a metadata budget reads only the parts that it needs.
//!
//! | module | contents |
//! |---|---|
//! | `header` | layout of a snapshot and its header |
//! | `contents` | models, pages and residuals: the result of a training |
//! | `format` | encodes and decodes a whole snapshot |
//! | `heads` | the part table |
//! | `part` | format of models, fences and residuals |
//! | `model` | format of a model |
//! | `transfer` | reads and writes snapshots in far memory |

mod contents;
mod format;
#[cfg(test)]
mod fuzz;
mod header;
mod heads;
mod model;
mod part;
#[cfg(test)]
mod tests;
mod transfer;

pub use contents::Contents;
pub use header::HEADER_SIZE_WORDS;
pub(crate) use header::Header;
pub(crate) use part::Part;
pub use transfer::{
    SnapshotParts, give_back_snapshot, read_contents, read_directory, write_snapshot,
    write_snapshot_into,
};
