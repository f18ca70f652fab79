//! The client's end of a queue pair: operations in flight, and their completions.
//!
//! - **Doorbells.** Everything that a thread has queued since its last poll, of all its batches, is
//!   posted with one doorbell, as far as the send queue has space. The rest follows in order when
//!   completions free space. The last verb of each batch and of each post is signaled.
//! - **Final READ.** A batch that changed something ends with a READ of 8 bytes, whose result
//!   proves that the changes have reached memory (FABRIC-8). An acknowledgment alone does not.
//! - **Buffers.** Results of verbs arrive in a piece of registered memory. It belongs to the
//!   operation until its last verb has completed, whether its outcome is still wanted or not.
//! - **Completions.** Completions arrive in posting order, so a successful one covers all earlier
//!   requests. After the first failure the connection is lost, and nothing more is posted.

use core::mem;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use farleaf_base::OwnerWord;
use rustix::event::{PollFd, PollFlags};

use crate::batch::{Batch, Verb};
use crate::mapped::MappedMemory;
use crate::network::{BatchPart, Connection, Loss, OperationSlot, PartFailure, Silence};
use crate::tcp::{QueueMonitor, TcpClient};
use crate::verbs::answer::{QueueOutcome, Refusal, failure_of};
use crate::verbs::buffers::{Buffer, Buffers};
use crate::verbs::pieces::{Piece, buffer_word_count, cut};
use crate::verbs::status::CompletionStatus;
use crate::verbs::sys::{Completion, QueuePair, SendRequest};
use crate::verbs::{VerbsConnectError, VerbsHost};

/// Idle time after which a connection checks before posting whether it has ended.
const IDLE_TIME_MAX: Duration = Duration::from_millis(50);
/// Size in bytes above which verbs are split.
const MESSAGE_SIZE_BYTES_MAX: u32 = 1 << 20;

/// A batch's verbs to one node.
#[derive(Debug, Default)]
struct QueueOperation {
    is_used: bool,
    /// True if the future was dropped, so that the outcome is discarded.
    is_detached: bool,
    /// The outcome; set when the operation has ended.
    outcome: Option<QueueOutcome>,
    buffer: Option<Buffer>,
    waker: Option<Waker>,
}

/// Address, size and key of the node's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteMemory {
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) word_count: u64,
}

/// A queue pair, connected or ended.
#[derive(Debug)]
pub struct VerbsConnection {
    queue: QueuePair,
    buffers: Buffers,
    memory: RemoteMemory,
    /// True if the rights let the card execute WRITEs and atomics.
    may_change: bool,
    /// Connection on which the node announces the end of the pair; none if both ends belong to one
    /// process.
    queue_monitor: Option<QueueMonitor>,
    operations: Vec<QueueOperation>,
    free: Vec<u32>,
    in_flight_count: usize,
    /// Requests that are not posted yet.
    waiting: VecDeque<Piece>,
    /// Requests in flight; `first_posted_number` is the number of the first one.
    posted: VecDeque<Piece>,
    first_posted_number: u64,
    taken: Vec<Completion>,
    is_armed: bool,
    lost: Option<Loss>,
    message_word_count_max: u32,
    silence: Silence,
}

/// Components of a connection.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) queue: QueuePair,
    pub(super) buffers: Buffers,
    pub(super) memory: RemoteMemory,
    pub(super) may_change: bool,
    pub(super) queue_monitor: Option<QueueMonitor>,
    pub(super) message_size_bytes_max: u32,
    pub(super) answer_time_max: Duration,
}

impl VerbsConnection {
    pub(super) fn new(parts: Parts) -> Self {
        let message_size_bytes = parts.message_size_bytes_max.min(MESSAGE_SIZE_BYTES_MAX);
        Self {
            queue: parts.queue,
            buffers: parts.buffers,
            memory: parts.memory,
            may_change: parts.may_change,
            queue_monitor: parts.queue_monitor,
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
        self.memory.key = other.memory.key;
        self.memory.addr = other.memory.addr;
    }

    fn check_after_idle(&mut self) {
        if self.queue_monitor.is_none() {
            return;
        }
        if self.silence.was_idle_for(IDLE_TIME_MAX)
            && let Some(loss) = self.queue_monitor.as_mut().and_then(QueueMonitor::check)
        {
            self.lose(loss, &mut Vec::new());
        }
    }

    /// Posts waiting requests with one doorbell, as far as the send queue has space.
    #[inline]
    fn post_waiting(&mut self) -> io::Result<()> {
        let free_count = self.queue.capacity.request_count as usize - self.posted.len();
        let count = self.waiting.len().min(free_count);
        if count == 0 {
            return Ok(());
        }
        let first_number = self.first_posted_number + self.posted.len() as u64;
        let memory = self.memory;
        let pieces = self.waiting.iter().take(count).enumerate();
        let requests = pieces.map(|(index, piece)| SendRequest {
            number: first_number + index as u64,
            kind: piece.kind,
            place: piece.place,
            word_count: piece.word_count,
            remote_addr: memory.addr + piece.remote_index * 8,
            remote_key: memory.key,
            fence: piece.fence,
            signaled: piece.is_last_of_operation || index + 1 == count,
        });
        let posted = self.queue.post(requests);
        self.posted.extend(self.waiting.drain(..count));
        posted
    }

    /// Returns the outcome once it is there. The slot still belongs to the operation:
    /// [`scatter`](Self::scatter) reads the results, and [`release`](Self::release) frees it.
    #[inline]
    fn poll_outcome(
        &mut self,
        slot: OperationSlot,
        context: &mut Context<'_>,
    ) -> Poll<QueueOutcome> {
        let operation = &mut self.operations[slot.0 as usize];
        if let Some(outcome) = operation.outcome.take() {
            return Poll::Ready(outcome);
        }
        if let Some(loss) = &self.lost {
            return Poll::Ready(QueueOutcome::Lost(loss.clone()));
        }
        match &mut operation.waker {
            Some(waker) => waker.clone_from(context.waker()),
            None => operation.waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Copies the results of the first `count` verbs of the part into the batch.
    #[inline]
    fn scatter(&self, part: BatchPart, count: usize, batch: &mut Batch) {
        let Some(buffer) = &self.operations[part.slot.0 as usize].buffer else {
            return;
        };
        let memory = self.queue.memory(buffer.place.memory_index).memory();
        let mut brought = &memory.words()[buffer.place.first_word as usize..];
        let (verbs, data, _) = batch.parts_mut();
        for (_, verb) in part.own(verbs).take(count) {
            let to = &mut data[verb.result_range()];
            MappedMemory::copy_out(&brought[..to.len()], to);
            brought = &brought[verb.word_count as usize..];
        }
    }

    /// Frees the slot of an operation that has ended, or whose connection is lost.
    #[inline]
    fn release(&mut self, slot: OperationSlot) {
        let operation = &mut self.operations[slot.0 as usize];
        let buffer = operation.buffer.take();
        *operation = QueueOperation::default();
        self.free.push(slot.0);
        self.in_flight_count -= 1;
        // After a loss it is unknown which requests are in flight, so the buffer is not reused;
        // nothing is posted any more.
        if let Some(buffer) = buffer.filter(|_| self.lost.is_none()) {
            self.buffers.release_buffer(&mut self.queue, &buffer);
        }
    }

    /// Handles a completion: success covers all earlier requests, a failure ends the connection.
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
            let reason = "the RDMA device reported an unexpected completion";
            return Err(Loss::Broken(reason.to_owned()));
        }
        let succeeded = CompletionStatus(completion.status).is_success();
        let retired_count = number - self.first_posted_number + u64::from(succeeded);
        for _ in 0..retired_count {
            let Some(piece) = self.posted.pop_front() else {
                break;
            };
            self.first_posted_number += 1;
            if piece.is_last_of_operation {
                *ended_count += 1;
                self.finish(piece.slot, QueueOutcome::Done, woken);
            }
        }
        if succeeded {
            return Ok(());
        }
        Err(self.fail(completion, woken, ended_count))
    }

    fn finish(&mut self, slot: u32, outcome: QueueOutcome, woken: &mut Vec<Waker>) {
        let operation = &mut self.operations[slot as usize];
        operation.outcome = Some(outcome);
        woken.extend(operation.waker.take());
        if operation.is_detached {
            self.release(OperationSlot(slot));
        }
    }

    /// Handles a failure: the first request that did not complete is the one that failed.
    #[cold]
    fn fail(
        &mut self,
        completion: &Completion,
        woken: &mut Vec<Waker>,
        ended_count: &mut usize,
    ) -> Loss {
        let status = CompletionStatus(completion.status);
        let name = status.name();
        let end_reason = self.queue_monitor.as_mut().and_then(QueueMonitor::check);
        if let Some(piece) = self.posted.front().copied()
            && status.is_refusal()
            && end_reason.is_none()
        {
            let refusal = Refusal {
                ordinal: piece.ordinal as usize,
                is_torn: !piece.is_first_of_verb,
            };
            *ended_count += 1;
            self.finish(piece.slot, QueueOutcome::Refused(refusal), woken);
            return Loss::Broken(format!(
                "the memory node's RDMA device refused a verb ({name}), which ended the connection"
            ));
        }
        end_reason.unwrap_or_else(|| {
            let (number, vendor_error) = (status.0, completion.vendor_error);
            Loss::Broken(format!(
                "the RDMA connection to the memory node broke: {name} (status {number}, vendor \
                 error {vendor_error})"
            ))
        })
    }

    #[cold]
    fn check_alive(&mut self) -> Result<(), Loss> {
        if let Some(loss) = self.queue_monitor.as_mut().and_then(QueueMonitor::check) {
            return Err(loss);
        }
        if self.silence.is_too_long() {
            return Err(Loss::Broken(self.silence.reason()));
        }
        Ok(())
    }

    /// Marks the connection as unusable and wakes all tasks that wait for a completion. The queue
    /// pair posts and receives nothing after this.
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
    type Resources = Arc<VerbsHost>;

    fn open(
        resources: &Arc<VerbsHost>,
        client: &TcpClient,
        owner: Option<OwnerWord>,
    ) -> Result<Self, Loss> {
        let owner = owner.expect("a queue pair is a session's");
        resources
            .connect(client, owner)
            .map_err(|error| match error {
                VerbsConnectError::Verbs(error) => Loss::Here(error.to_string()),
                VerbsConnectError::Control(error) => Loss::Broken(error.to_string()),
            })
    }

    #[inline]
    fn memory_word_count(&self) -> u64 {
        self.memory.word_count
    }

    #[inline]
    fn may_change(&self) -> bool {
        self.may_change
    }

    /// Returns the reason of the loss, after checking a connection that has been idle.
    #[inline]
    fn loss(&mut self) -> Option<&Loss> {
        if self.in_flight_count == 0 && self.lost.is_none() {
            self.check_after_idle();
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
            self.operations.push(QueueOperation::default());
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
                let is_in_flight = cut(
                    &mut self.waiting,
                    &self.queue,
                    slot,
                    buffer.place,
                    self.message_word_count_max,
                    verbs,
                    data,
                );
                operation.outcome = (!is_in_flight).then_some(QueueOutcome::Done);
                operation.buffer = Some(buffer);
            }
            // The failed verb was not posted, so the connection remains usable.
            Err(error) => {
                let reason = format!("cannot register memory with the RDMA device: {error}");
                operation.outcome = Some(QueueOutcome::Lost(Loss::Here(reason)));
            }
        }
        OperationSlot(slot)
    }

    #[inline]
    fn take(
        &mut self,
        part: BatchPart,
        batch: &mut Batch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Box<PartFailure>>> {
        let Poll::Ready(outcome) = self.poll_outcome(part.slot, context) else {
            return Poll::Pending;
        };
        let count = match &outcome {
            QueueOutcome::Done => usize::MAX,
            QueueOutcome::Refused(refusal) => refusal.ordinal,
            QueueOutcome::Lost(_) => 0,
        };
        self.scatter(part, count, batch);
        self.release(part.slot);
        if matches!(outcome, QueueOutcome::Done) {
            return Poll::Ready(Ok(()));
        }
        let failure = failure_of(outcome, part, batch.verbs(), self.memory.word_count);
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
            let reason = format!("cannot post verbs to this host's RDMA device: {error}");
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
                outcome = self.check_alive();
            }
        }
        self.taken = taken;
        match outcome {
            Ok(()) => ended_count,
            Err(loss) => ended_count + self.lose(loss, woken),
        }
    }

    /// Requests a wake at the next completion. Returns false if none was requested before.
    fn arm(&mut self) -> bool {
        // An error only prevents the wake: the sleep has a time limit.
        mem::replace(&mut self.is_armed, true) || self.queue.completions.arm().is_err()
    }

    /// Returns the descriptors of completions and of the connection beside the pair.
    fn awaited(&self) -> impl Iterator<Item = PollFd<'_>> {
        let completions = self.queue.completions.descriptor();
        let completions = PollFd::from_borrowed_fd(completions, PollFlags::IN);
        let queue_monitor = self.queue_monitor.as_ref().map(QueueMonitor::awaited);
        core::iter::once(completions).chain(queue_monitor)
    }

    fn wake(&mut self, ready: &mut impl Iterator<Item = bool>) {
        if ready.next() == Some(true) {
            self.is_armed = false;
            if let Err(error) = self.queue.completions.take_notice() {
                tracing::error!(%error, "cannot read a completion event");
            }
        }
        if self.queue_monitor.is_some() && ready.next() == Some(true) {
            self.silence.check_soon();
        }
    }
}
