//! The endpoint of a session: its connections to the nodes of a pool.

use core::cell::{Cell, OnceCell, RefCell, RefMut};
use core::future::Future;
use core::mem;
use core::task::Waker;
use core::time::Duration;

use std::sync::Arc;

use farleaf_base::{NodeId, OwnerWord};
use farleaf_executor::Wait;

use crate::batch::{Batch, Verb, VerbKind};
use crate::cost::Counters;
use crate::endpoint::{BatchError, BatchErrorKind, Endpoint};
use crate::mapped::MappedEndpoint;
use crate::network::connection::{BatchPart, Connection, Loss, PostResult};
use crate::network::execute::NetworkExecute;
use crate::network::nodes::{NodeAccess, NodeDirectory};
use crate::tcp::PollTimer;

/// Number of possible node numbers.
const NODE_COUNT_MAX: usize = u8::MAX as usize + 1;

/// An endpoint to the nodes of a pool.
///
/// A batch is queued when its future is first polled, and posted at the next
/// [`poll_completions`](Endpoint::poll_completions). It completes when that method has received the
/// replies. So all batches that a thread posts in one turn share a system call, or a doorbell.
#[derive(Debug)]
pub struct NetworkEndpoint<C: Connection> {
    /// Connections by node number, opened when first needed.
    nodes: Box<[OnceCell<Box<RefCell<C>>>]>,
    /// Number above the greatest connected node.
    connected_end: Cell<usize>,
    /// Endpoint to node 0, if its memory is mapped into this process.
    local: Option<Box<MappedEndpoint>>,
    /// Access to further nodes; `None` if the pool has one node.
    others: Option<OtherNodes<C>>,
    counters: Counters,
    /// Buffer for wakers; empty between calls, kept for its allocation.
    woken: RefCell<Vec<Waker>>,
    poll_timer: RefCell<PollTimer>,
    /// True if FABRIC-7 is checked by the node alone.
    #[cfg(feature = "conformance")]
    pub(crate) is_unchecked: bool,
}

/// Resources for connecting to nodes other than the main node.
#[derive(Debug)]
pub(crate) struct OtherNodes<C: Connection> {
    pub(crate) directory: Arc<dyn NodeDirectory>,
    /// Session of the connections; `None` for those of the process itself.
    pub(crate) owner: Option<OwnerWord>,
    pub(crate) resources: C::Resources,
}

/// Access to node 0.
pub(crate) enum MainNode<C> {
    Connected(C),
    Mapped(Box<MappedEndpoint>),
}

impl<C: Connection> NetworkEndpoint<C> {
    fn with_space_for(node_count: usize) -> Self {
        Self {
            nodes: (0..node_count).map(|_| OnceCell::new()).collect(),
            connected_end: Cell::new(0),
            local: None,
            others: None,
            counters: Counters::default(),
            woken: RefCell::default(),
            poll_timer: RefCell::new(PollTimer::new()),
            #[cfg(feature = "conformance")]
            is_unchecked: false,
        }
    }

    pub(super) fn set(&self, node: usize, connection: C) {
        // One thread uses the endpoint, so an occupied place stays occupied.
        let _ = self.nodes[node].set(Box::new(RefCell::new(connection)));
        let end = self.connected_end.get().max(node + 1);
        self.connected_end.set(end);
    }

    /// Returns an endpoint to node 0 alone.
    pub(crate) fn to_one(connection: C) -> Self {
        let endpoint = Self::with_space_for(1);
        endpoint.set(0, connection);
        endpoint
    }

    /// Returns an endpoint to node 0, and to others when they are needed.
    pub(crate) fn to_pool(main_node: MainNode<C>, others: OtherNodes<C>) -> Self {
        let mut endpoint = Self::with_space_for(NODE_COUNT_MAX);
        endpoint.others = Some(others);
        match main_node {
            MainNode::Connected(connection) => endpoint.set(0, connection),
            MainNode::Mapped(local) => endpoint.local = Some(local),
        }
        endpoint
    }

    /// Starts a batch, as [`Endpoint::execute`] does, but returns a named type.
    #[inline]
    pub fn start<'a>(&'a self, batch: &'a mut Batch) -> NetworkExecute<'a, C> {
        NetworkExecute::new(self, batch)
    }

    #[inline]
    pub(crate) fn node(&self, node: NodeId) -> Option<&RefCell<C>> {
        let connection = self.nodes.get(usize::from(node.0))?.get()?;
        Some(connection)
    }

    fn connected(&self) -> impl Iterator<Item = &RefCell<C>> {
        let nodes = self.nodes[..self.connected_end.get()].iter();
        nodes.filter_map(|node| node.get().map(Box::as_ref))
    }

    #[inline]
    fn is_local(&self, node: NodeId) -> bool {
        node == NodeId(0) && self.local.is_some()
    }

    /// Connects the nodes of these verbs. Returns an error if one of them cannot be reached.
    #[inline]
    pub(super) fn connect(&self, verbs: &[Verb]) -> Result<(), BatchError> {
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
    fn connect_to(&self, others: &OtherNodes<C>, node: NodeId) -> Result<(), BatchError> {
        let mut access = others.directory.find(node);
        let mut is_renewed = false;
        let loss = loop {
            let client = match access {
                NodeAccess::None | NodeAccess::Lost => return Ok(()),
                NodeAccess::Unreachable(reason) => break Loss::Broken(reason),
                NodeAccess::At(client) => client,
            };
            let loss = match C::open(&others.resources, &client, others.owner) {
                Ok(connection) => {
                    self.set(usize::from(node.0), connection);
                    return Ok(());
                }
                Err(loss) => loss,
            };
            if self.is_lost_by(&loss, node) {
                return Ok(());
            }
            // If the client's own connection has ended, the node no longer knows the client. Try
            // only once; the next batch tries again.
            let may_renew = !is_renewed && loss.may_be_node_loss();
            let renewed = may_renew.then(|| others.directory.renew(node, &client));
            match renewed.flatten() {
                Some(renewed) => access = renewed,
                None => break loss,
            }
            is_renewed = true;
        };
        Err(BatchError::new(loss.before_posting(node), 0))
    }

    /// Asks the pool's main node whether a node is lost for good. Called if its connection broke,
    /// or was closed in good order.
    #[cold]
    pub(super) fn query_lost(&self, node: NodeId) -> bool {
        let others = self.others.as_ref().filter(|_| node != NodeId(0));
        others.is_some_and(|others| {
            others.directory.is_lost(node) || others.directory.query_lost(node)
        })
    }

    /// Returns true if the loss of the node explains why its connection is unusable.
    #[cold]
    fn is_lost_by(&self, loss: &Loss, node: NodeId) -> bool {
        loss.may_be_node_loss() && self.query_lost(node)
    }

    /// Returns true if a node is known to be lost for good.
    #[inline]
    fn is_lost(&self, node: NodeId) -> bool {
        let others = self.others.as_ref();
        others.is_some_and(|others| others.directory.is_lost(node))
    }

    /// Returns the first verb that the node would refuse, with the reason (FABRIC-7). The node
    /// checks again.
    #[inline]
    pub(super) fn first_refused(&self, verbs: &[Verb]) -> Option<(usize, BatchErrorKind)> {
        #[cfg(feature = "conformance")]
        if self.is_unchecked {
            return None;
        }
        let mut verbs = verbs.iter().enumerate();
        verbs.find_map(|(index, verb)| Some((index, self.refusal(verb)?)))
    }

    #[inline]
    fn refusal(&self, verb: &Verb) -> Option<BatchErrorKind> {
        let (addr, node) = (verb.addr, verb.addr.node());
        let word_count = u64::from(verb.word_count);
        let memory_word_count = self.memory_word_count(node);
        if memory_word_count.is_none() && self.is_lost(node) {
            return None;
        }
        let end = addr.index().checked_add(word_count);
        let is_inside = memory_word_count
            .zip(end)
            .is_some_and(|(size, end)| end <= size);
        if !is_inside {
            return Some(BatchErrorKind::Refused {
                addr,
                word_count,
                memory_word_count,
            });
        }
        let is_allowed = verb.kind == VerbKind::Read
            || self.node(node).is_none_or(|it| it.borrow().may_change());
        (!is_allowed).then_some(BatchErrorKind::Forbidden { addr, word_count })
    }

    /// Returns an error for the first verb whose connection is broken; nothing is posted to any
    /// node then. Verbs to nodes that are lost for good are skipped.
    pub(super) fn first_unreachable(&self, verbs: &[Verb]) -> Option<BatchError> {
        verbs.iter().find_map(|verb| {
            let node = verb.addr.node();
            let loss = self.node(node)?.borrow_mut().loss()?.clone();
            let is_lost = self.is_lost(node) || self.is_lost_by(&loss, node);
            (!is_lost).then(|| BatchError::new(loss.before_posting(node), 0))
        })
    }

    /// Posts the verbs of one node. Another thread of the process may have learned only now that
    /// the node is lost.
    #[inline]
    pub(super) fn post(&self, node: NodeId, verbs: &[Verb], data: &mut [u64]) -> PostResult {
        let own = verbs.iter().filter(|verb| verb.addr.node() == node);
        if node == NodeId(0)
            && let Some(local) = &self.local
        {
            local.execute_part(own, data);
            return PostResult::Done;
        }
        // A verb without a refusal and without a connection belongs to a node that was lost before
        // it was connected.
        let Some(connection) = self.node(node).filter(|_| !self.is_lost(node)) else {
            return PostResult::Lost;
        };
        let slot = connection.borrow_mut().post(own, data);
        self.poll_timer.borrow_mut().begin();
        PostResult::InFlight(BatchPart {
            node,
            slot,
            posted_count: verbs.len(),
        })
    }
}

impl<C: Connection> Endpoint for NetworkEndpoint<C> {
    #[inline]
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        self.start(batch)
    }

    fn open_window(&self, word_count: usize) -> bool {
        let main_node = self.node(NodeId(0));
        main_node.is_some_and(|main_node| main_node.borrow_mut().open_window(word_count))
    }

    fn read_window(&self, index: u64, to: &mut [u64]) -> bool {
        let Some(mut main_node) = self.node(NodeId(0)).map(RefCell::borrow_mut) else {
            return false;
        };
        if main_node.loss().is_some() {
            return false;
        }
        let words = main_node.window().get(index as usize..);
        let words = words.and_then(|words| words.get(..to.len()));
        words.inspect(|words| to.copy_from_slice(words)).is_some()
    }

    fn await_window(&self, is_awaited: bool) {
        if let Some(main_node) = self.node(NodeId(0)) {
            main_node.borrow_mut().await_window(is_awaited);
        }
    }

    #[inline]
    fn poll_completions(&self) -> usize {
        let mut woken = mem::take(&mut *self.woken.borrow_mut());
        let poll = |node: &RefCell<C>| node.borrow_mut().poll(&mut woken);
        let count = self.connected().map(poll).sum();
        if count > 0 {
            self.poll_timer.borrow_mut().begin();
        }
        // Nothing may be borrowed here: a waker is foreign code.
        woken.drain(..).for_each(Waker::wake);
        *self.woken.borrow_mut() = woken;
        count
    }

    fn wait_for_completions(&self, at_most: Duration) -> Wait {
        let busy = |node: &&RefCell<C>| node.borrow().is_busy();
        if !self.connected().any(|node| busy(&node)) {
            return Wait::Unable;
        }
        let mut poll_timer = self.poll_timer.borrow_mut();
        if poll_timer.is_awake() {
            poll_timer.wait();
            return Wait::Awake;
        }
        let nodes = self.connected().filter(busy).map(RefCell::borrow_mut);
        let mut nodes: Vec<RefMut<'_, C>> = nodes.collect();
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
        let ready: Vec<bool> = {
            let mut waiting: Vec<_> = nodes.iter().flat_map(|node| node.awaited()).collect();
            // Interrupted or not, the caller polls again.
            let _ = rustix::event::poll(&mut waiting, Some(&timeout));
            let is_ready = |wait: &rustix::event::PollFd<'_>| !wait.revents().is_empty();
            waiting.iter().map(is_ready).collect()
        };
        let mut ready = ready.into_iter();
        for node in &mut nodes {
            node.wake(&mut ready);
        }
        Wait::Slept
    }

    #[inline]
    fn in_flight_count(&self) -> usize {
        let in_flight = |node: &RefCell<C>| node.borrow().in_flight_count();
        self.connected().map(in_flight).sum()
    }

    #[inline]
    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        match &self.local {
            Some(local) if node == NodeId(0) => local.memory_word_count(node),
            _ => Some(self.node(node)?.borrow().memory_word_count()),
        }
    }
}
