//! Hexadecimal digits, two for a byte.

use super::error::{TextError, TextFault};

const DIGITS: [u8; 16] = *b"0123456789abcdef";

/// Returns the two digits of a byte, in lower case.
pub(super) fn digits(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 0xf].map(|it| char::from(DIGITS[usize::from(it)]))
}

/// Returns the value of a digit in lower or upper case.
pub(super) fn digit_value(char_index: usize, found: char) -> Result<u8, TextError> {
    match found.to_digit(16) {
        Some(value) => Ok(value as u8),
        None => Err(TextError {
            char_index,
            fault: TextFault::NotHex { found },
        }),
    }
}

/// Formats each byte as two digits in lower case.
///
/// ```
/// # use farleaf_key::text::to_hex;
/// assert_eq!(to_hex(b"\x00\xffA"), "00ff41");
/// ```
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().copied().flat_map(digits).collect()
}

/// Decodes pairs of digits in lower or upper case, with nothing between them.
///
/// ```
/// # use farleaf_key::text::from_hex;
/// assert_eq!(from_hex("00ff41")?, b"\x00\xffA");
/// assert_eq!(from_hex("00 ff").unwrap_err().char_index, 2);
/// # Ok::<(), farleaf_key::text::TextError>(())
/// ```
///
/// # Errors
///
/// [`TextFault::NotHex`] and [`TextFault::HalfByte`].
pub fn from_hex(text: &str) -> Result<Vec<u8>, TextError> {
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut chars = text.chars().enumerate();
    while let Some((char_index, high)) = chars.next() {
        let high = digit_value(char_index, high)?;
        let Some((low_index, low)) = chars.next() else {
            return Err(TextError {
                char_index: char_index + 1,
                fault: TextFault::HalfByte,
            });
        };
        bytes.push(high << 4 | digit_value(low_index, low)?);
    }
    Ok(bytes)
}
