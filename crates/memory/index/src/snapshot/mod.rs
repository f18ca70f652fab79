//! The directory in far memory: how a training reaches other processes.
//!
//! A snapshot is written whole before anything names it, and never changed; the root word of the
//! table's catalog entry names it. Only the synonym leaf tables inside it live on: their counters
//! are advanced by FAA and their entries are written once each.
//!
//! It is read whole, or page by page by sessions that must not hold all of it.
//!
//! | module | what it holds |
//! |---|---|
//! | `format` | header and models, word by word |
//! | `page` | page heads and residual pages |
//! | `leaf_table` | addresses of leaves that do not lie side by side |
//! | `transfer` | snapshots to far memory and back |
//! | `paged` | snapshots page by page |

mod format;
mod leaf_table;
mod page;
mod paged;
mod transfer;

pub(crate) use leaf_table::is_place;

pub use format::{HEADER_SIZE_WORDS, SnapshotHeader, decode_model, encode_model};
pub use page::{
    PAGE_LEAF_COUNT, PAGE_MODEL_COUNT, PageHead, Piece, decode_residual_page, encode_residuals,
};
pub use paged::{PageRead, PagedSnapshot, read_paged};
pub(crate) use transfer::table_size_words;
pub use transfer::{
    SnapshotContents, TRANSFER_SIZE_WORDS, read_contents, read_snapshot, read_words,
    write_snapshot, write_words,
};
