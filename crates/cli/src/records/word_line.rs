//! Parses one line of a file of records of words.

use super::LineFault;
use farleaf_bench::quantity::key_of;

/// Maximum size of a line in memory, in bytes: more than two numbers of 20 digits and some blanks.
pub(super) const LINE_SIZE_BYTES_MAX: usize = 256;

/// Columns of the first line, which all lines must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    pub(super) has_value: bool,
    pub(super) first_line: u64,
}

/// Parses key and value of a line, with or without its line feed.
pub(super) fn parse_line(
    content: &[u8],
    columns: Option<Columns>,
) -> Result<(u64, Option<u64>), LineFault> {
    if content.len() > LINE_SIZE_BYTES_MAX {
        let size_bytes_max = LINE_SIZE_BYTES_MAX;
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

/// Returns whether a line is a record of words, and not one of byte strings that happens to have
/// digits. A record of byte strings has a tab between key and value, and keeps all its characters.
pub(super) fn is_plainly_words(content: &[u8]) -> bool {
    let may_be_strings = content.contains(&b'\t');
    parse_line(content, None).is_ok() && (!may_be_strings || refuse_strings(content).is_ok())
}

/// Rejects text that a number would not preserve, in a line that may be one of byte strings.
pub(super) fn refuse_strings(content: &[u8]) -> Result<(), LineFault> {
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    let content = content.strip_suffix(b"\r").unwrap_or(content);
    let Some(end) = content.iter().position(|byte| *byte == b'\t') else {
        return refuse_leading_zeros(content);
    };
    // An empty string is not a number, on either side of the tab.
    let is_kept = |digits: &[u8]| match digits {
        [] | [b'0', _, ..] => false,
        digits => digits.iter().all(u8::is_ascii_digit),
    };
    for (role, digits) in [("key", &content[..end]), ("value", &content[end + 1..])] {
        if !is_kept(digits) {
            return Err(LineFault::NotKept { role });
        }
    }
    Ok(())
}

/// Rejects a key or value that begins with a zero: a number would lose the zero, and no option says
/// that it is a number.
fn refuse_leading_zeros(content: &[u8]) -> Result<(), LineFault> {
    let (key, value) = split(content.trim_ascii());
    for (role, digits) in [("key", key), ("value", value.unwrap_or_default())] {
        if matches!(digits, [b'0', _, ..]) {
            return Err(LineFault::LeadingZero { role });
        }
    }
    Ok(())
}

/// Returns the text before and after the first separator: blanks, or a comma with blanks.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: dumped words are recognized as words. A line with an empty key or value, or with
    /// text that a number would not preserve, is one of byte strings.
    #[test]
    fn empty_strings_are_no_numbers() {
        for words in [
            &b"1\t2\n"[..],
            b"0\t0",
            b"7\n",
            b"18446744073709551615\t1\r\n",
        ] {
            assert!(is_plainly_words(words), "{}", words.escape_ascii());
        }
        for bytes in [
            &b"1\t\n"[..],
            b"\t5\n",
            b"\t",
            b"01\t2",
            b"1\t2 ",
            b" 1\t2",
            b"a\t1",
        ] {
            assert!(!is_plainly_words(bytes), "{}", bytes.escape_ascii());
        }
    }
}
