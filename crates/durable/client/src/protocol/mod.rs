//! What clients ask of region servers, and what those answer, as bytes (KQ1 to KQ5 of
//! `docs/persistent-tables.md`).
//!
//! | module | what it holds |
//! |---|---|
//! | `codec` | numbers and strings, written and read |
//! | [`request`] | requests |
//! | [`reply`] | replies |

mod codec;
pub mod reply;
pub mod request;

pub use codec::Malformed;
pub use reply::{Reply, Status};
pub use request::{Body, Condition, Header, Request};

/// The first byte of requests of clients: others on the same connection have others.
pub const TAG: u8 = b'K';

/// The version of all that is said here.
pub const VERSION: u8 = 2;

/// A key may have so many bytes.
pub const KEY_SIZE_BYTES_MAX: usize = 4096;

/// A value may have so many bytes.
pub const VALUE_SIZE_BYTES_MAX: usize = 64 << 20;

/// A request may have so many bytes: one record of the largest value, and others beside it.
pub const REQUEST_SIZE_BYTES_MAX: usize = VALUE_SIZE_BYTES_MAX + (1 << 20);

/// A reply has no more records when it has so many bytes, and one record at least.
pub const REPLY_SIZE_BYTES_SOFT_MAX: usize = 4 << 20;

/// One request names so many keys or records at the most.
pub const COUNT_MAX: u32 = 1 << 16;
