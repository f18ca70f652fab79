//! The client's end of a data connection: operations in flight, and their replies.

use core::mem;
use core::task::{Context, Poll, Waker};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use farleaf_base::OwnerWord;
use rustix::event::PollFd;

use crate::batch::{Batch, Verb};
use crate::mapped::MappedEndpoint;
use crate::network::{
    BatchPart, Connection, Loss, MainNode, NodeDirectory, OperationSlot, OtherNodes, PartFailure,
    Silence,
};
use crate::tcp::answer::{failure_of, scatter};
use crate::tcp::frame::{BadFrame, FrameReply, FrameStatus, encode_batch, frame_size_bytes, words};
use crate::tcp::{TcpClient, TcpEndpoint};
use farleaf_net::stream::{Inbox, Outbox, Stream};

/// Maximum number of reads from a connection before others are served.
const FILL_COUNT_MAX: usize = 64;

/// Summary of the frames that were received.
#[derive(Clone, Copy, Debug, Default)]
struct ReceivedFrames {
    has_answer: bool,
    /// Number of operations that ended and of window frames.
    progress_count: usize,
}

/// The frames of a batch to one node.
#[derive(Debug, Default)]
struct FrameOperation {
    /// Number of frames without a reply; 0 in an unused slot.
    frame_count: u32,
    is_used: bool,
    /// True if the future was dropped, so that the outcome is discarded.
    is_detached: bool,
    status: Option<FrameStatus>,
    executed_verb_count: usize,
    /// Results of the verbs, as received.
    data: Vec<u8>,
    waker: Option<Waker>,
}

/// The outcome of a batch's frames to one node.
#[derive(Debug)]
pub(super) enum FrameOutcome {
    /// The node replied, with the number of wire verbs that it executed.
    Answered {
        status: FrameStatus,
        executed_verb_count: usize,
    },
    /// The node did not reply, for this reason.
    Lost(Loss),
}

/// A data connection, open or ended.
#[derive(Debug)]
pub struct TcpConnection {
    stream: Stream,
    memory_word_count: u64,
    inbox: Inbox,
    outbox: Outbox,
    operations: Vec<FrameOperation>,
    free: Vec<u32>,
    in_flight_count: usize,
    /// Number of operations in flight that are queued but not sent.
    unsent_count: usize,
    /// Reason why the connection is unusable, if it is.
    lost: Option<Loss>,
    wanted_bytes: usize,
    silence: Silence,
    /// Words of the window (FABRIC-10); empty if there is none.
    window: Box<[u64]>,
    awaits_window: bool,
}

impl TcpConnection {
    pub(super) fn new(stream: Stream, memory_word_count: u64, answer_time_max: Duration) -> Self {
        Self {
            stream,
            memory_word_count,
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

    /// Returns the outcome once it is there, passes the verbs' results to `take`, and releases the
    /// slot.
    #[inline]
    fn poll_outcome(
        &mut self,
        slot: OperationSlot,
        context: &mut Context<'_>,
        take: impl FnOnce(&[u8], usize),
    ) -> Poll<FrameOutcome> {
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
            (Some(loss), 1..) => FrameOutcome::Lost(loss.clone()),
            _ => FrameOutcome::Answered {
                status: operation.status.unwrap_or(FrameStatus::Done),
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
            // No reply is in flight yet, so a read would be futile.
            return Ok(0);
        }
        let (mut ended_count, mut fill_count, mut has_answered) = (0, 0, false);
        loop {
            let is_more = match self.inbox.fill(&mut self.stream, self.wanted_bytes) {
                Ok(is_more) => is_more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // A call may take as long as it likes; a waiting caller polls in between.
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
            // A window frame alone is no sign of a reply, but an incomplete frame may be one.
            if taken.has_answer || taken.progress_count == 0 {
                has_answered = true;
                self.silence.end();
            }
            fill_count += 1;
            // The system does not report data that is already decrypted.
            let had_its_turn = fill_count >= FILL_COUNT_MAX && !self.stream.is_encrypted();
            if !is_more || had_its_turn {
                return Ok(ended_count);
            }
        }
    }

    #[inline]
    fn take_replies(&mut self, woken: &mut Vec<Waker>) -> io::Result<ReceivedFrames> {
        let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut taken = ReceivedFrames::default();
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
            let reply = FrameReply::decode(&unread[..size_bytes]).map_err(|bad| broken(bad.0))?;
            if reply.status == FrameStatus::Window {
                put_into(&mut self.window, &reply).map_err(|bad| broken(bad.0))?;
                taken.progress_count += 1;
                self.inbox.consume(size_bytes);
                continue;
            }
            let is_last = reply.status.is_last();
            let slot = usize::try_from(reply.tag).ok();
            let operation = slot.and_then(|slot| self.operations.get_mut(slot));
            let operation = operation.filter(|operation| operation.frame_count > 0);
            let operation = operation.ok_or_else(|| broken("a reply to no request"))?;
            operation.frame_count -= 1;
            taken.has_answer = true;
            if reply.status != FrameStatus::Done && operation.status.is_none() {
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
                // Fail now, so that the next batch does not get an unknown outcome: after this
                // status the node executes nothing more.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Marks the connection as unusable and wakes all tasks that wait for a reply.
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

/// Stores the words of a window frame.
fn put_into(window: &mut [u64], frame: &FrameReply<'_>) -> Result<(), BadFrame> {
    let (words, has_window) = (words(frame.data), !window.is_empty());
    let start = usize::try_from(frame.tag).ok();
    let target = start.and_then(|start| window.get_mut(start..)?.get_mut(..words.len()));
    let target = target.filter(|_| has_window);
    let target = target.ok_or(BadFrame("words outside the window of this session"))?;
    target
        .iter_mut()
        .zip(words)
        .for_each(|(to, from)| *to = from);
    Ok(())
}

impl Connection for TcpConnection {
    type Resources = ();

    fn open(_means: &(), client: &TcpClient, owner: Option<OwnerWord>) -> Result<Self, Loss> {
        let opened = client.connection(owner);
        opened.map_err(|error| Loss::Broken(error.to_string()))
    }

    #[inline]
    fn memory_word_count(&self) -> u64 {
        self.memory_word_count
    }

    /// Returns true: only the node knows the limits.
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
            self.operations.push(FrameOperation::default());
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
        part: BatchPart,
        batch: &mut Batch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Box<PartFailure>>> {
        let mut is_whole = false;
        let polled = self.poll_outcome(part.slot, context, |bytes, count| {
            is_whole = scatter(batch, part, bytes, count);
        });
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(FrameOutcome::Answered {
                status: FrameStatus::Done,
                ..
            }) if is_whole => Poll::Ready(Ok(())),
            Poll::Ready(outcome) => {
                let failure = failure_of(outcome, part, batch.verbs(), self.memory_word_count);
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

    /// Returns true: arriving data always shows on the socket.
    #[inline]
    fn arm(&mut self) -> bool {
        true
    }

    fn awaited(&self) -> impl Iterator<Item = PollFd<'_>> {
        core::iter::once(self.stream.awaited(self.outbox.size_bytes() > 0))
    }

    fn wake(&mut self, ready: &mut impl Iterator<Item = bool>) {
        // Ready or not, the next poll reads.
        ready.next();
    }
}

impl TcpEndpoint {
    /// Returns an endpoint to a pool whose main node's memory is mapped into this process.
    pub fn beside(
        main_node: MappedEndpoint,
        owner: Option<OwnerWord>,
        directory: Arc<dyn NodeDirectory>,
    ) -> Self {
        let others = OtherNodes {
            directory,
            owner,
            resources: (),
        };
        Self::to_pool(MainNode::Mapped(Box::new(main_node)), others)
    }
}
