//! Base64 with the standard alphabet and padding (RFC 4648, section 4), as JSON needs it.

use ::base64::engine::general_purpose::STANDARD;
use ::base64::{DecodeError, Engine as _};

use super::error::{TextError, TextFault};

/// Encodes each three bytes as four characters, padded with `=`.
///
/// ```
/// # use farleaf_key::text::to_base64;
/// assert_eq!(to_base64(b"\xff\xfe"), "//4=");
/// ```
pub fn to_base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes text that [`to_base64`] wrote. Rejects other spellings: without padding, with line
/// breaks, or with unused bits set in the last character.
///
/// ```
/// # use farleaf_key::text::from_base64;
/// assert_eq!(from_base64("//4=")?, b"\xff\xfe");
/// assert_eq!(from_base64("//_=").unwrap_err().char_index, 2);
/// # Ok::<(), farleaf_key::text::TextError>(())
/// ```
///
/// # Errors
///
/// [`TextFault::NotBase64`] and [`TextFault::UnfinishedBase64`].
pub fn from_base64(text: &str) -> Result<Vec<u8>, TextError> {
    STANDARD.decode(text).map_err(|error| match error {
        DecodeError::InvalidByte(byte_index, _)
        | DecodeError::InvalidLastSymbol {
            offset: byte_index, ..
        } => not_base64(text, byte_index),
        DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => unfinished(text),
    })
}

fn not_base64(text: &str, byte_index: usize) -> TextError {
    let mut chars = text.char_indices().enumerate();
    let culprit = chars.find(|(_, (start, it))| byte_index < start + it.len_utf8());
    match culprit {
        Some((char_index, (_, found))) => TextError {
            char_index,
            fault: TextFault::NotBase64 { found },
        },
        None => unfinished(text),
    }
}

fn unfinished(text: &str) -> TextError {
    TextError {
        char_index: text.chars().count(),
        fault: TextFault::UnfinishedBase64,
    }
}
