//! Search for a line with a valid checksum at any byte, in linear time.
//!
//! A line can begin at any byte, and it ends at the next line feed. A malicious manifest could have
//! many beginnings before one end, and computing a checksum for each would take quadratic time.
//!
//! CRCs are linear: `raw(s, b) = raw(0, b) ^ s * x^(8 |b|)`. `raw` is CRC-32C without the initial
//! and final inversions, and the product is one of polynomials. Let `C(i)` be `raw(0, ..)` of
//! everything before `i`. Then `raw(s, b[q..end]) = C(end) ^ (s ^ C(q)) * x^(8 (end - q))`: one
//! product for each beginning.

use super::line::{PREFIX_SIZE_BYTES, is_whole};

/// Polynomial of CRC-32C; the lowest bit is the highest power.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial `x^0`.
const ONE: u32 = 1 << 31;
/// Table of `raw(0, ..)` for each single byte.
const STEPS: [u32; 256] = steps();

/// Multiplies by `x`, without branches: they would be unpredictable.
const fn times_x(value: u32) -> u32 {
    (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg())
}

const fn steps() -> [u32; 256] {
    let mut steps = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = times_x(value);
            bit += 1;
        }
        steps[byte] = value;
        byte += 1;
    }
    steps
}

/// Extends `raw` by one byte.
fn step(sum: u32, byte: u8) -> u32 {
    let [low, ..] = sum.to_le_bytes();
    (sum >> 8) ^ STEPS[usize::from(low ^ byte)]
}

fn times(value: u32, mut other: u32) -> u32 {
    let mut product = 0;
    for power in (0..u32::BITS).rev() {
        product ^= other & (value >> power & 1).wrapping_neg();
        other = times_x(other);
    }
    product
}

/// Possible beginning of a line, found by the checksums before its JSON.
struct LineCandidate {
    /// Offset of the JSON.
    json: usize,
    /// `raw` of everything before the JSON, from the end of the previous line.
    sum: u32,
    /// Expected checksum of the line. `follows` is that of the previous line.
    own: u32,
    follows: u32,
}

/// Returns true if a line with a valid checksum begins anywhere in the bytes.
///
/// Such a line was written only after everything before it was in force. The search does not only
/// start behind line feeds, since a line feed can be corrupted, too.
pub(super) fn has_whole_line(bytes: &[u8]) -> bool {
    let mut from = 0;
    let mut beginnings = Vec::new();
    while let Some(size_bytes) = bytes[from..].iter().position(|byte| *byte == b'\n') {
        let line = &bytes[from..from + size_bytes];
        beginnings.clear();
        let whole = sum_up(line, &mut beginnings);
        let is_line = |json: usize| is_whole(&bytes[from + json - PREFIX_SIZE_BYTES..]);
        if ends_right(line.len(), whole, &beginnings).any(is_line) {
            return true;
        }
        from += size_bytes + 1;
    }
    false
}

/// Computes `raw` of a whole line, and collects all possible beginnings in it.
fn sum_up(line: &[u8], beginnings: &mut Vec<LineCandidate>) -> u32 {
    let mut sum = 0;
    for json in 0..=line.len() {
        let prefix = json.checked_sub(PREFIX_SIZE_BYTES);
        if let Some((own, follows)) = prefix.and_then(|from| sums_of(&line[from..json])) {
            beginnings.push(LineCandidate {
                json,
                sum,
                own,
                follows,
            });
        }
        if let Some(byte) = line.get(json) {
            sum = step(sum, *byte);
        }
    }
    sum
}

/// Returns the offsets of the JSON for those beginnings whose checksum is right.
fn ends_right(end: usize, whole: u32, beginnings: &[LineCandidate]) -> impl Iterator<Item = usize> {
    // From last to first, so that each power is computed from the previous one.
    let (mut power, mut at) = (ONE, end);
    beginnings.iter().rev().filter_map(move |it| {
        while at > it.json {
            power = step(power, 0);
            at -= 1;
        }
        let before = it.follows.to_le_bytes().into_iter().fold(!0, step);
        let sum = !(whole ^ times(before ^ it.sum, power));
        (sum == it.own).then_some(it.json)
    })
}

/// Decodes the two checksums at the start of a line.
fn sums_of(prefix: &[u8]) -> Option<(u32, u32)> {
    let [own @ .., b' ', _, _, _, _, _, _, _, _, b' '] = prefix else {
        return None;
    };
    Some((
        digits(own)?,
        digits(&prefix[own.len() + 1..prefix.len() - 1])?,
    ))
}

fn digits(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u32::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::line::chain;
    use super::*;
    use crate::tree::random_numbers;

    /// Reference implementation: tries every byte.
    fn has_one_by_looking_at_each(bytes: &[u8]) -> bool {
        (0..bytes.len()).any(|at| is_whole(&bytes[at..]))
    }

    /// Promise: the search finds exactly what trying every byte finds, whatever is corrupted.
    #[test]
    fn it_finds_what_looking_at_each_byte_finds() {
        let contents = ["[]", "", "[{\"read_from\":5}]", "[\"00000000 00000000 \"]"];
        let contents = contents.map(str::to_owned);
        let whole = chain(&contents);
        let mut counts = [0, 0];
        let mut numbers = random_numbers(3);
        for _ in 0..3_000 {
            let mut bytes = whole.clone();
            let mut next = |end: usize| numbers.next().expect("endless") as usize % end;
            for _ in 0..=next(8) {
                let at = next(bytes.len());
                match next(4) {
                    0 => bytes[at] ^= 1 << next(8),
                    1 => bytes.truncate(at + 1),
                    2 => drop(bytes.drain(..at)),
                    _ => bytes.extend(whole[at % whole.len()..].to_vec()),
                }
            }
            let expected = has_one_by_looking_at_each(&bytes);
            assert_eq!(has_whole_line(&bytes), expected, "{bytes:?}");
            counts[usize::from(expected)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 200), "{counts:?}");
    }

    /// Promise: reading a malicious manifest of 16 MiB takes less than a second, with a valid line
    /// at its end or without.
    #[test]
    fn no_manifest_is_slow() {
        for size_bytes in [9, 19] {
            let mut bytes = b"00000000 00000000 [".repeat(2)[..size_bytes].to_vec();
            bytes = bytes.repeat((16 << 20) / size_bytes);
            bytes.push(b'\n');
            // Several tries, since other processes use the machine, too.
            let is_fast = (0..5).any(|_| {
                let start = Instant::now();
                assert!(!has_whole_line(&bytes));
                start.elapsed() < Duration::from_secs(1)
            });
            assert!(is_fast, "{size_bytes}");
            bytes.pop();
            bytes.extend(chain(&["[]".to_owned()]));
            assert!(has_whole_line(&bytes));
        }
    }
}
