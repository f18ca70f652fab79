//! Why a call has no answer, and why a mailbox is of no use any more.

use farleaf_fabric::BatchError;
use thiserror::Error;

/// Why a call has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The request cannot be written at once.
    #[error("a request of {size_bytes} bytes is too large: at most {size_bytes_max} can be sent")]
    RequestTooLarge {
        /// Its size.
        size_bytes: usize,
        /// What the rings allow.
        size_bytes_max: usize,
    },
    /// The server has read the request, and gives no answer. It may have done what was asked.
    #[error("the server refused the request: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// What came is no reply. Nothing that comes by these rings can be believed.
    #[error("the server sent a reply that {0}; is it a farleaf of the same version?")]
    Malformed(MalformedMessage),
    /// E8: a call was cut off while it wrote, or its batch failed, before this one was written.
    /// Nothing of this one was sent. Connect again.
    #[error("the calls to this server were cut off in the middle of a request; connect again")]
    Broken,
    /// E8: the same, after this one was written: the server may have come to it, or never will.
    #[error(
        "the calls to this server were cut off in the middle of another request; whether it has \
         done what was asked by this one is unknown; connect again"
    )]
    Unanswered,
    /// The server is gone, or has ended the session. Whether it has done what was asked is unknown.
    #[error(
        "the server is gone, or has ended this session; whether it has done what was asked is \
         unknown; connect again, and look"
    )]
    Gone,
    /// The fabric failed. Whether the server has got the request is unknown.
    #[error(transparent)]
    Fabric(#[from] BatchError),
}

/// Why a mailbox is of no use any more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MailboxError {
    /// E7: what its caller has written is no request.
    #[error("the caller wrote a request that {0}")]
    Malformed(MalformedMessage),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] BatchError),
}

/// What is wrong with a message.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MalformedMessage {
    /// A tag of no kind that is known, without segments, or of a kind that has no business there.
    #[error("has the tag {word:#x} in segment {segment}, which is none")]
    Tag {
        /// Where.
        segment: u32,
        /// What is there.
        word: u64,
    },
    /// A number that is not to come yet.
    #[error("has number {found} in segment {segment}, where {expected} is to come")]
    Sequence {
        /// Where.
        segment: u32,
        /// What is there.
        found: u64,
        /// What is to be there.
        expected: u64,
    },
    /// More segments than are left before the end, or than were announced.
    #[error("begins in segment {segment} and takes {count}, where there are {there}")]
    TooManySegments {
        /// Where.
        segment: u32,
        /// How many it takes.
        count: u32,
        /// How many there are.
        there: u32,
    },
    /// A payload that is longer than the message.
    #[error("says that it has {size_bytes} bytes, where it has room for {room_bytes}")]
    TooLong {
        /// What it says.
        size_bytes: u32,
        /// What its segments hold.
        room_bytes: usize,
    },
    /// A fetch that does not say whose reply, and from where on (E6).
    #[error("fetches more of a reply with {size_bytes} bytes, where it takes {due_bytes}")]
    Fetch {
        /// What it has.
        size_bytes: usize,
        /// What it takes.
        due_bytes: usize,
    },
    /// A place for the reply that is outside of the ring.
    #[error("wants its reply in {count} segments from {first} on, of a ring of {there}")]
    ReplyPlace {
        /// The first segment.
        first: u32,
        /// How many.
        count: u32,
        /// How many there are.
        there: u32,
    },
    /// A part that is no part of the reply that was begun.
    #[error(
        "is {size_bytes} bytes long in a part, of {whole_size_bytes}, where {due_bytes} are due"
    )]
    Part {
        /// Bytes of the part.
        size_bytes: u32,
        /// Bytes of the whole, as it says.
        whole_size_bytes: u32,
        /// Bytes that are still to come.
        due_bytes: u64,
    },
}
