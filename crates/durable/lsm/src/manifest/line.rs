//! An edit as a line of text (MF1): a checksum that follows on the line before, and JSON.

use crc_fast::{CrcAlgorithm, Digest};

use super::state::Change;

/// Digits of two checksums, with a space behind each.
pub(super) const PREFIX_SIZE_BYTES: usize = 18;

/// The sum of a line behind another one.
fn sum(before: u32, json: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&before.to_le_bytes());
    digest.update(json);
    digest.finalize() as u32
}

/// An edit's line, with its end, behind a line that has this sum; and the line's own.
pub(super) fn encode(changes: &[Change], before: u32) -> (Vec<u8>, u32) {
    let json = serde_json::to_string(changes).expect("changes are plain values with string keys");
    encode_json(&json, before)
}

fn encode_json(json: &str, before: u32) -> (Vec<u8>, u32) {
    let sum = sum(before, json.as_bytes());
    let line = format!("{sum:08x} {before:08x} {json}\n");
    (line.into_bytes(), sum)
}

/// Lines of these contents, each behind the one before.
#[cfg(test)]
pub(crate) fn chain(contents: &[String]) -> Vec<u8> {
    let (mut bytes, mut before) = (Vec::new(), 0);
    for json in contents {
        let (line, own) = encode_json(json, before);
        bytes.extend(line);
        before = own;
    }
    bytes
}

/// A line, and what follows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'f> {
    /// It is whole: its JSON, its sum, its size with its end.
    Whole(&'f [u8], u32, usize),
    /// It is not.
    Broken,
}

/// The line that bytes begin with, which are not empty.
pub(super) fn first(bytes: &[u8], before: u32) -> Line<'_> {
    match any(bytes) {
        Some((json, own, follows)) if follows == before => {
            Line::Whole(json, own, PREFIX_SIZE_BYTES + json.len() + 1)
        }
        _ => Line::Broken,
    }
}

/// Whether bytes begin with a line that is whole by itself.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    any(bytes).is_some()
}

/// The JSON of a line that is whole by itself, its sum, and that of the line that it follows.
fn any(bytes: &[u8]) -> Option<(&[u8], u32, u32)> {
    let prefix = bytes.get(..PREFIX_SIZE_BYTES)?;
    if prefix[8] != b' ' || prefix[17] != b' ' {
        return None;
    }
    let follows = str::from_utf8(prefix.get(9..17)?).ok()?;
    let follows = u32::from_str_radix(follows, 16).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let json = bytes.get(PREFIX_SIZE_BYTES..end)?;
    let own = sum(follows, json);
    let right = format!("{own:08x} {follows:08x} ");
    (prefix == right.as_bytes()).then_some((json, own, follows))
}

#[cfg(test)]
mod tests {
    use super::super::search::has_whole_line;
    use super::*;
    use crate::place::LogPosition;

    /// Promise: a line is the one of MF1, and is believed only behind the one that it was written
    /// behind.
    #[test]
    fn a_line_follows_on_another() {
        let changes = [Change::ReadFrom(LogPosition(5))];
        let (line, own) = encode(&changes, 7);
        let json = br#"[{"read_from":5}]"#;
        assert_eq!(
            line,
            format!("{own:08x} 00000007 [{{\"read_from\":5}}]\n").as_bytes()
        );
        let mut file = line.clone();
        file.extend(b"more");
        assert_eq!(first(&file, 7), Line::Whole(json, own, line.len()));
        assert_eq!(first(&file, 8), Line::Broken);
        assert_eq!(first(&line[..line.len() - 1], 7), Line::Broken);
        assert!(!has_whole_line(&line[1..]));
        assert!(has_whole_line(&[b"\x00garbage\n", &line[..]].concat()));
        assert!(has_whole_line(
            &[b"an end that is none", &line[..]].concat()
        ));
        for at in 0..line.len() {
            let mut flipped = line.clone();
            flipped[at] ^= 1;
            assert_eq!(first(&flipped, 7), Line::Broken, "byte {at}");
            assert!(!has_whole_line(&flipped));
        }
    }
}
