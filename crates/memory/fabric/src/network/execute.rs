//! Execution of one batch: its parts, and how they end.

use core::future::Future;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll};

use farleaf_base::NodeId;

use crate::batch::Batch;
use crate::endpoint::{BatchError, BatchErrorKind};
use crate::network::connection::{BatchPart, Connection, PartFailure, PostResult};
use crate::network::endpoint::NetworkEndpoint;

/// Future of a batch that is posted, or about to be.
#[derive(Debug)]
pub struct NetworkExecute<'a, C: Connection> {
    endpoint: &'a NetworkEndpoint<C>,
    batch: &'a mut Batch,
    is_posted: bool,
    first: Option<BatchPart>,
    rare: Option<Box<Rare>>,
}

/// Data that few batches need, stored separately to keep the others small.
#[derive(Debug, Default)]
struct Rare {
    /// The parts for further nodes.
    others: Vec<BatchPart>,
    /// The verb that this side refused.
    refused: Option<(usize, BatchErrorKind)>,
    /// The first failed verb in posting order; failures other than a lost node come first.
    failure: Option<(usize, BatchErrorKind)>,
}

impl Rare {
    /// Records the first verb of a part that was not posted because its node is lost for good.
    #[cold]
    fn note_lost(&mut self, verb_index: usize, node: NodeId) {
        self.note(verb_index, BatchErrorKind::NodeLost { node });
    }

    #[cold]
    fn note(&mut self, verb_index: usize, kind: BatchErrorKind) {
        // Verbs to a lost node may fail without harm; other failures may need action, so they rank
        // first.
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

/// Set of nodes of a pool.
#[derive(Debug, Default)]
struct NodeSet([u64; 4]);

impl NodeSet {
    /// Adds a node; returns true if it was not in the set.
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

    /// Posts once to each node (FABRIC-1); nothing from the first refused verb on (FABRIC-5).
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
        // Excludes requests that a backend posts on its own, such as the final READ of `verbs`.
        cost.count_posted(verbs);
        let Some(first) = verbs.first() else {
            return Ok(());
        };
        let first_node = first.addr.node();
        match endpoint.post(first_node, verbs, data) {
            PostResult::InFlight(part) => self.first = Some(part),
            PostResult::Done => {}
            PostResult::Lost => self.rare.get_or_insert_default().note_lost(0, first_node),
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
                    PostResult::InFlight(part) => rare.others.push(part),
                    PostResult::Done => {}
                    PostResult::Lost => rare.note_lost(index, node),
                }
                cost.doorbells += 1;
            }
        }
        Ok(())
    }

    /// Takes the reply of a node; returns false if it has not arrived yet.
    #[inline]
    fn take(&mut self, part: BatchPart, context: &mut Context<'_>) -> bool {
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
    fn note_failure(&mut self, part: BatchPart, failure: PartFailure) {
        let (mut verb_index, mut kind) = (failure.verb_index, failure.kind);
        if failure.may_be_lost && self.endpoint.query_lost(part.node) {
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

    /// Returns true if all nodes have replied.
    #[inline]
    fn is_over(&self) -> bool {
        let others = self.rare.as_ref().map(|rare| &rare.others);
        self.first.is_none() && others.is_none_or(Vec::is_empty)
    }

    /// Returns the result of the whole batch.
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
    /// Detaches the operations of a future that is dropped before all nodes replied. Out of line:
    /// every batch is dropped, but few while unfinished.
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
