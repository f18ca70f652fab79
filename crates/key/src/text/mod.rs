//! Byte strings as readable text: escaped, hexadecimal or Base64.
//!
//! All three conversions are exact: decoding encoded text returns the same bytes. Text that cannot
//! be decoded returns a [`TextError`] that names the character.

mod base64;
mod error;
mod escape;
mod hex;

pub use base64::{from_base64, to_base64};
pub use error::{TextError, TextFault};
pub use escape::{Escaped, escape, unescape};
pub use hex::{from_hex, to_hex};
