//! Pages: the leaves of tables whose keys and values are byte strings.
//!
//! | module | what it holds |
//! |---|---|
//! | [`geometry`] | how many words a page has, where they are, and how long strings in it may be |
//! | [`words`] | slots, fences, the prefix and references as words |
//! | [`fence`] | places between keys |
//! | [`outside`] | strings of value blocks that were read already |
//! | [`record`] | records, as a page stores them and as they are given to it |
//! | [`image`] | the codec: the one place that knows how strings lie and what the checksum covers |
//! | [`buffer`] | pages that are being made |
//! | [`change`] | changes of a locked page as batches (BP3, BP4) |
//! | [`split`] | splits in place (BP5) |
//! | [`draft`], [`rewrite`] | new pages in the place of old ones: what they are (BP6) |
//! | [`moving`] | and how they take their place |
//! | [`mod@format`] | pages as leaves: read, locked and recovered by `farleaf-leaf` |
//! | [`recovery`] | pages of fenced owners (D8) |
//!
//! What it is not: it executes nothing, and reads no value blocks. What depends on a string outside
//! the page says so, and is asked again when the caller has read it.
#![doc = include_str!("../../../docs/byte-tables.md")]
#![forbid(unsafe_code)]

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
pub use change::{PageChange, Room};
pub use draft::{PageDraft, StringPlace};
pub use error::PageError;
pub use fence::Fence;
pub use geometry::{
    GeometryError, KEY_HEAD_SIZE_BYTES, KEY_SIZE_BYTES_MAX, PREFIX_INLINE_SIZE_BYTES_MAX,
    PageGeometry, SLOT_COUNT_MAX, VALUE_SIZE_BYTES_MAX,
};
pub use image::{Found, PageImage, Placement, SlotOrder};
pub use moving::Source;
pub use outside::{Outside, Unread};
pub use record::{NewKey, NewRecord, SlotSet, Stored, StoredFence, StoredPrefix, Value};
pub use recovery::Repair;
pub use rewrite::{Merge, Rewrite, plan_merge, plan_rewrite};
pub use split::{InPlace, NotInPlace, Split, SplitPlan, SplitRequest};
pub use words::{Fingerprint, Reference};
