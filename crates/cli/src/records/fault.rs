//! Reasons why a line is not a valid record.

use farleaf::key::text::TextError;
use farleaf::key::{KEY_SIZE_BYTES_MAX, VALUE_SIZE_BYTES_MAX};
use thiserror::Error;

/// Reason why a line is not a valid record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum LineFault {
    #[error("expected a key, or a key and a value, found an empty line")]
    Empty,
    #[error("the line is longer than the maximum of {size_bytes_max} bytes")]
    TooLong { size_bytes_max: usize },
    #[error("expected a whole number from 0 to {} as {role}", u64::MAX)]
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
    #[error("expected a key, or a key and a value, found more")]
    MoreThanTwo,
    #[error("the value is missing, but line {first_line} has a value")]
    ValueMissing { first_line: u64 },
    #[error("it has a value, but line {first_line} has none")]
    ValueUnlike { first_line: u64 },
    #[error("expected a key, a tab and a value, found no tab{hint}")]
    NoTab { hint: &'static str },
    #[error("found more than one tab; write a tab in a key or value as \\t")]
    MoreTabs,
    #[error("invalid UTF-8 at byte {}; write raw bytes as \\xNN", .index + 1)]
    NotUtf8 { index: usize },
    #[error("invalid UTF-8 at byte {}; use key_hex or value_hex for raw bytes", .index + 1)]
    JsonNotUtf8 { index: usize },
    #[error("invalid {role}: {error}")]
    BadText {
        role: &'static str,
        error: TextError,
    },
    #[error("expected an object with a key and a value: {0}")]
    BadJson(String),
    #[error("missing {0} or {0}_hex")]
    NeitherField(&'static str),
    #[error("it has both {0} and {0}_hex; remove one")]
    BothFields(&'static str),
    #[error("the key has {size_bytes} bytes, more than the maximum of {KEY_SIZE_BYTES_MAX}")]
    KeyTooLong { size_bytes: usize },
    #[error(
        "the value has {size_bytes} bytes, more than the maximum of {VALUE_SIZE_BYTES_MAX} (64 MiB)"
    )]
    ValueTooLong { size_bytes: usize },
}
