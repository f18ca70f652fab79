//! Where in a backup's memory things are (RP2), as words.

use farleaf_lsm::place::{LogNumber, LogPosition, SEGMENT_SIZE_BYTES};
use farleaf_message::Ring;
use farleaf_types::WordAddr;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::receipt::RECEIPT_SIZE_WORDS;

/// Words of a segment.
pub(crate) const SEGMENT_SIZE_WORDS: u64 = SEGMENT_SIZE_BYTES / 8;
/// Segments of the ring of requests, and of that of replies.
const REQUEST_SEGMENT_COUNT: u32 = 512;
const REPLY_SEGMENT_COUNT: u32 = 64;

/// Changed by CAS alone.
const EPOCH: u64 = 0;
/// Written by the primary, side by side: up to where the log is in the buffers, and is to be
/// durable.
const LOG_END: u64 = 8;
/// Written by the backup, side by side: up to where it has written the log; whether it has failed;
/// and a receipt for what it has made durable of the segment that is being filled (RP15).
const WRITTEN_TO: u64 = 16;
const FAILED: u64 = WRITTEN_TO + 1;
const REQUESTS: u64 = 64;
const REPLIES: u64 = REQUESTS + REQUEST_SEGMENT_COUNT as u64 * 16;
const STAGING: u64 = 16_384;
const SLOTS: u64 = STAGING + SEGMENT_SIZE_WORDS;

/// Behind the buffers, for each of them: the number and the length of the segment in it, when
/// nothing more comes into that, written by the primary; and the backup's receipt for it (RP15).
const NOTE_SIZE_WORDS: u64 = 8;
const NOTE_RECEIPT: u64 = CLOSED_SIZE_WORDS as u64;

/// Words that the backup writes.
pub(crate) const STATUS_SIZE_WORDS: usize = 2 + RECEIPT_SIZE_WORDS;
/// Words that the primary writes of a segment that is closed.
pub(crate) const CLOSED_SIZE_WORDS: usize = 2;

const _: () = {
    assert!(WRITTEN_TO + STATUS_SIZE_WORDS as u64 <= REQUESTS);
    assert!(REPLIES + REPLY_SEGMENT_COUNT as u64 * 16 <= STAGING);
    assert!(NOTE_RECEIPT + RECEIPT_SIZE_WORDS as u64 <= NOTE_SIZE_WORDS);
};
/// Words that the primary writes.
pub(crate) const WISH_SIZE_WORDS: usize = 2;

/// The words of one region's backup: control words, rings, a buffer for trees, and buffers for log
/// segments, of which there are two or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    start: WordAddr,
    slot_count: u64,
}

impl Layout {
    /// From a word on, with so many buffers for log segments. `None`: two are the least, and 65,536
    /// the most.
    pub const fn new(start: WordAddr, slot_count: u64) -> Option<Self> {
        if slot_count < 2 || slot_count > 1 << 16 {
            return None;
        }
        Some(Self { start, slot_count })
    }

    /// How many words it takes.
    pub const fn word_count(&self) -> u64 {
        SLOTS + self.slot_count * (SEGMENT_SIZE_WORDS + NOTE_SIZE_WORDS)
    }

    /// How many buffers for log segments there are.
    pub const fn slot_count(&self) -> u64 {
        self.slot_count
    }

    pub(crate) fn epoch(&self) -> WordAddr {
        self.start.offset(EPOCH)
    }

    pub(crate) fn wishes(&self) -> WordAddr {
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

    /// What is noted of the buffer of a segment.
    fn note(&self, number: LogNumber) -> u64 {
        let notes = SLOTS + self.slot_count * SEGMENT_SIZE_WORDS;
        notes + number.0 % self.slot_count * NOTE_SIZE_WORDS
    }

    /// Where the number and the length of a closed segment are.
    pub(crate) fn closed(&self, number: LogNumber) -> WordAddr {
        self.start.offset(self.note(number))
    }

    /// Where the receipt for a closed segment is.
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

    /// Control words, rings, and what is noted of buffers: what begins zeroed.
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

    /// The word of a place in the log, in the buffer that its segment has its turn in.
    pub(crate) fn log_word(&self, at: LogPosition) -> WordAddr {
        let slot = at.number().0 % self.slot_count;
        let offset = at.offset() as u64 / 8;
        self.start
            .offset(SLOTS + slot * SEGMENT_SIZE_WORDS + offset)
    }

    /// RP4: whether a segment's buffer is free, when all before a place has been written.
    pub(crate) fn is_free(&self, number: LogNumber, written_to: LogPosition) -> bool {
        number.0 < written_to.number().0.saturating_add(self.slot_count)
    }
}

/// Bytes as words, little-endian; the last one is filled up with zeros. Every byte of logs and
/// trees goes through this, or [`words_of`], and through [`bytes_of`].
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

/// Bytes as words: as they are in memory, where whole words are there, in this order; else through
/// a buffer.
pub(crate) fn words_of<'b>(bytes: &'b [u8], buffer: &'b mut Vec<u64>) -> &'b [u64] {
    if cfg!(target_endian = "little")
        && let Ok(words) = <[u64]>::ref_from_bytes(bytes)
    {
        return words;
    }
    to_words(bytes, buffer);
    buffer
}

/// Words as bytes: as they are in memory, where that has them so; else through a buffer.
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
    use farleaf_types::NodeId;

    /// The layout: a later version that changes it must say so (`VERSION`).
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

    /// Promise (RP4): a buffer is used again when the segment that it held has been written.
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
        // From any place, whole words or not.
        for (from, to) in [(0, 16), (1, 17), (0, 15), (3, 3), (0, 21)] {
            let (mut words, mut buffer) = (Vec::new(), Vec::new());
            to_words(&bytes[from..to], &mut words);
            assert_eq!(words_of(&bytes[from..to], &mut buffer), words);
        }
    }
}
