//! What dead sessions left behind: locks, leased leaves, chunks of unfinished loads.
//!
//! | module | what it holds |
//! |---|---|
//! | `tables` | what is known of the tables before a chunk is touched: catalog, roots, locks |
//! | `chunks` | what becomes of the chunks |
//! | `bytes` | tables of byte strings: pages, their chunks, value blocks |
//! | `trees` | inner nodes, of tables that have them |
//!
//! - **W1.** Locks are swept before chunks, so that searches do not wait for dead owners for long;
//!   a search that meets one recovers it by itself (D8).
//! - **W2.** Only what belongs to a fenced owner is touched, and only after the sweep has swapped
//!   the owner word to its own (A1, D8). Whose chunks are swept is settled before the catalog and
//!   the roots are read: all that their owners committed, tables and loads, is then in what was
//!   read. Who is fenced later is for the next sweep.
//! - **W3.** A leased leaf is in use if it is intact, not retired, and a search for its low arrives
//!   at it, once nobody recovers the leaf at which it arrives instead; else nothing points to it
//!   (D3: a sibling is reachable only through a committed split), it is overwritten as retired, and
//!   is free again. The table's first leaf is never free: who opened the table before it was loaded
//!   starts there, and whether it is retired decides of B2 and B4.
//! - **W4.** Chunks of a run or a snapshot are kept if what the table's root, finished first (B4),
//!   leads to lies in them; else their load never committed, or a retrainer has left them (R6).
//!   Those of other trees of a table that was compacted may have been named, and wait for their
//!   grace period (K5).
//! - **W5.** What the node itself holds when a sweep begins was left by one that failed, and is
//!   swept like what a fenced owner left: the node works on nothing but one sweep at a time. In
//!   particular it never waits for its own locks: recovery waits for nobody (D8), and all locks of
//!   a table that are left over are swept before the first search in it, but for that of its first
//!   leaf, which is swept alone before.
//! - **W6.** A living client may be stopped with a lock in hand. A search that has waited for too
//!   long is given up, and with it the table (its root cannot be told) or the chunk (its leaves
//!   cannot) for this sweep. Nothing of it is freed: it stays the node's, and is for the next (W5).
//! - **W7.** So does what a damaged leaf or snapshot keeps from being told, and the sweep goes on
//!   to the other leaves, chunks and tables. No further sweep is due for that: it would find the
//!   same. A page that cannot be recovered, in a chunk that is about to be sorted, is damaged only
//!   if it is in use: else its maker died in the middle of its WRITE, with its lock (W3, BP2).
//! - **W8.** The living give chunks back, and lease them for other things, while a sweep has them
//!   in a listing: an unfinished load, a lease of which nothing was used. So what looks like the
//!   lock of a dead owner is one only if the chunk, asked after the word was read, still is what
//!   the listing said. A chunk that has been something else meanwhile was zeroed between (A4),
//!   and recovery, which is a CAS of that very word, finds it changed; one in which the dead do
//!   hold a lock is given back by nobody but the node.

mod bytes;
mod chunks;
mod tables;
mod trees;

use std::sync::atomic::AtomicBool;

use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::IndexError;
use farleaf_leaf::{LeafAccess, LeafError, LeafGeometry};
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::{CHUNK_ENTRY_SIZE_WORDS, ChunkEntry, ChunkPurpose};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::session;
use farleaf_region::{PoolLayout, RegionError};
use farleaf_types::{OwnerWord, RemoteAddr, TableId};

use crate::catalog::read_catalog;
use crate::patience::Patience;
pub use bytes::BlockSweepers;

/// What is logged with the leaf that a search was for.
const GIVEN_UP: &str = "cannot sweep what dead sessions left here: a client that is alive holds \
    the lock of a leaf on the way and does not go on; if it is stopped, continue or kill it; \
    trying again";

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Leaf locks of fenced owners that were freed.
    pub lock_count: u64,
    /// Chunks of fenced owners that were given back.
    pub chunk_count: u64,
    /// Leased leaves in them that are free again.
    pub leaf_count: u64,
    /// Tables and chunks that were given up for now (W6); another sweep is due.
    pub given_up_count: u64,
    /// Value blocks that wait for their grace period; another sweep is due, which nothing else has
    /// to wait for.
    pub waiting_count: u64,
    /// Value blocks of fenced sessions that nothing refers to, and that become free after their
    /// grace period.
    pub block_count: u64,
    /// Leaves, tables and chunks that damage kept from being swept (W7).
    pub damaged_count: u64,
}

impl SweepReport {
    /// W7: counts damage, and goes on; anything else ends the sweep.
    fn note_damage(&mut self, error: IndexError) -> Result<(), IndexError> {
        let is_damage = matches!(
            error,
            IndexError::SnapshotDamaged(_)
                | IndexError::Leaf(LeafError::Damaged { .. } | LeafError::Contradiction { .. })
        );
        // What is lost with its node (U4) says nothing either.
        if !is_damage && error.lost_node().is_none() {
            return Err(error);
        }
        self.damaged_count += 1;
        tracing::error!(%error, "cannot sweep what dead sessions left here");
        Ok(())
    }
}

/// The node's own way into its region.
#[derive(Debug)]
pub struct Keeper<E = MappedEndpoint> {
    /// Its loopback endpoint (F4).
    pub endpoint: E,
    /// Its region.
    pub layout: PoolLayout,
    /// Its own session.
    pub owner: OwnerWord,
    /// Value blocks that it has taken over.
    pub blocks: BlockSweepers,
}

impl<E: Endpoint> Keeper<E> {
    /// All catalog entries that are not free, as far as they can be read: one that is being
    /// written, or is damaged, is left out.
    ///
    /// # Errors
    /// The fabric failed.
    pub async fn catalog(&self) -> Result<Vec<CatalogEntry>, RegionError> {
        let entries = read_catalog(&self.endpoint, &self.layout)
            .await?
            .into_iter();
        Ok(entries.filter_map(|entry| entry.ok()?).collect())
    }

    /// Access to a table's leaves; `None` when the catalog names a geometry that there is not.
    pub fn access<'a>(&'a self, entry: &CatalogEntry) -> Option<LeafAccess<'a, E>> {
        Some(LeafAccess {
            endpoint: &self.endpoint,
            layout: &self.layout,
            geometry: LeafGeometry::new(entry.record.kind.slots()?.into()).ok()?,
            table: entry.record.id,
            owner: self.owner,
        })
    }

    /// Sweeps everything that belongs to fenced owners.
    ///
    /// # Errors
    /// The fabric failed, or a table is damaged; what was swept before stays swept.
    pub async fn sweep(&self) -> Result<SweepReport, IndexError> {
        self.sweep_until(&AtomicBool::new(false)).await
    }

    /// [`sweep`](Self::sweep) that ends early, and waits for nobody, once `stop` is set.
    ///
    /// # Errors
    /// As for [`sweep`](Self::sweep).
    pub async fn sweep_until(&self, stop: &AtomicBool) -> Result<SweepReport, IndexError> {
        let patience = Patience::new(stop);
        let mut report = SweepReport::default();
        self.sweep_catalog_lock().await?;
        let allocator = ChunkAllocator::new(&self.endpoint, &self.layout, self.owner);
        let left = self.chunks_of_fenced(&allocator.entries().await?).await?;
        // W2: from here on, everything is read that the owners of `left` may have committed.
        let known = self.know_tables(&patience, &mut report).await?;
        let chunks = allocator.entries().await?;
        for table in &known.tables {
            let leaves = self.leaf_places(&table.access, &table.state, &chunks);
            self.sweep_locks(&table.access, &leaves, &mut report)
                .await?;
        }
        for table in &known.byte_tables {
            self.sweep_bytes_locks(table, (&chunks, &left), &mut report)
                .await?;
        }
        for (index, owner) in left {
            if patience.is_over() {
                break;
            }
            let Some(entry) = allocator.take_over(index, owner).await? else {
                continue;
            };
            let sorted = self
                .sort_chunk(&known, index, &entry, &patience, &mut report)
                .await?;
            let Some((purpose, free)) = sorted else {
                continue;
            };
            let range = ChunkRange {
                first: index,
                count: 1,
            };
            allocator
                .give_back(range, purpose, entry.table, free)
                .await?;
            report.chunk_count += 1;
        }
        self.keep_block_sweeps(&known.byte_tables, &known.unknown);
        for table in &known.byte_tables {
            if patience.is_over() {
                break;
            }
            self.sweep_blocks(table, &patience, &mut report).await?;
        }
        for table in &known.tables {
            let entry = known.catalog.iter();
            let mut entry = entry.filter(|entry| entry.record.id == table.access.table);
            let Some(entry) = entry.next() else { continue };
            if table.tree.is_some() {
                // Nothing is moved into runs there.
                continue;
            }
            match self.adopt_orphans(entry, &patience).await {
                Ok(Some(count)) => report.chunk_count += count,
                Ok(None) => report.given_up_count += 1,
                // The run stays, and is tried again.
                Err(error) if error.is_full() => report.given_up_count += 1,
                Err(error) => report.note_damage(error)?,
            }
        }
        Ok(report)
    }

    /// C1: a dead holder's catalog lock needs no repair.
    async fn sweep_catalog_lock(&self) -> Result<(), RegionError> {
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

    /// W8: whether the chunk of a piece is for this now.
    async fn is_still(
        &self,
        batch: &mut Batch,
        piece: RemoteAddr,
        (table, is_meant): (TableId, impl Fn(ChunkPurpose) -> bool),
    ) -> Result<bool, RegionError> {
        let Some(chunk) = self.layout.chunk_of(piece) else {
            return Ok(false);
        };
        batch.clear();
        let read = batch.read(self.layout.chunk_entry(chunk), CHUNK_ENTRY_SIZE_WORDS);
        self.endpoint.execute(batch).await?;
        let entry = ChunkEntry::decode(batch.words(read));
        Ok(entry.table == table && entry.purpose.is_some_and(is_meant))
    }

    /// W5: whether nobody works in the name of an owner any more.
    async fn is_left(&self, batch: &mut Batch, owner: OwnerWord) -> Result<bool, RegionError> {
        if owner == self.owner {
            return Ok(true);
        }
        let fenced = session::is_owner_fenced(&self.endpoint, &self.layout, batch, owner);
        Ok(fenced.await?)
    }

    pub(crate) fn chunk_places<'a>(
        &'a self,
        access: &LeafAccess<'a, E>,
        chunk: ChunkIndex,
    ) -> impl Iterator<Item = RemoteAddr> + 'a {
        let start = self.layout.chunk_start(chunk);
        let geometry = access.geometry;
        (0..geometry.chunk_leaf_count())
            .map(move |leaf| start.offset_blocks(leaf * geometry.stride_blocks()))
    }
}
