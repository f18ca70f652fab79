//! The client's end of a data connection: operations that are under way, and their replies.

use core::mem;
use core::task::{Context, Poll, Waker};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use farleaf_types::OwnerWord;
use rustix::event::PollFd;

use crate::batch::{Batch, Verb};
use crate::mapped::MappedEndpoint;
use crate::network::{
    Connection, Home, Loss, NodeDirectory, OperationSlot, Others, Part, PartFailure, Silence,
};
use crate::tcp::answer::{failure_of, scatter};
use crate::tcp::frame::{BadFrame, Reply, Status, encode_batch, frame_size_bytes, words};
use crate::tcp::stream::{Inbox, Outbox, Stream};
use crate::tcp::{TcpClient, TcpEndpoint};

/// How often a connection is read from before others have their turn.
const FILL_COUNT_MAX: usize = 64;

/// What the frames were that have come.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    has_answer: bool,
    /// Operations that ended, and words that came for the window (N5).
    progress_count: usize,
}

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
    Lost(Loss),
}

/// An open data connection, or one that was.
#[derive(Debug)]
pub struct TcpConnection {
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
    lost: Option<Loss>,
    wanted_bytes: usize,
    silence: Silence,
    /// F10; of no words while there is none.
    window: Box<[u64]>,
    awaits_window: bool,
}

impl TcpConnection {
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
            silence: Silence::new(answer_time_max),
            window: Box::default(),
            awaits_window: false,
        }
    }

    /// The outcome, once it is there; what the verbs brought is handed to `take`. The slot is free
    /// then.
    #[inline]
    fn poll_outcome(
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
            (Some(loss), 1..) => Outcome::Lost(loss.clone()),
            _ => Outcome::Answered {
                status: operation.status.unwrap_or(Status::Done),
                executed_verb_count: operation.executed_verb_count,
            },
        };
        self.release(slot.0);
        Poll::Ready(outcome)
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

    fn exchange(&mut self, woken: &mut Vec<Waker>) -> io::Result<usize> {
        self.outbox.flush(&mut self.stream)?;
        let unsent_count = mem::take(&mut self.unsent_count);
        if unsent_count > 0 && unsent_count >= self.in_flight_count {
            // No answer is on its way yet: asking for one would be a call in vain.
            return Ok(0);
        }
        let (mut ended_count, mut fill_count, mut has_answered) = (0, 0, false);
        loop {
            let is_more = match self.inbox.fill(&mut self.stream, self.wanted_bytes) {
                Ok(is_more) => is_more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // A call may take as long as it likes: whoever waits asks otherwise.
                    let is_idle = !has_answered && self.in_flight_count > 0;
                    if is_idle && self.silence.note_idle_poll() && self.silence.is_too_long() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    return Ok(ended_count);
                }
                Err(error) => return Err(error),
            };
            let taken = self.take_replies(woken)?;
            ended_count += taken.progress_count;
            // Words for the window alone are no sign of an answer; half of a frame may be.
            if taken.has_answer || taken.progress_count == 0 {
                has_answered = true;
                self.silence.end();
            }
            fill_count += 1;
            // Of what has been decrypted already the system will not tell again.
            let had_its_turn = fill_count >= FILL_COUNT_MAX && !self.stream.is_encrypted();
            if !is_more || had_its_turn {
                return Ok(ended_count);
            }
        }
    }

    #[inline]
    fn take_replies(&mut self, woken: &mut Vec<Waker>) -> io::Result<Taken> {
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut taken = Taken::default();
        loop {
            let unread = self.inbox.unread();
            let size_bytes = match frame_size_bytes(unread) {
                Ok(Some(size_bytes)) if size_bytes <= unread.len() => size_bytes,
                Ok(size_bytes) => {
                    self.wanted_bytes = size_bytes.unwrap_or(0);
                    return Ok(taken);
                }
                Err(bad) => return Err(broken(bad.0)),
            };
            let reply = Reply::decode(&unread[..size_bytes]).map_err(|bad| broken(bad.0))?;
            if reply.status == Status::Window {
                put_into(&mut self.window, &reply).map_err(|bad| broken(bad.0))?;
                taken.progress_count += 1;
                self.inbox.consume(size_bytes);
                continue;
            }
            let is_last = reply.status.is_last();
            let slot = usize::try_from(reply.tag).ok();
            let operation = slot.and_then(|slot| self.operations.get_mut(slot));
            let operation = operation.filter(|operation| operation.frame_count > 0);
            let operation = operation.ok_or_else(|| broken("an answer to no question"))?;
            operation.frame_count -= 1;
            taken.has_answer = true;
            if reply.status != Status::Done && operation.status.is_none() {
                operation.status = Some(reply.status);
            }
            if !operation.is_detached {
                operation.data.extend_from_slice(reply.data);
            }
            operation.executed_verb_count += reply.executed_verb_count;
            if operation.frame_count == 0 {
                taken.progress_count += 1;
                woken.extend(operation.waker.take());
                if operation.is_detached {
                    self.release(reply.tag as u32);
                }
            }
            self.inbox.consume(size_bytes);
            if is_last {
                // N4, N6: whoever posts next must not find out by an unknown outcome.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The connection is of no use any more: everybody who waits for an answer learns it.
    #[cold]
    fn lose(&mut self, error: &io::Error, woken: &mut Vec<Waker>) -> usize {
        let reason = match error.kind() {
            io::ErrorKind::TimedOut => self.silence.reason(),
            io::ErrorKind::UnexpectedEof => {
                "the memory node has closed the connection: it has stopped, or has fenced the \
                 session"
                    .to_owned()
            }
            io::ErrorKind::InvalidData => format!("the memory node has sent {error}"),
            _ => format!("the connection to the memory node broke: {error}"),
        };
        self.lost = Some(Loss::Broken(reason));
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

/// N5.
fn put_into(window: &mut [u64], frame: &Reply<'_>) -> Result<(), BadFrame> {
    let (words, has_window) = (words(frame.data), !window.is_empty());
    let start = usize::try_from(frame.tag).ok();
    let room = start.and_then(|start| window.get_mut(start..)?.get_mut(..words.len()));
    let room = room.filter(|_| has_window);
    let room = room.ok_or(BadFrame("words for no window of this session"))?;
    room.iter_mut().zip(words).for_each(|(to, from)| *to = from);
    Ok(())
}

impl Connection for TcpConnection {
    type Means = ();

    fn open(_means: &(), client: &TcpClient, owner: Option<OwnerWord>) -> Result<Self, Loss> {
        let opened = client.connection(owner);
        opened.map_err(|error| Loss::Broken(error.to_string()))
    }

    #[inline]
    fn region_word_count(&self) -> u64 {
        self.region_word_count
    }

    /// Only the node knows.
    #[inline]
    fn may_change(&self) -> bool {
        true
    }

    #[inline]
    fn loss(&mut self) -> Option<&Loss> {
        self.lost.as_ref()
    }

    #[inline]
    fn in_flight_count(&self) -> usize {
        self.in_flight_count
    }

    #[inline]
    fn is_busy(&self) -> bool {
        (self.in_flight_count > 0 || self.awaits_window) && self.lost.is_none()
    }

    fn open_window(&mut self, word_count: usize) -> bool {
        if self.window.is_empty() {
            self.window = vec![0; word_count].into();
        }
        true
    }

    #[inline]
    fn window(&self) -> &[u64] {
        &self.window
    }

    #[inline]
    fn await_window(&mut self, is_awaited: bool) {
        self.awaits_window = is_awaited;
    }

    #[inline]
    fn post<'a>(
        &mut self,
        verbs: impl Iterator<Item = &'a Verb> + Clone,
        data: &[u64],
    ) -> OperationSlot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.operations.push(Operation::default());
            (self.operations.len() - 1) as u32
        });
        if self.in_flight_count == 0 {
            self.silence.end();
        }
        self.in_flight_count += 1;
        self.unsent_count += 1;
        let frame_count = encode_batch(&mut self.outbox.bytes, u64::from(slot), verbs, data);
        let operation = &mut self.operations[slot as usize];
        operation.is_used = true;
        operation.frame_count = frame_count;
        OperationSlot(slot)
    }

    #[inline]
    fn take(
        &mut self,
        part: Part,
        batch: &mut Batch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Box<PartFailure>>> {
        let mut is_whole = false;
        let polled = self.poll_outcome(part.slot, context, |bytes, count| {
            is_whole = scatter(batch, part, bytes, count);
        });
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Outcome::Answered {
                status: Status::Done,
                ..
            }) if is_whole => Poll::Ready(Ok(())),
            Poll::Ready(outcome) => {
                let failure = failure_of(outcome, part, batch.verbs(), self.region_word_count);
                Poll::Ready(Err(Box::new(failure)))
            }
        }
    }

    fn detach(&mut self, slot: OperationSlot) {
        let operation = &mut self.operations[slot.0 as usize];
        if operation.frame_count == 0 || self.lost.is_some() {
            self.release(slot.0);
        } else {
            operation.is_detached = true;
            operation.waker = None;
        }
    }

    #[inline]
    fn poll(&mut self, woken: &mut Vec<Waker>) -> usize {
        if !self.is_busy() {
            return 0;
        }
        match self.exchange(woken) {
            Ok(count) => count,
            Err(error) => self.lose(&error, woken),
        }
    }

    /// What comes shows in the socket.
    #[inline]
    fn arm(&mut self) -> bool {
        true
    }

    fn awaited(&self) -> impl Iterator<Item = PollFd<'_>> {
        core::iter::once(self.stream.awaited(self.outbox.len() > 0))
    }

    fn wake(&mut self, ready: &mut impl Iterator<Item = bool>) {
        // Ready or not, the next poll asks.
        ready.next();
    }
}

impl TcpEndpoint {
    /// To a pool whose home's memory is mapped into this process.
    pub fn beside(
        home: MappedEndpoint,
        owner: Option<OwnerWord>,
        directory: Arc<dyn NodeDirectory>,
    ) -> Self {
        let others = Others {
            directory,
            owner,
            means: (),
        };
        Self::to_pool(Home::Mapped(Box::new(home)), others)
    }
}
