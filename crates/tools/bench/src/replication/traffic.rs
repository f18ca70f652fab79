//! Network traffic: an endpoint that counts its verbs, and times some of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farleaf_base::{NodeId, WordAddr};
use farleaf_executor::Wait;
use farleaf_fabric::{Batch, BatchError, Counters, Endpoint};

use super::processor::thread_time_ns;

/// Bytes of an atomic: its operands there, or its word back.
const ATOMIC_SIZE_BYTES: u64 = 8;
/// One in this many small batches is timed: reading a thread's clock twice would take much of a
/// batch's time.
const TIMED_EVERY: u64 = 16;
/// Batches of at least this many words are large, and all timed.
const LARGE_SIZE_WORDS: u64 = 1024;

/// Traffic of all endpoints of one kind, in both directions.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    batch_count: AtomicU64,
    large_count: AtomicU64,
    size_bytes: AtomicU64,
    timed_count: AtomicU64,
    timed_ns: AtomicU64,
    large_ns: AtomicU64,
}

/// Traffic at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TrafficCounts {
    pub(super) batch_count: u64,
    /// Payload of READs and WRITEs, and 8 bytes for each atomic.
    pub(super) size_bytes: u64,
    large_count: u64,
    timed_count: u64,
    timed_ns: u64,
    large_ns: u64,
}

impl Traffic {
    fn note_time(&self, time_ns: u64, is_large: bool) {
        let (count, time) = if is_large {
            (&self.large_count, &self.large_ns)
        } else {
            (&self.timed_count, &self.timed_ns)
        };
        count.fetch_add(1, Ordering::Relaxed);
        time.fetch_add(time_ns, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> TrafficCounts {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        TrafficCounts {
            batch_count: load(&self.batch_count),
            size_bytes: load(&self.size_bytes),
            large_count: load(&self.large_count),
            timed_count: load(&self.timed_count),
            timed_ns: load(&self.timed_ns),
            large_ns: load(&self.large_ns),
        }
    }
}

impl TrafficCounts {
    /// Returns the difference from an earlier count.
    pub(super) const fn since(&self, before: &Self) -> Self {
        Self {
            batch_count: self.batch_count - before.batch_count,
            size_bytes: self.size_bytes - before.size_bytes,
            large_count: self.large_count - before.large_count,
            timed_count: self.timed_count - before.timed_count,
            timed_ns: self.timed_ns - before.timed_ns,
            large_ns: self.large_ns - before.large_ns,
        }
    }

    /// Returns the processor time of all batches: measured for large ones, estimated from the timed
    /// ones for small ones.
    pub(super) fn processor_ns(&self) -> u64 {
        let mean_ns = self.timed_ns as f64 / self.timed_count.max(1) as f64;
        let small_count = self.batch_count.saturating_sub(self.large_count);
        #[expect(clippy::cast_sign_loss, reason = "means of times are positive")]
        let small_ns = (mean_ns * small_count as f64) as u64;
        self.large_ns + small_ns
    }

    /// Returns the processor time of large batches.
    pub(super) const fn large_ns(&self) -> u64 {
        self.large_ns
    }
}

/// Endpoint over any fabric, with counted traffic.
#[derive(Debug)]
pub(super) struct CountedEndpoint<E> {
    inner: E,
    traffic: Arc<Traffic>,
}

impl<E> CountedEndpoint<E> {
    pub(super) const fn new(inner: E, traffic: Arc<Traffic>) -> Self {
        Self { inner, traffic }
    }
}

impl<E: Endpoint> Endpoint for CountedEndpoint<E> {
    async fn execute(&self, batch: &mut Batch) -> Result<(), BatchError> {
        let before = *batch.cost();
        let number = self.traffic.batch_count.fetch_add(1, Ordering::Relaxed);
        let words = batch.verbs().iter().map(|verb| u64::from(verb.word_count));
        let is_large = words.sum::<u64>() >= LARGE_SIZE_WORDS;
        let is_timed = is_large || number.is_multiple_of(TIMED_EVERY);
        let since_ns = if is_timed { thread_time_ns() } else { 0 };
        let executed = self.inner.execute(batch).await;
        if is_timed {
            // Between the polls only this batch's waiter runs on this thread.
            self.traffic
                .note_time(thread_time_ns() - since_ns, is_large);
        }
        let after = batch.cost();
        let size_bytes = after.bytes_read - before.bytes_read + after.bytes_written
            - before.bytes_written
            + (after.atomics - before.atomics) * ATOMIC_SIZE_BYTES;
        self.traffic
            .size_bytes
            .fetch_add(size_bytes, Ordering::Relaxed);
        executed
    }

    fn poll_completions(&self) -> usize {
        self.inner.poll_completions()
    }

    fn wait_for_completions(&self, at_most: Duration) -> Wait {
        self.inner.wait_for_completions(at_most)
    }

    fn in_flight_count(&self) -> usize {
        self.inner.in_flight_count()
    }

    fn prepare(&self, from: WordAddr, word_count: usize) {
        self.inner.prepare(from, word_count);
    }

    fn counters(&self) -> &Counters {
        self.inner.counters()
    }

    fn memory_word_count(&self, node: NodeId) -> Option<u64> {
        self.inner.memory_word_count(node)
    }
}

#[cfg(test)]
mod tests {
    use farleaf_executor::block_on;
    use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};

    use super::*;

    /// Promise: bytes of both directions are counted, and those of a reused batch once per use.
    #[test]
    fn bytes_are_counted_once() {
        let region = Arc::new(MappedMemory::anonymous(8192).expect("memory"));
        let traffic = Arc::new(Traffic::default());
        let open_endpoint = CountedEndpoint::new(MappedEndpoint::new(region), Arc::clone(&traffic));
        let at = |index| WordAddr::new(NodeId(0), index);
        let mut batch = Batch::new();
        for _ in 0..2 {
            batch.clear();
            batch.write(at(0), &[1, 2, 3]);
            batch.compare_swap(at(9), 0, 0);
            batch.read(at(1), 2);
            block_on(
                open_endpoint.execute(&mut batch),
                open_endpoint.completions(),
            )
            .expect("in the region");
        }
        let counts = traffic.counts();
        assert_eq!(
            (counts.batch_count, counts.size_bytes),
            (2, 2 * (24 + 8 + 16))
        );
        assert_eq!((counts.timed_count, counts.large_count), (1, 0));
        batch.clear();
        batch.write(at(0), &[1; 500]);
        batch.write(at(0), &[2; 500]);
        batch.read(at(0), 24);
        block_on(
            open_endpoint.execute(&mut batch),
            open_endpoint.completions(),
        )
        .expect("in the region");
        assert_eq!(traffic.counts().large_count, 1);
        assert!(traffic.counts().processor_ns() >= traffic.counts().large_ns());
        assert_eq!(counts.since(&counts).size_bytes, 0);
    }
}
