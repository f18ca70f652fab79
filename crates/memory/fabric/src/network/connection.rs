//! The interface between an endpoint and its connection to one node.

use core::fmt::Debug;
use core::task::{Context, Poll, Waker};

use farleaf_base::{NodeId, OwnerWord};
use rustix::event::PollFd;

use crate::batch::{Batch, Verb};
use crate::endpoint::BatchErrorKind;
use crate::tcp::TcpClient;

/// Index of an operation's outcome in its connection.
#[derive(Clone, Copy, Debug)]
pub struct OperationSlot(pub(crate) u32);

/// The part of a batch that was posted to one node.
#[derive(Clone, Copy, Debug)]
pub struct BatchPart {
    pub(crate) node: NodeId,
    pub(crate) slot: OperationSlot,
    /// Number of the batch's verbs that were posted, to all nodes.
    pub(crate) posted_count: usize,
}

impl BatchPart {
    /// Returns the part's verbs, with their indexes in the batch.
    #[inline]
    pub(crate) fn own(self, verbs: &[Verb]) -> impl Iterator<Item = (usize, &Verb)> + Clone {
        let posted = verbs[..self.posted_count].iter().enumerate();
        posted.filter(move |(_, verb)| verb.addr.node() == self.node)
    }

    /// Returns the index in the batch of the part's first verb.
    pub(crate) fn first_index(self, verbs: &[Verb]) -> usize {
        self.own(verbs).next().map_or(0, |(index, _)| index)
    }
}

/// Result of posting a part of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PostResult {
    /// The part was posted, and its node will reply.
    InFlight(BatchPart),
    /// The part was executed: the node's memory is mapped into this process.
    Done,
    /// The part was not posted: its node is lost for good.
    Lost,
}

/// Failure of a part of a batch.
#[derive(Clone, Debug)]
pub struct PartFailure {
    /// Index in the batch of the verb that failed.
    pub(crate) verb_index: usize,
    pub(crate) kind: BatchErrorKind,
    /// True if the loss of the node may be the reason; then the pool's main node is asked.
    pub(crate) may_be_lost: bool,
}

/// Reason why a connection is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The node reported that it has fenced the session (FABRIC-6).
    Fenced,
    /// The connection failed; the text describes how.
    Broken(String),
    /// This host alone caused the failure, so it proves nothing about the node; the text describes
    /// it.
    Here(String),
}

impl Loss {
    /// Returns true if the loss of the node may be the reason.
    pub(crate) fn may_be_node_loss(&self) -> bool {
        !matches!(self, Self::Here(_))
    }

    /// Returns the error for verbs that were in flight.
    #[cold]
    pub(crate) fn while_in_flight(self) -> BatchErrorKind {
        let reason = match self {
            Self::Fenced => "the memory node has fenced the session while the verbs were in \
                             flight; open the pool again"
                .to_owned(),
            Self::Broken(reason) | Self::Here(reason) => reason,
        };
        BatchErrorKind::Unknown { reason }
    }

    /// Returns the error for verbs that were not posted.
    #[cold]
    pub(crate) fn before_posting(self, node: NodeId) -> BatchErrorKind {
        match self {
            Self::Fenced => BatchErrorKind::Fenced,
            Self::Broken(reason) | Self::Here(reason) => {
                BatchErrorKind::Unreachable { node, reason }
            }
        }
    }
}

/// A connection to one node, usable or broken: a data connection (`tcp`) or a queue pair (`verbs`).
/// Verbs take effect in posting order (FABRIC-2).
pub trait Connection: Debug + Sized {
    /// Resources for opening a connection, besides the node's client.
    type Resources: Debug;

    /// Opens a connection for a session, or for the process itself.
    ///
    /// # Errors
    /// The node cannot be reached or refuses the session, or this host fails.
    fn open(
        resources: &Self::Resources,
        client: &TcpClient,
        owner: Option<OwnerWord>,
    ) -> Result<Self, Loss>;

    /// Returns the size of the node's memory in words.
    fn memory_word_count(&self) -> u64;

    /// Returns true if this side knows that the node allows changes (FABRIC-7).
    fn may_change(&self) -> bool;

    /// Returns the reason why the connection is unusable, if it is.
    fn loss(&mut self) -> Option<&Loss>;

    /// Returns the number of unfinished operations, including those of dropped futures.
    fn in_flight_count(&self) -> usize;

    /// Returns true if something is to be sent or received.
    fn is_busy(&self) -> bool;

    /// Opens a window of `word_count` words; returns false if there is none (FABRIC-10).
    fn open_window(&mut self, word_count: usize) -> bool {
        let _ = word_count;
        false
    }

    /// Returns the words of the window; empty if there is none (FABRIC-10).
    fn window(&self) -> &[u64] {
        &[]
    }

    /// Announces whether a window write is awaited (FABRIC-10). While it is, the connection is
    /// [busy](Self::is_busy).
    fn await_window(&mut self, is_awaited: bool) {
        let _ = is_awaited;
    }

    /// Queues a batch's verbs to this node for the next [`poll`](Self::poll), which sends them.
    fn post<'a>(
        &mut self,
        verbs: impl Iterator<Item = &'a Verb> + Clone,
        data: &[u64],
    ) -> OperationSlot;

    /// Returns the outcome of a part once it has ended, copies its results into the batch, and
    /// releases the slot.
    fn take(
        &mut self,
        part: BatchPart,
        batch: &mut Batch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Box<PartFailure>>>;

    /// Discards the outcome of an operation when it arrives.
    fn detach(&mut self, slot: OperationSlot);

    /// Sends what is queued and receives what has arrived; adds the wakers of finished operations
    /// to `woken`. Returns the number of operations that ended.
    fn poll(&mut self, woken: &mut Vec<Waker>) -> usize;

    /// Prepares for sleeping. Returns false if something may have arrived unnoticed, so that the
    /// caller must poll.
    fn arm(&mut self) -> bool;

    /// Returns the descriptors that a sleeping thread waits for.
    fn awaited(&self) -> impl Iterator<Item = PollFd<'_>>;

    /// Handles the end of a sleep. Takes one element of `ready` for each descriptor that
    /// [`awaited`](Self::awaited) returned: whether it has an event.
    fn wake(&mut self, ready: &mut impl Iterator<Item = bool>);
}
