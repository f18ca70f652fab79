//! Pages: the leaves of tables whose keys and values are byte strings.
//!
//! | module | contents |
//! |---|---|
//! | [`geometry`] | number of words of a page, their places, and size limits of strings in it |
//! | [`words`] | slots, fences, the prefix and references as words |
//! | [`fence`] | places between keys |
//! | [`outside`] | strings of value blocks that the caller has read |
//! | [`record`] | records, as a page stores them and as callers provide them |
//! | [`image`] | the codec: the only code that knows the layout of strings and the checksum |
//! | [`buffer`] | pages under construction |
//! | [`change`] | changes of a locked page as batches |
//! | [`split`] | splits in place |
//! | [`draft`], [`rewrite`] | contents of new pages that replace old ones |
//! | [`moving`] | batches that replace old pages by new ones |
//! | [`mod@format`] | pages as leaves: read, locked and recovered by [`words`](crate::words) |
//! | [`recovery`] | pages of fenced owners (LEAF-8) |
//!
//! See docs/explanation/byte-tables.md, *Page format* and *Changing a page*. Except [`mod@format`],
//! these modules execute no verbs and read no value blocks. A function that needs a string outside
//! the page returns its reference, and the caller repeats the call after reading it.
#![doc = include_str!("../../../../../docs/explanation/byte-tables.md")]
pub mod buffer;
pub mod change;
pub mod draft;
pub mod fence;
pub mod format;
pub mod geometry;
pub mod image;
pub mod moving;
pub mod outside;
pub mod record;
pub mod recovery;
pub mod rewrite;
pub mod split;
pub mod words;

mod contents;
mod cut;
mod error;
mod loading;
mod space;

pub use buffer::{NewFence, NewPage, NewPrefix, PageBuffer};
pub use change::{FitOutcome, PageChange};
pub use draft::{PageDraft, StringPlace};
pub use error::PageError;
pub use fence::Fence;
pub use geometry::{
    GeometryError, KEY_HEAD_SIZE_BYTES, PREFIX_INLINE_SIZE_BYTES_MAX, PageGeometry, SLOT_COUNT_MAX,
};
pub use image::{Found, KeyPlacement, PageImage, SlotOrder};
pub use moving::MoveSource;
pub use outside::{Outside, Unread};
pub use record::{NewKey, NewRecord, SlotSet, Stored, StoredFence, StoredPrefix, Value};
pub use recovery::Repair;
pub use rewrite::{Merge, Rewrite, plan_merge, plan_rewrite};
pub use split::{InPlace, NotInPlace, Split, SplitPlan, SplitRequest};
pub use words::{Fingerprint, Reference};
