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
    #[error("invalid reply from the server: {0}; check that it runs the same version of farleaf")]
    Malformed(MalformedMessage),
    /// Another call was cut off while it wrote, or its batch failed, before this request was
    /// written. Nothing of this request was sent. Connect again.
    #[error("the calls to this server were interrupted while sending a request; connect again")]
    Broken,
    /// Another call was cut off while it wrote, or its batch failed, after this request was
    /// written. It is unknown whether the server has executed this request.
    #[error(
        "the calls to this server were interrupted while sending another request; this request may \
         have been executed; connect again"
    )]
    Unanswered,
    /// The server is gone, or has ended the session. Whether it has executed the request is
    /// unknown.
    #[error(
        "the server has stopped, or has ended this session; the request may have been executed; \
         connect again and check"
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
    #[error("invalid request from the caller: {0}")]
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
    #[error("invalid tag {word:#x} in segment {segment}")]
    Tag {
        /// Segment of the tag.
        segment: u32,
        /// The word found there.
        word: u64,
    },
    /// The sequence number is not the expected one.
    #[error("expected sequence number {expected} in segment {segment}, found {found}")]
    Sequence {
        /// Segment of the tag.
        segment: u32,
        /// Number found.
        found: u64,
        /// Number expected.
        expected: u64,
    },
    /// The message has more segments than remain before the end of the ring, or than were reserved.
    #[error("{count} segments from segment {segment} on, only {there} are available")]
    TooManySegments {
        /// First segment of the message.
        segment: u32,
        /// Number of segments of the message.
        count: u32,
        /// Number of segments available.
        there: u32,
    },
    /// The payload is longer than the message.
    #[error("payload size {size_bytes} exceeds the message's capacity of {space_bytes} bytes")]
    TooLong {
        /// Stated size of the payload in bytes.
        size_bytes: u32,
        /// Capacity of the message's segments in bytes.
        space_bytes: usize,
    },
    /// The payload of a fetch does not have the size of a sequence number and an offset.
    #[error("expected a fetch payload of {due_bytes} bytes, found {size_bytes}")]
    Fetch {
        /// Size found, in bytes.
        size_bytes: usize,
        /// Size expected, in bytes.
        due_bytes: usize,
    },
    /// The space named for the reply is outside of the ring.
    #[error(
        "reply space of {count} segments from segment {first} on is outside the ring of {there}"
    )]
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
        "unexpected part of {size_bytes} bytes of a reply of {whole_size_bytes} bytes, of which \
         {due_bytes} bytes are due"
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
