//! Encoding of an edit as a line of text: its checksum, that of the previous line, and JSON.

use crc_fast::{CrcAlgorithm, Digest};

use super::state::Change;

/// Size in bytes of two checksums' digits, with a space behind each.
pub(super) const PREFIX_SIZE_BYTES: usize = 18;

/// Computes the checksum of a line, from that of the previous line and its own JSON.
fn sum(before: u32, json: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&before.to_le_bytes());
    digest.update(json);
    digest.finalize() as u32
}

/// Encodes an edit as a line with its end, from the checksum of the previous line; returns its own
/// checksum, too.
pub(super) fn encode(changes: &[Change], before: u32) -> (Vec<u8>, u32) {
    let json = serde_json::to_string(changes).expect("changes are plain values with string keys");
    encode_json(&json, before)
}

fn encode_json(json: &str, before: u32) -> (Vec<u8>, u32) {
    let sum = sum(before, json.as_bytes());
    let line = format!("{sum:08x} {before:08x} {json}\n");
    (line.into_bytes(), sum)
}

/// Encodes lines with these contents, each chained to the previous one.
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

/// Decoded line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecodedLine<'f> {
    /// Valid line: its JSON, its checksum, and its size in bytes including its end.
    Whole(&'f [u8], u32, usize),
    /// Invalid line.
    Broken,
}

/// Decodes the line at the start of bytes that are not empty.
pub(super) fn first(bytes: &[u8], before: u32) -> DecodedLine<'_> {
    match any(bytes) {
        Some((json, own, follows)) if follows == before => {
            DecodedLine::Whole(json, own, PREFIX_SIZE_BYTES + json.len() + 1)
        }
        _ => DecodedLine::Broken,
    }
}

/// Returns true if bytes begin with a line whose own checksum is right, whatever line it follows.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    any(bytes).is_some()
}

/// Decodes a line whose own checksum is right: its JSON, its checksum, and that of the previous
/// line.
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

    /// Promise: a line has exactly these bytes, and is valid only behind the line after which it
    /// was written.
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
        assert_eq!(first(&file, 7), DecodedLine::Whole(json, own, line.len()));
        assert_eq!(first(&file, 8), DecodedLine::Broken);
        assert_eq!(first(&line[..line.len() - 1], 7), DecodedLine::Broken);
        assert!(!has_whole_line(&line[1..]));
        assert!(has_whole_line(&[b"\x00garbage\n", &line[..]].concat()));
        assert!(has_whole_line(
            &[b"an end that is none", &line[..]].concat()
        ));
        for at in 0..line.len() {
            let mut flipped = line.clone();
            flipped[at] ^= 1;
            assert_eq!(first(&flipped, 7), DecodedLine::Broken, "byte {at}");
            assert!(!has_whole_line(&flipped));
        }
    }
}
