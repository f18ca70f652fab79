//! What can be wrong with text that stands for bytes.

use thiserror::Error;

/// A text stands for no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("character {}: {fault}", .char_index + 1)]
pub struct TextError {
    /// Which character it is, counted from 0 (the message counts from 1, as people do); the number
    /// of characters, if it is one that is missing.
    pub char_index: usize,
    /// What is wrong there.
    pub fault: TextFault,
}

/// Why a text stands for no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TextFault {
    /// A backslash and a character that means nothing behind one.
    #[error("no escape is called \\{}; there are \\\\, \\n, \\r, \\t and \\xNN", .found.escape_debug())]
    UnknownEscape {
        /// What stands behind the backslash.
        found: char,
    },
    /// The text ends within an escape.
    #[error("the text ends within an escape; a backslash itself is \\\\")]
    UnfinishedEscape,
    /// Not a digit of a hexadecimal number.
    #[error("'{}' is no hexadecimal digit", .found.escape_debug())]
    NotHex {
        /// What stands there.
        found: char,
    },
    /// An odd number of digits.
    #[error("a digit is missing: a byte is two hexadecimal digits")]
    HalfByte,
    /// Not a character of Base64, or padding where there is none.
    #[error("'{}' cannot stand here in Base64", .found.escape_debug())]
    NotBase64 {
        /// What stands there.
        found: char,
    },
    /// Characters or padding of Base64 are missing at the end.
    #[error("Base64 comes in groups of four characters, '=' included; the last is not whole")]
    UnfinishedBase64,
}
