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
    #[error("no escape is called \\{}; there are \\\\, \\n, \\r, \\t and \\xNN", .found.escape_debug())]
    UnknownEscape {
        /// Character behind the backslash.
        found: char,
    },
    /// The text ends within an escape.
    #[error("the text ends within an escape; a backslash itself is \\\\")]
    UnfinishedEscape,
    /// A character is not a hexadecimal digit.
    #[error("'{}' is no hexadecimal digit", .found.escape_debug())]
    NotHex {
        /// Character found.
        found: char,
    },
    /// The number of hexadecimal digits is odd.
    #[error("a digit is missing: a byte is two hexadecimal digits")]
    HalfByte,
    /// A character is not in the Base64 alphabet, or padding is misplaced.
    #[error("'{}' cannot stand here in Base64", .found.escape_debug())]
    NotBase64 {
        /// Character found.
        found: char,
    },
    /// Base64 characters or padding are missing at the end.
    #[error("Base64 comes in groups of four characters, '=' included; the last is not whole")]
    UnfinishedBase64,
}
