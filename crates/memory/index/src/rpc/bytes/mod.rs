//! Requests and replies for tables of byte strings, and their encoding.
//!
//! | module | contents |
//! |---|---|
//! | [`request`] | encoding of requests |
//! | [`reply`] | encoding of replies |
//! | [`packing`] | selection of the results that fit into a reply |
//!
//! A message has at most [`MESSAGE_SIZE_BYTES_MAX`] bytes, and values have up to 64 MiB. A value
//! that is too long for a request is first *staged*, part by part, under a number that the session
//! assigns; the request then names the number.
//!
//! If a value is too long for a reply, the reply has its beginning. The node keeps the value under
//! the number in the request until the session has read the rest or discards it. It keeps the value
//! as found, even if the key changes, so parts of two values are never mixed.
//!
//! Numbers ascend, and each request names the session's lowest open number. The node drops
//! everything below it, so abandoned values are freed without being named.

pub mod packing;
pub mod reply;
pub mod request;

#[cfg(test)]
mod fuzz;

use farleaf_base::limits::KEY_SIZE_BYTES_MAX;

pub use packing::Packing;
pub use reply::{ByteReply, FoundValue};
pub use request::{
    ByteChange, ByteCondition, ByteRange, ByteRequest, ReplyCapacity, RequestHead, SentValue,
};

/// Size of the longest bound of a range, in bytes: the string directly after the longest key.
pub const BOUND_SIZE_BYTES_MAX: usize = KEY_SIZE_BYTES_MAX + 1;
/// Size of the longest request, and of the longest reply that can be requested, in bytes. Either
/// takes less than half a ring of 32 KiB, so the node never has to keep a part until it is fetched.
pub const MESSAGE_SIZE_BYTES_MAX: usize = 15_000;
/// Largest size of the strings in one request, with their size words. The rest of a message is for
/// the words before them.
pub const PART_SIZE_BYTES: usize = 14 << 10;

const _: () = assert!(PART_SIZE_BYTES + 8 * 16 <= MESSAGE_SIZE_BYTES_MAX);
// A key and two values, or two bounds, always fit into a request.
const _: () = assert!(3 * (BOUND_SIZE_BYTES_MAX + 15) <= PART_SIZE_BYTES);

/// Returns the bytes of a string in a message: a word with its size, and whole words.
pub const fn string_size_bytes(size_bytes: usize) -> usize {
    8 + size_bytes.next_multiple_of(8)
}
