//! Parses a record of byte strings: key, tab, value. A line has escapes (`farleaf::key::text`), is
//! raw, or is hexadecimal.

use farleaf::key::text::{from_hex, unescape};

use super::LineFault;

/// Parses a line with escapes, with or without its line feed.
pub(super) fn parse_escaped(content: &[u8]) -> Result<(Vec<u8>, Vec<u8>), LineFault> {
    let (key, value) = split_text(content)?;
    let read = |role, text| unescape(text).map_err(|error| LineFault::BadText { role, error });
    Ok((read("key", key)?, read("value", value)?))
}

/// Parses a line of hexadecimal digits, with or without its line feed.
pub(super) fn parse_hexadecimal(content: &[u8]) -> Result<(Vec<u8>, Vec<u8>), LineFault> {
    let (key, value) = split_text(content)?;
    let read = |role, text| from_hex(text).map_err(|error| LineFault::BadText { role, error });
    Ok((read("key", key)?, read("value", value)?))
}

/// Parses a raw line, with or without its line feed: the key ends at the first tab, and all bytes
/// after it are the value.
pub(super) fn parse_raw(content: &[u8]) -> Result<(Vec<u8>, Vec<u8>), LineFault> {
    let content = without_line_end(content);
    let tab = content.iter().position(|byte| *byte == b'\t');
    let tab = tab.ok_or(LineFault::NoTab { hint: "" })?;
    Ok((content[..tab].to_vec(), content[tab + 1..].to_vec()))
}

fn without_line_end(content: &[u8]) -> &[u8] {
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    content.strip_suffix(b"\r").unwrap_or(content)
}

fn split_text(content: &[u8]) -> Result<(&str, &str), LineFault> {
    let content = without_line_end(content);
    let text = str::from_utf8(content).map_err(|error| LineFault::NotUtf8 {
        index: error.valid_up_to(),
    })?;
    let Some((key, value)) = text.split_once('\t') else {
        return Err(LineFault::NoTab { hint: hint(text) });
    };
    if value.contains('\t') {
        return Err(LineFault::MoreTabs);
    }
    Ok((key, value))
}

fn hint(text: &str) -> &'static str {
    if text.starts_with('{') {
        "; --format json reads objects"
    } else {
        ""
    }
}
