//! Circular queue of models that are due for retraining (ROLEX, FAST'23, section 4.3: `CirQ`).
//!
//! ```text
//! tail: tickets drawn (FAA)   head: tickets served   256 entries of one word
//! entry of ticket t, at t mod 256: address of a synonym leaf table, lap of t in the spare bits
//! ```
//!
//! - **Enqueueing.** The client whose split makes a model due draws a ticket by FAA and then writes
//!   the entry. (In the paper, and for `rolex`, a model is due when half of its synonym leaf table
//!   is used.) At most one split does so between two trainings, because the new model has a new
//!   table. That table may start with as many splits, or reach them by late announcements. The
//!   client enqueues after the insert has taken effect, so a failure here never fails the insert.
//! - **Laps.** An entry counts only if it carries its ticket's lap. So a late word of a client that
//!   drew its ticket a lap ago is not mistaken for another's.
//! - **Missing entries.** The node waits once for an entry that is not there yet, until it reads
//!   the queue the next time, and then skips it. If more tickets were drawn than there are entries,
//!   the oldest are lost.
//! - **Hints.** An entry is a hint: the node retrains only models that a live root names, and
//!   counts their splits itself.
//! - **Losses.** Lost entries, and those of clients that die before writing them, only delay a
//!   retraining until the node's next check of all counters.

use farleaf_base::{BLOCK_SIZE_WORDS, RemoteAddr, WordAddr};
use farleaf_fabric::{Batch, BatchError, Endpoint, PhaseGuard, ProtocolPhase};

use crate::layout::NodeLayout;

/// Number of entries of the queue.
pub const QUEUE_ENTRY_COUNT: u64 = 256;
/// Number of blocks of the queue.
pub(crate) const QUEUE_SIZE_BLOCKS: u64 = QUEUE_ENTRY_COUNT / BLOCK_SIZE_WORDS;

/// Returns the lap of a ticket; never 0, the content of fresh memory.
const fn lap(ticket: u64) -> u16 {
    (ticket / QUEUE_ENTRY_COUNT % u16::MAX as u64) as u16 + 1
}

fn entry_addr(layout: &NodeLayout, ticket: u64) -> WordAddr {
    layout.queue_entries().offset(ticket % QUEUE_ENTRY_COUNT)
}

/// Enqueues a model, named by its synonym leaf table. Two round trips.
///
/// # Errors
/// The fabric failed.
pub async fn enqueue<E: Endpoint>(
    endpoint: &E,
    layout: &NodeLayout,
    batch: &mut Batch,
    synonym_table: RemoteAddr,
) -> Result<(), BatchError> {
    let _course = PhaseGuard::begin(endpoint, ProtocolPhase::Enqueue);
    batch.clear();
    let drawn = batch.fetch_add(layout.queue_tail(), 1);
    endpoint.execute(batch).await?;
    let ticket = batch.previous(drawn);
    let entry = synonym_table.place().with_spare(lap(ticket));
    batch.clear();
    batch.write_word(entry_addr(layout, ticket), entry.word());
    endpoint.execute(batch).await
}

/// Returns the number of the last lap's tickets whose entries are not written, because their
/// clients are about to write them or died before. Two round trips.
///
/// # Errors
/// The fabric failed.
pub async fn unwritten_count<E: Endpoint>(
    endpoint: &E,
    layout: &NodeLayout,
    batch: &mut Batch,
) -> Result<u64, BatchError> {
    batch.clear();
    let tail = batch.read(layout.queue_tail(), 1);
    endpoint.execute(batch).await?;
    let tail = batch.words(tail)[0];
    batch.clear();
    let entries = batch.read(layout.queue_entries(), QUEUE_ENTRY_COUNT as usize);
    endpoint.execute(batch).await?;
    let entries = batch.words(entries);
    let is_written = |ticket: u64| {
        let entry = entries[(ticket % QUEUE_ENTRY_COUNT) as usize];
        RemoteAddr::from_word(entry).spare() == lap(ticket)
    };
    let last_lap = tail.saturating_sub(QUEUE_ENTRY_COUNT)..tail;
    Ok(last_lap.filter(|ticket| !is_written(*ticket)).count() as u64)
}

/// Consumer of the queue, in the node.
#[derive(Debug, Default)]
pub struct QueueReader {
    /// Number of tickets served.
    head: u64,
    /// Ticket whose entry was missing at the last read.
    awaited: Option<u64>,
}

impl QueueReader {
    /// Takes the entries enqueued since the last call. One round trip if there are none, otherwise
    /// three.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn take<E: Endpoint>(
        &mut self,
        endpoint: &E,
        layout: &NodeLayout,
        batch: &mut Batch,
    ) -> Result<Vec<RemoteAddr>, BatchError> {
        batch.clear();
        let tail = batch.read(layout.queue_tail(), 1);
        endpoint.execute(batch).await?;
        let tail = batch.words(tail)[0];
        // An earlier agent may have served them.
        self.head = self
            .head
            .max(tail.saturating_sub(QUEUE_ENTRY_COUNT))
            .min(tail);
        if self.head == tail {
            return Ok(Vec::new());
        }
        batch.clear();
        let reads: Vec<_> = (self.head..tail)
            .map(|ticket| (ticket, batch.read(entry_addr(layout, ticket), 1)))
            .collect();
        endpoint.execute(batch).await?;
        let mut found = Vec::new();
        for (ticket, read) in reads {
            let entry = RemoteAddr::from_word(batch.words(read)[0]);
            if entry.spare() == lap(ticket) {
                found.push(entry.place());
            } else if self.awaited != Some(ticket) {
                self.awaited = Some(ticket);
                break;
            }
            self.head = ticket + 1;
        }
        batch.clear();
        batch.write_word(layout.queue_head(), self.head);
        endpoint.execute(batch).await?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Superblock;
    use core::future::Future;
    use core::pin::pin;
    use core::task::{Context, Poll, Waker};
    use farleaf_base::NodeId;
    use farleaf_fabric::mapped::{MappedEndpoint, MappedMemory};
    use std::sync::Arc;

    /// Polls a future of mapped memory, which is ready at once.
    fn now<T>(future: impl Future<Output = T>) -> T {
        let polled = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(output) => output,
            Poll::Pending => unreachable!("nothing is waited for"),
        }
    }

    fn queue() -> (MappedEndpoint, NodeLayout) {
        const SIZE_BYTES: u64 = 4 << 20;
        let memory = MappedMemory::anonymous(SIZE_BYTES).expect("memory");
        let layout = NodeLayout {
            node: NodeId(0),
            superblock: Superblock::new(SIZE_BYTES, 1).expect("large enough"),
        };
        (MappedEndpoint::new(Arc::new(memory)), layout)
    }

    fn table(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    fn put(endpoint: &MappedEndpoint, layout: &NodeLayout, block: u64) {
        let mut batch = Batch::new();
        let put = enqueue(endpoint, layout, &mut batch, table(block));
        now(put).expect("a working fabric");
    }

    fn draw(endpoint: &MappedEndpoint, layout: &NodeLayout) {
        let mut batch = Batch::new();
        batch.fetch_add(layout.queue_tail(), 1);
        now(endpoint.execute(&mut batch)).expect("a working fabric");
    }

    fn take(reader: &mut QueueReader, endpoint: &MappedEndpoint, layout: &NodeLayout) -> Vec<u64> {
        let mut batch = Batch::new();
        let taken = now(reader.take(endpoint, layout, &mut batch));
        let taken = taken.expect("a working fabric").into_iter();
        taken.map(RemoteAddr::block).collect()
    }

    #[test]
    fn entries_are_golden() {
        let (endpoint, layout) = queue();
        put(&endpoint, &layout, 0x77);
        let mut batch = Batch::new();
        let read = batch.read(layout.queue_entries(), 2);
        now(endpoint.execute(&mut batch)).expect("a working fabric");
        assert_eq!(batch.words(read), [1 << 40 | 0x77, 0]);
        assert_eq!(
            [0, 255, 256, 16_776_703, 16_776_960].map(lap),
            [1, 1, 2, 65_534, 1]
        );
    }

    /// Entries come out once and in order, lap after lap.
    #[test]
    fn entries_come_out_once_in_order() {
        let (endpoint, layout) = queue();
        let mut reader = QueueReader::default();
        for block in 1..1000 {
            assert!(take(&mut reader, &endpoint, &layout).is_empty());
            put(&endpoint, &layout, block);
            put(&endpoint, &layout, block + 5000);
            assert_eq!(take(&mut reader, &endpoint, &layout), [block, block + 5000]);
        }
    }

    /// An entry that its client has not written is awaited once; entries behind it are not lost.
    #[test]
    fn an_entry_that_was_never_written_is_passed() {
        let (endpoint, layout) = queue();
        let mut reader = QueueReader::default();
        put(&endpoint, &layout, 1);
        draw(&endpoint, &layout);
        put(&endpoint, &layout, 3);
        assert_eq!(take(&mut reader, &endpoint, &layout), [1]);
        assert_eq!(take(&mut reader, &endpoint, &layout), [3]);
        assert!(take(&mut reader, &endpoint, &layout).is_empty());
        let mut batch = Batch::new();
        let unwritten = now(unwritten_count(&endpoint, &layout, &mut batch));
        assert_eq!(unwritten.expect("a working fabric"), 1);
    }

    /// If there are more tickets than entries, the oldest are lost, and words of an older lap are
    /// not mistaken for them.
    #[test]
    fn an_overrun_queue_gives_the_last_lap_alone() {
        let (endpoint, layout) = queue();
        let mut reader = QueueReader::default();
        for block in 1..=QUEUE_ENTRY_COUNT + 10 {
            put(&endpoint, &layout, block);
        }
        draw(&endpoint, &layout);
        let taken = take(&mut reader, &endpoint, &layout);
        assert_eq!(taken, (12..=QUEUE_ENTRY_COUNT + 10).collect::<Vec<_>>());
        assert!(take(&mut reader, &endpoint, &layout).is_empty());
        put(&endpoint, &layout, 5);
        assert_eq!(take(&mut reader, &endpoint, &layout), [5]);
    }
}
