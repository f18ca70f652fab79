//! Batches over data connections, one per node.

use core::cell::{Cell, OnceCell, RefCell};
use core::future::Future;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use std::sync::Arc;

use farleaf_executor::Wait;
use farleaf_types::{NodeId, OwnerWord};

use crate::batch::{Batch, Verb};
use crate::cost::Counters;
use crate::endpoint::{BatchError, BatchErrorKind, Endpoint};
use crate::mapped::MappedEndpoint;
use crate::tcp::answer::{contradiction, kind_of, scatter, torn};
use crate::tcp::connection::{Connection, OperationSlot, Outcome};
use crate::tcp::frame::{Status, wire_verb_count};
use crate::tcp::nodes::{NodeDirectory, NodeWay};
use crate::tcp::patience::Patience;

/// An endpoint to the nodes of a pool.
///
/// A batch is written down when its future is first polled, sent at the next
/// [`poll_completions`](Endpoint::poll_completions), and complete when that has taken the answer;
/// so all batches that a thread posts in one turn share a system call.
#[derive(Debug)]
pub struct TcpEndpoint {
    /// By their numbers; connected when they are first needed.
    nodes: Box<[OnceCell<Box<RefCell<Connection>>>]>,
    /// Above the greatest number that is connected.
    connected_end: Cell<usize>,
    /// Node 0, where this process has it mapped.
    local: Option<Box<MappedEndpoint>>,
    /// How the others are found; `None`: there are none.
    others: Option<Others>,
    counters: Counters,
    /// Empty between calls; kept for its allocation.
    woken: RefCell<Vec<Waker>>,
    patience: RefCell<Patience>,
}

#[derive(Debug)]
struct Others {
    directory: Arc<dyn NodeDirectory>,
    /// Whose connections they are.
    owner: Option<OwnerWord>,
}

/// How node 0 is reached.
pub(super) enum Home {
    Connected(Box<Connection>),
    Mapped(Box<MappedEndpoint>),
}

impl TcpEndpoint {
    fn with_room_for(node_count: usize) -> Self {
        Self {
            nodes: (0..node_count).map(|_| OnceCell::new()).collect(),
            connected_end: Cell::new(0),
            local: None,
            others: None,
            counters: Counters::default(),
            woken: RefCell::default(),
            patience: RefCell::new(Patience::new()),
        }
    }

    fn set(&self, node: usize, connection: Connection) {
        // A place that is taken stays so; there is one thread.
        let _ = self.nodes[node].set(Box::new(RefCell::new(connection)));
        let end = self.connected_end.get().max(node + 1);
        self.connected_end.set(end);
    }

    /// To node 0, and no other.
    pub(super) fn to_one(connection: Connection) -> Self {
        let endpoint = Self::with_room_for(1);
        endpoint.set(0, connection);
        endpoint
    }

    /// To node 0, and in the name of `owner` to others as they are needed.
    pub(super) fn to_pool(
        home: Home,
        owner: Option<OwnerWord>,
        directory: Arc<dyn NodeDirectory>,
    ) -> Self {
        let mut endpoint = Self::with_room_for(usize::from(u8::MAX) + 1);
        endpoint.others = Some(Others { directory, owner });
        match home {
            Home::Connected(connection) => endpoint.set(0, *connection),
            Home::Mapped(local) => endpoint.local = Some(local),
        }
        endpoint
    }

    /// To a pool whose home's memory is mapped into this process.
    pub fn beside(
        home: MappedEndpoint,
        owner: Option<OwnerWord>,
        directory: Arc<dyn NodeDirectory>,
    ) -> Self {
        Self::to_pool(Home::Mapped(Box::new(home)), owner, directory)
    }

    /// What [`Endpoint::execute`] returns, as a type with a name.
    #[inline]
    pub fn start<'a>(&'a self, batch: &'a mut Batch) -> TcpExecute<'a> {
        TcpExecute {
            endpoint: self,
            batch,
            is_posted: false,
            first: None,
            rare: None,
        }
    }

    #[inline]
    fn node(&self, node: NodeId) -> Option<&RefCell<Connection>> {
        let connection = self.nodes.get(usize::from(node.0))?.get()?;
        Some(connection)
    }

    fn connected(&self) -> impl Iterator<Item = &RefCell<Connection>> {
        let nodes = self.nodes[..self.connected_end.get()].iter();
        nodes.filter_map(|node| node.get().map(Box::as_ref))
    }

    #[inline]
    fn is_local(&self, node: NodeId) -> bool {
        node == NodeId(0) && self.local.is_some()
    }

    /// Connects the nodes of these verbs that are not connected. An error: one cannot be reached.
    #[inline]
    fn connect(&self, verbs: &[Verb]) -> Result<(), BatchError> {
        let Some(others) = &self.others else {
            return Ok(());
        };
        for verb in verbs {
            let node = verb.addr.node();
            let is_known = self.node(node).is_some() || self.is_local(node);
            if !is_known && !others.directory.is_lost(node) {
                self.connect_to(others, node)?;
            }
        }
        Ok(())
    }

    #[cold]
    fn connect_to(&self, others: &Others, node: NodeId) -> Result<(), BatchError> {
        let reason = match others.directory.find(node) {
            NodeWay::None | NodeWay::Lost => return Ok(()),
            NodeWay::Unreachable(reason) => reason,
            NodeWay::At(client) => match client.connection(others.owner) {
                Ok(connection) => {
                    self.set(usize::from(node.0), connection);
                    return Ok(());
                }
                Err(_) if others.directory.is_lost_now(node) => return Ok(()),
                Err(error) => error.to_string(),
            },
        };
        let kind = BatchErrorKind::Unreachable { node, reason };
        Err(BatchError::new(kind, 0))
    }

    /// Whether a node is gone for good whose connection is broken, or that hangs up in good order:
    /// asks whoever knows.
    #[cold]
    fn is_lost_now(&self, node: NodeId) -> bool {
        let others = self.others.as_ref().filter(|_| node != NodeId(0));
        others.is_some_and(|others| {
            others.directory.is_lost(node) || others.directory.is_lost_now(node)
        })
    }

    /// Whether a node is known to be gone for good.
    #[inline]
    fn is_lost(&self, node: NodeId) -> bool {
        let others = self.others.as_ref();
        others.is_some_and(|others| others.directory.is_lost(node))
    }

    /// F7: the first verb that would be refused, and the size of its node's region.
    #[inline]
    fn first_refused(&self, verbs: &[Verb]) -> Option<Refused> {
        verbs.iter().enumerate().find_map(|(verb_index, verb)| {
            let node = verb.addr.node();
            let region_word_count = self.region_word_count(node);
            if region_word_count.is_none() && self.is_lost(node) {
                return None;
            }
            let end = verb.addr.index().checked_add(u64::from(verb.word_count));
            let is_inside = region_word_count
                .zip(end)
                .is_some_and(|(size, end)| end <= size);
            (!is_inside).then_some(Refused {
                verb_index,
                region_word_count,
            })
        })
    }

    /// The first verb whose connection is broken, and how; then nothing is posted, to no node. But
    /// what a lost node (U4 of the member table) would have been posted is left out.
    fn first_unreachable(&self, verbs: &[Verb]) -> Option<BatchError> {
        verbs.iter().find_map(|verb| {
            let node = verb.addr.node();
            let connection = self.node(node)?.borrow();
            let reason = connection.lost()?.to_owned();
            let kind = BatchErrorKind::Unreachable { node, reason };
            (!self.is_lost_now(node)).then(|| BatchError::new(kind, 0))
        })
    }

    /// The first verb whose node is gone for good.
    fn first_lost(&self, verbs: &[Verb]) -> Option<(usize, NodeId)> {
        self.others.as_ref()?;
        let nodes = verbs.iter().map(|verb| verb.addr.node()).enumerate();
        nodes.into_iter().find(|(_, node)| self.is_lost(*node))
    }

    /// Posts the verbs of one node.
    #[inline]
    fn post(&self, node: NodeId, verbs: &[Verb], data: &mut [u64]) -> Option<Part> {
        let own = verbs.iter().filter(|verb| verb.addr.node() == node);
        if node == NodeId(0)
            && let Some(local) = &self.local
        {
            local.execute_part(own, data);
            return None;
        }
        if self.is_lost(node) {
            return None;
        }
        let mut connection = self.node(node)?.borrow_mut();
        let slot = connection.post(own, data);
        self.patience.borrow_mut().begin();
        Some(Part { node, slot })
    }
}

/// A verb that this side refuses already.
#[derive(Clone, Copy, Debug)]
struct Refused {
    verb_index: usize,
    region_word_count: Option<u64>,
}

/// The part of a batch that goes to one node.
#[derive(Clone, Copy, Debug)]
struct Part {
    node: NodeId,
    slot: OperationSlot,
}

/// A verb that was not executed, or not wholly.
#[derive(Clone, Copy, Debug)]
struct FailedVerb {
    verb_index: usize,
    /// N2: of the pieces it was cut into, those that were executed.
    executed_piece_count: usize,
}

/// A batch that is posted, or about to be.
#[derive(Debug)]
pub struct TcpExecute<'a> {
    endpoint: &'a TcpEndpoint,
    batch: &'a mut Batch,
    is_posted: bool,
    first: Option<Part>,
    rare: Option<Box<Rare>>,
}

/// What few batches have, kept apart so that the others are small.
#[derive(Debug, Default)]
struct Rare {
    /// The parts that go to further nodes.
    others: Vec<Part>,
    refused: Option<Refused>,
    /// Of the verbs that failed the first one, by posting order.
    failure: Option<(usize, BatchErrorKind)>,
}

impl TcpExecute<'_> {
    /// F1: one post to each node. F5: nothing from the first verb on that is refused.
    #[inline]
    fn post(&mut self) -> Result<(), BatchError> {
        self.endpoint.connect(self.batch.verbs())?;
        let refused = self.endpoint.first_refused(self.batch.verbs());
        if refused.is_some() {
            self.rare.get_or_insert_default().refused = refused;
        }
        let posted_count = self.posted_count();
        let (verbs, data, cost) = self.batch.parts_mut();
        let verbs = &verbs[..posted_count];
        if let Some(error) = self.endpoint.first_unreachable(verbs) {
            return Err(error);
        }
        if let Some((verb_index, node)) = self.endpoint.first_lost(verbs) {
            let kind = BatchErrorKind::NodeLost { node };
            self.rare.get_or_insert_default().failure = Some((verb_index, kind));
        }
        self.is_posted = true;
        cost.round_trips += 1;
        cost.count_posted(verbs);
        let Some(first) = verbs.first() else {
            return Ok(());
        };
        let first_node = first.addr.node();
        self.first = self.endpoint.post(first_node, verbs, data);
        cost.doorbells += 1;
        for verb in verbs {
            let node = verb.addr.node();
            if node == first_node {
                continue;
            }
            let others = &mut self.rare.get_or_insert_default().others;
            if others.iter().all(|part| part.node != node) {
                others.extend(self.endpoint.post(node, verbs, data));
                cost.doorbells += 1;
            }
        }
        Ok(())
    }

    /// How many verbs were sent, to all nodes: those before the first that is refused.
    #[inline]
    fn posted_count(&self) -> usize {
        let all = self.batch.verb_count();
        let refused = self.rare.as_ref().and_then(|rare| rare.refused);
        refused.map_or(all, |refused| refused.verb_index)
    }

    /// Takes what a node has answered; false: it has not yet.
    #[inline]
    fn take(&mut self, part: Part, context: &mut Context<'_>) -> bool {
        let Some(connection) = self.endpoint.node(part.node) else {
            return true;
        };
        let posted_count = self.posted_count();
        let batch = &mut *self.batch;
        let mut is_whole = false;
        let polled = connection
            .borrow_mut()
            .poll_outcome(part.slot, context, |bytes, count| {
                is_whole = scatter(batch, posted_count, part.node, bytes, count);
            });
        let Poll::Ready(outcome) = polled else {
            return false;
        };
        let is_done = matches!(
            outcome,
            Outcome::Answered {
                status: Status::Done,
                ..
            }
        );
        if !is_done || !is_whole {
            self.note_failure(part.node, outcome);
        }
        true
    }

    #[cold]
    fn note_failure(&mut self, node: NodeId, outcome: Outcome) {
        let (verb_index, kind) = match outcome {
            Outcome::Lost(reason) => {
                let failed = self.first_verb_beyond(node, 0);
                let verb_index = failed.map_or(0, |failed| failed.verb_index);
                let kind = if self.endpoint.is_lost_now(node) {
                    BatchErrorKind::NodeLost { node }
                } else {
                    BatchErrorKind::Unknown { reason }
                };
                (verb_index, kind)
            }
            // A guest that stops closes its gates, which says nothing of the session.
            Outcome::Answered {
                status: Status::Fenced,
                ..
            } if self.endpoint.is_lost_now(node) => {
                let failed = self.first_verb_beyond(node, 0);
                let verb_index = failed.map_or(0, |failed| failed.verb_index);
                (verb_index, BatchErrorKind::NodeLost { node })
            }
            Outcome::Answered {
                status,
                executed_verb_count,
            } => match self.first_verb_beyond(node, executed_verb_count) {
                Some(failed) if status != Status::Done => {
                    let is_torn = failed.executed_piece_count > 0
                        || status == Status::Fenced && executed_verb_count > 0;
                    let verb = &self.batch.verbs()[failed.verb_index];
                    let region_word_count = self.endpoint.region_word_count(node);
                    let kind = if is_torn {
                        torn(status)
                    } else {
                        kind_of(status, verb, region_word_count)
                    };
                    (failed.verb_index, kind)
                }
                // It contradicts itself, so its count is not to be believed either.
                _ => (0, contradiction()),
            },
        };
        let rare = self.rare.get_or_insert_default();
        // What is lost with its node is in nobody's way; what else failed may be.
        let rank = |index: usize, kind: &BatchErrorKind| {
            (matches!(kind, BatchErrorKind::NodeLost { .. }), index)
        };
        let is_first = rare
            .failure
            .as_ref()
            .is_none_or(|(first, known)| rank(verb_index, &kind) < rank(*first, known));
        if is_first {
            rare.failure = Some((verb_index, kind));
        }
    }

    #[cold]
    fn take_others(&mut self, context: &mut Context<'_>) {
        let Some(rare) = &mut self.rare else {
            return;
        };
        let mut others = mem::take(&mut rare.others);
        others.retain(|part| !self.take(*part, context));
        self.rare.get_or_insert_default().others = others;
    }

    /// Whether all nodes have answered.
    #[inline]
    fn is_over(&self) -> bool {
        let others = self.rare.as_ref().map(|rare| &rare.others);
        self.first.is_none() && others.is_none_or(Vec::is_empty)
    }

    /// Of the verbs to a node, the one that was under way after so many verbs on the wire; `None`:
    /// they were all executed.
    fn first_verb_beyond(&self, node: NodeId, executed_count: usize) -> Option<FailedVerb> {
        let mut wire_count = 0;
        let posted = &self.batch.verbs()[..self.posted_count()];
        let own = posted.iter().enumerate();
        own.filter(|(_, verb)| verb.addr.node() == node)
            .find_map(|(verb_index, verb)| {
                let before = wire_count;
                wire_count += wire_verb_count(verb);
                (wire_count > executed_count).then(|| FailedVerb {
                    verb_index,
                    executed_piece_count: executed_count - before,
                })
            })
    }

    /// What they answered.
    #[inline]
    fn outcome(&mut self) -> Result<(), BatchError> {
        let Some(rare) = &mut self.rare else {
            return Ok(());
        };
        if let Some((verb_index, kind)) = rare.failure.take() {
            return Err(BatchError::new(kind, verb_index));
        }
        match rare.refused {
            None => Ok(()),
            Some(refused) => Err(self.refusal(refused)),
        }
    }

    #[cold]
    fn refusal(&self, refused: Refused) -> BatchError {
        let verb = &self.batch.verbs()[refused.verb_index];
        let kind = BatchErrorKind::Refused {
            addr: verb.addr,
            word_count: u64::from(verb.word_count),
            region_word_count: refused.region_word_count,
        };
        BatchError::new(kind, refused.verb_index)
    }
}

impl Future for TcpExecute<'_> {
    type Output = Result<(), BatchError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if !this.is_posted {
            if this.batch.is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.post()?;
        }
        if let Some(part) = this.first
            && this.take(part, context)
        {
            this.first = None;
        }
        if this.rare.is_some() {
            this.take_others(context);
        }
        if !this.is_over() {
            return Poll::Pending;
        }
        Poll::Ready(this.outcome())
    }
}

impl Drop for TcpExecute<'_> {
    fn drop(&mut self) {
        let others = self.rare.as_ref().map(|rare| &rare.others);
        for part in self.first.iter().chain(others.into_iter().flatten()) {
            if let Some(connection) = self.endpoint.node(part.node) {
                connection.borrow_mut().detach(part.slot);
            }
        }
    }
}

impl Endpoint for TcpEndpoint {
    #[inline]
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        self.start(batch)
    }

    #[inline]
    fn poll_completions(&self) -> usize {
        let mut woken = mem::take(&mut *self.woken.borrow_mut());
        let poll = |node: &RefCell<Connection>| node.borrow_mut().poll(&mut woken);
        let count = self.connected().map(poll).sum();
        if count > 0 {
            self.patience.borrow_mut().begin();
        }
        // Nothing is borrowed here: a waker may be anybody's code.
        woken.drain(..).for_each(Waker::wake);
        *self.woken.borrow_mut() = woken;
        count
    }

    fn wait_for_completions(&self, at_most: Duration) -> Wait {
        if !self.connected().any(|node| node.borrow().is_busy()) {
            return Wait::Unable;
        }
        let mut patience = self.patience.borrow_mut();
        if patience.is_awake() {
            patience.wait();
            return Wait::Awake;
        }
        let nodes: Vec<_> = self.connected().map(RefCell::borrow).collect();
        let mut waiting: Vec<_> = nodes.iter().filter_map(|node| node.awaited()).collect();
        let timeout = rustix::event::Timespec {
            tv_sec: at_most.as_secs() as i64,
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        // Interrupted or not, whoever waits asks again.
        let _ = rustix::event::poll(&mut waiting, Some(&timeout));
        Wait::Slept
    }

    #[inline]
    fn in_flight_count(&self) -> usize {
        let in_flight = |node: &RefCell<Connection>| node.borrow().in_flight_count();
        self.connected().map(in_flight).sum()
    }

    #[inline]
    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        match &self.local {
            Some(local) if node == NodeId(0) => local.region_word_count(node),
            _ => Some(self.node(node)?.borrow().region_word_count()),
        }
    }
}
