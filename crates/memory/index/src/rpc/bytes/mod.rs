//! The same of tables of byte strings: what a client asks, and what it is answered, as bytes.
//!
//! | module | what it holds |
//! |---|---|
//! | [`request`] | requests as bytes |
//! | [`reply`] | replies as bytes |
//! | [`packing`] | how much of what was found goes into a reply |
//!
//! A message has [`MESSAGE_SIZE_BYTES_MAX`] bytes at the most, and values have up to 64 MiB. A
//! value that is too long for a request is *staged* before, part by part, under a number that the
//! session gives it; the request then names the number. Of a value that is too long for a reply
//! the beginning comes, and the node holds it under the number that the request has brought, until
//! the session has read the rest or has it forgotten. What the node holds is the value that was
//! found, whatever the key's value is by then: so parts of two values are never put together.
//! Numbers ascend, and each request says which is the lowest one that the session has open: so
//! what was given up goes, though nobody names it.

pub mod packing;
pub mod reply;
pub mod request;

#[cfg(test)]
mod fuzz;

pub use packing::Packing;
pub use reply::{ByteReply, Found};
pub use request::{
    ByteChange, ByteCondition, ByteRange, ByteRequest, ReplyRoom, RequestHead, Sent,
};

/// The longest key, in bytes.
pub const KEY_SIZE_BYTES_MAX: usize = 4096;
/// The longest string that a range begins or ends at: right behind the longest key.
pub const BOUND_SIZE_BYTES_MAX: usize = KEY_SIZE_BYTES_MAX + 1;
/// The longest value, in bytes.
pub const VALUE_SIZE_BYTES_MAX: usize = 64 << 20;
/// The longest request, and the longest reply that can be asked for: either takes less than half a
/// ring of 32 KiB, so nothing has to be kept until it is fetched.
pub const MESSAGE_SIZE_BYTES_MAX: usize = 15_000;
/// Bytes of strings that one request brings, with the words that say how long they are. What is
/// left of a message is for the words before them.
pub const PART_SIZE_BYTES: usize = 14 << 10;

const _: () = assert!(PART_SIZE_BYTES + 8 * 16 <= MESSAGE_SIZE_BYTES_MAX);
// A key and two values, or two bounds, are far from filling a request.
const _: () = assert!(3 * (BOUND_SIZE_BYTES_MAX + 15) <= PART_SIZE_BYTES);

/// Bytes that a string takes in a message: a word with its size, and whole words.
pub const fn string_size_bytes(size_bytes: usize) -> usize {
    8 + size_bytes.next_multiple_of(8)
}
