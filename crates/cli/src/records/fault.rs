//! Reasons why a line is not a valid record.

use farleaf::key::text::TextError;
use farleaf::key::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};
use thiserror::Error;

/// Reason why a line is not a valid record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum LineFault {
    #[error("the line is empty, and a line is a key, or a key and a value")]
    Empty,
    #[error("the line is longer than {size_bytes_max} bytes")]
    TooLong { size_bytes_max: usize },
    #[error("its {role} is no whole number from 0 to {}", u64::MAX)]
    BadNumber { role: &'static str },
    #[error(
        "its {role} begins with a zero or has blanks, which a number does not keep; use --kind words to \
         load numbers, or --kind bytes to load strings"
    )]
    NotKept { role: &'static str },
    #[error(
        "its {role} begins with a zero, which a number does not keep; use --kind words to load it \
             as a number"
    )]
    LeadingZero { role: &'static str },
    #[error("a line is a key, or a key and a value, and no more")]
    MoreThanTwo,
    #[error("it has no value, and line {first_line} has a value")]
    ValueMissing { first_line: u64 },
    #[error("it has a value, and line {first_line} has none")]
    ValueUnlike { first_line: u64 },
    #[error("there is no tab in it, and a line is a key, a tab and a value{hint}")]
    NoTab { hint: &'static str },
    #[error("there is more than one tab in it; a tab in a key or in a value is written \\t")]
    MoreTabs,
    #[error("byte {} of it is no UTF-8; a byte that is no text is written \\xNN", .index + 1)]
    NotUtf8 { index: usize },
    #[error("byte {} of it is no UTF-8; what is no text goes into key_hex or value_hex", .index + 1)]
    JsonNotUtf8 { index: usize },
    #[error("its {role} stands for no bytes: {error}")]
    BadText {
        role: &'static str,
        error: TextError,
    },
    #[error("it is no object with a key and a value: {0}")]
    BadJson(String),
    #[error("it has neither {0} nor {0}_hex")]
    NeitherField(&'static str),
    #[error("it has both {0} and {0}_hex; take one out")]
    BothFields(&'static str),
    #[error("its key has {size_bytes} bytes, and a key can have {KEY_SIZE_BYTES_MAX} at the most")]
    KeyTooLong { size_bytes: usize },
    #[error(
        "its value has {size_bytes} bytes, and a value can have {VALUE_SIZE_BYTES_MAX} (64 MiB) at \
         the most"
    )]
    ValueTooLong { size_bytes: usize },
}
