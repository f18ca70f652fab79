//! Calls over one-sided WRITEs (Talos, section 3.6; see docs/explanation/calls.md).
//!
//! A request is written into a ring in the server's memory, the reply into a ring in the caller's
//! memory. Each side polls its own memory.
//!
//! | module | content |
//! |---|---|
//! | [`segment`] | tags, heads and payloads: the bytes of a message |
//! | [`space`] | segments of a ring in use, as known to the caller, which assigns them |
//! | [`caller`] | calls: any number at a time, replies in any order |
//! | [`mailbox`] | the server's side of one caller |
//! | [`error`] | errors of calls and of mailboxes |
//!
//! - **Segments.** A ring consists of adjacent segments of 128 bytes. A message takes one or more
//!   adjacent segments. The first word of a segment is reserved for a tag. In the first segment of
//!   a message, the tag contains the sequence number, the number of segments and the kind of the
//!   message; in its other segments it is 0. So a payload is never mistaken for a tag.
//! - **Tag last.** One batch writes a message: first everything but the tag, then the tag. A reader
//!   that sees the tag and reads the rest with a later verb sees all of it (FABRIC-2). No code
//!   relies on the order of words within a WRITE (FABRIC-3). The caller's ring may be its window
//!   (FABRIC-10), which only the server writes into.
//! - **Ring space.** Only the caller assigns the space of both rings; a request names the space of
//!   its reply. The segments of a request are reused once its reply has arrived, those of a reply
//!   once it has been copied out. Both are reused in the order of their assignment. If there is no
//!   space, calls wait for their turn.
//! - **Rendezvous point.** The server polls one word: the position of the next request's tag, right
//!   behind the last request. Requests are numbered from 1 without gaps. Only a tag with the next
//!   number is a request, so remains of an earlier round are ignored. If a request does not fit
//!   before the end of the ring, a *reset* precedes it. A reset has its own number and sends the
//!   server to the beginning of the ring.
//! - **Replies.** A reply has its request's number, and the caller accepts no other number at that
//!   position. Replies arrive in any order.
//! - **Long replies.** A reply that is longer than its space arrives in parts. The first part
//!   states the whole length; the server keeps the rest until the caller has fetched it by further
//!   requests. Each request names the smallest number that its caller still waits for; retained
//!   replies below it are dropped. A reply that would exceed the limit of retained bytes is
//!   refused.
//! - **Validation.** The server trusts nothing in a ring. An invalid tag, a position outside of a
//!   ring, or a contradiction ends that caller's mailbox with an error that describes it. Replies
//!   are written only into the caller's own ring.
//! - **Cut-off callers.** A caller that is cut off in the middle of a batch does not know which
//!   part was written. So it counts as broken and makes no more calls. If a call is cut off later,
//!   a following call releases its space once the reply has arrived.
//! - **Reuse of rings.** Rings begin zeroed. They are assigned to another caller only after the
//!   previous one is fenced (FABRIC-6), no reply to it can be written any more, and they have been
//!   zeroed again. Numbers and positions restart, so the next caller would otherwise accept an old
//!   reply as its own.
//!
//! The module does not interpret requests, register memory, or choose the threads that reply.

pub mod caller;
pub mod error;
pub mod mailbox;
pub mod segment;
pub mod space;

mod local;

pub use caller::{Caller, CallerRings};
pub use error::{CallError, MailboxError, MalformedMessage};
pub use mailbox::{Mailbox, Replies, ReplySpace, Request};
pub use segment::{Ring, SEGMENT_SIZE_BYTES};
