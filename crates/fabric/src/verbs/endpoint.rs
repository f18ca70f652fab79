//! Batches over queue pairs, one per node.

use core::cell::RefCell;
use core::future::Future;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use farleaf_executor::Wait;
use farleaf_types::NodeId;

use crate::batch::{Batch, Verb, VerbKind};
use crate::cost::Counters;
use crate::endpoint::{BatchError, BatchErrorKind, Endpoint};
use crate::tcp::{Loss, Patience};
use crate::verbs::connection::{Connection, Failure, OperationSlot, Outcome};

/// An endpoint to the nodes of a pool, in the order of their numbers.
///
/// A batch is written down when its future is first polled, posted at the next
/// [`poll_completions`](Endpoint::poll_completions), and complete when that has taken the last
/// completion; so all batches that a thread posts in one turn share a doorbell.
#[derive(Debug)]
pub struct VerbsEndpoint {
    nodes: Vec<RefCell<Connection>>,
    counters: Counters,
    /// Empty between calls; kept for its allocation.
    woken: RefCell<Vec<Waker>>,
    patience: RefCell<Patience>,
    /// F7 is left to the card.
    #[cfg(feature = "conformance")]
    is_unchecked: bool,
}

impl VerbsEndpoint {
    /// Over connections to node 0, 1 and so on.
    pub(super) fn new(connections: impl IntoIterator<Item = Connection>) -> Self {
        Self {
            nodes: connections.into_iter().map(RefCell::new).collect(),
            counters: Counters::default(),
            woken: RefCell::default(),
            patience: RefCell::new(Patience::new()),
            #[cfg(feature = "conformance")]
            is_unchecked: false,
        }
    }

    /// For tests: posts what this side would refuse, as a client that means harm does.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn unchecked(mut self) -> Self {
        self.is_unchecked = true;
        self
    }

    /// What [`Endpoint::execute`] returns, as a type with a name.
    #[inline]
    pub fn start<'a>(&'a self, batch: &'a mut Batch) -> VerbsExecute<'a> {
        VerbsExecute {
            endpoint: self,
            batch,
            is_posted: false,
            first: None,
            rare: None,
        }
    }

    /// For tests: goes to the region by another endpoint's key, as who has guessed it.
    #[cfg(feature = "conformance")]
    #[must_use]
    pub fn with_key_of(self, other: &Self) -> Self {
        for (node, other) in self.nodes.iter().zip(&other.nodes) {
            node.borrow_mut().take_key_of(&other.borrow());
        }
        self
    }

    fn node(&self, node: NodeId) -> Option<&RefCell<Connection>> {
        self.nodes.get(usize::from(node.0))
    }

    /// F7: the first verb that would be refused, and why. The card checks again.
    #[inline]
    fn first_refused(&self, verbs: &[Verb]) -> Option<(usize, BatchErrorKind)> {
        #[cfg(feature = "conformance")]
        if self.is_unchecked {
            return None;
        }
        let refused = |verb: &Verb| {
            let (addr, word_count) = (verb.addr, u64::from(verb.word_count));
            let connection = self.node(addr.node()).map(RefCell::borrow);
            let region_word_count = connection.as_ref().map(|it| it.region_word_count());
            let end = addr.index().checked_add(word_count);
            let is_inside = region_word_count
                .zip(end)
                .is_some_and(|(size, end)| end <= size);
            if !is_inside {
                return Some(BatchErrorKind::Refused {
                    addr,
                    word_count,
                    region_word_count,
                });
            }
            let may = verb.kind == VerbKind::Read || connection.is_some_and(|it| it.may_change());
            (!may).then_some(BatchErrorKind::Forbidden { addr, word_count })
        };
        let mut verbs = verbs.iter().enumerate();
        verbs.find_map(|(index, verb)| Some((index, refused(verb)?)))
    }

    /// The first verb whose node is lost, and how; then nothing is posted, to no node.
    #[inline]
    fn first_lost(&self, verbs: &[Verb]) -> Option<BatchError> {
        verbs.iter().find_map(|verb| {
            let node = verb.addr.node();
            let mut connection = self.node(node)?.borrow_mut();
            let kind = match connection.lost()? {
                Loss::Fenced => BatchErrorKind::Fenced,
                Loss::Broken(reason) => BatchErrorKind::Unreachable {
                    node,
                    reason: reason.clone(),
                },
            };
            Some(BatchError::new(kind, 0))
        })
    }

    #[inline]
    fn post(&self, node: NodeId, verbs: &[Verb], data: &[u64]) -> Option<Part> {
        let mut connection = self.node(node)?.borrow_mut();
        let own = verbs.iter().filter(|verb| verb.addr.node() == node);
        let slot = connection.post(own, data);
        self.patience.borrow_mut().begin();
        Some(Part { node, slot })
    }
}

/// The part of a batch that goes to one node.
#[derive(Clone, Copy, Debug)]
struct Part {
    node: NodeId,
    slot: OperationSlot,
}

/// A batch that is posted, or about to be.
#[derive(Debug)]
pub struct VerbsExecute<'a> {
    endpoint: &'a VerbsEndpoint,
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
    /// The verb that this side refused.
    refused: Option<(usize, BatchErrorKind)>,
    /// Of the verbs that failed the first one, by posting order.
    failure: Option<(usize, BatchErrorKind)>,
}

impl VerbsExecute<'_> {
    /// F1: one post to each node. F5: nothing from the first verb on that is refused.
    #[inline]
    fn post(&mut self) -> Result<(), BatchError> {
        let refused = self.endpoint.first_refused(self.batch.verbs());
        if refused.is_some() {
            self.rare.get_or_insert_default().refused = refused;
        }
        let posted_count = self.posted_count();
        let (verbs, data, cost) = self.batch.parts_mut();
        let verbs = &verbs[..posted_count];
        if let Some(error) = self.endpoint.first_lost(verbs) {
            return Err(error);
        }
        self.is_posted = true;
        cost.round_trips += 1;
        // Without the READ behind changes (K2), which is the backend's own.
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

    /// How many verbs were posted, to all nodes: those before the first that is refused.
    #[inline]
    fn posted_count(&self) -> usize {
        let all = self.batch.verb_count();
        let refused = self.rare.as_ref().and_then(|rare| rare.refused.as_ref());
        refused.map_or(all, |(verb_index, _)| *verb_index)
    }

    /// Takes what a node's verbs have brought; false: they are not complete.
    #[inline]
    fn take(&mut self, part: Part, context: &mut Context<'_>) -> bool {
        let Some(node) = self.endpoint.node(part.node) else {
            return true;
        };
        let mut connection = node.borrow_mut();
        let Poll::Ready(outcome) = connection.poll_outcome(part.slot, context) else {
            return false;
        };
        let end = match &outcome {
            Outcome::Done => usize::MAX,
            Outcome::Refused(failure) => failure.ordinal as usize,
            Outcome::Lost(_) => 0,
        };
        scatter(self.batch, self.rare.as_deref(), &connection, part, end);
        connection.release(part.slot);
        drop(connection);
        if !matches!(outcome, Outcome::Done) {
            self.note_failure(part.node, outcome);
        }
        true
    }

    #[cold]
    fn note_failure(&mut self, node: NodeId, outcome: Outcome) {
        let (ordinal, kind) = match outcome {
            Outcome::Done => return,
            Outcome::Lost(loss) => (0, unknown(loss)),
            Outcome::Refused(failure) => {
                let verb_index = self.verb_index(node, failure.ordinal as usize);
                (failure.ordinal as usize, self.refusal(verb_index, failure))
            }
        };
        let verb_index = self.verb_index(node, ordinal).unwrap_or(0);
        let rare = self.rare.get_or_insert_default();
        let is_first = rare
            .failure
            .as_ref()
            .is_none_or(|(first, _)| verb_index < *first);
        if is_first {
            rare.failure = Some((verb_index, kind));
        }
    }

    /// Why the card refused a verb that this side took for good. `None` stands for the READ behind
    /// all of them (K2).
    fn refusal(&self, verb_index: Option<usize>, failure: Failure) -> BatchErrorKind {
        let verb = verb_index.map(|index| &self.batch.verbs()[index]);
        let Some(verb) = verb.filter(|_| !failure.is_torn) else {
            let reason = "the memory node's RDMA device has executed a part of it and refused the \
                          rest";
            return BatchErrorKind::Unknown {
                reason: reason.to_owned(),
            };
        };
        let (addr, word_count) = (verb.addr, u64::from(verb.word_count));
        if verb.kind == VerbKind::Read {
            let region_word_count = self.endpoint.region_word_count(addr.node());
            return BatchErrorKind::Refused {
                addr,
                word_count,
                region_word_count,
            };
        }
        BatchErrorKind::Forbidden { addr, word_count }
    }

    /// The place in the batch of a verb to a node, by its place among those.
    fn verb_index(&self, node: NodeId, ordinal: usize) -> Option<usize> {
        let posted = &self.batch.verbs()[..self.posted_count()];
        let mut own = posted
            .iter()
            .enumerate()
            .filter(|(_, verb)| verb.addr.node() == node);
        own.nth(ordinal).map(|(index, _)| index)
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

    #[inline]
    fn is_over(&self) -> bool {
        let others = self.rare.as_ref().map(|rare| &rare.others);
        self.first.is_none() && others.is_none_or(Vec::is_empty)
    }

    #[inline]
    fn outcome(&mut self) -> Result<(), BatchError> {
        let Some(rare) = &mut self.rare else {
            return Ok(());
        };
        let failed = rare.failure.take().or_else(|| rare.refused.take());
        failed.map_or(Ok(()), |(index, kind)| Err(BatchError::new(kind, index)))
    }
}

/// Puts what a node's verbs before the `end`-th have brought where the batch has room for it.
#[inline]
fn scatter(
    batch: &mut Batch,
    rare: Option<&Rare>,
    connection: &Connection,
    part: Part,
    end: usize,
) {
    let refused = rare.and_then(|rare| rare.refused.as_ref());
    let (verbs, data, _) = batch.parts_mut();
    let verbs = &verbs[..refused.map_or(verbs.len(), |(index, _)| *index)];
    let own = verbs.iter().filter(|verb| verb.addr.node() == part.node);
    let mut first = 0;
    for verb in own.take(end) {
        connection.brought(part.slot, first, &mut data[verb.room()]);
        first += verb.word_count as usize;
    }
}

#[cold]
fn unknown(loss: Loss) -> BatchErrorKind {
    let reason = match loss {
        Loss::Fenced => "the memory node has fenced the session while the verbs were under way; \
                         open the pool again"
            .to_owned(),
        Loss::Broken(reason) => reason,
    };
    BatchErrorKind::Unknown { reason }
}

impl Future for VerbsExecute<'_> {
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

impl Drop for VerbsExecute<'_> {
    fn drop(&mut self) {
        let others = self.rare.as_ref().map(|rare| &rare.others);
        for part in self.first.iter().chain(others.into_iter().flatten()) {
            if let Some(connection) = self.endpoint.node(part.node) {
                connection.borrow_mut().detach(part.slot);
            }
        }
    }
}

impl Endpoint for VerbsEndpoint {
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
        let count = self.nodes.iter().map(poll).sum();
        if count > 0 {
            self.patience.borrow_mut().begin();
        }
        // Nothing is borrowed here: a waker may be anybody's code.
        woken.drain(..).for_each(Waker::wake);
        *self.woken.borrow_mut() = woken;
        count
    }

    fn wait_for_completions(&self, at_most: Duration) -> Wait {
        let busy = |node: &&RefCell<Connection>| node.borrow().is_busy();
        if !self.nodes.iter().any(|node| busy(&node)) {
            return Wait::Unable;
        }
        let mut patience = self.patience.borrow_mut();
        if patience.is_awake() {
            patience.wait();
            return Wait::Awake;
        }
        let mut nodes: Vec<_> = self
            .nodes
            .iter()
            .filter(busy)
            .map(RefCell::borrow_mut)
            .collect();
        let unarmed_count = nodes
            .iter_mut()
            .filter_map(|node| (!node.arm()).then_some(()))
            .count();
        if unarmed_count > 0 {
            return Wait::Awake;
        }
        let timeout = rustix::event::Timespec {
            tv_sec: at_most.as_secs() as i64,
            tv_nsec: i64::from(at_most.subsec_nanos()),
        };
        let told: Vec<Vec<bool>> = {
            let waits: Vec<Vec<_>> = nodes.iter().map(|node| node.awaited().collect()).collect();
            let counts: Vec<usize> = waits.iter().map(Vec::len).collect();
            let mut waiting: Vec<_> = waits.into_iter().flatten().collect();
            // Interrupted or not, whoever waits asks again.
            let _ = rustix::event::poll(&mut waiting, Some(&timeout));
            let mut ready = waiting.iter().map(|wait| !wait.revents().is_empty());
            let of_node = |count: usize| ready.by_ref().take(count).collect();
            counts.into_iter().map(of_node).collect()
        };
        for (node, told) in nodes.iter_mut().zip(told) {
            let is_told = |index: usize| told.get(index).copied().unwrap_or(false);
            node.wake(is_told(0), is_told(1));
        }
        Wait::Slept
    }

    #[inline]
    fn in_flight_count(&self) -> usize {
        let in_flight = |node: &RefCell<Connection>| node.borrow().in_flight_count();
        self.nodes.iter().map(in_flight).sum()
    }

    #[inline]
    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        Some(self.node(node)?.borrow().region_word_count())
    }
}
