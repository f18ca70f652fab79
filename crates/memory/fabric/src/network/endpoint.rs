//! The connections of a session, and what is asked of all of them.

use core::cell::{Cell, OnceCell, RefCell, RefMut};
use core::future::Future;
use core::mem;
use core::task::Waker;
use core::time::Duration;

use std::sync::Arc;

use farleaf_executor::Wait;
use farleaf_types::{NodeId, OwnerWord};

use crate::batch::{Batch, Verb, VerbKind};
use crate::cost::Counters;
use crate::endpoint::{BatchError, BatchErrorKind, Endpoint};
use crate::mapped::MappedEndpoint;
use crate::network::connection::{Connection, Loss, Part, Posted};
use crate::network::execute::NetworkExecute;
use crate::network::nodes::{NodeDirectory, NodeWay};
use crate::tcp::Patience;

/// Numbers of nodes.
const NODE_COUNT_MAX: usize = u8::MAX as usize + 1;

/// An endpoint to the nodes of a pool.
///
/// A batch is written down when its future is first polled, posted at the next
/// [`poll_completions`](Endpoint::poll_completions), and complete when that has taken the answers;
/// so all batches that a thread posts in one turn share a system call, or a doorbell.
#[derive(Debug)]
pub struct NetworkEndpoint<C: Connection> {
    /// By their numbers; connected when they are first needed.
    nodes: Box<[OnceCell<Box<RefCell<C>>>]>,
    /// Above the greatest number that is connected.
    connected_end: Cell<usize>,
    /// Node 0, where this process has it mapped.
    local: Option<Box<MappedEndpoint>>,
    /// How the others are found; `None`: there are none.
    others: Option<Others<C>>,
    counters: Counters,
    /// Empty between calls; kept for its allocation.
    woken: RefCell<Vec<Waker>>,
    patience: RefCell<Patience>,
    /// F7 is left to the node.
    #[cfg(feature = "conformance")]
    pub(crate) is_unchecked: bool,
}

/// How nodes besides the home are connected to.
#[derive(Debug)]
pub(crate) struct Others<C: Connection> {
    pub(crate) directory: Arc<dyn NodeDirectory>,
    /// Whose connections they are.
    pub(crate) owner: Option<OwnerWord>,
    pub(crate) means: C::Means,
}

/// How node 0 is reached.
pub(crate) enum Home<C> {
    Connected(C),
    Mapped(Box<MappedEndpoint>),
}

impl<C: Connection> NetworkEndpoint<C> {
    fn with_room_for(node_count: usize) -> Self {
        Self {
            nodes: (0..node_count).map(|_| OnceCell::new()).collect(),
            connected_end: Cell::new(0),
            local: None,
            others: None,
            counters: Counters::default(),
            woken: RefCell::default(),
            patience: RefCell::new(Patience::new()),
            #[cfg(feature = "conformance")]
            is_unchecked: false,
        }
    }

    pub(super) fn set(&self, node: usize, connection: C) {
        // A place that is taken stays so; there is one thread.
        let _ = self.nodes[node].set(Box::new(RefCell::new(connection)));
        let end = self.connected_end.get().max(node + 1);
        self.connected_end.set(end);
    }

    /// To node 0, and no other.
    pub(crate) fn to_one(connection: C) -> Self {
        let endpoint = Self::with_room_for(1);
        endpoint.set(0, connection);
        endpoint
    }

    /// To node 0, and to others as they are needed.
    pub(crate) fn to_pool(home: Home<C>, others: Others<C>) -> Self {
        let mut endpoint = Self::with_room_for(NODE_COUNT_MAX);
        endpoint.others = Some(others);
        match home {
            Home::Connected(connection) => endpoint.set(0, connection),
            Home::Mapped(local) => endpoint.local = Some(local),
        }
        endpoint
    }

    /// What [`Endpoint::execute`] returns, as a type with a name.
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

    /// Connects the nodes of these verbs that are not connected. An error: one cannot be reached.
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
    fn connect_to(&self, others: &Others<C>, node: NodeId) -> Result<(), BatchError> {
        let mut way = others.directory.find(node);
        let mut is_renewed = false;
        let loss = loop {
            let client = match way {
                NodeWay::None | NodeWay::Lost => return Ok(()),
                NodeWay::Unreachable(reason) => break Loss::Broken(reason),
                NodeWay::At(client) => client,
            };
            let loss = match C::open(&others.means, &client, others.owner) {
                Ok(connection) => {
                    self.set(usize::from(node.0), connection);
                    return Ok(());
                }
                Err(loss) => loss,
            };
            if self.is_lost_by(&loss, node) {
                return Ok(());
            }
            // The node does not know a client whose own connection has ended. Once: the next batch
            // comes here again.
            let may_renew = !is_renewed && loss.may_be_the_nodes();
            let renewed = may_renew.then(|| others.directory.renew(node, &client));
            match renewed.flatten() {
                Some(renewed) => way = renewed,
                None => break loss,
            }
            is_renewed = true;
        };
        Err(BatchError::new(loss.before_posting(node), 0))
    }

    /// Whether a node is gone for good whose connection is broken, or that hangs up in good order:
    /// asks whoever knows.
    #[cold]
    pub(super) fn is_lost_now(&self, node: NodeId) -> bool {
        let others = self.others.as_ref().filter(|_| node != NodeId(0));
        others.is_some_and(|others| {
            others.directory.is_lost(node) || others.directory.is_lost_now(node)
        })
    }

    /// Whether that is why its connection is of no use.
    #[cold]
    fn is_lost_by(&self, loss: &Loss, node: NodeId) -> bool {
        loss.may_be_the_nodes() && self.is_lost_now(node)
    }

    /// Whether a node is known to be gone for good.
    #[inline]
    fn is_lost(&self, node: NodeId) -> bool {
        let others = self.others.as_ref();
        others.is_some_and(|others| others.directory.is_lost(node))
    }

    /// F7: the first verb that would be refused, and why. The node checks again.
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
        let region_word_count = self.region_word_count(node);
        if region_word_count.is_none() && self.is_lost(node) {
            return None;
        }
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
        let is_allowed = verb.kind == VerbKind::Read
            || self.node(node).is_none_or(|it| it.borrow().may_change());
        (!is_allowed).then_some(BatchErrorKind::Forbidden { addr, word_count })
    }

    /// The first verb whose connection is broken, and how; then nothing is posted, to no node. But
    /// what a lost node (U4 of the member table) would have been posted is left out.
    pub(super) fn first_unreachable(&self, verbs: &[Verb]) -> Option<BatchError> {
        verbs.iter().find_map(|verb| {
            let node = verb.addr.node();
            let loss = self.node(node)?.borrow_mut().loss()?.clone();
            let is_lost = self.is_lost(node) || self.is_lost_by(&loss, node);
            (!is_lost).then(|| BatchError::new(loss.before_posting(node), 0))
        })
    }

    /// Posts the verbs of one node. Another thread of the process may have learnt only now that the
    /// node is lost.
    #[inline]
    pub(super) fn post(&self, node: NodeId, verbs: &[Verb], data: &mut [u64]) -> Posted {
        let own = verbs.iter().filter(|verb| verb.addr.node() == node);
        if node == NodeId(0)
            && let Some(local) = &self.local
        {
            local.execute_part(own, data);
            return Posted::Done;
        }
        // What is not refused and has no connection was lost when it was to be connected.
        let Some(connection) = self.node(node).filter(|_| !self.is_lost(node)) else {
            return Posted::Lost;
        };
        let slot = connection.borrow_mut().post(own, data);
        self.patience.borrow_mut().begin();
        Posted::UnderWay(Part {
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
        let home = self.node(NodeId(0));
        home.is_some_and(|home| home.borrow_mut().open_window(word_count))
    }

    fn read_window(&self, index: u64, to: &mut [u64]) -> bool {
        let Some(mut home) = self.node(NodeId(0)).map(RefCell::borrow_mut) else {
            return false;
        };
        if home.loss().is_some() {
            return false;
        }
        let words = home.window().get(index as usize..);
        let words = words.and_then(|words| words.get(..to.len()));
        words.inspect(|words| to.copy_from_slice(words)).is_some()
    }

    fn await_window(&self, is_awaited: bool) {
        if let Some(home) = self.node(NodeId(0)) {
            home.borrow_mut().await_window(is_awaited);
        }
    }

    #[inline]
    fn poll_completions(&self) -> usize {
        let mut woken = mem::take(&mut *self.woken.borrow_mut());
        let poll = |node: &RefCell<C>| node.borrow_mut().poll(&mut woken);
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
        let busy = |node: &&RefCell<C>| node.borrow().is_busy();
        if !self.connected().any(|node| busy(&node)) {
            return Wait::Unable;
        }
        let mut patience = self.patience.borrow_mut();
        if patience.is_awake() {
            patience.wait();
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
            // Interrupted or not, whoever waits asks again.
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
    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        match &self.local {
            Some(local) if node == NodeId(0) => local.region_word_count(node),
            _ => Some(self.node(node)?.borrow().region_word_count()),
        }
    }
}
