//! Retraining, as the node does it: which models of which tables, and when what they leave behind
//! is reused (DESIGN L4, D7; the rules R1 to R7 of `farleaf_index::retrain`, and for `rolex` tables
//! X1 to X9 of `farleaf_index::retrain::paper`).
//!
//! - **T1.** A model is due when splits have added one leaf to so many of its own. Those that are
//!   due are retrained together with their neighbours, so that runs are long, fullest first.
//! - **T2.** What a table has of chunks that nobody leases and that its root does not name is
//!   garbage: the chunks are listed first, then the root is read, so that what is committed between
//!   the two is not taken for garbage.
//! - **T3.** Garbage waits for its grace period, in groups: a sequence number is drawn when nothing
//!   in far memory names the group any more, and when every session that is not fenced has
//!   published it, the group is freed: chunks are zeroed, leaves of shared chunks marked as free. A
//!   leaf whose chunk is leased waits on.
//! - **T4.** Nothing of this needs to be known by who comes next: garbage is found again.
//! - **T5.** Retraining begins when a sweep has found nothing more of the dead: what another
//!   retrainer has left half done is finished by it (R6).

mod chunks;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use farleaf_fabric::{Batch, Endpoint, ProtocolCheck};
use farleaf_index::load::{LoadPlan, finish_root};
use farleaf_index::retrain::paper::retrain_in_place;
use farleaf_index::retrain::{RetrainSummary, Retraining, adopt, retrain};
use farleaf_index::snapshot::{SnapshotContents, read_contents};
use farleaf_index::{IndexError, LayerKind};
use farleaf_leaf::LeafAccess;
use farleaf_region::RegionError;
use farleaf_region::allocation::{ChunkAllocator, ChunkRange};
use farleaf_region::catalog::{CatalogEntry, EntryState};
use farleaf_region::chunk::{ChunkEntry, ChunkPurpose, FreeLeaves};
use farleaf_region::layout::ChunkIndex;
use farleaf_types::{RemoteAddr, SequenceNumber, TableId};

use crate::patience::Patience;
use crate::redirected::Redirected;
use crate::sweep::Keeper;

/// When models are retrained, and how many of their leaves at once.
#[derive(Clone, Copy, Debug)]
pub struct RetrainPolicy {
    /// A model is due when it has a synonym leaf for so many of its own leaves.
    pub leaves_per_split: u64,
    /// And at least so many.
    pub split_count_min: u64,
    /// Leaves of the models that are retrained together, if they have so many.
    pub leaf_count_max: u64,
}

impl Default for RetrainPolicy {
    /// One split for eight leaves, at least four; 65,536 leaves at once: 12 MiB.
    fn default() -> Self {
        Self {
            leaves_per_split: 8,
            split_count_min: 4,
            leaf_count_max: 1 << 16,
        }
    }
}

/// What retraining has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetrainCounts {
    /// Retrainings.
    pub retraining_count: u64,
    /// Leaves moved.
    pub moved_count: u64,
    /// Leaves that they became.
    pub made_count: u64,
    /// Models trained.
    pub model_count: u64,
    /// Synonym leaves that became trained leaves where they were (`rolex`, X3).
    pub adopted_count: u64,
    /// Leaves that were announced in old tables meanwhile, and then in new ones (X7).
    pub late_count: u64,
    /// Retired leaves that are free again.
    pub freed_leaf_count: u64,
    /// Chunks that are free again.
    pub freed_chunk_count: u64,
    /// The longest that a step held a lock, in round trips.
    pub step_round_trips_max: u64,
}

/// A group of what nothing in far memory names any more.
#[derive(Debug)]
struct Garbage {
    table: TableId,
    /// When every session has published this, nobody else names it either (T3).
    sequence: SequenceNumber,
    is_over: bool,
    leaves: Vec<RemoteAddr>,
    chunks: Vec<ChunkIndex>,
}

/// What the node keeps of retraining between its ticks.
#[derive(Debug)]
pub struct Retrainer {
    policy: RetrainPolicy,
    garbage: RefCell<Vec<Garbage>>,
    /// Somebody died, or a retraining was cut off: there may be retired leaves that are in no group
    /// (T4). Also at first.
    is_scan_due: Cell<bool>,
    /// Where splits may still be announced after a retraining (X8).
    redirected: Redirected,
    counts: Cell<RetrainCounts>,
}

/// A table, as it is looked at once.
struct Looked<'a, E> {
    access: LeafAccess<'a, E>,
    entry: CatalogEntry,
    root: RemoteAddr,
    contents: SnapshotContents,
    chunks: Vec<ChunkEntry>,
}

impl Retrainer {
    /// Nothing retrained yet.
    pub fn new(policy: RetrainPolicy) -> Self {
        Self {
            policy,
            garbage: RefCell::default(),
            is_scan_due: Cell::new(true),
            redirected: Redirected::default(),
            counts: Cell::default(),
        }
    }

    /// Whether anything waits for its grace period.
    pub fn has_garbage(&self) -> bool {
        !self.garbage.borrow().is_empty()
    }

    /// A sweep has found something: retired leaves are looked for once more (T4).
    pub fn look_again(&self) {
        self.is_scan_due.set(true);
    }

    /// What it has done.
    pub fn counts(&self) -> RetrainCounts {
        self.counts.get()
    }

    /// One step for every table: retrains the models that are due most, if any, and frees what has
    /// passed its grace period. Returns whether more is due already.
    ///
    /// # Errors
    /// The fabric failed, or a table is damaged.
    pub async fn tick<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        stop: &AtomicBool,
    ) -> Result<bool, IndexError> {
        let patience = Patience::new(stop);
        let mut is_more_due = false;
        let is_scan_due = self.is_scan_due.replace(false);
        self.mark_over(keeper).await?;
        let catalog = keeper.catalog().await?;
        let is_there = |id| catalog.iter().any(|entry| entry.record.id == id);
        self.redirected.retain(is_there);
        for entry in catalog {
            let is_known = LayerKind::from_number(entry.record.search_layer).is_some();
            if entry.state != EntryState::Live || !is_known || patience.is_over() {
                continue;
            }
            if keeper.adopt_orphans(&entry, &patience).await?.is_none() {
                continue;
            }
            let Some(table) = look(keeper, entry, &patience).await? else {
                continue;
            };
            if is_scan_due {
                let leaves = self.stale_leaves(keeper, &table).await?;
                self.collect(keeper, &table, leaves).await?;
            }
            is_more_due |= self.retrain_table(keeper, &table, &patience).await?;
        }
        self.free(keeper).await?;
        Ok(is_more_due)
    }

    async fn retrain_table<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        table: &Looked<'_, E>,
        patience: &Patience<'_>,
    ) -> Result<bool, IndexError> {
        let broken = Cell::new(false);
        let work = table.work(&broken);
        let late_count = self.redirected.announce(&work).await?;
        let mut counts = self.counts.get();
        counts.late_count += late_count;
        self.counts.set(counts);
        let splits = split_counts(keeper, &table.contents).await?;
        let Some(models) = self.due(&table.contents, &splits) else {
            self.collect(keeper, table, Vec::new()).await?;
            return Ok(false);
        };
        let may_go_on = || !patience.is_over();
        let retrained = Box::pin(async {
            match table.kind() {
                LayerKind::Learned => retrain(&work, models, may_go_on).await,
                // X1: it holds nothing while it waits, so there is nothing to stop for.
                LayerKind::Rolex => retrain_in_place(&work, models).await,
            }
        });
        // What was given up for now is found as an orphan (R6).
        let Some(summary) = patience.wait(retrained).await else {
            self.is_scan_due.set(true);
            return Ok(false);
        };
        let summary = match summary {
            Ok(summary) => summary,
            Err(IndexError::Region(error)) if matches!(*error, RegionError::Full { .. }) => {
                tracing::warn!(table = %table.access.table, "no room to retrain: {error}");
                return Ok(false);
            }
            Err(error) => {
                self.is_scan_due.set(true);
                return Err(error);
            }
        };
        self.note(&summary);
        self.redirected
            .note(table.access.table, &summary.old_counters);
        let first_leaf = table.entry.record.first_leaf;
        let retired = summary.retired.into_iter();
        let shared = retired.filter(|leaf| *leaf != first_leaf && table.is_shared(*leaf));
        let shared: Vec<RemoteAddr> = shared.collect();
        if let Some(table) = look(keeper, table.entry.clone(), patience).await? {
            self.collect(keeper, &table, shared).await?;
        }
        Ok(true)
    }

    fn note(&self, summary: &RetrainSummary) {
        let mut counts = self.counts.get();
        counts.retraining_count += 1;
        counts.moved_count += summary.moved_count;
        counts.made_count += summary.made_count;
        counts.model_count += summary.model_count;
        counts.adopted_count += summary.adopted_count;
        counts.late_count += summary.late_count;
        let longest = counts
            .step_round_trips_max
            .max(summary.step_round_trips_max);
        counts.step_round_trips_max = longest;
        self.counts.set(counts);
    }

    /// T1: the models to be retrained together.
    fn due(&self, contents: &SnapshotContents, splits: &[u64]) -> Option<Range<usize>> {
        let policy = &self.policy;
        let leaves = |model: usize| u64::from(contents.models[model].leaf_count);
        let is_due = |model: usize| {
            // A model that lost its tail has no table to count in (R6).
            let wanted = (leaves(model) / policy.leaves_per_split).max(policy.split_count_min);
            contents.models[model].synonym_table.is_null() || splits[model] >= wanted
        };
        let fullest = (0..splits.len())
            .filter(|model| is_due(*model))
            .max_by_key(|model| splits[*model] * 1000 / leaves(*model))?;
        let (mut from, mut to) = (fullest, fullest + 1);
        let mut leaf_count = leaves(fullest) + splits[fullest];
        // To both sides in turn, as long as there is room and what follows has split at all.
        let mut has_grown = true;
        while has_grown {
            has_grown = false;
            for next in [from.checked_sub(1), (to < splits.len()).then_some(to)] {
                let Some(next) = next else { continue };
                let count = leaves(next) + splits[next];
                let is_worth_it = splits[next] > 0 || is_due(next);
                if is_worth_it && leaf_count + count <= policy.leaf_count_max {
                    leaf_count += count;
                    (from, to) = (from.min(next), to.max(next + 1));
                    has_grown = true;
                }
            }
        }
        Some(from..to)
    }

    /// T2 and T3: notes what nothing in far memory names any more.
    async fn collect<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        table: &Looked<'_, E>,
        leaves: Vec<RemoteAddr>,
    ) -> Result<(), IndexError> {
        let known = self.known(table.access.table);
        let mut named =
            table
                .contents
                .named_chunks(table.access.layout, table.access.geometry, table.root);
        let is_listed = table.contents.leaf_table.is_some();
        if is_listed && keeper.endpoint.leaves_out(ProtocolCheck::LeafTableIsNamed) {
            let chunk = |index: &ChunkIndex| table.chunks.get(index.0 as usize);
            let is_run =
                |chunk: &ChunkEntry| matches!(chunk.purpose, Some(ChunkPurpose::Run { .. }));
            named.retain(|index| !chunk(index).is_some_and(is_run));
        }
        let is_garbage = |index: &ChunkIndex, chunk: &ChunkEntry| {
            let is_whole = matches!(
                chunk.purpose,
                Some(ChunkPurpose::Run { .. } | ChunkPurpose::Snapshot { .. })
            );
            let is_own = chunk.table == table.access.table && chunk.owner.is_free();
            is_own && is_whole && !named.contains(index) && !known.contains(index)
        };
        let chunks = table.chunks.iter().enumerate();
        let chunks = chunks.map(|(index, chunk)| (ChunkIndex(index as u64), chunk));
        let chunks = chunks.filter(|(index, chunk)| is_garbage(index, chunk));
        let chunks: Vec<ChunkIndex> = chunks.map(|(index, _)| index).collect();
        if chunks.is_empty() && leaves.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let slot = batch.fetch_add(keeper.layout.sequence(), 1);
        keeper.endpoint.execute(&mut batch).await?;
        let sequence = SequenceNumber(batch.previous(slot) + 1);
        self.garbage.borrow_mut().push(Garbage {
            table: table.access.table,
            sequence,
            is_over: false,
            leaves,
            chunks,
        });
        Ok(())
    }

    /// T4: retired leaves of shared chunks that nobody leases, and that are in no group.
    async fn stale_leaves<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        table: &Looked<'_, E>,
    ) -> Result<Vec<RemoteAddr>, IndexError> {
        let geometry = table.access.geometry;
        let mut known: BTreeSet<RemoteAddr> = BTreeSet::from([table.entry.record.first_leaf]);
        for group in &*self.garbage.borrow() {
            known.extend(&group.leaves);
        }
        let mut stale = Vec::new();
        let mut batch = Batch::new();
        for (index, chunk) in table.chunks.iter().enumerate() {
            let is_leaves = matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. }));
            let is_own = chunk.table == table.access.table && chunk.owner.is_free();
            if !is_leaves || !is_own {
                continue;
            }
            let start = keeper.layout.chunk_start(ChunkIndex(index as u64));
            let free: BTreeSet<u64> = chunk.free.iter(geometry.chunk_leaf_count()).collect();
            batch.clear();
            let links: Vec<_> = (0..geometry.chunk_leaf_count())
                .filter(|number| !free.contains(number))
                .map(|number| start.offset_blocks(number * geometry.stride_blocks()))
                .map(|leaf| (leaf, batch.read(geometry.link(leaf), 1)))
                .collect();
            keeper.endpoint.execute(&mut batch).await?;
            for (leaf, read) in links {
                let link = RemoteAddr::from_word(batch.words(read)[0]);
                if link.is_retired() && !link.place().is_null() && !known.contains(&leaf) {
                    stale.push(leaf);
                }
            }
        }
        Ok(stale)
    }

    fn known(&self, table: TableId) -> BTreeSet<ChunkIndex> {
        let garbage = self.garbage.borrow();
        let own = garbage.iter().filter(|group| group.table == table);
        own.flat_map(|group| group.chunks.iter().copied()).collect()
    }

    /// T3: which groups are to be freed at the end of this tick. Asked for at its beginning: what
    /// sessions have announced in old tables until they passed is then met in between (X7).
    async fn mark_over<E: Endpoint>(&self, keeper: &Keeper<E>) -> Result<(), IndexError> {
        if !self.has_garbage() {
            return Ok(());
        }
        let published = keeper.published_by_all().await?;
        let is_ignored = keeper.endpoint.leaves_out(ProtocolCheck::MovedIsUnnamed);
        for group in &mut *self.garbage.borrow_mut() {
            group.is_over = group.sequence <= published || is_ignored;
        }
        Ok(())
    }

    /// T3.
    async fn free<E: Endpoint>(&self, keeper: &Keeper<E>) -> Result<(), IndexError> {
        let (over, waiting) = self
            .garbage
            .take()
            .into_iter()
            .partition(|group| group.is_over);
        self.garbage.replace(waiting);
        for group in over {
            self.redirected
                .forget(&keeper.layout, group.table, &group.chunks);
            self.free_group(keeper, group).await?;
        }
        Ok(())
    }

    async fn free_group<E: Endpoint>(
        &self,
        keeper: &Keeper<E>,
        mut group: Garbage,
    ) -> Result<(), IndexError> {
        let mut counts = self.counts.get();
        for chunk in group.chunks.drain(..) {
            let is_own = |entry: &ChunkEntry| {
                let purpose = entry.purpose;
                matches!(
                    purpose,
                    Some(ChunkPurpose::Run { .. } | ChunkPurpose::Snapshot { .. })
                )
            };
            let freed = keeper.change_chunk(chunk, group.table, is_own, |_| {
                (ChunkPurpose::Free, FreeLeaves::default())
            });
            counts.freed_chunk_count += u64::from(freed.await?);
        }
        let mut by_chunk: BTreeMap<ChunkIndex, Vec<RemoteAddr>> = BTreeMap::new();
        for leaf in group.leaves.drain(..) {
            if let Some(chunk) = keeper.layout.chunk_of(leaf) {
                by_chunk.entry(chunk).or_default().push(leaf);
            }
        }
        for (chunk, leaves) in by_chunk {
            if keeper.free_leaves(chunk, group.table, &leaves).await? {
                counts.freed_leaf_count += leaves.len() as u64;
            } else {
                group.leaves.extend(leaves);
            }
        }
        self.counts.set(counts);
        // Leaves in chunks that are leased; those of a table that is gone went with it.
        let is_there = keeper
            .catalog()
            .await?
            .iter()
            .any(|entry| entry.record.id == group.table && entry.state == EntryState::Live);
        if !group.leaves.is_empty() && is_there {
            self.garbage.borrow_mut().push(group);
        }
        Ok(())
    }
}

/// Looks at a table: chunks first, then the root and what it names (T2). `None`: somebody who does
/// not go on holds its first leaf, or it was dropped.
async fn look<'a, E: Endpoint>(
    keeper: &'a Keeper<E>,
    entry: CatalogEntry,
    patience: &Patience<'_>,
) -> Result<Option<Looked<'a, E>>, IndexError> {
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
    if root.is_null() {
        return Ok(None);
    }
    let (geometry, id) = (access.geometry, access.table);
    let contents = read_contents(&keeper.endpoint, &keeper.layout, geometry, id, root);
    let contents = contents.await?;
    Ok(Some(Looked {
        access,
        entry,
        root,
        contents,
        chunks,
    }))
}

impl<E: Endpoint> Looked<'_, E> {
    fn work<'b>(&'b self, broken: &'b Cell<bool>) -> Retraining<'b, E> {
        let slot_count = self.access.geometry.slot_count();
        let plan = LoadPlan {
            kind: self.kind(),
            fill_percent: self.entry.record.fill_percent,
            epsilon_keys: f64::from(self.entry.record.epsilon_milli) / 1000.0,
        };
        Retraining {
            access: self.access,
            entry: &self.entry,
            contents: &self.contents,
            root: self.root,
            epsilon_leaves: plan.epsilon_leaves(slot_count),
            merged_count_max: slot_count * usize::from(self.entry.record.fill_percent) / 100,
            broken,
        }
    }

    /// How it is retrained, which a table with a layer that this code does not know is not
    /// ([`Retrainer::tick`]).
    fn kind(&self) -> LayerKind {
        LayerKind::from_number(self.entry.record.search_layer).unwrap_or_default()
    }

    /// R6: a run that the node has, its own or a dead one's, and that the root does not name.
    fn orphan_run(&self, keeper: &Keeper<E>) -> Option<(ChunkRange, u16)> {
        let named = self
            .contents
            .named_chunks(self.access.layout, self.access.geometry, self.root);
        let generation_of = |index: usize| {
            let chunk = &self.chunks[index];
            let is_own = chunk.owner == keeper.owner && chunk.table == self.access.table;
            let is_named = named.contains(&ChunkIndex(index as u64));
            match chunk.purpose {
                Some(ChunkPurpose::Run { generation, .. }) if is_own && !is_named => {
                    Some(generation)
                }
                _ => None,
            }
        };
        let first = (0..self.chunks.len()).find(|index| generation_of(*index).is_some())?;
        let generation = generation_of(first)?;
        let count = (first..self.chunks.len())
            .take_while(|index| generation_of(*index) == Some(generation))
            .count();
        let range = ChunkRange {
            first: ChunkIndex(first as u64),
            count: count as u64,
        };
        Some((range, generation))
    }

    /// Whether a leaf lies in a chunk of leaves that splits made.
    fn is_shared(&self, leaf: RemoteAddr) -> bool {
        let chunk = self.access.layout.chunk_of(leaf);
        let chunk = chunk.and_then(|chunk| self.chunks.get(chunk.0 as usize));
        chunk.is_some_and(|chunk| matches!(chunk.purpose, Some(ChunkPurpose::Leaves { .. })))
    }
}

/// How many splits have been counted in each model since it was trained.
async fn split_counts<E: Endpoint>(
    keeper: &Keeper<E>,
    contents: &SnapshotContents,
) -> Result<Vec<u64>, IndexError> {
    const COUNTER_BATCH_COUNT: usize = 1024;
    let mut batch = Batch::new();
    let mut counts = Vec::with_capacity(contents.models.len());
    for part in contents.models.chunks(COUNTER_BATCH_COUNT) {
        batch.clear();
        let reads: Vec<_> = part
            .iter()
            .map(|model| {
                let table = model.synonym_table;
                (!table.is_null()).then(|| batch.read(table.word_at(0), 1))
            })
            .collect();
        keeper.endpoint.execute(&mut batch).await?;
        let words = reads.into_iter();
        counts.extend(words.map(|read| read.map_or(0, |read| batch.words(read)[0])));
    }
    Ok(counts)
}

impl<E: Endpoint> Keeper<E> {
    /// R6: commits what retrainers that died, or gave up, have moved, and frees what else is in
    /// runs that the node has. Returns how many there were; `None`: it waits for somebody.
    pub(crate) async fn adopt_orphans(
        &self,
        entry: &CatalogEntry,
        patience: &Patience<'_>,
    ) -> Result<Option<u64>, IndexError> {
        let mut count = 0;
        loop {
            let Some(table) = look(self, entry.clone(), patience).await? else {
                return Ok(None);
            };
            let Some((range, generation)) = table.orphan_run(self) else {
                return Ok(Some(count));
            };
            let broken = Cell::new(false);
            let work = table.work(&broken);
            let Some(adopted) = patience.wait(adopt(&work, range, generation)).await else {
                return Ok(None);
            };
            adopted?;
            count += range.count;
        }
    }
}
