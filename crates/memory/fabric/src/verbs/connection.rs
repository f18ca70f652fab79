//! The client's end of a queue pair: operations that are under way, and their completions.
//!
//! - **K1.** What a thread has written down since it last polled, of all its batches, is posted
//!   with one doorbell, the last verb of each batch signalled, as far as the send queue has room;
//!   the rest follows when completions make room, in order, each post's last verb signalled.
//! - **K2.** A batch that changed something ends with a READ of 8 bytes, whose answer tells that
//!   the changes have reached memory (F8): an acknowledgement alone does not.
//! - **K3.** What verbs bring lands in a piece of registered memory that belongs to the operation
//!   until its last verb has completed, whether anybody still wants it or not.
//! - **K4.** Completions come in posting order, so one that succeeded tells of all before it. After
//!   the first failure the connection is lost, and nothing more is posted.

use core::mem;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use farleaf_types::OwnerWord;
use rustix::event::{PollFd, PollFlags};

use crate::batch::{Batch, Verb};
use crate::mapped::MappedRegion;
use crate::network::{Connection, Loss, OperationSlot, Part, PartFailure, Silence};
use crate::tcp::{Lifeline, TcpClient};
use crate::verbs::answer::{Outcome, Refusal, failure_of};
use crate::verbs::buffers::{Buffer, Buffers};
use crate::verbs::pieces::{Piece, buffer_word_count, cut};
use crate::verbs::status::Status;
use crate::verbs::sys::{Completion, QueuePair, SendRequest};
use crate::verbs::{VerbsConnectError, VerbsHost};

/// A connection that has been idle for longer looks whether it still is one before it posts.
const IDLE_TIME_MAX: Duration = Duration::from_millis(50);
/// Larger verbs are cut.
const MESSAGE_SIZE_BYTES_MAX: u32 = 1 << 20;

/// A batch's verbs to one node.
#[derive(Debug, Default)]
struct Operation {
    is_used: bool,
    /// Its future was dropped: nobody wants the outcome.
    is_detached: bool,
    /// Set when it is over.
    outcome: Option<Outcome>,
    buffer: Option<Buffer>,
    waker: Option<Waker>,
}

/// Where the node's memory is.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteRegion {
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) word_count: u64,
}

/// A queue pair that is connected, or was.
#[derive(Debug)]
pub struct VerbsConnection {
    queue: QueuePair,
    buffers: Buffers,
    region: RemoteRegion,
    /// The rights: whether the card lets WRITEs and atomics through.
    may_change: bool,
    /// How the node says that it is over; none where both ends are one process's.
    lifeline: Option<Lifeline>,
    operations: Vec<Operation>,
    free: Vec<u32>,
    in_flight_count: usize,
    /// K1: not posted yet.
    waiting: VecDeque<Piece>,
    /// Under way; the first one has this number.
    posted: VecDeque<Piece>,
    first_posted_number: u64,
    taken: Vec<Completion>,
    is_armed: bool,
    lost: Option<Loss>,
    message_word_count_max: u32,
    silence: Silence,
}

/// What a connection is made of.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) queue: QueuePair,
    pub(super) buffers: Buffers,
    pub(super) region: RemoteRegion,
    pub(super) may_change: bool,
    pub(super) lifeline: Option<Lifeline>,
    pub(super) message_size_bytes_max: u32,
    pub(super) answer_time_max: Duration,
}

impl VerbsConnection {
    pub(super) fn new(parts: Parts) -> Self {
        let message_size_bytes = parts.message_size_bytes_max.min(MESSAGE_SIZE_BYTES_MAX);
        Self {
            queue: parts.queue,
            buffers: parts.buffers,
            region: parts.region,
            may_change: parts.may_change,
            lifeline: parts.lifeline,
            operations: Vec::new(),
            free: Vec::new(),
            in_flight_count: 0,
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            first_posted_number: 0,
            taken: Vec::new(),
            is_armed: false,
            lost: None,
            message_word_count_max: (message_size_bytes / 8).max(1),
            silence: Silence::new(parts.answer_time_max),
        }
    }

    #[cfg(feature = "conformance")]
    pub(super) fn take_key_of(&mut self, other: &Self) {
        self.region.key = other.region.key;
        self.region.addr = other.region.addr;
    }

    fn look_after_idling(&mut self) {
        if self.lifeline.is_none() {
            return;
        }
        if self.silence.was_idle_for(IDLE_TIME_MAX)
            && let Some(loss) = self.lifeline.as_mut().and_then(Lifeline::check)
        {
            self.lose(loss, &mut Vec::new());
        }
    }

    /// K1.
    #[inline]
    fn post_waiting(&mut self) -> io::Result<()> {
        let room = self.queue.capacity.request_count as usize - self.posted.len();
        let count = self.waiting.len().min(room);
        if count == 0 {
            return Ok(());
        }
        let first_number = self.first_posted_number + self.posted.len() as u64;
        let region = self.region;
        let pieces = self.waiting.iter().take(count).enumerate();
        let requests = pieces.map(|(index, piece)| SendRequest {
            number: first_number + index as u64,
            kind: piece.kind,
            place: piece.place,
            word_count: piece.word_count,
            remote_addr: region.addr + piece.remote_index * 8,
            remote_key: region.key,
            fence: piece.fence,
            signaled: piece.is_last_of_operation || index + 1 == count,
        });
        let posted = self.queue.post(requests);
        self.posted.extend(self.waiting.drain(..count));
        posted
    }

    /// The outcome, once it is there. The slot is still the operation's: what the verbs brought is
    /// read by [`scatter`](Self::scatter), and [`release`](Self::release) ends it.
    #[inline]
    fn poll_outcome(&mut self, slot: OperationSlot, context: &mut Context<'_>) -> Poll<Outcome> {
        let operation = &mut self.operations[slot.0 as usize];
        if let Some(outcome) = operation.outcome.take() {
            return Poll::Ready(outcome);
        }
        if let Some(loss) = &self.lost {
            return Poll::Ready(Outcome::Lost(loss.clone()));
        }
        match &mut operation.waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => operation.waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Puts what the first `count` of the part's verbs have brought where the batch has room for
    /// it.
    #[inline]
    fn scatter(&self, part: Part, count: usize, batch: &mut Batch) {
        let Some(buffer) = &self.operations[part.slot.0 as usize].buffer else {
            return;
        };
        let memory = self.queue.memory(buffer.place.memory_index).memory();
        let mut brought = &memory.words()[buffer.place.first_word as usize..];
        let (verbs, data, _) = batch.parts_mut();
        for (_, verb) in part.own(verbs).take(count) {
            let to = &mut data[verb.room()];
            MappedRegion::copy_out(&brought[..to.len()], to);
            brought = &brought[verb.word_count as usize..];
        }
    }

    /// Frees the slot of an operation that is over, or whose connection is lost.
    #[inline]
    fn release(&mut self, slot: OperationSlot) {
        let operation = &mut self.operations[slot.0 as usize];
        let buffer = operation.buffer.take();
        *operation = Operation::default();
        self.free.push(slot.0);
        self.in_flight_count -= 1;
        // K3: of a lost connection nobody knows what is under way; nothing is posted any more.
        if let Some(buffer) = buffer.filter(|_| self.lost.is_none()) {
            self.buffers.give_back(&mut self.queue, &buffer);
        }
    }

    /// K4.
    #[inline]
    fn take_completion(
        &mut self,
        completion: &Completion,
        woken: &mut Vec<Waker>,
        ended_count: &mut usize,
    ) -> Result<(), Loss> {
        let number = completion.number;
        let end = self.first_posted_number + self.posted.len() as u64;
        if !(self.first_posted_number..end).contains(&number) {
            return Err(Loss::Broken("a completion of no verb came".to_owned()));
        }
        let succeeded = Status(completion.status).is_success();
        let retired_count = number - self.first_posted_number + u64::from(succeeded);
        for _ in 0..retired_count {
            let Some(piece) = self.posted.pop_front() else {
                break;
            };
            self.first_posted_number += 1;
            if piece.is_last_of_operation {
                *ended_count += 1;
                self.finish(piece.slot, Outcome::Done, woken);
            }
        }
        if succeeded {
            return Ok(());
        }
        Err(self.fail(completion, woken, ended_count))
    }

    fn finish(&mut self, slot: u32, outcome: Outcome, woken: &mut Vec<Waker>) {
        let operation = &mut self.operations[slot as usize];
        operation.outcome = Some(outcome);
        woken.extend(operation.waker.take());
        if operation.is_detached {
            self.release(OperationSlot(slot));
        }
    }

    /// The first request that did not complete is the one that failed.
    #[cold]
    fn fail(
        &mut self,
        completion: &Completion,
        woken: &mut Vec<Waker>,
        ended_count: &mut usize,
    ) -> Loss {
        let status = Status(completion.status);
        let name = status.name();
        let told = self.lifeline.as_mut().and_then(Lifeline::check);
        if let Some(piece) = self.posted.front().copied()
            && status.is_refusal()
            && told.is_none()
        {
            let refusal = Refusal {
                ordinal: piece.ordinal as usize,
                is_torn: !piece.is_first_of_verb,
            };
            *ended_count += 1;
            self.finish(piece.slot, Outcome::Refused(refusal), woken);
            return Loss::Broken(format!(
                "the memory node's RDMA device refused a verb ({name}), which ends a connection"
            ));
        }
        told.unwrap_or_else(|| {
            let (number, vendor_error) = (status.0, completion.vendor_error);
            Loss::Broken(format!(
                "the RDMA connection to the memory node broke: {name} (status {number}, vendor \
                 error {vendor_error})"
            ))
        })
    }

    #[cold]
    fn look(&mut self) -> Result<(), Loss> {
        if let Some(loss) = self.lifeline.as_mut().and_then(Lifeline::check) {
            return Err(loss);
        }
        if self.silence.is_too_long() {
            return Err(Loss::Broken(self.silence.reason()));
        }
        Ok(())
    }

    /// The connection is of no use any more: everybody who waits for a completion learns it. The
    /// queue pair posts and takes nothing after this.
    #[cold]
    fn lose(&mut self, loss: Loss, woken: &mut Vec<Waker>) -> usize {
        tracing::debug!(
            ?loss,
            in_flight = self.in_flight_count,
            "RDMA connection lost"
        );
        if let Err(error) = self.queue.stop() {
            tracing::error!(%error, "cannot stop a queue pair");
        }
        self.lost = Some(loss);
        self.waiting.clear();
        self.posted.clear();
        let mut ended_count = 0;
        for slot in 0..self.operations.len() {
            let operation = &mut self.operations[slot];
            if !operation.is_used || operation.outcome.is_some() {
                continue;
            }
            ended_count += 1;
            woken.extend(operation.waker.take());
            if operation.is_detached {
                self.release(OperationSlot(slot as u32));
            }
        }
        ended_count
    }
}

impl Connection for VerbsConnection {
    type Means = Arc<VerbsHost>;

    fn open(
        means: &Arc<VerbsHost>,
        client: &TcpClient,
        owner: Option<OwnerWord>,
    ) -> Result<Self, Loss> {
        let owner = owner.expect("a queue pair is a session's");
        means.connect(client, owner).map_err(|error| match error {
            VerbsConnectError::Verbs(error) => Loss::Here(error.to_string()),
            VerbsConnectError::Control(error) => Loss::Broken(error.to_string()),
        })
    }

    #[inline]
    fn region_word_count(&self) -> u64 {
        self.region.word_count
    }

    #[inline]
    fn may_change(&self) -> bool {
        self.may_change
    }

    /// One that has been idle is looked at first.
    #[inline]
    fn loss(&mut self) -> Option<&Loss> {
        if self.in_flight_count == 0 && self.lost.is_none() {
            self.look_after_idling();
        }
        self.lost.as_ref()
    }

    #[inline]
    fn in_flight_count(&self) -> usize {
        self.in_flight_count
    }

    #[inline]
    fn is_busy(&self) -> bool {
        self.in_flight_count > 0 && self.lost.is_none()
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
        let operation = &mut self.operations[slot as usize];
        operation.is_used = true;
        let word_count = buffer_word_count(verbs.clone());
        match self.buffers.take(&mut self.queue, word_count) {
            Ok(buffer) => {
                let is_under_way = cut(
                    &mut self.waiting,
                    &self.queue,
                    slot,
                    buffer.place,
                    self.message_word_count_max,
                    verbs,
                    data,
                );
                operation.outcome = (!is_under_way).then_some(Outcome::Done);
                operation.buffer = Some(buffer);
            }
            // It is no verb of the connection's, which goes on.
            Err(error) => {
                let reason = format!("this host's RDMA device has no memory for it: {error}");
                operation.outcome = Some(Outcome::Lost(Loss::Here(reason)));
            }
        }
        OperationSlot(slot)
    }

    #[inline]
    fn take(
        &mut self,
        part: Part,
        batch: &mut Batch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Box<PartFailure>>> {
        let Poll::Ready(outcome) = self.poll_outcome(part.slot, context) else {
            return Poll::Pending;
        };
        let count = match &outcome {
            Outcome::Done => usize::MAX,
            Outcome::Refused(refusal) => refusal.ordinal,
            Outcome::Lost(_) => 0,
        };
        self.scatter(part, count, batch);
        self.release(part.slot);
        if matches!(outcome, Outcome::Done) {
            return Poll::Ready(Ok(()));
        }
        let failure = failure_of(outcome, part, batch.verbs(), self.region.word_count);
        Poll::Ready(Err(Box::new(failure)))
    }

    fn detach(&mut self, slot: OperationSlot) {
        let operation = &mut self.operations[slot.0 as usize];
        if operation.outcome.is_some() || self.lost.is_some() {
            self.release(slot);
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
        if let Err(error) = self.post_waiting() {
            let reason = format!("this host's RDMA device took no verbs: {error}");
            return self.lose(Loss::Here(reason), woken);
        }
        let mut taken = mem::take(&mut self.taken);
        taken.clear();
        let polled = self.queue.completions.poll();
        let polled = polled.map(|completions| taken.extend(completions));
        let mut ended_count = 0;
        let mut outcome = polled.map_err(|error| Loss::Here(error.to_string()));
        for completion in &taken {
            if outcome.is_ok() {
                outcome = self.take_completion(completion, woken, &mut ended_count);
            }
        }
        if outcome.is_ok() {
            if !taken.is_empty() {
                self.silence.end();
            } else if self.silence.note_idle_poll() {
                outcome = self.look();
            }
        }
        self.taken = taken;
        match outcome {
            Ok(()) => ended_count,
            Err(loss) => ended_count + self.lose(loss, woken),
        }
    }

    /// Asks to be woken by the next completion. False: it was not asked for yet.
    fn arm(&mut self) -> bool {
        // An error shows when the next completion does not come: the sleep has an end.
        mem::replace(&mut self.is_armed, true) || self.queue.completions.arm().is_err()
    }

    /// Completions, and the node's last word.
    fn awaited(&self) -> impl Iterator<Item = PollFd<'_>> {
        let completions = self.queue.completions.descriptor();
        let completions = PollFd::from_borrowed_fd(completions, PollFlags::IN);
        let lifeline = self.lifeline.as_ref().map(Lifeline::awaited);
        core::iter::once(completions).chain(lifeline)
    }

    fn wake(&mut self, ready: &mut impl Iterator<Item = bool>) {
        if ready.next() == Some(true) {
            self.is_armed = false;
            if let Err(error) = self.queue.completions.take_notice() {
                tracing::error!(%error, "cannot take a notice of completions");
            }
        }
        if self.lifeline.is_some() && ready.next() == Some(true) {
            self.silence.look_soon();
        }
    }
}
