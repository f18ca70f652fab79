//! What dead sessions left behind: locks, leased leaves, chunks of unfinished loads.
//!
//! - **W1.** Locks are swept before chunks, so that searches do not wait for dead owners for long;
//!   a search that meets one recovers it by itself (D8).
//! - **W2.** Only what belongs to a fenced owner is touched, and only after the sweep has swapped
//!   the owner word to its own (A1, D8). Whose chunks are swept is settled before the catalog and
//!   the roots are read: all that their owners committed, tables and loads, is then in what was
//!   read. Who is fenced later is for the next sweep.
//! - **W3.** A leased leaf is in use if it is intact, not retired, and a search for its low arrives
//!   at it; else nothing points to it (D3: a sibling is reachable only through a committed split),
//!   it is overwritten as retired, and is free again. The table's first leaf is never free: who
//!   opened the table before it was loaded starts there, and whether it is retired decides of B2
//!   and B4.
//! - **W4.** Chunks of a run or a snapshot are kept if the table's root, finished first (B4), has
//!   their generation, or if they are the table's first snapshot; else their load never committed.
//! - **W5.** What the node itself holds when a sweep begins was left by one that failed, and is
//!   swept like what a fenced owner left: the node works on nothing but one sweep at a time.

use std::rc::Rc;

use farleaf_executor::block_on;
use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_index::load::finish_root;
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::{Index, IndexError, IndexState, Layer, LayerKind};
use farleaf_leaf::{LeafAccess, LeafBuffer, LeafGeometry};
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::catalog::{CatalogEntry, ENTRY_SIZE_WORDS, EntryState, TABLE_COUNT_MAX};
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::session;
use farleaf_region::{RegionError, RegionLayout};
use farleaf_types::{OwnerWord, RemoteAddr};

/// Lock words read with one batch.
const LOCK_BATCH_COUNT: usize = 1024;

/// An entry is written in one batch; whoever reads it torn so often has met damage.
const TORN_ENTRY_COUNT_MAX: u32 = 1000;

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Leaf locks of fenced owners that were freed.
    pub lock_count: u64,
    /// Chunks of fenced owners that were given back.
    pub chunk_count: u64,
    /// Leased leaves in them that are free again.
    pub leaf_count: u64,
}

/// A live table, as a sweep sees it.
struct SweptTable<'a, E> {
    access: LeafAccess<'a, E>,
    first_leaf: RemoteAddr,
    root: RemoteAddr,
    state: IndexState,
}

/// The node's own way into its region.
#[derive(Debug)]
pub struct Keeper<E = MappedEndpoint> {
    /// Its loopback endpoint (F4).
    pub endpoint: E,
    /// Its region.
    pub layout: RegionLayout,
    /// Its own session.
    pub owner: OwnerWord,
}

impl<E: Endpoint> Keeper<E> {
    /// All catalog entries that are not free, as far as they can be read: one that is being
    /// written, or is damaged, is left out.
    ///
    /// # Errors
    /// The fabric failed.
    pub fn catalog(&self) -> Result<Vec<CatalogEntry>, RegionError> {
        let entries = self.read_catalog()?.into_iter();
        Ok(entries.filter_map(|entry| entry.ok()?).collect())
    }

    /// All catalog entries that are not free. What is not among them is nobody's, so an entry that
    /// cannot be read is an error here.
    fn whole_catalog(&self) -> Result<Vec<CatalogEntry>, RegionError> {
        let mut attempt = 0;
        loop {
            let entries: Result<Vec<_>, _> = self.read_catalog()?.into_iter().collect();
            match entries {
                Ok(entries) => return Ok(entries.into_iter().flatten().collect()),
                Err(error) if attempt == TORN_ENTRY_COUNT_MAX => return Err(error),
                Err(_) => attempt += 1,
            }
        }
    }

    fn read_catalog(&self) -> Result<Vec<Result<Option<CatalogEntry>, RegionError>>, RegionError> {
        let mut batch = Batch::new();
        let word_count = TABLE_COUNT_MAX as usize * ENTRY_SIZE_WORDS;
        let read = batch.read(self.layout.catalog_entry(0), word_count);
        block_on(self.endpoint.execute(&mut batch), || 0)?;
        self.endpoint
            .counters()
            .record(OperationKind::Control, &batch.take_cost());
        let entries = batch.words(read).chunks_exact(ENTRY_SIZE_WORDS).enumerate();
        let decode = |(index, words)| CatalogEntry::decode(index as u64, words);
        Ok(entries.map(decode).collect())
    }

    /// Access to a table's leaves; `None` when the catalog names a geometry that there is not.
    pub fn access<'a>(&'a self, entry: &CatalogEntry) -> Option<LeafAccess<'a, E>> {
        Some(LeafAccess {
            endpoint: &self.endpoint,
            layout: &self.layout,
            geometry: LeafGeometry::new(entry.record.slots.into()).ok()?,
            table: entry.record.id,
            owner: self.owner,
        })
    }

    /// Sweeps everything that belongs to fenced owners.
    ///
    /// # Errors
    /// The fabric failed, or a table is damaged; what was swept before stays swept.
    pub fn sweep(&self) -> Result<SweepReport, IndexError> {
        let mut report = SweepReport::default();
        self.sweep_catalog_lock()?;
        let allocator = ChunkAllocator::new(&self.endpoint, &self.layout, self.owner);
        let left = self.chunks_of_fenced(&block_on(allocator.entries(), || 0)?)?;
        // W2: from here on, everything is read that the owners of `left` may have committed.
        let catalog = self.whole_catalog()?;
        let live = catalog
            .iter()
            .filter(|entry| entry.state == EntryState::Live);
        let mut tables = Vec::new();
        for entry in live {
            let Some(access) = self.access(entry) else {
                continue;
            };
            // The search for the root waits for the first leaf, and so for the node itself (W5).
            report.lock_count += self.sweep_locks(&access, &[entry.record.first_leaf])?;
            let root = block_on(finish_root(&access, entry), || 0)?;
            let snapshot = read_snapshot(
                &self.endpoint,
                &self.layout,
                access.geometry,
                entry.record.id,
                root,
            );
            let directory = block_on(snapshot, || 0)?;
            let layer = Layer::new(LayerKind::Learned, directory.into());
            tables.push(SweptTable {
                access,
                first_leaf: entry.record.first_leaf,
                root,
                state: IndexState::new(layer, Rc::default()),
            });
        }
        let chunks = block_on(allocator.entries(), || 0)?;
        for table in &tables {
            let leaves = self.leaf_places(&table.access, &table.state, &chunks);
            report.lock_count += self.sweep_locks(&table.access, &leaves)?;
        }
        for (index, owner) in left {
            let Some(entry) = block_on(allocator.take_over(index, owner), || 0)? else {
                continue;
            };
            let table = tables
                .iter()
                .find(|table| table.access.table == entry.table);
            let dropped = catalog
                .iter()
                .any(|known| known.record.id == entry.table && known.state == EntryState::Dropped);
            let (purpose, free) = match table {
                Some(table) => self.sort_chunk(table, index, &entry, &mut report)?,
                // A dropped table's chunks wait for its grace period.
                None if dropped => (entry.purpose, FreeLeaves::default()),
                None => (Some(ChunkPurpose::Free), FreeLeaves::default()),
            };
            let Some(purpose) = purpose else { continue };
            let range = ChunkRange {
                first: index,
                count: 1,
            };
            block_on(allocator.give_back(range, purpose, entry.table, free), || 0)?;
            report.chunk_count += 1;
        }
        Ok(report)
    }

    /// C1: a dead holder's catalog lock needs no repair.
    fn sweep_catalog_lock(&self) -> Result<(), RegionError> {
        let mut batch = Batch::new();
        let read = batch.read(self.layout.catalog_lock(), 1);
        block_on(self.endpoint.execute(&mut batch), || 0)?;
        let owner = OwnerWord::from_word(batch.words(read)[0]);
        if !owner.is_free() && self.is_left(&mut batch, owner)? {
            batch.clear();
            batch.compare_swap(self.layout.catalog_lock(), owner.word(), 0);
            block_on(self.endpoint.execute(&mut batch), || 0)?;
        }
        Ok(())
    }

    /// The chunks whose owners are fenced.
    fn chunks_of_fenced(
        &self,
        chunks: &[ChunkEntry],
    ) -> Result<Vec<(ChunkIndex, OwnerWord)>, RegionError> {
        let mut batch = Batch::new();
        let mut left = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            if !chunk.owner.is_free() && self.is_left(&mut batch, chunk.owner)? {
                left.push((ChunkIndex(index as u64), chunk.owner));
            }
        }
        Ok(left)
    }

    /// W5: whether nobody works in the name of an owner any more.
    fn is_left(&self, batch: &mut Batch, owner: OwnerWord) -> Result<bool, RegionError> {
        if owner == self.owner {
            return Ok(true);
        }
        let fenced = session::is_owner_fenced(&self.endpoint, &self.layout, batch, owner);
        Ok(block_on(fenced, || 0)?)
    }

    /// Every place at which the table has, or may have, a leaf.
    fn leaf_places(
        &self,
        access: &LeafAccess<'_, E>,
        state: &IndexState,
        chunks: &[ChunkEntry],
    ) -> Vec<RemoteAddr> {
        let mut places = state.trained_leaves();
        for (index, chunk) in chunks.iter().enumerate() {
            let is_leaves = matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }));
            if is_leaves && chunk.table == access.table {
                places.extend(self.chunk_places(access, ChunkIndex(index as u64)));
            }
        }
        places
    }

    fn chunk_places<'a>(
        &'a self,
        access: &LeafAccess<'a, E>,
        chunk: ChunkIndex,
    ) -> impl Iterator<Item = RemoteAddr> + 'a {
        let start = self.layout.chunk_start(chunk);
        let geometry = access.geometry;
        (0..geometry.chunk_leaf_count())
            .map(move |leaf| start.offset_blocks(leaf * geometry.stride_blocks()))
    }

    fn sweep_locks(
        &self,
        access: &LeafAccess<'_, E>,
        leaves: &[RemoteAddr],
    ) -> Result<u64, IndexError> {
        let mut lock_count = 0;
        let mut batch = Batch::new();
        for part in leaves.chunks(LOCK_BATCH_COUNT) {
            batch.clear();
            let locks: Vec<_> = part
                .iter()
                .map(|leaf| (*leaf, batch.read(access.geometry.lock(*leaf), 1)))
                .collect();
            block_on(self.endpoint.execute(&mut batch), || 0)?;
            let held: Vec<(RemoteAddr, OwnerWord)> = locks
                .into_iter()
                .map(|(leaf, read)| (leaf, OwnerWord::from_word(batch.words(read)[0])))
                .filter(|(_, owner)| !owner.is_free())
                .collect();
            for (leaf, owner) in held {
                if self.is_left(&mut batch, owner)? {
                    let recovered = block_on(access.recover(&mut batch, leaf, owner), || 0)?;
                    lock_count += u64::from(recovered);
                }
            }
        }
        Ok(lock_count)
    }

    /// W3 and W4: what becomes of a chunk that has been taken over.
    fn sort_chunk(
        &self,
        table: &SweptTable<'_, E>,
        chunk: ChunkIndex,
        entry: &ChunkEntry,
        report: &mut SweepReport,
    ) -> Result<(Option<ChunkPurpose>, FreeLeaves), IndexError> {
        let none = FreeLeaves::default();
        let committed = |generation: u16| generation == table.root.spare();
        Ok(match entry.purpose {
            Some(ChunkPurpose::Leaves { .. }) => {
                let free = self.sort_leaves(table, chunk)?;
                report.leaf_count += free.count();
                (entry.purpose, free)
            }
            Some(ChunkPurpose::Run { generation, .. }) if committed(generation) => {
                (entry.purpose, none)
            }
            Some(ChunkPurpose::Snapshot { generation })
                if committed(generation) || generation == 0 =>
            {
                (entry.purpose, none)
            }
            Some(_) => (Some(ChunkPurpose::Free), none),
            None => (None, none),
        })
    }

    fn sort_leaves(
        &self,
        table: &SweptTable<'_, E>,
        chunk: ChunkIndex,
    ) -> Result<FreeLeaves, IndexError> {
        let access = &table.access;
        let mut free = FreeLeaves::default();
        let mut batch = Batch::new();
        let index = Index::new(*access, &table.state);
        for (number, place) in self.chunk_places(access, chunk).enumerate() {
            if place == table.first_leaf {
                continue;
            }
            batch.clear();
            let words = access.geometry.image_size_words();
            let read = batch.read(access.geometry.state(place), words);
            block_on(self.endpoint.execute(&mut batch), || 0)?;
            let image = farleaf_leaf::LeafImage::new(access.geometry, batch.words(read));
            // An unlocked leaf in use is intact, or torn by a living writer, who found it by a
            // search; so a torn one is looked at by a search for what its low says, too.
            let (low, is_retired) = (image.low(), image.is_retired());
            let arrived = block_on(index.leaf_of(&mut batch, low), || 0)?;
            if arrived == place {
                continue;
            }
            if !is_retired {
                let mut leaf = LeafBuffer::new(access.geometry, 0, 0, RemoteAddr::NULL.retired());
                batch.clear();
                access.change(place).write_new(&mut batch, &mut leaf);
                block_on(self.endpoint.execute(&mut batch), || 0)?;
            }
            free.insert(number as u64);
        }
        Ok(free)
    }
}
