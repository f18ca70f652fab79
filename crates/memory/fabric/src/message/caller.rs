//! Calls: requests that are written to a server, and the replies that it writes back.

use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::mem;
use core::task::Poll;
use std::collections::{BTreeSet, VecDeque};

use farleaf_executor::backoff;
use farleaf_fabric::{Batch, BatchError, Critical, Endpoint, ProtocolCheck};
use farleaf_types::WordAddr;

use crate::error::{CallError, MalformedMessage};
use crate::local::load;
use crate::segment::{
    MESSAGE_SEGMENT_COUNT_MAX, MessageKind, REPLY_HEAD_SIZE_WORDS, REQUEST_HEAD_SIZE_WORDS,
    ReplyHead, RequestHead, Ring, SEGMENT_SIZE_WORDS, SEQUENCE_MAX, Tag, capacity_bytes,
    decode_payload, encode, segment_count_for,
};
use crate::space::{Place, Space};

/// What a caller keeps of its rings between calls. One for each pair of rings; used by one thread.
#[derive(Debug)]
pub struct Lines {
    requests: Ring,
    replies: Ring,
    /// F10: the ring of replies is the window of who calls.
    has_window: bool,
    state: RefCell<State>,
    /// E8.
    is_broken: Cell<bool>,
}

/// The attempt of a backoff that lets other threads run, and how often it is made.
const YIELD_ATTEMPT: u32 = 11;
const YIELD_COUNT: u32 = 100;

/// One caller of one server; used by one thread, for any number of calls at a time.
///
/// A call costs one batch of two WRITEs of the request's segments together, three if the ring's end
/// was reached, and the server as much. What is polled meanwhile is the caller's own memory. Calls
/// wait for each other's turn, so the futures of all of them have to be polled.
#[derive(Debug)]
pub struct Caller<'a, E, N> {
    /// The way into the server's memory.
    server: &'a E,
    /// Looks at its own.
    near: &'a N,
    lines: &'a Lines,
}

#[derive(Debug)]
struct State {
    request_space: Space,
    reply_space: Space,
    /// The last number given.
    last_sequence: u64,
    /// Calls that wait for room, in the order in which they came.
    queue: VecDeque<u64>,
    last_ticket: u64,
    /// Messages whose places have not been given back.
    posted_count: usize,
    /// Numbers whose replies are not whole yet (E6).
    awaited: BTreeSet<u64>,
    /// Messages of which the reply will come, and nobody wants it (E8).
    abandoned: VecDeque<Posted>,
    /// Room for the words of a message that is written or read.
    words: Vec<u64>,
}

/// A message that the server answers.
#[derive(Clone, Copy, Debug)]
struct Posted {
    sequence: u64,
    request: Place,
    reply: Place,
}

/// What is asked for.
struct Wanted<'a> {
    kind: MessageKind,
    payload: &'a [u8],
    reply_segment_count: u32,
}

impl Lines {
    /// Two rings, which begin zeroed (E9): `requests` in the server's memory, `replies` in the
    /// caller's own.
    pub fn new((requests, replies): (Ring, Ring)) -> Self {
        Self {
            requests,
            replies,
            has_window: false,
            state: RefCell::new(State {
                request_space: Space::new(requests.segment_count()),
                reply_space: Space::new(replies.segment_count()),
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

    /// The same, where `replies` begins with the first word of the caller's window (F10).
    pub fn in_window(rings: (Ring, Ring)) -> Self {
        Self {
            has_window: true,
            ..Self::new(rings)
        }
    }

    /// Whether no call can be made any more (E8).
    pub fn is_broken(&self) -> bool {
        self.is_broken.get()
    }
}

impl<'a, E: Endpoint, N: Endpoint> Caller<'a, E, N> {
    /// A caller by these rings: `server` leads to that of requests, and `near` looks at that of
    /// replies.
    pub fn new(server: &'a E, near: &'a N, lines: &'a Lines) -> Self {
        Self {
            server,
            near,
            lines,
        }
    }

    /// Whether no call can be made any more (E8).
    pub fn is_broken(&self) -> bool {
        self.lines.is_broken()
    }

    /// The longest request that can be sent, in bytes.
    pub fn request_size_bytes_max(&self) -> usize {
        let place = self.lines.state.borrow().request_space.place_size_max();
        let most = place.min(MESSAGE_SEGMENT_COUNT_MAX);
        capacity_bytes(most, REQUEST_HEAD_SIZE_WORDS)
    }

    /// Sends a request, and adds the reply to `reply`. Room is announced for `reply_size_bytes`; a
    /// longer reply comes all the same, with one more call for each part. `is_gone` is asked while
    /// there is nothing to do but to wait.
    ///
    /// # Errors
    /// All but [`CallError::RequestTooLarge`] leave it unknown whether the request was served: also
    /// a reply that is too long to be kept is refused. `reply` may hold parts then.
    pub async fn call(
        &self,
        batch: &mut Batch,
        request: &[u8],
        (reply_size_bytes, reply): (usize, &mut Vec<u8>),
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
        let wanted = Wanted {
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
            // E6.
            let mut fetch = [0; 16];
            fetch[..8].copy_from_slice(&sequence.to_le_bytes());
            fetch[8..].copy_from_slice(&offset.to_le_bytes());
            let wanted = Wanted {
                kind: MessageKind::Fetch,
                payload: &fetch,
                reply_segment_count: self.reply_segment_count(due_bytes as usize),
            };
            let posted = self.post(batch, &wanted, &is_gone).await?;
            part = self.reply_to(batch, posted, reply, &is_gone).await?;
        }
    }

    /// As many as the reply takes, or may take.
    fn reply_segment_count(&self, size_bytes: usize) -> u32 {
        let most = self.lines.state.borrow().reply_space.place_size_max();
        let most = most.min(MESSAGE_SEGMENT_COUNT_MAX);
        segment_count_for(size_bytes, REPLY_HEAD_SIZE_WORDS).min(most)
    }

    /// E2 to E4, when there is room and it is its turn.
    async fn post(
        &self,
        batch: &mut Batch,
        wanted: &Wanted<'_>,
        is_gone: &impl Fn() -> bool,
    ) -> Result<Posted, CallError> {
        let turn = Turn::new(&self.lines.state);
        let mut attempt = 0;
        let posted = loop {
            if self.lines.is_broken.get() {
                return Err(CallError::Broken);
            }
            if turn.has_come() {
                self.collect_abandoned(batch).await?;
                if let Some(posted) = self.take(wanted) {
                    break posted;
                }
            }
            if is_gone() {
                return Err(CallError::Gone);
            }
            look_again(attempt).await;
            attempt += 1;
        };
        drop(turn);
        // E8: from here on there may be a hole in the ring.
        let critical = Critical::enter(&self.lines.is_broken);
        self.write(batch, wanted, &posted);
        self.server.execute(batch).await?;
        critical.passed();
        Ok(posted)
    }

    /// A number, and room in both rings.
    fn take(&self, wanted: &Wanted<'_>) -> Option<Posted> {
        let mut state = self.lines.state.borrow_mut();
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
        if self.lines.has_window && state.posted_count == 1 {
            self.near.await_window(true);
        }
        Some(Posted {
            sequence,
            request,
            reply,
        })
    }

    /// E2: everything but the tag, then the tag.
    fn write(&self, batch: &mut Batch, wanted: &Wanted<'_>, posted: &Posted) {
        let mut state = self.lines.state.borrow_mut();
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
        let start = self.lines.requests.at(posted.request.first);
        batch.write(start.offset(1), &words[1..]);
        batch.write_word(start, words[0]);
        if let Some(segment) = posted.request.reset_at {
            let reset = Tag {
                sequence: posted.sequence - 1,
                segment_count: 1,
                kind: MessageKind::Reset,
            };
            batch.write_word(self.lines.requests.at(segment), reset.word());
        }
    }

    /// Waits for the reply to a message, and adds its payload to `reply`.
    async fn reply_to(
        &self,
        batch: &mut Batch,
        posted: Posted,
        reply: &mut Vec<u8>,
        is_gone: &impl Fn() -> bool,
    ) -> Result<ReplyHead, CallError> {
        let abandoned = Abandoned(self, Some(posted));
        let mut attempt = 0;
        let tag = loop {
            if let Some(tag) = self.arrived(batch, &posted).await? {
                break tag;
            }
            if self.lines.is_broken.get() {
                return Err(CallError::Unanswered);
            }
            if is_gone() {
                return Err(CallError::Gone);
            }
            let place = self.lines.replies.at(posted.reply.first);
            if self.lines.has_window && self.near.wakes_when_written(place.index()) {
                pend_once().await;
            } else {
                look_again(attempt).await;
            }
            attempt += 1;
        };
        let mut words = mem::take(&mut self.lines.state.borrow_mut().words);
        words.resize(tag.segment_count as usize * SEGMENT_SIZE_WORDS as usize, 0);
        let start = self.lines.replies.at(posted.reply.first);
        self.look(batch, start, &mut words).await?;
        abandoned.answered();
        let taken = self.take_reply(tag, &words, reply);
        self.lines.state.borrow_mut().words = words;
        taken
    }

    /// Adds the payload of a reply to `reply`.
    fn take_reply(
        &self,
        tag: Tag,
        words: &[u64],
        reply: &mut Vec<u8>,
    ) -> Result<ReplyHead, CallError> {
        let head = ReplyHead::from_words(words);
        let room_bytes = capacity_bytes(tag.segment_count, REPLY_HEAD_SIZE_WORDS);
        if head.size_bytes as usize > room_bytes {
            let size_bytes = head.size_bytes;
            return Err(self.malformed(MalformedMessage::TooLong {
                size_bytes,
                room_bytes,
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

    /// Looks at words of the ring of replies.
    async fn look(
        &self,
        batch: &mut Batch,
        from: WordAddr,
        to: &mut [u64],
    ) -> Result<(), BatchError> {
        if !self.lines.has_window {
            return load(self.near, batch, from, to).await;
        }
        if !self.near.read_window(from.index(), to) {
            // F10: a batch tells why nothing comes any more.
            batch.clear();
            batch.read(self.lines.requests.at(0), 1);
            self.server.execute(batch).await?;
            panic!("a window is open as long as its session");
        }
        Ok(())
    }

    /// The places of a message are free.
    fn give_back(&self, posted: Posted) {
        let mut state = self.lines.state.borrow_mut();
        state.give_back(posted);
        if self.lines.has_window && state.posted_count == 0 {
            self.near.await_window(false);
        }
    }

    /// E5: the tag of a reply, if it is there.
    async fn arrived(&self, batch: &mut Batch, posted: &Posted) -> Result<Option<Tag>, CallError> {
        let (segment, mut word) = (posted.reply.first, [0]);
        let place = self.lines.replies.at(segment);
        self.look(batch, place, &mut word).await?;
        if Tag::sequence_of(word[0]) != posted.sequence {
            // What was left there by an earlier round, or nothing.
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

    /// E8: gives back the places of calls that were cut off and have been answered since.
    async fn collect_abandoned(&self, batch: &mut Batch) -> Result<(), CallError> {
        let count = self.lines.state.borrow().abandoned.len();
        for _ in 0..count {
            let Some(posted) = self.lines.state.borrow_mut().abandoned.pop_front() else {
                break;
            };
            // Put back if it has not come, and also when this is cut off.
            let abandoned = Abandoned(self, Some(posted));
            if self.arrived(batch, &posted).await?.is_some() {
                abandoned.answered();
            }
        }
        Ok(())
    }

    fn malformed(&self, what: MalformedMessage) -> CallError {
        self.lines.is_broken.set(true);
        CallError::Malformed(what)
    }
}

impl State {
    fn give_back(&mut self, posted: Posted) {
        self.posted_count -= 1;
        self.request_space.give_back(posted.request);
        self.reply_space.give_back(posted.reply);
    }
}

/// Waits before the next look. Backoff is made for locks; an answer takes longer, and comes: so the
/// thread is let go for a while, and sleeps only then.
async fn look_again(attempt: u32) {
    let slower = attempt.saturating_sub(YIELD_COUNT);
    let attempt = attempt.min(YIELD_ATTEMPT);
    backoff(attempt + slower).await;
}

/// Until somebody else has the task polled again.
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

/// A call's turn to take room; left when it is dropped.
struct Turn<'a> {
    state: &'a RefCell<State>,
    ticket: u64,
}

impl<'a> Turn<'a> {
    fn new(state: &'a RefCell<State>) -> Self {
        let mut borrowed = state.borrow_mut();
        borrowed.last_ticket += 1;
        let ticket = borrowed.last_ticket;
        borrowed.queue.push_back(ticket);
        drop(borrowed);
        Self { state, ticket }
    }

    fn has_come(&self) -> bool {
        self.state.borrow().queue.front() == Some(&self.ticket)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        state.queue.retain(|ticket| *ticket != self.ticket);
    }
}

/// A message that is not answered yet; when it is dropped, nobody waits for the answer any more.
struct Abandoned<'a, 'b, E: Endpoint, N: Endpoint>(&'a Caller<'b, E, N>, Option<Posted>);

impl<E: Endpoint, N: Endpoint> Abandoned<'_, '_, E, N> {
    /// The reply has been copied out, or is wanted by nobody: both places are free (E3).
    fn answered(mut self) {
        if let Some(posted) = self.1.take() {
            self.0.give_back(posted);
        }
    }
}

impl<E: Endpoint, N: Endpoint> Drop for Abandoned<'_, '_, E, N> {
    fn drop(&mut self) {
        let Some(posted) = self.1.take() else { return };
        if self.0.server.leaves_out(ProtocolCheck::PlaceIsAnswered) {
            self.0.give_back(posted);
        } else {
            let mut state = self.0.lines.state.borrow_mut();
            state.abandoned.push_back(posted);
        }
    }
}

/// A call whose reply is not whole yet (E6); when it is dropped, nobody waits for it any more.
struct Awaited<'a, 'b, E, N>(&'a Caller<'b, E, N>, u64);

impl<E, N> Drop for Awaited<'_, '_, E, N> {
    fn drop(&mut self) {
        self.0.lines.state.borrow_mut().awaited.remove(&self.1);
    }
}
