//! Reclamation of the memory of dropped tables (LEAF-7).
//!
//! 1. Once the catalog says "dropped", the node zeroes the entry's roots, draws the next sequence
//!    number and records it in the entry. Sessions that follow to that number, or register later,
//!    do not use the table.
//! 2. When every session that is not fenced has published that number or a later one, no operation
//!    on the table is running anywhere. The node takes over each chunk that the table still has,
//!    zeroes it and frees it.
//! 3. When all chunks are free, the catalog entry is freed.

use farleaf_base::{SequenceNumber, SessionId};
use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_pool::PoolError;
use farleaf_pool::allocation::ChunkRange;
use farleaf_pool::catalog::{self, CatalogEntry, EntryState};
use farleaf_pool::chunk::{ChunkPurpose, FreeLeaves};
use farleaf_pool::session::{SessionRecord, awaited_sequence_addr, read_sessions};

use crate::sweep::MemoryMaintainer;

impl<E: Endpoint> MemoryMaintainer<E> {
    /// Does one step for every dropped table. Returns the number of chunks freed.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn reclaim(&self) -> Result<u64, PoolError> {
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

    /// Zeroes the roots of a dropped table and draws its sequence number.
    async fn draw_sequence(&self, entry: &CatalogEntry) -> Result<(), PoolError> {
        let mut batch = Batch::new();
        // FABRIC-2: the roots are zeroed before the number is drawn.
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

    /// Returns whether every session has published the number of a dropped table.
    async fn is_grace_period_over(&self, entry: &CatalogEntry) -> Result<bool, PoolError> {
        let is_over = self.published_by_all().await? >= entry.dropped_at;
        Ok(is_over || self.endpoint.skips_check(ProtocolCheck::GracePeriodIsOver))
    }

    /// Returns the smallest number that a session which is not fenced has published. The node's own
    /// session runs no operation at this point.
    pub(crate) async fn published_by_all(&self) -> Result<SequenceNumber, PoolError> {
        let mut batch = Batch::new();
        let records = read_sessions(&self.endpoint, &self.layout, &mut batch).await?;
        let own = self.owner.holder().map(|(session, _)| session);
        let mut least = SequenceNumber(u64::MAX);
        let is_last_ignored = self.endpoint.skips_check(ProtocolCheck::EverySessionCounts);
        let mut next = least;
        for (session, record) in records {
            if record.alive().is_some() && Some(session) != own {
                next = next.min(least.max(record.published));
                least = least.min(record.published);
            }
        }
        Ok(if is_last_ignored { next } else { least })
    }

    /// Asks the sessions that have not published a number yet to do so. Returns how many there are.
    pub(crate) async fn ask_silent(&self, wanted: SequenceNumber) -> Result<u64, PoolError> {
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
                "memory cannot be reused: an earlier operation of this session makes no progress; \
                 if its process is stopped, continue or kill it"
            );
            batch.write_word(awaited_sequence_addr(&self.layout, *session), wanted.0);
        }
        if !batch.is_empty() {
            self.endpoint.execute(&mut batch).await?;
        }
        Ok(silent.len() as u64)
    }

    /// Frees the chunks of a dropped table, and its entry when all are free.
    async fn free_table(&self, entry: &CatalogEntry) -> Result<u64, PoolError> {
        let allocator = self.allocator();
        let chunks = allocator.entries().await?;
        let table = entry.record.id;
        let mut chunk_count = 0;
        let mut left = 0;
        for (index, chunk) in chunks.iter() {
            let is_used = chunk.purpose != Some(ChunkPurpose::Free);
            if !is_used || chunk.table != table {
                continue;
            }
            // A leased chunk is given back by its session, or swept when the session is fenced.
            // Chunks of the node itself were left by a reclamation or a sweep that failed.
            let taken = if chunk.owner.is_free() || chunk.owner == self.owner {
                allocator.take_over(index, chunk.owner).await?
            } else {
                None
            };
            let Some(current) = taken else {
                left += 1;
                continue;
            };
            // Since the chunk table was read, a session may have given the chunk back, and another
            // one may have claimed it for its own table.
            if current.table != table {
                allocator.release_chunk(index).await?;
                continue;
            }
            let range = ChunkRange::one(index);
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
                "freed the memory of a dropped table"
            );
        }
        Ok(chunk_count)
    }
}
