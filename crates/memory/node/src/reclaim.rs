//! Memory of dropped tables (D7, C3).
//!
//! - **G1.** Once the catalog says "dropped", the node zeroes the entry's roots (C5), then draws
//!   the next sequence number and notes it in the entry. No session that follows to that number, or
//!   registers later, works on the table.
//! - **G2.** When every session that is not fenced has published that number or a later one, no
//!   operation on the table is under way anywhere, and its chunks are zeroed and free (A4).
//! - **G3.** When all of them are, the catalog entry is free.

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::catalog::{self, CatalogEntry, EntryState};
use farleaf_region::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_region::session::{SessionRecord, asked_addr, read_sessions};
use farleaf_types::{SequenceNumber, SessionId};

use crate::sweep::Keeper;

impl<E: Endpoint> Keeper<E> {
    /// One step for every dropped table. Returns how many chunks became free.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn reclaim(&self) -> Result<u64, RegionError> {
        let mut chunk_count = 0;
        let catalog = self.catalog().await?;
        let is_of_bytes = |entry: &CatalogEntry| entry.record.kind.slots().is_none();
        if catalog.iter().any(is_of_bytes) {
            self.publish().await?;
        }
        for entry in catalog {
            if entry.state != EntryState::Dropped {
                continue;
            }
            if entry.dropped_at == SequenceNumber(0) {
                self.draw_sequence(&entry).await?;
            } else if self.is_grace_period_over(&entry).await? {
                chunk_count += self.free_table(&entry).await?;
            }
        }
        Ok(chunk_count)
    }

    /// G1.
    async fn draw_sequence(&self, entry: &CatalogEntry) -> Result<(), RegionError> {
        let mut batch = Batch::new();
        // F2: before the number is drawn.
        batch.write_word(catalog::root_addr(&self.layout, entry.index), 0);
        batch.write_word(catalog::pending_root_addr(&self.layout, entry.index), 0);
        let slot = batch.fetch_add(self.layout.sequence(), 1);
        self.endpoint.execute(&mut batch).await?;
        let sequence = batch.previous(slot) + 1;
        batch.clear();
        batch.write_word(
            catalog::dropped_at_addr(&self.layout, entry.index),
            sequence,
        );
        Ok(self.endpoint.execute(&mut batch).await?)
    }

    /// G2.
    async fn is_grace_period_over(&self, entry: &CatalogEntry) -> Result<bool, RegionError> {
        let is_over = self.published_by_all().await? >= entry.dropped_at;
        Ok(is_over || self.endpoint.leaves_out(ProtocolCheck::GracePeriodIsOver))
    }

    /// G2: the smallest number that a session which is not fenced has published. The node's own
    /// session has no operation under way here.
    pub(crate) async fn published_by_all(&self) -> Result<SequenceNumber, RegionError> {
        let mut batch = Batch::new();
        let records = read_sessions(&self.endpoint, &self.layout, &mut batch).await?;
        let own = self.owner.holder().map(|(session, _)| session);
        let mut least = SequenceNumber(u64::MAX);
        let is_last_ignored = self.endpoint.leaves_out(ProtocolCheck::EverySessionCounts);
        let mut next = least;
        for (session, record) in records {
            if record.alive().is_some() && Some(session) != own {
                next = next.min(least.max(record.published));
                least = least.min(record.published);
            }
        }
        Ok(if is_last_ignored { next } else { least })
    }

    /// S4: asks the sessions that have not published a number yet. Returns how many there are.
    pub(crate) async fn ask_silent(&self, wanted: SequenceNumber) -> Result<u64, RegionError> {
        let mut batch = Batch::new();
        let records = read_sessions(&self.endpoint, &self.layout, &mut batch).await?;
        let own = self.owner.holder().map(|(session, _)| session);
        let is_silent = |(session, record): &(SessionId, SessionRecord)| {
            let is_alive = record.alive().is_some() && Some(*session) != own;
            is_alive && record.published < wanted
        };
        let silent: Vec<_> = records.into_iter().filter(is_silent).collect();
        batch.clear();
        for (session, record) in silent.iter().filter(|(_, record)| record.asked < wanted) {
            tracing::warn!(
                session = session.number(),
                pid = record.pid,
                "memory cannot be reused: an operation of this session that began before does not \
                 go on; if its process is stopped, continue or kill it"
            );
            batch.write_word(asked_addr(&self.layout, *session), wanted.0);
        }
        if !batch.is_empty() {
            self.endpoint.execute(&mut batch).await?;
        }
        Ok(silent.len() as u64)
    }

    /// G2 and G3.
    async fn free_table(&self, entry: &CatalogEntry) -> Result<u64, RegionError> {
        let allocator = ChunkAllocator::new(&self.endpoint, &self.layout, self.owner);
        let chunks = allocator.entries().await?;
        let table = entry.record.id;
        let mut chunk_count = 0;
        let mut left = 0;
        for (index, chunk) in chunks.iter() {
            let is_used = chunk.purpose != Some(ChunkPurpose::Free);
            if !is_used || chunk.table != table {
                continue;
            }
            // A leased chunk is given back by its session, or swept when that is fenced.
            // Its own is left by a reclamation or a sweep that failed (W5).
            let taken = (chunk.owner.is_free() || chunk.owner == self.owner)
                && allocator.take_over(index, chunk.owner).await?.is_some();
            if !taken {
                left += 1;
                continue;
            }
            let range = ChunkRange {
                first: index,
                count: 1,
            };
            let free = FreeLeaves::default();
            allocator
                .give_back(range, ChunkPurpose::Free, table, free)
                .await?;
            chunk_count += 1;
        }
        if left == 0 {
            let mut batch = Batch::new();
            batch.write_word(self.layout.catalog_entry(entry.index), 0);
            self.endpoint.execute(&mut batch).await?;
            tracing::info!(
                table = entry.record.name,
                chunk_count,
                "dropped table's memory is free"
            );
        }
        Ok(chunk_count)
    }
}
