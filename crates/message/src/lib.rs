//! Calls over one-sided WRITEs: a request is written into a ring in the server's memory, the reply
//! into a ring in the caller's, and either side polls its own memory (DESIGN 6; Talos, section
//! 3.6).
//!
//! | module | what it holds |
//! |---|---|
//! | [`segment`] | tags, heads and payloads: the bytes of a message |
//! | [`space`] | which segments of a ring are in use, as the one knows who writes into it |
//! | [`caller`] | calls: any number at a time, replies in any order |
//! | [`mailbox`] | the server's side of one caller |
//! | [`error`] | why a call has no answer |
//!
//! - **E1.** A ring is so many segments of 128 bytes, side by side. A message takes one or more of
//!   them, also side by side. The first word of a segment is a tag's and nothing else's: in the
//!   first segment of a message it says the message's sequence number, how many segments there are
//!   and what it is for; in the others it is 0. So no payload is ever taken for a tag.
//! - **E2.** A message is written by one batch: first everything but the tag, then the tag. Who
//!   sees the tag, and reads the rest with a later verb, sees all of it (F2); nobody relies on the
//!   order of words within a WRITE (F3).
//!   The caller's ring may be its window (F10), which only the server writes into.
//! - **E3.** Whoever makes calls hands out the space of both rings, and nobody else: the place of
//!   the reply is named in the request. Segments of a request are used again when its reply is
//!   there, those of a reply when it has been copied out, both in the order in which they were
//!   handed out. When there is no room, calls wait their turn.
//! - **E4.** The server looks at one place, the *rendezvous point*: where the next request's tag
//!   will be, which is right behind the last one. Requests are numbered from 1 on without a gap,
//!   and only the tag with the next number is a request; so what was left there by an earlier round
//!   is none. A request that would not fit before the end of the ring is preceded by a *reset*,
//!   which has a number of its own and sends the server to the beginning.
//! - **E5.** A reply has its request's number, and the caller expects no other at its place.
//!   Replies come in any order.
//! - **E6.** A reply that is longer than the space announced for it comes in parts: the first says
//!   how long it is, and the server keeps the rest until the caller has fetched it, by further
//!   requests. Each request says below which number its caller waits for nothing any more; what is
//!   kept for those is forgotten. What would be too much to keep is refused.
//! - **E7.** The server believes nothing of a ring: whatever is no tag, leads out of a ring or
//!   contradicts itself ends that caller's mailbox, with an error that says what it was. Replies
//!   are written nowhere but in the caller's own ring.
//! - **E8.** A caller that is cut off in the middle of a batch does not know what of it is there,
//!   so it counts as broken, and makes no call any more. One that is cut off later leaves its
//!   places to whoever calls next, who gives them back when the reply has come.
//! - **E9.** Rings begin zeroed, and are given to another caller only when the last one is fenced
//!   (F6), no reply to it can be written any more (numbers and places begin anew, so the next one
//!   would take it for its own), and they are zeroed again.
//!
//! What it is not: it does not know what is asked, who registers memory, or which thread answers.
#![forbid(unsafe_code)]

pub mod caller;
pub mod error;
pub mod mailbox;
pub mod segment;
pub mod space;

mod local;

pub use caller::{Caller, Lines};
pub use error::{CallError, MailboxError, MalformedMessage};
pub use mailbox::{Mailbox, Replies, ReplyPlace, Request};
pub use segment::{Ring, SEGMENT_SIZE_BYTES};
