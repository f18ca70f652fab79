//! The node's own endpoints (FABRIC-4): to its memory by its processor, or by a queue pair of its
//! RDMA device; and from the main node of a pool to the memories of the other nodes.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::Arc;

use farleaf_base::{NodeId, OwnerWord, WordAddr};
use farleaf_executor::Wait;
use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
use farleaf_fabric::network::NodeDirectory;
use farleaf_fabric::tcp::{TcpEndpoint, TcpExecute};
use farleaf_fabric::verbs::{VerbsEndpoint, VerbsError, VerbsExecute, VerbsNode};
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint, Verb, VerbKind};

/// Endpoint of the node itself.
#[derive(Debug)]
pub struct NodeEndpoint {
    processor: MappedEndpoint,
    /// Device that executes the node's verbs, if clients' verbs are executed by it too; the pool's
    /// other nodes use theirs. READs of the node's own memory still use its processor, which sees
    /// all completed writes.
    device: Option<VerbsEndpoint>,
    /// Endpoint to the node's own memory and those of the pool's other nodes, if no device executes
    /// verbs.
    pool: Option<Box<TcpEndpoint>>,
}

/// Batch of either kind of endpoint.
enum NodeExecute<'a> {
    /// Result of a completed batch; `None` once it has been returned.
    Processor(Option<Result<(), BatchError>>),
    Device(VerbsExecute<'a>),
    Pool(TcpExecute<'a>),
}

impl Future for NodeExecute<'_> {
    type Output = Result<(), BatchError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Processor(outcome) => outcome.take().map_or(Poll::Pending, Poll::Ready),
            Self::Device(execute) => Pin::new(execute).poll(context),
            Self::Pool(execute) => Pin::new(execute).poll(context),
        }
    }
}

impl NodeEndpoint {
    /// Creates an endpoint, which uses the device if the node has one for its memory.
    ///
    /// # Errors
    /// The device has no queue pair left.
    pub fn new(memory: &Arc<MappedMemory>, device: Option<&VerbsNode>) -> Result<Self, VerbsError> {
        Ok(Self {
            processor: MappedEndpoint::new(Arc::clone(memory)),
            device: device.map(VerbsNode::loopback).transpose()?,
            pool: None,
        })
    }

    /// Creates an endpoint from a pool's main node to all nodes, for one of the main node's
    /// sessions.
    ///
    /// # Errors
    /// Fails like [`new`](Self::new).
    pub(crate) fn in_pool(
        memory: &Arc<MappedMemory>,
        device: Option<&VerbsNode>,
        owner: OwnerWord,
        nodes: Arc<dyn NodeDirectory>,
    ) -> Result<Self, VerbsError> {
        let mapped = || MappedEndpoint::new(Arc::clone(memory));
        let (device, pool) = if let Some(device) = device {
            (Some(device.pool_endpoint(owner, nodes)?), None)
        } else {
            let pool = TcpEndpoint::beside(mapped(), Some(owner), nodes);
            (None, Some(Box::new(pool)))
        };
        Ok(Self {
            processor: mapped(),
            device,
            pool,
        })
    }
}

/// Returns whether the node's processor executes the verb although the node has a device.
#[inline]
fn reads_here(verb: &Verb) -> bool {
    verb.kind == VerbKind::Read && verb.addr.node() == NodeId(0)
}

impl Endpoint for NodeEndpoint {
    #[inline]
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        if let Some(pool) = &self.pool {
            return NodeExecute::Pool(pool.start(batch));
        }
        match &self.device {
            Some(device) if !batch.verbs().iter().all(reads_here) => {
                NodeExecute::Device(device.start(batch))
            }
            _ => NodeExecute::Processor(Some(self.processor.execute_now(batch))),
        }
    }

    #[inline]
    fn reads_at_once(&self) -> bool {
        true
    }

    #[inline]
    fn read_at_once(&self, from: WordAddr, to: &mut [u64]) -> bool {
        self.processor.read_at_once(from, to)
    }

    #[inline]
    fn prepare(&self, from: WordAddr, word_count: usize) {
        self.processor.prepare(from, word_count);
    }

    #[inline]
    fn poll_completions(&self) -> usize {
        let pool = self.pool.as_ref();
        let pool = pool.map_or(0, |pool| pool.poll_completions());
        pool + self.device.as_ref().map_or(0, Endpoint::poll_completions)
    }

    #[inline]
    fn wait_for_completions(&self, at_most: Duration) -> Wait {
        if let Some(pool) = &self.pool {
            return pool.wait_for_completions(at_most);
        }
        let device = self.device.as_ref();
        device.map_or(Wait::Unable, |device| device.wait_for_completions(at_most))
    }

    #[inline]
    fn in_flight_count(&self) -> usize {
        let pool = self.pool.as_ref();
        let pool = pool.map_or(0, |pool| pool.in_flight_count());
        pool + self.device.as_ref().map_or(0, Endpoint::in_flight_count)
    }

    #[inline]
    fn counters(&self) -> &Counters {
        self.processor.counters()
    }

    #[inline]
    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        match (&self.pool, &self.device) {
            (Some(pool), _) => pool.memory_word_count(node),
            (None, Some(device)) => device.memory_word_count(node),
            (None, None) => self.processor.memory_word_count(node),
        }
    }
}
