//! State of a table as the retrainer reads it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use farleaf_base::{RemoteAddr, TableId};
use farleaf_fabric::Endpoint;
use farleaf_index::directory::Model;
use farleaf_index::load::{FillTarget, finish_root};
use farleaf_index::retrain::{Retraining, adopt};
use farleaf_index::snapshot::{SnapshotContents, read_contents};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::words::{LeafAccess, LeafError};
use farleaf_pool::PoolError;
use farleaf_pool::allocation::{ChunkRange, ChunkTable};
use farleaf_pool::catalog::CatalogEntry;
use farleaf_pool::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_pool::layout::ChunkIndex;
use farleaf_pool::members::MemberState;

use super::policy::ModelChanges;
use crate::sweep::MemoryMaintainer;
use crate::wait_limit::WaitLimit;

/// Number of models whose counters are read per batch.
const COUNTER_BATCH_COUNT: usize = 1024;

/// State of a table with a learned layer when a retraining begins.
pub(super) struct LearnedTableView<'a, E> {
    pub(super) access: LeafAccess<'a, E>,
    pub(super) entry: CatalogEntry,
    pub(super) root: RemoteAddr,
    pub(super) contents: Rc<SnapshotContents>,
    pub(super) chunks: ChunkTable,
}

/// State of a table with any layer, without what the root names.
pub(super) struct TableView<'a, E> {
    pub(super) access: LeafAccess<'a, E>,
    pub(super) entry: CatalogEntry,
    pub(super) root: RemoteAddr,
    pub(super) chunks: ChunkTable,
}

/// Reads a table's chunks, then its root. `None` if a stopped client holds its first leaf, or if it
/// was dropped.
pub(super) async fn read_root<'a, E: Endpoint>(
    maintainer: &'a MemoryMaintainer<E>,
    entry: CatalogEntry,
    wait_limit: &WaitLimit<'_>,
) -> Result<Option<TableView<'a, E>>, IndexError> {
    let Some(access) = maintainer.access(&entry) else {
        return Ok(None);
    };
    let chunks = maintainer.allocator().entries().await?;
    let broken = Cell::new(false);
    let Some(root) = wait_limit.wait(finish_root(&access, &entry, &broken)).await else {
        return Ok(None);
    };
    let root = root?;
    Ok((!root.is_null()).then_some(TableView {
        access,
        entry,
        root,
        chunks,
    }))
}

/// Snapshots behind the roots read last. A root's snapshot does not change while it is valid, and
/// only the retrainer and one load replace a root.
#[derive(Default)]
pub(super) struct SnapshotCache {
    snapshots: RefCell<BTreeMap<TableId, (RemoteAddr, Rc<SnapshotContents>)>>,
}

impl SnapshotCache {
    /// Drops tables that no longer exist.
    pub(super) fn keep(&self, live: &[CatalogEntry]) {
        self.snapshots
            .borrow_mut()
            .retain(|table, _| live.iter().any(|entry| entry.record.id == *table));
    }

    /// Reads a table: chunks first, then the root and its snapshot. `None` if a stopped client
    /// holds its first leaf, or if it was dropped.
    pub(super) async fn look<'a, E: Endpoint>(
        &self,
        maintainer: &'a MemoryMaintainer<E>,
        entry: CatalogEntry,
        wait_limit: &WaitLimit<'_>,
    ) -> Result<Option<LearnedTableView<'a, E>>, IndexError> {
        let Some(rooted) = read_root(maintainer, entry, wait_limit).await? else {
            return Ok(None);
        };
        let contents = self
            .contents(maintainer, &rooted.access, rooted.root)
            .await?;
        Ok(Some(LearnedTableView {
            access: rooted.access,
            entry: rooted.entry,
            root: rooted.root,
            contents,
            chunks: rooted.chunks,
        }))
    }

    async fn contents<E: Endpoint>(
        &self,
        maintainer: &MemoryMaintainer<E>,
        access: &LeafAccess<'_, E>,
        root: RemoteAddr,
    ) -> Result<Rc<SnapshotContents>, IndexError> {
        let id = access.table;
        let known = self.snapshots.borrow().get(&id).cloned();
        if let Some((seen, contents)) = known
            && seen == root
        {
            return Ok(contents);
        }
        let contents = read_contents(
            &maintainer.endpoint,
            &maintainer.layout,
            access.geometry,
            id,
            root,
        );
        let contents = Rc::new(contents.await?);
        let noted = (root, Rc::clone(&contents));
        self.snapshots.borrow_mut().insert(id, noted);
        Ok(contents)
    }
}

/// Returns the address by which the queue names a model.
pub(super) fn table_of(model: &Model) -> RemoteAddr {
    model.synonym_table.place()
}

/// Reads the counters of each model since it was trained. Costs one round trip per 1,024 models, 16
/// bytes each.
pub(super) async fn count_changes<E: Endpoint>(
    maintainer: &MemoryMaintainer<E>,
    contents: &SnapshotContents,
) -> Result<Vec<ModelChanges>, PoolError> {
    let mut batch = maintainer.counted_batch();
    let mut counted = Vec::with_capacity(contents.models.len());
    for part in contents.models.chunks(COUNTER_BATCH_COUNT) {
        batch.clear();
        let reads: Vec<_> = part
            .iter()
            .map(|model| {
                let table = model.synonym_table;
                (!table.is_null()).then(|| batch.read(table.word_at(0), 2))
            })
            .collect();
        maintainer.endpoint.execute(&mut batch).await?;
        counted.extend(reads.into_iter().map(|read| {
            let words = read.map(|read| batch.words(read));
            words.map_or(ModelChanges::default(), |words| ModelChanges {
                // Limited, so that sums and products of corrupted counters do not overflow.
                splits: words[0].min(u32::MAX.into()),
                underfull: words[1].min(u32::MAX.into()),
            })
        }));
    }
    Ok(counted)
}

/// Returns whether a leaf or page lies in a chunk that splits take from.
pub(super) fn is_shared<E, F>(
    access: &LeafAccess<'_, E, F>,
    chunks: &ChunkTable,
    leaf: RemoteAddr,
) -> bool {
    let chunk = access.layout.chunk_of(leaf);
    let chunk = chunk.and_then(|chunk| chunks.get(chunk));
    chunk.is_some_and(|chunk| matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. })))
}

/// Returns whether the link past a retired leaf to this one may be missing: the leaf is on a lost
/// node, or in a run that was never committed because a node is lost.
pub(super) fn is_beyond_loss<E: Endpoint>(
    maintainer: &MemoryMaintainer<E>,
    access: &LeafAccess<'_, E>,
    chunks: &ChunkTable,
    leaf: RemoteAddr,
) -> bool {
    if maintainer.layout.members().state(leaf.node()) == Some(MemberState::Lost) {
        return true;
    }
    let chunk = access.layout.chunk_of(leaf);
    let chunk = chunk.and_then(|chunk| chunks.get(chunk));
    chunk.is_some_and(|chunk| {
        let is_run = matches!(chunk.purpose, Some(ChunkPurpose::Run { .. }));
        is_run && chunk.owner == maintainer.owner
    })
}

impl<E: Endpoint> LearnedTableView<'_, E> {
    pub(super) fn work<'b>(&'b self, broken: &'b Cell<bool>) -> Retraining<'b, E> {
        let slot_count = self.access.geometry.slot_count();
        let fill = FillTarget::new(slot_count, self.entry.record.fill_percent);
        let epsilon_keys = f64::from(self.entry.record.epsilon_milli) / 1000.0;
        Retraining {
            access: self.access,
            entry: &self.entry,
            contents: &self.contents,
            root: self.root,
            epsilon_keys,
            loaded_count_mean: fill.mean(),
            merged_count_max: slot_count * usize::from(self.entry.record.fill_percent) / 100,
            broken,
        }
    }

    /// Returns the layer, which decides how the table is retrained. A table with an unknown layer
    /// is not retrained.
    pub(super) fn kind(&self) -> LayerKind {
        LayerKind::from_number(self.entry.record.search_layer).unwrap_or_default()
    }

    /// Returns a run that the node owns, its own or a dead retrainer's, that the root does not name
    /// and whose generation is not in `but`.
    fn orphan_run(
        &self,
        maintainer: &MemoryMaintainer<E>,
        but: &BTreeSet<u16>,
    ) -> Option<(ChunkRange, u16)> {
        let named = self
            .contents
            .named_chunks(self.access.layout, self.access.geometry, self.root);
        let generation_of = |index: ChunkIndex, chunk: &ChunkEntry| {
            let is_own = chunk.owner == maintainer.owner && chunk.table == self.access.table;
            let is_named = named.contains(&index);
            match chunk.purpose {
                Some(ChunkPurpose::Run { generation, .. }) if is_own && !is_named => {
                    (!but.contains(&generation)).then_some(generation)
                }
                _ => None,
            }
        };
        let mut found: Option<(ChunkRange, u16)> = None;
        for (index, chunk) in self.chunks.iter() {
            let of = generation_of(index, chunk);
            match &mut found {
                None => {
                    let range = ChunkRange::one(index);
                    found = of.map(|generation| (range, generation));
                }
                // Adjacent chunks of one node.
                Some((range, generation)) if of == Some(*generation) && range.end() == index => {
                    range.count += 1;
                }
                Some(_) => break,
            }
        }
        found
    }

    /// Returns whether leaves of the table were moved into a run that is not committed. If a lost
    /// node keeps the run from being adopted, the table stays unchanged.
    pub(super) fn has_orphan_run(&self, maintainer: &MemoryMaintainer<E>) -> bool {
        let is_own_run = |chunk: &ChunkEntry| {
            let is_run = matches!(chunk.purpose, Some(ChunkPurpose::Run { .. }));
            is_run && chunk.owner == maintainer.owner && chunk.table == self.access.table
        };
        let mut chunks = self.chunks.iter();
        // Without such a run, this does not read all leaves.
        chunks.any(|(_, chunk)| is_own_run(chunk))
            && self.orphan_run(maintainer, &BTreeSet::new()).is_some()
    }
}

impl<E: Endpoint> MemoryMaintainer<E> {
    /// Commits moves of retrainers that died or gave up, and frees the rest of runs that the node
    /// owns. Returns the number of runs; `None` if it waits for a lock holder or for free space. A
    /// run whose moved leaves are unknown because a node is lost stays unchanged.
    pub(crate) async fn adopt_orphans(
        &self,
        entry: &CatalogEntry,
        wait_limit: &WaitLimit<'_>,
    ) -> Result<Option<u64>, IndexError> {
        let snapshots = SnapshotCache::default();
        let (mut count, mut unknown) = (0, BTreeSet::new());
        loop {
            let Some(table) = snapshots.look(self, entry.clone(), wait_limit).await? else {
                return Ok(None);
            };
            let Some((range, generation)) = table.orphan_run(self, &unknown) else {
                return Ok(Some(count));
            };
            let broken = Cell::new(false);
            let work = table.work(&broken);
            let Some(adopted) = wait_limit.wait(adopt(&work, range, generation)).await else {
                return Ok(None);
            };
            match adopted {
                Ok(_) => count += range.count,
                // The run is freed with its table.
                Err(IndexError::Leaf(LeafError::TableDropped { .. })) => return Ok(None),
                Err(error) if error.lost_node().is_some() => {
                    unknown.insert(generation);
                }
                Err(error) => return Err(error),
            }
        }
    }
}
