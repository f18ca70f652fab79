//! A table, as the node looks at it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use farleaf_fabric::{Batch, Endpoint, OperationKind};
use farleaf_index::directory::Model;
use farleaf_index::load::{FillTarget, finish_root};
use farleaf_index::retrain::{Retraining, adopt};
use farleaf_index::snapshot::{SnapshotContents, read_contents};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::{LeafAccess, LeafError};
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange, ChunkTable};
use farleaf_region::catalog::CatalogEntry;
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose};
use farleaf_region::layout::ChunkIndex;
use farleaf_region::members::MemberState;
use farleaf_types::{RemoteAddr, TableId};

use super::policy::Counted;
use crate::patience::Patience;
use crate::sweep::Keeper;

/// Models whose counters are read with one batch.
const COUNTER_BATCH_COUNT: usize = 1024;

/// A table, as it is looked at once.
pub(super) struct Looked<'a, E> {
    pub(super) access: LeafAccess<'a, E>,
    pub(super) entry: CatalogEntry,
    pub(super) root: RemoteAddr,
    pub(super) contents: Rc<SnapshotContents>,
    pub(super) chunks: ChunkTable,
}

/// The same, of any layer, without what the root names.
pub(super) struct Rooted<'a, E> {
    pub(super) access: LeafAccess<'a, E>,
    pub(super) entry: CatalogEntry,
    pub(super) root: RemoteAddr,
    pub(super) chunks: ChunkTable,
}

/// T2: the chunks first, then the root. `None`: somebody who does not go on holds its first leaf,
/// or it was dropped.
pub(super) async fn look_at_root<'a, E: Endpoint>(
    keeper: &'a Keeper<E>,
    entry: CatalogEntry,
    patience: &Patience<'_>,
) -> Result<Option<Rooted<'a, E>>, IndexError> {
    let Some(access) = keeper.access(&entry) else {
        return Ok(None);
    };
    let allocator = ChunkAllocator::new(&keeper.endpoint, &keeper.layout, keeper.owner);
    let chunks = allocator.entries().await?;
    let broken = Cell::new(false);
    let Some(root) = patience.wait(finish_root(&access, &entry, &broken)).await else {
        return Ok(None);
    };
    let root = root?;
    Ok((!root.is_null()).then_some(Rooted {
        access,
        entry,
        root,
        chunks,
    }))
}

/// The snapshots behind the roots that were looked at last: while a root stands, what it names does
/// not change, and nobody but the retrainer and one load take a root away (R1).
#[derive(Default)]
pub(super) struct Looks {
    snapshots: RefCell<BTreeMap<TableId, (RemoteAddr, Rc<SnapshotContents>)>>,
}

impl Looks {
    /// Forgets tables that are gone.
    pub(super) fn keep(&self, live: &[CatalogEntry]) {
        self.snapshots
            .borrow_mut()
            .retain(|table, _| live.iter().any(|entry| entry.record.id == *table));
    }

    /// Looks at a table: chunks first, then the root and what it names (T2). `None`: somebody who
    /// does not go on holds its first leaf, or it was dropped.
    pub(super) async fn look<'a, E: Endpoint>(
        &self,
        keeper: &'a Keeper<E>,
        entry: CatalogEntry,
        patience: &Patience<'_>,
    ) -> Result<Option<Looked<'a, E>>, IndexError> {
        let Some(rooted) = look_at_root(keeper, entry, patience).await? else {
            return Ok(None);
        };
        let contents = self.contents(keeper, &rooted.access, rooted.root).await?;
        Ok(Some(Looked {
            access: rooted.access,
            entry: rooted.entry,
            root: rooted.root,
            contents,
            chunks: rooted.chunks,
        }))
    }

    async fn contents<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
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
        let contents = read_contents(&keeper.endpoint, &keeper.layout, access.geometry, id, root);
        let contents = Rc::new(contents.await?);
        let noted = (root, Rc::clone(&contents));
        self.snapshots.borrow_mut().insert(id, noted);
        Ok(contents)
    }
}

/// How the queue names a model.
pub(super) fn table_of(model: &Model) -> RemoteAddr {
    model.synonym_table.place()
}

/// What has been counted in each model since it was trained. One round trip per 1,024 models, 16
/// bytes each.
pub(super) async fn count_changes<E: Endpoint>(
    keeper: &Keeper<E>,
    contents: &SnapshotContents,
) -> Result<Vec<Counted>, RegionError> {
    let mut batch = Batch::new();
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
        keeper.endpoint.execute(&mut batch).await?;
        counted.extend(reads.into_iter().map(|read| {
            let words = read.map(|read| batch.words(read));
            words.map_or(Counted::default(), |words| Counted {
                // Whatever is there, sums and products of it stay numbers.
                splits: words[0].min(u32::MAX.into()),
                underfull: words[1].min(u32::MAX.into()),
            })
        }));
    }
    let counters = keeper.endpoint.counters();
    counters.record(OperationKind::Control, &batch.take_cost());
    Ok(counted)
}

/// U4: whether nothing may be known to lead past a retired leaf to this one: it is on a lost node,
/// or in a run that was never committed because one is lost. Then R4 was not done.
pub(super) fn is_beyond_loss<E: Endpoint>(
    keeper: &Keeper<E>,
    access: &LeafAccess<'_, E>,
    chunks: &ChunkTable,
    leaf: RemoteAddr,
) -> bool {
    if keeper.layout.members().state(leaf.node()) == Some(MemberState::Lost) {
        return true;
    }
    let chunk = access.layout.chunk_of(leaf);
    let chunk = chunk.and_then(|chunk| chunks.get(chunk));
    chunk.is_some_and(|chunk| {
        let is_run = matches!(chunk.purpose, Some(ChunkPurpose::Run { .. }));
        is_run && chunk.owner == keeper.owner
    })
}

impl<E: Endpoint> Looked<'_, E> {
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

    /// How it is retrained, which a table with a layer that this code does not know is not.
    pub(super) fn kind(&self) -> LayerKind {
        LayerKind::from_number(self.entry.record.search_layer).unwrap_or_default()
    }

    /// R6: a run that the node has, its own or a dead one's, and that the root does not name; none
    /// of these generations.
    fn orphan_run(&self, keeper: &Keeper<E>, but: &BTreeSet<u16>) -> Option<(ChunkRange, u16)> {
        let named = self
            .contents
            .named_chunks(self.access.layout, self.access.geometry, self.root);
        let generation_of = |index: ChunkIndex, chunk: &ChunkEntry| {
            let is_own = chunk.owner == keeper.owner && chunk.table == self.access.table;
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
                    let range = ChunkRange {
                        first: index,
                        count: 1,
                    };
                    found = of.map(|generation| (range, generation));
                }
                // Side by side, which chunks of two nodes are not.
                Some((range, generation)) if of == Some(*generation) && range.end() == index => {
                    range.count += 1;
                }
                Some(_) => break,
            }
        }
        found
    }

    /// Whether some of the table was moved into a run that is not committed (R6). If a lost node
    /// keeps the run from being adopted (U4), the table stays as it is.
    pub(super) fn has_orphan_run(&self, keeper: &Keeper<E>) -> bool {
        let is_own_run = |chunk: &ChunkEntry| {
            let is_run = matches!(chunk.purpose, Some(ChunkPurpose::Run { .. }));
            is_run && chunk.owner == keeper.owner && chunk.table == self.access.table
        };
        let mut chunks = self.chunks.iter();
        // Costs no look at all leaves where there is none.
        chunks.any(|(_, chunk)| is_own_run(chunk))
            && self.orphan_run(keeper, &BTreeSet::new()).is_some()
    }

    /// Whether a leaf lies in a chunk of leaves that splits made.
    pub(super) fn is_shared(&self, leaf: RemoteAddr) -> bool {
        let chunk = self.access.layout.chunk_of(leaf);
        let chunk = chunk.and_then(|chunk| self.chunks.get(chunk));
        chunk.is_some_and(|chunk| matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. })))
    }
}

impl<E: Endpoint> Keeper<E> {
    /// R6: commits what retrainers that died, or gave up, have moved, and frees what else is in
    /// runs that the node has. Returns how many there were; `None`: it waits for somebody, or
    /// for room. A run of which it cannot be told what was moved into it, because a node is lost
    /// (U4), stays as it is.
    pub(crate) async fn adopt_orphans(
        &self,
        entry: &CatalogEntry,
        patience: &Patience<'_>,
    ) -> Result<Option<u64>, IndexError> {
        let looks = Looks::default();
        let (mut count, mut unknown) = (0, BTreeSet::new());
        loop {
            let Some(table) = looks.look(self, entry.clone(), patience).await? else {
                return Ok(None);
            };
            let Some((range, generation)) = table.orphan_run(self, &unknown) else {
                return Ok(Some(count));
            };
            let broken = Cell::new(false);
            let work = table.work(&broken);
            let Some(adopted) = patience.wait(adopt(&work, range, generation)).await else {
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
