//! Batches on the wire: what a data connection carries once it is open.
//!
//! Everything is made of little-endian words of 8 bytes.
//!
//! | word | request | reply |
//! |---|---|---|
//! | 0 | bits 0..32 size in words, this one included; 32..48 number of verbs; 48 *more* | bits 0..32 size in words; 32..48 verbs executed; 48..56 [`Status`] |
//! | 1 | tag, chosen by the client | the request's tag |
//! | 2.. | the verbs, one after the other | what the executed verbs brought, one after the other |
//!
//! | verb | its words | what it brings |
//! |---|---|---|
//! | READ | place (bits 0..48 word index, 56..64 kind 0), word count | the words |
//! | WRITE | place (kind 1), word count, the words | nothing |
//! | CAS | place (kind 2), expected, desired | what was there |
//! | FAA | place (kind 3), delta | what was there |
//!
//! - **N1.** The node executes the frames of a connection in the order in which they come, and
//!   their verbs in theirs. So `fence` (F2) needs no bit: nothing overtakes anything.
//! - **N2.** Neither a request nor its reply is longer than [`FRAME_SIZE_WORDS_MAX`]. A batch that
//!   would need more goes as several frames, of which all but the last say *more*; verbs of more
//!   than [`PIECE_SIZE_WORDS_MAX`] words go as several verbs, each of a piece.
//! - **N3.** After a verb that is refused, nothing more of its batch is executed (F5): frames up to
//!   and including the next without *more* are answered as skipped.
//! - **N4.** A frame that breaks these rules is answered as malformed, after the verbs before the
//!   fault were executed, and the connection is closed. One of an impossible size is not answered:
//!   nobody can tell where it ends.
//! - **N5.** The node also sends what it writes into the session's window (F10): a frame like a
//!   reply whose status is [`Status::Window`], whose word 1 is the place of its words in the
//!   window. A client that has no such words has not to do with such a node any more.
//! - **N6.** A frame that comes after the session was fenced (F6) is answered so, nothing of it is
//!   executed, and the connection is closed. Who has read such an answer, or that of N4, posts
//!   nothing more over it: the end need not have come yet.

use crate::batch::{Verb, VerbKind};

/// Largest frame, in words: half a mebibyte.
pub(super) const FRAME_SIZE_WORDS_MAX: usize = 1 << 16;
/// The most words that one verb on the wire touches.
pub(super) const PIECE_SIZE_WORDS_MAX: usize = 1 << 15;
/// Words before the verbs of a request, and before the data of a reply.
pub(super) const HEADER_SIZE_WORDS: usize = 2;
/// [`HEADER_SIZE_WORDS`] in bytes.
pub(super) const HEADER_SIZE_BYTES: usize = HEADER_SIZE_WORDS * 8;
const VERB_COUNT_MAX: usize = u16::MAX as usize;
const MORE_BIT: u64 = 1 << 48;
const INDEX_MASK: u64 = (1 << 48) - 1;
const KIND_SHIFT: u32 = 56;

const _: () = assert!(PIECE_SIZE_WORDS_MAX + HEADER_SIZE_WORDS + 2 <= FRAME_SIZE_WORDS_MAX);

/// How a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    /// All verbs were executed.
    Done = 0,
    /// F7: the next verb is outside of the region.
    OutOfRegion = 1,
    /// F7: the next verb is outside of the session's rights.
    Forbidden = 2,
    /// N6; none was executed.
    Fenced = 3,
    /// N4.
    Malformed = 4,
    /// N3; none was executed.
    Skipped = 5,
    /// N5: no reply at all.
    Window = 6,
}

impl Status {
    /// Whether the connection is over with it (N4, N6).
    #[inline]
    pub(super) fn is_last(self) -> bool {
        matches!(self, Self::Fenced | Self::Malformed)
    }

    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Done,
            1 => Self::OutOfRegion,
            2 => Self::Forbidden,
            3 => Self::Fenced,
            4 => Self::Malformed,
            5 => Self::Skipped,
            6 => Self::Window,
            _ => return None,
        })
    }
}

/// Why bytes are no frame. The text completes "the peer sent ...".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadFrame(pub(super) &'static str);

/// Appends a batch's verbs as frames, and returns how many frames they are. `data` is the batch's
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

/// Where the pieces of a READ or WRITE begin, and how many words each has; at least one.
fn pieces(word_count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..piece_count(word_count)).map(move |piece| {
        let offset = piece * PIECE_SIZE_WORDS_MAX;
        (offset, (word_count - offset).min(PIECE_SIZE_WORDS_MAX))
    })
}

fn piece_count(word_count: usize) -> usize {
    word_count.div_ceil(PIECE_SIZE_WORDS_MAX).max(1)
}

/// How many verbs on the wire a verb is (N2).
pub(super) fn wire_verb_count(verb: &Verb) -> usize {
    match verb.kind {
        VerbKind::Read | VerbKind::Write => piece_count(verb.word_count as usize),
        VerbKind::CompareSwap | VerbKind::FetchAdd => 1,
    }
}

/// Frames of one batch, being written.
struct Frames<'a> {
    out: &'a mut Vec<u8>,
    tag: u64,
    /// Where in `out` the frame begins that is being written.
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

/// The word at a place in bytes, which must be there.
#[inline]
fn word_at(bytes: &[u8], index: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
    u64::from_le_bytes(word)
}

/// Words as they lie in a frame.
#[inline]
pub(super) fn words(bytes: &[u8]) -> impl ExactSizeIterator<Item = u64> {
    bytes.chunks_exact(8).map(|bytes| word_at(bytes, 0))
}

/// Size in bytes of the frame that begins here; `None` while its first word is not there.
///
/// # Errors
/// It is shorter than its header or longer than any frame.
#[inline]
pub(super) fn frame_size_bytes(bytes: &[u8]) -> Result<Option<usize>, BadFrame> {
    if bytes.len() < 8 {
        return Ok(None);
    }
    let size_words = (word_at(bytes, 0) & 0xFFFF_FFFF) as usize;
    if !(HEADER_SIZE_WORDS..=FRAME_SIZE_WORDS_MAX).contains(&size_words) {
        return Err(BadFrame("a frame of an impossible size"));
    }
    Ok(Some(size_words * 8))
}

/// A request as the node reads it.
pub(super) struct Request<'a> {
    pub(super) tag: u64,
    pub(super) verb_count: usize,
    /// N2: the batch goes on in the next frame.
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

impl<'a> Request<'a> {
    /// Reads the header of a whole frame.
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

    /// Takes the next verb off; to be called `verb_count` times.
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
            _ => Err(BadFrame("a verb of an unknown kind")),
        }
    }

    /// Whether all has been taken off.
    pub(super) fn is_at_end(&self) -> bool {
        self.verbs.is_empty()
    }

    #[inline]
    fn take_word_count(&mut self) -> Result<usize, BadFrame> {
        let word_count = word_at(self.take(1)?, 0);
        match usize::try_from(word_count) {
            Ok(word_count) if word_count <= PIECE_SIZE_WORDS_MAX => Ok(word_count),
            _ => Err(BadFrame("a verb of more words than a frame holds")),
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

/// A reply, being written.
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

    /// Whether so many words more would make the reply too long.
    #[inline]
    pub(super) fn has_room(&self, word_count: usize) -> bool {
        (self.out.len() - self.start) / 8 + word_count <= FRAME_SIZE_WORDS_MAX
    }

    #[inline]
    pub(super) fn put(&mut self, word: u64) {
        put(self.out, word);
    }

    /// Room for so many words, to be filled.
    #[inline]
    pub(super) fn room(&mut self, word_count: usize) -> &mut [u8] {
        let start = self.out.len();
        self.out.resize(start + word_count * 8, 0);
        &mut self.out[start..]
    }

    #[inline]
    pub(super) fn end(self, status: Status, executed_verb_count: usize) {
        let size_words = ((self.out.len() - self.start) / 8) as u64;
        let header = size_words | ((executed_verb_count as u64) << 32) | ((status as u64) << 48);
        self.out[self.start..self.start + 8].copy_from_slice(&header.to_le_bytes());
    }
}

/// Appends words for a session's window, from `index` on (N5).
pub(super) fn encode_window(out: &mut Vec<u8>, index: u64, words: &[u64]) {
    for (offset, word_count) in pieces(words.len()) {
        let mut frame = ReplyWriter::begin(out, index + offset as u64);
        let piece = &words[offset..offset + word_count];
        for word in piece {
            frame.put(*word);
        }
        frame.end(Status::Window, 0);
    }
}

/// A reply as the client reads it.
pub(super) struct Reply<'a> {
    pub(super) tag: u64,
    pub(super) status: Status,
    pub(super) executed_verb_count: usize,
    /// What the executed verbs brought, in whole words.
    pub(super) data: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Reads a whole frame.
    ///
    /// # Errors
    /// Its status is none.
    #[inline]
    pub(super) fn decode(frame: &'a [u8]) -> Result<Self, BadFrame> {
        let header = word_at(frame, 0);
        let status = u8::try_from(header >> 48)
            .ok()
            .and_then(Status::from_number);
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
