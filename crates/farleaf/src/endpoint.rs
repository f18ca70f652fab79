//! Endpoint of a pool's sessions, on every fabric.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::Wait;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::tcp::{TcpEndpoint, TcpExecute};
use farleaf_fabric::verbs::{VerbsEndpoint, VerbsExecute};
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint};

/// Endpoint on any fabric. Selecting the fabric costs one comparison per use.
#[derive(Debug)]
pub struct PoolEndpoint {
    /// Counters for all fabrics; those of the endpoint behind it stay at zero.
    counters: Counters,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Endpoint of memory that is mapped into this process (`mem`, `shm`).
    Mapped(MappedEndpoint),
    /// Endpoint whose verbs a memory node executes (`tcp`).
    Network(TcpEndpoint),
    /// Endpoint whose verbs an RDMA card executes (`verbs`).
    Verbs(Box<VerbsEndpoint>),
}

impl PoolEndpoint {
    pub(crate) fn mapped(endpoint: MappedEndpoint) -> Self {
        Self {
            counters: Counters::default(),
            kind: Kind::Mapped(endpoint),
        }
    }

    pub(crate) fn network(endpoint: TcpEndpoint) -> Self {
        Self {
            counters: Counters::default(),
            kind: Kind::Network(endpoint),
        }
    }

    pub(crate) fn verbs(endpoint: VerbsEndpoint) -> Self {
        Self {
            counters: Counters::default(),
            kind: Kind::Verbs(Box::new(endpoint)),
        }
    }
}

/// Execution of a batch on any fabric.
enum PoolExecute<'a> {
    /// Result of a batch that has already completed; `None` once it has been returned.
    Mapped(Option<Result<(), BatchError>>),
    Network(TcpExecute<'a>),
    Verbs(VerbsExecute<'a>),
}

impl Future for PoolExecute<'_> {
    type Output = Result<(), BatchError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Mapped(outcome) => outcome.take().map_or(Poll::Pending, Poll::Ready),
            Self::Network(execute) => poll_network(execute, context),
            Self::Verbs(execute) => poll_verbs(execute, context),
        }
    }
}

/// Out of line, so that the code for mapped memory, where a call's cost matters most, stays small.
#[inline(never)]
fn poll_network(
    execute: &mut TcpExecute<'_>,
    context: &mut Context<'_>,
) -> Poll<Result<(), BatchError>> {
    Pin::new(execute).poll(context)
}

/// Out of line for the same reason as [`poll_network`].
#[inline(never)]
fn poll_verbs(
    execute: &mut VerbsExecute<'_>,
    context: &mut Context<'_>,
) -> Poll<Result<(), BatchError>> {
    Pin::new(execute).poll(context)
}

impl Endpoint for PoolEndpoint {
    #[inline]
    fn execute<'a>(
        &'a self,
        batch: &'a mut Batch,
    ) -> impl Future<Output = Result<(), BatchError>> + 'a {
        match &self.kind {
            Kind::Mapped(endpoint) => PoolExecute::Mapped(Some(endpoint.execute_now(batch))),
            Kind::Network(endpoint) => PoolExecute::Network(endpoint.start(batch)),
            Kind::Verbs(endpoint) => PoolExecute::Verbs(endpoint.start(batch)),
        }
    }

    #[inline]
    fn reads_at_once(&self) -> bool {
        matches!(self.kind, Kind::Mapped(_))
    }

    #[inline]
    fn read_at_once(&self, from: WordAddr, to: &mut [u64]) -> bool {
        match &self.kind {
            Kind::Mapped(endpoint) => endpoint.read_at_once(from, to),
            Kind::Network(_) | Kind::Verbs(_) => false,
        }
    }

    fn open_window(&self, word_count: usize) -> bool {
        match &self.kind {
            // The node's rings are mapped into this process.
            Kind::Mapped(_) => false,
            Kind::Network(endpoint) => endpoint.open_window(word_count),
            Kind::Verbs(endpoint) => endpoint.open_window(word_count),
        }
    }

    fn read_window(&self, index: u64, to: &mut [u64]) -> bool {
        match &self.kind {
            Kind::Mapped(_) => false,
            Kind::Network(endpoint) => endpoint.read_window(index, to),
            Kind::Verbs(endpoint) => endpoint.read_window(index, to),
        }
    }

    fn await_window(&self, is_awaited: bool) {
        match &self.kind {
            Kind::Mapped(_) => {}
            Kind::Network(endpoint) => endpoint.await_window(is_awaited),
            Kind::Verbs(endpoint) => endpoint.await_window(is_awaited),
        }
    }

    #[inline]
    fn prepare(&self, from: WordAddr, word_count: usize) {
        if let Kind::Mapped(endpoint) = &self.kind {
            endpoint.prepare(from, word_count);
        }
    }

    #[inline]
    fn poll_completions(&self) -> usize {
        match &self.kind {
            Kind::Mapped(_) => 0,
            Kind::Network(endpoint) => endpoint.poll_completions(),
            Kind::Verbs(endpoint) => endpoint.poll_completions(),
        }
    }

    #[inline]
    fn wait_for_completions(&self, at_most: Duration) -> Wait {
        match &self.kind {
            Kind::Mapped(_) => Wait::Unable,
            Kind::Network(endpoint) => endpoint.wait_for_completions(at_most),
            Kind::Verbs(endpoint) => endpoint.wait_for_completions(at_most),
        }
    }

    #[inline]
    fn in_flight_count(&self) -> usize {
        match &self.kind {
            Kind::Mapped(_) => 0,
            Kind::Network(endpoint) => endpoint.in_flight_count(),
            Kind::Verbs(endpoint) => endpoint.in_flight_count(),
        }
    }

    #[inline]
    fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        match &self.kind {
            Kind::Mapped(endpoint) => endpoint.memory_word_count(node),
            Kind::Network(endpoint) => endpoint.memory_word_count(node),
            Kind::Verbs(endpoint) => endpoint.memory_word_count(node),
        }
    }
}
