//! Layout of a backup's memory (REPLICATION-2), in words.

use farleaf_base::WordAddr;
use farleaf_fabric::message::Ring;
use farleaf_lsm::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::receipt::RECEIPT_SIZE_WORDS;

/// Size of a segment, in words.
pub(crate) const SEGMENT_SIZE_WORDS: u64 = SEGMENT_SIZE_BYTES / 8;
/// Number of segments of the request ring.
const REQUEST_SEGMENT_COUNT: u32 = 512;
/// Number of segments of the reply ring.
const REPLY_SEGMENT_COUNT: u32 = 64;

/// The epoch, changed by CAS only.
const EPOCH: u64 = 0;
/// First of two adjacent words written by the primary: end of the log in the buffers, and position
/// that is to be durable.
const LOG_END: u64 = 8;
/// First of adjacent words written by the backup: end of the written log, whether the backup has
/// failed, and the receipt for the synced part of the open segment (REPLICATION-15).
const WRITTEN_TO: u64 = 16;
const FAILED: u64 = WRITTEN_TO + 1;
const REQUESTS: u64 = 64;
const REPLIES: u64 = REQUESTS + REQUEST_SEGMENT_COUNT as u64 * 16;
const STAGING: u64 = 16_384;
const SLOTS: u64 = STAGING + SEGMENT_SIZE_WORDS;

/// Size of the note behind the buffers that each buffer has. The primary writes number and length
/// of the closed segment, the backup its receipt (REPLICATION-15).
const NOTE_SIZE_WORDS: u64 = 8;
const NOTE_RECEIPT: u64 = CLOSED_SIZE_WORDS as u64;

/// Number of status words that the backup writes.
pub(crate) const STATUS_SIZE_WORDS: usize = 2 + RECEIPT_SIZE_WORDS;
/// Number of words that the primary writes for a closed segment.
pub(crate) const CLOSED_SIZE_WORDS: usize = 2;

const _: () = {
    assert!(WRITTEN_TO + STATUS_SIZE_WORDS as u64 <= REQUESTS);
    assert!(REPLIES + REPLY_SEGMENT_COUNT as u64 * 16 <= STAGING);
    assert!(NOTE_RECEIPT + RECEIPT_SIZE_WORDS as u64 <= NOTE_SIZE_WORDS);
};
/// Number of adjacent words that the primary writes: log end and sync request.
pub(crate) const PRIMARY_SIZE_WORDS: usize = 2;

/// Words of one region's backup: control words, rings, a buffer for trees, and two or more buffers
/// for log segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    start: WordAddr,
    slot_count: u64,
}

impl Layout {
    /// Creates the layout from a start word and a number of log buffers. Returns `None` if that
    /// number is not 2 to 65,536.
    pub const fn new(start: WordAddr, slot_count: u64) -> Option<Self> {
        if slot_count < 2 || slot_count > 1 << 16 {
            return None;
        }
        Some(Self { start, slot_count })
    }

    /// Returns the total number of words.
    pub const fn word_count(&self) -> u64 {
        SLOTS + self.slot_count * (SEGMENT_SIZE_WORDS + NOTE_SIZE_WORDS)
    }

    /// Returns the number of buffers for log segments.
    pub const fn slot_count(&self) -> u64 {
        self.slot_count
    }

    pub(crate) fn epoch(&self) -> WordAddr {
        self.start.offset(EPOCH)
    }

    pub(crate) fn primary_words(&self) -> WordAddr {
        self.start.offset(LOG_END)
    }

    pub(crate) fn log_end(&self) -> WordAddr {
        self.start.offset(LOG_END)
    }

    pub(crate) fn sync_wanted(&self) -> WordAddr {
        self.start.offset(LOG_END + 1)
    }

    pub(crate) fn status(&self) -> WordAddr {
        self.start.offset(WRITTEN_TO)
    }

    pub(crate) fn failed(&self) -> WordAddr {
        self.start.offset(FAILED)
    }

    /// Returns the offset of the note for a segment's buffer.
    fn note(&self, number: LogNumber) -> u64 {
        let notes = SLOTS + self.slot_count * SEGMENT_SIZE_WORDS;
        notes + number.0 % self.slot_count * NOTE_SIZE_WORDS
    }

    /// Returns the address of number and length of a closed segment.
    pub(crate) fn closed(&self, number: LogNumber) -> WordAddr {
        self.start.offset(self.note(number))
    }

    /// Returns the address of the receipt for a closed segment.
    pub(crate) fn receipt(&self, number: LogNumber) -> WordAddr {
        self.start.offset(self.note(number) + NOTE_RECEIPT)
    }

    pub(crate) fn rings(&self) -> (Ring, Ring) {
        let requests = Ring::new(self.start.offset(REQUESTS), REQUEST_SEGMENT_COUNT);
        (
            requests,
            Ring::new(self.start.offset(REPLIES), REPLY_SEGMENT_COUNT),
        )
    }

    /// Returns the ranges that begin zeroed: control words and rings, and the notes of buffers.
    pub(crate) fn zeroed(&self) -> [(WordAddr, usize); 2] {
        let notes = (self.slot_count * NOTE_SIZE_WORDS) as usize;
        [
            (self.start, STAGING as usize),
            (self.closed(LogNumber(0)), notes),
        ]
    }

    pub(crate) fn staging(&self) -> WordAddr {
        self.start.offset(STAGING)
    }

    /// Returns the address of a log position, in the buffer of its segment.
    pub(crate) fn log_word(&self, at: LogPosition) -> WordAddr {
        let slot = at.number().0 % self.slot_count;
        let offset = at.offset() as u64 / 8;
        self.start
            .offset(SLOTS + slot * SEGMENT_SIZE_WORDS + offset)
    }

    /// Returns whether a segment's buffer is free, when everything before `written_to` has been
    /// written (REPLICATION-4).
    pub(crate) fn is_free(&self, number: LogNumber, written_to: LogPosition) -> bool {
        number.0 < written_to.number().0.saturating_add(self.slot_count)
    }
}

/// Converts bytes to little-endian words; pads the last one with zeros. Every byte of logs and
/// trees passes through this function or [`words_of`], and through [`bytes_of`].
pub(crate) fn to_words(bytes: &[u8], words: &mut Vec<u64>) {
    let (whole, rest) = bytes.as_chunks::<8>();
    words.clear();
    words.extend(whole.iter().map(|word| u64::from_le_bytes(*word)));
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        words.push(u64::from_le_bytes(word));
    }
}

/// Views bytes as words. Aligned whole words on a little-endian machine are returned in place;
/// others are copied into the buffer.
pub(crate) fn words_of<'b>(bytes: &'b [u8], buffer: &'b mut Vec<u64>) -> &'b [u64] {
    if cfg!(target_endian = "little")
        && let Ok(words) = <[u64]>::ref_from_bytes(bytes)
    {
        return words;
    }
    to_words(bytes, buffer);
    buffer
}

/// Views words as bytes: in place on a little-endian machine, otherwise through the buffer.
pub(crate) fn bytes_of<'w>(words: &'w [u64], buffer: &'w mut Vec<u8>) -> &'w [u8] {
    if cfg!(target_endian = "little") {
        return words.as_bytes();
    }
    buffer.clear();
    buffer.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;

    /// Fixes the layout: a change needs a new `VERSION`.
    #[test]
    fn words_are_golden() {
        let start = WordAddr::new(NodeId(0), 1000);
        let layout = Layout::new(start, 3).expect("enough");
        let at = |index: u64| WordAddr::new(NodeId(0), 1000 + index);
        assert_eq!(
            (layout.epoch(), layout.log_end(), layout.sync_wanted()),
            (at(0), at(8), at(9))
        );
        assert_eq!((layout.status(), layout.staging()), (at(16), at(16_384)));
        let (requests, replies) = layout.rings();
        assert_eq!((requests.at(0), replies.at(0)), (at(64), at(8256)));
        let place = LogNumber(7).start().plus(4097);
        assert_eq!(layout.log_word(place), at(16_384 + 2 * 262_144 + 512));
        let notes = 16_384 + 4 * 262_144;
        assert_eq!(layout.word_count(), notes + 3 * 8);
        assert_eq!((layout.failed(), STATUS_SIZE_WORDS), (at(17), 7));
        assert_eq!(layout.closed(LogNumber(7)), at(notes + 8));
        assert_eq!(layout.receipt(LogNumber(8)), at(notes + 18));
        assert_eq!(
            layout.zeroed(),
            [(at(0), 16_384), (at(notes), 24)],
            "what is no receipt and no length"
        );
        assert!(Layout::new(start, 1).is_none());
    }

    /// A buffer is reused when its previous segment has been written (REPLICATION-4).
    #[test]
    fn buffers_have_their_turn() {
        let layout = Layout::new(WordAddr::new(NodeId(0), 0), 2).expect("enough");
        let written_to = LogNumber(5).start().plus(9);
        assert!(layout.is_free(LogNumber(6), written_to));
        assert!(!layout.is_free(LogNumber(7), written_to));
    }

    #[test]
    fn bytes_come_back() {
        let bytes: Vec<u8> = (0..21).collect();
        let (mut words, mut buffer) = (Vec::new(), Vec::new());
        to_words(&bytes, &mut words);
        let back = bytes_of(&words, &mut buffer);
        assert_eq!(
            (words.len(), &back[..21], &back[21..]),
            (3, &bytes[..], &[0; 3][..])
        );
        // Ranges from any offset, of whole words or not.
        for (from, to) in [(0, 16), (1, 17), (0, 15), (3, 3), (0, 21)] {
            let (mut words, mut buffer) = (Vec::new(), Vec::new());
            to_words(&bytes[from..to], &mut words);
            assert_eq!(words_of(&bytes[from..to], &mut buffer), words);
        }
    }
}
