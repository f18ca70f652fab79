//! Snapshots: the directory in far memory, from which other processes get the result of a training.
//!
//! A snapshot is written whole before anything names it, and never changed. The root word of the
//! table's catalog entry names it. Only the synonym leaf tables in it change: FAAs advance their
//! counters, and each of their entries is written once.
//!
//! A session reads it whole, or page by page if it has a metadata budget.
//!
//! | module | contents |
//! |---|---|
//! | `format` | words of header and models |
//! | `page` | page heads and residual pages |
//! | `leaf_table` | addresses of leaves that are not adjacent |
//! | `transfer` | writing and reading whole snapshots |
//! | `paged` | reading snapshots page by page |

mod format;
mod leaf_table;
mod page;
mod paged;
mod transfer;

pub(crate) use leaf_table::is_place;

pub use format::{HEADER_SIZE_WORDS, SnapshotHeader, decode_model, encode_model};
pub use page::{
    PAGE_LEAF_COUNT, PAGE_MODEL_COUNT, PageHead, WordRange, decode_residual_page, encode_residuals,
};
pub use paged::{PageRead, PagedSnapshot, read_paged};
pub(crate) use transfer::table_size_words;
pub use transfer::{
    SnapshotContents, TRANSFER_SIZE_WORDS, read_contents, read_snapshot, read_words,
    write_snapshot, write_words,
};
