//! Value blocks: the strings of byte-string tables that do not fit into pages.
//!
//! | module | what it holds |
//! |---|---|
//! | `class` | into how many pieces a chunk is cut |
//! | `pointer` | fat pointers, and where they can lead |
//! | `header` | the first words of a block, and its locator: the layout |
//! | `list` | the body of a list: where the parts of a string are |
//! | `content` | what is written, and how much room it takes |
//! | `words` | strings as words |
//! | `access` | the verbs on one block: writing, unlinking, looking |
//! | `read` | reading strings |
//! | `store` | what a session holds: pieces to write into, and its limbo |
//! | `lease` | how pieces come to be held, and free again |
//! | `limbo` | grace periods of what was unlinked |
//! | `large` | strings that take whole chunks |
//! | `grace` | how far all sessions have followed (D7) |
//! | [`sweep`] | what fenced sessions held |
//!
//! What it is not: it knows nothing of pages. Who changes a page writes a block before, and notes
//! one that the change unlinks; the sweep asks whether a page refers to a block, and does not know
//! how that is found. The rules are BV1 to BV11 of `docs/byte-tables.md`.
//!
//! # A change of a page, step by step
//!
//! 1. [`Content::room`] says what a string takes. If it is a piece on the page's node,
//!    [`BlockStore::take`], after [`BlockStore::lease_more`] if there is none; else
//!    [`BlockStore::write_ahead`], which is done when the block is there.
//! 2. In the batch that changes the page: [`BlockAccess::post_write`] of what was only taken and
//!    [`BlockAccess::post_unlink`] of what goes, then the page's own WRITEs. What is unlinked on
//!    another node is so in a batch before, which is awaited.
//! 3. When that has been executed: [`BlockStore::retire`] what was unlinked. If nothing came of the
//!    change: [`BlockStore::put_back`] what was taken, unless the outcome is unknown.

#![forbid(unsafe_code)]

mod access;
mod class;
mod content;
mod error;
mod grace;
mod header;
mod large;
mod lease;
mod limbo;
mod list;
mod pointer;
mod read;
mod store;
pub mod sweep;
mod words;

pub use access::BlockAccess;
pub use class::{CLASS_COUNT, SizeClass};
pub use content::{Content, ContentError, Room};
pub use error::BlockError;
pub use header::{
    BODY_WORD, HOLDER_WORD, LOCATOR_SIZE_BYTES_MAX, Role, SETTLED, SHAPE_WORD,
    STRING_SIZE_BYTES_MAX,
};
pub use lease::{KEPT_PIECE_COUNT, LEASE_PIECE_COUNT};
pub use limbo::Recycled;
pub use pointer::{FatPointer, Form, Generation, Site};
pub use read::{Copied, PostedString};
pub use store::{BlockStore, Held};
