//! The messages between a client and the memory node: frames of one size and layout.
//!
//! | word | request | reply |
//! |---|---|---|
//! | 0 | magic and version | the same |
//! | 1 | [`ShmRequest`] number | 0 = refused, else the request's number |
//! | 2 | session owner word, or 0 | session owner word; hello: memory size in bytes |
//! | 3 | 0 | process of an unfenced session, or 0 = fenced |
//! | 4 | 0 | size of the text, in bytes |
//! | 5..32 | 0 | text: reason of the refusal |

use farleaf_base::OwnerWord;

/// Version of the messages; a client and a node must have the same.
pub const CONTROL_VERSION: u64 = 1;
/// Magic: "FLCTRL" in the upper six bytes, the version in the lower two.
const MAGIC: u64 = 0x464C_4354_524C_0000 | CONTROL_VERSION;
const FRAME_SIZE_WORDS: usize = 32;
/// Size of every message, in bytes.
pub(super) const FRAME_SIZE_BYTES: usize = FRAME_SIZE_WORDS * 8;
const TEXT_START_BYTES: usize = 5 * 8;
const TEXT_SIZE_BYTES_MAX: usize = FRAME_SIZE_BYTES - TEXT_START_BYTES;

/// A message as sent over the socket.
pub(super) type Frame = [u8; FRAME_SIZE_BYTES];

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShmRequest {
    /// Requests the memory.
    Hello,
    /// Requests a new session.
    Register,
    /// Reports that the session has drained, so it counts as fenced.
    Close(OwnerWord),
    /// Asks whether the session is fenced.
    Life(OwnerWord),
}

/// The node's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ShmReply {
    /// The reply to a hello; the message carries the memory's descriptor. `size_bytes` is its size.
    Memory { size_bytes: u64 },
    /// The new session.
    Session(OwnerWord),
    /// Confirmation of a close.
    Closed,
    /// Process of an unfenced session; `None` if it is fenced.
    Life(Option<u32>),
    /// Refusal, with the reason.
    Refused(String),
}

/// Error: the frame is not a valid message. The text completes "the peer sent ...".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

impl ShmRequest {
    pub(super) fn encode(self) -> Frame {
        let (number, owner) = match self {
            Self::Hello => (1, 0),
            Self::Register => (2, 0),
            Self::Close(owner) => (3, owner.word()),
            Self::Life(owner) => (4, owner.word()),
        };
        frame(&[MAGIC, number, owner, 0, 0], "")
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let words = decode_words(bytes)?;
        let owner = OwnerWord::from_word(words[2]);
        match words[1] {
            1 => Ok(Self::Hello),
            2 => Ok(Self::Register),
            3 => Ok(Self::Close(owner)),
            4 => Ok(Self::Life(owner)),
            number => Err(Malformed(format!("an unknown request number {number}"))),
        }
    }
}

impl ShmReply {
    pub(super) fn encode(&self) -> Frame {
        match self {
            Self::Memory { size_bytes } => frame(&[MAGIC, 1, *size_bytes, 0, 0], ""),
            Self::Session(owner) => frame(&[MAGIC, 2, owner.word(), 0, 0], ""),
            Self::Closed => frame(&[MAGIC, 3, 0, 0, 0], ""),
            Self::Life(pid) => frame(&[MAGIC, 4, 0, pid.unwrap_or(0).into(), 0], ""),
            Self::Refused(reason) => frame(&[MAGIC, 0, 0, 0, 0], reason),
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let words = decode_words(bytes)?;
        match words[1] {
            0 => Ok(Self::Refused(decode_text(bytes, words[4]))),
            1 => Ok(Self::Memory {
                size_bytes: words[2],
            }),
            2 => OwnerWord::from_name(words[2])
                .map(Self::Session)
                .ok_or_else(|| Malformed(format!("an invalid session {:#x}", words[2]))),
            3 => Ok(Self::Closed),
            4 => u32::try_from(words[3])
                .map(|pid| Self::Life((pid != 0).then_some(pid)))
                .map_err(|_| Malformed(format!("an invalid process number {}", words[3]))),
            number => Err(Malformed(format!("an unknown reply number {number}"))),
        }
    }
}

fn frame(words: &[u64; 5], text: &str) -> Frame {
    let mut frame = [0; FRAME_SIZE_BYTES];
    for (bytes, word) in frame.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let end = text.floor_char_boundary(TEXT_SIZE_BYTES_MAX);
    frame[32..40].copy_from_slice(&(end as u64).to_le_bytes());
    frame[TEXT_START_BYTES..TEXT_START_BYTES + end].copy_from_slice(&text.as_bytes()[..end]);
    frame
}

fn decode_words(bytes: &[u8]) -> Result<[u64; 5], Malformed> {
    if bytes.len() != FRAME_SIZE_BYTES {
        let size = bytes.len();
        return Err(Malformed(format!(
            "a message of {size} bytes, expected {FRAME_SIZE_BYTES}"
        )));
    }
    let mut words = [0; 5];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes
            .iter()
            .rev()
            .fold(0, |word, byte| (word << 8) | u64::from(*byte));
    }
    match words[0] {
        MAGIC => Ok(words),
        other if other >> 16 == MAGIC >> 16 => Err(Malformed(format!(
            "a message of protocol version {}, expected version {CONTROL_VERSION}",
            other & 0xFFFF
        ))),
        _ => Err(Malformed(
            "a message that is not in Farleaf's protocol".to_owned(),
        )),
    }
}

fn decode_text(bytes: &[u8], size_bytes: u64) -> String {
    let size = usize::try_from(size_bytes)
        .unwrap_or(usize::MAX)
        .min(TEXT_SIZE_BYTES_MAX);
    String::from_utf8_lossy(&bytes[TEXT_START_BYTES..TEXT_START_BYTES + size]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use farleaf_base::{Incarnation, SessionId};
    use proptest::prelude::*;

    fn owner() -> OwnerWord {
        OwnerWord::new(SessionId::new(7).expect("not 0"), Incarnation::new(99))
    }

    #[test]
    fn frames_are_golden() {
        let frame = ShmRequest::Close(owner()).encode();
        assert_eq!(frame[..8], [1, 0, 0x4C, 0x52, 0x54, 0x43, 0x4C, 0x46]);
        assert_eq!(
            frame[8..24],
            [3, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 7, 0]
        );
        assert!(frame[24..].iter().all(|byte| *byte == 0));
        let frame = ShmReply::Refused("no".to_owned()).encode();
        assert_eq!((frame[8], frame[32], &frame[40..43]), (0, 2, &b"no\0"[..]));
    }

    #[test]
    fn messages_survive_the_way() {
        for request in [
            ShmRequest::Hello,
            ShmRequest::Register,
            ShmRequest::Close(owner()),
            ShmRequest::Life(owner()),
        ] {
            assert_eq!(ShmRequest::decode(&request.encode()), Ok(request));
        }
        let long = "ä".repeat(200);
        for reply in [
            ShmReply::Memory {
                size_bytes: 1 << 40,
            },
            ShmReply::Session(owner()),
            ShmReply::Closed,
            ShmReply::Life(Some(4_000_000)),
            ShmReply::Life(None),
            ShmReply::Refused("full".to_owned()),
        ] {
            assert_eq!(ShmReply::decode(&reply.encode()), Ok(reply));
        }
        let Ok(ShmReply::Refused(cut)) =
            ShmReply::decode(&ShmReply::Refused(long.clone()).encode())
        else {
            panic!("a long reason is still a refusal");
        };
        assert!(
            long.starts_with(&cut) && cut.len() > 200,
            "cut at a character: {cut}"
        );
    }

    /// Promise: a lock word with the handover flag is not accepted as a session.
    #[test]
    fn a_flagged_owner_is_refused() {
        let frame = ShmReply::Session(owner().handed()).encode();
        assert!(matches!(ShmReply::decode(&frame), Err(Malformed(_))));
    }

    #[test]
    fn another_version_is_named() {
        let mut frame = ShmRequest::Hello.encode();
        frame[0] = 9;
        let Err(Malformed(text)) = ShmRequest::decode(&frame) else {
            panic!("must be refused")
        };
        assert!(text.contains("version 9"), "{text}");
    }

    proptest! {
        /// Promise: decoding of arbitrary bytes returns a message or an error, and never panics.
        #[test]
        fn any_bytes_decode_or_are_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..=FRAME_SIZE_BYTES + 1),
            ours: bool,
        ) {
            if ours && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes.resize(FRAME_SIZE_BYTES, 0);
                if bytes[8] < 6 { bytes[9..16].fill(0); }
            }
            let _ = ShmRequest::decode(&bytes);
            let _ = ShmReply::decode(&bytes);
        }
    }
}
