//! A record of byte strings as a line: key, tab, value, with escapes (`farleaf::key::text`).

use farleaf::key::text::unescape;

use super::LineFault;

/// Key and value of a line, with or without its line feed.
pub(super) fn parse_line(content: &[u8]) -> Result<(Vec<u8>, Vec<u8>), LineFault> {
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    let content = content.strip_suffix(b"\r").unwrap_or(content);
    let text = str::from_utf8(content).map_err(|error| LineFault::NotUtf8 {
        index: error.valid_up_to(),
    })?;
    let Some((key, value)) = text.split_once('\t') else {
        return Err(LineFault::NoTab { hint: hint(text) });
    };
    if value.contains('\t') {
        return Err(LineFault::MoreTabs);
    }
    let read = |role, text| unescape(text).map_err(|error| LineFault::BadText { role, error });
    Ok((read("key", key)?, read("value", value)?))
}

fn hint(text: &str) -> &'static str {
    if text.starts_with('{') {
        "; --format json reads objects"
    } else {
        ""
    }
}
