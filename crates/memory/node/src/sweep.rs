//! Reclamation of what dead sessions left: locks, leased leaves, and chunks of unfinished loads.
//!
//! | module | contents |
//! |---|---|
//! | `tables` | reads catalog, roots and locks before chunks are touched |
//! | `chunks` | settles the chunks of dead sessions |
//! | `bytes` | tables of byte strings: pages, their chunks, value blocks |
//! | `trees` | inner nodes, for tables that have them |
//!
//! - **Order.** Locks are swept before chunks, so that searches do not wait long for dead owners. A
//!   search that finds such a lock recovers it itself (LEAF-8).
//! - **Ownership.** A sweep touches only what belongs to a fenced owner, and only after it has
//!   swapped the owner word to the node's own (LEAF-8). The set of chunks is determined before the
//!   catalog and the roots are read; everything that their owners committed (tables and loads) is
//!   then in what was read. Owners fenced later are left to the next sweep.
//! - **Leased leaves.** A leased leaf is in use if it is intact and not retired, and a search for
//!   its lower fence arrives at it. If the search arrives at a leaf that is being recovered, it
//!   waits for the recovery. Otherwise nothing links to the leased leaf (LEAF-3: a sibling is
//!   reachable only through a committed split). It is overwritten as retired, and is free again.
//!   The table's first leaf is never freed: clients that opened the table before it was loaded
//!   start there, and its retirement decides whether a load committed.
//! - **Runs and snapshots.** The sweep first finishes the swap of the table's root if a committed
//!   load left it. Chunks of runs and snapshots that the root leads to are kept. The others belong
//!   to a load that never committed, or were left by a retrainer. Chunks of other trees of a
//!   compacted table may have been named earlier, and wait for their grace period.
//! - **The node's own leftovers.** What the node itself holds when a sweep begins was left by a
//!   sweep that failed, and is treated like that of a fenced owner: the node runs one sweep at a
//!   time and nothing else. It never waits for its own locks, because recovery does not wait
//!   (LEAF-8). All remaining locks of a table are swept before the first search in it; only the
//!   search for the table's root comes earlier, and the first leaf, which it needs, is swept before
//!   that.
//! - **Live lock holders.** A live client may be stopped while it holds a lock. A search that has
//!   waited too long is given up for this sweep. The sweep then skips the table, if its root is
//!   unknown, or the chunk, if the state of its leaves is. Nothing of it is freed. It stays the
//!   node's until the next sweep.
//! - **Corruption.** If a corrupted leaf or snapshot hides what is in use, the sweep skips it the
//!   same way and continues with other leaves, chunks and tables. It does not schedule another
//!   sweep, which would find the same. A page that cannot be recovered, in a chunk that is about to
//!   be sorted, is corrupted only if it is in use. Otherwise its creator died in the middle of its
//!   WRITE, while it held the page's lock.
//! - **Concurrent changes.** Live sessions give chunks back, and lease them for other uses, while a
//!   sweep works on a listing: after an unfinished load, or for an unused lease. So a word that
//!   looks like the lock of a dead owner is one only if the chunk's entry, read after the word,
//!   still matches the listing. A chunk that had another use in between was zeroed, and recovery, a
//!   CAS of that very word, then fails. A chunk in which a dead session does hold a lock is given
//!   back only by the node.

mod bytes;
mod chunks;
mod tables;
mod trees;

use std::sync::atomic::AtomicBool;

use farleaf_base::{OwnerWord, RemoteAddr, TableId};
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::IndexError;
use farleaf_leaf::words::change::LeafChange;
use farleaf_leaf::words::{
    LeafAccess, LeafBuffer, LeafError, LeafFormat, LeafGeometry, LeaseShape,
};
use farleaf_pool::allocation::{ChunkAllocator, ChunkRange};
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::session;
use farleaf_pool::{PoolError, PoolLayout};

use crate::catalog::read_catalog;
use crate::wait_limit::WaitLimit;
pub use bytes::BlockSweepers;

/// Log message with the leaf that a search was for.
const GIVEN_UP: &str = "cannot clean up after dead sessions: a live client holds a leaf lock and \
    makes no progress; if its process is stopped, continue or kill it; retrying";

/// Result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Number of leaf locks of fenced owners that were freed.
    pub lock_count: u64,
    /// Number of chunks of fenced owners that were given back.
    pub chunk_count: u64,
    /// Number of leased leaves in the given-back chunks that are free again.
    pub leaf_count: u64,
    /// Number of tables and chunks that were skipped because a live client holds a lock; another
    /// sweep is due.
    pub given_up_count: u64,
    /// Number of value blocks that wait for their grace period. Another sweep is due; nothing else
    /// has to wait for it.
    pub waiting_count: u64,
    /// Number of unreferenced value blocks of fenced sessions, which become free after their grace
    /// period.
    pub block_count: u64,
    /// Number of leaves, tables and chunks that could not be swept because of corruption.
    pub damaged_count: u64,
}

impl SweepReport {
    /// Counts corruption, and continues; returns any other error, which ends the sweep.
    fn note_damage(&mut self, error: IndexError) -> Result<(), IndexError> {
        let is_damage = matches!(
            error,
            IndexError::SnapshotDamaged(_)
                | IndexError::Leaf(LeafError::Damaged { .. } | LeafError::Contradiction { .. })
        );
        // Data lost with its node gives no answer either.
        if !is_damage && error.lost_node().is_none() {
            return Err(error);
        }
        self.damaged_count += 1;
        tracing::error!(%error, "cannot clean up after dead sessions: data corrupted or lost");
        Ok(())
    }
}

/// Kind of leaves, as sweeps use it.
pub(crate) trait SweptLeaf: LeafFormat {
    /// Returns the shape of chunks that splits take leaves from.
    fn chunk_shape(self) -> LeaseShape;

    /// Posts the WRITEs that make a leaf empty and retired.
    fn write_retired(self, batch: &mut Batch, leaf: RemoteAddr, table: TableId);
}

impl SweptLeaf for LeafGeometry {
    fn chunk_shape(self) -> LeaseShape {
        LeaseShape::leaves(self)
    }

    fn write_retired(self, batch: &mut Batch, leaf: RemoteAddr, table: TableId) {
        let mut retired = LeafBuffer::new(self, 0, 0, RemoteAddr::NULL.retired());
        let change = LeafChange {
            geometry: self,
            addr: leaf,
            table,
            next: OwnerWord::FREE,
        };
        change.write_new(batch, &mut retired);
    }
}

/// The node's access to its own memory.
#[derive(Debug)]
pub struct MemoryMaintainer<E = MappedEndpoint> {
    /// Loopback endpoint (FABRIC-4).
    pub endpoint: E,
    /// Layout of the memory.
    pub layout: PoolLayout,
    /// Session of the node.
    pub owner: OwnerWord,
    /// Value blocks that the node has taken over.
    pub blocks: BlockSweepers,
}

impl<E: Endpoint> MemoryMaintainer<E> {
    /// Returns all catalog entries in use that can be read; omits entries that are being written or
    /// are corrupted.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn catalog(&self) -> Result<Vec<CatalogEntry>, PoolError> {
        let entries = read_catalog(&self.endpoint, &self.layout)
            .await?
            .into_iter();
        Ok(entries.filter_map(|entry| entry.ok()?).collect())
    }

    /// Returns access to a table's leaves; `None` if the catalog names an unsupported geometry.
    pub fn access<'a>(&'a self, entry: &CatalogEntry) -> Option<LeafAccess<'a, E>> {
        Some(LeafAccess {
            endpoint: &self.endpoint,
            layout: &self.layout,
            geometry: LeafGeometry::new(entry.record.kind.slots()?.into()).ok()?,
            table: entry.record.id,
            owner: self.owner,
        })
    }

    /// Returns an allocator of chunks for the node's session.
    pub(crate) fn allocator(&self) -> ChunkAllocator<'_, E> {
        ChunkAllocator::new(&self.endpoint, &self.layout, self.owner)
    }

    /// Sweeps everything that belongs to fenced owners.
    ///
    /// # Errors
    /// The fabric failed, or a table is corrupted; what was swept before stays swept.
    pub async fn sweep(&self) -> Result<SweepReport, IndexError> {
        self.sweep_until(&AtomicBool::new(false)).await
    }

    /// Does the same as [`sweep`](Self::sweep), but ends early and does not wait once `stop` is
    /// set.
    ///
    /// # Errors
    /// Fails like [`sweep`](Self::sweep).
    pub async fn sweep_until(&self, stop: &AtomicBool) -> Result<SweepReport, IndexError> {
        let wait_limit = WaitLimit::new(stop);
        let mut report = SweepReport::default();
        self.sweep_catalog_lock().await?;
        let allocator = self.allocator();
        let left = self.chunks_of_fenced(&allocator.entries().await?).await?;
        // Everything that the owners of `left` may have committed is read from here on.
        let known = self.read_tables(&wait_limit, &mut report).await?;
        let chunks = allocator.entries().await?;
        for table in &known.tables {
            let leaves = self.leaf_places(&table.access, &table.state, &chunks);
            let mut batch = Batch::new();
            self.sweep_locks(&table.access, &mut batch, &leaves, &[], &mut report)
                .await?;
        }
        for table in &known.byte_tables {
            self.sweep_bytes_locks(table, &chunks, &left, &mut report)
                .await?;
        }
        for (index, owner) in left {
            if wait_limit.is_over() {
                break;
            }
            let Some(entry) = allocator.take_over(index, owner).await? else {
                continue;
            };
            let sorted = self
                .sort_chunk(&known, index, &entry, &wait_limit, &mut report)
                .await?;
            let Some((purpose, free)) = sorted else {
                continue;
            };
            let range = ChunkRange::one(index);
            allocator
                .give_back(range, purpose, entry.table, free)
                .await?;
            report.chunk_count += 1;
        }
        self.keep_block_sweeps(&known.byte_tables, &known.unknown);
        for table in &known.byte_tables {
            if wait_limit.is_over() {
                break;
            }
            self.sweep_blocks(table, &wait_limit, &mut report).await?;
        }
        for table in &known.tables {
            let entry = known.catalog.iter();
            let mut entry = entry.filter(|entry| entry.record.id == table.access.table);
            let Some(entry) = entry.next() else { continue };
            if table.tree.is_some() {
                // In these tables, leaves are not moved into runs.
                continue;
            }
            match self.adopt_orphans(entry, &wait_limit).await {
                Ok(Some(count)) => report.chunk_count += count,
                Ok(None) => report.given_up_count += 1,
                // The run stays, and is retried.
                Err(error) if error.is_full() => report.given_up_count += 1,
                Err(error) => report.note_damage(error)?,
            }
        }
        Ok(report)
    }

    /// Frees a dead holder's catalog lock, which needs no repair.
    async fn sweep_catalog_lock(&self) -> Result<(), PoolError> {
        let mut batch = Batch::new();
        let read = batch.read(self.layout.catalog_lock(), 1);
        self.endpoint.execute(&mut batch).await?;
        let owner = OwnerWord::from_word(batch.words(read)[0]);
        if !owner.is_free() && self.is_left(&mut batch, owner).await? {
            batch.clear();
            batch.compare_swap(self.layout.catalog_lock(), owner.word(), 0);
            self.endpoint.execute(&mut batch).await?;
        }
        Ok(())
    }

    /// Returns whether the lock of a leaf, page or inner node is that of a dead owner: its chunk
    /// must still have the listed purpose.
    async fn is_dead(
        &self,
        batch: &mut Batch,
        owner: OwnerWord,
        piece: RemoteAddr,
        table: TableId,
        is_meant: impl Fn(ChunkPurpose) -> bool,
    ) -> Result<bool, PoolError> {
        if !self.is_left(batch, owner).await? {
            return Ok(false);
        }
        let Some(chunk) = self.layout.chunk_of(piece) else {
            return Ok(false);
        };
        batch.clear();
        let read = batch.read(self.layout.chunk_entry(chunk), CHUNK_ENTRY_SIZE_WORDS);
        self.endpoint.execute(batch).await?;
        let entry = ChunkEntry::decode(batch.words(read));
        Ok(entry.table == table && entry.purpose.is_some_and(is_meant))
    }

    /// Returns whether an owner is fenced or is the node itself.
    async fn is_left(&self, batch: &mut Batch, owner: OwnerWord) -> Result<bool, PoolError> {
        if owner == self.owner {
            return Ok(true);
        }
        let fenced = session::is_owner_fenced(&self.endpoint, &self.layout, batch, owner);
        Ok(fenced.await?)
    }

    /// Returns the addresses of the leaves or pages in a chunk that splits take from, in order.
    pub(crate) fn chunk_places<F: SweptLeaf>(
        &self,
        access: &LeafAccess<'_, E, F>,
        chunk: ChunkIndex,
    ) -> impl Iterator<Item = RemoteAddr> + use<E, F> {
        let (start, shape) = (
            self.layout.chunk_start(chunk),
            access.geometry.chunk_shape(),
        );
        (0..shape.piece_count).map(move |piece| start.offset_blocks(piece * shape.stride_blocks))
    }
}
