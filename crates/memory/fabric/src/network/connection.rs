//! What an endpoint needs of a connection to one node.

use core::fmt::Debug;
use core::task::{Context, Poll, Waker};

use farleaf_types::{NodeId, OwnerWord};
use rustix::event::PollFd;

use crate::batch::{Batch, Verb};
use crate::endpoint::BatchErrorKind;
use crate::tcp::TcpClient;

/// Where an operation's outcome will be.
#[derive(Clone, Copy, Debug)]
pub struct OperationSlot(pub(crate) u32);

/// The part of a batch that was posted to one node.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub(crate) node: NodeId,
    pub(crate) slot: OperationSlot,
    /// Verbs of the batch that were posted, to all nodes.
    pub(crate) posted_count: usize,
}

impl Part {
    /// Its verbs, with their places in the batch.
    #[inline]
    pub(crate) fn own(self, verbs: &[Verb]) -> impl Iterator<Item = (usize, &Verb)> + Clone {
        let posted = verbs[..self.posted_count].iter().enumerate();
        posted.filter(move |(_, verb)| verb.addr.node() == self.node)
    }

    /// The place in the batch of the first of them.
    pub(crate) fn first_index(self, verbs: &[Verb]) -> usize {
        self.own(verbs).next().map_or(0, |(index, _)| index)
    }
}

/// What became of a part of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Posted {
    /// Its node has it, and will answer.
    UnderWay(Part),
    /// It is executed: the node is memory of this process.
    Done,
    /// It was not posted: its node is gone for good.
    Lost,
}

/// Why a part of a batch failed.
#[derive(Clone, Debug)]
pub struct PartFailure {
    /// Of the verb that failed, in the batch.
    pub(crate) verb_index: usize,
    pub(crate) kind: BatchErrorKind,
    /// A node that is gone for good ends in the same way, so whoever knows is asked.
    pub(crate) may_be_lost: bool,
}

/// Why a connection is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// F6: the node has fenced the session, and said so.
    Fenced,
    /// In the words of an error.
    Broken(String),
    /// The same, where this host alone is to blame: it says nothing of the node.
    Here(String),
}

impl Loss {
    /// Whether a node that is gone for good ends connections so.
    pub(crate) fn may_be_the_nodes(&self) -> bool {
        !matches!(self, Self::Here(_))
    }

    /// What is said of verbs that were under way.
    #[cold]
    pub(crate) fn while_under_way(self) -> BatchErrorKind {
        let reason = match self {
            Self::Fenced => "the memory node has fenced the session while the verbs were under \
                             way; open the pool again"
                .to_owned(),
            Self::Broken(reason) | Self::Here(reason) => reason,
        };
        BatchErrorKind::Unknown { reason }
    }

    /// What is said of verbs that were not posted.
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

/// A connection to one node, or what is left of one: a data connection (`tcp`) or a queue pair
/// (`verbs`). Verbs take effect in the order in which they are posted (F2).
pub trait Connection: Debug + Sized {
    /// What is needed to open one, besides the node's client.
    type Means: Debug;

    /// Opens one in the name of a session, or of the process as such.
    ///
    /// # Errors
    /// The node cannot be reached, or does not let the session in; or this host cannot.
    fn open(
        means: &Self::Means,
        client: &TcpClient,
        owner: Option<OwnerWord>,
    ) -> Result<Self, Loss>;

    /// Size of the node's region in words.
    fn region_word_count(&self) -> u64;

    /// Whether this side knows that the node lets changes through (F7).
    fn may_change(&self) -> bool;

    /// Why it is of no use any more, if it is not.
    fn loss(&mut self) -> Option<&Loss>;

    /// Operations that have not ended, those of dropped futures among them.
    fn in_flight_count(&self) -> usize;

    /// Whether something waits to be sent or to come.
    fn is_busy(&self) -> bool;

    /// F10.
    fn open_window(&mut self, word_count: usize) -> bool {
        let _ = word_count;
        false
    }

    /// F10; empty if there is none.
    fn window(&self) -> &[u64] {
        &[]
    }

    /// F10: from now on it is [busy](Self::is_busy) until nothing is awaited.
    fn await_window(&mut self, is_awaited: bool) {
        let _ = is_awaited;
    }

    /// Writes a batch's verbs to this node down; they leave with the next [`poll`](Self::poll).
    fn post<'a>(
        &mut self,
        verbs: impl Iterator<Item = &'a Verb> + Clone,
        data: &[u64],
    ) -> OperationSlot;

    /// How a part of a batch ended, once it has: what its verbs brought is in the batch then, and
    /// the slot is free.
    fn take(
        &mut self,
        part: Part,
        batch: &mut Batch,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Box<PartFailure>>>;

    /// Nobody asks for the outcome any more.
    fn detach(&mut self, slot: OperationSlot);

    /// Sends what waits, and takes what has come; who waited for it is put into `woken`. Returns
    /// how many operations ended.
    fn poll(&mut self, woken: &mut Vec<Waker>) -> usize;

    /// Before sleeping. False: something may have come unnoticed, and has to be polled for.
    fn arm(&mut self) -> bool;

    /// What a sleeper waits for.
    fn awaited(&self) -> impl Iterator<Item = PollFd<'_>>;

    /// After a sleep; takes from `ready`, for each that [`awaited`](Self::awaited) named, whether
    /// it has something to tell.
    fn wake(&mut self, ready: &mut impl Iterator<Item = bool>);
}
