//! Reads the tables before a sweep touches a chunk: the catalog, the roots, the locks. See
//! [`sweep`](crate::sweep) for the rules.

use core::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use farleaf_base::{OwnerWord, RemoteAddr, TableId, WordAddr};
use farleaf_fabric::{Batch, Endpoint};
use farleaf_index::load::finish_root;
use farleaf_index::snapshot::read_contents;
use farleaf_index::tree::head::Head;
use farleaf_index::{IndexError, IndexState, Layer, LayerKind};
use farleaf_leaf::words::{LeafAccess, LeafError};
use farleaf_pool::PoolError;
use farleaf_pool::allocation::ChunkTable;
use farleaf_pool::catalog::{CatalogEntry, EntryState};
use farleaf_pool::chunk::ChunkPurpose;
use farleaf_pool::layout::ChunkIndex;

use super::bytes::SweptBytes;
use super::{GIVEN_UP, MemoryMaintainer, SweepReport, SweptLeaf};
use crate::catalog::read_catalog;
use crate::wait_limit::WaitLimit;

/// Number of lock words read per batch.
const LOCK_BATCH_COUNT: usize = 1024;

/// Number of torn reads after which an entry counts as corrupted. An entry is written in one batch.
const TORN_ENTRY_COUNT_MAX: u32 = 1000;

/// Live table, as a sweep sees it.
pub(super) struct SweptTable<'a, E> {
    pub(super) access: LeafAccess<'a, E>,
    pub(super) first_leaf: RemoteAddr,
    /// Chunks that the root names.
    pub(super) named: BTreeSet<ChunkIndex>,
    pub(super) state: IndexState,
    /// Head of the tree, if the table has one.
    pub(super) tree: Option<Head>,
}

/// Tables as a sweep has read them.
pub(super) struct KnownTables<'a, E> {
    pub(super) catalog: Vec<CatalogEntry>,
    pub(super) tables: Vec<SweptTable<'a, E>>,
    pub(super) byte_tables: Vec<SweptBytes<'a, E>>,
    /// Live tables whose chunks in use are unknown for now.
    pub(super) unknown: Vec<TableId>,
}

impl SweepReport {
    /// Counts a table that is skipped in this sweep.
    fn note_given_up(&mut self, entry: &CatalogEntry) {
        self.given_up_count += 1;
        let (table, leaf) = (entry.record.id, entry.record.first_leaf);
        tracing::warn!(%table, %leaf, "{GIVEN_UP}");
    }
}

impl<E: Endpoint> MemoryMaintainer<E> {
    /// Returns all catalog entries in use. Chunks of tables that are not among them have no owner,
    /// so an unreadable entry is an error here.
    async fn whole_catalog(&self) -> Result<Vec<CatalogEntry>, PoolError> {
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

    /// Reads the catalog, and the root and the directory of each live table.
    pub(super) async fn read_tables(
        &self,
        wait_limit: &WaitLimit<'_>,
        report: &mut SweepReport,
    ) -> Result<KnownTables<'_, E>, IndexError> {
        let catalog = self.whole_catalog().await?;
        let live = catalog
            .iter()
            .filter(|entry| entry.state == EntryState::Live);
        let (mut tables, mut byte_tables, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for entry in live {
            let table = entry.record.id;
            let known = if let Some(access) = self.page_access(entry) {
                let known = self.read_byte_table(entry, access, wait_limit, report);
                known
                    .await
                    .map(|known| known.map(|it| byte_tables.push(it)))
            } else if let Some(access) = self.access(entry) {
                let known = self.read_table(entry, access, wait_limit, report);
                known.await.map(|known| known.map(|it| tables.push(it)))
            } else {
                unknown.push(table);
                continue;
            };
            match known {
                Ok(Some(())) => continue,
                Ok(None) => report.note_given_up(entry),
                Err(error) => report.note_damage(error)?,
            }
            unknown.push(table);
        }
        Ok(KnownTables {
            catalog,
            tables,
            byte_tables,
            unknown,
        })
    }

    /// Reads the root and the directory of a live table; `None` if it was skipped or dropped.
    async fn read_table<'a>(
        &'a self,
        entry: &CatalogEntry,
        access: LeafAccess<'a, E>,
        wait_limit: &WaitLimit<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<SweptTable<'a, E>>, IndexError> {
        let first_leaf = entry.record.first_leaf;
        let mut batch = Batch::new();
        let root = self.root_of(entry, &access, &mut batch, wait_limit, report);
        let Some(root) = root.await? else {
            return Ok(None);
        };
        let (geometry, table) = (access.geometry, entry.record.id);
        let kind = LayerKind::from_number(entry.record.search_layer);
        if kind.is_some_and(LayerKind::has_tree) {
            let known = self.read_tree(&access, root, report).await?;
            return Ok(Some(SweptTable {
                access,
                first_leaf,
                named: known.named,
                state: known.state,
                tree: Some(known.head),
            }));
        }
        let contents = read_contents(&self.endpoint, &self.layout, geometry, table, root);
        let contents = contents.await?;
        let named = contents.named_chunks(&self.layout, geometry, root);
        let directory = contents.into_directory(geometry);
        let layer = Layer::new(LayerKind::Learned, directory.into());
        // An interrupted retraining leaves retired leaves that the root still names.
        let state = IndexState::new(layer, Rc::default());
        state.follow_retired();
        Ok(Some(SweptTable {
            access,
            first_leaf,
            named,
            state,
            tree: None,
        }))
    }

    /// Returns every address at which the table has, or may have, a leaf that is not lost.
    pub(super) fn leaf_places(
        &self,
        access: &LeafAccess<'_, E>,
        state: &IndexState,
        chunks: &ChunkTable,
    ) -> Vec<RemoteAddr> {
        let mut places = state.trained_leaves();
        let members = self.layout.members();
        places.retain(|leaf| members.is_reachable(leaf.node()));
        for (index, chunk) in chunks.iter() {
            if chunk.has_leaves(access.table) {
                places.extend(self.chunk_places(access, index));
            }
        }
        places
    }

    /// Returns the root of a live table of any kind; `None` if it was skipped or dropped.
    pub(super) async fn root_of<F: SweptLeaf>(
        &self,
        entry: &CatalogEntry,
        access: &LeafAccess<'_, E, F>,
        batch: &mut Batch,
        wait_limit: &WaitLimit<'_>,
        report: &mut SweepReport,
    ) -> Result<Option<RemoteAddr>, IndexError> {
        // The search for the root waits for the first leaf's lock, which the node itself may hold.
        self.sweep_locks(access, batch, &[entry.record.first_leaf], &[], report)
            .await?;
        let broken = Cell::new(false);
        let root = wait_limit.wait(finish_root(access, entry, &broken)).await;
        Ok(root.transpose()?.filter(|root| !root.is_null()))
    }

    /// Sweeps the locks of these leaves or pages. `left` are the chunks that are sorted next.
    pub(super) async fn sweep_locks<F: SweptLeaf>(
        &self,
        access: &LeafAccess<'_, E, F>,
        batch: &mut Batch,
        leaves: &[RemoteAddr],
        left: &[(ChunkIndex, OwnerWord)],
        report: &mut SweepReport,
    ) -> Result<(), IndexError> {
        let shape = access.geometry.chunk_shape();
        let is_leaves = |purpose| match purpose {
            ChunkPurpose::Run { slots, .. } => shape.purpose == ChunkPurpose::Leaves { slots },
            other => shape.purpose == other,
        };
        for part in leaves.chunks(LOCK_BATCH_COUNT) {
            let lock_of = |leaf| access.geometry.lock_addr(leaf);
            for (leaf, owner) in self.held_locks(batch, part, lock_of).await? {
                if !self
                    .is_dead(batch, owner, leaf, access.table, is_leaves)
                    .await?
                {
                    continue;
                }
                // Locks that a sweep leaves are released by the next one.
                let broken = Cell::new(false);
                match access.recover(batch, leaf, owner, &broken).await {
                    Ok(recovered) => report.lock_count += u64::from(recovered),
                    // The page's creator may have died in the middle of its WRITE. Sorting the
                    // chunk finds out whether it was ever linked to.
                    Err(LeafError::Damaged { .. } | LeafError::Contradiction { .. })
                        if self.is_in(left, leaf) => {}
                    Err(error) => report.note_damage(error.into())?,
                }
            }
        }
        Ok(())
    }

    /// Reads the locks of leaves, pages or inner nodes in one batch; returns those that are held,
    /// and their owners.
    pub(super) async fn held_locks(
        &self,
        batch: &mut Batch,
        pieces: &[RemoteAddr],
        lock_of: impl Fn(RemoteAddr) -> WordAddr,
    ) -> Result<Vec<(RemoteAddr, OwnerWord)>, PoolError> {
        batch.clear();
        let locks = pieces
            .iter()
            .map(|piece| (*piece, batch.read(lock_of(*piece), 1)));
        let locks: Vec<_> = locks.collect();
        self.endpoint.execute(batch).await?;
        let owners = locks
            .into_iter()
            .map(|(piece, read)| (piece, OwnerWord::from_word(batch.words(read)[0])));
        Ok(owners.filter(|(_, owner)| !owner.is_free()).collect())
    }

    /// Returns whether a leaf or page lies in one of these chunks.
    fn is_in(&self, left: &[(ChunkIndex, OwnerWord)], piece: RemoteAddr) -> bool {
        let chunk = self.layout.chunk_of(piece);
        left.iter().any(|(index, _)| Some(*index) == chunk)
    }
}
