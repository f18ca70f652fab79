//! A backup's receipt for what it wrote of a log segment, as words of its memory (REPLICATION-15).

use farleaf_lsm::follow::SegmentSum;
use farleaf_lsm::place::{LogNumber, SEGMENT_SIZE_BYTES};
use farleaf_lsm::written::WrittenSum;

/// Number of words of a receipt: number of the segment, its end in the backup's view, length and
/// checksum of the written bytes, and a checksum of these four.
///
/// A READ that races with a WRITE returns any mix of old and new words (FABRIC-3). The last word
/// reveals such a mix.
pub(crate) const RECEIPT_SIZE_WORDS: usize = 5;

/// Upper bound of segment numbers: log positions have 54 bits, so valid numbers are far below.
const NUMBER_MAX: u64 = (1 << 33) - 1;

pub(crate) fn encode(of: SegmentSum) -> [u64; RECEIPT_SIZE_WORDS] {
    let (end, size_bytes) = (u64::from(of.end), u64::from(of.written.size_bytes));
    let words = [of.number.0, end, size_bytes, of.written.crc];
    [words[0], words[1], words[2], words[3], seal(words)]
}

/// Decodes untrusted words. Returns `None` if they are not a receipt, or a mix of two. The backup
/// may be writing them, so the caller reads again.
pub(crate) fn decode(words: &[u64]) -> Option<SegmentSum> {
    let [number, end, size_bytes, crc, sealed] = *words else {
        return None;
    };
    let is_one = number <= NUMBER_MAX && end.max(size_bytes) <= SEGMENT_SIZE_BYTES;
    if !is_one || seal([number, end, size_bytes, crc]) != sealed {
        return None;
    }
    Some(SegmentSum {
        number: LogNumber(number),
        end: end as u32,
        written: WrittenSum {
            size_bytes: size_bytes as u32,
            crc,
        },
    })
}

/// Computes the checksum word. It is never 0 for zeros, so zeroed memory is not a receipt.
fn seal(words: [u64; 4]) -> u64 {
    let mut bytes = [0; 40];
    bytes[..8].copy_from_slice(b"receipt\0");
    for (to, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    WrittenSum::of(&bytes).crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::fuzzing::run;

    fn of(number: u64, bytes: &[u8]) -> SegmentSum {
        SegmentSum {
            number: LogNumber(number),
            end: bytes.len() as u32 + 1,
            written: WrittenSum::of(bytes),
        }
    }

    /// Fixes the format: a change needs a new `VERSION`.
    #[test]
    fn a_receipt_is_golden() {
        let words = encode(of(7, b"123456789"));
        assert_eq!(
            words,
            [7, 10, 9, 0xae8b_1486_0a79_9888, 0xf725_05bb_367b_96b2]
        );
        assert_eq!(decode(&words), Some(of(7, b"123456789")));
        assert_eq!(decode(&[0; 5]), None, "what nobody has written");
        assert_eq!(decode(&words[..4]), None);
    }

    /// A mix of the words of two receipts, which a race may return, is rejected unless it equals
    /// one of them. Arbitrary words are rejected or decode to themselves.
    #[test]
    fn a_mix_of_two_receipts_is_none() {
        let (old, new) = (encode(of(4, b"old")), encode(of(6, b"newer")));
        for mix in 1..31_u32 {
            let word = |index: usize| if mix >> index & 1 == 1 { new } else { old }[index];
            assert_eq!(decode(&[0, 1, 2, 3, 4].map(word)), None, "{mix}");
        }
        run("receipts of a backup", |random| {
            let mut words = encode(of(random.below(9), b"bytes"));
            words[random.index(5)] ^= random.bits();
            if let Some(receipt) = decode(&words) {
                assert_eq!(encode(receipt), words);
            }
        });
    }
}
