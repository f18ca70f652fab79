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
//!   swept like what a fenced owner left: the node works on nothing but one sweep at a time. In
//!   particular it never waits for its own locks: recovery waits for nobody (D8), and all locks of
//!   a table that are left over are swept before the first search in it, but for that of its first
//!   leaf, which is swept alone before.
//! - **W6.** A living client may be stopped with a lock in hand. A search that has waited for too
//!   long is given up, and with it the table (its root cannot be told) or the chunk (its leaves
//!   cannot) for this sweep. Nothing of it is freed: it stays the node's, and is for the next (W5).
//! - **W7.** So does what a damaged leaf or snapshot keeps from being told, and the sweep goes on
//!   to the other leaves, chunks and tables. No further sweep is due for that: it would find the
//!   same.

use core::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use farleaf_fabric::mapped::MappedEndpoint;
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::load::finish_root;
use farleaf_index::snapshot::read_snapshot;
use farleaf_index::{Index, IndexError, IndexState, Layer, LayerKind};
use farleaf_leaf::{LeafAccess, LeafBuffer, LeafError, LeafGeometry};
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::catalog::{CatalogEntry, EntryState};
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::session;
use farleaf_region::{RegionError, RegionLayout};
use farleaf_types::{OwnerWord, RemoteAddr, TableId};

use crate::catalog::read_catalog;
use crate::patience::Patience;

/// Lock words read with one batch.
const LOCK_BATCH_COUNT: usize = 1024;

/// An entry is written in one batch; whoever reads it torn so often has met damage.
const TORN_ENTRY_COUNT_MAX: u32 = 1000;

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
        if !is_damage {
            return Err(error);
        }
        self.damaged_count += 1;
        tracing::error!(%error, "cannot sweep what dead sessions left here");
        Ok(())
    }
}

/// A live table, as a sweep sees it.
struct SweptTable<'a, E> {
    access: LeafAccess<'a, E>,
    first_leaf: RemoteAddr,
    root: RemoteAddr,
    state: IndexState,
}

/// What a sweep knows of the tables.
struct Known<'a, E> {
    catalog: Vec<CatalogEntry>,
    tables: Vec<SweptTable<'a, E>>,
    /// Live tables of which it cannot be told now what is in use.
    unknown: Vec<TableId>,
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
    pub async fn catalog(&self) -> Result<Vec<CatalogEntry>, RegionError> {
        let entries = read_catalog(&self.endpoint, &self.layout)
            .await?
            .into_iter();
        Ok(entries.filter_map(|entry| entry.ok()?).collect())
    }

    /// All catalog entries that are not free. What is not among them is nobody's, so an entry that
    /// cannot be read is an error here.
    async fn whole_catalog(&self) -> Result<Vec<CatalogEntry>, RegionError> {
        let mut attempt = 0;
        loop {
            let entries: Result<Vec<_>, _> = read_catalog(&self.endpoint, &self.layout)
                .await?
                .into_iter()
                .collect();
            match entries {
                Ok(entries) => return Ok(entries.into_iter().flatten().collect()),
                Err(error) if attempt == TORN_ENTRY_COUNT_MAX => return Err(error),
                Err(_) => attempt += 1,
            }
        }
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
        Ok(report)
    }

    /// Reads the catalog, and the root and the directory of each live table.
    async fn know_tables(
        &self,
        patience: &Patience<'_>,
        report: &mut SweepReport,
    ) -> Result<Known<'_, E>, IndexError> {
        let catalog = self.whole_catalog().await?;
        let live = catalog
            .iter()
            .filter(|entry| entry.state == EntryState::Live);
        let (mut tables, mut unknown) = (Vec::new(), Vec::new());
        for entry in live {
            let table = entry.record.id;
            let Some(access) = self.access(entry) else {
                unknown.push(table);
                continue;
            };
            match self.know_table(entry, access, patience, report).await {
                Ok(Some(known)) => tables.push(known),
                Ok(None) => {
                    report.given_up_count += 1;
                    let leaf = entry.record.first_leaf;
                    tracing::warn!(%table, %leaf, "{GIVEN_UP}");
                    unknown.push(table);
                }
                Err(error) => {
                    report.note_damage(error)?;
                    unknown.push(table);
                }
            }
        }
        Ok(Known {
            catalog,
            tables,
            unknown,
        })
    }

    /// The root and the directory of a live table; `None`: it was given up (W6).
    async fn know_table<'a>(
        &'a self,
        entry: &CatalogEntry,
        access: LeafAccess<'a, E>,
        patience: &Patience<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<SweptTable<'a, E>>, IndexError> {
        let first_leaf = entry.record.first_leaf;
        // The search for the root waits for the first leaf, and so for the node itself (W5).
        self.sweep_locks(&access, &[first_leaf], report).await?;
        let broken = Cell::new(false);
        let finished = finish_root(&access, entry, &broken);
        let Some(root) = patience.wait(finished).await else {
            return Ok(None);
        };
        let root = root?;
        let (geometry, table) = (access.geometry, entry.record.id);
        let snapshot = read_snapshot(&self.endpoint, &self.layout, geometry, table, root);
        let directory = snapshot.await?;
        let layer = Layer::new(LayerKind::Learned, directory.into());
        Ok(Some(SweptTable {
            access,
            first_leaf,
            root,
            state: IndexState::new(layer, Rc::default()),
        }))
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

    /// The chunks whose owners are fenced.
    async fn chunks_of_fenced(
        &self,
        chunks: &[ChunkEntry],
    ) -> Result<Vec<(ChunkIndex, OwnerWord)>, RegionError> {
        let mut batch = Batch::new();
        let mut left = Vec::new();
        for (index, chunk) in chunks.iter().enumerate() {
            if !chunk.owner.is_free() && self.is_left(&mut batch, chunk.owner).await? {
                left.push((ChunkIndex(index as u64), chunk.owner));
            }
        }
        Ok(left)
    }

    /// W5: whether nobody works in the name of an owner any more.
    async fn is_left(&self, batch: &mut Batch, owner: OwnerWord) -> Result<bool, RegionError> {
        if owner == self.owner {
            return Ok(true);
        }
        let fenced = session::is_owner_fenced(&self.endpoint, &self.layout, batch, owner);
        Ok(fenced.await?)
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

    async fn sweep_locks(
        &self,
        access: &LeafAccess<'_, E>,
        leaves: &[RemoteAddr],
        report: &mut SweepReport,
    ) -> Result<(), IndexError> {
        let mut batch = Batch::new();
        for part in leaves.chunks(LOCK_BATCH_COUNT) {
            batch.clear();
            let locks: Vec<_> = part
                .iter()
                .map(|leaf| (*leaf, batch.read(access.geometry.lock(*leaf), 1)))
                .collect();
            self.endpoint.execute(&mut batch).await?;
            let held: Vec<(RemoteAddr, OwnerWord)> = locks
                .into_iter()
                .map(|(leaf, read)| (leaf, OwnerWord::from_word(batch.words(read)[0])))
                .filter(|(_, owner)| !owner.is_free())
                .collect();
            for (leaf, owner) in held {
                if self.is_left(&mut batch, owner).await? {
                    // What a sweep leaves locked is for the next one (W5).
                    let broken = Cell::new(false);
                    let recovery = access.recover(&mut batch, leaf, owner, &broken);
                    match recovery.await {
                        Ok(recovered) => report.lock_count += u64::from(recovered),
                        Err(error) => report.note_damage(error.into())?,
                    }
                }
            }
        }
        Ok(())
    }

    /// W3 and W4: what becomes of a chunk that has been taken over; `None`: it stays the node's.
    async fn sort_chunk(
        &self,
        known: &Known<'_, E>,
        chunk: ChunkIndex,
        entry: &ChunkEntry,
        patience: &Patience<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<(ChunkPurpose, FreeLeaves)>, IndexError> {
        let none = FreeLeaves::default();
        if known.unknown.contains(&entry.table) {
            return Ok(None);
        }
        let mut tables = known.tables.iter();
        let Some(table) = tables.find(|table| table.access.table == entry.table) else {
            let mut catalog = known.catalog.iter();
            // A dropped table's chunks wait for its grace period.
            let is_dropped = catalog.any(|table| table.record.id == entry.table);
            let purpose = if is_dropped {
                entry.purpose
            } else {
                Some(ChunkPurpose::Free)
            };
            return Ok(purpose.map(|purpose| (purpose, none)));
        };
        let committed = |generation: u16| generation == table.root.spare();
        Ok(match entry.purpose {
            Some(purpose @ ChunkPurpose::Leaves { .. }) => {
                let free = self.sort_leaves(table, chunk, patience, report).await?;
                report.leaf_count += free.as_ref().map_or(0, FreeLeaves::count);
                free.map(|free| (purpose, free))
            }
            Some(purpose @ ChunkPurpose::Run { generation, .. }) if committed(generation) => {
                Some((purpose, none))
            }
            Some(purpose @ ChunkPurpose::Snapshot { generation })
                if committed(generation) || generation == 0 =>
            {
                Some((purpose, none))
            }
            Some(_) => Some((ChunkPurpose::Free, none)),
            None => None,
        })
    }

    /// W3: which leaves of a leased chunk are free; `None`: it was given up (W6).
    async fn sort_leaves(
        &self,
        table: &SweptTable<'_, E>,
        chunk: ChunkIndex,
        patience: &Patience<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<FreeLeaves>, IndexError> {
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
            self.endpoint.execute(&mut batch).await?;
            let image = farleaf_leaf::LeafImage::new(access.geometry, batch.words(read));
            // An unlocked leaf in use is intact, or torn by a living writer, who found it by a
            // search; so a torn one is looked at by a search for what its low says, too.
            let (low, is_retired) = (image.low(), image.is_retired());
            let Some(arrived) = patience.wait(index.leaf_of(&mut batch, low)).await else {
                tracing::warn!(table = %access.table, leaf = %place, "{GIVEN_UP}");
                report.given_up_count += 1;
                return Ok(None);
            };
            match arrived {
                Ok(arrived) if arrived == place => continue,
                Ok(_) => {}
                Err(error) => {
                    report.note_damage(error)?;
                    return Ok(None);
                }
            }
            if !is_retired {
                let mut leaf = LeafBuffer::new(access.geometry, 0, 0, RemoteAddr::NULL.retired());
                batch.clear();
                access.change(place).write_new(&mut batch, &mut leaf);
                self.endpoint.execute(&mut batch).await?;
            }
            free.insert(number as u64);
        }
        Ok(Some(free))
    }
}
