//! Byte strings as text, for people: with escapes, in hex and in Base64.
//!
//! Each of the three is exact: reading what was written gives the same bytes. What cannot be read
//! is a [`TextError`] that says at which character.

mod base64;
mod error;
mod escape;
mod hex;

pub use base64::{from_base64, to_base64};
pub use error::{TextError, TextFault};
pub use escape::{Escaped, escape, unescape};
pub use hex::{from_hex, to_hex};
