//! What a node's agent works with: its memory, and in a pool of several nodes the others', too.

use core::time::Duration;

use farleaf_executor::Wait;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::tcp::TcpEndpoint;
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint};
use farleaf_types::{NodeId, WordAddr};

/// An endpoint of the node itself (F4).
#[derive(Debug)]
pub(crate) enum NodeEndpoint {
    /// To its own region.
    Own(Box<MappedEndpoint>),
    /// To those of the pool.
    Pool(Box<TcpEndpoint>),
}

impl Endpoint for NodeEndpoint {
    async fn execute(&self, batch: &mut Batch) -> Result<(), BatchError> {
        match self {
            Self::Own(endpoint) => endpoint.execute_now(batch),
            Self::Pool(endpoint) => endpoint.execute(batch).await,
        }
    }

    fn poll_completions(&self) -> usize {
        match self {
            Self::Own(_) => 0,
            Self::Pool(endpoint) => endpoint.poll_completions(),
        }
    }

    fn wait_for_completions(&self, at_most: Duration) -> Wait {
        match self {
            Self::Own(_) => Wait::Unable,
            Self::Pool(endpoint) => endpoint.wait_for_completions(at_most),
        }
    }

    fn in_flight_count(&self) -> usize {
        match self {
            Self::Own(_) => 0,
            Self::Pool(endpoint) => endpoint.in_flight_count(),
        }
    }

    fn prepare(&self, from: WordAddr, word_count: usize) {
        if let Self::Own(endpoint) = self {
            endpoint.prepare(from, word_count);
        }
    }

    fn counters(&self) -> &Counters {
        match self {
            Self::Own(endpoint) => endpoint.counters(),
            Self::Pool(endpoint) => endpoint.counters(),
        }
    }

    fn region_word_count(&self, node: NodeId) -> Option<u64> {
        match self {
            Self::Own(endpoint) => endpoint.region_word_count(node),
            Self::Pool(endpoint) => endpoint.region_word_count(node),
        }
    }
}
