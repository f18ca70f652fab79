//! Byte strings as text that can be read and typed, with escapes for other bytes.
//!
//! Printable characters represent themselves; non-ASCII characters represent their UTF-8 bytes. The
//! escapes are `\\`, `\n`, `\r`, `\t`, and `\xNN` for any byte. So the text contains no line
//! breaks, tabs or control characters that affect a terminal.

use std::fmt::{self, Display, Write as _};
use std::iter::once;

use super::error::{TextError, TextFault};
use super::hex::{digit_value, digits};

/// Displays a byte string with escapes, without allocating a `String`.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a [u8]);

impl Display for Escaped<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_behind_shown = false;
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                is_behind_shown = write_char(formatter, character, is_behind_shown)?;
            }
            for byte in chunk.invalid() {
                write_byte(formatter, *byte)?;
                is_behind_shown = false;
            }
        }
        Ok(())
    }
}

/// Writes a character; returns whether it was written unescaped.
fn write_char(
    formatter: &mut fmt::Formatter<'_>,
    character: char,
    is_behind_shown: bool,
) -> Result<bool, fmt::Error> {
    match character {
        '\\' => formatter.write_str("\\\\")?,
        '\n' => formatter.write_str("\\n")?,
        '\r' => formatter.write_str("\\r")?,
        '\t' => formatter.write_str("\\t")?,
        _ if is_printable(character, is_behind_shown) => {
            formatter.write_char(character)?;
            return Ok(true);
        }
        _ => {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                write_byte(formatter, byte)?;
            }
        }
    }
    Ok(false)
}

fn write_byte(formatter: &mut fmt::Formatter<'_>, byte: u8) -> fmt::Result {
    let [high, low] = digits(byte);
    write!(formatter, "\\x{high}{low}")
}

/// Returns whether a character is visible, as the standard library defines it. A combining
/// character counts only behind a character that it can combine with.
fn is_printable(character: char, is_behind_shown: bool) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    if !is_behind_shown {
        return character.escape_debug().eq(once(character));
    }
    let mut pair = [b'a'; 5];
    let size_bytes = 1 + character.encode_utf8(&mut pair[1..]).len();
    str::from_utf8(&pair[..size_bytes]).is_ok_and(|pair| pair.escape_debug().eq(['a', character]))
}

/// Formats a byte string as text that [`unescape`] converts back.
///
/// ```
/// # use farleaf_key::text::escape;
/// assert_eq!(escape(b"user:1"), "user:1");
/// assert_eq!(escape("caf\u{e9} \\ \n".as_bytes()), r"café \\ \n");
/// assert_eq!(escape(b"\x00\xff"), r"\x00\xff");
/// ```
pub fn escape(bytes: &[u8]) -> String {
    Escaped(bytes).to_string()
}

/// Converts escaped text to the bytes that it represents.
///
/// ```
/// # use farleaf_key::text::{TextFault, unescape};
/// assert_eq!(unescape(r"a\x00\n\\")?, b"a\x00\n\\");
/// let error = unescape(r"C:\data").unwrap_err();
/// assert_eq!(error.char_index, 3);
/// assert_eq!(error.fault, TextFault::UnknownEscape { found: 'd' });
/// # Ok::<(), farleaf_key::text::TextError>(())
/// ```
///
/// # Errors
///
/// [`TextFault::UnknownEscape`], [`TextFault::UnfinishedEscape`], and [`TextFault::NotHex`] behind
/// `\x`.
pub fn unescape(text: &str) -> Result<Vec<u8>, TextError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut chars = text.chars().enumerate();
    while let Some((char_index, character)) = chars.next() {
        if character != '\\' {
            bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        let mut following = |behind_count| {
            chars.next().ok_or(TextError {
                char_index: char_index + behind_count,
                fault: TextFault::UnfinishedEscape,
            })
        };
        let (name_index, name) = following(1)?;
        bytes.push(match name {
            '\\' => b'\\',
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'x' => {
                let (high_index, high) = following(2)?;
                let high = digit_value(high_index, high)?;
                let (low_index, low) = following(3)?;
                high << 4 | digit_value(low_index, low)?
            }
            found => {
                let fault = TextFault::UnknownEscape { found };
                let char_index = name_index;
                return Err(TextError { char_index, fault });
            }
        });
    }
    Ok(bytes)
}
