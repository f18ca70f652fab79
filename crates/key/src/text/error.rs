//! Errors of decoding text to bytes.

use thiserror::Error;

/// Error: a text is not a valid representation of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("character {}: {fault}", .char_index + 1)]
pub struct TextError {
    /// Index of the invalid character, from 0 (the message counts from 1); the number of characters
    /// if one is missing.
    pub char_index: usize,
    /// Reason why the text is invalid there.
    pub fault: TextFault,
}

/// Reason why a text is not a valid representation of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TextFault {
    /// A backslash is followed by a character that is not an escape.
    #[error("unknown escape \\{}; use \\\\, \\n, \\r, \\t or \\xNN", .found.escape_debug())]
    UnknownEscape {
        /// Character behind the backslash.
        found: char,
    },
    /// The text ends within an escape.
    #[error("the text ends within an escape; write a backslash as \\\\")]
    UnfinishedEscape,
    /// A character is not a hexadecimal digit.
    #[error("'{}' is not a hexadecimal digit", .found.escape_debug())]
    NotHex {
        /// Character found.
        found: char,
    },
    /// The number of hexadecimal digits is odd.
    #[error("a digit is missing; write a byte as two hexadecimal digits")]
    HalfByte,
    /// A character is not in the Base64 alphabet, or padding is misplaced.
    #[error("'{}' is not valid Base64 at this position", .found.escape_debug())]
    NotBase64 {
        /// Character found.
        found: char,
    },
    /// Base64 characters or padding are missing at the end.
    #[error("the last group of four Base64 characters, including '=', is incomplete")]
    UnfinishedBase64,
}
