//! Errors of calls and of mailboxes.

use crate::BatchError;
use thiserror::Error;

/// Reason why a call has no reply.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The request is too long for one message.
    #[error("a request of {size_bytes} bytes is too large: at most {size_bytes_max} can be sent")]
    RequestTooLarge {
        /// Size of the request in bytes.
        size_bytes: usize,
        /// Largest size that the rings allow, in bytes.
        size_bytes_max: usize,
    },
    /// The server has read the request and refuses to reply. It may have executed the request.
    #[error("the server refused the request: {reason}")]
    Refused {
        /// Reason that the server gave.
        reason: String,
    },
    /// The reply is invalid. The content of these rings cannot be trusted any more.
    #[error("the server sent a reply that {0}; is it a farleaf of the same version?")]
    Malformed(MalformedMessage),
    /// Another call was cut off while it wrote, or its batch failed, before this request was
    /// written. Nothing of this request was sent. Connect again.
    #[error("the calls to this server were cut off in the middle of a request; connect again")]
    Broken,
    /// Another call was cut off while it wrote, or its batch failed, after this request was
    /// written. It is unknown whether the server has executed this request.
    #[error(
        "the calls to this server were cut off in the middle of another request; whether it has \
         done what was asked by this one is unknown; connect again"
    )]
    Unanswered,
    /// The server is gone, or has ended the session. Whether it has executed the request is
    /// unknown.
    #[error(
        "the server is gone, or has ended this session; whether it has done what was asked is \
         unknown; connect again, and look"
    )]
    Gone,
    /// The fabric failed. Whether the server has received the request is unknown.
    #[error(transparent)]
    Fabric(#[from] BatchError),
}

/// Reason why a mailbox is unusable.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MailboxError {
    /// The caller wrote an invalid request.
    #[error("the caller wrote a request that {0}")]
    Malformed(MalformedMessage),
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] BatchError),
}

/// Violation of the message format.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MalformedMessage {
    /// The tag has no segments, an unknown kind, or a kind that is not allowed in this ring.
    #[error("has the tag {word:#x} in segment {segment}, which is none")]
    Tag {
        /// Segment of the tag.
        segment: u32,
        /// The word found there.
        word: u64,
    },
    /// The sequence number is not the expected one.
    #[error("has number {found} in segment {segment}, where {expected} is to come")]
    Sequence {
        /// Segment of the tag.
        segment: u32,
        /// Number found.
        found: u64,
        /// Number expected.
        expected: u64,
    },
    /// The message has more segments than remain before the end of the ring, or than were reserved.
    #[error("begins in segment {segment} and takes {count}, where there are {there}")]
    TooManySegments {
        /// First segment of the message.
        segment: u32,
        /// Number of segments of the message.
        count: u32,
        /// Number of segments available.
        there: u32,
    },
    /// The payload is longer than the message.
    #[error("says that it has {size_bytes} bytes, where it has room for {room_bytes}")]
    TooLong {
        /// Stated size of the payload in bytes.
        size_bytes: u32,
        /// Capacity of the message's segments in bytes.
        room_bytes: usize,
    },
    /// The payload of a fetch does not have the size of a sequence number and an offset.
    #[error("fetches more of a reply with {size_bytes} bytes, where it takes {due_bytes}")]
    Fetch {
        /// Size found, in bytes.
        size_bytes: usize,
        /// Size expected, in bytes.
        due_bytes: usize,
    },
    /// The space named for the reply is outside of the ring.
    #[error("wants its reply in {count} segments from {first} on, of a ring of {there}")]
    ReplySpace {
        /// First segment.
        first: u32,
        /// Number of segments named.
        count: u32,
        /// Number of segments of the ring.
        there: u32,
    },
    /// A part does not continue the reply that earlier parts began.
    #[error(
        "is {size_bytes} bytes long in a part, of {whole_size_bytes}, where {due_bytes} are due"
    )]
    Part {
        /// Size of the part in bytes.
        size_bytes: u32,
        /// Size of the whole reply in bytes, as stated by the part.
        whole_size_bytes: u32,
        /// Bytes of the reply still expected.
        due_bytes: u64,
    },
}
