//! Calls: requests written into a server's ring, and the replies that the server writes back.

use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::mem;
use core::task::Poll;
use std::collections::{BTreeSet, VecDeque};

use crate::{Batch, BatchError, Critical, Endpoint, ProtocolCheck};
use farleaf_base::WordAddr;
use farleaf_executor::backoff;

use crate::message::error::{CallError, MalformedMessage};
use crate::message::local::load;
use crate::message::segment::{
    MESSAGE_SEGMENT_COUNT_MAX, MessageKind, REPLY_HEAD_SIZE_WORDS, REQUEST_HEAD_SIZE_WORDS,
    ReplyHead, RequestHead, Ring, SEGMENT_SIZE_WORDS, SEQUENCE_MAX, Tag, capacity_bytes,
    decode_payload, encode, segment_count_for,
};
use crate::message::space::{RingRange, RingSpace};

/// The state of a pair of rings that a caller keeps between calls; used by one thread.
#[derive(Debug)]
pub struct CallerRings {
    requests: Ring,
    replies: Ring,
    /// True if the ring of replies is the caller's window (FABRIC-10).
    has_window: bool,
    state: RefCell<CallerState>,
    /// Set when a caller was cut off while it wrote a request.
    is_broken: Cell<bool>,
}

/// Backoff attempt that yields to other threads, and the number of such yields.
const YIELD_ATTEMPT: u32 = 11;
const YIELD_COUNT: u32 = 100;

/// One caller of one server; used by one thread, for any number of concurrent calls.
///
/// A call costs the caller one batch of two WRITEs with all segments of the request, or three
/// WRITEs if the end of the ring was reached; the server writes its reply in the same way. While it
/// waits, the caller polls its own memory. Calls wait for their turn, so the futures of all of them
/// must be polled.
#[derive(Debug)]
pub struct Caller<'a, E, N> {
    /// Endpoint that writes into the server's memory.
    server: &'a E,
    /// Endpoint that reads the caller's own memory.
    local_endpoint: &'a N,
    rings: &'a CallerRings,
}

#[derive(Debug)]
struct CallerState {
    request_space: RingSpace,
    reply_space: RingSpace,
    /// Last sequence number assigned.
    last_sequence: u64,
    /// Calls that wait for ring space, in order of arrival.
    queue: VecDeque<u64>,
    last_ticket: u64,
    /// Number of messages whose space is still in use.
    posted_count: usize,
    /// Sequence numbers whose replies are not complete yet.
    awaited: BTreeSet<u64>,
    /// Messages of calls that were cut off, whose replies are still to come.
    abandoned: VecDeque<PostedMessage>,
    /// Buffer for the words of a message that is written or read.
    words: Vec<u64>,
}

/// A message that the server will reply to.
#[derive(Clone, Copy, Debug)]
struct PostedMessage {
    sequence: u64,
    request: RingRange,
    reply: RingRange,
}

/// Content of a request.
struct OutgoingMessage<'a> {
    kind: MessageKind,
    payload: &'a [u8],
    reply_segment_count: u32,
}

impl CallerRings {
    /// Creates the state of two zeroed rings: `requests` in the server's memory, `replies` in the
    /// caller's own.
    pub fn new(requests: Ring, replies: Ring) -> Self {
        Self {
            requests,
            replies,
            has_window: false,
            state: RefCell::new(CallerState {
                request_space: RingSpace::new(requests.segment_count()),
                reply_space: RingSpace::new(replies.segment_count()),
                last_sequence: 0,
                queue: VecDeque::new(),
                last_ticket: 0,
                posted_count: 0,
                awaited: BTreeSet::new(),
                abandoned: VecDeque::new(),
                words: Vec::new(),
            }),
            is_broken: Cell::new(false),
        }
    }

    /// Creates the state of two zeroed rings, of which `replies` begins with the first word of the
    /// caller's window (FABRIC-10).
    pub fn in_window(requests: Ring, replies: Ring) -> Self {
        Self {
            has_window: true,
            ..Self::new(requests, replies)
        }
    }

    /// Returns true if no call is possible any more, because one was cut off while it wrote.
    pub fn is_broken(&self) -> bool {
        self.is_broken.get()
    }
}

impl<'a, E: Endpoint, N: Endpoint> Caller<'a, E, N> {
    /// Creates a caller on these rings. `server` reaches the ring of requests, `local_endpoint` the
    /// ring of replies.
    pub fn new(server: &'a E, local_endpoint: &'a N, rings: &'a CallerRings) -> Self {
        Self {
            server,
            local_endpoint,
            rings,
        }
    }

    /// Returns true if no call is possible any more, because one was cut off while it wrote.
    pub fn is_broken(&self) -> bool {
        self.rings.is_broken()
    }

    /// Returns the size of the longest request, in bytes.
    pub fn request_size_bytes_max(&self) -> usize {
        let place = self.rings.state.borrow().request_space.place_size_max();
        let most = place.min(MESSAGE_SEGMENT_COUNT_MAX);
        capacity_bytes(most, REQUEST_HEAD_SIZE_WORDS)
    }

    /// Sends a request and appends the reply to `reply`.
    ///
    /// The call reserves space for `reply_size_bytes`. A longer reply also arrives, with one more
    /// call for each part. While the call waits, it polls `is_gone`.
    ///
    /// # Errors
    /// After any error but [`CallError::RequestTooLarge`] it is unknown whether the request was
    /// served, even if the server refused because a reply was too long to be kept. `reply` may
    /// contain parts then.
    pub async fn call(
        &self,
        batch: &mut Batch,
        request: &[u8],
        reply_size_bytes: usize,
        reply: &mut Vec<u8>,
        is_gone: impl Fn() -> bool,
    ) -> Result<(), CallError> {
        let size_bytes_max = self.request_size_bytes_max();
        if request.len() > size_bytes_max {
            let size_bytes = request.len();
            return Err(CallError::RequestTooLarge {
                size_bytes,
                size_bytes_max,
            });
        }
        let wanted = OutgoingMessage {
            kind: MessageKind::Request,
            payload: request,
            reply_segment_count: self.reply_segment_count(reply_size_bytes),
        };
        let posted = self.post(batch, &wanted, &is_gone).await?;
        let sequence = posted.sequence;
        let _awaited = Awaited(self, sequence);
        let begin = reply.len();
        let mut part = self.reply_to(batch, posted, reply, &is_gone).await?;
        let whole_size_bytes = part.whole_size_bytes;
        loop {
            let offset = (reply.len() - begin) as u64;
            let due_bytes = u64::from(whole_size_bytes).checked_sub(offset);
            let is_part = part.whole_size_bytes == whole_size_bytes
                && (part.size_bytes > 0 || whole_size_bytes == 0);
            let Some(due_bytes) = due_bytes.filter(|_| is_part) else {
                return Err(self.malformed(MalformedMessage::Part {
                    size_bytes: part.size_bytes,
                    whole_size_bytes: part.whole_size_bytes,
                    due_bytes: due_bytes.unwrap_or(0),
                }));
            };
            if due_bytes == 0 {
                return Ok(());
            }
            // The reply is longer than its space: fetch the rest in parts.
            let mut fetch = [0; 16];
            fetch[..8].copy_from_slice(&sequence.to_le_bytes());
            fetch[8..].copy_from_slice(&offset.to_le_bytes());
            let wanted = OutgoingMessage {
                kind: MessageKind::Fetch,
                payload: &fetch,
                reply_segment_count: self.reply_segment_count(due_bytes as usize),
            };
            let posted = self.post(batch, &wanted, &is_gone).await?;
            part = self.reply_to(batch, posted, reply, &is_gone).await?;
        }
    }

    /// Returns the number of segments to reserve for a reply.
    fn reply_segment_count(&self, size_bytes: usize) -> u32 {
        let most = self.rings.state.borrow().reply_space.place_size_max();
        let most = most.min(MESSAGE_SEGMENT_COUNT_MAX);
        segment_count_for(size_bytes, REPLY_HEAD_SIZE_WORDS).min(most)
    }

    /// Posts a message once both rings have space and it is its turn.
    async fn post(
        &self,
        batch: &mut Batch,
        wanted: &OutgoingMessage<'_>,
        is_gone: &impl Fn() -> bool,
    ) -> Result<PostedMessage, CallError> {
        let turn = CallTurn::new(&self.rings.state);
        let mut attempt = 0;
        let posted = loop {
            if self.rings.is_broken.get() {
                return Err(CallError::Broken);
            }
            if turn.has_arrived() {
                self.collect_abandoned(batch).await?;
                if let Some(posted) = self.take(wanted) {
                    break posted;
                }
            }
            if is_gone() {
                return Err(CallError::Gone);
            }
            wait_before_poll(attempt).await;
            attempt += 1;
        };
        drop(turn);
        // From here on an interruption may leave a hole in the ring.
        let critical = Critical::enter(&self.rings.is_broken);
        self.write(batch, wanted, &posted);
        self.server.execute(batch).await?;
        critical.passed();
        Ok(posted)
    }

    /// Takes a sequence number, and space in both rings.
    fn take(&self, wanted: &OutgoingMessage<'_>) -> Option<PostedMessage> {
        let mut state = self.rings.state.borrow_mut();
        let state = &mut *state;
        let count = segment_count_for(wanted.payload.len(), REQUEST_HEAD_SIZE_WORDS);
        if !state.request_space.has(count) {
            return None;
        }
        let reply = state.reply_space.take(wanted.reply_segment_count)?;
        let request = state.request_space.take(count);
        let request = request.expect("there is room");
        state.last_sequence += 1 + u64::from(request.reset_at.is_some());
        let sequence = state.last_sequence;
        assert!(sequence <= SEQUENCE_MAX, "a caller makes fewer calls");
        if wanted.kind == MessageKind::Request {
            state.awaited.insert(sequence);
        }
        state.posted_count += 1;
        if self.rings.has_window && state.posted_count == 1 {
            self.local_endpoint.await_window(true);
        }
        Some(PostedMessage {
            sequence,
            request,
            reply,
        })
    }

    /// Adds the WRITEs of a message: everything but the tag, then the tag.
    fn write(&self, batch: &mut Batch, wanted: &OutgoingMessage<'_>, posted: &PostedMessage) {
        let mut state = self.rings.state.borrow_mut();
        let head = RequestHead {
            size_bytes: wanted.payload.len() as u32,
            reply_first: posted.reply.first,
            reply_segment_count: posted.reply.segment_count,
            awaited_from: *state.awaited.first().expect("this call is awaited"),
        };
        let tag = Tag {
            sequence: posted.sequence,
            segment_count: posted.request.segment_count,
            kind: wanted.kind,
        };
        let words = &mut state.words;
        encode(tag, &head.words(), wanted.payload, words);
        batch.clear();
        let start = self.rings.requests.at(posted.request.first);
        batch.write(start.offset(1), &words[1..]);
        batch.write_word(start, words[0]);
        if let Some(segment) = posted.request.reset_at {
            let reset = Tag {
                sequence: posted.sequence - 1,
                segment_count: 1,
                kind: MessageKind::Reset,
            };
            batch.write_word(self.rings.requests.at(segment), reset.word());
        }
    }

    /// Waits for the reply to a message, and appends its payload to `reply`.
    async fn reply_to(
        &self,
        batch: &mut Batch,
        posted: PostedMessage,
        reply: &mut Vec<u8>,
        is_gone: &impl Fn() -> bool,
    ) -> Result<ReplyHead, CallError> {
        let abandoned = Abandoned(self, Some(posted));
        let mut attempt = 0;
        let tag = loop {
            if let Some(tag) = self.arrived(batch, &posted).await? {
                break tag;
            }
            if self.rings.is_broken.get() {
                return Err(CallError::Unanswered);
            }
            if is_gone() {
                return Err(CallError::Gone);
            }
            let place = self.rings.replies.at(posted.reply.first);
            if self.rings.has_window && self.local_endpoint.wakes_when_written(place.index()) {
                pend_once().await;
            } else {
                wait_before_poll(attempt).await;
            }
            attempt += 1;
        };
        let mut words = mem::take(&mut self.rings.state.borrow_mut().words);
        words.resize(tag.segment_count as usize * SEGMENT_SIZE_WORDS as usize, 0);
        let start = self.rings.replies.at(posted.reply.first);
        self.read_replies(batch, start, &mut words).await?;
        abandoned.answered();
        let taken = self.take_reply(tag, &words, reply);
        self.rings.state.borrow_mut().words = words;
        taken
    }

    /// Appends the payload of a reply to `reply`.
    fn take_reply(
        &self,
        tag: Tag,
        words: &[u64],
        reply: &mut Vec<u8>,
    ) -> Result<ReplyHead, CallError> {
        let head = ReplyHead::from_words(words);
        let space_bytes = capacity_bytes(tag.segment_count, REPLY_HEAD_SIZE_WORDS);
        if head.size_bytes as usize > space_bytes {
            let size_bytes = head.size_bytes;
            return Err(self.malformed(MalformedMessage::TooLong {
                size_bytes,
                space_bytes,
            }));
        }
        let size_bytes = head.size_bytes as usize;
        if tag.kind == MessageKind::Refused {
            let mut reason = Vec::new();
            decode_payload(words, size_bytes, REPLY_HEAD_SIZE_WORDS, &mut reason);
            let reason = String::from_utf8_lossy(&reason).into_owned();
            return Err(CallError::Refused { reason });
        }
        decode_payload(words, size_bytes, REPLY_HEAD_SIZE_WORDS, reply);
        Ok(head)
    }

    /// Reads words of the ring of replies.
    async fn read_replies(
        &self,
        batch: &mut Batch,
        from: WordAddr,
        to: &mut [u64],
    ) -> Result<(), BatchError> {
        if !self.rings.has_window {
            return load(self.local_endpoint, batch, from, to).await;
        }
        if !self.local_endpoint.read_window(from.index(), to) {
            // The window receives nothing more; a batch returns the reason (FABRIC-10).
            batch.clear();
            batch.read(self.rings.requests.at(0), 1);
            self.server.execute(batch).await?;
            panic!("a window is open as long as its session");
        }
        Ok(())
    }

    /// Releases the space of a message.
    fn release(&self, posted: PostedMessage) {
        let mut state = self.rings.state.borrow_mut();
        state.release(posted);
        if self.rings.has_window && state.posted_count == 0 {
            self.local_endpoint.await_window(false);
        }
    }

    /// Returns the tag of a reply if it has arrived.
    async fn arrived(
        &self,
        batch: &mut Batch,
        posted: &PostedMessage,
    ) -> Result<Option<Tag>, CallError> {
        let (segment, mut word) = (posted.reply.first, [0]);
        let place = self.rings.replies.at(segment);
        self.read_replies(batch, place, &mut word).await?;
        if Tag::sequence_of(word[0]) != posted.sequence {
            // The word is zero, or left over from an earlier round.
            return Ok(None);
        }
        let is_reply = |tag: &Tag| matches!(tag.kind, MessageKind::Reply | MessageKind::Refused);
        let Some(tag) = Tag::from_word(word[0]).filter(is_reply) else {
            let word = word[0];
            return Err(self.malformed(MalformedMessage::Tag { segment, word }));
        };
        let (count, there) = (tag.segment_count, posted.reply.segment_count);
        if count > there {
            return Err(self.malformed(MalformedMessage::TooManySegments {
                segment,
                count,
                there,
            }));
        }
        Ok(Some(tag))
    }

    /// Releases the space of calls that were cut off and whose replies have arrived since.
    async fn collect_abandoned(&self, batch: &mut Batch) -> Result<(), CallError> {
        let count = self.rings.state.borrow().abandoned.len();
        for _ in 0..count {
            let Some(posted) = self.rings.state.borrow_mut().abandoned.pop_front() else {
                break;
            };
            // Put back if the reply has not arrived, and also if this future is dropped.
            let abandoned = Abandoned(self, Some(posted));
            if self.arrived(batch, &posted).await?.is_some() {
                abandoned.answered();
            }
        }
        Ok(())
    }

    fn malformed(&self, what: MalformedMessage) -> CallError {
        self.rings.is_broken.set(true);
        CallError::Malformed(what)
    }
}

impl CallerState {
    fn release(&mut self, posted: PostedMessage) {
        self.posted_count -= 1;
        self.request_space.release(posted.request);
        self.reply_space.release(posted.reply);
    }
}

/// Waits before the next poll. Backoff is designed for locks; a reply takes longer, but it comes.
/// So the thread first yields for a while, and sleeps only after that.
async fn wait_before_poll(attempt: u32) {
    let slower = attempt.saturating_sub(YIELD_COUNT);
    let attempt = attempt.min(YIELD_ATTEMPT);
    backoff(attempt + slower).await;
}

/// Pends once, until another task or thread wakes this one.
async fn pend_once() {
    let mut is_polled = false;
    poll_fn(|_| {
        if mem::replace(&mut is_polled, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// A call's place in the queue for ring space; dropping it leaves the queue.
struct CallTurn<'a> {
    state: &'a RefCell<CallerState>,
    ticket: u64,
}

impl<'a> CallTurn<'a> {
    fn new(state: &'a RefCell<CallerState>) -> Self {
        let mut borrowed = state.borrow_mut();
        borrowed.last_ticket += 1;
        let ticket = borrowed.last_ticket;
        borrowed.queue.push_back(ticket);
        drop(borrowed);
        Self { state, ticket }
    }

    fn has_arrived(&self) -> bool {
        self.state.borrow().queue.front() == Some(&self.ticket)
    }
}

impl Drop for CallTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        state.queue.retain(|ticket| *ticket != self.ticket);
    }
}

/// A message without a reply yet. Dropping it leaves the reply to later calls, which release the
/// space.
struct Abandoned<'a, 'b, E: Endpoint, N: Endpoint>(&'a Caller<'b, E, N>, Option<PostedMessage>);

impl<E: Endpoint, N: Endpoint> Abandoned<'_, '_, E, N> {
    /// Releases the space in both rings: the reply has been copied out, or no call wants it.
    fn answered(mut self) {
        if let Some(posted) = self.1.take() {
            self.0.release(posted);
        }
    }
}

impl<E: Endpoint, N: Endpoint> Drop for Abandoned<'_, '_, E, N> {
    fn drop(&mut self) {
        let Some(posted) = self.1.take() else { return };
        if self.0.server.skips_check(ProtocolCheck::PlaceIsAnswered) {
            self.0.release(posted);
        } else {
            let mut state = self.0.rings.state.borrow_mut();
            state.abandoned.push_back(posted);
        }
    }
}

/// A call whose reply is not complete yet. Dropping it marks the reply as no longer awaited.
struct Awaited<'a, 'b, E, N>(&'a Caller<'b, E, N>, u64);

impl<E, N> Drop for Awaited<'_, '_, E, N> {
    fn drop(&mut self) {
        self.0.rings.state.borrow_mut().awaited.remove(&self.1);
    }
}
