//! What a backup says that it wrote of a log segment, as words of its memory (RP15).

use farleaf_lsm::follow::SegmentSum;
use farleaf_lsm::place::{LogNumber, SEGMENT_SIZE_BYTES};
use farleaf_lsm::written::WrittenSum;

/// Words of a receipt: number of the segment, where the backup takes it to end, length and checksum
/// of what it wrote, and a checksum of these four.
///
/// A READ that races with a WRITE returns any mix of old and new words (F3). The last word tells
/// such a mix from a receipt.
pub(crate) const RECEIPT_SIZE_WORDS: usize = 5;

/// The first segment numbers of logs are far below: positions have 54 bits.
const NUMBER_MAX: u64 = (1 << 33) - 1;

pub(crate) fn encode(of: SegmentSum) -> [u64; RECEIPT_SIZE_WORDS] {
    let (end, size_bytes) = (u64::from(of.end), u64::from(of.written.size_bytes));
    let words = [of.number.0, end, size_bytes, of.written.crc];
    [words[0], words[1], words[2], words[3], seal(words)]
}

/// Of words that may be anything. `None`: they are no receipt, or a mix of two; the backup may have
/// been writing them, and they are read again.
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

/// Never 0 for zeros, so memory that nobody has written is no receipt.
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
    use farleaf_fabric::fuzzing::run;

    fn of(number: u64, bytes: &[u8]) -> SegmentSum {
        SegmentSum {
            number: LogNumber(number),
            end: bytes.len() as u32 + 1,
            written: WrittenSum::of(bytes),
        }
    }

    /// The format: a later version that changes it must say so (`VERSION`).
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

    /// Promise: a mix of the words of two receipts, which a race may return, is neither of them,
    /// unless it is one of them; words that are anything are no receipt, or say what they are.
    #[test]
    fn a_mix_of_two_receipts_is_none() {
        let (old, new) = (encode(of(4, b"old")), encode(of(6, b"newer")));
        for mix in 1..31_u32 {
            let word = |index: usize| if mix >> index & 1 == 1 { new } else { old }[index];
            assert_eq!(decode(&[0, 1, 2, 3, 4].map(word)), None, "{mix}");
        }
        run("receipts of a backup", |random| {
            let mut words = encode(of(random.below(9), b"bytes"));
            words[random.index(5)] ^= random.next();
            if let Some(receipt) = decode(&words) {
                assert_eq!(encode(receipt), words);
            }
        });
    }
}
