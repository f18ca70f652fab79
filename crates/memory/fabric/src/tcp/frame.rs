//! Format of batches on the wire: the frames of an open data connection.
//!
//! All data are little-endian words of 8 bytes.
//!
//! | word | request | reply |
//! |---|---|---|
//! | 0, bits 0..32 | size in words, this one included | the same |
//! | 0, bits 32..48 | number of verbs | number of verbs executed |
//! | 0, from bit 48 | *more* (1 bit) | [`FrameStatus`] (8 bits) |
//! | 1 | tag, chosen by the client | the request's tag |
//! | 2.. | the verbs, one after the other | results of the executed verbs, one after the other |
//!
//! | verb | its words | its result |
//! |---|---|---|
//! | READ | place (bits 0..48 word index, 56..64 kind 0), word count | the words |
//! | WRITE | place (kind 1), word count, the words | none |
//! | CAS | place (kind 2), expected, desired | previous value |
//! | FAA | place (kind 3), delta | previous value |
//!
//! - **Order.** The node executes the frames of a connection in order of arrival, and the verbs of
//!   each frame in order. So `fence` (FABRIC-2) needs no bit: no verb overtakes another.
//! - **Size.** Neither a request nor its reply is longer than [`FRAME_SIZE_WORDS_MAX`]. A larger
//!   batch is sent as several frames, all but the last of which have *more* set. A verb of more
//!   than [`PIECE_SIZE_WORDS_MAX`] words is sent as several verbs, one per piece.
//! - **Refusal.** After a refused verb the node executes nothing more of the batch (FABRIC-5). It
//!   answers frames up to and including the next one without *more* as skipped.
//! - **Malformed frames.** The node answers a frame that violates this format as malformed, after
//!   executing the verbs before the violation, and closes the connection. A frame of an impossible
//!   size is not answered, because its end is unknown.
//! - **Windows.** The node also sends what it writes into the session's window (FABRIC-10): a frame
//!   like a reply, with status [`FrameStatus::Window`] and the index of its words in word 1. If the
//!   window does not have these words, the client ends the connection.
//! - **Fencing.** The node answers a frame that arrives after the session was fenced (FABRIC-6) as
//!   fenced, executes nothing of it, and closes the connection. After such a reply, or after one
//!   for a malformed frame, the client posts nothing more, even before it sees the end of the
//!   connection.

use crate::batch::{Verb, VerbKind};

/// Size of the largest frame in words: half a mebibyte.
pub(super) const FRAME_SIZE_WORDS_MAX: usize = 1 << 16;
/// Maximum number of words that one wire verb accesses.
pub(super) const PIECE_SIZE_WORDS_MAX: usize = 1 << 15;
/// Number of words before the verbs of a request, and before the data of a reply.
pub(super) const HEADER_SIZE_WORDS: usize = 2;
/// [`HEADER_SIZE_WORDS`] in bytes.
pub(super) const HEADER_SIZE_BYTES: usize = HEADER_SIZE_WORDS * 8;
const VERB_COUNT_MAX: usize = u16::MAX as usize;
const MORE_BIT: u64 = 1 << 48;
const INDEX_MASK: u64 = (1 << 48) - 1;
const KIND_SHIFT: u32 = 56;

const _: () = assert!(PIECE_SIZE_WORDS_MAX + HEADER_SIZE_WORDS + 2 <= FRAME_SIZE_WORDS_MAX);

/// The status of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameStatus {
    /// All verbs were executed.
    Done = 0,
    /// The next verb is outside of the memory (FABRIC-7).
    OutOfBounds = 1,
    /// The next verb is outside of the session's rights (FABRIC-7).
    Forbidden = 2,
    /// The session is fenced; no verb was executed.
    Fenced = 3,
    /// The frame violates the format.
    Malformed = 4,
    /// An earlier verb of the batch was refused; no verb was executed.
    Skipped = 5,
    /// Words for the session's window; not a reply.
    Window = 6,
}

impl FrameStatus {
    /// Returns true if the connection ends after this status (malformed, fenced).
    #[inline]
    pub(super) fn is_last(self) -> bool {
        matches!(self, Self::Fenced | Self::Malformed)
    }

    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Done,
            1 => Self::OutOfBounds,
            2 => Self::Forbidden,
            3 => Self::Fenced,
            4 => Self::Malformed,
            5 => Self::Skipped,
            6 => Self::Window,
            _ => return None,
        })
    }
}

/// Error: the bytes are not a valid frame. The text completes "the peer sent ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadFrame(pub(super) &'static str);

/// Appends a batch's verbs as frames and returns the number of frames. `data` is the batch's
/// buffer.
pub(super) fn encode_batch<'a>(
    out: &mut Vec<u8>,
    tag: u64,
    verbs: impl Iterator<Item = &'a Verb>,
    data: &[u64],
) -> u32 {
    let mut frames = Frames::begin(out, tag);
    for verb in verbs {
        let start = verb.start as usize;
        let index = verb.addr.index();
        match verb.kind {
            VerbKind::Read | VerbKind::Write => {
                for (offset, word_count) in pieces(verb.word_count as usize) {
                    let place = index + offset as u64;
                    if verb.kind == VerbKind::Read {
                        frames.put_verb(0, place, &[word_count as u64], &[], word_count);
                    } else {
                        let words = &data[start + offset..start + offset + word_count];
                        frames.put_verb(1, place, &[word_count as u64], words, 0);
                    }
                }
            }
            VerbKind::CompareSwap => frames.put_verb(2, index, &data[start..start + 2], &[], 1),
            VerbKind::FetchAdd => frames.put_verb(3, index, &data[start..=start], &[], 1),
        }
    }
    frames.end(false);
    frames.count
}

/// Returns the start and word count of each piece of a READ or WRITE; at least one piece.
fn pieces(word_count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..piece_count(word_count)).map(move |piece| {
        let offset = piece * PIECE_SIZE_WORDS_MAX;
        (offset, (word_count - offset).min(PIECE_SIZE_WORDS_MAX))
    })
}

fn piece_count(word_count: usize) -> usize {
    word_count.div_ceil(PIECE_SIZE_WORDS_MAX).max(1)
}

/// Returns the number of wire verbs that a verb is sent as.
pub(super) fn wire_verb_count(verb: &Verb) -> usize {
    match verb.kind {
        VerbKind::Read | VerbKind::Write => piece_count(verb.word_count as usize),
        VerbKind::CompareSwap | VerbKind::FetchAdd => 1,
    }
}

/// Writer of the frames of one batch.
struct Frames<'a> {
    out: &'a mut Vec<u8>,
    tag: u64,
    /// Start in `out` of the frame being written.
    start: usize,
    verb_count: usize,
    reply_size_words: usize,
    count: u32,
}

impl<'a> Frames<'a> {
    fn begin(out: &'a mut Vec<u8>, tag: u64) -> Self {
        let mut frames = Self {
            out,
            tag,
            start: 0,
            verb_count: 0,
            reply_size_words: 0,
            count: 0,
        };
        frames.next();
        frames
    }

    fn next(&mut self) {
        self.start = self.out.len();
        put(self.out, 0);
        put(self.out, self.tag);
        self.verb_count = 0;
        self.reply_size_words = HEADER_SIZE_WORDS;
        self.count += 1;
    }

    fn end(&mut self, more: bool) {
        let size_words = (self.out.len() - self.start) / 8;
        let more = if more { MORE_BIT } else { 0 };
        let header = size_words as u64 | ((self.verb_count as u64) << 32) | more;
        self.out[self.start..self.start + 8].copy_from_slice(&header.to_le_bytes());
    }

    #[inline]
    fn put_verb(&mut self, kind: u64, index: u64, head: &[u64], words: &[u64], brings: usize) {
        let size_words = (self.out.len() - self.start) / 8 + 1 + head.len() + words.len();
        let is_full = size_words > FRAME_SIZE_WORDS_MAX
            || self.reply_size_words + brings > FRAME_SIZE_WORDS_MAX
            || self.verb_count == VERB_COUNT_MAX;
        if is_full {
            self.end(true);
            self.next();
        }
        self.verb_count += 1;
        self.reply_size_words += brings;
        put(self.out, index & INDEX_MASK | (kind << KIND_SHIFT));
        head.iter()
            .chain(words)
            .for_each(|word| put(self.out, *word));
    }
}

#[inline]
fn put(out: &mut Vec<u8>, word: u64) {
    out.extend_from_slice(&word.to_le_bytes());
}

/// Returns the word at a byte position, which must be inside.
#[inline]
fn word_at(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

/// Returns the words of frame bytes.
#[inline]
pub(super) fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> {
    bytes.chunks_exact(8).map(|bytes| word_at(bytes, 0))
}

/// Returns the size in bytes of the frame that begins here; `None` while its first word is
/// incomplete.
///
/// # Errors
/// The frame is shorter than its header or longer than any valid frame.
#[inline]
pub(super) fn frame_size_bytes(bytes: &[u8]) -> Result<Option<usize>, BadFrame> {
    if bytes.len() < 8 {
        return Ok(None);
    }
    let size_words = (word_at(bytes, 0) & 0xFFFF_FFFF) as usize;
    if !(HEADER_SIZE_WORDS..=FRAME_SIZE_WORDS_MAX).contains(&size_words) {
        return Err(BadFrame("a frame of an invalid size"));
    }
    Ok(Some(size_words * 8))
}

/// A request as the node reads it.
pub(super) struct FrameRequest<'a> {
    pub(super) tag: u64,
    pub(super) verb_count: usize,
    /// True if the batch continues in the next frame.
    pub(super) more: bool,
    verbs: &'a [u8],
}

/// A verb of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WireVerb<'a> {
    Read {
        index: u64,
        word_count: usize,
    },
    Write {
        index: u64,
        words: &'a [u8],
    },
    CompareSwap {
        index: u64,
        expected: u64,
        desired: u64,
    },
    FetchAdd {
        index: u64,
        delta: u64,
    },
}

impl<'a> FrameRequest<'a> {
    /// Decodes the header of a whole frame.
    #[inline]
    pub(super) fn decode(frame: &'a [u8]) -> Self {
        let header = word_at(frame, 0);
        Self {
            tag: word_at(frame, 1),
            verb_count: ((header >> 32) & 0xFFFF) as usize,
            more: header & MORE_BIT != 0,
            verbs: &frame[HEADER_SIZE_BYTES..],
        }
    }

    /// Decodes the next verb; to be called `verb_count` times.
    #[inline]
    pub(super) fn next_verb(&mut self) -> Result<WireVerb<'a>, BadFrame> {
        let place = self.take(1)?;
        let place = word_at(place, 0);
        let index = place & INDEX_MASK;
        match place >> 48 {
            0 => {
                let word_count = self.take_word_count()?;
                Ok(WireVerb::Read { index, word_count })
            }
            0x0100 => {
                let word_count = self.take_word_count()?;
                let words = self.take(word_count)?;
                Ok(WireVerb::Write { index, words })
            }
            0x0200 => {
                let words = self.take(2)?;
                Ok(WireVerb::CompareSwap {
                    index,
                    expected: word_at(words, 0),
                    desired: word_at(words, 1),
                })
            }
            0x0300 => {
                let delta = word_at(self.take(1)?, 0);
                Ok(WireVerb::FetchAdd { index, delta })
            }
            _ => Err(BadFrame("a verb of an unknown type")),
        }
    }

    /// Returns true if all words have been decoded.
    pub(super) fn is_at_end(&self) -> bool {
        self.verbs.is_empty()
    }

    #[inline]
    fn take_word_count(&mut self) -> Result<usize, BadFrame> {
        let word_count = word_at(self.take(1)?, 0);
        match usize::try_from(word_count) {
            Ok(word_count) if word_count <= PIECE_SIZE_WORDS_MAX => Ok(word_count),
            _ => Err(BadFrame("a verb with more words than a frame can hold")),
        }
    }

    #[inline]
    fn take(&mut self, word_count: usize) -> Result<&'a [u8], BadFrame> {
        let missing = BadFrame("a frame that ends within a verb");
        let (taken, rest) = self.verbs.split_at_checked(word_count * 8).ok_or(missing)?;
        self.verbs = rest;
        Ok(taken)
    }
}

/// Writer of a reply.
pub(super) struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> ReplyWriter<'a> {
    #[inline]
    pub(super) fn begin(out: &'a mut Vec<u8>, tag: u64) -> Self {
        let start = out.len();
        put(out, 0);
        put(out, tag);
        Self { out, start }
    }

    /// Returns true if the reply can hold `word_count` more words.
    #[inline]
    pub(super) fn has_space(&self, word_count: usize) -> bool {
        (self.out.len() - self.start) / 8 + word_count <= FRAME_SIZE_WORDS_MAX
    }

    #[inline]
    pub(super) fn put(&mut self, word: u64) {
        put(self.out, word);
    }

    /// Appends space for `word_count` words, for the caller to fill.
    #[inline]
    pub(super) fn space(&mut self, word_count: usize) -> &mut [u8] {
        let start = self.out.len();
        self.out.resize(start + word_count * 8, 0);
        &mut self.out[start..]
    }

    #[inline]
    pub(super) fn end(self, status: FrameStatus, executed_verb_count: usize) {
        let size_words = ((self.out.len() - self.start) / 8) as u64;
        let header = size_words | ((executed_verb_count as u64) << 32) | ((status as u64) << 48);
        self.out[self.start..self.start + 8].copy_from_slice(&header.to_le_bytes());
    }
}

/// Appends a frame with words for a session's window, starting at `index`.
pub(super) fn encode_window(out: &mut Vec<u8>, index: u64, words: &[u64]) {
    for (offset, word_count) in pieces(words.len()) {
        let mut frame = ReplyWriter::begin(out, index + offset as u64);
        let piece = &words[offset..offset + word_count];
        for word in piece {
            frame.put(*word);
        }
        frame.end(FrameStatus::Window, 0);
    }
}

/// A reply as the client reads it.
pub(super) struct FrameReply<'a> {
    pub(super) tag: u64,
    pub(super) status: FrameStatus,
    pub(super) executed_verb_count: usize,
    /// Results of the executed verbs, in whole words.
    pub(super) data: &'a [u8],
}

impl<'a> FrameReply<'a> {
    /// Decodes a whole frame.
    ///
    /// # Errors
    /// The status is unknown.
    #[inline]
    pub(super) fn decode(frame: &'a [u8]) -> Result<Self, BadFrame> {
        let header = word_at(frame, 0);
        let status = u8::try_from(header >> 48)
            .ok()
            .and_then(FrameStatus::from_number);
        Ok(Self {
            tag: word_at(frame, 1),
            status: status.ok_or(BadFrame("a reply with an unknown status"))?,
            executed_verb_count: ((header >> 32) & 0xFFFF) as usize,
            data: &frame[HEADER_SIZE_BYTES..],
        })
    }
}

#[cfg(test)]
mod tests;
