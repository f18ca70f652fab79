//! Parses a record in JSON: `{"key":...,"value":...}`.
//!
//! Keys and values of words are numbers. Those of bytes are strings, or hexadecimal as `key_hex`
//! and `value_hex`, because a string in JSON cannot hold invalid UTF-8.

use farleaf::key::text::from_hex;
use serde::Deserialize;

use super::LineFault;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WordObject {
    key: u64,
    value: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StringObject {
    key: Option<String>,
    key_hex: Option<String>,
    value: Option<String>,
    value_hex: Option<String>,
}

/// Parses key and value of a record of words.
pub(super) fn parse_words(content: &[u8]) -> Result<(u64, u64), LineFault> {
    // An unclosed string should be reported as ending with the line, not as containing a line feed.
    let content = content.trim_ascii_end();
    check_object(content)?;
    let WordObject { key, value } = serde_json::from_slice(content).map_err(|it| bad_json(&it))?;
    Ok((key, value))
}

/// Parses key and value of a record of byte strings.
pub(super) fn parse_strings(content: &[u8]) -> Result<(Vec<u8>, Vec<u8>), LineFault> {
    let text = str::from_utf8(content).map_err(|error| LineFault::JsonNotUtf8 {
        index: error.valid_up_to(),
    })?;
    let text = text.trim_end_matches(['\r', '\n']);
    check_object(text.as_bytes())?;
    let object: StringObject = serde_json::from_str(text).map_err(|it| bad_json(&it))?;
    let key = bytes_of(["key", "key_hex"], object.key, object.key_hex)?;
    let value = bytes_of(["value", "value_hex"], object.value, object.value_hex)?;
    Ok((key, value))
}

fn bytes_of(
    [name, hex_name]: [&'static str; 2],
    text: Option<String>,
    hex: Option<String>,
) -> Result<Vec<u8>, LineFault> {
    match (text, hex) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(hex)) => from_hex(&hex).map_err(|error| LineFault::BadText {
            role: hex_name,
            error,
        }),
        (None, None) => Err(LineFault::NeitherField(name)),
        (Some(_), Some(_)) => Err(LineFault::BothFields(name)),
    }
}

/// Rejects arrays, which serde would accept as fields in order.
fn check_object(content: &[u8]) -> Result<(), LineFault> {
    match content.trim_ascii_start().first() {
        Some(b'[') => Err(LineFault::BadJson("it is an array".to_owned())),
        _ => Ok(()),
    }
}

/// Formats the error without its line number, which is always 1 and not that of the file.
fn bad_json(error: &serde_json::Error) -> LineFault {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    LineFault::BadJson(match text.strip_suffix(&place) {
        Some(what) => format!("{what}, at byte {}", error.column()),
        None => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: fields are named: an array is not a record of either kind.
    #[test]
    fn arrays_are_no_records() {
        for array in [
            &b"[1,2]\n"[..],
            b" [\"a\",null,\"1\",null]",
            b"[\"a\",\"b\"]",
        ] {
            for error in [
                parse_words(array).map(drop).expect_err("no record"),
                parse_strings(array).map(drop).expect_err("no record"),
            ] {
                let text = error.to_string();
                assert!(text.contains("it is an array"), "{text}");
            }
        }
        let object = b"{\"key\":7,\"value\":8}\n";
        assert_eq!(parse_words(object).expect("a record"), (7, 8));
    }
}
