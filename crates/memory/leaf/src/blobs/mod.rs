//! Value blocks: the strings of byte-string tables that do not fit into pages.
//!
//! | module | contents |
//! |---|---|
//! | `class` | size classes: number of pieces in a chunk |
//! | `pointer` | fat pointers, and the places that they can lead to |
//! | `header` | the layout of a block: its first words and its locator |
//! | `list` | the body of a list: the places of a string's parts |
//! | `content` | contents of a block, and the space that they need |
//! | `words` | strings as words |
//! | `access` | verbs on one block: writing, unlinking, checking |
//! | `read` | reading strings |
//! | `store` | what a session holds: free pieces, and its limbo |
//! | `lease` | leasing and freeing of pieces |
//! | `limbo` | grace periods of unlinked blocks |
//! | `large` | strings that take whole chunks |
//! | `grace` | progress of all sessions (LEAF-7) |
//! | [`sweep`] | blocks that fenced sessions held |
//!
//! This module does not know pages. A session that changes a page writes blocks before the change,
//! and notes the blocks that the change unlinks. The sweep asks its caller whether a page refers to
//! a block. For the rules see docs/explanation/byte-tables.md, *Value blocks*.
//!
//! # Steps of a page change
//!
//! 1. [`Content::space_need`] returns the space that a string needs. If that is a piece on the
//!    page's node, call [`BlockStore::take`], after [`BlockStore::lease_more`] if there is none.
//!    Otherwise call [`BlockStore::write_ahead`], which has written the block when it returns.
//! 2. In the batch that changes the page, call [`BlockAccess::post_write`] for taken pieces and
//!    [`BlockAccess::post_unlink`] for blocks to unlink, then add the page's own WRITEs. Blocks on
//!    another node are unlinked in an earlier, awaited batch.
//! 3. After the batch has been executed, call [`BlockStore::retire`] for the unlinked blocks. If
//!    the change was not made, call [`BlockStore::put_back`] for taken pieces, unless the outcome
//!    is unknown.

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
pub use content::{Content, ContentError, SpaceNeed};
pub use error::BlockError;
pub use header::{
    BODY_WORD, HOLDER_WORD, LOCATOR_SIZE_BYTES_MAX, Role, SETTLED, SHAPE_WORD,
    STRING_SIZE_BYTES_MAX,
};
pub use lease::{KEPT_PIECE_COUNT, LEASE_PIECE_COUNT};
pub use limbo::Recycled;
pub use pointer::{FatPointer, Form, Generation, Site};
pub use read::{CopyOutcome, PostedString};
pub use store::{BlockStore, StoreHoldings};
