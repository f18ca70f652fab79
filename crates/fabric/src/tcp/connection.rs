//! The client's end of a data connection: operations that are under way, and their replies.

use core::mem;
use core::task::{Context, Poll, Waker};
use std::io;
use std::time::{Duration, Instant};

use rustix::event::PollFd;

use crate::batch::Verb;
use crate::tcp::frame::{Reply, Status, encode_batch, frame_size_bytes};
use crate::tcp::stream::{Inbox, Outbox, Stream};

/// In vain polls between two looks at the clock.
const CLOCK_POLL_COUNT: u32 = 256;

/// Where an operation's outcome will be.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperationSlot(u32);

/// A batch's frames to one node.
#[derive(Debug, Default)]
struct Operation {
    /// Frames whose replies have not come. 0 in a slot that nobody uses.
    frame_count: u32,
    is_used: bool,
    /// Its future was dropped: nobody wants the outcome.
    is_detached: bool,
    status: Option<Status>,
    executed_verb_count: usize,
    /// What the verbs brought, as it came.
    data: Vec<u8>,
    waker: Option<Waker>,
}

/// How a batch's frames to one node ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The node answered: up to how many verbs on the wire it executed.
    Answered {
        status: Status,
        executed_verb_count: usize,
    },
    /// It did not, and why.
    Lost(String),
}

/// An open connection, or one that was.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    region_word_count: u64,
    inbox: Inbox,
    outbox: Outbox,
    operations: Vec<Operation>,
    free: Vec<u32>,
    in_flight_count: usize,
    /// Of those, the ones that are written down and have not been sent.
    unsent_count: usize,
    /// Why it is of no use any more.
    lost: Option<String>,
    wanted_bytes: usize,
    answer_time_max: Duration,
    heard_at: Instant,
    idle_poll_count: u32,
}

impl Connection {
    pub(super) fn new(stream: Stream, region_word_count: u64, answer_time_max: Duration) -> Self {
        Self {
            stream,
            region_word_count,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            operations: Vec::new(),
            free: Vec::new(),
            in_flight_count: 0,
            unsent_count: 0,
            lost: None,
            wanted_bytes: 0,
            answer_time_max,
            heard_at: Instant::now(),
            idle_poll_count: 0,
        }
    }

    pub(super) fn region_word_count(&self) -> u64 {
        self.region_word_count
    }

    pub(super) fn in_flight_count(&self) -> usize {
        self.in_flight_count
    }

    pub(super) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// What is waited for, if anything is.
    pub(super) fn awaited(&self) -> Option<PollFd<'_>> {
        let awaited = || self.stream.awaited(self.outbox.len() > 0);
        self.is_busy().then(awaited)
    }

    /// Whether something waits to be sent or to come.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.in_flight_count > 0 && self.lost.is_none()
    }

    /// Writes a batch's verbs to this node down; they are sent with the next poll.
    #[inline]
    pub(super) fn post<'a>(
        &mut self,
        verbs: impl Iterator<Item = &'a Verb>,
        data: &[u64],
    ) -> OperationSlot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.operations.push(Operation::default());
            (self.operations.len() - 1) as u32
        });
        if self.in_flight_count == 0 {
            // Only now something is expected.
            self.idle_poll_count = 0;
        }
        self.in_flight_count += 1;
        self.unsent_count += 1;
        let frame_count = encode_batch(&mut self.outbox.bytes, u64::from(slot), verbs, data);
        let operation = &mut self.operations[slot as usize];
        operation.is_used = true;
        operation.frame_count = frame_count;
        OperationSlot(slot)
    }

    /// The outcome, once it is there; what the verbs brought is handed to `take`. The slot is free
    /// then.
    #[inline]
    pub(super) fn poll_outcome(
        &mut self,
        slot: OperationSlot,
        context: &mut Context<'_>,
        take: impl FnOnce(&[u8], usize),
    ) -> Poll<Outcome> {
        let operation = &mut self.operations[slot.0 as usize];
        if operation.frame_count > 0 && self.lost.is_none() {
            match &mut operation.waker {
                Some(waker) => waker.clone_from(context.waker()),
                None => operation.waker = Some(context.waker().clone()),
            }
            return Poll::Pending;
        }
        take(&operation.data, operation.executed_verb_count);
        let outcome = match (&self.lost, operation.frame_count) {
            (Some(reason), 1..) => Outcome::Lost(reason.clone()),
            _ => Outcome::Answered {
                status: operation.status.unwrap_or(Status::Done),
                executed_verb_count: operation.executed_verb_count,
            },
        };
        self.release(slot.0);
        Poll::Ready(outcome)
    }

    /// Nobody asks for the outcome any more.
    pub(super) fn detach(&mut self, slot: OperationSlot) {
        let operation = &mut self.operations[slot.0 as usize];
        if operation.frame_count == 0 || self.lost.is_some() {
            self.release(slot.0);
        } else {
            operation.is_detached = true;
            operation.waker = None;
        }
    }

    #[inline]
    fn release(&mut self, slot: u32) {
        let operation = &mut self.operations[slot as usize];
        operation.is_used = false;
        operation.is_detached = false;
        operation.frame_count = 0;
        operation.status = None;
        operation.executed_verb_count = 0;
        operation.data.clear();
        operation.waker = None;
        self.free.push(slot);
        self.in_flight_count -= 1;
    }

    /// Sends what waits, and takes what has come; who waited for it is put into `woken`. Returns
    /// how many operations ended.
    #[inline]
    pub(super) fn poll(&mut self, woken: &mut Vec<Waker>) -> usize {
        if !self.is_busy() {
            return 0;
        }
        match self.exchange(woken) {
            Ok(count) => count,
            Err(error) => self.lose(&error, woken),
        }
    }

    fn exchange(&mut self, woken: &mut Vec<Waker>) -> io::Result<usize> {
        self.outbox.flush(&mut self.stream)?;
        let unsent_count = mem::take(&mut self.unsent_count);
        if unsent_count > 0 && unsent_count >= self.in_flight_count {
            // No answer is on its way yet: asking for one would be a call in vain.
            return Ok(0);
        }
        let mut ended_count = 0;
        loop {
            let is_more = match self.inbox.fill(&mut self.stream, self.wanted_bytes) {
                Ok(is_more) => is_more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if ended_count == 0 {
                        self.note_idle_poll()?;
                    }
                    return Ok(ended_count);
                }
                Err(error) => return Err(error),
            };
            self.idle_poll_count = 0;
            ended_count += self.take_replies(woken)?;
            if !is_more {
                return Ok(ended_count);
            }
        }
    }

    /// Nothing has come: looks now and then for how long that has been so.
    #[inline]
    fn note_idle_poll(&mut self) -> io::Result<()> {
        self.idle_poll_count += 1;
        if self.idle_poll_count == 1 {
            self.heard_at = Instant::now();
        }
        if self.idle_poll_count.is_multiple_of(CLOCK_POLL_COUNT)
            && self.heard_at.elapsed() > self.answer_time_max
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }

    #[inline]
    fn take_replies(&mut self, woken: &mut Vec<Waker>) -> io::Result<usize> {
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut ended_count = 0;
        loop {
            let unread = self.inbox.unread();
            let size_bytes = match frame_size_bytes(unread) {
                Ok(Some(size_bytes)) if size_bytes <= unread.len() => size_bytes,
                Ok(size_bytes) => {
                    self.wanted_bytes = size_bytes.unwrap_or(0);
                    return Ok(ended_count);
                }
                Err(bad) => return Err(broken(bad.0)),
            };
            let reply = Reply::decode(&unread[..size_bytes]).map_err(|bad| broken(bad.0))?;
            let slot = usize::try_from(reply.tag).ok();
            let operation = slot.and_then(|slot| self.operations.get_mut(slot));
            let operation = operation.filter(|operation| operation.frame_count > 0);
            let operation = operation.ok_or_else(|| broken("an answer to no question"))?;
            operation.frame_count -= 1;
            if reply.status != Status::Done && operation.status.is_none() {
                operation.status = Some(reply.status);
            }
            if !operation.is_detached {
                operation.data.extend_from_slice(reply.data);
            }
            operation.executed_verb_count += reply.executed_verb_count;
            if operation.frame_count == 0 {
                ended_count += 1;
                woken.extend(operation.waker.take());
                if operation.is_detached {
                    self.release(reply.tag as u32);
                }
            }
            self.inbox.consume(size_bytes);
        }
    }

    /// The connection is of no use any more: everybody who waits for an answer learns it.
    #[cold]
    fn lose(&mut self, error: &io::Error, woken: &mut Vec<Waker>) -> usize {
        let reason = match error.kind() {
            io::ErrorKind::TimedOut => {
                let seconds = self.answer_time_max.as_secs_f64();
                format!("the memory node has not answered for {seconds} s")
            }
            io::ErrorKind::UnexpectedEof => {
                "the memory node has closed the connection: it has stopped, or has fenced the \
                 session"
                    .to_owned()
            }
            io::ErrorKind::InvalidData => format!("the memory node has sent {error}"),
            _ => format!("the connection to the memory node broke: {error}"),
        };
        self.lost = Some(reason);
        self.stream.shut_down();
        let ended_count = self.in_flight_count;
        for slot in 0..self.operations.len() {
            let operation = &mut self.operations[slot];
            woken.extend(operation.waker.take());
            if operation.is_used && operation.is_detached {
                self.release(slot as u32);
            }
        }
        ended_count
    }
}
