//! One batch: its parts, and how they end.

use core::future::Future;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll};

use farleaf_types::NodeId;

use crate::batch::Batch;
use crate::endpoint::{BatchError, BatchErrorKind};
use crate::network::connection::{Connection, Part, PartFailure, Posted};
use crate::network::endpoint::NetworkEndpoint;

/// A batch that is posted, or about to be.
#[derive(Debug)]
pub struct NetworkExecute<'a, C: Connection> {
    endpoint: &'a NetworkEndpoint<C>,
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

impl Rare {
    /// The first verb of a part that was not posted, as its node is gone for good.
    #[cold]
    fn note_lost(&mut self, verb_index: usize, node: NodeId) {
        self.note(verb_index, BatchErrorKind::NodeLost { node });
    }

    #[cold]
    fn note(&mut self, verb_index: usize, kind: BatchErrorKind) {
        // What is lost with its node is in nobody's way; what else failed may be.
        let rank = |index: usize, kind: &BatchErrorKind| {
            (matches!(kind, BatchErrorKind::NodeLost { .. }), index)
        };
        let known = self.failure.as_ref();
        let is_first =
            known.is_none_or(|(first, known)| rank(verb_index, &kind) < rank(*first, known));
        if is_first {
            self.failure = Some((verb_index, kind));
        }
    }
}

/// Some of the nodes of a pool.
#[derive(Debug, Default)]
struct NodeSet([u64; 4]);

impl NodeSet {
    /// Whether it was not in it before.
    fn insert(&mut self, node: NodeId) -> bool {
        let (word, bit) = (usize::from(node.0 / 64), 1 << (node.0 % 64));
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}

impl<'a, C: Connection> NetworkExecute<'a, C> {
    #[inline]
    pub(super) fn new(endpoint: &'a NetworkEndpoint<C>, batch: &'a mut Batch) -> Self {
        Self {
            endpoint,
            batch,
            is_posted: false,
            first: None,
            rare: None,
        }
    }

    /// F1: one post to each node. F5: nothing from the first verb on that is refused.
    #[inline]
    fn post(&mut self) -> Result<(), BatchError> {
        let endpoint = self.endpoint;
        endpoint.connect(self.batch.verbs())?;
        let mut posted_count = self.batch.verb_count();
        if let Some(refused) = endpoint.first_refused(self.batch.verbs()) {
            posted_count = refused.0;
            self.rare.get_or_insert_default().refused = Some(refused);
        }
        let (verbs, data, cost) = self.batch.parts_mut();
        let verbs = &verbs[..posted_count];
        if let Some(error) = endpoint.first_unreachable(verbs) {
            return Err(error);
        }
        self.is_posted = true;
        cost.round_trips += 1;
        // Without what a backend posts for itself (K2).
        cost.count_posted(verbs);
        let Some(first) = verbs.first() else {
            return Ok(());
        };
        let first_node = first.addr.node();
        match endpoint.post(first_node, verbs, data) {
            Posted::UnderWay(part) => self.first = Some(part),
            Posted::Done => {}
            Posted::Lost => self.rare.get_or_insert_default().note_lost(0, first_node),
        }
        cost.doorbells += 1;
        if verbs.iter().all(|verb| verb.addr.node() == first_node) {
            return Ok(());
        }
        let mut posted = NodeSet::default();
        posted.insert(first_node);
        let nodes = verbs.iter().map(|verb| verb.addr.node());
        for (index, node) in nodes.enumerate() {
            if posted.insert(node) {
                let rare = self.rare.get_or_insert_default();
                match endpoint.post(node, verbs, data) {
                    Posted::UnderWay(part) => rare.others.push(part),
                    Posted::Done => {}
                    Posted::Lost => rare.note_lost(index, node),
                }
                cost.doorbells += 1;
            }
        }
        Ok(())
    }

    /// Takes what a node has answered; false: it has not yet.
    #[inline]
    fn take(&mut self, part: Part, context: &mut Context<'_>) -> bool {
        let Some(connection) = self.endpoint.node(part.node) else {
            return true;
        };
        let taken = connection.borrow_mut().take(part, self.batch, context);
        match taken {
            Poll::Pending => false,
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(failure)) => {
                self.note_failure(part, *failure);
                true
            }
        }
    }

    #[cold]
    fn note_failure(&mut self, part: Part, failure: PartFailure) {
        let (mut verb_index, mut kind) = (failure.verb_index, failure.kind);
        if failure.may_be_lost && self.endpoint.is_lost_now(part.node) {
            verb_index = part.first_index(self.batch.verbs());
            kind = BatchErrorKind::NodeLost { node: part.node };
        }
        self.rare.get_or_insert_default().note(verb_index, kind);
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

    /// What they answered.
    #[inline]
    fn outcome(&mut self) -> Result<(), BatchError> {
        let Some(rare) = &mut self.rare else {
            return Ok(());
        };
        let failed = rare.failure.take().or_else(|| rare.refused.take());
        failed.map_or(Ok(()), |(index, kind)| Err(BatchError::new(kind, index)))
    }
}

impl<C: Connection> Future for NetworkExecute<'_, C> {
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

impl<C: Connection> Drop for NetworkExecute<'_, C> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_over() {
            self.detach();
        }
    }
}

impl<C: Connection> NetworkExecute<'_, C> {
    /// Its future is dropped while nodes owe an answer. Out of line: every batch is dropped, few
    /// so.
    #[cold]
    #[inline(never)]
    fn detach(&self) {
        let others = self.rare.as_ref().map(|rare| &rare.others);
        for part in self.first.iter().chain(others.into_iter().flatten()) {
            if let Some(connection) = self.endpoint.node(part.node) {
                connection.borrow_mut().detach(part.slot);
            }
        }
    }
}
