//! Tags, heads and payloads: the bytes of a message.
//!
//! | word of a request | meaning |
//! |---|---|
//! | 0 | tag: sequence number (48), segments (12), kind (4) |
//! | 1 | bytes of the payload (32); the reply's first segment (16) and number of segments (16) |
//! | 2 | the smallest sequence number that its caller still waits for |
//! | 3 | payload, from here on, little-endian; word 0 of every further segment is 0 |
//!
//! | word of a reply | meaning |
//! |---|---|
//! | 0 | tag |
//! | 1 | bytes of this part (32), bytes of the whole reply (32) |
//! | 2 | payload, from here on |
//!
//! A *reset* is only a tag; the rest of its segment is not written.

use farleaf_base::WordAddr;

/// Size of a segment in words.
pub const SEGMENT_SIZE_WORDS: u64 = 16;
/// Size of a segment in bytes.
pub const SEGMENT_SIZE_BYTES: u64 = SEGMENT_SIZE_WORDS * 8;
/// Maximum number of segments of a ring.
pub const RING_SEGMENT_COUNT_MAX: u32 = 1 << 16;
/// Maximum number of segments of a message.
pub const MESSAGE_SEGMENT_COUNT_MAX: u32 = (1 << COUNT_BITS) - 1;
/// Largest sequence number. At ten million messages per second it is reached after 325 days.
pub const SEQUENCE_MAX: u64 = (1 << 48) - 1;
/// Number of words of a request before its payload.
pub const REQUEST_HEAD_SIZE_WORDS: usize = 3;
/// Number of words of a reply before its payload.
pub const REPLY_HEAD_SIZE_WORDS: usize = 2;

const KIND_BITS: u32 = 4;
const COUNT_BITS: u32 = 12;
/// Number of payload words in a segment after the first one.
const SEGMENT_PAYLOAD_SIZE_WORDS: usize = SEGMENT_SIZE_WORDS as usize - 1;

const _: () = assert!(48 + COUNT_BITS + KIND_BITS == 64);
const _: () = assert!(RING_SEGMENT_COUNT_MAX - 1 <= u16::MAX as u32);

/// Words of far memory that form a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    start: WordAddr,
    segment_count: u32,
}

impl Ring {
    /// Returns the ring of `segment_count` segments that starts at a word.
    ///
    /// # Panics
    /// `segment_count` is 0 or more than [`RING_SEGMENT_COUNT_MAX`].
    pub const fn new(start: WordAddr, segment_count: u32) -> Self {
        assert!(segment_count > 0 && segment_count <= RING_SEGMENT_COUNT_MAX);
        Self {
            start,
            segment_count,
        }
    }

    /// Returns the number of segments.
    pub const fn segment_count(&self) -> u32 {
        self.segment_count
    }

    /// Returns the number of words.
    pub const fn word_count(&self) -> u64 {
        self.segment_count as u64 * SEGMENT_SIZE_WORDS
    }

    /// Returns the address of a segment's first word.
    pub fn at(&self, segment: u32) -> WordAddr {
        debug_assert!(segment < self.segment_count);
        self.start.offset(u64::from(segment) * SEGMENT_SIZE_WORDS)
    }

    /// Returns true if `count` segments from `first` on are inside the ring.
    pub fn holds(&self, first: u32, count: u32) -> bool {
        first < self.segment_count && count > 0 && count <= self.segment_count - first
    }
}

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A request for the service.
    Request,
    /// A reset: the next request is at the beginning of the ring.
    Reset,
    /// A request for the next part of a reply.
    Fetch,
    /// A reply, or a part of one.
    Reply,
    /// A refusal; the payload is the reason.
    Refused,
}

impl MessageKind {
    const ALL: [Self; 5] = [
        Self::Request,
        Self::Reset,
        Self::Fetch,
        Self::Reply,
        Self::Refused,
    ];

    const fn number(self) -> u64 {
        match self {
            Self::Request => 1,
            Self::Reset => 2,
            Self::Fetch => 3,
            Self::Reply => 4,
            Self::Refused => 5,
        }
    }
}

/// First word of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Sequence number, from 1 on.
    pub sequence: u64,
    /// Number of segments of the message.
    pub segment_count: u32,
    /// Kind of the message.
    pub kind: MessageKind,
}

impl Tag {
    /// Returns the tag as a word.
    pub fn word(self) -> u64 {
        debug_assert!(self.sequence <= SEQUENCE_MAX);
        debug_assert!(self.segment_count <= MESSAGE_SEGMENT_COUNT_MAX);
        let count = u64::from(self.segment_count) << KIND_BITS;
        self.sequence << (COUNT_BITS + KIND_BITS) | count | self.kind.number()
    }

    /// Returns the sequence number of a word read as a tag; 0 if the word is 0.
    pub fn sequence_of(word: u64) -> u64 {
        word >> (COUNT_BITS + KIND_BITS)
    }

    /// Decodes a word; `None` if it is not a valid tag of this version.
    pub fn from_word(word: u64) -> Option<Self> {
        let number = word & ((1 << KIND_BITS) - 1);
        let kind = MessageKind::ALL
            .into_iter()
            .find(|it| it.number() == number)?;
        let segment_count = (word >> KIND_BITS) as u32 & MESSAGE_SEGMENT_COUNT_MAX;
        let sequence = Self::sequence_of(word);
        (sequence > 0 && segment_count > 0).then_some(Self {
            sequence,
            segment_count,
            kind,
        })
    }
}

/// Head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Size of the payload in bytes.
    pub size_bytes: u32,
    /// First segment reserved for the reply.
    pub reply_first: u32,
    /// Number of segments reserved for the reply.
    pub reply_segment_count: u32,
    /// Smallest sequence number that the caller still waits for.
    pub awaited_from: u64,
}

impl RequestHead {
    /// Returns the head as words.
    pub fn words(&self) -> [u64; REQUEST_HEAD_SIZE_WORDS - 1] {
        let place = u64::from(self.reply_first) | u64::from(self.reply_segment_count) << 16;
        [u64::from(self.size_bytes) | place << 32, self.awaited_from]
    }

    /// Decodes the head from the words of a request, which begin with its tag.
    pub fn from_words(words: &[u64]) -> Self {
        Self {
            size_bytes: words[1] as u32,
            reply_first: (words[1] >> 32) as u32 & 0xFFFF,
            reply_segment_count: (words[1] >> 48) as u32,
            awaited_from: words[2],
        }
    }
}

/// Head of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// Size of this part in bytes.
    pub size_bytes: u32,
    /// Size of the whole reply in bytes.
    pub whole_size_bytes: u32,
}

impl ReplyHead {
    /// Returns the head as words.
    pub fn words(&self) -> [u64; REPLY_HEAD_SIZE_WORDS - 1] {
        [u64::from(self.size_bytes) | u64::from(self.whole_size_bytes) << 32]
    }

    /// Decodes the head from the words of a reply, which begin with its tag.
    pub fn from_words(words: &[u64]) -> Self {
        Self {
            size_bytes: words[1] as u32,
            whole_size_bytes: (words[1] >> 32) as u32,
        }
    }
}

/// Returns the payload capacity in bytes of `segment_count` segments, after a tag and head of
/// `head_size_words` words in total.
pub const fn capacity_bytes(segment_count: u32, head_size_words: usize) -> usize {
    if segment_count == 0 {
        return 0;
    }
    // The tag's word is never payload, in any segment.
    (segment_count as usize * SEGMENT_PAYLOAD_SIZE_WORDS + 1 - head_size_words) * 8
}

/// Returns the number of segments that a payload takes behind a head. The result exceeds the
/// maximum if the payload is too long.
pub fn segment_count_for(size_bytes: usize, head_size_words: usize) -> u32 {
    let word_count = size_bytes.div_ceil(8) + head_size_words - 1;
    let count = word_count.div_ceil(SEGMENT_PAYLOAD_SIZE_WORDS).max(1);
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Encodes a message: tag, head, payload, and a 0 at the start of each further segment.
pub fn encode(tag: Tag, head: &[u64], payload: &[u8], words: &mut Vec<u64>) {
    words.clear();
    words.resize(tag.segment_count as usize * SEGMENT_SIZE_WORDS as usize, 0);
    words[0] = tag.word();
    words[1..=head.len()].copy_from_slice(head);
    let places = payload_places(1 + head.len());
    for (place, bytes) in places.zip(payload.chunks(8)) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        words[place] = u64::from_le_bytes(word);
    }
}

/// Appends the payload of a message to `payload`; `words` begin with the message's tag.
///
/// # Panics
/// The payload is longer than the words.
pub fn decode_payload(
    words: &[u64],
    size_bytes: usize,
    head_size_words: usize,
    payload: &mut Vec<u8>,
) {
    let end = payload.len() + size_bytes;
    payload.reserve(size_bytes);
    for place in payload_places(head_size_words).take(size_bytes.div_ceil(8)) {
        payload.extend_from_slice(&words[place].to_le_bytes());
    }
    payload.truncate(end);
}

/// Returns the positions of the payload's words, behind a tag and head of `head_size_words` words.
fn payload_places(head_size_words: usize) -> impl Iterator<Item = usize> {
    (head_size_words..).filter(|place| !place.is_multiple_of(SEGMENT_SIZE_WORDS as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::NodeId;
    use proptest::prelude::*;

    /// Promise: the format is unchanged. A version that changes the format must have a new number.
    #[test]
    fn words_are_golden() {
        let tag = Tag {
            sequence: 0x1234,
            segment_count: 2,
            kind: MessageKind::Fetch,
        };
        let head = RequestHead {
            size_bytes: 107,
            reply_first: 9,
            reply_segment_count: 3,
            awaited_from: 0x1200,
        };
        let payload: Vec<u8> = (1..=107).collect();
        let mut words = Vec::new();
        encode(tag, &head.words(), &payload, &mut words);
        assert_eq!(words.len(), 32);
        let begin = [0x1234_0023, 0x0003_0009_0000_006B, 0x1200];
        assert_eq!(words[..3], begin);
        assert_eq!(words[3], 0x0807_0605_0403_0201);
        assert_eq!(words[15], 0x6867_6665_6463_6261);
        assert_eq!(words[16..18], [0, 0x006B_6A69]);
        assert!(words[18..].iter().all(|word| *word == 0));
        let reply = ReplyHead {
            size_bytes: 5,
            whole_size_bytes: 900,
        };
        assert_eq!(reply.words(), [0x0000_0384_0000_0005]);
    }

    /// Promise: unknown kinds, messages without segments and number 0 are not tags.
    #[test]
    fn what_is_no_tag_is_none() {
        for kind in MessageKind::ALL {
            let tag = Tag {
                sequence: SEQUENCE_MAX,
                segment_count: MESSAGE_SEGMENT_COUNT_MAX,
                kind,
            };
            assert_eq!(Tag::from_word(tag.word()), Some(tag));
        }
        for word in [0, 0x10, 0x1_0010, 0x1_0016, 0x1_0001, 0x0_0011] {
            assert_eq!(Tag::from_word(word), None, "{word:#x}");
        }
    }

    #[test]
    fn a_ring_knows_its_end() {
        let ring = Ring::new(WordAddr::new(NodeId(3), 800), 10);
        assert_eq!(ring.at(9), WordAddr::new(NodeId(3), 800 + 9 * 16));
        assert_eq!(ring.word_count(), 160);
        assert!(ring.holds(0, 10) && ring.holds(9, 1));
        assert!(!ring.holds(9, 2) && !ring.holds(10, 0) && !ring.holds(0, 11));
        assert!(!ring.holds(u32::MAX, 1) && !ring.holds(1, u32::MAX) && !ring.holds(3, 0));
    }

    proptest! {
        /// Promise: any payload takes the computed number of segments, is decoded unchanged, and
        /// leaves the first word of every further segment 0.
        #[test]
        fn payloads_come_back(payload: Vec<u8>, is_reply: bool) {
            let sizes = [REQUEST_HEAD_SIZE_WORDS, REPLY_HEAD_SIZE_WORDS];
            let head_size_words = sizes[usize::from(is_reply)];
            let segment_count = segment_count_for(payload.len(), head_size_words);
            let tag = Tag { sequence: 7, segment_count, kind: MessageKind::Reply };
            let (mut words, mut found) = (Vec::new(), vec![1, 2, 3]);
            encode(tag, &[!0, !0][..head_size_words - 1], &payload, &mut words);
            prop_assert!(words.chunks(16).skip(1).all(|segment| segment[0] == 0));
            decode_payload(&words, payload.len(), head_size_words, &mut found);
            prop_assert_eq!(&found[3..], &payload[..]);
            prop_assert!(capacity_bytes(segment_count, head_size_words) >= payload.len());
            let fewer = capacity_bytes(segment_count - 1, head_size_words);
            prop_assert!(segment_count == 1 || fewer < payload.len());
        }
    }
}
