//! One line of a file of records.

use std::fmt;

use crate::quantity::key_of;

/// Characters of a bad line that are shown.
const SHOWN_COUNT_MAX: usize = 40;

/// Of which kind the first line is, and so all must be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub(super) has_value: bool,
    pub(super) first_line: u64,
}

/// Why a line is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LineFault {
    Empty,
    TooLong { size_bytes_max: usize },
    BadNumber { role: &'static str },
    MoreThanTwo,
    ValueMissing { first_line: u64 },
    ValueUnlike { first_line: u64 },
}

impl fmt::Display for LineFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => {
                f.write_str("the line is empty, and a line is a key, or a key and a value")
            }
            Self::TooLong { size_bytes_max } => {
                write!(f, "the line is longer than {size_bytes_max} bytes")
            }
            Self::BadNumber { role } => {
                write!(f, "its {role} is no whole number from 0 to {}", u64::MAX)
            }
            Self::MoreThanTwo => f.write_str("a line is a key, or a key and a value, and no more"),
            Self::ValueMissing { first_line } => {
                write!(f, "it has no value, and line {first_line} has a value")
            }
            Self::ValueUnlike { first_line } => {
                write!(f, "it has a value, and line {first_line} has none")
            }
        }
    }
}

/// Key and value of a line, with or without its line feed.
pub(super) fn parse_line(
    content: &[u8],
    columns: Option<Columns>,
    size_bytes_max: usize,
) -> Result<(u64, Option<u64>), LineFault> {
    if content.len() > size_bytes_max {
        return Err(LineFault::TooLong { size_bytes_max });
    }
    let content = content.trim_ascii();
    if content.is_empty() {
        return Err(LineFault::Empty);
    }
    let (key, value) = split(content);
    let number = |role, digits: &[u8]| key_of(digits).ok_or(LineFault::BadNumber { role });
    let key = number("key", key)?;
    let value = match value {
        Some(value) if value.iter().any(|byte| is_separator(*byte)) => {
            return Err(LineFault::MoreThanTwo);
        }
        Some(value) => Some(number("value", value)?),
        None => None,
    };
    match columns {
        Some(Columns {
            has_value: true,
            first_line,
        }) if value.is_none() => Err(LineFault::ValueMissing { first_line }),
        Some(Columns {
            has_value: false,
            first_line,
        }) if value.is_some() => Err(LineFault::ValueUnlike { first_line }),
        _ => Ok((key, value)),
    }
}

/// What stands before the first separator, and what after it: blanks, or a comma with blanks.
fn split(content: &[u8]) -> (&[u8], Option<&[u8]>) {
    let Some(end) = content.iter().position(|byte| is_separator(*byte)) else {
        return (content, None);
    };
    let (key, rest) = content.split_at(end);
    let rest = rest.trim_ascii_start();
    (
        key,
        Some(rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start()),
    )
}

fn is_separator(byte: u8) -> bool {
    byte == b',' || byte.is_ascii_whitespace()
}

/// A line or a part of one for an error message: quoted, harmless for a terminal, cut when long.
pub(super) fn shown(content: &[u8]) -> String {
    let text = String::from_utf8_lossy(content.trim_ascii());
    let mut shown: String = text
        .chars()
        .take(SHOWN_COUNT_MAX)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().count() > SHOWN_COUNT_MAX {
        shown.push_str("...");
    }
    format!("'{shown}'")
}
