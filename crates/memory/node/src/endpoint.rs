//! The node's own way into its region (F4): its processor, or a queue pair of its RDMA device; and
//! from the home of a pool of several nodes into those of the others.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::Arc;

use farleaf_executor::Wait;
use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
use farleaf_fabric::network::NodeDirectory;
use farleaf_fabric::tcp::{TcpEndpoint, TcpExecute};
use farleaf_fabric::verbs::{VerbsEndpoint, VerbsError, VerbsExecute, VerbsNode};
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint, Verb, VerbKind};
use farleaf_types::{NodeId, OwnerWord, WordAddr};

/// An endpoint of the node itself.
#[derive(Debug)]
pub struct NodeEndpoint {
    processor: MappedEndpoint,
    /// Where words are changed by the device, the node changes them by it, too, and so those of its
    /// pool's other nodes by theirs. It still READs its own by its processor, which sees what has
    /// completed.
    device: Option<VerbsEndpoint>,
    /// Where that is not so: to its own region and those of its pool's other nodes.
    pool: Option<Box<TcpEndpoint>>,
}

/// A batch of either kind.
enum NodeExecute<'a> {
    /// Done; `None` once that has been told.
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
    /// Through the device if the node has one for its region.
    ///
    /// # Errors
    /// The device has no queue pair left.
    pub fn new(region: &Arc<MappedRegion>, device: Option<&VerbsNode>) -> Result<Self, VerbsError> {
        Ok(Self {
            processor: MappedEndpoint::new(Arc::clone(region)),
            device: device.map(VerbsNode::loopback).transpose()?,
            pool: None,
        })
    }

    /// An endpoint of a pool's home to all nodes, in the name of a session of it.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub(crate) fn in_pool(
        region: &Arc<MappedRegion>,
        device: Option<&VerbsNode>,
        owner: OwnerWord,
        nodes: Arc<dyn NodeDirectory>,
    ) -> Result<Self, VerbsError> {
        let mapped = || MappedEndpoint::new(Arc::clone(region));
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

/// What the node's processor does by itself beside a device.
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
    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        match (&self.pool, &self.device) {
            (Some(pool), _) => pool.region_word_count(node),
            (None, Some(device)) => device.region_word_count(node),
            (None, None) => self.processor.region_word_count(node),
        }
    }
}
