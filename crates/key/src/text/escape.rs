//! Byte strings as text that can be read and typed, with escapes for the rest.
//!
//! Printable characters stand for themselves, those that are not ASCII for their bytes in UTF-8.
//! The escapes are `\\`, `\n`, `\r`, `\t`, and `\xNN` for any byte. So what is shown has no line
//! break and no tab, can be put between such, and can do nothing to a terminal.

use std::fmt::{self, Display, Write as _};
use std::iter::once;

use super::error::{TextError, TextFault};
use super::hex::{digit_value, digits};

/// Shows a byte string with escapes, without a `String` between.
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

/// Whether it was shown as itself.
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

/// Whether a character can be seen: what the standard library shows as itself. Combining
/// characters can be where there is one before them to combine with.
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

/// A byte string as text, so that [`unescape`] gives it back.
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

/// The bytes that a text stands for.
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
