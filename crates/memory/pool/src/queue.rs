//! The circular queue of models that want to be retrained (ROLEX, FAST'23, section 4.3: `CirQ`).
//!
//! ```text
//! tail: tickets drawn (FAA)   head: tickets served   256 entries of one word
//! entry of ticket t, at t mod 256: address of a synonym leaf table, lap of t in the spare bits
//! ```
//!
//! - **Q1.** The client whose split makes a model's counter reach what makes it due (half of its
//!   synonym leaf table in the paper, and for `rolex`) draws a ticket by FAA and then writes the
//!   entry. At most one split does that between two trainings, as the new model has a new table,
//!   which may begin with as much, or come to it by what is announced again (T6). It happens
//!   after the insert has taken effect, and the insert is acknowledged whatever becomes of it.
//! - **Q2.** An entry counts when it carries its ticket's lap. So a word that was written late, by
//!   a client that drew its ticket a lap ago, is not taken for another's.
//! - **Q3.** An entry that is not there yet is waited for once, until the node's next look; then
//!   the node goes on. If more tickets were drawn than there are entries, the oldest are lost.
//! - **Q4.** An entry is a hint: the node retrains only models that a live root names, and counts
//!   their splits itself.
//! - **Q5.** So whatever is lost here (Q3, a client that dies between the two verbs of Q1) delays a
//!   retraining until the node next looks at all counters by itself.

use farleaf_fabric::{Batch, BatchError, Course, Endpoint, ProtocolPhase};
use farleaf_types::{BLOCK_SIZE_WORDS, RemoteAddr, WordAddr};

use crate::layout::RegionLayout;

/// Entries of the queue.
pub const QUEUE_ENTRY_COUNT: u64 = 256;
/// Blocks that they take.
pub(crate) const QUEUE_SIZE_BLOCKS: u64 = QUEUE_ENTRY_COUNT / BLOCK_SIZE_WORDS;

/// The lap of a ticket: never 0, which a fresh region is full of.
const fn lap(ticket: u64) -> u16 {
    (ticket / QUEUE_ENTRY_COUNT % u16::MAX as u64) as u16 + 1
}

fn entry_addr(layout: &RegionLayout, ticket: u64) -> WordAddr {
    layout.queue_entries().offset(ticket % QUEUE_ENTRY_COUNT)
}

/// Q1: puts a model, named by its synonym leaf table, into the queue. Two round trips.
///
/// # Errors
/// The fabric failed.
pub async fn enqueue<E: Endpoint>(
    endpoint: &E,
    layout: &RegionLayout,
    batch: &mut Batch,
    synonym_table: RemoteAddr,
) -> Result<(), BatchError> {
    let _course = Course::begin(endpoint, ProtocolPhase::Enqueue);
    batch.clear();
    let drawn = batch.fetch_add(layout.queue_tail(), 1);
    endpoint.execute(batch).await?;
    let ticket = batch.previous(drawn);
    let entry = synonym_table.place().with_spare(lap(ticket));
    batch.clear();
    batch.write_word(entry_addr(layout, ticket), entry.word());
    endpoint.execute(batch).await
}

/// Tickets of the last lap whose entries are not written: of those who are about to, or died before
/// they did (Q5). Two round trips.
///
/// # Errors
/// The fabric failed.
pub async fn unwritten_count<E: Endpoint>(
    endpoint: &E,
    layout: &RegionLayout,
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

/// The node's end of the queue.
#[derive(Debug, Default)]
pub struct QueueReader {
    /// Tickets served.
    head: u64,
    /// The ticket whose entry was not there when last looked at (Q3).
    awaited: Option<u64>,
}

impl QueueReader {
    /// Takes what has been put in since the last look. One round trip when that is nothing, three
    /// else.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn take<E: Endpoint>(
        &mut self,
        endpoint: &E,
        layout: &RegionLayout,
        batch: &mut Batch,
    ) -> Result<Vec<RemoteAddr>, BatchError> {
        batch.clear();
        let tail = batch.read(layout.queue_tail(), 1);
        endpoint.execute(batch).await?;
        let tail = batch.words(tail)[0];
        // Another agent may have served them before this one.
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
    use farleaf_fabric::mapped::{MappedEndpoint, MappedRegion};
    use farleaf_types::NodeId;
    use std::sync::Arc;

    /// Mapped memory answers at once.
    fn now<T>(future: impl Future<Output = T>) -> T {
        let polled = pin!(future).poll(&mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(output) => output,
            Poll::Pending => unreachable!("nothing is waited for"),
        }
    }

    fn queue() -> (MappedEndpoint, RegionLayout) {
        const SIZE_BYTES: u64 = 4 << 20;
        let region = MappedRegion::anonymous(SIZE_BYTES).expect("memory");
        let layout = RegionLayout {
            node: NodeId(0),
            superblock: Superblock::new(SIZE_BYTES, 1).expect("large enough"),
        };
        (MappedEndpoint::new(Arc::new(region)), layout)
    }

    fn table(block: u64) -> RemoteAddr {
        RemoteAddr::new(NodeId(0), block)
    }

    fn put(endpoint: &MappedEndpoint, layout: &RegionLayout, block: u64) {
        let mut batch = Batch::new();
        let put = enqueue(endpoint, layout, &mut batch, table(block));
        now(put).expect("a working fabric");
    }

    fn draw(endpoint: &MappedEndpoint, layout: &RegionLayout) {
        let mut batch = Batch::new();
        batch.fetch_add(layout.queue_tail(), 1);
        now(endpoint.execute(&mut batch)).expect("a working fabric");
    }

    fn take(
        reader: &mut QueueReader,
        endpoint: &MappedEndpoint,
        layout: &RegionLayout,
    ) -> Vec<u64> {
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

    /// What is put in comes out once and in order, lap after lap.
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

    /// Q3: an entry whose claimant has not written it is waited for once; what comes behind it is
    /// not lost.
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

    /// Q2 and Q3: of more tickets than entries, the oldest are lost, and what an older lap wrote is
    /// not taken for theirs.
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
